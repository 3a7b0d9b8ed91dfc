"""Frames that are cut many at a time are the same as those that are cut one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.mqtt.batch.cutting import ENOUGH, TOGETHER, alike_until, part_of_each

COUNTS = st.one_of(st.integers(1, 5), st.sampled_from([ENOUGH + extra for extra in (-1, 0, 1, TOGETHER, TOGETHER + 1, 3 * TOGETHER - 1)]))


@given(COUNTS, st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))
def test_each_part_is_cut(count: int, start: int, length: int, behind: int) -> None:
    size = start + length + behind
    if not size:
        return
    block = bytes(at % 251 for at in range(count * size))
    assert part_of_each(block, start, length, size) == [block[at + start : at + start + length] for at in range(0, count * size, size)]


@given(COUNTS, COUNTS, st.integers(0, 4), st.integers(0, 12), st.integers(0, 12))
def test_a_block_ends_with_the_last_frame_that_is_alike_and_whole(alike: int, more: int, before: int, cut: int, behind: int) -> None:
    """behind: bytes after `end`, which belong to nothing."""
    prefix, size = b"prefix", 10
    frames = [prefix + number.to_bytes(4, "big") for number in range(alike)] + [b"another" + bytes(3)] * (more - 1)
    data = bytes(before) + b"".join(frames)
    end = max(before + size, len(data) - cut)
    expected = before + size
    while expected + size <= end and data[expected : expected + len(prefix)] == prefix:
        expected += size
    assert alike_until(data + prefix + bytes(behind), prefix, before, size, end) == expected
