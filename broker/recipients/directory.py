"""What the fail-over asks a directory (US 8,078,902: global directory service; rows F7, F12, F15, F18).

`mqmesh.directory` has the class that does it; the broker works without one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from .settings import Application


class Answer(Enum):
    """A lookup that found nothing."""

    UNKNOWN = "the directory does not know this application"
    AWAY = "the directory cannot be asked now, and the name is not in the cache"


class RecipientDirectory(Protocol):
    """A directory with a cache. It is used in the event loop, and waits for nothing there."""

    def cached(self, name: str) -> Application | None:
        """What the cache has of an application; None: nothing. The cache is asked again periodically, by the directory's client itself."""

    def ask(self, name: str, answer: Callable[[Application | Answer], None]) -> None:
        """Look a name up. `answer` is called once, in the event loop, at once or later."""

    def resume(self, kept: list[Application]) -> None:
        """The broker has started: take up what the cache has of this broker's applications.

        kept: what an earlier life of the broker was the home of. What of that is registered no more is dropped with the next listing.
        """

    def opened(self, client_id: str) -> None:
        """A client has come: its broker is the home of applications that it serves and whose records name no broker."""

    def declare(self, application: Application) -> None:
        """A client has declared itself here: register it with this broker's lease."""

    def withdraw(self, name: str) -> None:
        """It is no recipient here any more."""
