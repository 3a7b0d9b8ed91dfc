"""A session's own thread. It runs all message listeners and completion listeners, one at a time."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("mqmesh.client")

Job = Callable[[], None]


class Dispatcher:
    """Runs jobs one at a time. Its thread starts when it is first needed, and ends with `end`.

    cond: the session's condition.
    find: called with the condition held. Returns the next job, or the seconds to wait for one (None: until the condition is notified).
    """

    def __init__(self, cond: threading.Condition, find: Callable[[], Job | float | None], name: str) -> None:
        self._cond, self._find, self._name = cond, find, name
        self._posted: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._ending = False
        self.busy = False

    @property
    def current(self) -> bool:
        """Whether the caller is this thread, which means a listener."""
        return threading.current_thread() is self._thread

    @property
    def idle(self) -> bool:
        return not self.busy and not self._posted

    def start(self) -> None:
        """Start the thread, unless it runs. With the condition held."""
        if self._thread is None and not self._ending:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def post(self, job: Job) -> None:
        """Run a job before the next message. Does not wait for it."""
        with self._cond:
            self._posted.append(job)
            self.start()
            self._cond.notify_all()

    def end(self) -> None:
        """End after the posted jobs. Waits for the end unless called from the thread."""
        with self._cond:
            self._ending = True
            self._cond.notify_all()
        if self._thread is not None and not self.current:
            self._thread.join()

    def _next(self) -> Job | None:
        while True:
            if self._posted:
                return self._posted.popleft()
            if self._ending:
                return None
            found = self._find()
            if callable(found):
                return found
            self._cond.wait(found)

    def _run(self) -> None:
        while True:
            with self._cond:
                self.busy = False
                self._cond.notify_all()
                job = self._next()
                if job is None:
                    return
                self.busy = True
            try:
                job()
            except BaseException:  # also SystemExit: this thread must continue
                log.exception("event=listener_failed thread=%s", self._name)
