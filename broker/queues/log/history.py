"""The history of one message, read from the segments of the log in steps.

What it does not know: what is not on the disk yet (`store.py`).
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable, Mapping

from ..core.blocks import Block
from ..core.queue import Queue
from ..core.stock import Move
from .format import Moves, Put
from .port import Segments
from .segments import Said, scan


def read_history(
    queue: Queue, position: int, ends: Mapping[int, int], there: Container[int], where: Segments, say: Said
) -> Generator[None, None, tuple[Block | None, list[Move], bool]]:
    """The block of a position as it was put, its moves in order, and whether no segment went meanwhile.

    ends: segments that may tell of it, with the bytes to be read. there: numbers of the segments that the log has.
    """
    block: Block | None = None
    moves: list[Move] = []
    whole = True
    for number in sorted(ends):
        frames = scan(where, number, False, say, until=ends[number])
        while number in there:
            one = next(frames, None)
            if one is None:
                break
            for record in one.records:
                if record.queue != queue.number:
                    continue
                if isinstance(record, Put) and record.has(position):
                    block = one.block_of(record, number, queue.names)
                    moves = moves_of(position, record.moves)
                elif isinstance(record, Moves):
                    moves += moves_of(position, record.moves)
            yield
        else:
            whole = False
    return block, moves, whole


def moves_of(position: int, moves: Iterable[Move]) -> list[Move]:
    """Those of a message among others."""
    return [move for move in moves if move.first <= position < move.first + move.length]
