"""Group commit: the event loop changes the open batch, one thread commits, and neither waits for the other.

    loop:    put_run, put_delivery, ... -> ticket()            -> on_commit(ticket): acknowledgements may leave
    thread:                               commit ... commit ...

The loop alone touches the open batch (see `coalescer.py`), so a change takes no lock. `ticket()` ends a group of changes that
belong together; if the thread is idle the batch is handed to it at once, else it grows until the thread is done, and then is
handed over by the loop. So one slow commit gathers what comes meanwhile into the next: no timer, no bound on the rate. A batch for which
nobody waits, or which will perhaps be empty in a moment, may stay open for a while (`defer`).

A commit that fails is tried again, with what came since merged into it, after a pause that doubles up to its bound. Nothing is
reported committed that is not, and the order holds, because there is one batch under way and one that is open. What is
acknowledged by its recipients meanwhile leaves the batch, so that a broker whose disk is full goes on serving those who listen.

Invariants: callbacks run in the loop, never inside a method of the writer but `on_settled`; `bytes_pending` is what a crash
would lose and what the caller bounds; the thread knows nothing but batches.

What it does not know: sockets, sessions, what is done with a ticket.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from ..base.backoff import Backoff
from .base import Kind, Store, StoreError, check_counts
from .coalescer import Coalescer
from .records import Batch, Counts, StoredDelivery

log = logging.getLogger(__name__)

IDLE = 1.0  # seconds without a commit after which the counts are written

CallSoon = Callable[[Callable[[], None]], object]
_Result = tuple[Batch | None, StoreError | None]  # a commit's end; (None, None) is the end of a pause


def _ignore(_: object) -> None:
    pass


class Writer:
    """One thread that commits to a store what one event loop changes.

    store: not yet open; the writer opens and closes it. call_soon: runs a function in the loop, callable from any thread:
    `loop.call_soon_threadsafe`. on_commit(ticket): everything up to this ticket is kept. on_error(error): commits fail since
    now, once for each kind in a row; `error` is None again when they succeed. on_settled(run): see `Coalescer`.
    linger: seconds to wait before a commit for changes that may cancel it; 0 does not wait. pause, pause_limit: seconds
    before a failed commit is tried again, the first time and at most.
    held: while it is set no batch is handed to the thread, because changes that belong together are not all there yet.
    """

    def __init__(
        self,
        store: Store,
        call_soon: CallSoon,
        on_commit: Callable[[int], None],
        on_error: Callable[[StoreError], None],
        on_settled: Callable[[int], None] = _ignore,
        linger: float = 0.0,
        pause: float = 0.05,
        pause_limit: float = 5.0,
    ) -> None:
        self.store = store
        self.error: StoreError | None = None
        self.committed = 0
        self.held = False
        self._call_soon = call_soon
        self._on_commit = on_commit
        self._on_error = on_error
        self._linger = linger
        self._backoff = Backoff(pause, pause_limit)
        self._busy = False  # the thread has a batch or a pause
        self._lingered = False
        self._deferred = False  # the open batch is not handed over
        self._closing = False
        self._jobs: SimpleQueue[Batch | float | None] = SimpleQueue()
        self._results: SimpleQueue[_Result] = SimpleQueue()
        self._hurry = threading.Event()
        self._uncounted: Counts | None = None  # of the thread: counts that the store has not
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._coalescer = coalescer = Coalescer(on_settled)
        # The changes, without a call in between.
        self.put_run = coalescer.put_run
        self.put_delivery = coalescer.put_delivery
        self.delete_delivery = coalescer.delete_delivery
        self.delete_recipient = coalescer.delete_recipient
        self.put_value = coalescer.put_value
        self.note_value = coalescer.note_value
        self.delete_value = coalescer.delete_value
        self.holds = coalescer.holds
        self.has = coalescer.has

    def start(self, seen: Callable[[Iterable[StoredDelivery]], Iterable[StoredDelivery]] | None = None) -> None:
        """Open the store, learn what it holds, start the thread. Blocks; raises StoreError.

        seen: all deliveries pass through it, so that the caller learns them in the same pass.
        """
        self.store.open()
        try:
            deliveries: Iterable[StoredDelivery] = self.store.deliveries()
            coalescer = self._coalescer
            coalescer.load(deliveries if seen is None else seen(deliveries), self.store.run_sizes(), self.store.value_sizes())
            check_counts(self.store, Counts(coalescer.runs, coalescer.deliveries, coalescer.values))
        except StoreError:
            self.store.close()
            raise
        self._thread.start()

    @property
    def bytes_pending(self) -> int:
        """The weight of all changes that are not committed yet."""
        sealed = self._coalescer.sealed
        return self._coalescer.open.size + (sealed.size if sealed is not None else 0)

    @property
    def stored(self) -> int:
        """About how many bytes the store holds once all changes are committed: a sum that is kept, not counted."""
        return self._coalescer.stored

    @property
    def number(self) -> int:
        """The ticket of what is changed now."""
        return self._coalescer.open.number

    @property
    def open_size(self) -> int:
        """The weight of the changes since the last batch was handed to the thread; 0 exactly when there are none."""
        return self._coalescer.open.size

    @property
    def idle(self) -> bool:
        """Whether the open batch is empty or deferred."""
        return self._deferred or not self._coalescer.open.size

    def ticket(self) -> int:
        """End a group of changes: they are committed together. What was changed so far is kept once `committed` reaches the result.

        To be called at the end of each chunk of work, whoever needs the number; costs next to nothing without changes.
        """
        batch = self._coalescer.open
        if not batch.size:
            return batch.number - 1
        if not (self._busy or self.held or self._deferred):
            self._hand_over()
        return batch.number

    @property
    def deferred(self) -> bool:
        """Whether the open batch is not handed over."""
        return self._deferred

    def defer(self) -> None:
        """Do not hand over the open batch before `hurry` is called; the caller sees to that."""
        self._deferred = True

    def hurry(self) -> None:
        """The open batch may be handed over again."""
        self._deferred = False

    def close(self, timeout: float) -> bool:
        """Commit what is pending, stop the thread, close the store. Blocks, and calls back as usual meanwhile.

        timeout: seconds. False: something was left; the store is not closed if it does not answer even a second later.
        """
        self._closing = True
        end = time.monotonic() + timeout
        if self._thread.is_alive():
            self._flush(end)
            self._hurry.set()
            self._jobs.put(None)
            self._thread.join(max(1.0, end - time.monotonic()))
            if self._thread.is_alive():
                return False
        self.store.close()
        return not self.bytes_pending

    # The loop's side.

    def _hand_over(self) -> None:
        self._busy, self._deferred = True, False
        if self._linger and not self._lingered and not self._closing:
            self._lingered = True
            self._jobs.put(self._linger)
            return
        self._lingered = False
        self._jobs.put(self._coalescer.seal())

    def _collect(self) -> None:
        """Take what the thread has done, in the loop."""
        while True:
            try:
                batch, error = self._results.get_nowait()
            except Empty:
                return
            self._take(batch, error)

    def _take(self, batch: Batch | None, error: StoreError | None) -> None:
        coalescer = self._coalescer
        if error is not None:
            coalescer.failed()
            self._report(error)
            self._jobs.put(self._backoff.next())
            return
        self._busy = False
        if batch is not None:
            self.error = None
            self._backoff.reset()
            committed = coalescer.committed()
        else:
            committed = coalescer.skip_empty()
        if not (self.idle or self.held):
            self._hand_over()
        else:
            self._lingered = False
        if committed > self.committed:
            self.committed = committed
            self._on_commit(committed)

    def _report(self, error: StoreError) -> None:
        known, self.error = self.error, error
        if known is None or known.kind is not error.kind:
            self._on_error(error)

    def _flush(self, end: float) -> None:
        self._hurry.set()
        if not self._busy and self._coalescer.open.size:
            self._hand_over()
        while self._busy:
            try:
                self._take(*self._results.get(timeout=max(0.0, end - time.monotonic())))
            except Empty:
                return

    # The thread's side.

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            if isinstance(job, float):
                self._hurry.wait(job)
                self._hurry.clear()
                self._results.put((None, None))
            else:
                self._results.put((job, self._commit(job)))
            with contextlib.suppress(RuntimeError):  # the loop is closed: `close` takes the results
                self._call_soon(self._collect)

    def _next_job(self) -> Batch | float | None:
        """Wait for work; after a while without any, and at the end, the store gets the counts that small batches leave out."""
        counts = self._uncounted
        if counts is not None:
            with contextlib.suppress(Empty):
                job = self._jobs.get(timeout=IDLE)
                if job is not None:
                    return job
                self._jobs.put(None)
            self._uncounted = None
            last = Batch()
            last.counts = counts
            with contextlib.suppress(StoreError):
                self.store.commit(last)
        return self._jobs.get()

    def _commit(self, batch: Batch) -> StoreError | None:
        try:
            self.store.commit(batch)
        except StoreError as error:
            self._uncounted = None
            return error
        except Exception as error:  # a fault of ours: the data stays, and the same goes for it as for a full disk
            log.exception("event=store-commit-failed commit=%d", batch.number)
            self._uncounted = None
            return StoreError(Kind.OTHER, type(self.store).__name__, f"{type(error).__name__}: {error}")
        self._uncounted = batch.counts if self.store.counted and not batch.worth_counting else None
        return None
