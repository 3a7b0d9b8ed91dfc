"""How far PUBLISH packets go that are alike, found many at a time, is what packet by packet finds."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from mqmesh.broker.publish.parse import _run_end

TOPIC = b"\x00\x03a/b"


def one_by_one(data: bytes, head: bytes, tail: bytes, skip: int, size: int) -> int:
    after = size
    while data.startswith(head, after) and (not tail or data.startswith(tail, after + skip)):
        after += size
    return after


@given(
    st.integers(0, 1),
    st.integers(0, 150),
    st.sampled_from([b"", b"\x00", b"\x03\x01\x02\x03"]),
    st.integers(0, 12),
    st.integers(0, 200),
    st.booleans(),
    st.integers(1, 80),
)
@example(1, 100, b"\x00", 5, 70, True, 17)  # the properties of one packet in the middle are others
@example(1, 100, b"\x00", 5, 70, False, 17)
@example(0, 32, b"", 0, 200, False, 80)
def test_it_ends_where_packet_by_packet_ends(
    qos: int, count: int, properties: bytes, payload: int, changed: int, in_tail: bool, cut: int
) -> None:
    middle = b"\x12\x34" if qos else b""
    rest = TOPIC + middle + properties + b"x" * payload
    packet = bytes((0x30 | qos << 1, len(rest))) + rest
    size, topic_end = len(packet), 2 + len(TOPIC)
    payload_at = size - payload
    data = bytearray(packet * (count + 1))
    at = changed * size + (payload_at - 1 if in_tail else 3)
    if size <= at < len(data):
        data[at] ^= 1
    whole = bytes(data)
    whole = whole[: max(size, len(whole) - cut % size)] + (b"\xc0\x00" if cut % 3 == 0 else b"")
    if qos:
        head, tail, skip = whole[:topic_end], whole[topic_end + 2 : payload_at], topic_end + 2
    else:
        head, tail, skip = whole[:payload_at], b"", 0
    assert _run_end(whole, 0, topic_end, payload_at, size, qos) == one_by_one(whole, head, tail, skip, size)
