"""What is still needed of each segment of the log: messages that are not at an end. A piece of work at a time.

What it does not know: retention, whether a segment may go (`store.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

from ..core.blocks import Block
from ..core.queue import Queue
from .carry import MESSAGE_BYTES
from .segments import Segment

PIECE = 2000  # blocks that are looked at in a row


def count_needed(segments: Mapping[int, Segment], queues: Mapping[str, Queue], now: int) -> Iterator[None]:
    """Note in each segment how many of its messages are not at an end, and the bytes that would carry them on."""
    left = dict.fromkeys(segments, 0)
    needed = dict.fromkeys(segments, 0)
    for queue in list(queues.values()):
        for at, block in enumerate(list(queue.blocks.values())):
            if block.place is not None and block.place.segment in left:
                left[block.place.segment] += block.left
                needed[block.place.segment] += min(block.left, block.count) * (block.size // block.count + MESSAGE_BYTES)
            if at % PIECE == PIECE - 1:
                yield
    for number, count in left.items():
        segment = segments[number]
        if segment.open != count:
            segment.open, segment.last_at = count, now
        segment.needed = needed[number]


def blocks_in(number: int, queues: Mapping[str, Queue]) -> Generator[None, None, list[tuple[Queue, Block]]]:
    """The blocks whose messages are in a segment and not at an end."""
    blocks = []
    for queue in list(queues.values()):
        for at, block in enumerate(list(queue.blocks.values())):
            if block.place is not None and block.place.segment == number:
                blocks.append((queue, block))
            if at % PIECE == PIECE - 1:
                yield
    return blocks
