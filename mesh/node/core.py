"""What the parts of a node share: who it is, its links, its counters, and the list of actions for the shell.

No rule of the protocol stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...mqtt.reasons import Reason
from ..wire.control import encode
from ..wire.identity import Identity
from ..wire.keys import Keys
from ..wire.policy import PolicyFilter
from .actions import Action, CloseLink, Event, Send
from .settings import Counters, MeshConfig

if TYPE_CHECKING:
    from ..custody.journal import Journal
    from ..view.lives import Former, Lives
    from .direct import Outcome
    from .relay import Stream


class LinkEnd:
    """This end of one live link.

    full: too much is unsent.
    synced: the peer has said all that it knew when the link came up.
    gate: this end's policy.
    compared: it is settled whether retained messages are compared over it.
    streams: what was decided for frames that come over it, by the constants of their envelope.
    direct: the same for single frames, by topic and constants (`DirectLane`).
    twin: the peer is another life of this very broker: only lives are said over it.
    second: the peer is another life of a neighbour that has a link: it hears and says what all know, and is not used.
    """

    __slots__ = ("compared", "cost", "direct", "full", "gate", "id", "incarnation", "peer", "second", "streams", "synced", "twin")

    def __init__(self, id_: int, peer: Identity, incarnation: int, cost: int, gate: PolicyFilter | None = None) -> None:
        self.id = id_
        self.peer = peer
        self.incarnation = incarnation
        self.cost = cost
        self.full = False
        self.synced = False
        self.gate = gate
        self.compared = False
        self.streams: dict[bytes, Stream] = {}
        self.direct: dict[bytes, Outcome] = {}
        self.twin = self.second = False


class Core:
    """Shared state. identity: its epoch may be raised. now: of the current call. generation: raised whenever a decision that is
    kept anywhere may be stale. on_drop: called when a link goes. journal: None without a
    store. born: the life since which this broker remembers. keys: who may speak for whom; None: nothing is signed. lives: which lives of
    brokers are known. fenced: this life has yielded to another one of its identity, says nothing more and takes nothing."""

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
        self.wall_offset = wall_offset
        self.generation = 0
        self.born = identity.epoch
        self.journal: Journal | None = None
        self.on_drop: Callable[[LinkEnd], None] = lambda end: None

    def enter(self, now: float) -> None:
        """A call from outside begins, which may change anything."""
        self.now = now
        self.stirred = True

    def drop(self, end: LinkEnd) -> None:
        """Forget a link; `on_drop` hears of it."""
        del self.links[end.id]
        if self.by_number.get(end.peer.number) is end:
            del self.by_number[end.peer.number]
            for other in [e for e in self.links.values() if e.second and e.peer.number == end.peer.number]:
                del self.links[other.id]
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

    def control(self, link: int, kind: str, body: Any, urgent: bool = True) -> None:
        """Send a control packet."""
        self.counters.control_sent += 1
        self.actions.append(Send(link, encode(kind, body), urgent))

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
