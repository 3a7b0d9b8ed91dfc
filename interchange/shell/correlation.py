"""Correlation in the broker's process: a thread writes the tables, another answers queries; queries from any site are put to all homes.

The exchange's calls are written within a moment of their commit. What a kill loses of that is written anew at the start: the store of the
broker knows each call for longer. What a full disk does not take is tried again until it does.

A client asks at `interchange/query`. The entry says which homes have not answered: those out of reach at once, others after PATIENCE. Who
asks for a session gets all of it from every home, if one home knows a service of the asker's organisation in it. The entry looks into its
own tables first: if it is that home, one question to each of the others is enough.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from ...base.log_limit import PerMinute
from ...base.quoting import quoted
from ...base.refusals import Refusals
from ...mqtt.errors import UsageError
from ..calls import unpack
from ..correlation import tables
from ..correlation.questions import Question, cursor_of
from ..identifiers import home_of
from ..refusals import Code, Refusal

if TYPE_CHECKING:
    from ...broker.mesh.shell import MeshShell

log = logging.getLogger("mqmesh.interchange")

FILE = "correlation.db"
SOON = 0.5  # seconds that calls are gathered before they are written
AGAIN = 5.0  # seconds until what the disk did not take is tried again
MOST_UNWRITTEN = 50_000  # calls that wait for that
AT_ONCE = 1000  # calls in one transaction
SWEEP = 600.0  # seconds between two looks at what is too old
PATIENCE = 3.0  # seconds until a home that does not answer is named
MOST_REFUSED = 10_000  # refused posts that wait to be written
MOST_OF_ONE = 100  # refused posts of one user and minute that are written: strangers are not to fill the disk
USERS = 500  # whose refused posts are counted within a minute
MOST_ASKED = 256  # queries that are being answered
QUERY, FOUND = "interchange/query", "interchange/found"

Told = Callable[[dict[str, Any]], None]
Part = dict[str, Any]  # what one home says: rows, part (whether one of the organisations takes part), failed (why there are no rows)


@dataclass(slots=True)
class Asked:
    """A query that waits for homes. waiting: those that have not answered. vouched: the rows are asked for now."""

    organisations: list[str]
    question: Question
    told: Told
    waiting: set[int] = field(default_factory=set)
    missing: dict[str, str] = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)
    vouched: bool = False
    timer: asyncio.TimerHandle | None = None


class Correlation:
    """The tables of one home. folder: data folder. retention: milliseconds. now: milliseconds since 1970. flush: has the broker write what
    clients and homes are told. Raises sqlite3.Error."""

    def __init__(
        self, folder: Path, home: int, retention: int, now: Callable[[], int], mesh: MeshShell | None, flush: Callable[[], None]
    ) -> None:
        self._home, self._retention, self._now, self._mesh, self._flush = home, retention, now, mesh, flush
        self._loop = asyncio.get_running_loop()
        folder.mkdir(parents=True, exist_ok=True)
        self._writer, self._reader = tables.connect(folder / FILE), tables.connect(folder / FILE)
        tables.prepare(self._writer)
        self._writing = ThreadPoolExecutor(1, "interchange-correlation")
        self._reading = ThreadPoolExecutor(1, "interchange-query")
        self._calls: dict[str, bytes] = {}
        self._since, self._sure = "", False  # the highest call that was written; whether the last transaction was: of the writing thread
        self._refused: list[tables.Refused] = []
        self._unwritten: tuple[dict[str, bytes], list[tables.Refused]] = {}, []  # of the writing thread: what the disk did not take
        self._counts = PerMinute(USERS, "")
        self._timer: asyncio.TimerHandle | None = None
        self._warned = Refusals(log)
        self._failing = False  # the disk takes nothing
        self._sweeping = self._loop.call_later(SWEEP, self._sweep)
        self._asked: dict[bytes, Asked] = {}
        self._ended = False
        if mesh is not None:
            mesh.peer_messages.register(QUERY, _Taken(self._asked_by), ahead=True)
            mesh.peer_messages.register(FOUND, _Taken(self._found), ahead=True)

    def close(self) -> None:
        """Write what is left, and let go of the file."""
        for timer in (self._timer, self._sweeping, *(one.timer for one in self._asked.values())):
            if timer is not None:
                timer.cancel()
        self._write(again=True)
        self._ended = True
        for pool in (self._writing, self._reading):
            pool.shutdown()
        if late := len(self._unwritten[0]):
            log.error(
                "event=correlation-not-written calls=%d text=the store has those that ended lately; others are in the journal only", late
            )
        for connection in (self._writer, self._reader):
            connection.close()

    # What is written

    def note(self, call: str, value: bytes) -> None:
        """A call is so now (`calls.pack`)."""
        self._calls[call] = value
        self._soon()

    def note_all(self, values: Iterable[bytes]) -> None:
        """What an earlier process knew of calls."""
        self._calls.update((unpack(value).id, value) for value in values)
        self._soon()

    def note_refused(self, user: str, client: str, refusal: Refusal) -> None:
        """A post was refused. A minute has few rows of one user, and of all without one; the next row says how many were left out."""
        now = self._now()
        before, left_out = self._counts.count(user, now / 1000, MOST_OF_ONE)
        if before < MOST_OF_ONE and len(self._refused) < MOST_REFUSED:
            more = f" (left_out={left_out} of an earlier minute)" if left_out else ""
            self._refused.append((now, user, client, refusal.code.value, refusal.what[:1000] + more))
            self._soon()

    def _soon(self) -> None:
        if self._timer is None and not self._ended:
            self._timer = self._loop.call_later(AGAIN if self._failing else SOON, self._write)

    def _write(self, again: bool = False) -> None:
        self._timer = None
        if (self._calls or self._refused or again or self._failing) and not self._ended:
            calls, refused, self._calls, self._refused = self._calls, self._refused, {}, []
            self._writing.submit(self._written, calls, refused)

    def _written(self, calls: dict[str, bytes], refused: list[tables.Refused]) -> None:
        """In the writing thread: write these and what the disk did not take before."""
        calls, refused = self._unwritten[0] | calls, self._unwritten[1] + refused
        self._unwritten = {}, []
        while calls or refused:
            some = dict(islice(calls.items(), AT_ONCE))
            since, self._sure = self._since if self._sure else "", False
            try:
                tables.write(self._writer, [unpack(value, check=False) for value in some.values()], refused, since)
                self._since, self._sure = max([self._since, *some]), True
            except sqlite3.OperationalError as error:  # there is no room, for example
                late = dict(list(calls.items())[-MOST_UNWRITTEN:])
                self._unwritten = late, refused[:MOST_REFUSED]
                self._loop.call_soon_threadsafe(self._not_written, str(error), len(late), len(calls) - len(late))
                return
            except sqlite3.Error as error:
                text = f"{FILE}: {error}: stop the broker and move the file away; it is made anew, with the calls of the store"
                self._loop.call_soon_threadsafe(self._not_written, text, 0, len(some))
            except (ValueError, TypeError, KeyError, Refusal):
                log.exception("event=correlation-lost calls=%d", len(some))
            for call in some:
                del calls[call]
            refused = []
        if self._failing:
            self._failing = False
            log.warning("event=correlation-written text=the calls that waited are written")

    def _not_written(self, text: str, waiting: int, lost: int) -> None:
        """The file has not taken calls: those that wait are tried again."""
        event = "correlation-waits" if waiting else "correlation-lost"
        if (more := self._warned.due(self._loop.time(), ("", event))) is not None:
            log.error("event=%s calls=%d lost=%d more=%d text=%s", event, waiting, lost, more, text)
        self._failing = waiting > 0
        if waiting:
            self._soon()

    def _sweep(self) -> None:
        self._sweeping = self._loop.call_later(SWEEP, self._sweep)
        self._writing.submit(self._swept)

    def _swept(self) -> None:
        """In the writing thread: forget what is too old."""
        try:
            tables.forget(self._writer, self._now() - self._retention)
        except sqlite3.Error as error:  # the next sweep does it
            log.warning("event=correlation-not-swept text=%s", error)

    # What is asked

    def ask(self, organisations: list[str], question: Question, told: Told) -> None:
        """Answer a query of a user who acts for these organisations. Raises Refusal."""
        if self._ended or len(self._asked) >= MOST_ASKED:
            raise Refusal(Code.UNAVAILABLE, "too many queries are being answered, or this broker ends", "ask again later")
        self._write(again=True)  # who asks sees what was before
        asked = Asked(organisations, question, told)
        if question.session:
            self._look([b"", organisations, question.fields(), False], partial(self._looked_here, asked))
        else:
            self._begin(asked)

    def _looked_here(self, asked: Asked, part: Part) -> None:
        """The tables of this home say whether the asker takes part in the session."""
        self._note_part(asked, self._home, part)
        asked.vouched = part["part"]
        self._begin(asked)

    def _begin(self, asked: Asked) -> None:
        """Ask all homes that have told nothing yet."""
        token = secrets.token_bytes(12)
        self._asked[token] = asked
        homes = [home for home in self._homes(asked) if home not in asked.parts]
        asked.waiting = set(homes)
        body = [token, asked.organisations, asked.question.fields(), asked.vouched]
        for home in homes:
            if home == self._home:
                self._look(body, partial(self._take, token, home))
            elif not self._send(home, QUERY, body):
                asked.waiting.discard(home)
        asked.timer = self._loop.call_later(PATIENCE, self._late, token)
        self._end_of(token)

    def _homes(self, asked: Asked) -> list[int]:
        """The homes that may know of it; those out of reach are named."""
        if self._mesh is None:
            return [self._home]
        live = self._mesh.node.live()
        wanted = {self._home, *(one.number for one in self._mesh.node.members())}
        if asked.question.call:
            wanted &= {home_of(asked.question.call)}
        away = {home for home in wanted if home != self._home and not live >> home & 1}
        asked.missing |= {self._mesh.node.name(home): "out of reach" for home in away}
        return sorted(wanted - away)

    def _send(self, home: int, kind: str, body: list[Any]) -> bool:
        assert self._mesh is not None
        try:
            return self._mesh.peer_messages.send(1 << home, kind, msgpack.packb(body), expiry=int(PATIENCE) + 1)
        except UsageError:
            return False

    def _take(self, token: bytes, home: int, part: Part) -> None:
        asked = self._asked.get(token)
        if asked is not None and home in asked.waiting:
            asked.waiting.discard(home)
            self._note_part(asked, home, part)
            self._end_of(token)

    def _note_part(self, asked: Asked, home: int, part: Part) -> None:
        asked.parts[home] = part
        if "failed" in part:
            asked.missing[self._name(home)] = str(part["failed"])

    def _name(self, home: int) -> str:
        return "here" if self._mesh is None else self._mesh.node.name(home)

    def _late(self, token: bytes) -> None:
        asked = self._asked.get(token)
        if asked is not None:
            asked.missing |= {self._name(home): "no answer" for home in asked.waiting}
            asked.waiting.clear()
            self._end_of(token)
            self._flush()

    def _end_of(self, token: bytes) -> None:
        """Tell what was found, or ask for the rest of a session, once nobody is waited for."""
        asked = self._asked[token]
        if asked.waiting:
            return
        del self._asked[token]
        if asked.timer is not None:
            asked.timer.cancel()
        knowing = {home: part for home, part in asked.parts.items() if part["part"]}
        if asked.question.session and not asked.vouched and knowing:
            self._begin(replace(asked, timer=None, vouched=True, parts=knowing))
            return
        asked.told(_joined(asked))

    # What homes say to each other

    def _asked_by(self, origin: int, body: list[Any]) -> None:
        if self._ended:
            return
        self._write()

        def then(part: Part) -> None:
            self._send(origin, FOUND, [body[0], part])

        self._look(body, then)

    def _found(self, origin: int, body: list[Any]) -> None:
        token, part = body
        self._take(token, origin, part)

    def _look(self, body: list[Any], then: Callable[[Part], None]) -> None:
        """Look into the tables of this home in the reader's thread, behind all that is written."""

        def look() -> Part:
            _, organisations, fields, vouched = body
            question = Question.of(fields)
            if question.session and not vouched and not tables.takes_part(self._reader, organisations, question.session):
                return {"part": False, "rows": []}
            return {"part": True, "rows": tables.find(self._reader, organisations, question, vouched or bool(question.session))}

        def go() -> None:
            if not self._ended:
                self._reading.submit(look).add_done_callback(lambda done: self._loop.call_soon_threadsafe(looked, done))

        def looked(done: Any) -> None:
            if done.exception() is not None:
                if (more := self._warned.due(self._loop.time(), ("", "query-failed"))) is not None:
                    log.error("event=query-failed more=%d error=%s", more, quoted(str(done.exception())))
                then({"part": False, "rows": [], "failed": "its tables cannot be read; its log says why"})
            else:
                then(done.result())
            self._flush()

        self._writing.submit(lambda: None).add_done_callback(lambda done: self._loop.call_soon_threadsafe(go))


def _joined(asked: Asked) -> dict[str, Any]:
    """One answer of the parts: the latest calls first, at most a page of them."""
    rows = [row for part in asked.parts.values() for row in part["rows"]]
    rows.sort(key=lambda row: (row["created"], row["call"]), reverse=True)
    page = rows[: asked.question.limit]
    answer: dict[str, Any] = {"calls": page, "sessions": _sessions(page), "missing": asked.missing}
    return answer | ({"cursor": cursor_of(page[-1])} if len(rows) > len(page) else {})


def _sessions(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the calls of a page say of their sessions together (l. 258)."""
    made: dict[str, dict[str, Any]] = {}
    for one in calls:
        session = made.setdefault(one["session"], {"session": one["session"], "calls": 0, "begun": one["created"], "ended": 0, "open": 0})
        session["calls"] += 1
        session["begun"] = min(session["begun"], one["created"])
        session["open"] += one["status"] == "open"
        session["ended"] = max(session["ended"], one["ended"] or 0)
    return [one | {"ended": None if one["open"] else one["ended"]} for one in made.values()]


class _Taken:
    """Receives posts of one kind from other brokers."""

    def __init__(self, take: Callable[[int, list[Any]], None]) -> None:
        self._take = take

    def received(self, origin: int, body: bytes, expiry: int | None) -> None:
        """See `Handler` of `broker/mesh/peer_message.py`."""
        try:
            self._take(origin, msgpack.unpackb(body))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            log.error("event=post-damaged origin=%d text=%s", origin, quoted(str(error)[:200]))

    def returned(self, destination: int, body: bytes, reason: str) -> None:
        """See `Handler`: who waits is told in time."""
