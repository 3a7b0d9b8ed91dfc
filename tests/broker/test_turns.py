"""Turns: slices of work, in the order of what addresses have used. The clock is the test's own, so that nothing depends on the machine."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import tracemalloc
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.base.refusals import Warnings
from mqmesh.broker import turns as room
from mqmesh.broker.counters import Counters
from mqmesh.broker.turns import CROWD, ROUND, SLICE, STALL, Share, Turns
from mqmesh.broker.write_rounds import WRITES
from mqmesh.mqtt import decode as decoding
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Disconnect, Publish, Subscribe, Subscription
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site, until
from support.examples import examples
from support.models.broker_wire import Wire, run, started


class Lab:
    """Turns whose loop is a list of callbacks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processor: float | None = None
        self.counters = Counters()
        self.rounds: list[object] = []
        self.turns = Turns(self.counters, Warnings(logging.getLogger("t")), lambda: self.now, self.meter)
        self.turns.loop = self  # type: ignore[assignment]

    def meter(self) -> float:
        return self.now if self.processor is None else self.processor

    def time(self) -> float:
        return self.now

    def call_soon(self, call: object) -> None:
        self.rounds.append(call)

    def round(self) -> None:
        calls, self.rounds = self.rounds, []
        for call in calls:
            call()  # type: ignore[operator]

    def steps(self, count: int, seconds: float, done: list[str], name: str) -> Iterator[None]:
        for _ in range(count):
            self.now += seconds
            yield
        done.append(name)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.floats(0.0001, 0.002)), min_size=1, max_size=12),
)
def test_no_round_is_longer_than_its_bound_and_all_work_is_done(works: list[tuple[str, int, float]]) -> None:
    lab, done = Lab(), []
    shares = {name: lab.turns.share(f"10.0.0.{ord(name)}:1") for name in "abc"}
    for index, (name, count, seconds) in enumerate(works):
        lab.turns.run(shares[name], lab.steps(count, seconds, done, str(index)), "")
    for _ in range(1000):
        if not lab.rounds:
            break
        begun = lab.now
        lab.round()
        assert lab.now - begun <= ROUND + 0.002 + 1e-9  # and the step that ends it
    assert sorted(done, key=int) == [str(index) for index in range(len(works))]
    assert not lab.turns._waiting
    assert not lab.counters.stalls


def test_an_address_that_used_much_waits_for_those_that_used_little() -> None:
    """One address with a hundred works beside three with one each: it has a quarter of the loop while they wait."""
    lab, done = Lab(), []
    heavy, light = lab.turns.share("10.0.0.1:1"), [lab.turns.share(f"10.0.0.{number}:1") for number in (2, 3, 4)]
    for _ in range(100):
        lab.turns.run(heavy, lab.steps(100, 0.001, done, "heavy"), "")
    for share in light:
        lab.turns.run(share, lab.steps(100, 0.001, done, share.name), "")
    while "10.0.0.2" not in done:
        lab.round()
    assert set(done) <= {one.name for one in light}
    used = [share.lately(lab.now) for share in (heavy, *light)]
    assert used[0] <= sum(used) / 4 + 2 * SLICE


def test_new_pieces_wait_while_others_wait_and_when_much_was_done() -> None:
    lab = Lab()
    share = lab.turns.share("10.0.0.1:1")
    lab.turns.run(share, lab.steps(3, 0.001, [], ""), "")
    assert not lab.turns.enter(share)
    lab.round()
    assert lab.turns.enter(share)
    lab.now += 3 * CROWD
    lab.turns.leave(share, Someone())
    assert not lab.turns.enter(share)
    lab.now += 10 * CROWD
    assert lab.turns.enter(share)


class Someone:
    who = "client='c'"


def test_a_stall_is_counted_and_named_if_the_processor_worked(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    share = lab.turns.share("10.0.0.1:99")
    for processor in (0.0, None):
        lab.processor = processor
        lab.now += 1
        assert lab.turns.enter(share)
        lab.turns.what = 0x82
        lab.now += 2 * STALL
        with caplog.at_level(logging.WARNING):
            lab.turns.leave(share, Someone())
    assert lab.counters.stalls == 1
    assert lab.counters.stall_maximum == pytest.approx(2 * STALL)
    assert caplog.messages == ["event=stall address=10.0.0.1 client='c' packet=0x82 more=0 text=the event loop was held for 40 ms"]


def test_what_is_one_address() -> None:
    turns = Lab().turns
    assert turns.share("127.0.0.1:1") is turns.share("127.0.0.1:2")
    assert turns.share("127.0.0.1:1") is not turns.share("127.0.0.2:1")
    assert turns.share("2001:db8:1:2:3::4:1") is turns.share("2001:db8:1:2::1%eth0:2")


async def test_what_a_timer_of_the_broker_causes_is_charged_to_nobody_else() -> None:
    async with Site() as site:
        turns = site.broker.context.turns
        turns.current = turns.share("10.0.0.1:1")
        site.broker._ticker.cancel()
        site.broker._tick()
        assert turns.current is turns.broker


def test_a_share_is_forgotten_by_halves() -> None:
    share = Share("a")
    share.charge(1.0, 0.4)
    assert share.lately(1.0 + room.HALF) == pytest.approx(0.2)


async def test_a_piece_of_many_packets_is_taken_in_slices_and_in_order() -> None:
    """Each packet takes half a slice: pieces of other clients are taken in between, and nothing is lost, also what comes before the end."""
    async with Site() as site:
        now = time.perf_counter()

        def clock() -> float:
            nonlocal now
            now += SLICE / 2
            return now

        subscriber, many, other = await site.client("s"), await site.client("many"), await site.client("other")
        await subscriber.subscribe("t/#")
        site.broker.context.turns.clock = clock
        topics = [f"t/{number % 3}" for number in range(50)]
        many.send(*(Publish(topic, str(number).encode(), retain=number % 2 == 0) for number, topic in enumerate(topics)))
        many.transport.close()
        other.send(Publish("t/x", b"other", retain=True))
        messages = await subscriber.messages(51)
        assert [int(one.payload) for one in messages if one.payload != b"other"] == list(range(50))
        assert messages.index(next(one for one in messages if one.payload == b"other")) < 40
        await site.gone("many")


def test_a_session_that_ends_gives_its_memory_back_as_the_ledger_says() -> None:
    """Its filters go in turns. What its account no longer pays for is not kept until the last of them is removed."""

    async def story() -> None:
        broker = await started()
        ledger, turns = broker.context.ledger, broker.context.turns
        tracemalloc.start()
        client = Wire(broker, 5).connect("c", *(Subscription(f"{number}/" + "x" * 15_000) for number in range(60)))
        ticks = itertools.count()
        turns.clock = lambda: next(ticks) * 0.6 * SLICE
        try:
            client.connection.connection_lost(None)
            del client
            held, memory = ledger.total, tracemalloc.get_traced_memory()[0]
            await until(lambda: ledger.total <= held // 2)
            assert broker.site.router.subscriptions, "it went in turns"
            assert memory - tracemalloc.get_traced_memory()[0] > 0.9 * (held - ledger.total)
        finally:
            tracemalloc.stop()

    run(story())


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_packet_of_many_filters_is_read_and_taken_in_slices(taken_over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks at the clock make a slice: no more than three filters are read in one, and the packet behind it has a slice of its own."""

    async def story() -> None:
        broker = await started()
        client = Wire(broker, 5).connect("c")
        turns = broker.context.turns
        ticks = itertools.count()
        monkeypatch.setattr(turns, "clock", lambda: next(ticks) * 0.6 * SLICE)
        read: list[str] = []
        monkeypatch.setattr(decoding, "check_filter", lambda name, shared: read.append(name))
        names = [f"t/{number}" for number in range(60)]
        client.give(encode(Subscribe(1, [Subscription(name) for name in names]), 5) + encode(Publish("t/5", b"x"), 5))
        sizes = []
        while len(read) < len(names):
            sizes.append(len(read))
            await asyncio.sleep(0)
        assert max(after - before for before, after in itertools.pairwise(sizes)) <= 3
        assert not broker.site.router.subscriptions
        if taken_over:
            other = Wire(broker, 5).connect("c")
            await many_rounds()
            assert not broker.site.router.subscriptions
            assert [type(packet) for packet in other.packets()] == [Connack]
            return
        await many_rounds()
        suback, message = client.packets()
        assert suback.reasons == [0] * 60
        assert message.topic == "t/5"

    run(story())


def test_few_filters_are_taken_and_answered_in_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what a queue or a publisher has for the subscriber would come before SUBACK whenever the machine is slow."""

    async def story() -> None:
        broker = await started()
        client = Wire(broker, 5).connect("c")
        ticks = itertools.count()
        monkeypatch.setattr(broker.context.turns, "clock", lambda: next(ticks) * 2 * SLICE)
        client.give(encode(Subscribe(1, [Subscription(f"t/{number}") for number in range(5)]), 5))
        await until(lambda: broker.site.router.subscriptions > 0)
        (suback,) = client.packets()
        assert suback.reasons == [0] * 5

    run(story())


async def many_rounds() -> None:
    """So many rounds of the loop that nothing waits for a turn any more."""
    for _ in range(500):
        await asyncio.sleep(0)


def test_retained_messages_are_replayed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message takes half a slice."""

    async def story() -> None:
        broker = await started()
        Wire(broker, 5).connect("p").send(*(Publish(f"t/{number}", b"x", retain=True) for number in range(100)))
        client = Wire(broker, 5).connect("c")
        ticks = itertools.count()
        monkeypatch.setattr(broker.context.turns, "clock", lambda: next(ticks) * 0.5 * SLICE)
        client.give(encode(Subscribe(1, [Subscription("t/+")]), 5))
        counts = [0]
        while counts[-1] < 101:
            counts.append(counts[-1] + len(client.packets()))
            await asyncio.sleep(0)
        assert max(after - before for before, after in itertools.pairwise(counts)) <= 4

    run(story())


def test_a_fan_out_is_written_in_slices() -> None:
    """One small PUBLISH to 2,000 subscribers: no round of the loop writes to more than twice `WRITES` of them, the first ones included."""

    async def story() -> list[int]:
        broker = await started()
        wires = [Wire(broker, 5).connect(f"s{number}", Subscription("t")) for number in range(2000)]
        publisher = Wire(broker, 5).connect("p")
        written = []
        for payload in (b"1", b"2"):
            publisher.send(Publish("t", payload))
            for _ in range(40):
                written.append(sum(len(wire.transport.written) for wire in wires))
                await asyncio.sleep(0)
        for wire in wires:
            assert [packet.payload for packet in wire.packets()] == [b"1", b"2"]
        return written

    counts = run(story())
    growth = [after - before for before, after in itertools.pairwise(counts)]
    assert 0 < max(growth) <= 2 * WRITES
    assert counts[-1] == 4000


@pytest.mark.parametrize("filters", [1, 40])
def test_an_error_of_the_broker_closes_the_connection_at_once_and_in_turns(filters: int, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        broker = await started()
        client = Wire(broker, 5).connect("c")
        with mock.patch.object(type(broker.site.router), "subscribe", side_effect=RuntimeError("broken")):
            client.send(Subscribe(1, [Subscription(f"t/{number}") for number in range(filters)]))
            for _ in range(3):
                await asyncio.sleep(0)
        (answer,) = client.packets()
        assert isinstance(answer, Disconnect)
        assert answer.reason == Reason.UNSPECIFIED_ERROR
        assert client.connection.closing
        assert "event=internal-error" in caplog.text

    run(story())


async def test_many_subscribers_of_a_busy_topic_get_all_in_order() -> None:
    async with Site() as site:
        subscribers = [await site.client(f"s{number}", 4 + number % 2) for number in range(300)]
        for one in subscribers:
            one.send(Subscribe(1, [Subscription("t", number % 3) for number in (0, 1)]))
            await one.receive()
        publisher = await site.client("p")
        for number in range(20):
            await publisher.publish("t", str(number).encode(), number % 2)
        for one in subscribers:
            assert [int(message.payload) for message in await one.messages(20)] == list(range(20))


def test_work_goes_on_though_a_mistake_is_made_after_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    done: list[str] = []
    shares = [Share("a"), Share("b")]

    def fail() -> None:
        raise KeyError

    lab.turns.after = fail
    for number, share in enumerate(shares):
        lab.turns.run(share, lab.steps(3, SLICE, done, f"work-{number}"), f"client={number}")
    while lab.rounds:
        lab.round()
    assert sorted(done) == ["work-0", "work-1"]
    assert "event=internal-error client=0" in caplog.text


async def test_a_broker_looks_again_after_a_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async with Site() as site:
        client = await site.client("silent", keep_alive=10)
        with mock.patch.object(site.broker.site.guard, "tick", side_effect=[KeyError, None]) as tick:
            await site.later(1)
            await until(lambda: tick.call_count == 1)
        await site.later(20)
        await client.closed(Reason.KEEP_ALIVE_TIMEOUT)
    assert "KeyError" in caplog.text
