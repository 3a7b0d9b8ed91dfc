"""The home's side of members at other sites: a guest takes messages like a client of this broker, and they travel to its site as posts.

A guest is gone when its site says so, cannot be reached, or lives anew: what it had goes back at once. What its site says under an earlier
token does not count.

What it does not know: sessions, connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.states import Subscriber
from ..seats import TURN, Bench
from . import wire
from .wire import Entry, GivePost, JoinPost, What

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.blocks import Part
    from ..core.queue import Queue
    from ..core.stock import Member
    from ..offers import Offer

WINDOW = 1 << 20  # bytes that a guest has at most, about
OUTCOMES = {What.UNUSABLE: Subscriber.UNUSABLE, What.EXPIRED: Subscriber.EXPIRED}
PIECE = 1 << 18  # bytes of messages in one post, about


class Guest(Bench):
    """A client of another site. site: the number of its broker. life: of that. token: of its being here.

    most_there: messages that it takes at once. fed: told when there is something to be posted.
    """

    __slots__ = ("_entries", "_fed", "_size", "client", "life", "most_there", "site", "token")

    alone = False

    def __init__(self, queue: Queue, member: Member, site: int, post: JoinPost, fed: Callable[[Guest], None]) -> None:
        super().__init__(queue, member, post.selector, post.reorders)
        self.site = site
        self.life = post.life
        self.client = post.client
        self.token = post.token
        self.most_there = max(1, post.most)
        self._fed = fed
        self._entries: list[Entry] = []
        self._size = 0

    @property
    def suffix(self) -> bytes:
        """Its subscription identifier is known at its site."""
        return b""

    def room(self) -> int:
        """How many messages it may get now."""
        average = self.queue.size // max(1, self.queue.waiting + self.queue.held)
        most = min(self.most(), self.most_there, max(1, WINDOW // max(1, average)))
        return min(most - self.member.held, TURN)

    def send(self, offer: Offer, now: int) -> None:
        """See `Seat.send`: it goes with the next posts."""
        if not self._entries:
            self._fed(self)
        run = offer.run
        payloads = [bytes(payload) for payload in run.payloads]
        topic = run.topic or run.topics[0]
        self._entries.append(Entry(offer.part_of.block.first + offer.base, topic, run.properties, run.expiry, payloads))
        self._size += sum(map(len, payloads))

    def posts(self) -> list[bytes]:
        """The posts with what it was given since the last time."""
        entries, self._entries = self._entries, []
        size, self._size = self._size, 0
        if size <= PIECE:
            return [wire.encode(GivePost(self.name, self.client, self.token, entries))]
        return [wire.encode(GivePost(self.name, self.client, self.token, [piece])) for entry in entries for piece in _pieces(entry)]

    def said(self, what: What, first: int, count: int, now: int) -> None:
        """What becomes of messages that it has. What it does not have any more is passed over."""
        end, number = first + count, self.member.number
        for part in [one for one in self.member.held_in if one.block.first < end and first < one.block.first + one.block.count]:
            start, stop = max(0, first - part.block.first), min(part.block.count, end - part.block.first)
            held = [(start, stop - start)] if part.has(start, stop - start, number) else part.held_by(number)
            for at, length in held:
                begin, over = max(start, at), min(stop, at + length)
                if begin < over:
                    self._say(what, part, begin, over - begin, now)

    def _say(self, what: What, part: Part, at: int, length: int, now: int) -> None:
        if what is What.ACKNOWLEDGED:
            self.acknowledged(part, at, length, now)
        elif what in OUTCOMES:
            self.outcome(part, at, length, OUTCOMES[what], now)
        else:
            self.returned(part, at, length, now)


class PullGuest(Guest):
    """A guest that asks for messages (`queues/pulls.py`). told: that something is available, since it asked last. alerts: tells its site
    how many messages wait.
    """

    __slots__ = ("_alerts", "told")

    def __init__(
        self,
        queue: Queue,
        member: Member,
        site: int,
        post: JoinPost,
        fed: Callable[[Guest], None],
        alerts: Callable[[PullGuest, int], None],
    ) -> None:
        super().__init__(queue, member, site, post, fed)
        self.told = False
        self._alerts = alerts

    def room(self) -> int:
        """It gets nothing that it has not asked for."""
        return 0

    def asked(self) -> int:
        """How many messages it may get when it asks."""
        return super().room()

    def alert(self, now: float) -> None:
        """Tell it that something is available, if it was not told yet."""
        if not self.told and self.asked() > 0 and self.queue.available(self.member):
            self.told = True
            self._alerts(self, self.queue.waiting_for(self.member))


def _pieces(entry: Entry) -> list[Entry]:
    """An entry as several of at most `PIECE` bytes, or one message."""
    found, start, size = [], 0, 0
    for at, payload in enumerate(entry.payloads):
        if size and size + len(payload) > PIECE:
            found.append(entry._replace(first=entry.first + start, payloads=entry.payloads[start:at]))
            start, size = at, 0
        size += len(payload)
    found.append(entry._replace(first=entry.first + start, payloads=entry.payloads[start:]))
    return found
