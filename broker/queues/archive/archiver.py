"""Archives what the retention of queues lets go, before it goes.

A segment of the log may go when its messages are at an end and their retention is over (`log/store.py`). If queues in it have an archive,
it waits for their next turn; then a thread writes their messages into files, and the segment goes when these are on the disk:

    the turn comes        -> a thread collects and writes        -> each file gets its name        -> the segment goes
    killed before         -> done again, over what is there         killed here: written again, over the same name

What cannot be written is tried again; the segment stays that long. At its turns a queue has the segment end that is written to, so that
queues with few messages come to their archive too.

What it does not know: the bytes of the log, Parquet.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ....base.quoting import quoted
from . import files
from .collecting import Job, Row, collect, rows
from .periods import turn_from

if TYPE_CHECKING:
    from ..core.queue import Queue
    from ..log.segments import Segment
    from ..log.store import LogStore

log = logging.getLogger("mqmesh.broker")

Task = tuple[Path, Job]


class Stopped(Exception):
    """The broker ends."""


class Archiver:
    """See the module. folders: of queues that have an archive, by name. site: the broker's name. call: runs a function in the loop, from
    any thread. now: milliseconds since 1970. freed: called in the loop when a segment may go.
    """

    def __init__(
        self, folders: Callable[[str], Path], site: str, call: Callable[..., Any], now: Callable[[], int], freed: Callable[[], None]
    ) -> None:
        self._folders = folders
        self._site = site
        self._call = call
        self._now = now
        self._freed = freed
        self._looked = now()
        self._done: set[tuple[str, int]] = set()
        self._busy: Future[int] | None = None
        self._stopping = threading.Event()
        self._failed = False
        self._thread: ThreadPoolExecutor | None = None

    @property
    def busy(self) -> bool:
        """Whether messages are being archived, or are and have not left the log yet."""
        return self._busy is not None or bool(self._done)

    def look(self, stores: dict[str, LogStore]) -> None:
        """Have segments end whose queues have a turn now."""
        now, before = self._now(), self._looked
        self._looked = now
        for store in stores.values():
            newest = store.newest
            if newest is not None and any(turn_from(one.rules.archive, before + 1) <= now for one in _archived(store, newest)):
                store.end_segment()

    def may_go(self, kind: str, store: LogStore, segment: Segment, due: int) -> bool:
        """Whether a segment may go; if not, it is archived when its turn is there. due: when its retention was over."""
        queues, now = _archived(store, segment), self._now()
        if not queues or (kind, segment.number) in self._done:
            self._done.discard((kind, segment.number))
            return True
        if self._busy is None and all(turn_from(one.rules.archive, due) <= now and store.told(segment, one) for one in queues):
            self._begin(kind, segment.number, [(self._folders(one.name), self._job(store, segment, one)) for one in queues])
        return False

    def _job(self, store: LogStore, segment: Segment, queue: Queue) -> Job:
        return Job(
            store.where,
            (segment.number, segment.size),
            store.after(segment, queue),
            queue.number,
            queue.name,
            dict(queue.names),
            queue.rules.explicit,
        )

    def _begin(self, kind: str, number: int, tasks: list[Task]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "queue-archive")
        self._busy = self._thread.submit(self._write, kind, number, tasks)
        self._busy.add_done_callback(lambda future: None if self._stopping.is_set() else self._call(self._ended, kind, number, future))

    def _ended(self, kind: str, number: int, future: Future[int]) -> None:
        if self._stopping.is_set():
            return
        self._busy = None
        error = future.exception()
        if error is None:
            self._done.add((kind, number))
            self._failed = False
            log.info("event=queue-archived store=%s segment=%s messages=%s", kind.rpartition("@")[2], number, future.result())
            self._freed()
        elif isinstance(error, OSError):
            if not self._failed:
                log.error("event=queue-archive-failed segment=%s text=%s", number, quoted(str(error)))
            self._failed = True
        else:
            log.error("event=queue-archive-failed segment=%s", number, exc_info=error)

    def close(self) -> None:
        """Stop; what is not written whole is written in the next life. Blocks."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    # ---- in the thread

    def _write(self, kind: str, number: int, tasks: list[Task]) -> int:
        return sum(self._write_one(kind, number, folder, job) for folder, job in tasks)

    def _write_one(self, kind: str, number: int, folder: Path, job: Job) -> int:
        pieces = collect(job)
        if not pieces:
            return 0
        first, put = pieces[0].block.first, min(piece.block.at for piece in pieces)
        name = f"{quote(self._site, safe='')}-{kind.partition(':')[0]}-{number:012d}-{first}-{put}"
        return files.write(files.path_of(folder, job.queue, name, put), self._rows(job, pieces))

    def _rows(self, job: Job, pieces: list[Any]) -> Iterator[Row]:
        for piece in pieces:
            if self._stopping.is_set():
                raise Stopped
            yield from rows(job, piece, self._site)


def _archived(store: LogStore, segment: Segment) -> list[Queue]:
    """Queues with messages in a segment that are to be archived."""
    return [one for one in store.queues.values() if one.rules.archive and one.number in segment.marks]
