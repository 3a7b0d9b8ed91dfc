"""A session's own thread: it runs message listeners and completion listeners, one at a time, and nothing else does."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("mqmesh.client")

Job = Callable[[], None]


class Dispatcher:
    """cond: the session's condition. find: called with it held; returns what to do next, or the seconds to wait for it (None: for ever).

    The thread starts when it is first needed and ends with `end`.
    """

    def __init__(self, cond: threading.Condition, find: Callable[[], Job | float | None], name: str) -> None:
        self._cond, self._find, self._name = cond, find, name
        self._posted: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._ending = False
        self.busy = False

    @property
    def current(self) -> bool:
        """Whether the caller runs on this thread: inside a listener."""
        return threading.current_thread() is self._thread

    @property
    def idle(self) -> bool:
        return not self.busy and not self._posted

    def start(self) -> None:
        """With the condition held."""
        if self._thread is None and not self._ending:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def post(self, job: Job) -> None:
        """Have `job` done before any further message. Without waiting."""
        with self._cond:
            self._posted.append(job)
            self.start()
            self._cond.notify_all()

    def end(self) -> None:
        """What was posted is still done; waits for it unless called from the thread."""
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
            except BaseException:  # also SystemExit: this thread must say that it is free again
                log.exception("event=listener_failed thread=%s", self._name)
