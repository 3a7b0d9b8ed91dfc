"""A broker as an origin of messages: from where on they go to the new site of a client (`Cut`, places.py).

A fence asks for that; its marker is set once this broker knows what the new site wants.

It does not know who takes messages; the roamer does.
"""

from __future__ import annotations

from collections.abc import Callable

from . import wire
from .port import Port
from .wire import Fence, Key


class Fences:
    """One broker's. number: the broker's. marked: called with its own marker for a client, as others are told."""

    def __init__(self, number: int, port: Port, marked: Callable[[int, str, Key], None]) -> None:
        self._number = number
        self._port = port
        self._marked = marked
        self._waiting: list[Fence] = []  # whose interest is not known yet

    def add(self, fence: Fence) -> None:
        """Somebody asks for a marker."""
        if self._port.interest_of(fence.key[1]) >= fence.version:
            self.mark(fence)
        else:
            self._waiting.append(fence)

    def interest_changed(self) -> None:
        """Others' interest has changed: perhaps some wait for that."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for fence in waiting:
                self.add(fence)

    def mark(self, fence: Fence) -> None:
        """From here on this broker's messages go to the broker of the key; tell it and the holders, and act on it here."""
        to = (fence.holders | 1 << fence.key[1]) & self._port.known()
        if to:
            self._port.send_to_brokers(to, wire.MARKER, wire.encode(fence.client, fence.key))
        self._marked(self._number, fence.client, fence.key)
