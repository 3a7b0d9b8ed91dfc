"""What a broker says of a client to others: answers to their claims, and what a clean start has discarded.

A clean start is ordered by its key, as claims are: what comes of sessions with lower keys, wherever it is and however late, is nobody's
any more. A place remembers that key as its *floor*. The broker of a newer claim is told of it before anything else, with the clean
start's own claim once more; and who still sends what nobody wants is told so.

It does not know when to say it; the roamer does.
"""

from __future__ import annotations

from . import wire
from .leaves import Leaves
from .places import NO_KEY, Place
from .port import Port
from .wire import Answer, Claim, Key, Said


class Words:
    """One broker's."""

    def __init__(self, port: Port, leaves: Leaves) -> None:
        self._port = port
        self._leaves = leaves

    def answer(self, client: str, key: Key, said: Said, known: Key | None = None, settled: bool = False, more: bool = False) -> None:
        """Answer a claim, see `Answer`."""
        if self._port.known() >> key[1] & 1:
            answer = Answer(client, key, said, known, settled, more, client in self._leaves.of)
            self._port.send_to_brokers(1 << key[1], wire.ANSWER, wire.encode_answer(answer))

    def tell(self, place: Place, broker: int) -> None:
        """The broker of a newer claim is told of the clean start before it."""
        if place.floor != NO_KEY and self._port.known() >> broker & 1:
            self._port.send_to_brokers(1 << broker, wire.CLAIM, wire.encode_claims([Claim(place.client, place.floor, True)]))

    def decline(self, place: Place, source: Key) -> None:
        """The holder of a session need not send it."""
        if self._port.known() >> source[1] & 1:
            self._port.send_to_brokers(1 << source[1], wire.LEFT, wire.encode(place.client, place.key, source))

    def decline_all(self, place: Place) -> None:
        """Nothing more of the sessions that are being sent is wanted."""
        for source in place.sources:
            self.decline(place, source)
        place.sources = {}
