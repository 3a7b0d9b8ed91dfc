"""Whether a member of a shared subscription keeps up, as a weight that seldom changes.

Every `TICK` of the broker one `look` at each member of a group that has traffic: a member *lags* when it has not acknowledged by now what
it owed at the last look. Weights are few and change slowly, because other brokers learn each change: two looks that lag in a
row make a member BEHIND; it is READY again after a number of looks without lag, which doubles each time, from 2 s to a minute, so
that one that is too slow for its part does not swing. A minute without lag forgets that.

    level    a member that              weight
    READY    keeps up                   16
    BEHIND   lags                       1
    AWAY     has no connection          0; a group weighs 1 at least, as its messages can wait

It does not know groups, brokers or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ports import Receiver, Subscriber

READY = 16
BEHIND = 1
AWAY = 0
LAGS = 2  # looks that lag in a row until a member is BEHIND
PATIENCE = 4  # looks without lag until it is READY again, at first
LONGEST = 120  # and at most; as many make it forget that it ever lagged


class MemberLag:
    """How one member keeps up. level: READY, BEHIND or AWAY. owed: messages that it had not acknowledged at the last look."""

    __slots__ = ("_calm", "_connection", "_in_flight", "_lags", "_patience", "_sent", "level", "owed")

    def __init__(self, session: Subscriber) -> None:
        """session: the session itself, not the gate of a session that moves."""
        self.level = READY if session.connection is not None else AWAY
        self.owed = 0
        self._connection: Receiver | None = None
        self._in_flight = 0
        self._sent = 0
        self._lags = 0
        self._calm = 0
        self._patience = PATIENCE

    def look(self, session: Subscriber) -> int:
        """See how far the member has come since the last look: its level now."""
        connection = session.connection
        in_flight = session.outbound.in_flight
        owed = in_flight + session.queued
        if connection is None:
            self.level = AWAY
        elif connection is not self._connection:
            if self.level == AWAY:
                self.level = BEHIND if session.queued else READY
            self._lags = self._calm = 0
        else:
            acknowledged = self._in_flight + connection.sent - self._sent - in_flight
            self._judge(acknowledged < self.owed or connection.congested)
        self._connection = connection
        self._in_flight = in_flight
        self._sent = connection.sent if connection is not None else 0
        self.owed = owed
        return self.level

    def _judge(self, lags: bool) -> None:
        if lags:
            self._calm = 0
            self._lags += 1
            if self._lags >= LAGS and self.level == READY:
                self.level = BEHIND
        else:
            self._lags = 0
            self._calm += 1
            if self.level == BEHIND and self._calm >= self._patience:
                self.level = READY
                self._calm = 0
                self._patience = min(2 * self._patience, LONGEST)
            elif self._calm >= LONGEST:
                self._patience = PATIENCE

    @property
    def settled(self) -> bool:
        """Whether nothing will change without traffic: no need to look."""
        return self.level == AWAY or (self.level == READY and not self.owed and self._patience == PATIENCE)
