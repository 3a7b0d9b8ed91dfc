"""A directory of applications that can be away, and what each broker has of it: `broker/applications.py` in the virtual loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqmesh.broker.applications import Application, Lookup

if TYPE_CHECKING:
    from .virtual import VirtualLoop

ANSWER = 0.02  # seconds until it answers, or until it is given up
LISTING = 1.0  # seconds between two listings


class Directory:
    """What is registered. away: nobody can ask it."""

    def __init__(self) -> None:
        self.records: dict[str, Application] = {}
        self.away = False


class Seat:
    """A broker's client of the directory. Its cache outlives the broker's death, as on a disk."""

    def __init__(self, loop: VirtualLoop, directory: Directory) -> None:
        self._loop, self._directory = loop, directory
        self._cache: dict[str, Application] = {}
        self._changed: Callable[[], None] = lambda: None

    def find(self, name: str, answer: Callable[[Lookup], None]) -> None:
        """From the cache at once, else a moment later."""
        if name in self._cache:
            answer(Lookup(self._cache[name]))
        else:
            self._loop.call_later(ANSWER, self._answer, name, answer)

    def _answer(self, name: str, answer: Callable[[Lookup], None]) -> None:
        if self._directory.away:
            answer(Lookup(None, "the directory does not answer"))
            return
        found = self._directory.records.get(name)
        if found is not None:
            self._cache[name] = found
        answer(Lookup(found))

    def known(self) -> dict[str, Application]:
        """The last listing."""
        return self._cache

    def watch(self, changed: Callable[[], None]) -> None:
        """A life of the broker begins: listings begin too."""
        self._changed = changed
        self._loop.call_later(LISTING, self._list)

    def _list(self) -> None:
        if not self._directory.away and self._cache != self._directory.records:
            self._cache = dict(self._directory.records)
            self._changed()
        self._loop.call_later(LISTING, self._list)

    def declare(self, application: Application) -> None:
        """A client has declared itself."""
        self._directory.records[application.name] = application

    def withdraw(self, name: str) -> None:
        """It is none any more."""
        self._directory.records.pop(name, None)

    # What else a broker asks its registrar

    @property
    def applications(self) -> Seat:
        return self

    def where(self, name: str) -> list[str]:
        """No broker's address."""
        return []

    def values(self) -> dict[str, object]:
        """Nothing for `$SYS`."""
        return {}
