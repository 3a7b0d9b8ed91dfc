"""What acknowledgements of messages for queues wait for, at a broker without a mesh.

What it does not know: queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..persistence.commits import Persistence


class Answers:
    """What a `Tracker` asks of receipts, for a broker without a mesh. persistence: of the broker."""

    def __init__(self) -> None:
        self.persistence: Persistence | None = None
        self.late = 0

    def claim(self) -> int:
        """The ticket of what the message that is being taken has stored, 0 when it needs none."""
        return self.persistence.claim() if self.persistence is not None else 0

    def deadline(self) -> float:
        """Nothing waits for the mesh."""
        return 0.0

    def acknowledgements(self, connection: Any, item: Any) -> bytes:
        """Nothing waits for the mesh."""
        raise NotImplementedError
