"""What a `Node` asks its shell to do, as data. `Node.take()` returns these in order; the shell does them in order.

Nothing here does anything; nothing here knows a socket or a client.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ...mqtt.batch.batch import Batch
from ...mqtt.reasons import Reason
from ..custody.watches import Watch
from ..view.interest import Match
from ..wire.envelope import Share

LinkId = int


class MeshRoute:
    """Who elsewhere wants a topic. Keep it until `FiltersChanged`; a stale one is brought up to date inside."""

    __slots__ = ("generation", "match", "text", "topic")

    def __init__(self, topic: bytes, text: str, match: Match, generation: int) -> None:
        self.topic = topic
        self.text = text
        self.match = match
        self.generation = generation

    @property
    def mask(self) -> int | None:
        """The brokers that want it, when these are all: None with shared subscriptions, and where a policy leads to one of them."""
        return None if self.match.groups or self.match.guarded else self.match.mask


class Verdict(Enum):
    """What `Node.publish` says."""

    TAKEN = "taken"  # QoS 0: on its way or dropped and counted; QoS 1/2: in custody
    FULL = "full"  # QoS 1/2 only: nothing was taken, there is room soon; try again after `Unblocked`
    REFUSED = "refused"  # the same, but a site that is away has all that may wait for it: there is room when it is back


class Send(NamedTuple):
    """Write data to a link. urgent: ahead of what is not urgent and still unsent there; otherwise in order behind it."""

    link: LinkId
    data: bytes | bytearray
    urgent: bool


class Deliver(NamedTuple):
    """Messages for this broker's clients.

    run: `run.qos` and `run.retain` are the publisher's; `run.expiry` is what is left of the message's life, `run.received`
    is now. origin: number of the broker where it was published. token: for `Node.delivered` once committed (and before it
    `Node.refuse`); None for QoS 0. picks: the shared subscriptions, (group, filter), of which this broker must serve one
    member each. ordinary: whether ordinary subscriptions get it; False for what is sent again for a shared subscription
    only. repeated: a shared subscription's member elsewhere may have had it. published: ms since 1970, by the origin's clock.
    stored: its last message is the retained message of its topic now. key: of that last message, if it had a mark.
    """

    run: Batch
    origin: int
    token: int | None
    picks: tuple[Share, ...] = ()
    ordinary: bool = True
    repeated: bool = False
    published: int = 0
    stored: bool = False
    key: bytes = b""


class Retained(NamedTuple):
    """The retained message of a topic has changed by a comparison with a neighbour.

    run: of one message; an empty payload: nothing is retained for the topic now. announce: ordinary subscriptions get it. key: of what is
    retained, or was. coming: the message with this key comes as a `Deliver` too, once its origin can be reached.
    """

    run: Batch
    announce: bool
    key: bytes
    coming: bool


class PeerMessage(NamedTuple):
    """A message from another broker to this one, none of whose clients see it. See `Node.send_to_brokers`.

    kind, body: as they were posted. origin: number of the broker that posted it. token: for `Node.handed` and `Node.delivered`, as that
    of a delivery; None while the next one belongs into the same commit. expiry: seconds that are left of its life; None: it has no end.
    """

    kind: str
    body: bytes
    origin: int
    token: int | None
    expiry: int | None = None


class FiltersChanged(NamedTuple):
    """Routes that match one of these filters are stale; None: all routes are."""

    filters: tuple[str, ...] | None


class CloseLink(NamedTuple):
    """Close a link; it is down for the node already, and `Node.link_down` need not be called. text: one line for people."""

    link: LinkId
    reason: Reason
    text: str


class Unblocked(NamedTuple):
    """Custody has space again: what got `Verdict.FULL` may try again."""


class Returned(NamedTuple):
    """Messages that leave custody undelivered for one destination.

    reason: "dropped" (the oldest at a bound), "expired", "replaced", "absent", "cleared", "refused", "forbidden" (by a policy on the only
    path), "damaged" (on the disk). What was posted comes back as it went: `peer_message_kind(run.topic)` says what it is.
    """

    run: Batch
    destination: int
    reason: str


class GivenUp(NamedTuple):
    """Messages that leave custody undelivered for one destination, and are not in memory.

    reason: as for `Returned`, and "damaged". page: that held them.
    """

    destination: int
    reason: str
    messages: int
    page: int


class ReadPage(NamedTuple):
    """Read the body of a page of custody from the store, and give it to `Node.page_read`."""

    order: int


class Confirmed(NamedTuple):
    """Nobody who is reachable owes the receipt of a watched run any more (see `Node.watch`)."""

    watch: Watch


class Event(NamedTuple):
    """Something that a log or a console wants to know."""

    name: str
    fields: dict[str, object]


Action = (
    Send | Deliver | Retained | PeerMessage | FiltersChanged | CloseLink | Unblocked | Returned | GivenUp | ReadPage | Confirmed | Event
)


class LinkInfo(NamedTuple):
    """One live link, for people. full: the shell said that its unsent bytes are above the bound."""

    link: LinkId
    peer: int
    name: str
    incarnation: int
    cost: int
    full: bool
    used: bool  # both ends list it
    policy: bool  # this end has one


class Held(NamedTuple):
    """What is in custody for one destination, for people. on_disk: of the messages, those that are not in memory. under_way: those
    that were sent and have no receipt. dropped: those that the policy at its bound has dropped so far."""

    name: str
    number: int
    reachable: bool
    messages: int
    bytes: int
    waits: str
    on_disk: int
    under_way: int
    dropped: int


class Member(NamedTuple):
    """One known broker, for people. live: reachable now. hops, cost: along the shortest path, 0 when not live. next: the neighbour that the
    path begins with. since: seconds since 1970 when it came into reach or went out of it, None: not in this life.
    open_bytes, waits: of the messages in `open`, how much they count and why they are not there yet, see `Destination.waits`."""

    number: int
    name: str
    uuid: bytes
    epoch: int
    live: bool
    hops: int
    cost: int
    filters: int
    open: int  # messages that this broker holds in custody for it
    next: int | None = None
    since: float | None = None
    open_bytes: int = 0
    waits: str = ""
