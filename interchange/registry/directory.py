"""The services that the directory knows: read once, then as they change, and kept in the data folder for times without a directory.

A thread of its own asks. It hears of a change within a second, reads the services that it names, and gives the whole to the interchange's
loop. While no directory answers, the interchange goes on with what it has, also over restarts; what has changed meanwhile is read when one
answers again, at most ten seconds after that.

A record that cannot be read, such as one of a later release, is a service that is suspended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from ...base.backoff import Backoff
from ...base.process.files import replace_file
from ...base.quoting import quoted
from ...base.settings import ConfigError
from ...directory.client import ClientError
from ...directory.watch import Change, Teller, Watch
from .file import read_profile
from .records import Registry, Service

log = logging.getLogger("mqmesh.interchange")

FILE = "services.json"
SORT, ORGANISATION = "interchange", "organisation"  # of changes
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds between two attempts to read

Profiles = dict[str, tuple[int, dict[str, Any], str]]  # service -> revision, profile and the account that it belongs to


class Asker(Teller, Protocol):
    """Asks the directory: `directory.clients.Clients`."""

    def services(self) -> list[dict[str, Any]]:
        """All services. Raises ClientError."""

    def service(self, name: str) -> dict[str, Any]:
        """One service. Raises ClientError."""


class DirectoryRegistry:
    """The services of a directory, for the interchange of one site. folder: data folder."""

    def __init__(self, asker: Asker, site: str, folder: Path) -> None:
        self._asker, self._site, self._file = asker, site, folder / FILE
        self._profiles = _load(self._file)
        self._services: dict[str, Service] = {}
        for name in self._profiles:
            self._read(name)
        self._changed: Callable[[Registry], None] = lambda registry: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._unkept = False
        self._watch = Watch([asker], self._heard)

    def registry(self) -> Registry:
        """What is known now."""
        return Registry(self._services.values())

    def begin(self, loop: asyncio.AbstractEventLoop, changed: Callable[[Registry], None]) -> None:
        """Start to ask. changed: called in the loop with the services as they are now."""
        self._loop, self._changed = loop, changed
        self._watch.start()

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._watch.end()

    # In the watch's thread

    def _heard(self, changes: list[Change] | None) -> None:
        names = None
        if changes is not None and all(one["sort"] != ORGANISATION for one in changes):
            names = {f"{one['mesh']}/{one['name']}" for one in changes if one["sort"] == SORT}
        backoff, pause, why = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0.0, ""
        while names != set() and not self._ended.wait(pause):
            try:
                self._take(names)
                if pause:
                    log.warning("event=registry-back text=the services are known as they are now")
                return
            except (ClientError, OSError, KeyError, ValueError) as error:  # the last three: the account's secret cannot be read any more
                if str(error) != why:
                    why = str(error)
                    log.warning("event=registry-away text=%s", why)
                pause = backoff.next()

    def _take(self, names: set[str] | None) -> None:
        """Read services anew. names: None for all."""
        if names is None:
            found = {str(one["service"]): one for one in self._asker.services()}
            stale = self._profiles.keys() - found.keys()
        else:
            found = {name: one for name in names if (one := self._asked(name)) is not None}
            stale = names - found.keys()
        for name in stale:
            self._profiles.pop(name, None)
            self._services.pop(name, None)
        for name, one in found.items():
            if not one["whole"]:
                log.error("event=registry-closed service=%s text=this account is no interchange's: make it one", quoted(name))
                continue
            if self._profiles.get(name, (0, {}, ""))[0] != one["revision"] or name not in self._services:
                self._profiles[name] = one["revision"], one["profile"], one["owner"]
                self._read(name)
        self._save()
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._changed, self.registry())
        except RuntimeError:
            self.end()  # the loop is closed: the broker has stopped

    def _asked(self, name: str) -> dict[str, Any] | None:
        try:
            return self._asker.service(name)
        except ClientError as error:
            if error.status != 404:
                raise
            return None

    def _read(self, name: str) -> None:
        revision, profile, owner = self._profiles[name]
        try:
            self._services[name] = read_profile(name, profile, self._site, revision, owner)
        except ConfigError as error:
            log.error("event=service-not-read service=%s revision=%d text=%s", quoted(name), revision, error)
            self._services[name] = Service(name, callers=(), suspended=True, revision=revision, owner=owner)

    def _save(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(self._profiles) + "\n")
        except OSError as error:
            self._unkept = True
            log.error("event=registry-not-kept error=%s", error)
            return
        if self._unkept:
            self._unkept = False
            log.warning("event=registry-kept file=%s", self._file)


def _load(file: Path) -> Profiles:
    """What was known before; nothing where that cannot be read."""
    try:
        return {name: _profile(*one) for name, one in _items(json.loads(file.read_text("utf-8")))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("event=registry-unreadable file=%s error=%s", file, error)
        return {}


def _profile(revision: Any, profile: Any, owner: Any = "") -> tuple[int, dict[str, Any], str]:  # earlier releases wrote no owner
    return int(revision), dict(profile), str(owner)


def _items(found: Any) -> Iterable[tuple[Any, Any]]:
    return list(found.items())
