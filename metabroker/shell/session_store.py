"""The metabroker's store: one SQLite file that only its owner may read, or a home in a database that several share (`homes.py`); a thread
that commits, and actions that wait for commits.

The passwords that clients gave for remotes are in it, because the metabroker connects with them after its restart. They are encrypted
(`sealing.py`). The file has mode 0600 in a folder of mode 0700; that of the key is beside it, if no other one is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.extras import install
from ...store.base import Kind, Store, StoreError
from ...store.folder import os_error
from ...store.records import StoredDelivery, StoredRun
from ...store.sqlite import SqliteStore
from ...store.writer import Writer
from .. import sealing
from ..core.actions import Action, ReadPage
from ..core.records import INCOMING
from ..sealing import Sealer

if TYPE_CHECKING:
    from .homes import Homes

log = logging.getLogger(__name__)
FILE, KEY = "metabroker.db", "passwords.key"
CLOSE_TIMEOUT = 5.0  # seconds for what is left to be kept
Later = list[Action | Callable[[], None]]
Rows = list[tuple[StoredDelivery, StoredRun]]


def _ignore(_: Later) -> None:
    pass


class SessionStore:
    """An open store. data: folder, made if need be, or URL of a database. Raises StoreError. Opening blocks: it may be done in any thread,
    all else in the loop's.

    on_committed: called in the loop with what waited for a commit, in order. number: of this metabroker, None: it is in the store.
    homes: of the metabrokers that share the database. sealer: of passwords in it. key_file: with its key; None: a file in the folder.
    """

    def __init__(self, data: Path | str, loop: asyncio.AbstractEventLoop, key_file: Path | None = None) -> None:
        self.on_committed: Callable[[Later], None] = _ignore
        self._waiting: deque[tuple[int, Later]] = deque()
        self._committed = asyncio.Event()
        self._loop = loop
        self.homes: Homes | None = None
        self.number: int | None = None
        self.database: Store
        self.sealer = _sealer(data, key_file)
        if isinstance(data, Path):
            self.database = SqliteStore(data / FILE)
        else:
            self.homes = _homes(data)
            self.number, self.database = self.homes.number, self.homes.store
        self._failed = False
        self.writer = Writer(self.database, loop.call_soon_threadsafe, self._on_commit, self._on_error)
        self.writer.start()

    def keep(self, lost: Callable[[], None]) -> None:
        """From now on. lost: called in the loop when another metabroker has taken over what is here."""
        if self.homes is not None:
            self.homes.keep(self._loop.call_soon_threadsafe, lost)

    def after(self, later: Later) -> None:
        """Hand over what has been put so far; do these when it is kept."""
        ticket = self.writer.ticket()
        if not later:
            return
        if ticket <= self.writer.committed and not self._waiting:
            self.on_committed(later)
        else:
            self._waiting.append((ticket, later))

    async def read(self, fetch: ReadPage) -> Rows | None:
        """A page of a session's publications; None if the store fails."""
        try:
            return await asyncio.to_thread(self._rows, fetch)
        except StoreError as error:
            log.error("event=store-unreadable error=%r", str(error))
            return None

    async def settle(self) -> None:
        """Wait until what was put is kept, for some seconds at most. What waited for that is not done any more."""
        self.on_committed = _ignore
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                while self.writer.bytes_pending:
                    self._committed.clear()
                    self.writer.ticket()
                    await self._committed.wait()

    def close(self) -> None:
        """Close the file. Blocks for as long as that takes, and a second more where something is left."""
        if not self.writer.close(0.0):
            log.error("event=store-left bytes=%d error=%r", self.writer.bytes_pending, str(self.writer.error or "no answer in time"))
        if self.homes is not None:
            self.homes.close()

    def _rows(self, fetch: ReadPage) -> Rows:
        deliveries = list(self.database.deliveries(INCOMING + fetch.session, after=fetch.after, limit=fetch.last - fetch.after))
        runs = self.database.runs({one.run for one in deliveries})
        return [(one, runs[one.run]) for one in deliveries if one.order <= fetch.last and one.run in runs]

    def _on_commit(self, ticket: int) -> None:
        if self._failed and self.writer.error is None:
            self._failed = False
            log.warning("event=store-recovered text=everything that waited is kept")
        waiting = self._waiting
        while waiting and waiting[0][0] <= ticket:
            self.on_committed(waiting.popleft()[1])
        self._committed.set()

    def _on_error(self, error: StoreError) -> None:
        self._failed = True
        log.error("event=store-fails error=%r", str(error))


def place_of(text: str, folder: Path | None = None) -> Path | str:
    """Where sessions are kept, as it was written: a folder, relative to another one, or the URL of a database."""
    return text if text.startswith(("postgresql://", "postgres://")) else (folder or Path()) / text


def _sealer(data: Path | str, key_file: Path | None) -> Sealer:
    try:
        if key_file is not None:
            return sealing.read(key_file)
        if isinstance(data, Path):
            _make_private(data / FILE)
            return sealing.made(data / KEY)
    except sealing.SealError as error:
        raise StoreError(Kind.OTHER, "key file", str(error)) from None
    text = "passwords there are encrypted: give a key file, the same to each metabroker (openssl rand -hex 32)"
    raise StoreError(Kind.OTHER, "postgresql:", text)


def _homes(url: str) -> Homes:
    try:
        from .homes import Homes
    except ImportError:
        raise StoreError(Kind.OTHER, "postgresql:", f"needs a package that is not installed: {install('postgresql')}") from None
    return Homes(url)


def _make_private(path: Path) -> None:
    """Make the file and its folder so that nobody but their owner may read them. SQLite gives its other files the file's mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
    except FileExistsError:
        raise StoreError(Kind.OTHER, str(path.parent), "is no folder: name another") from None
    except OSError as error:
        raise os_error(str(path), error) from error
