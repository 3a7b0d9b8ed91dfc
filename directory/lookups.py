"""Lookups that work while the directory is away: answers are cached, refreshed from time to time, and served stale within a bound.

An answer says how old it is and whether the directory could not be asked. The cache holds the answers to the `most` last questions. While
the directory does not answer it is asked at most every PAUSE seconds, so that lookups do not wait each time; and for one question at a
time, so that one who waits for it keeps no others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from ..base.cache import Cache
from .client import ClientError
from .watch import Change, Teller, Watch

PAUSE = 5.0  # seconds

log = logging.getLogger("mqmesh.directory")

Question = tuple[str, str | None, str | None]


class Finder(Protocol):
    """Answers questions: `client.Client` over REST, or `uddi_client.Inquiry` over UDDI."""

    def find(self, sort: str = ..., mesh: str | None = ..., name: str | None = ...) -> list[dict[str, Any]]:
        """Records. Raises ClientError: status 0, or 500 and more, if there is no answer; another status for a refusal."""


@dataclass(slots=True, frozen=True)
class Found:
    """An answer.

    age: seconds since the directory gave it.
    stale: the directory did not answer when it was asked last.
    """

    records: list[dict[str, Any]]
    age: float
    stale: bool


class Lookups:
    """Finds records through a `Finder`, with a cache.

    fresh: seconds for which an answer is used without asking again.
    stale: seconds after which an old answer is not used any more.
    most: number of cached answers.

    As a context manager it also asks its questions again every `fresh` seconds, in its own thread, and at once when the directory says
    that something has changed (`watched`: the directories that say so; without them the client, if it can).
    """

    def __init__(
        self,
        client: Finder,
        *,
        fresh: float = 30.0,
        stale: float = 3600.0,
        most: int = 256,
        clock: Callable[[], float] = time.monotonic,
        watched: Sequence[Teller] = (),
    ) -> None:
        self._client = client
        self._fresh, self._stale = fresh, stale
        self._clock = clock
        self._answers: Cache[Question, tuple[float, list[dict[str, Any]]]] = Cache(most)
        self._away: float | None = None  # when the directory last failed to answer, None once it has answered
        self._why = ClientError(0, "", "")  # the failure
        self._asking = 0  # questions that wait for the directory
        self._lock = threading.Lock()  # of what stands above; never held while the directory is asked
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._watched: list[Teller] = list(watched) or ([client] if isinstance(client, Teller) else [])
        self._watch: Watch | None = None

    def find(self, sort: str = "broker", mesh: str | None = None, name: str | None = None, *, fresh: float | None = None) -> Found:
        """The records as `Client.find` has them; ClientError when the directory refuses, or is away and no answer is young enough.

        fresh: seconds, for this question now, in place of those for all.
        """
        fresh = self._fresh if fresh is None else fresh
        question = (sort, mesh, name)
        with self._lock:
            now, kept, away = self._clock(), self._answers.get(question), self._away
            if kept is not None:
                self._answers.move_to_end(question)
        paused = away is not None and now - away < PAUSE
        if kept is not None and (now - kept[0] <= fresh or (paused and now - kept[0] <= self._stale)):
            return Found(deepcopy(kept[1]), now - kept[0], away is not None)
        try:
            records = self._ask(question, True)
        except ClientError as error:
            now = self._clock()
            if not _is_away(error) or kept is None or now - kept[0] > self._stale:
                raise
            return Found(deepcopy(kept[1]), now - kept[0], True)
        return Found(deepcopy(records), 0.0, False)

    def refresh(self) -> None:
        """Ask every cached question again, until the directory does not answer. Answers that are too old or refused now are removed."""
        with self._lock:
            now = self._clock()
            for question in [one for one, (then, _) in self._answers.items() if now - then > self._stale]:
                del self._answers[question]
            questions = list(self._answers)
        self._ask_again(questions)

    def changed(self, changes: list[Change] | None) -> None:
        """Ask again what changes may have another answer for; None: every question."""
        with self._lock:
            questions = [one for one in self._answers if changes is None or any(_touches(change, *one) for change in changes)]
        self._ask_again(questions)

    def _ask_again(self, questions: list[Question]) -> None:
        for question in questions:
            try:
                self._ask(question)
            except ClientError as error:
                if _is_away(error):
                    return
                with self._lock:
                    self._answers.pop(question, None)

    def __enter__(self) -> Lookups:
        self._end.clear()
        self._thread = threading.Thread(target=self._run, name="directory-lookups", daemon=True)
        self._thread.start()
        if self._watched:
            self._watch = Watch(self._watched, self.changed)
            self._watch.start()
        return self

    def end(self) -> None:
        """Stop the thread. A question that is being asked is finished."""
        self._end.set()
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._end.wait(self._fresh):
            try:
                self.refresh()
            except Exception:
                log.exception("event=refresh-failed")  # ours; the next round tries again

    def _ask(self, question: Question, hurry: bool = False) -> list[dict[str, Any]]:
        """hurry: while the directory is away, and another question waits for it, fail as that did which found it so."""
        with self._lock:
            if hurry and self._away is not None and self._asking:
                raise ClientError(self._why.status, self._why.code, str(self._why))
            self._asking += 1
        asked = self._clock()
        try:
            records = self._client.find(*question)
        except ClientError as error:
            self._answered(error)
            raise
        else:
            self._answered(None)
            with self._lock:
                self._answers.keep(question, (asked, records))
        finally:
            with self._lock:
                self._asking -= 1
        return records

    def _answered(self, error: ClientError | None) -> None:
        """The directory has answered, or not. Where nobody watches it, the log says so, and when it does again."""
        with self._lock:
            before, self._away = self._away, self._clock() if error is not None and _is_away(error) else None
            if error is not None and self._away is not None:
                self._why = error
            after = self._away
        if self._watch is not None or (before is None) == (after is None):
            return
        if after is None:
            log.warning("event=directory-lookups-back")
        else:
            log.warning("event=directory-lookups-away text=%s", error)


def _touches(change: Change, sort: str, mesh: str | None, name: str | None) -> bool:
    """Whether a change may change the answer to a question. One of a mesh is one of all in it."""
    if mesh is not None and change["mesh"] != mesh:
        return False
    if change["sort"] == "mesh" and sort != "mesh":
        return True
    alike = change["sort"] == sort or (sort, change["sort"]) == ("service", "broker")  # of UDDI, where a broker is a service
    return alike and (name is None or "*" in name or change["name"] == name)


def _is_away(error: ClientError) -> bool:
    """Whether there was no answer, or one of a directory that cannot work now, as opposed to a refusal."""
    return error.status == 0 or error.status >= 500
