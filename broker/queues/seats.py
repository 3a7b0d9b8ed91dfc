"""Who sits at a queue: a client's subscription to `$queue/NAME`, and how much its connection takes now.

What it does not know: commits, publishers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.queue import Queue
from .core.stock import Member
from .offers import Tap

if TYPE_CHECKING:
    from ..session.session import Session

PRIORITY_PREFETCH = 16  # messages that a plain MQTT client has at most of a queue with priorities: what is sent is not overtaken
TURN = 256  # messages that one member gets before the next one gets some


class Place:
    """A client with its seats. tap: the observer of its session. seats: by the queue's name."""

    __slots__ = ("seats", "session", "tap")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seats: dict[str, Seat] = {}
        self.tap = Tap(session.outbound.observer)
        session.outbound.observer = self.tap

    def leave(self) -> None:
        """The session is a member of nothing any more."""
        self.session.outbound.observer = self.tap.inner


class Seat:
    """A client at one queue. suffix: its subscription identifier, encoded. qos: 0: what is sent is done."""

    __slots__ = ("member", "place", "qos", "queue", "suffix")

    def __init__(self, place: Place, queue: Queue, member: Member, qos: int, suffix: bytes) -> None:
        self.place = place
        self.queue = queue
        self.member = member
        self.qos = qos
        self.suffix = suffix

    def room(self) -> int:
        """How many messages may be sent to the client now."""
        session = self.place.session
        connection = session.connection
        if connection is None or connection.closing or connection.congested:
            return 0
        if not self.qos:
            return TURN
        outbound = session.outbound
        if outbound.bytes >= session.window_bytes and outbound.in_flight:
            return 0
        prefetch = self.queue.rules.prefetch
        if self.queue.mixed:
            prefetch = min(prefetch, PRIORITY_PREFETCH)
        return min(outbound.room, prefetch - self.member.held, TURN)
