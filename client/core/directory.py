"""The interface between the client and a directory: an application registers itself there for a time.

`mqmesh.directory.client.Client(url).applications(mesh)` keeps it. The client itself knows no directory.
"""

from __future__ import annotations

from typing import Protocol


class Directory(Protocol):
    """Registers applications of one mesh. Methods block; a thread of the client calls them."""

    def register(self, name: str, seconds: float, fields: dict[str, object]) -> None:
        """Register an application for `seconds`, or renew it.

        fields: of its record, see docs/directory.md. Raises ConnectionError without an answer, ValueError (one line) for a refusal.
        """

    def leave(self, name: str) -> None:
        """End the registration. Raises as `register` does."""
