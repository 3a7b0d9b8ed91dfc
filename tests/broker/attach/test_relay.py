"""The relay between two sessions, frame by frame: identifiers stay, and what it answers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.attach.end import End, Refused
from mqmesh.broker.attach.relay import Counts, Later, Relay, Wants
from mqmesh.mesh.wire.policy import Policy, PolicyFilter
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import ConnectReturn, Reason

MAPPED = Policy(None, ("secret/#",), None, (), (("plant/", ""),))


class Bench:
    """A relay whose two brokers have accepted it. present: (here, there), whether they had the session."""

    def __init__(
        self, version: int = 5, policy: Policy = MAPPED, present: tuple[bool, bool] = (True, True), compare: bool = False, **grants: Any
    ) -> None:
        self.here, self.there = End("here", Connect(), 2**20), End("there", Connect(version=version), 2**20)
        self.counts, self.notes, self.kept, self.open = Counts(), list[str](), set[bytes](), list[int]()
        names = PolicyFilter(policy)
        functions: tuple[Callable[[bytes], bytes | None], ...] = (names.outwards, names.inwards)
        wants = Wants(["#"], ["#"], 2, compare=compare)
        self.relay = Relay(
            self.here,
            self.there,
            wants,
            functions,
            self.kept.__contains__,
            lambda: self.open,
            self.counts,
            self.notes.append,  # type: ignore[arg-type]
        )
        self._grants, self._present = grants, present

    def start(self) -> tuple[list[Packet], list[Packet]]:
        """What both are told at the beginning."""
        properties = self._grants if self.there.version == 5 else {}
        self.relay.feed(self.there, encode(Connack(self._present[1], 0, properties), self.there.version))
        self.relay.feed(self.here, encode(Connack(self._present[0]), 5))
        self.relay.begin()
        return self.said(self.here), self.said(self.there)

    def say(self, end: End, packet: Packet) -> list[Packet]:
        """A broker says a packet: what the other one is told."""
        self.relay.feed(end, encode(packet, end.version))
        return self.said(self.there if end is self.here else self.here)

    def said(self, end: End) -> list[Packet]:
        """What a broker has been told."""
        found = []
        for first, body in Framer().feed(end.take()):
            found.append(decode(first, body, end.version))
        return found


def bench(*arguments: Any, **values: Any) -> Bench:
    made = Bench(*arguments, **values)
    made.start()
    return made


@pytest.mark.parametrize("version", [4, 5])
def test_a_message_of_qos_2_keeps_its_identifier_all_the_way(version: int) -> None:
    b = bench(version)
    (out,) = b.say(b.here, Publish("plant/x", b"1", 2, True, False, 77))
    assert out == Publish("x", b"1", 2, True, False, 77)
    assert b.say(b.there, Pubrec(77)) == [Pubrec(77)]
    assert b.say(b.here, Pubrel(77)) == [Pubrel(77)]
    assert b.say(b.there, Pubcomp(77)) == [Pubcomp(77)]
    (into,) = b.say(b.there, Publish("y", b"2", 1, False, True, 5))
    assert into == Publish("plant/y", b"2", 1, False, True, 5)
    assert b.say(b.here, Puback(5)) == [Puback(5)]
    assert (b.counts.out, b.counts.into) == (1, 1)


def test_what_the_policy_forbids_is_answered_here() -> None:
    b = bench()
    assert b.say(b.here, Publish("secret/1", b"", 1, packet_id=3)) == []
    assert b.said(b.here) == [Puback(3)]
    assert b.say(b.here, Publish("secret/1", b"", 2, packet_id=4)) == []
    assert b.said(b.here) == [Pubrec(4)]
    assert b.say(b.here, Pubrel(4)) == []
    assert b.said(b.here) == [Pubcomp(4)]
    assert b.counts.withheld == 2


def test_what_is_too_large_there_is_dropped_and_said() -> None:
    b = Bench()
    b._grants = {Property.MAXIMUM_PACKET_SIZE: 50}  # type: ignore[assignment]
    b.start()
    assert b.say(b.here, Publish("plant/x", bytes(60), 1, packet_id=3)) == []
    assert b.said(b.here) == [Puback(3)]
    assert b.counts.refused == 1
    assert "larger than there takes" in b.notes[0]


def test_a_refusal_for_good_is_passed_on_and_one_for_want_of_room_ends_the_connections() -> None:
    b = bench()
    b.say(b.here, Publish("plant/x", b"", 1, packet_id=3))
    assert b.say(b.there, Puback(3, Reason.NOT_AUTHORIZED)) == [Puback(3, Reason.NOT_AUTHORIZED)]
    assert b.counts.refused == 1
    b.say(b.there, Publish("x", b"", 2, packet_id=9))
    with pytest.raises(Later, match="here has no room"):
        b.say(b.here, Pubrec(9, Reason.QUOTA_EXCEEDED))


def test_a_broker_of_3_1_1_is_not_told_of_a_refusal_and_its_release_is_answered() -> None:
    b = bench(4)
    b.say(b.there, Publish("x", b"", 2, packet_id=9))
    assert b.say(b.here, Pubrec(9, Reason.NOT_AUTHORIZED)) == [Pubrec(9)]
    assert b.say(b.there, Pubrel(9)) == []
    assert b.said(b.there) == [Pubcomp(9)]


@pytest.mark.parametrize(
    ("present", "compare", "handlings"), [((True, True), True, [0, 2]), ((True, True), False, [1]), ((True, False), False, [0, 2])]
)
def test_what_is_retained_is_compared_once(present: tuple[bool, bool], compare: bool, handlings: list[int]) -> None:
    """Also where both have a session, if nothing was compared since one of them was made."""
    told = Bench(present=present, compare=compare).start()
    for end in told:
        assert [one.subscriptions[0].retain_handling for one in end if isinstance(one, Subscribe)] == handlings


def test_old_retained_messages_are_marked_and_those_of_the_mesh_stand() -> None:
    b = Bench(present=(False, False))
    _, there = b.start()
    assert [(one.subscriptions[0].retain_handling, one.properties) for one in there if isinstance(one, Subscribe)] == [
        (0, {Property.SUBSCRIPTION_IDENTIFIER: [1]}),
        (2, {}),
    ]
    b.kept.add(b"plant/x")
    old = {Property.SUBSCRIPTION_IDENTIFIER: [1], Property.CONTENT_TYPE: "a"}
    assert b.say(b.there, Publish("x", b"old", 1, True, packet_id=1, properties=old)) == []
    assert b.said(b.there) == [Puback(1)]
    (into,) = b.say(b.there, Publish("y", b"old", 1, True, packet_id=2, properties=old))
    assert into == Publish("plant/y", b"old", 1, True, packet_id=2, properties={Property.CONTENT_TYPE: "a"})
    assert len(b.say(b.there, Publish("x", b"new", 1, True, packet_id=3))) == 1


def test_identifiers_that_only_the_other_broker_remembers_are_released_before_a_message_gets_one() -> None:
    b = Bench(present=(False, True))
    _, there = b.start()
    first = [one.packet_id for one in there if isinstance(one, Pubrel)]
    assert first == list(range(1, 101))
    assert b.say(b.here, Publish("plant/x", b"", 2, packet_id=60_000)) == [Pubrel(60_000), Publish("x", b"", 2, packet_id=60_000)]
    assert b.say(b.here, Publish("plant/x", b"", 2, packet_id=7)) == [Publish("x", b"", 2, packet_id=7)]
    assert b.say(b.there, Pubcomp(1)) == []  # nobody waits for it
    for packet_id in first[1:]:
        assert b.say(b.there, Pubcomp(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)) == []
    assert b.say(b.there, Pubcomp(60_000)) == []
    assert [one.packet_id for one in b.said(b.there) if isinstance(one, Pubrel)][:1] == [101]
    assert b.say(b.there, Pubcomp(7)) == [Pubcomp(7)]


def test_a_new_session_there_finds_the_identifiers_released_that_ours_remembers() -> None:
    b = Bench(present=(True, False))
    b.open = [4, 9]
    here, _ = b.start()
    assert [one.packet_id for one in here if isinstance(one, Pubrel)] == [4, 9]


def test_what_comes_before_this_broker_has_accepted_us_waits() -> None:
    b = Bench()
    b.relay.feed(b.there, encode(Connack(True), 5) + encode(Publish("x", b"", 1, packet_id=1), 5))
    b.relay.feed(b.here, encode(Connack(True), 5))
    b.relay.begin()
    assert any(isinstance(one, Publish) and one.topic == "plant/x" for one in b.said(b.here))


def test_refused_connections_and_subscriptions_say_why() -> None:
    b = Bench(4)
    with pytest.raises(Refused, match="not authorized"):
        b.relay.feed(b.there, encode(Connack(False, ConnectReturn.NOT_AUTHORIZED), 4))
    b = Bench()
    with pytest.raises(Refused, match="does not speak MQTT 5"):
        b.relay.feed(b.there, b"\x20\x02\x00\x01")
    b = bench()
    b.say(b.there, Suback(1, [Reason.NOT_AUTHORIZED]))
    assert b.notes == ["there refuses 1 of our subscriptions: reason code 0x87"]


def test_another_client_with_our_identifier_is_told_from_other_ends() -> None:
    b = bench()
    with pytest.raises(Later) as caught:
        b.say(b.there, Disconnect(Reason.SESSION_TAKEN_OVER))
    assert caught.value.fenced


@pytest.mark.parametrize(
    "data",
    [
        b"\x32\x03\x00\x05a",
        b"\x36\x06\x00\x01a\x00\x01\x00",
        b"\x30\x05\x00\x01a\x05\x26",
        b"\x30\x06\x00\x01\xff\x00ab",
        b"\x40\x01\x00",
        b"\x10\x00",
    ],
)
def test_nonsense_of_a_broker_is_its_error(data: bytes) -> None:
    b = bench()
    with pytest.raises(PeerError):
        b.relay.feed(b.there, data)


PIECES = st.one_of(
    st.builds(
        lambda topic, payload, qos, retain, dup, number, block: encode(
            Publish(topic, payload, qos, retain, dup and qos > 0, number if qos else 0, {Property.CONTENT_TYPE: "x"} if block else {}), 5
        ),
        st.sampled_from(["plant/x", "secret/x", "y", "other/\u20ac"]),
        st.sampled_from([b"", b"1", bytes(60), bytes(200), bytes(17_000)]),
        st.sampled_from([0, 1, 1, 2]),
        st.booleans(),
        st.booleans(),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(lambda number, reason: encode(Puback(number, reason), 5), st.integers(1, 3), st.sampled_from([0, 0, Reason.NOT_AUTHORIZED])),
    st.builds(lambda number: encode(Pubrec(number), 5), st.integers(1, 3)),
    st.builds(lambda number: encode(Pubrel(number), 5), st.integers(1, 3)),
    st.binary(max_size=12),
)


@given(
    st.sampled_from([Policy(), Policy(None, ("secret/#",)), MAPPED]),
    st.sampled_from([(True, True), (True, False)]),
    st.sampled_from([0, 150]),
    st.lists(st.tuples(st.booleans(), st.lists(PIECES, min_size=1, max_size=2), st.integers(0, 3)), max_size=20),
)
def test_a_single_frame_has_the_same_effect_as_it_has_among_others(
    policy: Policy, present: tuple[bool, bool], most: int, steps: list[tuple[bool, list[bytes], int]]
) -> None:
    """cut: bytes at the end of a piece that come by themselves."""

    def play(singly: bool) -> list[Any]:
        b = Bench(5, policy, present)
        b._grants = {Property.MAXIMUM_PACKET_SIZE: most} if most else {}
        b.open += [1, 2]
        b.start()
        found: list[Any] = []
        for here, frames, cut in steps:
            end, other = (b.here, b.there) if here else (b.there, b.here)
            data = b"".join(frames)
            for piece in (data[: len(data) - cut], data[len(data) - cut :]):
                try:
                    if piece and singly and b.relay.single(end, piece):
                        other.out.append(piece)
                    elif piece:
                        b.relay.feed(end, piece)
                except (PeerError, Later) as error:
                    return [*found, repr(error)]
                found.append((b.here.take(), b.there.take()))
        counts = b.counts
        return [found, (counts.into, counts.out, counts.refused, counts.withheld), b.notes]

    assert play(True) == play(False)


def test_single_frames_are_taken() -> None:
    """Else the comparison would say nothing."""
    b = bench(policy=Policy())
    for qos in (0, 1):
        frame = encode(Publish("t", b"1", qos, packet_id=7 * qos), 5)
        for end in (b.here, b.there):
            assert b.relay.single(end, frame)
    assert b.relay.single(b.there, encode(Puback(7), 5))
    assert (b.counts.out, b.counts.into) == (2, 2)


def test_a_single_frame_goes_after_what_waits() -> None:
    b = bench(policy=Policy())
    b.there.ping()
    assert not b.relay.single(b.here, encode(Publish("t", b"1"), 5))
    assert b.counts.out == 0


def test_a_message_with_control_characters_in_its_properties_does_not_go_there() -> None:
    made = bench()
    for properties in ({Property.CONTENT_TYPE: "a\x01"}, {Property.USER_PROPERTY: [("a", "b"), ("c", "\ufffe")]}):
        assert made.say(made.here, Publish("plant/a", b"x", 1, packet_id=7, properties=properties)) == []
        assert made.said(made.here) == [Puback(7)]
    assert made.counts.refused == 2
    assert (
        len(
            made.say(
                made.here,
                Publish("plant/a", b"x", 1, packet_id=7, properties={Property.CONTENT_TYPE: "ä", Property.CORRELATION_DATA: b"\0"}),
            )
        )
        == 1
    )
    assert len(made.say(made.there, Publish("a", b"x", 1, packet_id=7, properties={Property.CONTENT_TYPE: "a\x01"}))) == 1, "we take it"
