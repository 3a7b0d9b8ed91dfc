"""Cutting a stream into whole packets: against a plain splitter, over any packets in any chunks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mesh.link.splitter import Control, Splitter
from mqmesh.mqtt.length import encode_length
from mqmesh.mqtt.reasons import Reason

LARGEST = 300_000


def publish(payload: bytes, first: int = 0x30) -> bytes:
    return bytes([first]) + encode_length(len(payload)) + payload


# runs of equal frames of many sizes, with the odd control packet between them
SIZES = st.integers(0, 300) | st.sampled_from([0, 1, 126, 127, 128, 129, 16_383, 16_384, 70_000])
RUNS = st.builds(
    lambda size, count, first: [publish(bytes([size % 251]) * size, first)] * (count if size < 1000 else 1),
    SIZES,
    st.integers(1, 60),
    st.sampled_from([0x30, 0x31, 0x30, 0x3D]),
)
CONTROLS = st.sampled_from([[b"\xc0\0"], [b"\xd0\0"], [b"\xe0\x01\x8b"]])
PACKETS = st.lists(RUNS | CONTROLS, max_size=8).map(lambda runs: [packet for run in runs for packet in run])


def feed(data: bytes, cuts: list[int]) -> tuple[list[bytes | Control], Splitter]:
    splitter = Splitter(LARGEST)
    pieces: list[bytes | Control] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        pieces += splitter.feed(data[start:stop])
    return pieces, splitter


@given(PACKETS, st.integers(0, 400_000), st.integers(0, 3))
def test_what_need_not_be_fed_is_one_whole_publish(packets: list[bytes], begin: int, missing: int) -> None:
    for data in (b"".join(packets), *packets[:5], *[packet + b"\x30" for packet in packets[:2]]):
        data = data[: len(data) - missing]
        if not data:
            continue
        splitter = Splitter(LARGEST)
        assert splitter.is_one(data) == (data[0] & 0xF0 == 0x30 and data in packets)
        splitter.feed(data[: begin % len(data)])
        if splitter.partial:
            assert not splitter.is_one(data)
    assert not Splitter(100).is_one(publish(b"x" * 100))


@given(PACKETS, st.lists(st.integers(0, 10**6), max_size=12), st.integers(0, 4))
def test_what_comes_out_is_what_went_in(packets: list[bytes], cuts: list[int], missing: int) -> None:
    data = b"".join(packets)
    if missing and packets and len(packets[-1]) > missing:
        data, packets = data[:-missing], packets[:-1]
    pieces, splitter = feed(data, cuts)
    assert splitter.error is None
    out = [bytes([p.first]) + encode_length(len(p.body)) + p.body if isinstance(p, Control) else p for p in pieces]
    assert b"".join(out) == b"".join(packets)
    assert [p for p in out if p[0] & 0xF0 != 0x30] == [p for p in packets if p[0] & 0xF0 != 0x30]
    boundaries = {0}
    for packet in packets:
        boundaries.add(max(boundaries) + len(packet))
    position = 0
    for piece in out:
        position += len(piece)
        assert position in boundaries


@given(PACKETS)
def test_without_controls_a_chunk_stays_one_object(packets: list[bytes]) -> None:
    data = b"".join(p for p in packets if p[0] & 0xF0 == 0x30)
    pieces, _ = feed(data, [])
    assert pieces == ([data] if data else [])
    assert not data or pieces[0] is data or len(data) < 2


@given(PACKETS)
def test_byte_by_byte(packets: list[bytes]) -> None:
    data = b"".join(packets)[:3000]
    whole, position = b"", 0
    for packet in packets:
        position += len(packet)
        if position <= len(data) and packet[0] & 0xF0 == 0x30:
            whole += packet
    pieces, _ = feed(data, list(range(len(data))))
    assert b"".join(p for p in pieces if not isinstance(p, Control)) == whole


def test_too_large_a_packet_is_refused_by_its_header() -> None:
    good = publish(b"x" * 10)
    splitter = Splitter(LARGEST)
    assert splitter.feed(good + b"\x30" + encode_length(LARGEST)) == [good]
    assert splitter.error is not None
    assert splitter.error.reason == Reason.PACKET_TOO_LARGE
    assert splitter.feed(good) == []


def test_a_length_of_five_bytes_is_malformed() -> None:
    splitter = Splitter(LARGEST)
    assert splitter.feed(b"\x30\xff\xff\xff") == []
    assert splitter.error is None
    splitter.feed(b"\xff")
    assert splitter.error is not None
    assert splitter.error.reason == Reason.MALFORMED_PACKET


def test_a_packet_of_many_megabytes_is_copied_once() -> None:
    splitter = Splitter(10**8)
    packet = publish(bytes(40_000_000))
    pieces = []
    for start in range(0, len(packet), 1500):  # 27,000 chunks: copying what is there at each would move half a terabyte
        pieces += splitter.feed(packet[start : start + 1500])
    pieces += splitter.feed(publish(b"next"))
    assert pieces == [packet, publish(b"next")]


def test_frames_that_only_look_like_the_run_end_it() -> None:
    frame = publish(b"x" * 200)
    other = publish(b"x" * 201)
    data = frame * 500 + other * 3 + frame + b"\xc0\0" + frame * 40
    assert feed(data, [])[0] == [frame * 500 + other * 3 + frame, Control(0xC0, b""), frame * 40]
