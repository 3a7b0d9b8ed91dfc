"""What is left of a block when most of its messages are at an end: runs of messages, as the log keeps them when it writes them again.

    runs    (index, count) in order; an index is that of the whole block, so positions stay as they are

What it does not know: bytes, files, the queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from ..core.blocks import Block, Meta
from ..core.stock import Move

Runs = list[tuple[int, int]]


def rest_of(block: Block, runs: Runs) -> Block:
    """A block of these messages alone, without positions of its own."""
    indexes = [at for start, count in runs for at in range(start, start + count)]
    rest = Block(block.key, block.at)
    rest.first, rest.count, rest.payloads = block.first, len(indexes), None
    rest.lengths = array("I", [block.lengths[at] for at in indexes])
    rest.size = sum(rest.lengths)
    which = [block.which[at] for at in indexes] if block.which is not None else [0] * len(indexes)
    used = sorted(set(which))
    rest.metas = [block.metas[one] for one in used]
    if len(used) > 1:
        rest.which = array("I", [used.index(one) for one in which])
    return rest


def spread(rest: Block, count: int, runs: Runs) -> Block:
    """The whole block of so many messages again; those that are not left have no bytes, and nothing was said of them: no handle either."""
    block = Block(rest.key, rest.at)
    block.first, block.count, block.payloads = rest.first, count, None
    block.metas, block.grouped, block.size = [*rest.metas, Meta()], rest.grouped, rest.size
    block.lengths = array("I", bytes(4 * count))
    block.which = array("I", [len(rest.metas)]) * count
    of_rest = rest.which if rest.which is not None else array("I", bytes(4 * rest.count))
    at = 0
    for start, length in runs:
        block.lengths[start : start + length] = rest.lengths[at : at + length]
        block.which[start : start + length] = of_rest[at : at + length]
        at += length
    return block


def bytes_of(block: Block, body: bytes, runs: Runs) -> bytes:
    """The payloads of these messages, one after the other. body: of the block."""
    offsets = [0]
    for length in block.lengths:
        offsets.append(offsets[-1] + length)
    return b"".join([body[offsets[start] : offsets[start + count]] for start, count in runs])


def clipped(moves: Iterable[Move], first: int, runs: Runs) -> list[Move]:
    """Moves of a block, as far as they are of these messages. first: position of the block."""
    starts = [start for start, _ in runs]
    found = []
    for move in moves:
        begin, end = move.first - first, move.first - first + move.length
        for start, count in runs[max(0, bisect_right(starts, begin) - 1) :]:
            if start >= end:
                break
            low, high = max(begin, start), min(end, start + count)
            if low < high:
                found.append(move._replace(first=first + low, length=high - low))
    return found
