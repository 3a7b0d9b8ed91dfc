"""The member's side: a client here sits at a queue of another site.

Its broker asks the home for messages, sends them like any other, and tells the home what becomes of them. What was given under an earlier
token is the client's still, but what it says of it does not count any more: the home has taken it back.

What it does not know: the queue.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from ....mqtt.batch.batch import Batch
from ....mqtt.batch.parts import PartsBatch
from ....mqtt.batch.run import Run
from ..core.states import Subscriber
from ..offers import Offer
from ..pulls import alert
from ..seats import TURN, Place, send
from . import wire
from .wire import Entry, JoinPost, LeavePost, SaidPost, What

SAYS = {Subscriber.DONE: What.ACKNOWLEDGED, Subscriber.UNUSABLE: What.UNUSABLE, Subscriber.EXPIRED: What.EXPIRED}
MOST = 1000  # messages that a client has at most of a queue elsewhere

Post = Callable[[str, str, bytes], None]  # queue, kind, body: to the home of the queue


class Given:
    """Messages of one entry, as the part of an offer. token: under which they came."""

    __slots__ = ("first", "token")

    def __init__(self, first: int, token: bytes) -> None:
        self.first = first
        self.token = token


class AwaySeat:
    """See the module. post: sends to the home of a queue. talks: told when it has something to tell. token: None while it takes nothing.
    pulls: its client asks for messages, and is told when there are some. selector, reorders: see `Sitting`. key:
    of a temporary queue.
    """

    __slots__ = ("_post", "_said", "_talks", "_waiting", "key", "name", "place", "pulls", "qos", "reorders", "selector", "suffix", "token")

    def __init__(
        self,
        place: Place,
        name: str,
        qos: int,
        suffix: bytes,
        pulls: bool,
        selector: str,
        reorders: bool,
        key: str,
        post: Post,
        talks: Callable[[AwaySeat], None],
    ) -> None:
        self.place = place
        self.name = name
        self.qos = qos
        self.suffix = suffix
        self.pulls = pulls
        self.selector = selector
        self.reorders = reorders
        self.key = key
        self.token: bytes | None = None
        self._post = post
        self._talks = talks
        self._waiting: deque[Offer] = deque()
        self._said: dict[What, list[tuple[int, int]]] = {}

    @property
    def client(self) -> str:
        """Its name."""
        return self.place.session.client_id

    def join(self, life: int) -> None:
        """Take messages from now on, under a token of its own. life: of this broker."""
        self._waiting.clear()
        self._said.clear()
        self.token = secrets.token_bytes(8)
        session = self.place.session
        most = min(MOST, session.outbound.limit) if self.qos else TURN
        wishes = self.pulls, self.selector, self.key, session.expiry == 0, self.reorders
        self._post(self.name, wire.JOIN, wire.encode(JoinPost(life, self.name, self.client, self.token, most, *wishes)))

    def leave(self, for_good: bool) -> None:
        """Take no more: what the client has and what waits goes back. What it has said before is told first."""
        if self.token is None and not for_good:
            return
        self.tell()
        self._post(self.name, wire.LEAVE, wire.encode(LeavePost(self.name, self.client, self.token or b"", for_good)))
        self.token = None
        self._waiting.clear()

    def lost(self) -> None:
        """The queue has no home that is known."""
        self.token = None
        self._waiting.clear()
        self._said.clear()

    # Messages

    def given(self, token: bytes, entries: list[Entry], now: float) -> None:
        """Messages have come for the client. now: of the loop's clock."""
        if token != self.token:
            return  # they went back when it left
        connection = self.place.session.connection
        for entry in entries:
            self._waiting.extend(self._offers(entry, now, connection is not None and connection.special))

    def alerted(self, token: bytes, waiting: int, now: float) -> None:
        """Its client is told that something is available."""
        if token == self.token:
            self._waiting.append(Offer(alert(self.name, waiting, now), self.suffix, self, None, 0))

    def _offers(self, entry: Entry, now: float, alone: bool) -> list[Offer]:
        assert self.token is not None
        payloads, part = entry.payloads, Given(entry.first, self.token)
        if alone or entry.properties or entry.expiry is not None or len({len(one) for one in payloads}) == 1:
            step = 1 if alone or len({len(one) for one in payloads}) > 1 else len(payloads)
            runs: list[Batch] = [
                Run(entry.topic, 1, False, payloads[at : at + step], entry.properties, entry.expiry, now)
                for at in range(0, len(payloads), step)
            ]
        else:
            name = len(entry.topic).to_bytes(2, "big") + entry.topic
            runs = [PartsBatch([name] * len(payloads), payloads, 1, now)]
        found, base = [], 0
        for run in runs:
            found.append(Offer(run, self.suffix, self, part, base))
            base += run.count
        return found

    def pump(self, now: int) -> None:
        """Send what waits, as far as the client takes it."""
        while self._waiting:
            room = self.place.room(self.qos)
            if room <= 0:
                return
            offer = self._waiting.popleft()
            if offer.count > room and self.qos:
                self._waiting.appendleft(offer.part(room, offer.count))
                offer = offer.part(0, room)
            send(self, offer, now)

    # What the client says

    def _say(self, what: What, part: Any, start: int, count: int) -> None:
        if part is not None and part.token == self.token:  # of an alert there is nothing to be said
            if not self._said:
                self._talks(self)
            self._said.setdefault(what, []).append((part.first + start, count))

    def acknowledged(self, part: Any, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        self._say(What.ACKNOWLEDGED, part, start, count)

    def outcome(self, part: Any, start: int, count: int, outcome: Subscriber, now: int) -> None:
        """See `Sitting`."""
        self._say(SAYS[outcome], part, start, count)

    def returned(self, part: Any, start: int, count: int, now: int) -> None:
        """See `Sitting`."""
        self._say(What.RETURNED, part, start, count)

    def tell(self) -> None:
        """Tell the home what was said since the last time."""
        said, self._said = self._said, {}
        if self.token is not None:
            for what, ranges in said.items():
                self._post(self.name, wire.SAID, wire.encode(SaidPost(self.name, self.client, self.token, what, ranges)))
