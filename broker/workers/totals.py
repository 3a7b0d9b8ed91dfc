"""`$SYS` of a broker with several workers: each keeps its totals in a file of their folder, and adds up what the others have there.

Each is as old as the last issue of `$SYS` there. A worker that ended counts no more: its file goes with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..settings.workers import Worker

SUFFIX = ".totals"
LARGEST = ("loop/stall/maximum", "loop/late/maximum")  # of one process
ALIKE = ("retained messages/count", "shared_subscriptions/count")  # every worker has all of them
WITH_RETAINED = ("store/messages/count", "messages/stored")  # what waits for clients here, and what is retained everywhere
INTERVAL = 10.0  # seconds between two looks where $SYS says nothing

Totals = dict[str, int]


class WorkerTotals:
    """The totals of all workers, and what is wrong with them. own, troubles: give those of this one."""

    def __init__(self, worker: Worker, own: Callable[[], Totals], troubles: Callable[[], list[str]]) -> None:
        self._worker = worker
        self._own = own
        self._troubles = troubles

    def write(self) -> None:
        """Let the others know. Nothing happens if the folder is gone: the broker is about to end."""
        path = file_of(self._worker.folder, self._worker.index)
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps([self._own(), self._troubles()]))
            os.replace(fresh, path)
        except OSError:
            return

    def __call__(self) -> Totals:
        """The totals of the broker: of this worker as of now, of the others as they were said last."""
        return added(self._own(), [totals for _, totals, _ in self._others()])

    def troubles(self) -> list[str]:
        """What is wrong with the broker."""
        return self._troubles() + [f"worker {index}: {text}" for index, _, texts in self._others() for text in texts]

    def _others(self) -> Iterator[tuple[int, Totals, list[str]]]:
        for index in range(self._worker.total):
            if index != self._worker.index:
                try:
                    totals, troubles = json.loads(file_of(self._worker.folder, index).read_text())
                except (OSError, ValueError):  # it has not said anything, or is not there
                    continue
                yield index, totals, troubles


def file_of(folder: Path, index: int) -> Path:
    """Where a worker keeps its totals."""
    return folder / f"{index}{SUFFIX}"


def added(own: Totals, others: list[Totals]) -> Totals:
    """The totals of one broker from those of its workers."""
    found = dict(own)
    for one in others:
        retained = one.get("retained messages/count", 0)
        for name, value in one.items():
            here = found.get(name, 0)
            if name in LARGEST or name in ALIKE:
                found[name] = max(here, value)
            else:
                found[name] = here + value - (retained if name in WITH_RETAINED else 0)
    return found
