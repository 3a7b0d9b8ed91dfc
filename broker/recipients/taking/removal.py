"""A removal takes a recipient's messages out of all its sessions, one session after the other, so that their order holds.

Strategy: a *round* seizes the sessions in the order in which they would be served: those of clients, then the queue, which has what came
last. What comes while a round is under way waits behind what is being taken, and the next round takes it. A wish for more (`want`) is the
next round too: nothing that is under way begins anew, so that messages that keep coming do not hold it up.

Invariants: one seizure at a time; `idle` is told each time when nothing is left to be taken.

What it does not know: why messages are taken, and where they go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...session.session import Session
    from .seizure import Seizure

Make = Callable[["Session", float | None, int, Callable[["Seizure"], None]], "Seizure"]


class Removal:
    """The removal of one recipient's messages.

    holders: its sessions in the order of serving. left: whether messages are in a session that came until a moment (None: any).
    make: a seizure of a session that has not begun, for (session, cutoff, keep, done). idle: called when all is taken, or taking has ended.
    """

    def __init__(
        self,
        holders: Callable[[], list[Session]],
        left: Callable[[Session, float | None], bool],
        make: Make,
        idle: Callable[[], None],
    ) -> None:
        self._holders = holders
        self._left = left
        self._make = make
        self._idle = idle
        self._next: tuple[float | None, int] | None = None  # the next round: cutoff, keep
        self._cutoff: float | None = None  # of the round that is under way
        self._keep = 0
        self._sessions: deque[Session] = deque()  # that the round has not come to
        self._keeper: Session | None = None  # where the message is that the last round has kept
        self._seizure: Seizure | None = None
        self._running = False

    @property
    def busy(self) -> bool:
        """Whether messages are being taken away."""
        return self._seizure is not None or self._running

    def want(self, cutoff: float | None, keep: int) -> None:
        """Take messages that came until `cutoff`, on the loop's clock (None: all), but for the first `keep`."""
        if self._next is not None and self._next[0] is not None and cutoff is not None:
            cutoff = max(cutoff, self._next[0])
        self._next = (cutoff, keep)
        self._run()

    def stop(self) -> None:
        """Take nothing more; what was not taken stays where it is."""
        self._next = self._keeper = None
        self._sessions.clear()
        if self._seizure is not None:
            self._seizure.stop()
            self._seizure = None
            self._idle()

    def keep_anew(self) -> None:
        """What was kept is there no more: the next round chooses."""
        self._keeper = None

    def leave_out(self, session: Session) -> None:
        """A session is the recipient's no more."""
        if session in self._sessions:
            self._sessions.remove(session)
        if session is self._keeper:
            self._keeper = None
        if self._seizure is not None and self._seizure.session is session:
            self._seizure.stop()
            self._seizure = None
            self._run()

    def go_on(self) -> None:
        """There may be room again."""
        if self._seizure is not None and self._seizure.stalled:
            self._seizure.go()

    def _run(self) -> None:
        """Seize one session after the other, until one has to wait or nothing is wanted."""
        if self.busy:
            return
        self._running = True
        while self._seizure is None and (self._sessions or self._next is not None):
            if self._sessions:
                self._seize(self._sessions.popleft())
            elif self._next is not None:
                (self._cutoff, self._keep), self._next = self._next, None
                self._sessions.extend(self._holders())
                if self._keeper is not None and not self._left(self._keeper, None):
                    self._keeper = None
        self._running = False
        if self._seizure is None:
            self._idle()

    def _seize(self, session: Session) -> None:
        if not self._left(session, self._cutoff):
            return
        mine = min(self._keep, 1) if self._keeper in (None, session) else 0
        self._keep -= mine
        if mine:
            self._keeper = session
        self._seizure = self._make(session, self._cutoff, mine, self._seized)
        self._seizure.go()

    def _seized(self, seizure: Seizure) -> None:
        session = seizure.session
        if session.paused and session.eased:
            session.relax()
        if self._seizure is seizure:
            self._seizure = None
            self._run()
