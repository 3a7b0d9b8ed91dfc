"""Blocks: what comes out is what went in, and only packets that are alike are a block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.block import LEAST, LONGEST, block_of, packets_in
from mqmesh.mesh.wire.envelope import FIXED, Flag, decode_head, encode_head
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Property, encode_properties

PROPERTIES = [{}, {Property.RESPONSE_TOPIC: "r"}, {Property.USER_PROPERTY: [("k" * 100, "v" * 100)]}]
payload_lists = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=LEAST, max_size=60),
)


def received(topic: str, qos: int, payloads: list[bytes], version: int, properties: dict, retain: bool = False) -> Run:
    """A run over the packets that a client sent."""
    packets = [
        encode(Publish(topic, payload, qos, retain, False, n if qos else 0, properties), version) for n, payload in enumerate(payloads, 7)
    ]
    size, length = len(packets[0]), len(payloads[0])
    raw = (b"".join(packets), size - length, size, length)
    return Run(topic.encode(), qos, retain, None, encode_properties(properties), raw=raw, raw_version=version)


def name(topic: str) -> bytes:
    return len(topic).to_bytes(2, "big") + topic.encode()


@given(
    payload_lists,
    st.sampled_from([4, 5]),
    st.integers(0, 2),
    st.sampled_from(PROPERTIES),
    st.sampled_from(["t", "a/" * 70 + "b"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_block_holds_the_messages(
    payloads: list[bytes], version: int, qos: int, properties: dict, topic: str, start: int, raw: bool
) -> None:
    properties = properties if version == 5 else {}
    run = received(topic, qos, payloads, version, properties)
    if not raw:
        run = Run(run.topic, qos, False, payloads, run.properties)
    found = block_of(run, start)
    if len(payloads) - start < LEAST:
        assert found is None
        return
    assert found is not None
    form, block = found
    assert form == (version if raw else 4)
    size, begin = packets_in(block, form, qos, name(topic), run.properties)
    come = Run(run.topic, qos, False, None, run.properties, raw=(block, begin, size, size - begin), raw_version=form)
    assert come.payloads == payloads[start:]
    part = run.part(start, run.count)
    for goes in (4, 5):
        assert come.stamped(goes, 1, False, b"", 0, come.count, 9, False) == part.stamped(goes, 1, False, b"", 0, part.count, 9, False)
        assert come.block(goes) == part.block(goes)


@given(payload_lists, st.sampled_from([4, 5]), st.integers(0, 2), st.sampled_from(PROPERTIES), st.data())
def test_changed_bytes_are_other_payloads_or_the_peers_error(
    payloads: list[bytes], version: int, qos: int, properties: dict, data: st.DataObject
) -> None:
    properties = properties if version == 5 else {}
    run = received("topic", qos, payloads, version, properties)
    found = block_of(run, 0)
    assert found is not None
    changed = bytearray(found[1])
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(changed) - 1)) :]
    try:
        size, begin = packets_in(bytes(changed), version, qos, name("topic"), run.properties)
    except PeerError:
        return
    whole = Run(b"topic", qos, False, None, run.properties, raw=(bytes(changed), begin, size, size - begin), raw_version=version)
    clean = Run(b"topic", qos, False, whole.payloads, run.properties)
    assert whole.stamped(version, 1, False, b"", 0, whole.count, 1, False) == clean.stamped(
        version, 1, False, b"", 0, clean.count, 1, False
    )
    assert len(changed) % size == 0


def test_between_processes_of_one_broker_the_first_packet_stands_for_all() -> None:
    first, other = b"\x30\x04\0\1tx", b"\x30\x04\0\1uy"
    assert packets_in(first + other, 4, 0, name("t"), b"", every=False) == (6, 5)
    for block in (other + first, first + other[:-1]):
        with pytest.raises(PeerError):
            packets_in(block, 4, 0, name("t"), b"", every=False)
    with pytest.raises(PeerError):
        packets_in(first + other, 4, 0, name("t"), b"")


def test_a_block_that_is_too_long_is_the_peers_error() -> None:
    """So that what is made of it, where it cannot be passed on as it is, is bounded too."""
    packet = b"\x30\x03\0\1t"
    assert packets_in(packet * (LONGEST // len(packet)), 4, 0, name("t"), b"") == (len(packet), len(packet))
    with pytest.raises(PeerError, match="at most 1048576 are taken"):
        packets_in(packet * (LONGEST // len(packet) + 1), 4, 0, name("t"), b"")


def test_what_makes_no_block() -> None:
    payloads = [b"x"] * 10
    assert block_of(received("t", 1, payloads, 4, {}), 0) is not None
    assert block_of(received("t", 1, payloads, 4, {}, retain=True), 0) is None
    assert block_of(received("t", 1, payloads, 5, {Property.CORRELATION_DATA: b"c"}), 0) is None
    assert block_of(received("t", 1, payloads[: LEAST - 1], 4, {}), 0) is None
    assert block_of(received("t", 1, [b"x" * (LONGEST // LEAST)] * LEAST, 4, {}), 0) is None


@pytest.mark.parametrize(("version", "flags"), [(4, Flag.RETAIN), (5, Flag.FLOOD), (5, Flag.CORRELATION), (6, 0), (4, 3)])
def test_a_head_that_no_block_has_is_the_peers_error(version: int, flags: int) -> None:
    with pytest.raises(PeerError):
        decode_head(encode_head(flags, 1, 2, 3, 1, version) + b"\xfe")


def test_the_head_of_a_block_says_its_version() -> None:
    head = decode_head(encode_head(1, 7, 8, 9, 1, 5) + b"\xfe")
    assert (head.version, head.flags, head.origin, head.share) == (5, 1, 7, 1)
    assert FIXED == 20
