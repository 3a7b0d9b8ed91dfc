"""The thread that writes the journal: batches to the open segment, closed segments to their place, counters, names.

Strategy. Every `batch_seconds` the thread takes what the loop has noted, makes a table of it and appends that to the open segment, a
local file. A segment that is large or old enough becomes Parquet at its place. A place that cannot be reached keeps nothing from being
noted: closed segments and names wait in the open folder, not in memory, and are tried again. What cannot even be written there is lost,
counted, and said by an event when it can.

Order in a batch: new names, then the events that use them, so that a crash leaves no event without its names.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....store.folder import words
from ..kinds import Kind
from ..layout import OPEN_FOLDER, counts_path, date_of, names_path
from ..place import Place
from ..reading import whole_lines
from ..recorder import Recorder
from ..schema import COUNTS, NAMES
from ..settings import JournalSettings
from ..tally import Key, rows
from .columns import Columns, Fact
from .housekeeping import Housekeeping
from .queue_states import Queued
from .recovery import Recovered, close_life, mark_life, recover
from .segment import OpenSegment, parquet, store_events, table_of, warm_up
from .weights import rows_of

log = logging.getLogger("mqmesh.journal")

CARE = 600.0  # seconds between two looks at what is old or small
RETRY = 5.0  # seconds until a place that could not be written to is tried again
TAKEN = 20_000  # rows of one table, and bytes that its events hold, after which it takes no more events
TAKEN_BYTES = 4 * 2**20
NAMES_BYTES = 4 * 2**20  # of names in one file, beside the last one


class Writer:
    """Writes one broker's journal.

    written: events on the disk. error: why something could not be written last; None: all is well.
    """

    def __init__(self, settings: JournalSettings, recorder: Recorder, columns: Columns, place: Place, folder: Path) -> None:
        """folder: of open segments, this broker's."""
        self.settings = settings
        self.recorder = recorder
        self.columns = columns
        self.place = place
        self.folder = folder
        self.written = 0
        self.closed = 0
        self.error: str | None = None
        self.counts: deque[tuple[int, dict[Key, int]]] = deque()  # minute, its counters; from the loop
        self._said = 0  # events that did not fit, as far as an event has said it
        self._why: str | None = None  # what went wrong since
        self._open: OpenSegment | None = None
        self._unwritten: tuple[Any, int] | None = None  # what `_taken` gave, and the disk has not taken
        self._waiting: list[OpenSegment] = []  # closed, and not at their place yet
        self._rows: list[tuple[int, ...]] = []  # of counters, of this segment
        self._files = 0  # of names
        self._retry_at = 0.0
        self._care_at = 0.0
        self._counts_at = time.monotonic()  # when counters were last put in their place
        self._wake = threading.Event()
        self._begun = self._ended = 0  # turns of writing what is noted
        self._turns = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._care = Housekeeping(place, recorder.number, settings)

    # Life

    def start(self) -> None:
        """Put what an earlier life left in its place, then begin. Raises OSError when the folder cannot be written to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        warm_up()
        for life in recover(self.place, self.folder, self.recorder.number):
            self._gap(life)
        mark_life(self.folder, self.recorder.epoch)
        self.recorder.wake = self._wake.set
        self._thread = threading.Thread(target=self._run, name="mqmesh-journal", daemon=True)
        self._thread.start()

    def _gap(self, life: Recovered) -> None:
        detail: dict[str, Any] = {"why": "crash", "epoch": life.epoch, "after": life.last}
        log.warning("event=journal-gap epoch=%d after=%d recovered=%d", life.epoch, life.last, life.events)
        self.recorder.event(Kind.GAP, value=-1, detail=detail, reason="crash")

    def settle(self, seconds: float) -> bool:
        """Wait until what is noted now is written: whether it is, after so many seconds at most. For any thread but this one's own."""
        with self._turns:
            wanted = self._begun + 1  # a turn that has begun may have taken its events already
            self._wake.set()
            return self._turns.wait_for(lambda: self._ended >= wanted, seconds)

    def stop(self) -> None:
        """Write what is noted, close the segment, and end."""
        if self._thread is None:
            return
        self._stop = True
        self._wake.set()
        self._thread.join(30)
        self._thread = None

    def _run(self) -> None:
        while True:
            self._wake.wait(self.settings.batch_seconds)
            self._wake.clear()
            stopping = self._stop
            try:
                self._step(stopping)
            except Exception as error:  # the journal never ends a broker
                self._failed(error)
                log.exception("event=journal-error")
            if stopping:
                return

    def _step(self, stopping: bool) -> None:
        self._write_noted()
        self._take_counts()
        now = time.monotonic()
        opened = self._open
        aged = opened is not None and now - opened.begun >= self.settings.segment_seconds
        if stopping or aged or (opened is not None and opened.size >= self.settings.segment_bytes):
            self._close()
        if stopping or ((self._waiting or self._due_counts(now)) and now >= self._retry_at):
            self._put(now, stopping)
        if now >= self._care_at and not stopping:
            self._care_at = now + CARE
            self._care.look(time.time())
        if stopping and not self._waiting and self._unwritten is None:
            close_life(self.folder, self.recorder.epoch)

    # Events

    def _write_noted(self) -> None:
        with self._turns:
            self._begun += 1
        try:
            while self._append(*self._taken()):
                pass
        finally:
            with self._turns:
                self._ended = self._begun
                self._turns.notify_all()

    def _taken(self) -> tuple[Any, int]:
        """A table of what was noted (None: nothing was), and how many events are missing before it, which it says."""
        if self._unwritten is not None:
            return self._unwritten
        items = self._items()
        missing = self.recorder.lost - self._said
        if missing:
            detail = {"why": self._why or "the disk is slower than the traffic"}
            items.append(Fact(Kind.GAP, time.time() - self.recorder.offset, {"value": missing, "detail": detail, "reason": "lost"}))
        if not items:
            return None, 0
        self.columns.epoch = self.recorder.epoch
        table = self.columns.batch(items, self.recorder.offset)
        self.recorder.remembered = self.columns.names.size
        return table, missing

    def _items(self) -> list[Any]:
        """The next events that wait, no more than make one table."""
        recorder = self.recorder
        noted, weights = recorder.noted, recorder.weights
        items: list[Any] = []
        rows = size = 0
        while noted and rows < TAKEN and size < TAKEN_BYTES:
            one = noted.popleft()
            items.append(one)
            rows += rows_of(one)
            size += weights.popleft()
        recorder.events_taken += len(items)
        recorder.bytes_taken += size
        recorder.ranges_written += sum([one.ranges for one in items if isinstance(one, Queued)])
        return items

    def _append(self, table: Any, missing: int) -> bool:
        """Write a table. False: there is none, or it could not be written."""
        if table is None:
            return False
        names = self.columns.names
        try:
            if names.fresh:
                self._write_lines("names", names.fresh)
                names.fresh = []
            if not table.num_rows:
                self._unwritten = None
                return True
            if self._open is None:
                self._open = OpenSegment(self.folder, self.recorder.epoch, table.column("event")[0].as_py(), time.monotonic())
            self._open.append(table)
        except OSError as error:
            self._failed(error)
            self._unwritten = table, missing
            self._close()
            return False  # it is tried again; what comes meanwhile waits, up to its bound
        self._unwritten = None
        self._said += missing
        if self._said == self.recorder.lost:
            self._why = None
        self._well()
        self.written += table.num_rows
        return True

    def _write_lines(self, what: str, lines: list[Any]) -> None:
        with self._lines(what).open("ab", buffering=0) as file:
            data, size = memoryview("".join(json.dumps(line) + "\n" for line in lines).encode()), file.tell()
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def _lines(self, what: str) -> Path:
        """The file of names, or of counters, that stand in no file of their own yet."""
        return self.folder / f"{self.recorder.epoch}-{what}.jsonl"

    def _failed(self, error: BaseException) -> None:
        text = words(error, self.folder) if isinstance(error, OSError) else str(error)
        if self.error is None:
            log.error("event=journal-error text=%s", text)
        self.error = self._why = text

    def _well(self) -> None:
        """Something could be written."""
        if self.error is not None:
            log.warning("event=journal-written-again lost=%d", self.recorder.lost)
        self.error = None

    # Counters

    def _take_counts(self) -> None:
        found: list[tuple[int, ...]] = []
        while self.counts:
            minute, counts = self.counts.popleft()
            found += rows(counts, minute, self.recorder.number, self.columns.account, self.columns.names.id)
        if not found:
            return
        self._rows += found
        try:
            if self.columns.names.fresh:
                self._write_lines("names", self.columns.names.fresh)
                self.columns.names.fresh = []
            self._write_lines("counts", [list(row) for row in found])
        except OSError as error:
            self._failed(error)

    def _due_counts(self, now: float) -> bool:
        """Whether counters wait while no segment is open that would take them along."""
        return bool(self._rows) and self._open is None and now - self._counts_at >= self.settings.segment_seconds

    # Closing

    def _close(self) -> None:
        closed, self._open = self._open, None
        if closed is not None and closed.rows:
            closed.close()
            self._waiting.append(closed)
        elif closed is not None:
            closed.remove()

    def _put(self, now: float, last: bool) -> None:
        """Put closed segments, counters and names in their place; what fails is tried again."""
        try:
            while self._waiting:
                segment = self._waiting[0]
                self._put_names()
                store_events(self.place, segment.table())
                self.closed += 1
                segment.remove()
                self._waiting.pop(0)
            self._put_names()
            self._put_counts()
            self._counts_at = now
        except OSError as error:
            self._failed(error)
            self._retry_at = now + RETRY
            return
        with suppress(OSError):
            self._lines("counts").unlink(missing_ok=True)  # it holds what was just put in its place, and nothing else

    def _put_names(self) -> None:
        """Put names in their place, as many as make a file of them at a time."""
        path = self._lines("names")
        if not path.exists():
            return
        with path.open("rb") as file:
            while lines := file.readlines(NAMES_BYTES):
                table = table_of([tuple(one) for one in whole_lines(lines)], NAMES)
                self._files += 1
                self.place.write(names_path(self.recorder.number, self.recorder.epoch, self._files), parquet(table))
        path.unlink()

    def _put_counts(self) -> None:
        by_date: dict[str, list[tuple[int, ...]]] = {}
        for row in self._rows:
            by_date.setdefault(date_of(row[0] * 60_000_000), []).append(row)
        for date, found in by_date.items():
            first, last = min(row[0] for row in found), max(row[0] for row in found)
            path = counts_path(date, self.recorder.number, self.recorder.epoch, first, last)
            self.place.write(path, parquet(table_of(found, COUNTS)))
        self._rows = []


def folder_of(settings: JournalSettings, place: Place, number: int) -> Path:
    """The folder of one broker's open segments."""
    root = settings.spool if settings.spool is not None else Path(place.root)
    return root / OPEN_FOLDER / f"broker={number}"
