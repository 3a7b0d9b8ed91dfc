"""The framer: any cut of the stream gives the same packets, and nothing is kept of what is too large or impossible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import MalformedPacket, PeerError
from mqmesh.mqtt.framing import Framer, single_body
from mqmesh.mqtt.packets import Pingreq, Publish
from mqmesh.mqtt.reasons import Reason
from support.examples import examples

from .strategies import packets


def drain(framer: Framer, chunks: list[bytes]) -> tuple[list[tuple[int, bytes]], PeerError | None]:
    frames: list[tuple[int, bytes]] = []
    for chunk in chunks:
        try:
            frames += framer.feed(chunk)
        except PeerError as error:
            return frames, error
    return frames, framer.error


@settings(max_examples=examples(60))
@given(st.lists(packets(5), max_size=5), st.lists(st.integers(1, 30)), st.binary(max_size=8))
def test_chunks_do_not_matter(sent: list[Any], sizes: list[int], rest: bytes) -> None:
    stream = b"".join(encode(packet, 5) for packet in sent)
    whole, error = drain(Framer(), [stream])
    assert error is None
    assert [decode(first, body, 5) for first, body in whole] == sent

    stream += rest
    chunks, position = [], 0
    for size in sizes:
        chunks.append(stream[position : position + size])
        position += size
    chunks.append(stream[position:])
    at_once = drain(Framer(), [stream])
    for cut in (chunks, [stream[i : i + 1] for i in range(len(stream))]):
        frames, error = drain(Framer(), cut)
        assert frames == at_once[0]
        assert str(error) == str(at_once[1])


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 16_380, 16_381, 16_384, 2_097_148, 2_097_149])
def test_sizes_around_the_length_boundaries(size: int) -> None:
    data = encode(Publish("a", bytes(size)), 4)
    framer = Framer()
    assert framer.feed(data[:-1]) == []
    assert framer.unfinished() == len(data) - 1
    [(first, body)] = framer.feed(data[-1:] + b"\xc0")
    assert decode(first, body, 4) == Publish("a", bytes(size))
    assert framer.unfinished() == 1


def test_too_large_is_refused_before_the_body_comes() -> None:
    framer = Framer(max_size=100)
    [frame] = framer.feed(encode(Publish("a", bytes(95)), 4))
    assert len(frame[1]) == 98
    with pytest.raises(PeerError) as caught:
        framer.feed(b"\x30\x63")
    assert (caught.value.reason, caught.value.clause) == (Reason.PACKET_TOO_LARGE, "MQTT-3.2.2-15")
    assert framer.unfinished() == 0
    with pytest.raises(PeerError):
        framer.feed(b"")


class CountingFramer(Framer):
    """Counts how often the bytes held are copied and cut."""

    cuts = 0

    def _cut(self, data: bytes, frames: list[tuple[int, bytes]]) -> int:
        self.cuts += 1
        return super()._cut(data, frames)


def test_a_large_packet_in_small_pieces_is_cut_in_one_go() -> None:
    data = encode(Publish("a", bytes(3_000_000)), 4)
    framer = CountingFramer()
    frames = [frame for i in range(0, len(data), 1000) for frame in framer.feed(data[i : i + 1000])]
    assert frames == [(0x30, data[5:])]
    assert framer.cuts == 2


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"\x30\x80\0", "MQTT-1.5.5-1"),
        (b"\x30\xff\x80\x80\0", "MQTT-1.5.5-1"),
        (b"\x30\xff\xff\xff\xff", "1.5.5"),
        (b"\0", "2.1.2"),
        (b"G", "MQTT-2.1.3-1"),  # an HTTP request
        (b"\x36", "MQTT-3.3.1-4"),
    ],
)
def test_bad_headers_are_refused_at_once(data: bytes, clause: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        Framer().feed(data)
    assert caught.value.clause == clause
    framer = Framer()
    for i in range(len(data) - 1):
        assert framer.feed(data[i : i + 1]) == []
    with pytest.raises(MalformedPacket):
        framer.feed(data[-1:])


def test_good_packets_before_a_bad_one_are_returned() -> None:
    framer = Framer()
    assert framer.feed(encode(Pingreq(), 5) + b"\0\0") == [(0xC0, b"")]
    assert framer.error is not None
    with pytest.raises(MalformedPacket):
        framer.feed(encode(Pingreq(), 5))


@given(
    st.sampled_from([b"", b"\x30", b"\x30\x03", b"\x30\x80", b"\x30\x80\x01", b"\x30\x85\x00", b"\x30\xff\x7f", b"\x30\x80\x80\x01"]),
    st.integers(0, 200),
)
def test_a_lone_packet_is_what_the_framer_takes_for_one(head: bytes, more: int) -> None:
    for size in (more, 128, 16_383, 16_384):
        data = head + bytes(size)
        frames, error = drain(Framer(), [data])
        body = single_body(data)
        one = error is None and len(frames) == 1 and len(frames[0][1]) in (len(data) - 2, len(data) - 3)
        assert bool(body) == (one and len(data) >= 5)
        if body:
            assert frames == [(0x30, data[body:])]
