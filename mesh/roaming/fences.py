"""A broker as an origin of messages: from where on they go to the new site of a client (`Cut`, places.py).

A fence asks for that; its marker is set once this broker knows what the new site wants.

It does not know who takes messages; the roamer does.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from ..wire.control import Position
from . import wire
from .port import Port
from .wire import Fence, Key


class Fences:
    """One broker's. number: the broker's. marked: called with its own marker for a client, as others are told."""

    def __init__(self, number: int, port: Port, marked: Callable[[int, str, Key], None]) -> None:
        self._number = number
        self._port = port
        self._marked = marked
        self._waiting: dict[int, list[tuple[Position, int, Fence]]] = {}  # broker -> heap of those whose interest is not known yet
        self._numbers = itertools.count()  # of equal versions the first comes first

    def add(self, fence: Fence) -> None:
        """Somebody asks for a marker."""
        broker = fence.key[1]
        if self._port.interest_of(broker) >= fence.version:
            self.mark(fence)
        else:
            heapq.heappush(self._waiting.setdefault(broker, []), (fence.version, next(self._numbers), fence))

    def interest_changed(self) -> None:
        """Others' interest has changed: perhaps some wait for that."""
        for broker, waiting in list(self._waiting.items()):
            interest = self._port.interest_of(broker)
            while waiting and interest >= waiting[0][0]:
                self.mark(heapq.heappop(waiting)[2])
            if not waiting:
                del self._waiting[broker]

    def mark(self, fence: Fence) -> None:
        """From here on this broker's messages go to the broker of the key; tell it and the holders, and act on it here."""
        to = (fence.holders | 1 << fence.key[1]) & self._port.known()
        if to:
            self._port.send_to_brokers(to, wire.MARKER, wire.encode(fence.client, fence.key))
        self._marked(self._number, fence.client, fence.key)
