"""Group commits of the queues: a thread writes one batch while the next gathers, and what waits for a batch goes when it is on the disk.

A small batch is written in the loop itself as long as the disk answers within `LONE` seconds: handing it to a thread takes longer. A larger
one is gathered when no socket has more for it: publishers that are answered together put again together, and if the first of them began a
batch, the others would wait for it and for one of their own (`begin_together`).

If only clients wait for a batch, their answers are sent before anything else is done about it: they put more while members get this.

What it does not know: what is in a batch (`log/store.py`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ...base.quoting import quoted
from .log.batch import Batch
from .log.carry import Carry
from .log.port import Away
from .log.store import LogStore

log = logging.getLogger("mqmesh.broker")

LONE = 0.001  # seconds that a write may take in the loop
STALL = 0.1  # seconds after which the next writes are not waited for in the loop
SMALL = 4096  # bytes of a batch that may be written there
NAMED = 10  # queues in a line of the log
TOGETHER = 5  # milliseconds in which sockets may bring more for a batch before it is gathered
RETRY = 1.0  # seconds until a disk that takes nothing is asked again


class Waiting(Protocol):
    """What waits for a commit."""

    def refused(self, text: str) -> None:
        """The commit has failed: what waits says so when it goes."""

    def go(self) -> None:
        """The gate is open."""


class Then:
    """Goes on after a commit. then: gets why that has failed, or None."""

    def __init__(self, then: Callable[[str | None], None]) -> None:
        self._then = then
        self._text: str | None = None

    def refused(self, text: str) -> None:
        """See `Waiting`."""
        self._text = text

    def go(self) -> None:
        """See `Waiting`."""
        self._then(self._text)


class Gate:
    """Acknowledgements wait here for one commit. open: they may go. refused: why what they promise is not kept; None: it is.

    answers: how many of those that wait are answers to clients, and look at nothing that the commit has changed.
    """

    __slots__ = ("answers", "open", "refused", "waiting")

    def __init__(self) -> None:
        self.open = False
        self.refused: str | None = None
        self.waiting: list[Waiting] = []
        self.answers = 0

    def let_go(self, refused: str | None = None) -> None:
        """The commit is done, or has failed."""
        self.open, self.refused = True, refused
        waiting, self.waiting = self.waiting, []
        if refused is not None:
            for one in waiting:
                one.refused(refused)
        for one in waiting:
            one.go()


class Committer:
    """Writes what a store gathers. call: runs a function in the loop, from any thread. now: milliseconds since 1970. done: called after
    each commit in the loop; with an error, if it has failed and the one before had not failed so. noted: called with each batch that is
    on the disk. send: writes what connections were given.
    """

    def __init__(self, store: LogStore, call: Callable[..., Any], now: Callable[[], int], done: Callable[[OSError | None], None]) -> None:
        self.store = store
        self.commits = 0
        self.gate = Gate()
        self.early = Gate()  # of what stands elsewhere: it goes with a commit that succeeds
        self.error: OSError | None = None
        self.noted: Callable[[Batch], None] = lambda _: None
        self.send: Callable[[], None] = lambda: None
        self._call = call
        self._now = now
        self._done = done
        self._busy: tuple[Batch, Gate, Gate] | None = None
        self._closed = self._abandoned = False
        self._failed = ""  # how the last commit has failed, until the store takes messages again
        self._looking = False
        self._awaited = 0  # bytes that are there while more is awaited; 0: it is not
        self._await_until = 0
        self._retry_at = 0.0
        self._lately = 2 * LONE  # seconds that a commit took, on average
        self._work: queue.SimpleQueue[Batch | Carry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="queues", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return self._busy is not None

    def _look(self) -> None:
        """Have the thread read for what is carried, a bit at a time, between batches."""
        carry = self.store.carry
        if carry is not None and not carry.looked and not self._looking:
            self._looking = True
            self._work.put(carry)

    def _looked(self, error: OSError | None) -> None:
        self._looking = False
        if error is not None:
            self.store.carry = None
        if not self._closed:
            self.begin()

    def after(self, waiting: Waiting) -> None:
        """Have something go when everything so far is on the disk; at once, if it is."""
        if self.store.dirty:
            self.gate.waiting.append(waiting)
        elif self._busy is not None:
            self._busy[1].waiting.append(waiting)
        else:
            waiting.go()

    def begin_together(self) -> None:
        """Write what is new: at once if that is little, so that whoever puts alone does not wait; else when sockets bring no more of it."""
        if self._busy is not None or self._awaited:
            return
        size = self._gathering
        if size <= SMALL:
            self.begin()
        else:
            self._await_until = self._now() + TOGETHER
            self._await_more(size)

    @property
    def _gathering(self) -> int:
        """Bytes of payloads that are in no commit yet."""
        return sum([queue.gathering_size for queue in self.store.touched])

    def _await_more(self, size: int) -> None:
        """Go on when each socket that is readable has been read: the loop calls what it is told before it reads, and once more after it."""
        self._awaited = size
        self._call(self._call, self._read)

    def _read(self) -> None:
        before, size = self._awaited, self._gathering
        self._awaited = 0
        if size > before and self._now() < self._await_until:
            self._await_more(size)
        elif not self._closed:
            self.begin()

    def begin(self) -> None:
        """Write what is new, unless a batch is being written: then that follows it."""
        if self.store.quiet:
            return
        self._look()
        if self._busy is not None or (self.error is not None and time.monotonic() < self._retry_at):
            return
        try:
            batch = self.store.gather(self._now())
        except Away as error:
            self.wait(error)
            return
        if batch is None:
            return
        self._busy = (batch, self.gate, self.early)
        self.gate, self.early = Gate(), Gate()
        if batch.size <= SMALL and self._lately < LONE and not batch.new and batch.carry is None:
            self._finish(batch, *self._write(batch))
        else:
            self._work.put(batch)

    def _run(self) -> None:
        while (batch := self._work.get()) is not None:
            if isinstance(batch, Carry):
                self._call(self._looked, _looked_at(batch))
                continue
            error, seconds = self._write(batch)
            self._call(self._finish, batch, error, seconds)
        if self._abandoned:
            self.store.where.close()

    def _write(self, batch: Batch) -> tuple[OSError | None, float]:
        begin = time.perf_counter()
        try:
            self.store.write(batch)
        except OSError as error:
            return error, 0.0
        return None, time.perf_counter() - begin

    def _finish(self, batch: Batch, error: OSError | None, seconds: float) -> None:
        if self._closed:
            return
        assert self._busy is not None
        _, gate, early = self._busy
        if error is None:
            if gate.waiting and gate.answers == len(gate.waiting):
                gate.let_go()
                self.send()
            if seconds < STALL:  # one that took somewhat longer says little of the next ones
                seconds = min(seconds, 2 * LONE)
            self._lately += (seconds - self._lately) / 8
            self.commits += 1
            self.error = None
            self.store.applied(batch, self._now())
            self._busy = None
            self.say_recovered()
            gate.let_go()
            early.let_go()
            self.noted(batch)
        else:
            self._busy = None
            said, self._failed = self._failed, repr(error)
            self.wait(error)
            self.store.failed(batch, error)
            self.early.waiting[:0] = early.waiting
            since, self.gate = self.gate, Gate()
            gate.let_go(self.store.full)
            since.let_go(self.store.full)
            if said == self._failed:  # the tries, one a second, tell nothing new
                error = None
        self._done(error)

    def say_recovered(self) -> None:
        """Say that the store takes messages again, if it did not. A commit of states alone does not show that: it needs no room."""
        if self._failed and self.store.full is None:
            self._failed = ""
            names = sorted(self.store.queues)
            shown = ",".join(map(quoted, names[:NAMED])) + (f",and {len(names) - NAMED} more" if len(names) > NAMED else "")
            log.warning("event=queues-recovered queues=%s text=their store is written again", shown or "-")

    def wait(self, error: OSError) -> None:
        """The store cannot do what it is asked for: it is asked again later."""
        self._retry_at = time.monotonic() + RETRY
        self.error = error

    @property
    def away(self) -> bool:
        """Whether the store could not be reached, and no commit has succeeded since."""
        return isinstance(self.error, Away)

    def abandon(self, text: str) -> None:
        """Write nothing more: what waits is refused, with this text. The store is closed as soon as the thread has nothing to do."""
        self._closed = self._abandoned = True
        self._work.put(None)
        for gate in [*(self._busy[1:] if self._busy is not None else ()), self.gate, self.early]:
            gate.let_go(text)

    def close(self) -> None:
        """Write what is left, and stop. Blocks."""
        self._work.put(None)
        self._thread.join()
        self._closed = True
        if self._busy is not None:  # written, and the loop was not told any more
            return
        batch = self.store.gather(self._now())
        if batch is not None:
            error, _ = self._write(batch)
            if error is None:
                self.store.applied(batch, self._now())
                self.noted(batch)


def _looked_at(carry: Carry) -> OSError | None:
    try:
        carry.look()
    except OSError as error:
        return error
    return None
