"""One commit of the store of queues, on its way from `gather` to `applied` or `failed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.blocks import Block, Place
from ..core.queue import Queue
from ..core.stock import Dead, Move
from .carry import Carry, Piece
from .segments import Segment

if TYPE_CHECKING:
    from ..moving.copying import Chunk


class Batch:
    """One commit. data: its bytes. segment, offset: where they go. new: the segment begins with it; then `made` is it, once it is there.

    early: of its blocks, those that members were given before, with their places. dead: dead letters that are among its blocks.
    carry, pieces: what is written again with it. named: members that these name. chunk: what is copied from another log. claims: queues
    that are in this log from now on. said: numbers of queues that it names, with their positions and subscribers.
    """

    __slots__ = (
        "blocks",
        "carry",
        "changed",
        "chunk",
        "claims",
        "data",
        "dead",
        "early",
        "made",
        "moves",
        "named",
        "new",
        "offset",
        "pieces",
        "said",
        "segment",
        "size",
    )

    def __init__(self, segment: int, offset: int, new: bool) -> None:
        self.segment = segment
        self.offset = offset
        self.new = new
        self.made: Segment | None = None
        self.data: list[bytes] = []
        self.size = 0
        self.blocks: list[tuple[Queue, Block]] = []
        self.early: dict[Block, Place] = {}
        self.moves: list[tuple[Queue, list[Move]]] = []
        self.changed: list[tuple[Queue, list[tuple[str, int]]]] = []
        self.dead: list[tuple[Queue, list[Dead]]] = []
        self.carry: Carry | None = None
        self.pieces: list[Piece] = []
        self.named: list[tuple[Queue, int]] = []
        self.chunk: Chunk | None = None
        self.claims: set[int] = set()
        self.said: list[int] = []

    def give_back(self) -> None:
        """It is not on the disk: its blocks are gone, and what else it has waits in its queues for the next one."""
        for queue, block in reversed(self.blocks):
            queue.gone(block)
        for queue, moves in self.moves:
            queue.moves[:0] = moves
            queue.touch()
        for queue, dead in self.dead:
            queue.dead[:0] = dead
            queue.touch()
        for queue, changed in self.changed:
            queue.changed[:0] = changed
            queue.touch()
