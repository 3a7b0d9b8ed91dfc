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


class Bodies:
    """Payloads of one log. resident: bytes of them in memory. where: the log's segments. known: those that are there, by number."""

    def __init__(self, where: Segments, known: Mapping[int, Segment]) -> None:
        self.resident = 0
        self._where = where
        self._known = known

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
        """If nobody is to get messages of a block now, its payloads leave memory."""
        if not any(part.clean for part in block.parts):
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
