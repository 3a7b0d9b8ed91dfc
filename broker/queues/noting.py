"""What the queues' commits hold, for the journal: ranges as they are, after the commit, so that the journal never says more than the log.

What it does not know: rows, files, samples (`broker/journal/writing/queue_states.py`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...base.interchange import PUBLISHER
from ..journal.kinds import MessageId, Stream
from ..journal.writing.queue_states import Put, Queued
from .core.stock import PRIORITY, Stock
from .log.dead import origin_of, position_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..journal.recorder import Recorder
    from .core.blocks import Block, Meta
    from .core.queue import Queue
    from .core.stock import Move
    from .log.batch import Batch


class Noting:
    """Notes commits. queues: all of the broker, by name, as they are before the first commit."""

    def __init__(self, journal: Recorder, queues: dict[str, Queue]) -> None:
        self._journal = journal
        self._queues = queues
        self._known = {
            name: [(first, first + one.count, one.at) for first, one in sorted(queue.blocks.items())] for name, queue in queues.items()
        }

    def note(self, batch: Batch) -> None:
        """A commit is on the disk."""
        found: dict[Queue, tuple[list[Block], list[Move]]] = {}  # a temporary one may have gone meanwhile
        for queue, block in batch.blocks:
            found.setdefault(queue, ([], []))[0].append(block)
        for queue, moves in batch.moves:
            found.setdefault(queue, ([], []))[1].extend([move for move in moves if move.state < PRIORITY])  # which is no state
        for queue, (blocks, moves) in found.items():
            if self._journal.topics.queue_rule(queue.name).mode != "counted":
                self._journal.queued(self._queued(queue, blocks, moves))

    def _queued(self, queue: Queue, blocks: list[Block], moves: list[Move]) -> Queued:
        puts = [put for block in sorted(blocks, key=_first) for put in self._puts(block)]
        members = {number: queue.names[number] for number in {move.member for move in moves}}
        return Queued(
            queue.name, queue.number, self._known.pop(queue.name, ()), puts, moves, members, min(queue.blocks, default=queue.next)
        )

    def _puts(self, block: Block) -> Iterable[Put]:
        """A block as messages of one publisher each."""
        metas, which, detail = block.metas, block.which, _detail(block)
        if which is None or len(metas) == 1:
            meta = metas[0]
            yield Put(
                block.first, block.count, block.at, block.size, meta.publisher, self._parent(meta.properties), detail, _exchanged(meta)
            )
            return
        start, count = 0, block.count
        while start < count:
            meta, stop = metas[which[start]], start + 1
            parent = self._parent(meta.properties)
            while stop < count and parent is None and _alike(meta, metas[which[stop]]):
                stop += 1
            size = sum(block.lengths[start:stop])
            yield Put(block.first + start, stop - start, block.at, size, meta.publisher, parent, detail, _exchanged(meta))
            start = stop

    def _parent(self, properties: bytes) -> str | None:
        """The id of the message that a dead letter was."""
        if DEAD not in properties:
            return None
        name, position = origin_of(properties)[0], position_of(properties)
        source: Stock | None = self._queues.get(name or "")
        return None if source is None else str(MessageId(self._journal.number, source.number, Stream.QUEUE, position))


DEAD = b"mqmesh-dead-position"


def _first(block: Block) -> int:
    return block.first


def _alike(one: Meta, other: Meta) -> bool:
    return one is other or (one.publisher == other.publisher != PUBLISHER and DEAD not in other.properties)


def _exchanged(meta: Meta) -> bytes:
    """The properties of what an interchange has put, which say its call."""
    return meta.properties if meta.publisher == PUBLISHER else b""


def _detail(block: Block) -> str | None:
    """What is not usual about the messages of a block, as JSON."""
    key = block.key
    values: dict[str, Any] = {"groups": len(key.groups)} if len(key.groups) != 1 else {}
    values |= {name: value for name, value in (("due", key.due), ("expires", key.expires)) if value}
    if not key.revealed:
        values["revealed"] = False
    return json.dumps(values, sort_keys=True) if values else None
