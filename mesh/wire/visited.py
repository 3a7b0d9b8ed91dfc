"""Visited bits: bit n of the field stands for broker n; in an envelope it stands in byte n // 8 at value 1 << n % 8.

A set bit says "this broker has the message, or another copy answers for it". What is *not* set is the copy's *share*: the
brokers that it still answers for. Inside, a share is a Python int, so that ``share & subtree`` is one operation for a mesh of any
size; on the wire its complement stands in a field of `width` bytes. Brokers beyond the width read as visited in a
routed frame and as not visited in a flooded one, whose sender therefore widens the field before it sends. A routed frame without any bits
is for all brokers to whom it comes along its tree.

Sets of brokers are such ints all over the mesh: bit n is broker n.
"""

from __future__ import annotations

from collections.abc import Iterator

Changes = tuple[tuple[int, int], ...]


EVERYBODY = (1 << 65_536) - 1


def width_for(mask: int) -> int:
    """How many bytes hold the highest broker of a mask; at least 1."""
    return (mask.bit_length() + 7) >> 3 or 1


def share_of(bits: bytes) -> int:
    """The brokers whose bits are not set, those beyond the width left out."""
    return int.from_bytes(bits, "little") ^ ((1 << 8 * len(bits)) - 1)


def bits_for(share: int, width: int) -> bytes:
    """The field of `width` bytes in which all but the share is visited. The share must fit: OverflowError otherwise. Width 0: no bits."""
    return b"" if not width else (share ^ ((1 << 8 * width) - 1)).to_bytes(width, "little")


def changes(old: bytes, new: bytes) -> Changes:
    """The (offset, value) of each byte in which two fields of one width differ: what a relay patches."""
    return tuple((i, b) for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)


def patch(block: bytearray, offset: int, size: int, count: int, what: Changes) -> None:
    """Write changed bytes into each of `count` frames of `size` bytes whose bits stand at `offset`: one strided slice a byte."""
    for index, value in what:
        block[offset + index :: size] = bytes((value,)) * count


def mask_of(numbers: Iterator[int] | list[int] | tuple[int, ...] | set[int]) -> int:
    """The set of these brokers."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def numbers(mask: int) -> Iterator[int]:
    """The brokers of a set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
