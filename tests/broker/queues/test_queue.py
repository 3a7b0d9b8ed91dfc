"""One queue against a plain reference: each message an object, each subscriber a state that only the table moves (rows Q1 to Q10)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mqmesh.broker.queues.core.blocks import SPARE, Block, Meta
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.queue import Queue, Slice
from mqmesh.broker.queues.core.replay import replay
from mqmesh.broker.queues.core.rules import DEAD_LETTER, DROP_OLDEST, Rules
from mqmesh.broker.queues.core.standing import standing
from mqmesh.broker.queues.core.states import (
    HELD,
    JOURNALLED,
    OUTCOMES,
    Act,
    IllegalMove,
    Publisher,
    Step,
    Subscriber,
    act,
    step,
)
from mqmesh.broker.queues.core.stock import MIXED, Move
from support.examples import examples

MEMBERS = ("a", "b", "c")
DELIVERIES = 3
PLANS = ("pool", "all", "a | b, c", "a > b > c")


class Message:
    """One message in words. groups: sets of names. of: name -> state. taker: group -> name."""

    def __init__(self, groups: list[set[str]], ordered: bool, revealed: bool, priority: int, due: int, expires: int) -> None:
        self.publisher = Publisher.REVEALED if revealed else Publisher.PUT
        self.groups = groups
        self.ordered = ordered
        self.priority, self.due, self.expires = priority, due, expires
        self.of = dict.fromkeys(set().union(*groups), Subscriber.CLEAN)
        self.ended: dict[str, Subscriber] = {}
        self.tries = [0] * len(groups)
        self.alone: dict[int, str] = {}  # group -> to whom alone it is revealed again
        self.since = 0  # how often that was done before, of all messages

    def group(self, name: str) -> int:
        return next(at for at, group in enumerate(self.groups) if name in group)

    def move(self, name: str, what: Step) -> None:
        self.of[name] = step(self.of[name], what)

    def through(self, at: int) -> bool:
        return all(self.of[name] in OUTCOMES | JOURNALLED for name in self.groups[at]) and not any(
            self.of[name] in HELD for name in self.groups[at]
        )

    def may(self, name: str, now: int) -> bool:
        if self.publisher is not Publisher.REVEALED or self.of[name] is not Subscriber.CLEAN:
            return False
        at = self.group(name)
        if at in self.alone:
            return self.alone[at] == name
        return self.due <= now and (not self.ordered or all(self.through(before) for before in range(at)))

    def last(self, name: str) -> bool:
        """Whether it is dead if this subscriber returns it, too."""
        return self.tries[self.group(name)] >= DELIVERIES - 1

    def others(self, name: str) -> set[str]:
        return self.groups[self.group(name)] - {name}

    def get(self, name: str) -> None:
        self.move(name, Step.GET)
        self.alone.pop(self.group(name), None)
        for other in self.others(name):
            if self.of[other] is Subscriber.CLEAN:
                self.move(other, Step.SELECT)

    def give_back(self, name: str) -> None:
        self.move(name, Step.RETURN)
        self.tries[self.group(name)] += 1
        for other in self.others(name):
            self.move(other, Step.RELEASE)

    def end(self, name: str, outcome: Subscriber) -> None:
        what = {Subscriber.DONE: Step.DONE, Subscriber.UNUSABLE: Step.FAIL, Subscriber.EXPIRED: Step.EXPIRE}[outcome]
        if what is Step.DONE and self.of[name] is Subscriber.GET:
            self.move(name, Step.FETCH)
        self.move(name, what)
        self.ended[name] = outcome
        self.look()

    def expire(self) -> None:
        for at, group in enumerate(self.groups):
            if not any(self.of[name] in HELD for name in group):
                for name in group:
                    if self.of[name] is Subscriber.CLEAN:
                        self.move(name, Step.EXPIRE)
                self.alone.pop(at, None)
        self.look()

    def look(self) -> None:
        if self.publisher in (Publisher.REVEALED, Publisher.PUT) and all(self.through(at) for at in range(len(self.groups))):
            self.publisher = act(self.publisher, Act.JOURNAL)
            for name, state in self.of.items():
                if state in OUTCOMES:
                    self.move(name, Step.IMPLY)

    def withdraw(self) -> None:
        self.publisher = act(self.publisher, Act.WITHDRAW)
        self.expire()

    def again(self, name: str) -> None:
        self.publisher = act(self.publisher, Act.REVEAL_AGAIN)
        self.move(name, Step.REVEAL_AGAIN)
        del self.ended[name]
        for other in self.of:
            if other != name and self.of[other] is Subscriber.JOURNALLED_IMPLIED:
                self.of[other] = self.ended.get(other, Subscriber.EXPIRED)  # implied no more
        self.alone[self.group(name)] = name


class Against(RuleBasedStateMachine):
    """The queue and its reference, in step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.queue = Queue("orders", Rules(deliveries=DELIVERIES))
        self.messages: dict[int, Message] = {}
        self.slices: dict[str, list[tuple[Slice, int]]] = {name: [] for name in MEMBERS}
        self.written: list[Block | Move] = []
        self.again = 0
        for name in MEMBERS:
            self.queue.subscribe(name)
            self.queue.join(name)

    @rule(
        count=st.integers(1, 4),
        plan=st.sampled_from(PLANS),
        revealed=st.booleans(),
        priority=st.sampled_from((0, 4, 9)),
        delay=st.sampled_from((0, 0, 50)),
        life=st.sampled_from((0, 0, 120)),
        copies=st.integers(1, 2),
    )
    def put(self, count: int, plan: str, revealed: bool, priority: int, delay: int, life: int, copies: int) -> None:
        how = plan_of(plan)
        for copy in range(copies):
            meta = Meta(f"publisher-{copy}")
            payloads = [b"%d" % index for index in range(count)]
            self.queue.put(payloads, meta, self.now, b"t", priority, delay, life, how, revealed)
        for block in self.kept():
            groups = [set(group) or set(MEMBERS) for group in block.key.groups]
            for position in range(block.first, block.first + block.count):
                self.messages[position] = Message(groups, how.ordered, revealed, priority, self.now + delay, self.now + life if life else 0)

    def kept(self) -> list[Block]:
        """Commit: the blocks that are new."""
        blocks = self.queue.seal(self.now)
        self.note()
        for block in blocks:
            self.queue.committed(block, self.now)
        self.written += blocks
        return blocks

    @rule(name=st.sampled_from(MEMBERS), most=st.integers(1, 6))
    def take(self, name: str, most: int) -> None:
        wanted = self.wanted(name)
        expected: list[int] = []
        for position, message in wanted if not self.has_last_try(name) else ():
            if message.last(name):
                expected += [position] if not self.slices[name] and not expected else []
                break
            expected.append(position)
        assert self.queue.available(self.queue.members[name]) == bool(expected)
        slices = self.queue.take(self.queue.members[name], most, self.now)
        assert [one.part.block.first + at for one in slices for at in range(one.start, one.start + one.length)] == expected[:most]
        for one in slices:
            for at in range(one.start, one.start + one.length):
                message = self.messages[one.part.block.first + at]
                assert one.tries == message.tries[message.group(name)]
                message.get(name)
                self.slices[name].append((one, at))

    def wanted(self, name: str) -> list[tuple[int, Message]]:
        """What a member may have, in order: first what is revealed again to it alone, the latest first."""
        found = [(position, one) for position, one in self.messages.items() if one.may(name, self.now)]
        alone = [one for one in found if name == one[1].alone.get(one[1].group(name))]
        others = [one for one in found if one not in alone]
        return sorted(alone, key=lambda one: -one[1].since) + sorted(others, key=lambda one: (-one[1].priority, one[0]))

    def has_last_try(self, name: str) -> bool:
        """Whether a member has a message at its last try: nothing else, then, and it gets nothing else."""
        held = [self.messages[one.part.block.first + at] for one, at in self.slices[name]]
        found = any(one.last(name) for one in held)
        assert not found or len(held) == 1
        return found

    @precondition(lambda self: any(self.slices.values()))
    @rule(data=st.data(), what=st.sampled_from(("done", "unusable", "expired", "back", "fetch", "process", "twice")))
    def answer(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from([name for name in MEMBERS if self.slices[name]]))
        one, at = data.draw(st.sampled_from(self.slices[name]))
        part, member = one.part, self.queue.members[name]
        message = self.messages[part.block.first + at]
        if what in ("fetch", "process"):
            moved = Step.FETCH if what == "fetch" else Step.PROCESS
            try:
                message.move(name, moved)
            except IllegalMove:
                with pytest.raises(IllegalMove):
                    self.queue.advance(member, part, at, 1, moved, self.now)
            else:
                self.queue.advance(member, part, at, 1, moved, self.now)
            return
        self.slices[name].remove((one, at))
        if what == "back":
            self.queue.give_back(member, part, at, 1, self.now)
            self.returned(message, name)
            return
        outcome = {"unusable": Subscriber.UNUSABLE, "expired": Subscriber.EXPIRED}.get(what, Subscriber.DONE)
        self.queue.settle(member, part, at, 1, outcome, self.now)
        message.end(name, outcome)
        if what == "twice":
            with pytest.raises(IllegalMove):
                self.queue.settle(member, part, at, 1, Subscriber.DONE, self.now)

    def returned(self, message: Message, name: str) -> None:
        group = message.group(name)
        if message.last(name):  # and it was alone
            message.tries[group] += 1
            message.end(name, Subscriber.UNUSABLE)
            return
        message.give_back(name)
        if message.publisher is Publisher.UNAVAILABLE or 0 < message.expires <= self.now:
            for other in message.groups[group]:
                message.move(other, Step.EXPIRE)
            message.look()

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), priority=st.sampled_from((0, 1, 4, 9)))
    def publisher_changes_what_waits(self, data: st.DataObject, priority: int) -> None:
        """Rows Q5 and Q14: it expires by request, or has another priority."""
        position = data.draw(st.sampled_from(sorted(self.messages)))
        message, block = self.messages[position], self.queue.find(position)
        if block is None:
            return
        waits, expires, at = Subscriber.CLEAN in message.of.values(), data.draw(st.integers(0, 3)) == 0, position - block.first
        if not waits:
            with pytest.raises(IllegalMove, match="nobody is still to get"):
                self.queue.expire_at_once(block, at, self.now)
            with pytest.raises(IllegalMove, match="nobody is still to get"):
                self.queue.prioritize(block, at, priority, self.now)
        elif expires:
            self.queue.expire_at_once(block, at, self.now)
            message.expire()
        else:
            self.queue.prioritize(block, at, priority, self.now)
            message.priority = priority
            assert block.priority_of(at) == priority

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def subscriber_expires_what_it_alone_is_to_get(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.messages)))
        message, block = self.messages[position], self.queue.find(position)
        name = data.draw(st.sampled_from(MEMBERS))
        if block is None or name not in message.of or message.of[name] is not Subscriber.CLEAN or message.others(name):
            return
        part, member = block.parts[message.group(name)], self.queue.members[name]
        if message.publisher is not Publisher.REVEALED or message.due > self.now:
            with pytest.raises(IllegalMove, match="EXPIRE: message"):
                self.queue.expire_alone(member, part, position - block.first, self.now)
            return
        self.queue.expire_alone(member, part, position - block.first, self.now)
        message.move(name, Step.EXPIRE)
        message.alone.pop(message.group(name), None)
        message.look()

    @rule(name=st.sampled_from(MEMBERS))
    def leave(self, name: str) -> None:
        self.queue.leave(self.queue.members[name], self.now)
        for one, at in self.slices[name]:
            self.returned(self.messages[one.part.block.first + at], name)
        self.slices[name] = []
        self.queue.join(name)

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def publisher_acts(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.messages)))
        message, block = self.messages[position], self.queue.find(position)
        if block is None:
            return
        at = position - block.first
        if message.publisher is Publisher.PUT and data.draw(st.booleans()):
            self.queue.reveal(block, at, 1, self.now)
            message.publisher = act(message.publisher, Act.REVEAL)
        elif message.publisher in (Publisher.PUT, Publisher.REVEALED):
            self.queue.withdraw(block, at, 1, self.now)
            message.withdraw()
            with pytest.raises(IllegalMove):
                self.queue.reveal(block, at, 1, self.now)
        elif message.publisher is Publisher.JOURNALLED:
            for name in sorted(message.of):
                if not self.may_come_again(block, at):
                    return
                over = 0 < message.expires <= self.now
                if message.ended.get(name) is Subscriber.UNUSABLE and message.of[name] is Subscriber.JOURNALLED_IMPLIED and not over:
                    self.queue.reveal_again(block, at, name, self.now)
                    message.again(name)
                    self.again += 1
                    message.since = self.again
                    return
                with pytest.raises(IllegalMove):
                    self.queue.reveal_again(block, at, name, self.now)

    def may_come_again(self, block: Block, at: int) -> bool:
        """Whether a message that somebody could not use is still there."""
        return True

    @rule(more=st.integers(1, 60))
    def time_passes(self, more: int) -> None:
        self.now += more
        self.queue.handle_timer(self.now)
        for message in self.messages.values():
            if 0 < message.expires <= self.now:
                message.expire()

    def note(self) -> None:
        self.queue.release(self.now)
        self.written += self.queue.moves
        self.queue.moves.clear()

    def teardown(self) -> None:
        """What was written, done again, leads to the same."""
        self.note()
        again = Queue("orders", Rules(deliveries=DELIVERIES))
        for name in self.queue.members:
            again.member(name)
        for one in self.written:
            if isinstance(one, Move):
                replay(again, one)
                continue
            block = Block(one.key, one.at)
            block.first, block.count, block.metas, block.which = one.first, one.count, one.metas, one.which
            again.number_groups(block)
            again.add(block, one.at)
        again.handle_timer(self.now)
        again.check()
        assert sorted(again.blocks) == sorted(self.queue.blocks)
        for first, block in self.queue.blocks.items():
            for at in range(block.count):
                assert standing(again, again.blocks[first], at) == standing(self.queue, block, at)
                assert again.blocks[first].priority_of(at) == block.priority_of(at)

    @invariant()
    def they_agree(self) -> None:
        self.queue.check()
        for position, message in self.messages.items():
            block = self.queue.find(position)
            if block is None:
                assert message.publisher in (Publisher.JOURNALLED, Publisher.UNAVAILABLE)
                continue
            found = standing(self.queue, block, position - block.first)
            assert found.publisher is message.publisher
            assert {name: found.subscribers[name] for name in message.of} == message.of, position


Against.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAgainstTheReference = Against.TestCase


def put(queue: Queue, *payloads: bytes, now: int = 1, group: str = "", **more: object) -> None:
    queue.put(list(payloads), Meta("p", b"", "", group), now, **more)  # type: ignore[arg-type]
    for block in queue.seal(now):
        queue.committed(block, now)


def bodies(slices: list[Slice]) -> list[bytes]:
    return [(one.part.block.payloads or [])[at] for one in slices for at in range(one.start, one.start + one.length)]


def test_q7_the_first_free_member_takes_it() -> None:
    queue = Queue("q", Rules())
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"1", b"2", b"3")
    assert bodies(queue.take(b, 2, 1)) == [b"1", b"2"]
    assert bodies(queue.take(a, 2, 1)) == [b"3"]
    queue.leave(b, 2)
    assert bodies(queue.take(a, 9, 2)) == [b"1", b"2"]


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from((0, 10, 20_000)), st.sampled_from((4, 9))), max_size=12))
def test_order_stays_whatever_expires_when(puts: list[tuple[int, int, int]]) -> None:
    """Messages that differ in their expiries are in blocks of their own."""
    queue, wanted = Queue("q", Rules()), list[tuple[int, bytes]]()
    for count, life, priority in puts:
        payloads = [b"%d" % (len(wanted) + at) for at in range(count)]
        wanted += [(-priority, payload) for payload in payloads]
        queue.put(payloads, Meta("p", b""), 1, priority=priority, life=life)
    for block in queue.seal(1):
        queue.committed(block, 1)
    assert bodies(queue.take(queue.join("a"), 99, 2)) == [payload for _, payload in sorted(wanted, key=lambda one: one[0])]


def test_priority_goes_first_and_order_stays_within_one() -> None:
    queue = Queue("q", Rules())
    member = queue.join("a")
    for priority in (4, 9, 0, 9, 4):
        put(queue, b"%d" % priority, b"+%d" % priority, priority=priority)
    assert bodies(queue.take(member, 99, 1)) == [b"9", b"+9", b"9", b"+9", b"4", b"+4", b"4", b"+4", b"0", b"+0"]


def test_a_queue_has_priorities_until_many_messages_came_without() -> None:
    queue = Queue("q", Rules())
    put(queue, b"1")
    assert not queue.mixed
    put(queue, b"2", priority=5)
    put(queue, *[b""] * (MIXED - 1))
    assert queue.mixed, "its members get few messages each, so that one with a priority overtakes most of them"
    put(queue, b"3")
    assert not queue.mixed
    put(queue, b"4", priority=9)
    assert queue.mixed


def test_q14_a_waiting_message_has_another_priority() -> None:
    queue = Queue("q", Rules())
    member = queue.join("a")
    put(queue, *(b"%d" % number for number in range(1, 8)))
    put(queue, b"8", priority=1)
    for position, priority in ((5, 9), (2, 1), (7, 9), (3, 5), (3, 4), (7, 0), (8, 4)):
        block = queue.find(position)
        assert block is not None
        queue.prioritize(block, position - block.first, priority, 1)
    assert queue.mixed
    found = queue.take(member, 3, 1)
    assert bodies(found) == [b"5", b"1", b"3"]
    queue.give_back(member, found[0].part, found[0].start, 1, 1)
    assert bodies(queue.take(member, 9, 1)) == [b"5", b"4", b"6", b"8", b"2", b"7"]
    queue.check()


def test_q14_what_is_set_apart_often_takes_no_more_room() -> None:
    queue = Queue("q", Rules())
    member = queue.join("a")
    put(queue, b"1", b"2")
    block = queue.block_from(1)
    assert block is not None
    for number in range(10 * SPARE):
        queue.prioritize(block, 1, number % 10, 1)
    assert len(block.parts[0].lane.apart) <= SPARE + 2
    queue.prioritize(block, 1, 9, 1)
    assert bodies(queue.take(member, 9, 1)) == [b"2", b"1"]


def test_q14_priority_counts_within_message_groups_too() -> None:
    queue = Queue("q", Rules())
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"x1", b"x2", b"x3", group="x")
    put(queue, b"y1", group="y")
    block = queue.block_from(1)
    assert block is not None
    queue.prioritize(block, 2, 9, 1)
    assert bodies(queue.take(a, 2, 1)) == [b"x3", b"x1"]
    assert bodies(queue.take(b, 9, 1)) == [b"y1"]
    queue.check()


def test_q5_who_is_skipped_does_not_let_others_overtake() -> None:
    queue = Queue("q", Rules(plan=plan_of("a > b > c")))
    a, b, c = [queue.join(name) for name in "abc"]
    put(queue, b"1")
    block = queue.block_from(1)
    assert block is not None
    queue.expire_alone(b, block.parts[1], 0, 1)
    assert not queue.take(c, 9, 1)
    (one,) = queue.take(a, 9, 1)
    queue.settle(a, one.part, 0, 1, Subscriber.DONE, 1)
    assert bodies(queue.take(c, 9, 1)) == [b"1"]


def test_a_message_group_stays_with_one_member() -> None:
    queue = Queue("q", Rules())
    a, b = queue.join("a"), queue.join("b")
    for number in range(4):
        put(queue, b"x%d" % number, group="x")
        put(queue, b"y%d" % number, group="y")
    assert bodies(queue.take(a, 1, 1)) == [b"x0"]
    assert bodies(queue.take(b, 9, 1)) == [b"y0", b"y1", b"y2", b"y3"]
    assert bodies(queue.take(a, 9, 1)) == [b"x1", b"x2", b"x3"]
    queue.leave(a, 2)
    assert bodies(queue.take(b, 9, 2)) == [b"x0", b"x1", b"x2", b"x3"]


def test_what_is_not_committed_yet_counts_too() -> None:
    queue = Queue("q", Rules(messages=3, bytes=10))
    for payload in (b"1234", b"1234"):
        queue.put([payload], Meta("shop"), 1)
    assert queue.refusal(1, 3) == "the queue holds 8 of 10 bytes"
    (block,) = queue.seal(1)
    assert queue.refusal(1, 3) == "the queue holds 8 of 10 bytes"
    assert queue.refusal(2, 0) == "the queue holds 2 of 3 messages"
    queue.gone(block)
    assert queue.refusal(3, 10) is None


def test_a_group_stays_while_its_messages_are_committed() -> None:
    queue = Queue("q", Rules())
    queue.join("a")
    queue.put([b"1"], Meta("shop"), 1, plan=plan_of("a | b"))
    (block,) = queue.seal(1)
    queue._drop_lanes()
    queue.committed(block, 1)
    queue.check()
    assert len(queue.take(queue.members["a"], 1, 1)) == 1
    queue.put([b"2"], Meta("shop"), 1, plan=plan_of("c | d"))
    (block,) = queue.seal(1)
    queue.gone(block)
    queue._drop_lanes()
    assert frozenset(("c", "d")) not in queue.lanes


def test_full_refuses_drops_or_buries() -> None:
    queue = Queue("q", Rules(messages=2))
    put(queue, b"1", b"2")
    assert queue.refusal(1, 1) == "the queue holds 2 of 2 messages"
    assert queue.full
    for when_full, dead in ((DROP_OLDEST, 0), (DEAD_LETTER, 1)):
        queue = Queue("q", Rules(messages=2, when_full=when_full))
        put(queue, b"1", b"2")
        assert queue.refusal(1, 1) is None
        put(queue, b"3")
        queue.release(1)
        assert len(queue.dead) == dead
        assert bodies(queue.take(queue.join("a"), 9, 1)) == [b"2", b"3"]


def test_back_off_doubles_and_the_limit_makes_a_dead_letter() -> None:
    queue = Queue("q", Rules(deliveries=3, backoff=1.0))
    member = queue.join("a")
    put(queue, b"1")
    now, waits = 1, []
    for _ in range(2):
        (one,) = queue.take(member, 1, now)
        queue.give_back(member, one.part, one.start, 1, now)
        assert not queue.take(member, 1, now)
        waits.append(queue.deadline - now)
        now = queue.deadline
        queue.handle_timer(now)
    assert waits == [1000, 2000]
    (one,) = queue.take(member, 1, now)
    assert one.tries == 2
    queue.give_back(member, one.part, one.start, 1, now)
    queue.release(now)
    assert [(one.at, one.why) for one in queue.dead] == [(0, "given to members 3 times")]
    assert not queue.blocks


def test_what_is_not_committed_yet_waits_for_nobody_who_has_left() -> None:
    queue = Queue("q", Rules(plan=plan_of("all")))
    for name in "ab":
        queue.subscribe(name)
    queue.put([b"1"], Meta("shop"), 1)
    (first,) = queue.seal(1)  # on its way to the disk
    queue.put([b"2"], Meta("shop"), 1)
    for _ in queue.unsubscribe("a", 1):
        pass
    queue.subscribe("a")
    queue.put([b"3"], Meta("shop"), 1)
    queue.committed(first, 1)
    for block in queue.seal(1):
        queue.committed(block, 1)
    assert bodies(queue.take(queue.join("a"), 9, 1)) == [b"3"]
    assert bodies(queue.take(queue.join("b"), 9, 1)) == [b"1", b"2", b"3"]
    assert not queue.left
    queue.check()


def crash(queue: Queue, name: str) -> None:
    queue.leave(queue.members[name], 1)
    queue.join(name)


def test_a_last_try_is_given_alone_so_that_neighbours_do_not_die_with_it() -> None:
    queue = Queue("q", Rules(deliveries=3))
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"poison", *(b"%d" % number for number in range(9)))
    for _ in range(2):
        assert len(queue.take(a, 100, 1)) >= 1
        assert a.held == 10
        crash(queue, "a")
    put(queue, b"new")
    assert bodies(queue.take(a, 100, 1)) == [b"poison"]
    assert not queue.take(a, 100, 1)
    assert bodies(queue.take(b, 100, 1)) == [b"0"]
    crash(queue, "a")
    queue.release(1)
    assert [one.at for one in queue.dead] == [0]
    for number in range(1, 9):
        (one,) = queue.take(a, 100, 1)
        assert bodies([one]) == [b"%d" % number]
        queue.settle(a, one.part, one.start, one.length, Subscriber.DONE, 1)
    assert bodies(queue.take(a, 100, 1)) == [b"new"]
    queue.check()


def test_who_has_something_waits_behind_a_last_try_and_order_stays() -> None:
    queue = Queue("q", Rules(deliveries=2))
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"1", b"2", b"3")
    (first,) = queue.take(a, 1, 1)
    (second,) = queue.take(a, 1, 1)
    queue.give_back(a, second.part, second.start, 1, 1)
    assert not queue.take(a, 9, 1)
    assert not queue.available(a)
    assert bodies(queue.take(b, 9, 1)) == [b"2"]
    assert bodies(queue.take(a, 9, 1)) == [b"3"]
    queue.settle(a, first.part, first.start, 1, Subscriber.DONE, 1)
    queue.check()


def test_a_queue_whose_messages_are_given_once_gives_many_at_a_time() -> None:
    queue = Queue("q", Rules(deliveries=1))
    a = queue.join("a")
    put(queue, b"1", b"2", b"3")
    assert bodies(queue.take(a, 9, 1)) == [b"1", b"2", b"3"]


def test_last_tries_stand_alone_after_a_restart_too() -> None:
    queue, again = Queue("q", Rules(deliveries=2)), Queue("q", Rules(deliveries=2))
    member = queue.join("a")
    put(queue, b"1", b"2")
    block = queue.block_from(1)
    assert block is not None
    queue.moves.clear()
    queue.take(member, 9, 1)
    crash(queue, "a")
    copy = Block(block.key, block.at)
    copy.first, copy.count, copy.metas, copy.payloads = block.first, block.count, block.metas, block.payloads
    again.member("a")
    again.number_groups(copy)
    again.add(copy, 1)
    for move in queue.moves:
        replay(again, move)
    assert bodies(again.take(again.join("a"), 9, 1)) == bodies(queue.take(queue.members["a"], 9, 1)) == [b"1"]


def test_only_one_member_is_active_where_the_rules_say_so() -> None:
    queue = Queue("q", Rules(single=True))
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"1", b"2")
    assert not queue.take(b, 9, 1)
    assert bodies(queue.take(a, 1, 1)) == [b"1"]
    queue.leave(a, 2)
    assert bodies(queue.take(b, 9, 2)) == [b"1", b"2"]


def test_a_refused_move_says_what_the_state_allows() -> None:
    queue = Queue("q", Rules())
    a, b = queue.join("a"), queue.join("b")
    put(queue, b"1")
    (one,) = queue.take(a, 1, 1)
    with pytest.raises(IllegalMove, match="b does not have messages 1 to 1: GET"):
        queue.settle(b, one.part, 0, 1, Subscriber.DONE, 1)
    with pytest.raises(IllegalMove, match="PROCESS: a subscriber's message that is GET allows FETCH, FAIL, RETURN, EXPIRE"):
        queue.advance(a, one.part, 0, 1, Step.PROCESS, 1)


def test_groups_that_are_with_others_do_not_hold_what_is_for_a_member_alone() -> None:
    queue = Queue("orders", Rules())
    a, b = queue.join("a"), queue.join("b")

    def put(payload: bytes, plan: str, group: str) -> None:
        queue.put([payload], Meta("shop", group=group), 1, plan=plan_of(plan))
        for block in queue.seal(1):
            queue.committed(block, 1)

    put(b"1", "pool", "x")
    assert queue.take(b, 1, 1)
    put(b"2", "pool", "x")
    put(b"3", "a", "")
    assert queue.available(a)
    assert [one.part.block.first for one in queue.take(a, 5, 1)] == [3]
    assert not queue.available(a)
    assert [one.part.block.first for one in queue.take(b, 5, 1)] == [2]
