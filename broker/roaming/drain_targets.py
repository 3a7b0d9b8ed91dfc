"""Where a session's messages go when it is emptied for a client that roams: to another broker, or behind those of another session.

`drain.py` asks a target for room, gives it what fits, and says when what was in flight, and when everything, has gone. It does not know
when a session has to leave (`shell.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...mesh.roaming.places import Leave
from ...mesh.wire.control import Position
from ...mqtt.session import Delivery
from .session_codec import PIECE, encode_items, items

if TYPE_CHECKING:
    from ..session.session import Session
    from .shell import Roaming

WINDOW = 2 * 2**20  # bytes of one session on their way to another broker


class RemoteTarget:
    """The target of a session that leaves: posts its messages to the new broker, no more than `WINDOW` at once."""

    def __init__(self, roaming: Roaming, leave: Leave) -> None:
        self._roaming = roaming
        self._leave = leave
        self._under_way: deque[tuple[Position, int]] = deque()
        self._bytes = 0
        self._items: list[list[Any]] = []  # of one kind: in flight, or waiting
        self._flights = False
        self._size = 0

    def room(self) -> bool:
        node, to = self._roaming.node, self._leave.to
        settled = node.settled(to)
        while self._under_way and self._under_way[0][0] <= settled:
            self._bytes -= self._under_way.popleft()[1]
        return self._bytes + self._size < WINDOW and bool(node.live() >> to & 1)

    def take(self, delivery: Delivery, first: int) -> None:
        for item, size in items(delivery, first, self._roaming.context.now):
            if self._size + size > PIECE or self._flights is not (first > 0):
                self.flush()
            self._flights = first > 0
            self._items.append(item)
            self._size += size

    def flush(self) -> None:
        if self._items:
            found, self._items, self._size = self._items, [], 0
            body = encode_items(found)
            self._roaming.roamer.leaves.send(self._leave, self._flights, body)
            self._under_way.append((self._roaming.node.position(), len(body)))
            self._bytes += len(body)

    def flown(self) -> None:
        self.flush()
        self._roaming.roamer.leaves.flights_sent(self._leave)

    def empty(self) -> None:
        self._roaming.roamer.leaves.progress(self._leave)


class LocalTarget:
    """The target of what was put aside: behind what the session has. then: called once when nothing waits."""

    def __init__(self, roaming: Roaming, session: Session, then: Callable[[], None]) -> None:
        self._roaming = roaming
        self._session = session
        self._then: Callable[[], None] | None = then

    def room(self) -> bool:
        return True

    def take(self, delivery: Delivery, first: int) -> None:
        plain = Delivery(delivery.run, delivery.qos, delivery.retain, delivery.suffix, None, delivery.start, delivery.count)
        self._roaming.give(self._session, plain)

    def flush(self) -> None:
        pass

    def flown(self) -> None:
        pass

    def empty(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
