"""What the parts of a node share: its settings, who it is, its links, its counters, and the list of actions for the shell.

No rule of the protocol stands here, but for what must be read of a frame before it is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ...mqtt.reasons import Reason
from ..custody.bounds import CustodyBounds
from ..wire.batch import PLAIN_REST
from ..wire.control import Branch, encode, encode_packed
from ..wire.envelope import Flag, Head, Rest, bad_frame, decode_rest, peer_message_kind
from ..wire.identity import BLOCK, PACKED, Identity
from ..wire.keys import Keys
from ..wire.packed import Packer, Unpacker
from ..wire.policy import PolicyFilter
from .actions import Action, CloseLink, Event, Send

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..custody.journal import Journal
    from ..custody.windows import CustodyWindow
    from ..view.lives import Former, Lives
    from ..view.trees import Child, Record
    from ..wire.visited import Changes
    from .flood import Flood
    from .single.frames import Outcome


@dataclass(slots=True, frozen=True)
class MeshConfig:
    """Settings of one node.

    mode: how QoS 0 travels; QoS 1 and 2 are always routed. custody_messages, custody_bytes: how much QoS 1/2 this broker
    holds in memory as an origin before `publish` says FULL. destination_part: which part of that one destination may fill, so that
    a slow site does not stop traffic among the others. keep_messages, keep_bytes: how much of one site that is away stays in memory
    where there is a store; page_messages, page_bytes: how much of it goes to the disk as one page. bounds: of sites that are away.
    credit_messages, credit_bytes: how much of one origin may be
    under way to this broker without a receipt. credit_floor: bytes to which drops at a relay may shrink what is under way
    to one destination. share: what happens to a message whose shared subscription's member went with its broker, "once":
    it waits, "available": another one gets it, marked as possibly repeated. forget_after: seconds after which a broker
    that is not reachable loses its interest and what waits for it is returned; None: never. keys_held: seconds after which the number of a
    broker that is not reachable may be had under another key; None: never. remembered: how many filters of others
    the store keeps at most. receipt_delay: seconds that a receipt may wait for more deliveries to speak of, unless an eighth of
    the credit is used up.
    join_pause, join_wait: seconds without a further JOIN, and since the first, that JOINs of destinations which were never sent anything
    wait for those of others.
    managers: names of the brokers whose orders count; None: all.
    retained_compare: seconds between two comparisons of retained messages with one neighbour. deletions_kept: seconds that a
    deletion of a retained message is remembered if not every member has confirmed it. one_broker: the members are processes of one broker
    (`broker/workers`), which check nothing twice: of the packets of a block only the first is looked at.
    """

    mode: Literal["routed", "flood"] = "routed"
    custody_messages: int = 200_000
    custody_bytes: int = 256 * 2**20
    destination_part: float = 0.5
    keep_messages: int = 10_000
    keep_bytes: int = 4 * 2**20
    page_messages: int = 1000
    page_bytes: int = 512 * 2**10
    bounds: CustodyBounds = field(default_factory=CustodyBounds)
    credit_messages: int = 50_000
    credit_bytes: int = 16 * 2**20
    credit_floor: int = 64 * 2**10
    share: Literal["once", "available"] = "once"
    forget_after: float | None = None
    keys_held: float | None = None
    remembered: int = 200_000
    managers: tuple[str, ...] | None = None
    receipt_delay: float = 0.02
    join_pause: float = 0.005
    join_wait: float = 0.1
    retained_compare: float = 30.0
    deletions_kept: float = 7 * 86_400.0
    one_broker: bool = False


@dataclass(slots=True)
class Counters:
    """Totals since the node began, in messages unless a name says otherwise."""

    published: int = 0  # taken by `publish` for other brokers
    delivered: int = 0  # handed to the shell
    sent: int = 0  # data frames sent on links, as origin or relay; `Core.counters` has those of links that are gone
    received: int = 0  # data frames received; the same
    relayed: int = 0  # data frames sent on links as relay
    resent: int = 0  # custody messages sent again in a later tree, for each destination
    dropped_no_path: int = 0  # QoS 0, for each destination without a path
    dropped_full: int = 0  # QoS 0 at a full link
    dropped_policy: int = 0  # frames that a link's policy lets neither out nor in, of origins that do not keep to it
    dropped_stale: int = 0  # frames of a tree or link that is not current
    cut: int = 0  # custody frames dropped at a full link; the origin sends them again
    duplicates: int = 0  # frames that a window refused
    returned: int = 0  # for each destination
    custody_stored: int = 0  # custody messages that went to the disk only, while nobody could be sent them
    custody_read: int = 0  # the same, read again
    custody_dropped: int = 0  # for each destination that is away: the oldest at its bound, where a policy says so
    custody_expired: int = 0  # the same: left out at its bound, or too old
    custody_refused: int = 0  # runs that were taken for nobody, because a destination that is away was at its bound
    cleared: int = 0  # sent to a life that lost its store, so nobody knows; for each destination
    refused_keys: int = 0  # statements under another key than the one known for the number they speak for
    forged: int = 0  # statements that their signatures do not cover; each ends a link
    refused: int = 0  # picks that found no member
    repicked: int = 0
    trees: int = 0  # announced as origin
    control_sent: int = 0  # control packets
    control_received: int = 0
    retained_sent: int = 0  # retained messages and deletions given to neighbours that lacked them
    retained_received: int = 0  # the same, taken from neighbours
    retained_bytes: int = 0  # sent to compare retained messages with neighbours, what they lacked included

    def as_dict(self) -> dict[str, int]:
        """Name -> value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


class Passage(NamedTuple):
    """Consecutive messages that are passed on: whose, from which sequence on, when they were published (ms since 1970).

    sizes: payload bytes: of each message alike, or one by one. names: topics as on the wire, where they differ; else None, and `topic`.
    """

    origin: int
    epoch: int
    custody: bool
    first: int
    messages: int
    published: int
    topic: bytes
    sizes: int | list[int]
    names: list[bytes] | None = None


class Tap(Protocol):
    """Writes down what becomes of messages. A node without one does not ask."""

    def wants(self, topic: bytes) -> bool:
        """Whether messages of this topic are written down."""

    def taken(self, run: Batch, custody: bool, epoch: int, first: int, published: int, brokers: int) -> None:
        """This broker has numbered its own messages, for these brokers (bit n: broker n)."""

    def forwarded(self, passage: Passage, peer: int) -> None:
        """Messages were given to the link to a neighbour."""

    def came(self, run: Batch, origin: int, epoch: int, custody: bool, first: int, published: int, peer: int) -> None:
        """Messages for this broker's clients have come from a neighbour."""

    def released(self, destination: int, epoch: int, first: int, last: int) -> None:
        """A destination has what this broker published, from one sequence to another, as far as it was for it."""


class Stream:
    """What happens to frames with these envelope constants on this link.

    record: the tree that they travel in; None when they are stale or flooded.
    deliver: whether this broker is in the share.
    forwards: (link, child, bytes to patch) for each link that they are passed on to.
    window: lets custody frames for this broker in once.
    flood: for flooded frames, their window, and the links and bits to pass them on with.
    spans: whether its frames may make spans.
    whole: whether a block is passed on as it comes; else frames are made of it.
    peer: number of the neighbour that they come from.
    rest, parsed: what followed the bits the last time, as bytes and decoded. Frames of one millisecond have it in common.
    """

    __slots__ = (
        "custody",
        "deliver",
        "flood",
        "forwards",
        "head",
        "ordinary",
        "parsed",
        "peer",
        "record",
        "repeated",
        "rest",
        "spans",
        "whole",
        "window",
    )

    def __init__(self, head: Head, peer: int) -> None:
        self.head = head
        self.peer = peer
        self.custody = bool(head.flags & 3)
        self.spans = not head.flags & ~3 and not head.version
        self.whole = False
        self.ordinary = not head.flags & Flag.PICKS_ONLY
        self.repeated = bool(head.flags & Flag.REPEATED)
        self.rest = b""
        self.parsed: Rest | None = None
        self.deliver = False
        self.record: Record | None = None
        self.forwards: list[tuple[LinkEnd, Child, Changes]] = []
        self.window: CustodyWindow | None = None
        self.flood: Flood | None = None

    def read_rest(self, topic: bytes, rest: bytes) -> None:
        """Read what follows the visited bits before it is passed on, so that a bad frame ends this link and not the links beyond.

        Raises `PeerError`, also for a frame that no subscription wants and that is no message to a broker.
        """
        if rest != self.rest and not (self.spans and rest[6:] == PLAIN_REST):
            self.rest, self.parsed = rest, decode_rest(self.head.flags, rest)
        if (
            not self.ordinary
            and self.parsed is not None
            and not self.parsed.picks
            and (peer_message_kind(topic) is None or not self.custody)
        ):
            raise bad_frame(f"the topic {topic[:80]!r} is for picks only, and nothing is picked")


class LinkEnd:
    """This end of one live link.

    full: too much is unsent.
    synced: the peer has said all that it knew when the link came up.
    gate: this end's policy.
    blocks: whether runs go over it as blocks.
    compared: it is settled whether retained messages are compared over it.
    streams: what was decided for frames that come over it, by the constants of their envelope.
    direct: the same for single frames, by topic and constants (`DirectLane`). latest: of the last one; None before the first.
    twin: the peer is another life of this very broker: only lives are said over it.
    second: the peer is another life of a neighbour that has a link: it hears and says what all know, and is not used.
    lives: the serial of the newest statement of each life that went over it, either way.
    packer, unpacker: of trees, None before the first.
    unheard: what came over it of interest and is not taken yet.
    sent, received: data frames. dropped: those that it was too full for, of custody too, which comes again.
    """

    __slots__ = (
        "blocks",
        "compared",
        "cost",
        "direct",
        "dropped",
        "full",
        "gate",
        "id",
        "incarnation",
        "latest",
        "lives",
        "packer",
        "peer",
        "received",
        "second",
        "sent",
        "streams",
        "synced",
        "twin",
        "unheard",
        "unpacker",
    )

    def __init__(self, id_: int, peer: Identity, incarnation: int, cost: int, gate: PolicyFilter | None = None) -> None:
        self.id = id_
        self.peer = peer
        self.incarnation = incarnation
        self.cost = cost
        self.full = False
        self.synced = False
        self.gate = gate
        self.blocks = gate is None and BLOCK in peer.capabilities
        self.compared = False
        self.streams: dict[bytes, Stream] = {}
        self.direct: dict[bytes, Outcome] = {}
        self.latest: Outcome | None = None
        self.twin = self.second = False
        self.lives: dict[bytes, int] = {}
        self.packer: Packer | None = None
        self.unpacker: Unpacker | None = None
        self.unheard = 0
        self.sent = self.received = self.dropped = 0


class Core:
    """Shared state.

    identity: its epoch may be raised. now: of the current call. generation: raised whenever a decision that is kept anywhere may be stale.
    on_drop: called when a link goes. tap: writes down what becomes of messages; None: nothing does. journal: None without a store. born:
    the life since which this broker remembers. keys: who may speak for whom; None: nothing is signed. lives: which lives of brokers are
    known. fenced: this life has yielded to another one of its identity, says nothing more and takes nothing.
    kept_offset: from the clock of `now` to that whose times are stored.
    """

    def __init__(self, identity: Identity, config: MeshConfig, wall_offset: float, lives: Lives, keys: Keys | None = None) -> None:
        self.identity = identity
        self.lives = lives
        self.former: Former | None = None  # the identity that this broker had before
        self.fenced = False
        self.keys = keys
        self.number = identity.number
        self.uuid = identity.uuid.bytes
        self.config = config
        self.counters = Counters()
        self.links: dict[int, LinkEnd] = {}
        self.by_number: dict[int, LinkEnd] = {}
        self.actions: list[Action] = []
        self.now = 0.0
        self.stirred = True
        self.wall_offset = self.kept_offset = wall_offset
        self.generation = 0
        self.born = identity.epoch
        self.journal: Journal | None = None
        self.tap: Tap | None = None
        self.on_drop: Callable[[LinkEnd], None] = lambda end: None

    def enter(self, now: float) -> None:
        """A call from outside begins, which may change anything."""
        self.now = now
        self.stirred = True

    def drop(self, end: LinkEnd) -> None:
        """Forget a link; `on_drop` hears of it."""
        del self.links[end.id]
        self.counters.sent += end.sent
        self.counters.received += end.received
        if self.by_number.get(end.peer.number) is end:
            del self.by_number[end.peer.number]
            for other in [e for e in self.links.values() if e.second and e.peer.number == end.peer.number]:
                del self.links[other.id]
                self.counters.received += other.received
                self.close(other.id, Reason.SERVER_BUSY, f"the link to another life of {end.peer} has ended: dial again")
        self.on_drop(end)
        self.stale()
        self.event("link_down", link=end.id, peer=str(end.peer))

    def stale(self) -> None:
        """Forget kept decisions."""
        self.generation += 1
        for link in self.links.values():
            link.streams.clear()
            link.direct.clear()
            link.latest = None

    def control(self, link: int, kind: str, body: Any, urgent: bool = True) -> None:
        """Send a control packet."""
        self.counters.control_sent += 1
        self.actions.append(Send(link, encode(kind, body), urgent))

    def open(self, end: LinkEnd, body: Any) -> None:
        """Send a tree, after the messages that wait for the link already."""
        if PACKED in end.peer.capabilities:
            self._deflated(end, "packed", body)
        else:
            self.control(end.id, "open", body, urgent=False)

    def branch(self, end: LinkEnd, body: Branch) -> None:
        """Send a branch of a tree, after the messages that wait for the link already."""
        self._deflated(end, "branch", body)

    def _deflated(self, end: LinkEnd, kind: str, body: Any) -> None:
        self.counters.control_sent += 1
        end.packer = end.packer or Packer()
        self.actions.append(Send(end.id, encode_packed(kind, body, end.packer), False))

    def flood(self, kind: str, body: Any, but: int | None = None) -> None:
        """Send a control packet over all links but one."""
        data = None
        for link, end in self.links.items():
            if link != but and not end.twin:
                data = data or encode(kind, body)
                self.counters.control_sent += 1
                self.actions.append(Send(link, data, True))

    def event(self, name: str, **fields: object) -> None:
        """Tell whoever watches."""
        self.actions.append(Event(name, fields))

    def close(self, link: int, reason: Reason, text: str) -> None:
        """Ask the shell to close a link that is forgotten already."""
        self.actions.append(CloseLink(link, reason, text))

    def wall_ms(self) -> int:
        """The wall clock now, ms since 1970."""
        return max(0, int((self.now + self.wall_offset) * 1000))
