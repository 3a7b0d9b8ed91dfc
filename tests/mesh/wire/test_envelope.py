"""The envelope: frames are what the codec reads, and what the application gave comes back byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.wire.envelope import (
    ASKS,
    FIXED,
    ROOM,
    TIME,
    Flag,
    Picks,
    Template,
    check_others,
    check_travels,
    decode_head,
    decode_rest,
    encode_head,
    encode_rest,
    join_properties,
    split_properties,
)
from mqmesh.mesh.wire.visited import bits_for, width_for
from mqmesh.mqtt.codec import decode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.properties import PacketKind, Property, encode_properties

u16, u48, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 48, 64))
words = st.text(st.characters(exclude_characters="/+#\0", exclude_categories=("Cs",)), min_size=1, max_size=10)
shares = st.tuples(words, st.lists(words, min_size=1, max_size=3).map("/".join))
picks = st.lists(st.tuples(shares, u16), max_size=3).map(tuple)
flags = st.sampled_from([0, 1, 2, 1 | Flag.RETAIN, 2 | Flag.PICKS_ONLY | Flag.REPEATED])
blocks = st.fixed_dictionaries(
    {},
    optional={
        Property.CORRELATION_DATA: st.binary(max_size=20),
        Property.RESPONSE_TOPIC: words,
        Property.CONTENT_TYPE: words,
        Property.PAYLOAD_FORMAT_INDICATOR: st.just(1),
        Property.USER_PROPERTY: st.lists(st.tuples(words, words), min_size=1, max_size=3),
    },
).map(lambda values: encode_properties(values, PacketKind.PUBLISH))


@given(flags, u16, u48, u64, st.integers(0, (1 << 70) - 1), st.integers(0, 3))
def test_a_head_survives(flag: int, origin: int, epoch: int, tree: int, share: int, wider: int) -> None:
    width = width_for(share) + wider
    raw = encode_head(flag, origin, epoch, tree, width) + bits_for(share, width)
    assert len(raw) == FIXED + width
    assert tuple(decode_head(raw)) == (flag, origin, epoch, tree, width, share, 0)


@given(
    *(st.integers(0, TIME), st.booleans(), st.none() | st.integers(0, 2**32 - 1), picks),
    *(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=30)),
)
def test_the_rest_survives(time: int, asks: bool, expiry: int | None, chosen: tuple, correlation: bytes | None, mark: bytes | None) -> None:
    flag = (Flag.EXPIRY if expiry is not None else 0) | (Flag.CORRELATION if correlation is not None else 0)
    flag |= Flag.RETAIN if mark is not None else 0
    raw = bytearray(time.to_bytes(6, "big") + encode_rest(expiry, chosen, correlation, mark))
    raw[0] |= ASKS if asks else 0
    assert tuple(decode_rest(flag, bytes(raw))) == (time, expiry, chosen, correlation, mark or b"")


def test_a_mark_that_is_cut_off_is_the_peers_error() -> None:
    raw = bytes(6) + encode_rest(None, (), None, b"mark")
    for size in range(8, len(raw)):
        with pytest.raises(PeerError):
            decode_rest(Flag.RETAIN, raw[:size])


@given(blocks)
def test_the_applications_properties_come_back(block: bytes) -> None:
    correlation, others = split_properties(block)
    check_others(others)
    again = join_properties(correlation, others)
    assert sorted(again) == sorted(block)
    assert split_properties(again) == (correlation, others)
    if correlation is None or block[0] == Property.CORRELATION_DATA:
        assert again == block


@given(
    st.lists(words, min_size=1, max_size=4).map("/".join),
    flags,
    st.integers(1, (1 << 40) - 1),
    st.integers(0, 2**63),
    picks,
    blocks,
    st.integers(0, 300),
    st.integers(1, 12),
    st.integers(0, TIME),
)
def test_frames_are_good_packets(
    topic: str, flag: int, share: int, first: int, chosen: tuple, block: bytes, length: int, count: int, time: int
) -> None:
    correlation, others = split_properties(block)
    flag |= Flag.CORRELATION if correlation is not None else 0
    width = width_for(share)
    mark = b"a mark" if flag & Flag.RETAIN else None
    rest = encode_rest(None, chosen, correlation, mark)
    template = Template(topic.encode(), encode_head(flag, 7, 8, 9, width), width, rest, others, length)
    payloads = [bytes((i,)) * length for i in range(count)]
    data = bytes(template.block(bits_for(share, width), time.to_bytes(6, "big"), first, payloads))
    assert len(data) == count * template.size
    packets = [decode(byte, body, 5) for byte, body in Framer(1 << 28).feed(data)]
    for i, packet in enumerate(packets):
        assert (packet.topic, packet.qos, packet.retain, packet.payload) == (topic, 0, False, payloads[i])
        envelope = packet.properties[Property.CORRELATION_DATA]
        assert int.from_bytes(envelope[-8:], "big") == first + i
        assert tuple(decode_head(envelope[: FIXED + width])) == (flag, 7, 8, 9, width, share, 0)
        assert tuple(decode_rest(flag, envelope[FIXED + width : -8])) == (time, None, chosen, correlation, mark or b"")
        frame = data[i * template.size : (i + 1) * template.size]
        assert frame[template.bits_offset : template.bits_offset + width] == bits_for(share, width)
        assert frame[template.sequence_offset : template.sequence_offset + 8] == envelope[-8:]
        assert frame[template.sequence_offset + 8 : template.size - length] == others


@pytest.mark.parametrize("first", [65_530, 2**32 - 5, 2**48 - 3])
def test_sequences_carry_over(first: int) -> None:
    template = Template(b"t", encode_head(0, 1, 2, 3, 1), 1, encode_rest(None, (), None), b"", 2)
    data = template.block(b"\0", bytes(6), first, [b"xx"] * 20)
    at = template.sequence_offset
    assert [int.from_bytes(data[i + at : i + at + 8], "big") for i in range(0, len(data), template.size)] == list(range(first, first + 20))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x02\x00" + bytes(18),  # another version
        b"\x01\x03" + bytes(18),  # QoS 3
        b"\x01\x09" + bytes(18),  # flooded, QoS 1
    ],
)
def test_a_bad_head_is_the_peers_error(raw: bytes) -> None:
    with pytest.raises(PeerError):
        decode_head(raw)


@pytest.mark.parametrize("raw", [b"", b"\0\1", b"\0\0x", b"\0\4\0\1\0\5", b"\0\5\0\1\0\1\xff"])
def test_a_bad_rest_is_the_peers_error(raw: bytes) -> None:
    with pytest.raises(PeerError):
        decode_rest(0, bytes(6) + raw)


@pytest.mark.parametrize("others", [b"\x23\0\1", b"\x0b\1", b"\x09\0\0", b"\x08\0\5ab", b"\xff", b"\x01"])
def test_properties_that_do_not_travel_are_the_peers_error(others: bytes) -> None:
    with pytest.raises(PeerError):
        check_others(others)


def test_an_envelope_that_fits_no_packet_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 65535"):
        Template(b"t", encode_head(0, 1, 2, 3, 1), 1, encode_rest(None, (), bytes(65_530)), b"", 0)


@pytest.mark.parametrize(
    ("properties", "length", "picks"),
    [
        (b"\x09\xff\xff" + bytes(65_535), 0, ()),
        (b"", 268_435_400, ()),
        (b"", 0, ((("g", "x" * 65_500), 1),)),
        (b"\x09\xc0\x00" + bytes(49_152), 0, ((("g", "x" * 16_000), 1),)),
    ],
)
def test_what_no_frame_can_hold_does_not_travel(properties: bytes, length: int, picks: Picks) -> None:
    with pytest.raises(ValueError, match="at most"):
        check_travels(b"t", properties, length, picks, 1)


@pytest.mark.parametrize("picks", [(), ((("g", "f/#"), 7),)])
def test_what_travels_fits_with_the_widest_bits_that_room_is_kept_for(picks: Picks) -> None:
    """The same message may be sent again with more bits and with an expiry."""
    correlation = bytes(65_535 - 20 - ROOM - 6 - 4 - len(encode_rest(None, picks, None)) - 8)
    check_travels(b"t", b"\x09" + len(correlation).to_bytes(2, "big") + correlation, 0, picks, 1)
    Template(b"t", encode_head(0, 1, 2, 3, ROOM), ROOM, encode_rest(9, picks, correlation), b"", 0)
    with pytest.raises(ValueError, match="at most"):
        check_travels(b"t", b"\x09" + (len(correlation) + 1).to_bytes(2, "big") + correlation + b"x", 0, picks, 1)
