"""The payloads of blocks, which wait in memory up to a bound; the log has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .format import Damaged
from .segments import read_body

if TYPE_CHECKING:
    from ..core.blocks import Block
    from .port import Segments
    from .segments import Segment

RESIDENT_BYTES = 64 << 20  # payloads that wait in memory; more are in the log only
SERVED = 16  # blocks of which nobody is to get anything now, whose payloads are in memory still
SERVED_BYTES = 16 << 20  # of their payloads at most, but for those of the last one


class Bodies:
    """Payloads of one log. resident: bytes of them in memory. where: the log's segments. known: those that are there, by number.

    Blocks of which nobody is to get anything now stay in memory for a while: when many members are lost at once, each gives a few messages
    of the same blocks back, and a block would be read from the log for each of them.
    """

    def __init__(self, where: Segments, known: Mapping[int, Segment]) -> None:
        self.resident = 0
        self._where = where
        self._known = known
        self._served: dict[Block, None] = {}  # those blocks, the last one at the end

    def keep(self, block: Block) -> None:
        """A block is in the log: its payloads stay in memory if there is room."""
        if self.resident + block.size > RESIDENT_BYTES:
            block.payloads = None
        else:
            self.resident += block.size

    def payloads(self, block: Block) -> list[bytes]:
        """The payloads of a block, from memory or from the log. Raises Damaged, OSError."""
        if block.payloads is None:
            block.payloads = self._read(block)
            self.resident += block.size
        return block.payloads

    def payload(self, block: Block, at: int) -> bytes:
        """The payload of a message that was read from the log. Raises Damaged, OSError."""
        if block.payloads is None:
            block.payloads = self._read(block)
        return block.payloads[at]

    def served(self, block: Block) -> None:
        """If nobody is to get messages of a block now, its payloads leave memory, unless it is one of the last of this kind."""
        if _wanted(block):
            return
        self._served.pop(block, None)
        self._served[block] = None
        while len(self._served) > 1 and (len(self._served) > SERVED or sum(one.size for one in self._served) > SERVED_BYTES):
            self._drop()

    def forget_served(self) -> None:
        """The payloads of all of these leave memory."""
        while self._served:
            self._drop()

    def _drop(self) -> None:
        block = next(iter(self._served))
        del self._served[block]
        if not _wanted(block):
            self.forget(block)

    def forget(self, block: Block) -> None:
        """Payloads that were read to be looked at leave memory."""
        if block.payloads is not None and block.place is not None:
            block.payloads = None
            self.resident -= block.size

    def _read(self, block: Block) -> list[bytes]:
        assert block.place is not None
        if block.place.segment not in self._known:
            raise Damaged(f"segment {block.place.segment} is gone: its retention is over")
        return block.payloads_in(read_body(self._where, block.place))


def _wanted(block: Block) -> bool:
    """Whether somebody is to get messages of a block."""
    return any(part.clean for part in block.parts)
