"""Takes a lease and renews it, in a thread, and says in the loop what has become of it (`postgresql_lease.py`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

log = logging.getLogger("mqmesh.broker")

POLL = 0.25  # seconds between questions for a lease that another program has
RENEWALS = 5  # in the time of a lease


class Lease(Protocol):
    """See `postgresql_lease.py`."""

    token: int
    seconds: float
    offset: float | None

    def take(self) -> bool:
        """Take it, unless another program has it."""

    def renew(self) -> bool:
        """Whether no other program has taken it."""

    def close(self) -> None:
        """Give it up."""


class Keeper:
    """Takes and renews one lease in a thread. call: runs a function in the loop. gained, lost: are told there; renewed: of a lease that
    was over by this broker's clock, and that nobody has taken. name: of the thread, and in the log. has: it was taken just now.
    """

    def __init__(
        self,
        lease: Lease,
        call: Callable[..., Any],
        gained: Callable[[int], None],
        lost: Callable[[], None],
        renewed: Callable[[], None],
        name: str = "queues-lease",
        has: bool = False,
    ) -> None:
        self.lease = lease
        self._name = name
        self._call = call
        self._gained = gained
        self._lost = lost
        self._renewed = renewed
        self._has = has
        self._until = time.monotonic() + lease.seconds if has else 0.0
        self._error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def valid(self) -> bool:
        """Whether no other program can have the lease."""
        return time.monotonic() < self._until

    def outdone(self) -> None:
        """Another program has the lease: it is asked for anew."""
        self._has, self._until = False, 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
                if self._error:
                    self._error = ""
                    log.warning("event=%s-back text=it can be asked for again", self._name)
            except OSError as error:
                if not self._error:
                    log.warning("event=%s text=%s", self._name, error.strerror or error)
                self._error = str(error)
            self._stop.wait(self.lease.seconds / RENEWALS if self._has and not self._error else POLL)
        self.lease.close()

    def _look(self) -> None:
        begin = time.monotonic()
        if not self._has:
            self._has = self.lease.take()
            if self._has:
                self._until = begin + self.lease.seconds
                self._call(self._gained, self.lease.token)
        elif self.lease.renew():
            was, self._until = self.valid(), begin + self.lease.seconds
            if not was:
                self._call(self._renewed)
        else:
            self._has, self._until = False, 0.0
            self._call(self._lost)

    def close(self) -> None:
        """Give the lease up. Blocks."""
        self._stop.set()
        self._thread.join()
