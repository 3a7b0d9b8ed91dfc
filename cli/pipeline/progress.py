"""A progress bar on stderr: what is being done, and how much of it is left. In a file or pipe: one line for each step."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..output import note


class Bar:
    """Use it with `with`; `show` may be called as often as one likes."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._drawn = sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self._console, transient=True
        )
        self._task = self._progress.add_task("", total=None, visible=False)
        self._last = ""

    def show(self, what: str, done: int, of: int) -> None:
        """what: the step. done, of: how much of it, or of all steps."""
        if self._drawn:
            self._progress.update(self._task, description=what, completed=done, total=of, visible=True)
        elif what != self._last:
            note(what)
        self._last = what

    def __enter__(self) -> Bar:
        if self._drawn:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._drawn:
            self._progress.stop()
