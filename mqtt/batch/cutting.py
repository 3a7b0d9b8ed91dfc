"""Cuts a block of frames of one size into their payloads, and finds how far such a block goes, many frames with one call.

A slice or a comparison for each message is what moving a message costs. `struct` does both for `TOGETHER` frames at once. To prepare that
takes as long as some ten slices, so what was prepared for a size is kept, and few frames are looked at one by one.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

TOGETHER = 32  # frames
ENOUGH = 40  # frames, of fewer each is looked at by itself
FEW_COLUMNS = 24  # bytes that are compared one by one, each of all frames together


@lru_cache(maxsize=256)
def _part_of_each(start: int, length: int, size: int) -> Struct:
    """Cuts the same part out of `TOGETHER` frames in a row."""
    return Struct(f"{start}x{length}s{size - start - length}x" * TOGETHER)


def part_of_each(block: bytes, start: int, length: int, size: int) -> list[bytes]:
    """The same part of each frame: `length` bytes from `start` on. block: of whole frames of `size` bytes."""
    count = len(block) // size
    parts: list[bytes] = []
    if count >= ENOUGH:
        unpack = _part_of_each(start, length, size).unpack_from
        for position in range(0, (count - TOGETHER + 1) * size, TOGETHER * size):
            parts += unpack(block, position)
    begin = start + len(parts) * size
    parts += [block[at : at + length] for at in range(begin, start + count * size, size)]
    return parts


def alike_until(data: bytes, prefix: bytes, position: int, size: int, end: int) -> int:
    """Where the whole frames of `size` bytes end that begin with `prefix`, as the one at `position` does. end: of the frames in `data`."""
    same = data.startswith
    following, last = position + size, end - size
    few = min(last, position + (ENOUGH - TOGETHER) * size)
    while following <= few and same(prefix, following):
        following += size
    if following <= few or few == last:
        return following
    step = TOGETHER * size
    if following + step <= end:
        heads = (prefix,) * TOGETHER
        unpack = _part_of_each(0, len(prefix), size).unpack_from
        while following + step <= end and unpack(data, following) == heads:
            following += step
    while following <= last and same(prefix, following):
        following += size
    return following


def all_have(block: bytes, at: int, part: bytes, size: int) -> bool:
    """Whether each frame has these bytes at this place. block: of whole frames of `size` bytes."""
    count = len(block) // size
    if count == 1:
        return block.startswith(part, at)
    if len(part) > FEW_COLUMNS:
        return part_of_each(block, at, len(part), size).count(part) == count
    return all(block[at + i :: size] == part[i : i + 1] * count for i in range(len(part)))
