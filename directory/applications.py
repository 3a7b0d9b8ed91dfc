"""The applications of a mesh as a broker knows them: listed now and then, looked up by name in between, kept while the directory is away.

A broker asks in a thread of its own; no message waits for the directory but those for a name that nobody here knows. The last listing is
in the data folder, so that a broker that starts while the directory is away knows what it knew. Answers go to the broker's loop.

The names that are being asked for are bounded, and so are those that are known not to exist; these are asked for again after UNKNOWN_FOR.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ..base.cache import Cache
from ..base.process.files import replace_file
from ..broker.applications import Application, Lookup
from .client import ClientError
from .watch import Change, Teller, Watch

log = logging.getLogger("mqmesh.directory")

FILE = "applications.json"
FRESH = 30.0  # seconds between two listings
PAUSE = 5.0  # seconds without asking, after the directory did not answer
UNKNOWN_FOR = 2.0  # seconds for which a name that is not registered is not asked for again
UNKNOWN_MOST = 10_000  # such names
LONGEST_NAME = 255  # characters of a name that can be registered: of others nothing is asked, or remembered
ASKED_MOST = 10_000  # answers that wait for the directory
OFFERED_MOST = 1000  # applications that one broker registers
FULL = "too many names are being looked up"


class Asker(Protocol):
    """Asks the directory for records: `Client`, or several of them in turn."""

    def find(self, sort: str = ..., mesh: str | None = ..., name: str | None = ...) -> list[dict[str, Any]]:
        """Records. Raises ClientError."""


class Applications:
    """An `ApplicationDirectory` for one mesh.

    asker: of the directory. folder: data folder; None: nothing is stored. fresh: seconds between two listings. declared: called when what
    this broker registers has changed.
    """

    def __init__(
        self,
        asker: Asker,
        mesh: str,
        folder: Path | None = None,
        *,
        fresh: float = FRESH,
        declared: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asker, self._mesh, self._fresh, self._clock = asker, mesh, fresh, clock
        self._file = None if folder is None else folder / FILE
        self._declared = declared
        self._known = _load(self._file, mesh)
        self._unknown: Cache[str, float] = Cache(UNKNOWN_MOST)  # name -> when that was known; of the loop
        self._asked: dict[str, list[Callable[[Lookup], None]]] = {}  # guarded by _lock, with what stands below
        self._waiting = 0
        self._own: dict[str, Application] = {}
        self._left = 0  # of these, how many are not registered
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._unkept = False
        self._away: tuple[float, str] | None = None  # since when nobody answers, and why; of the thread
        self._watchers: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0  # when the applications are listed next; of the thread, but for `_heard`
        self._watch = Watch([asker], self._heard) if isinstance(asker, Teller) else None
        self._thread = threading.Thread(target=self._run, name="directory-applications", daemon=True)

    # What the broker calls in its loop

    def find(self, name: str, answer: Callable[[Lookup], None]) -> None:
        """See `ApplicationDirectory`."""
        record = self._known.get(name)
        if record is not None:
            answer(Lookup(record))
            return
        since = self._unknown.get(name)
        if len(name) > LONGEST_NAME or (since is not None and self._clock() - since < UNKNOWN_FOR):
            answer(Lookup(None))
            return
        with self._lock:
            full = self._waiting >= ASKED_MOST or self._ended
            if not full:
                self._waiting += 1
                self._asked.setdefault(name, []).append(answer)
        if full:
            answer(Lookup(None, FULL))
        self._wake.set()

    def known(self) -> dict[str, Application]:
        """See `ApplicationDirectory`."""
        return dict(self._known)

    def watch(self, changed: Callable[[], None]) -> None:
        """See `ApplicationDirectory`."""
        self._watchers.append(changed)

    def declare(self, application: Application) -> None:
        """See `ApplicationDirectory`."""
        with self._lock:
            changed = self._own.get(application.name) != application
            self._own[application.name] = application
        if changed:
            self._declared()

    def withdraw(self, name: str) -> None:
        """See `ApplicationDirectory`."""
        with self._lock:
            changed = self._own.pop(name, None) is not None
        if changed:
            self._declared()

    # What the registration calls

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to ask; answers go to `loop`."""
        self._loop = loop
        self._thread.start()
        if self._watch is not None:
            self._watch.start()

    def end(self) -> None:
        """Ask no more. What is being asked is finished by itself."""
        with self._lock:
            self._ended = True
        self._wake.set()
        if self._watch is not None:
            self._watch.end()

    def offered(self) -> list[dict[str, object]]:
        """What this broker registers, as the fields of a claim."""
        with self._lock:
            own = list(self._own.values())
        fit = [one for one in own if _fits(one)]
        left = len(own) - len(fit[:OFFERED_MOST])
        if left != self._left:
            self._left = left
            log.warning("event=applications-not-registered count=%d text=they are too many, or have names that no directory takes", left)
        return [{key: value for key, value in _plain(one).items() if value not in (None, "", [], False)} for one in fit[:OFFERED_MOST]]

    # The thread

    def _heard(self, changes: list[Change] | None) -> None:
        """The directory says what has changed: list again, if it may be of this mesh. In the watch's thread."""
        own = ("application", "mesh")
        if changes is None or any(one["mesh"] == self._mesh and one["sort"] in own for one in changes):
            self._due = 0.0
            self._wake.set()

    def _run(self) -> None:
        while not self._ended:
            try:
                now = self._clock()
                if now >= self._due:
                    self._due = now + self._fresh  # before it is listed: what is heard meanwhile counts
                    self._list()
                    if self._away:
                        self._due = now + PAUSE
                self._answer_all()
            except Exception:
                log.exception("event=directory-applications-failed")  # ours; the next round tries again
                self._due = self._clock() + PAUSE
            self._wake.wait(max(0.0, self._due - self._clock()))
            self._wake.clear()

    def _list(self) -> None:
        records = self._ask(None)
        if isinstance(records, str):
            return
        fresh = {one.name: one for one in records}
        if fresh != self._known:
            self._in_loop(partial(self._take, fresh))

    def _answer_all(self) -> None:
        while True:
            with self._lock:
                if not self._asked or self._ended:
                    return
                name = next(iter(self._asked))
                answers = self._asked.pop(name)
                self._waiting -= len(answers)
            self._in_loop(partial(self._tell, name, self._look_up(name), answers))

    def _look_up(self, name: str) -> Lookup:
        if self._away is not None and self._clock() - self._away[0] < PAUSE:
            return Lookup(None, self._away[1])
        records = self._ask(name)
        if isinstance(records, str):
            return Lookup(None, records)
        return Lookup(next((one for one in records if one.name == name), None))

    def _ask(self, name: str | None) -> list[Application] | str:
        """What the directory has, or why it cannot be asked."""
        try:
            found = self._asker.find("application", self._mesh, name)
        except (ClientError, OSError, KeyError, ValueError) as error:  # the last three: the account's secret cannot be read any more
            if self._away is None:
                log.warning("event=directory-applications-away mesh=%s text=%s", self._mesh, error)
            self._away = (self._clock(), str(error))
            return str(error)
        if self._away is not None:
            self._away = None
            log.info("event=directory-applications-back mesh=%s", self._mesh)
            self._in_loop(self._changed)
        return [_application(one) for one in found]

    def _in_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            self.end()  # the loop is closed: the broker has stopped

    # In the loop again

    def _take(self, fresh: dict[str, Application]) -> None:
        self._known = fresh
        self._save()
        self._changed()

    def _tell(self, name: str, found: Lookup, answers: Iterable[Callable[[Lookup], None]]) -> None:
        if found.record is not None:
            self._known[name] = found.record
            self._unknown.pop(name, None)
        elif not found.away:
            self._unknown.keep(name, self._clock())
        for answer in answers:
            answer(found)

    def _changed(self) -> None:
        for changed in self._watchers:
            changed()

    def _save(self) -> None:
        if self._file is None:
            return
        table = {"mesh": self._mesh, "applications": [_plain(one) for one in self._known.values()]}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(table) + "\n")
        except OSError as error:
            self._unkept = True
            log.error("event=directory-memory-failed error=%s", error)
            return
        if self._unkept:
            self._unkept = False
            log.warning("event=directory-memory-kept file=%s", self._file)


def _load(file: Path | None, mesh: str) -> dict[str, Application]:
    """What the broker knew before; nothing where that cannot be read."""
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["mesh"] != mesh:
            return {}
        return {one.name: one for one in map(_application, found["applications"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("event=directory-memory-unreadable file=%s error=%s", file, error)
        return {}


def _application(record: dict[str, Any]) -> Application:
    """A record as JSON says it. What an older directory does not have is not said."""
    return Application(
        str(record["name"]),
        str(record.get("broker", "")),
        tuple(map(str, record.get("clients", ()))),
        tuple(map(str, record.get("alternatives", ()))),
        record.get("message_interval"),
        record.get("fault_interval"),
        record.get("defunct_interval"),
        tuple(map(str, record.get("consents", ()))),
        record.get("probe") is True,
    )


def _fits(application: Application) -> bool:
    """Whether a directory takes it. One that it refuses would have it refuse the broker's whole claim."""
    texts = (application.name, *application.clients, *application.alternatives, *application.consents)
    lists = (application.clients, application.alternatives, application.consents)
    plain = all(0 < len(one) <= LONGEST_NAME and one.isprintable() and " ".join(one.split()) == one for one in texts)
    return plain and all(len(one) <= 64 for one in lists)


def _plain(application: Application) -> dict[str, object]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(application).items()}
