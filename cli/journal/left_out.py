"""What `mqmesh journal` leaves out, because a file is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..output import note

if TYPE_CHECKING:
    from ...broker.journal.reading import Wrong


class LeftOut:
    """Names damaged files on stderr, each once in a line."""

    def __init__(self, command: str) -> None:
        """command: who leaves them out, such as `journal cat`."""
        self._command = command
        self.named: set[str] = set()

    def name(self, wrong: Wrong) -> None:
        """Name those that are not named yet, and take them out of the list."""
        for path, text in wrong:
            if path not in self.named:
                self.named.add(path)
                note(f"{self._command}: left out: {path}: {text}")
        wrong.clear()
