"""Tells of changes in the directory at once, in a thread of its own, for what keeps answers of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from ..base.backoff import Backoff
from .client import ClientError

WAIT = 25  # seconds that one request waits
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds between two attempts while no directory answers
SHORTEST = 0.05  # seconds between two answers

log = logging.getLogger("mqmesh.directory")

Change = dict[str, str]


@runtime_checkable
class Teller(Protocol):
    """A directory that tells what has changed: `client.Client`."""

    def changes(self, after: int | None = ..., wait: int = ...) -> dict[str, Any]:
        """See `client.Client`."""

    def stop_waiting(self) -> None:
        """See `client.Client`."""


class Watch:
    """Watches equal directories, one at a time; the next one when one does not answer.

    told: called in the watch's thread with what has changed, or None: anything may have, as after a time without a directory.
    """

    def __init__(self, tellers: Sequence[Teller], told: Callable[[list[Change] | None], None]) -> None:
        self._tellers = list(tellers)
        self._told = told
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="directory-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self) -> None:
        """Watch no more. The thread ends soon."""
        self._ended.set()
        for teller in self._tellers:
            teller.stop_waiting()

    def _run(self) -> None:
        after: int | None = None
        pause, why, missed = 0.0, "", 0
        while not self._ended.wait(pause):
            try:
                answer = self._tellers[0].changes(after, 0 if after is None else WAIT)
            except (OSError, KeyError, ValueError) as error:  # the secret of the account cannot be read any more
                why = _say_wait(why, str(error))
                after, pause = None, self._backoff.next()
                continue
            except ClientError as error:
                if error.status not in (0, 401, 503) and error.status < 500:
                    log.info("event=directory-without-changes text=%s", error)  # an earlier release: answers are asked for again in time
                    return
                self._tellers.append(self._tellers.pop(0))
                missed += 1
                if missed >= len(self._tellers) and not self._ended.is_set():
                    why = why or _say_wait(why, str(error))
                after, pause = None, self._backoff.next()
                continue
            missed = 0
            if why:
                why = ""
                log.warning("event=directory-watch-goes-on")
            anything = after is None or answer["lost"]
            after, pause = answer["last"], SHORTEST
            self._backoff.reset()
            if anything or answer["changes"]:
                self._tell(None if anything else answer["changes"])

    def _tell(self, changes: list[Change] | None) -> None:
        try:
            self._told(changes)
        except Exception:
            log.exception("event=directory-watch-failed")  # ours; the next change comes all the same


def _say_wait(before: str, why: str) -> str:
    """Log why nothing is heard of changes, unless that is what the log says. Returns it."""
    if why != before:
        log.warning("event=directory-watch-waits error=%s", why)
    return why
