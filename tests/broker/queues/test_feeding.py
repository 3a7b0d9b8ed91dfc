"""Whose turn it is (`broker/queues/feeding.py`): nobody with room is passed over while there is something for it, and a look is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues import feeding
from mqmesh.broker.queues.core.blocks import APART, FREE, Meta, Part, bucket_of
from mqmesh.broker.queues.core.plan import ALL, POOL, plan_of
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.selection import Fits
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import Member
from mqmesh.broker.queues.feeding import Row
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback, Publish
from support.broker_site import Site

NOW = 1000


FITS: dict[str, Fits] = {
    "": lambda meta, priority: True,
    "x": lambda meta, priority: meta.properties == b"x",
    "high": lambda meta, priority: priority > 4,
    "none": lambda meta, priority: False,
}


class FakeSeat:
    """A member that takes `most` messages, and counts how often it is looked at."""

    def __init__(self, queue: Queue, name: str, most: int, selector: str = "") -> None:
        self.queue, self.member, self.most, self.selector = queue, queue.member(name), most, selector
        queue.choose(self.member, selector, FITS[selector])
        self.shut = False
        self.looks = 0

    def room(self) -> int:
        self.looks += 1
        return 0 if self.shut else self.most - self.member.held


class Scene:
    """A queue with seats. Each message is committed at once."""

    def __init__(self, **rules: Any) -> None:
        self.queue = Queue("orders", Rules(**rules))
        self.row = Row(self.queue, self.give)
        self.seats: list[FakeSeat] = []
        self.now = NOW

    def give(self, seat: Any, most: int) -> int:
        reserved = list(seat.member.reserved)
        taken = self.queue.take(seat.member, most, self.now)
        for part, start, length, _ in taken:
            for at in range(start, start + length):
                assert (part, at) in reserved or seat.member.fits(part.block.meta(at), part.block.priority_of(at))
        return sum(one.length for one in taken)

    def sit(self, name: str, most: int = 1, selector: str = "") -> FakeSeat:
        self.queue.subscribe(name)
        seat = FakeSeat(self.queue, name, most, selector)
        self.seats.append(seat)
        self.row.sit(seat)  # type: ignore[arg-type]
        return seat

    def put(self, *payloads: bytes, group: str = "", properties: bytes = b"", **more: Any) -> None:
        plan = more.get("plan")
        assert plan is None or self.queue.unknown(plan) is None
        self.queue.put(list(payloads), Meta("shop", properties, group=group), self.now, **more)
        for block in self.queue.seal(self.now):
            self.queue.committed(block, self.now)

    def feed(self, most: int = 1 << 20) -> int:
        return self.row.feed(most, 0.0)[0]

    def left_out(self) -> list[str]:
        """Members with room for which there is something."""
        return [one.member.name for one in self.seats if one.room() > 0 and self._has(one.member)]

    def _has(self, member: Member) -> bool:
        if not member.selector:
            return self.queue.available(member)
        if self.queue.rules.single and member is not self.queue.first_active:
            return False
        parts = [part for block in self.queue.blocks.values() for part in block.parts if part.lane in member.lanes]
        return any(self._may_have(member, part, at) for part in parts for at in range(part.block.count))

    def _may_have(self, member: Member, part: Part, at: int) -> bool:
        meta = part.block.meta(at)
        mine = not meta.group or part.lane.owners.get(bucket_of(meta.group), member.number) == member.number
        return mine and part.states[at] in (FREE, APART) and member.fits(meta, part.block.priority_of(at))


@pytest.mark.parametrize("busy", [True, False])
def test_a_look_costs_what_is_given_and_not_what_members_there_are(busy: bool) -> None:
    scene = Scene()
    seats = [scene.sit(f"m{number}") for number in range(1000)]
    if busy:
        scene.put(*[b"x"] * 1001)
    assert scene.feed() == 1000 * busy
    for seat in seats:
        seat.looks = 0
    for number in range(20):
        if busy:
            part = next(iter(seats[number].member.held_in))
            ((at, _),) = part.held_by(seats[number].member.number)
            scene.queue.settle(seats[number].member, part, at, 1, Subscriber.DONE, NOW)
        scene.put(b"x")
        assert scene.feed() == 1
    assert sum(seat.looks for seat in seats) < 100


def test_a_look_behind_a_last_try_costs_the_same() -> None:
    """It waits until one of very many members has nothing else."""
    scene = Scene(deliveries=2)
    seats = [scene.sit(f"m{number}", 10) for number in range(1000)]
    scene.put(*[b"x"] * 1000)
    assert scene.feed() == 1000
    first = seats[0].member
    part = next(iter(first.held_in))
    ((at, _),) = part.held_by(first.number)
    seats[0].shut = True
    scene.queue.give_back(first, part, at, 1, NOW)
    scene.feed()
    for seat in seats:
        seat.looks = 0
    for _ in range(20):
        scene.put(b"y")
        assert scene.feed() == 0
    assert sum(seat.looks for seat in seats) < 100
    ((at, _),) = part.held_by(seats[1].member.number)
    scene.queue.settle(seats[1].member, part, at, 1, Subscriber.DONE, NOW)
    assert scene.feed() == 21, "the last try is taken, and the others go on"
    assert seats[1].member.held == 1


def test_members_of_a_pool_take_turns() -> None:
    scene = Scene()
    seats = [scene.sit(name, 10) for name in "abc"]
    for _ in range(6):
        scene.put(b"x")
        scene.feed()
    assert [seat.member.held for seat in seats] == [2, 2, 2]


def test_what_one_look_leaves_is_given_by_the_next_one() -> None:
    scene = Scene(plan=ALL)
    for name in "abc":
        scene.sit(name, 100)
    scene.put(*[b"x"] * 10)
    assert scene.row.feed(12, 0.0) == (12, True)
    assert scene.row.feed(100, 0.0) == (18, False)


def test_who_has_no_room_does_not_hide_who_has() -> None:
    scene = Scene()
    full, first, second = [scene.sit(name) for name in "abc"]
    scene.put(b"x")
    full.shut = True
    scene.feed()
    full.shut = False
    scene.row.wake(full)  # type: ignore[arg-type]
    scene.feed()
    full.shut = True
    change(scene, first, "stand")
    assert scene.feed() == 1
    assert second.member.held == 1


def test_the_next_single_member_gets_what_waited_for_it() -> None:
    scene = Scene(single=True)
    scene.put(b"x", plan=plan_of("m1 | m2"))
    first, second = scene.sit("m0"), scene.sit("m1")
    assert scene.feed() == 0
    change(scene, first, "stand")
    assert scene.feed() == 1
    assert second.member.held == 1


PLANS = st.sampled_from([None, POOL, ALL, plan_of("m0 | m1"), plan_of("m1, m2"), plan_of("m2 > m3")])


@given(data=st.data(), single=st.booleans(), deliveries=st.sampled_from([0, 2]))
def test_nobody_with_room_is_left_out(data: st.DataObject, single: bool, deliveries: int) -> None:
    scene = Scene(single=single, deliveries=deliveries)
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["put", "put", "sit", "stand", "done", "return", "shut", "open", "time", "again", "priority"]))
        seats = [one for one in scene.seats if what not in ("done", "return") or one.member.held_in]
        if what == "put":
            group, delay = data.draw(st.sampled_from(["", "", "g", "h"])), data.draw(st.sampled_from([0, 0, 5]))
            payloads = [b"x"] * data.draw(st.integers(1, 4))
            more = {"delay": delay, "priority": data.draw(st.integers(3, 5)), "properties": data.draw(st.sampled_from([b"", b"x"]))}
            scene.put(*payloads, group=group, plan=data.draw(PLANS), **more)
        elif what == "sit":
            names = sorted({f"m{number}" for number in range(5)} - {one.member.name for one in scene.seats})
            if names:
                scene.sit(data.draw(st.sampled_from(names)), data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["", *FITS])))
        elif what == "priority":
            block = scene.queue.block_from(data.draw(st.integers(0, scene.queue.next)))
            if block is not None and block.clean:
                scene.queue.prioritize(block, data.draw(st.sampled_from(block.clean)), data.draw(st.integers(3, 5)), scene.now)
        elif what == "time":
            scene.now += 10
            scene.queue.handle_timer(scene.now, 1000)
        elif seats:
            change(scene, data.draw(st.sampled_from(seats)), what)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feeding, "LOOKS", data.draw(st.sampled_from([1, 2, 100])))
            while scene.row.feed(data.draw(st.sampled_from([1, 2, 100])), 0.0)[1]:
                pass
        scene.queue.check()
        assert not scene.left_out()


def change(scene: Scene, seat: FakeSeat, what: str) -> None:
    """Something becomes of a member, or of the first message that it has."""
    member, queue = seat.member, scene.queue
    if what == "stand":
        scene.row.stand(seat, scene.now)  # type: ignore[arg-type]
        scene.seats.remove(seat)
    elif what == "shut":
        seat.shut = True
    elif what == "open":
        seat.shut = False
        scene.row.wake(seat)  # type: ignore[arg-type]
    elif what == "again":
        for block in [*queue.kept.values(), *queue.blocks.values()]:
            for index, at in sorted(block.unusable or ()):
                if block.parts[index].takers[at] == member.number:
                    queue.open_again(block, block.parts[index], at, member)
                    return
    else:
        part = next(iter(member.held_in))
        at, _ = part.held_by(member.number)[0]
        if what == "return":
            queue.give_back(member, part, at, 1, scene.now)
        else:
            queue.settle(member, part, at, 1, Subscriber.UNUSABLE if at % 2 else Subscriber.DONE, scene.now)


def test_a_selector_that_fits_nothing_looks_at_each_message_once() -> None:
    scene = Scene()
    looks: list[int] = []
    FITS["counted"] = lambda meta, priority: bool(looks.append(priority))
    seats = [scene.sit(f"choosy{number}", selector="counted") for number in range(1000)]
    other = scene.sit("other", 1_000_000)
    scene.feed()
    for _ in range(20):
        scene.put(*[b"x"] * 5)
        for seat in seats:
            seat.looks = 0
        while scene.row.feed(100, 0.0)[1]:
            pass
        assert sum(seat.looks for seat in seats) < 5
    assert other.member.held == 100
    assert len(looks) <= 100
    (lane,) = scene.queue.lanes.values()
    assert lane.selections.keys() == {"counted"}
    for seat in seats:
        change(scene, seat, "stand")
    assert not lane.selections
    assert not scene.row.selectors


def test_what_was_looked_at_is_looked_at_again_when_it_is_returned() -> None:
    scene = Scene()
    choosy, other = scene.sit("choosy", selector="x"), scene.sit("other")
    choosy.shut = True
    scene.put(b"1", properties=b"x")
    scene.feed()
    assert other.member.held == 1
    choosy.shut = False
    scene.row.wake(choosy)  # type: ignore[arg-type]
    scene.feed()
    assert not choosy.member.held
    other.shut = True
    change(scene, other, "return")
    scene.feed()
    assert choosy.member.held == 1


def test_a_selection_forgets_what_others_have_taken() -> None:
    scene = Scene()
    choosy, other = scene.sit("choosy", selector="x"), scene.sit("other", 10)
    scene.put(b"1", properties=b"x")
    scene.feed()
    choosy.shut = True
    (lane,) = scene.queue.lanes.values()
    for _ in range(5000):
        scene.put(b"2", properties=b"x")
        scene.feed()
        change(scene, other, "done")
        scene.feed()
    assert len(lane.selections["x"]._ready) < 2000
    assert len(lane.selections["x"]._cursors) < 2000


async def test_room_that_other_messages_took_is_used_when_it_is_there_again(tmp_path: Path) -> None:
    settings = QueueSettings({"orders": Rules()}, folder=tmp_path / "queues", durability="os")
    async with Site(queues=settings) as site:
        shop, worker = await site.client("shop"), await site.client("worker", receive_maximum=1)
        await worker.subscribe("news", qos=1)
        await worker.subscribe("$queue/orders", qos=1)
        await shop.publish("news", b"1", qos=1)
        first = await worker.expect(Publish, topic="news")
        await shop.publish("$queue/orders", b"order", qos=1)
        await worker.nothing()
        worker.send(Puback(first.packet_id))
        assert (await worker.expect(Publish, topic="$queue/orders")).payload == b"order"


def test_who_could_not_be_sent_what_was_given_gets_more() -> None:
    """A member that is full of messages that have expired on their way is not passed over: it has room again."""
    scene = Scene()
    seat, sent = scene.sit("m", 2), 0

    def give(one: Any, most: int) -> int:
        nonlocal sent
        taken = scene.queue.take(one.member, most, scene.now)
        for part, start, length, _ in taken:
            if part.block.first + start <= 4:
                scene.queue.settle(one.member, part, start, length, Subscriber.EXPIRED, scene.now)
            else:
                sent += length
        return sum(slice.length for slice in taken)

    scene.row._give = give
    seat.shut = True
    scene.put(*[b"x"] * 6)
    assert not scene.feed()
    seat.shut = False
    scene.row.wake(seat)  # type: ignore[arg-type]
    more = True
    for _ in range(9):
        if more:
            _, more = scene.row.feed(1 << 20, 0.0)
    assert not more
    assert (sent, seat.member.held) == (2, 2)
