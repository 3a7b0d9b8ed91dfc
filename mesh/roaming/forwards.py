"""What still comes for claims that were given up for newer ones, and where it is passed on to.

A place may yield its session before all that belongs to it has come. A `Forward` says so: what others still send for the older claim goes
to the broker of the newer one. It lasts until nobody can send for it any more.

It does not know places; the roamer tells it what they owe.
"""

from __future__ import annotations

from collections.abc import Callable

from . import wire
from .leaves import Leaves
from .places import Forward, Place, encode_forwards
from .port import Port
from .wire import Key, Move


class Forwards:
    """One broker's. finished: called when nothing more is passed on to a claim; (client, its key)."""

    def __init__(self, port: Port, leaves: Leaves, finished: Callable[[str, Key], None]) -> None:
        self._port = port
        self._leaves = leaves
        self._finished = finished
        self.of: dict[str, list[Forward]] = {}

    def leads_to(self, client: str, key: Key, clean: bool = False) -> bool:
        """Whether something is passed on to a claim. clean: of a clean start, which is told again before each later claim of its broker:
        then that one counts too, as who asks cannot tell the answers apart."""
        return any(forward.key == key or (clean and forward.key[1] == key[1] and forward.key > key) for forward in self.of.get(client, ()))

    def pass_on(self, kind: str, move: Move) -> bool:
        """Pass on what came for a claim that was given up for a newer one, whether the client is here again or not."""
        at = self._index(move.client, move.key, move.rest[0])
        if at is None:
            return False
        key = self.of[move.client][at].key
        if self._port.known() >> key[1] & 1:
            self._port.send_to_brokers(1 << key[1], kind, wire.encode(move.client, key, *move.rest))
        return True

    def _index(self, client: str, key: Key, source: Key | None) -> int | None:
        """The index of the forward for what is sent for a claim: of the lowest claim that is not older, as claims are raised.
        source: one that is in it; None: one that some broker has not answered."""
        found = [
            (forward.older, index)
            for index, forward in enumerate(self.of.get(client, ()))
            if forward.older >= key and (forward.silent if source is None else source in forward.sources)
        ]
        return min(found)[1] if found else None

    def add(self, place: Place, key: Key) -> None:
        """A place yields to a newer claim: what is open for it goes there."""
        forward = Forward(place.key, key, place.claimed & ~place.asked, tuple(place.sources))
        self._set(place.client, [forward, *self.of.get(place.client, ())])

    def _set(self, client: str, forwards: list[Forward]) -> None:
        left = [forward for forward in forwards if forward.open]
        for key in {forward.key for forward in forwards} - {forward.key for forward in left}:
            self._finished(client, key)
        if left == self.of.get(client, []):
            return
        if left:
            self.of[client] = left
        else:
            self.of.pop(client, None)
        self._port.save_forwards(client, encode_forwards(left) if left else None)

    def answered(self, client: str, brokers: int, key: Key, sources: tuple[Key, ...] = (), newer: Key | None = None) -> None:
        """Brokers (a set) have answered a claim, with sessions, with a newer claim or (neither) with nothing: for its forward.

        A claim that is newer than an earlier one of the same place only, as of a clean start, is older than what the place asked for last.
        """
        at = self._index(client, key, None)
        if at is not None and (newer is None or newer > self.of[client][at].older):
            forwards = list(self.of[client])
            forward = forwards[at]
            forwards[at] = forward._replace(silent=forward.silent & ~brokers, sources=forward.sources + sources)
            self._set(client, forwards)

    def follow(self, client: str, key: Key, sources: tuple[Key, ...]) -> None:
        """Sessions have come for a claim that was raised since, and what was here has left: they go the same way."""
        if self._index(client, key, sources[0]) is not None:
            return
        forwards = self.of.get(client, [])
        newer = [leave.key for leave in self._leaves.of.get(client, ()) if leave.older > key]
        newer += [forward.key for forward in forwards if forward.older > key]
        if newer:
            self._set(client, [Forward(key, max(newer), 0, sources), *forwards])

    def redirect(self, client: str, key: Key) -> None:
        """What has not begun to come goes to the newest claim; a session that has goes on to where it went."""
        found = []
        for forward in self.of.get(client, []):
            if forward.key < key and forward.silent:
                found += [forward._replace(key=key, sources=()), forward._replace(silent=0)]
            else:
                found.append(forward)
        if found:
            self._set(client, found)

    def source_left(self, client: str, source: Key, key: Key) -> None:
        """A session has come whole for a claim: for its forward."""
        at = self._index(client, key, source)
        if at is not None:
            forwards = list(self.of[client])
            forward = forwards[at]
            forwards[at] = forward._replace(sources=tuple([one for one in forward.sources if one != source]))
            self._set(client, forwards)

    def broker_gone(self, broker: int) -> None:
        """Nothing more comes from a broker."""
        for client, forwards in list(self.of.items()):
            left = [f._replace(silent=f.silent & ~(1 << broker), sources=tuple([s for s in f.sources if s[1] != broker])) for f in forwards]
            self._set(client, left)
