"""Messages move between the sessions of one recipient: out of its queue when somebody serves it, out of a session that has ended.

Each is a `SessionDrain` (broker/roaming/drain.py): it takes a session's messages as a connection would, and what it gives on and what the
next session has of it are one batch of the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....mqtt.session import Delivery
from ...roaming.drain import SessionDrain

if TYPE_CHECKING:
    from ...persistence.commits import Persistence
    from ...session.session import Session


class Target:
    """Where a drain's messages go. room: whether they are taken now. give: takes them; it is told whether a client
    may have them already. done: nothing is left."""

    def __init__(self, room: Callable[[], bool], give: Callable[[Delivery, bool], None]) -> None:
        self._room = room
        self._give = give
        self.done = False

    def room(self) -> bool:
        """See `DrainTarget`."""
        return self._room()

    def take(self, delivery: Delivery, first: int) -> None:
        """See `DrainTarget`."""
        self.done = False
        plain = Delivery(delivery.run, delivery.qos, delivery.retain, b"", None, delivery.start, delivery.count)
        self._give(plain, first > 0)

    def flush(self) -> None:
        """Nothing is gathered."""

    def flown(self) -> None:
        """It makes no difference."""

    def empty(self) -> None:
        """See `DrainTarget`."""
        self.done = True


class Mover:
    """One session whose messages move. then: called once when nothing is left."""

    def __init__(
        self,
        persistence: Persistence | None,
        session: Session,
        room: Callable[[], bool],
        give: Callable[[Delivery, bool], None],
        then: Callable[[], None],
    ) -> None:
        self.session = session
        self._target = Target(room, give)
        self._drain = SessionDrain(persistence, session, self._target)
        self._then = then
        self.stopped = False

    def start(self) -> None:
        """Begin."""
        self._drain.start()

    def wake(self) -> None:
        """There may be room."""
        if not self.stopped:
            self._drain.wake()

    def settle(self) -> None:
        """The end of a piece of work: what was given on is not the session's any more. The mover ends when nothing is left."""
        if self.stopped:
            return
        self._drain.settle()
        if self._target.done and self._drain.done:
            self.stop()
            self._then()

    def stop(self) -> None:
        """Move nothing more; the rest stays."""
        if not self.stopped:
            self._drain.settle()
            self.stopped = True
            self._drain.stop()
