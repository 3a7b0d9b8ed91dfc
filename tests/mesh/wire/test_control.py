"""Control packets: what is written is what is read; anything else is the peer's error and nothing worse."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.control import (
    Branch,
    InterestUpdate,
    Level,
    LinkEntry,
    LinkRecord,
    Noted,
    Open,
    Receipt,
    Refusal,
    SummaryEntry,
    decode,
    decode_interest,
    encode,
    encode_interest,
    encode_mask,
    interest_owner,
)
from mqmesh.mqtt.codec import decode as decode_packet
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from simulation.portions import portions_of
from support.steps import ended

UUID = b"u" * 16
KINDS = ["summary", "synced", "linkstate", "interest", "want", "open", "branch", "receipts", "dropped", "noted"]
SAMPLES = [
    ("summary", (SummaryEntry(1, UUID, 2, 3, 4, 5, 6), SummaryEntry(65_535, UUID, 0, 2**64 - 1, 0, 0, 0))),
    ("linkstate", (LinkRecord(1, UUID, "porto", 5, 6, (LinkEntry(2, 2**63 - 1, 1),)),)),
    ("interest", InterestUpdate(1, UUID, 5, None, 6, 7, (("a/#", None, 1), ("b", "g", 3)), ())),
    ("interest", InterestUpdate(1, UUID, 5, 4, 5, 7, (), (("a/#", None),))),
    ("want", ((1, UUID), (2, UUID))),
    ("open", Open(1, UUID, 5, 6, ((2, 1, 77), (3, 2, 78)))),
    ("branch", Branch(1, UUID, 5, 6, (Level(1, 0, bytes(66)), Level(4, 9, b"\1" + bytes(32))), ((2, 4, 77), (3, 2, 78)))),
    ("receipts", (Receipt(1, 6, 2, 5, 4, (5, 9), (5, 10), 100, 1000, (Refusal(5, 1, 2, ("g", "f")),)),)),
    ("noted", Noted(1, 6, 2, (5, 9))),
]


def body_of(packet: bytes) -> tuple[str, bytes]:
    ((byte, body),) = Framer(1 << 28).feed(packet)
    publish = decode_packet(byte, body, 5)
    assert publish.qos == 0
    return publish.topic, publish.payload


@pytest.mark.parametrize(("kind", "value"), SAMPLES)
def test_what_is_written_is_read(kind: str, value: object) -> None:
    topic, payload = body_of(encode(kind, value))
    assert topic == "$mesh/" + kind
    assert decode(kind, payload) == value


def test_masks_and_empty_bodies() -> None:
    assert decode("synced", body_of(encode("synced", None))[1]) == 0
    (dropped,) = decode("dropped", body_of(encode("dropped", [(1, 2, encode_mask(1 << 70))]))[1])
    assert dropped.brokers == 1 << 70


def test_a_kind_of_a_later_version_is_ignored() -> None:
    assert decode("weather", b"\xc1") is None


def complaint(kind: str, payload: bytes) -> str:
    """What is wrong with a body."""
    try:
        decode(kind, payload)
    except PeerError as error:
        return str(error)
    return "none"


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=20) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)


@given(st.sampled_from(KINDS), plain)
def test_any_other_body_is_the_peers_error(kind: str, value: object) -> None:
    assert complaint(kind, msgpack.packb(value)).startswith((f"$mesh/{kind}", "none"))


@given(st.sampled_from(KINDS), st.binary(max_size=60))
def test_any_bytes_are_read_or_the_peers_error(kind: str, data: bytes) -> None:
    assert complaint(kind, data).startswith((f"$mesh/{kind}", "none"))


@pytest.mark.parametrize(("kind", "value"), SAMPLES)
def test_a_body_that_is_cut_off_is_the_peers_error(kind: str, value: object) -> None:
    payload = body_of(encode(kind, value))[1]
    for end in range(len(payload)):
        with pytest.raises(PeerError):
            decode(kind, payload[:end])


def test_truth_is_no_number() -> None:
    with pytest.raises(PeerError, match="unsigned integer"):
        decode("noted", msgpack.packb([True, 1, 1, [1, 1]]))


def in_portions(payload: bytes, entries: int) -> InterestUpdate:
    with portions_of(entries):
        return ended(decode_interest(payload))


@given(
    st.lists(st.tuples(st.text(max_size=4), st.none() | st.text(max_size=3), st.integers(0, 2**32 - 1)), max_size=9),
    st.lists(st.tuples(st.text(max_size=4), st.none() | st.text(max_size=3)), max_size=9),
    st.none() | st.integers(0, 2**64 - 1),
    st.integers(1, 4),
)
def test_interest_is_read_in_portions_as_at_once(adds: list, removes: list, base: int | None, entries: int) -> None:
    update = InterestUpdate(65_535, UUID, 5, base, 2**64 - 1, 7, tuple(adds), tuple(removes))
    payload = body_of(encode("interest", update))[1]
    assert in_portions(payload, entries) == decode("interest", payload) == update
    assert interest_owner(payload) == update[:2]


@given(st.dictionaries(st.tuples(st.text(max_size=4), st.none() | st.text(max_size=3)), st.integers(0, 9), max_size=40))
def test_interest_is_written_in_portions_as_at_once(entries: dict) -> None:
    head = InterestUpdate(1, UUID, 5, None, 6, 7, (), ())
    with portions_of(1):
        packet = ended(encode_interest(head, entries))
    assert packet == encode("interest", head._replace(adds=tuple((*entry, weight) for entry, weight in entries.items())))


def complaint_in_portions(payload: bytes) -> str:
    try:
        interest_owner(payload)
        in_portions(payload, 1)
    except PeerError as error:
        return str(error)
    return "none"


@given(plain)
def test_any_other_interest_is_the_peers_error_in_portions_too(value: object) -> None:
    payload = msgpack.packb(value)
    assert (complaint_in_portions(payload) == "none") == (complaint("interest", payload) == "none")


@pytest.mark.parametrize("value", [value for kind, value in SAMPLES if kind == "interest"])
def test_an_interest_that_is_damaged_is_the_peers_error_in_portions_too(value: InterestUpdate) -> None:
    payload = body_of(encode("interest", value))[1]
    assert complaint_in_portions(payload + b"\xc0").startswith("$mesh/interest: it has more than its values")
    for end in range(len(payload)):
        assert complaint_in_portions(payload[:end]).startswith("$mesh/interest")
    for at in range(len(payload)):
        for byte in (0x00, 0xC0, 0xC1, 0xDD, 0xFF):
            damaged = payload[:at] + bytes((byte,)) + payload[at + 1 :]
            assert (complaint_in_portions(damaged) == "none") == (complaint("interest", damaged) == "none"), (at, byte)
