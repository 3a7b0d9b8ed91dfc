"""Sessions on their way to other brokers: what is sent of each, and when the new broker is told that it has all.

A session that leaves goes on taking messages until every origin has set its marker (`Cut`, places.py). So it is told `end` when
all that is before the markers of the members in reach is sent, and `left` when that holds for all members; then the leave is over.

It does not know why a session leaves; the roamer does.
"""

from __future__ import annotations

from . import wire
from .memory import Memory
from .names import Leaving
from .places import Leave, encode_leave
from .port import Port
from .wire import Key


class Leaves:
    """One broker's, by client."""

    def __init__(self, port: Port, memory: Memory) -> None:
        self._port = port
        self._memory = memory
        self.of = Leaving()

    def begin(self, leave: Leave, sources: tuple[Key, ...], passing: bool, state: bytes) -> None:
        """Send a session. sources: more of it comes from these. passing: others may still send for it. state: its description."""
        client, key = leave.client, leave.key
        self.of.add(leave)
        self._port.send_to_brokers(1 << key[1], wire.SESSION, wire.encode(client, key, leave.older, sources, passing, state))
        self._port.save_leave(leave, encode_leave(leave))
        self._port.gate(leave)
        self._port.begin(leave)
        self.progress(leave)

    def restore(self, leave: Leave) -> None:
        """It was under way in an earlier life."""
        self.of.add(leave)
        self._port.gate(leave)
        self._port.begin(leave)

    def flights_sent(self, leave: Leave) -> None:
        """The pieces with what was in flight are posted."""
        self._port.send_to_brokers(1 << leave.to, wire.READY, wire.encode(leave.client, leave.key, leave.older))

    def send(self, leave: Leave, flights: bool, items: bytes) -> None:
        """Post a piece of what waits; the caller deletes it in the same batch."""
        self._port.send_to_brokers(1 << leave.to, wire.PIECE, wire.encode(leave.client, leave.key, leave.older, flights, items))

    def progress(self, leave: Leave) -> None:
        """Say `end` when all that is before the markers of members in reach is sent, `left` when that holds for all members."""
        if leave not in self.of.get(leave.client, ()) or not self._port.sent(leave):
            return
        live = self._port.live()
        if not live >> leave.to & 1:
            return  # else a broker that has just started would take few for all
        if not leave.ended and leave.cut.passed(live | 1 << self._memory.number):
            leave.ended = True
            self._port.send_to_brokers(1 << leave.to, wire.END, wire.encode(leave.client, leave.key, leave.older))
            self._port.save_leave(leave, encode_leave(leave))
        if leave.ended and leave.cut.passed(self._memory.everybody()):
            self._port.send_to_brokers(1 << leave.to, wire.LEFT, wire.encode(leave.client, leave.key, leave.older))
            self._drop(leave)

    def progress_all(self) -> None:
        """Members have come or gone."""
        for leaves in list(self.of.values()):
            for leave in list(leaves):
                self.progress(leave)

    def marker(self, origin: int, client: str, key: Key) -> None:
        """An origin has set a marker for a client."""
        for leave in list(self.of.get(client, ())):
            if leave.cut.marker(origin, key):
                self._port.save_leave(leave, encode_leave(leave))
                self.progress(leave)

    def declined(self, client: str, source: Key) -> None:
        """A session is not wanted any more where it goes: a clean start has discarded it."""
        for leave in list(self.of.get(client, ())):
            if leave.older == source:
                self._give_up(leave)

    def discarded(self, client: str, floor: Key) -> None:
        """A clean start has discarded sessions, and the places where they go to."""
        for leave in list(self.of.get(client, ())):
            if leave.key < floor:
                self._give_up(leave)

    def _give_up(self, leave: Leave) -> None:
        self._port.send_to_brokers(1 << leave.to, wire.LEFT, wire.encode(leave.client, leave.key, leave.older))
        self._drop(leave)

    def _drop(self, leave: Leave) -> None:
        self.remove(leave)
        self._port.forget(leave)

    def remove(self, leave: Leave) -> None:
        """It is no leave any more; its session stays."""
        left = self.of[leave.client]
        left.remove(leave)
        if not left:
            del self.of[leave.client]
        self._port.save_leave(leave, None)
