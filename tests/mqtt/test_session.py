"""The session machine: `Outbound`, which moves blocks, does what `step` and `TABLE` say for single messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.codec import decode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.reasons import Reason
from mqmesh.mqtt.session import OVERHEAD, TABLE, WRONG, Delivery, Inbound, Input, Outbound, Sent, step
from support.examples import examples


class Notes:
    """An observer that notes what is in flight. released: as of the last change."""

    def __init__(self) -> None:
        self.outbound: Outbound
        self.parts: dict[int, set[int]] = {}  # place in the order of sending -> identifiers
        self.released: list[tuple[int, int]] = []

    def sent(self, delivery: Delivery, rest: Delivery | None) -> None:
        self.parts[delivery.serial] = set(range(delivery.first, delivery.first + delivery.count))

    def settled(self, delivery: Delivery, begin: int, end: int) -> None:
        block = set(range(delivery.first + begin, delivery.first + end))
        assert block <= self.parts[delivery.serial], "settled twice"
        self.parts[delivery.serial] -= block

    def released_changed(self) -> None:
        self.released = self.outbound.released()


class OutboundMachine(RuleBasedStateMachine):
    """Blocks of any size go out and are acknowledged in any order; a dict of single messages, moved by `step`, is the model."""

    @initialize(limit=st.sampled_from([1, 2, 5, 20, 300]), observed=st.booleans())
    def start(self, limit: int, observed: bool) -> None:
        self.notes = Notes() if observed else None
        self.outbound = Outbound(limit, self.notes)
        if self.notes is not None:
            self.notes.outbound = self.outbound
        self.states: dict[int, Sent] = {}  # identifier -> state, only those in flight
        self.messages: dict[int, bytes] = {}  # identifier -> payload, while published
        self.sent: list[int] = []  # identifiers of what is published, in the order of sending
        self.released: list[int] = []  # in the order of their PUBRECs
        self.last = 0

    @rule(count=st.integers(1, 400), qos=st.integers(1, 2), size=st.sampled_from([10, 200]))
    def send(self, count: int, qos: int, size: int) -> None:
        payloads = [b"%0*d" % (size, self.last + n) for n in range(1, count + 1)]
        rest: Delivery | None = Delivery(Run(b"t", qos, False, payloads), qos)
        while rest is not None and self.outbound.room > 0:
            now, rest = self.outbound.send(rest)
            block = range(now.first, now.first + now.count)
            assert block[0] >= 1
            assert block[-1] <= 65535
            assert not self.states.keys() & set(block), "a busy identifier was given again"
            for packet_id, payload in zip(block, now.payloads, strict=True):
                self.last += 1
                assert payload == b"%0*d" % (size, self.last), "out of order"
                self.states[packet_id] = Sent(qos)
                self.messages[packet_id] = payload
                self.sent.append(packet_id)

    def _move(self, block: range, event: Input) -> list[int]:
        moved = []
        for packet_id in block:
            old = self.states.get(packet_id, Sent.DONE)
            if (old, event) in WRONG:
                continue
            new = step(old, event)
            if new is old:
                continue
            moved.append(packet_id)
            if old in (Sent.PUBLISHED_1, Sent.PUBLISHED_2):
                self.sent.remove(packet_id)
                del self.messages[packet_id]
            else:
                self.released.remove(packet_id)
            if new is Sent.RELEASED:
                self.released.append(packet_id)
            self.states[packet_id] = new
            if new is Sent.DONE:
                del self.states[packet_id]
        return moved

    def _apply(self, event: Input, block: range) -> None:
        first, count = block[0], len(block)
        wrong = [packet_id for packet_id in block if (self.states.get(packet_id, Sent.DONE), event) in WRONG]
        if wrong:
            with pytest.raises(PeerError, match=rf"for packet identifier {wrong[0]}, whose") as caught:
                self._give(event, first, count)
            assert caught.value.reason is Reason.PROTOCOL_ERROR
            self._move(block, event)
            return
        if event is Input.PUBREC:
            answers = self.outbound.receive(first, count)
            self._move(block, event)
            covered = [packet_id for start, number, _ in answers for packet_id in range(start, start + number)]
            assert covered == list(block)
            for start, number, known in answers:
                for packet_id in range(start, start + number):
                    assert known == (self.states.get(packet_id) is Sent.RELEASED)
            return
        assert self._give(event, first, count) == len(self._move(block, event))

    def _give(self, event: Input, first: int, count: int) -> object:
        if event is Input.PUBACK:
            return self.outbound.acknowledge(1, first, count)
        if event is Input.PUBREC_ERROR:
            return self.outbound.acknowledge(2, first, count)
        if event is Input.PUBREC:
            return self.outbound.receive(first, count)
        return self.outbound.complete(first, count)

    @rule(event=st.sampled_from(Input), first=st.integers(1, 700), count=st.integers(1, 300))
    def acknowledge_anything(self, event: Input, first: int, count: int) -> None:
        self._apply(event, range(first, min(first + count, 65536)))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), right=st.booleans(), count=st.integers(1, 30))
    def acknowledge_what_is_in_flight(self, data: st.DataObject, right: bool, count: int) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.states)))
        events = [event for (state, event) in TABLE if not right or state is self.states[packet_id]]
        self._apply(data.draw(st.sampled_from(events)), range(packet_id, min(packet_id + count, 65536)))

    @rule(limit=st.sampled_from([1, 3, 50, 65535]))
    def reconnect(self, limit: int) -> None:
        self.outbound.limit = limit

    @invariant()
    def agrees(self) -> None:
        outbound = self.outbound
        assert outbound.in_flight == len(self.states)
        for packet_id in range(1, 800):
            assert outbound.state_of(packet_id) is self.states.get(packet_id, Sent.DONE)
        again = [(delivery.first + n, payload) for delivery in outbound.unfinished() for n, payload in enumerate(delivery.payloads)]
        assert again == [(packet_id, self.messages[packet_id]) for packet_id in self.sent]
        assert [packet_id for first, count in outbound.released() for packet_id in range(first, first + count)] == self.released
        least = sum(len(payload) + 1 + OVERHEAD for payload in self.messages.values())
        assert outbound.bytes >= least
        if not self.messages:
            assert outbound.bytes == 0

    @invariant()
    def the_observer_knows(self) -> None:
        if self.notes is not None:
            assert set().union(*self.notes.parts.values()) == set(self.sent)
            assert self.notes.released == self.outbound.released()

    @invariant()
    def keeps_to_the_limit(self) -> None:
        assert self.outbound.room == self.outbound.limit - len(self.states)


TestOutbound = OutboundMachine.TestCase
TestOutbound.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_all_identifiers_can_be_busy_and_none_is_given_twice():
    outbound = Outbound(65535)
    run = Run(b"t", 1, False, [b""] * 65535)
    given: list[int] = []
    rest: Delivery | None = Delivery(run, 1)
    while rest is not None:
        now, rest = outbound.send(rest)
        given += range(now.first, now.first + now.count)
    assert sorted(given) == list(range(1, 65536))
    assert outbound.room == 0
    assert outbound.acknowledge(1, 40_000, 1) == 1
    now, rest = outbound.send(Delivery(Run(b"t", 1, False, [b"x"]), 1))
    assert (now.first, rest) == (40_000, None)


def test_sending_without_room_is_our_mistake():
    outbound = Outbound(1)
    outbound.send(Delivery(Run(b"t", 1, False, [b""]), 1))
    with pytest.raises(AssertionError):
        outbound.send(Delivery(Run(b"t", 1, False, [b""]), 1))


def test_identifiers_are_not_handed_out_again_at_once():
    outbound = Outbound(10)
    seen = []
    for _ in range(100):
        now, _ = outbound.send(Delivery(Run(b"t", 1, False, [b""]), 1))
        seen.append(now.first)
        outbound.acknowledge(1, now.first, 1)
    assert seen == list(range(1, 101))


def test_still_leaves_out_what_was_acknowledged_meanwhile():
    outbound = Outbound(10)
    outbound.send(Delivery(Run(b"t", 1, False, [b"%d" % n for n in range(6)]), 1))
    (block,) = outbound.unfinished()
    assert outbound.still(block) == [block]
    outbound.acknowledge(1, 3, 2)
    assert [(piece.first, piece.payloads) for piece in outbound.still(block)] == [(1, [b"0", b"1"]), (5, [b"4", b"5"])]
    outbound.acknowledge(1, 1, 6)
    assert outbound.still(block) == []


def test_what_is_left_of_a_delivery_is_not_what_has_its_identifiers_now():
    outbound = Outbound(10)
    flight, _ = outbound.send(Delivery(Run(b"t", 1, False, [b"1", b"2", b"3"]), 1))
    assert [(one.first, one.count) for one in outbound.left_of(flight)] == [(1, 3)]
    outbound.acknowledge(1, 2, 1)
    newer = flight
    while newer.first != 2:
        newer, _ = outbound.send(Delivery(Run(b"t", 1, False, [b"x"]), 1))
        if newer.first != 2:
            outbound.acknowledge(1, newer.first, 1)
    assert [(one.first, one.payloads) for one in outbound.left_of(flight)] == [(1, [b"1"]), (3, [b"3"])]
    assert [one.payloads for one in outbound.left_of(newer)] == [[b"x"]]


def test_one_unacknowledged_message_counts_for_what_it_holds_on_to():
    outbound = Outbound(100)
    outbound.send(Delivery(Run(b"t", 1, False, [bytes(1000)] * 100), 1))
    outbound.acknowledge(1, 1, 99)
    assert outbound.bytes >= 100_000  # the frames of all 100 are still in memory
    outbound.acknowledge(1, 100, 1)
    assert outbound.bytes == 0


def test_a_small_part_of_a_large_run_does_not_hold_on_to_the_rest():
    outbound = Outbound(2)
    now, rest = outbound.send(Delivery(Run(b"t", 1, False, [bytes([n]) * 1000 for n in range(100)]), 1))
    assert now.run.count == 2
    assert rest is not None
    assert rest.count == 98
    assert now.payloads + rest.payloads == [bytes([n]) * 1000 for n in range(100)]


@given(st.integers(1, 5), st.integers(0, 4), st.integers(1, 60_000), st.sampled_from([4, 5]), st.integers(1, 2), st.booleans())
def test_frames_carry_the_identifiers_and_the_dup_flag(count, start, first, version, qos, duplicate):
    run = Run(b"a/b", qos, False, [b"%d" % n for n in range(count + start)])
    delivery = Delivery(run, qos, True).part(start, start + count)
    delivery.first = first
    packets = [decode(byte, body, version) for byte, body in Framer().feed(bytes(delivery.encode(version, b"", duplicate)))]
    assert [packet.packet_id for packet in packets] == list(range(first, first + count))
    assert [packet.payload for packet in packets] == [b"%d" % n for n in range(start, start + count)]
    assert all((packet.dup, packet.retain, packet.qos) == (duplicate, True, qos) for packet in packets)


class InboundMachine(RuleBasedStateMachine):
    """QoS 2 in the receiving direction: each identifier is new once until its PUBREL; the model is a plain set, one at a time."""

    @initialize()
    def start(self) -> None:
        self.inbound = Inbound()
        self.open: set[int] = set()

    @rule(packet_ids=st.one_of(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.tuples(st.integers(1, 30), st.integers(1, 20))))
    def publish(self, packet_ids: list[int] | tuple[int, int]) -> None:
        block = range(packet_ids[0], packet_ids[0] + packet_ids[1]) if isinstance(packet_ids, tuple) else packet_ids
        expected = []
        for index, packet_id in enumerate(block):
            if packet_id not in self.open:
                self.open.add(packet_id)
                expected.append(index)
        fresh = self.inbound.new(block)
        assert (list(range(len(block))) if fresh is None else fresh) == expected

    @rule(first=st.integers(1, 30), count=st.integers(1, 20))
    def release(self, first: int, count: int) -> None:
        block = range(first, first + count)
        assert self.inbound.release(block) == (self.open >= set(block))
        self.open -= set(block)

    @invariant()
    def agrees(self) -> None:
        assert self.inbound.open == self.open


TestInbound = InboundMachine.TestCase
TestInbound.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
