"""The parts of one broker, and what happens to its connections.

`server.py` makes a `Site`, starts its parts and stops them. Rooms above all parts take it: `publish/`, `client/`, `embedded/`,
`monitoring/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ..base.quoting import quoted
from .ledger import CONNECTIONS
from .persistence.handles import HandleWindow
from .ports import Connection
from .write_rounds import WriteRounds

if TYPE_CHECKING:
    from ..mesh.topology.settings import Limits
    from ..mqtt.batch.batch import Batch
    from .auth.guard import Guard
    from .config import BrokerConfig
    from .ledger import Account
    from .mesh.shell import MeshShell
    from .persistence.commits import Persistence
    from .ports import Admission, Attached, Backpressure, Context, DirectLane, Neighbours
    from .queues.shell import Queues
    from .recipients.overview import Overview
    from .recipients.shell import Recipients as Watched
    from .roaming.shell import Roaming
    from .routing.publication import Withheld
    from .routing.retained import Retained
    from .routing.route import Recipients
    from .routing.router import Router
    from .session.session import Session
    from .session.table import Sessions
    from .transport.in_process import InProcessPair
    from .transport.tls.service import TlsService
    from .transport.websocket.service import WebSocketService

log = logging.getLogger("mqmesh.broker")


class ClientConnection(Connection, Protocol):
    """The connection of a client, as rooms above the site see it; `client/connection.py` describes its attributes."""

    ack: bool | None
    admitted: dict[bytes, Recipients]
    admitted_at: int
    alias_maximum: int
    aliases_in: dict[int, bytes]
    account: Account
    allowance: float
    handed_over: bool
    inside: bool
    largest: int
    lost_by: Exception | None
    tally: dict[str, int] | None
    via: int
    last_received: float
    limits: Limits
    need: int
    out: list[bytes | bytearray]
    refuse_when_full: bool
    room: bool | None
    steps: Iterator[object] | None
    stuck_since: float
    site: Site
    taken: int
    withheld: Withheld | None

    @property
    def session(self) -> Session | None: ...

    @property
    def unacknowledged(self) -> int: ...

    @property
    def unsent(self) -> int: ...

    @property
    def weight(self) -> int: ...

    def bound_unsent(self, bound: int) -> None:
        """From now on it is congested when it has more unsent bytes than this."""

    def settle(self) -> None:
        """Tell the ledger what is unsent and in flight."""

    def check(self, now: float) -> None:
        """End it if it is silent, stuck or never introduced itself."""

    def confirm(self, qos: int, data: bytes | bytearray, count: int) -> None:
        """Send acknowledgements of PUBLISH."""

    def hold(self, wants_store: bool) -> None:
        """Keep what has come and read no more, until there is room."""

    def packet(self, first: int, body: bytes) -> None:
        """Take any packet but PUBLISH and bare acknowledgements."""

    def remember(self, topic: bytes, recipients: Recipients) -> None:
        """The client may publish plain messages to a topic."""

    def review(self) -> None:
        """Forget what the client may publish: routes or rules have changed."""

    def set_rules(self, apply: bool) -> None:
        """Ask anew for each topic what the client may publish, if the rules of access apply to it."""

    def wait_for_turn(self) -> None:
        """Work on what has come when it is its address's turn."""

    def work(self, steps: Iterator[object]) -> None:
        """Take the steps of a packet: at once while the slice lasts, the rest in turns."""

    def send_packet(self, packet: Any, answer: bool = False) -> None:
        """Send one control packet. answer: it goes as an acknowledgement does."""


class Site:
    """The parts of one broker.

    config: the broker's configuration.
    context: clock, loop, counters, limits.
    router: subscriptions and routes.
    guard: who a client is, and what it may do.
    retained: retained messages.
    handles: which messages with a publisher's handle were taken.
    sessions: sessions by client identifier.
    admission: bounds on connections.
    backpressure: who is slowed, for whom.
    rounds: when what connections are given is written.
    connections: network connections of clients.
    sent_before, received_before: PUBLISH packets of connections that are gone.
    mesh, roaming: None outside a mesh.
    persistence: what is stored; None without a store.
    queues: of this site, and clients of those elsewhere; None outside a mesh without a table `[queues]`.
    recipients: who is watched; None without a table `[recipients]`. overview: the same for operators.
    tls, websocket: None without listeners or links of that kind.
    registrar: the directory; None without one.
    attachments: brokers that are no members of the mesh, and that this one brings in.
    within: the connection of the client that runs in this process; None without one.
    direct: takes single messages to and from that client.
    all_lost: set while there is no connection.
    """

    __slots__ = (
        "_in_process",
        "_looking",
        "admission",
        "all_lost",
        "attachments",
        "backpressure",
        "config",
        "connections",
        "context",
        "direct",
        "guard",
        "handles",
        "mesh",
        "overview",
        "persistence",
        "queues",
        "received_before",
        "recipients",
        "registrar",
        "retained",
        "roaming",
        "rounds",
        "router",
        "sent_before",
        "sessions",
        "tls",
        "websocket",
        "within",
    )

    admission: Admission
    backpressure: Backpressure
    sessions: Sessions

    def __init__(self, config: BrokerConfig, context: Context, router: Router, guard: Guard, retained: Retained) -> None:
        self.config = config
        self.context = context
        self.router = router
        self.guard = guard
        self.retained = retained
        self.handles = HandleWindow(context.limits.publisher_handles)
        self.rounds = WriteRounds(context)
        self.connections: set[ClientConnection] = set()
        self.sent_before = 0
        self.received_before = 0
        self.mesh: MeshShell | None = None
        self.roaming: Roaming | None = None
        self.persistence: Persistence | None = None
        self.queues: Queues | None = None
        self.recipients: Watched | None = None
        self.overview: Overview | None = None
        self.tls: TlsService | None = None
        self.websocket: WebSocketService | None = None
        self.registrar: Neighbours | None = None
        self.attachments: Attached | None = None
        self.within: ClientConnection | None = None
        self.direct: DirectLane | None = None
        self._in_process: InProcessPair | None = None
        self._looking = False
        self.all_lost = asyncio.Event()
        self.all_lost.set()

    # Connections

    def connected(self, connection: ClientConnection) -> None:
        """A network connection was made."""
        self.context.counters.sockets += 1
        self.connections.add(connection)
        connection.account.charge(CONNECTIONS, connection.weight)
        self.admission.begin(connection, connection.address)
        self.all_lost.clear()

    def lost(self, connection: ClientConnection) -> None:
        """A network connection is gone, or handed over to the mesh."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.admission.end(connection)
        if self.persistence is not None:
            self.persistence.abandon(connection)
        if connection.tracker is not None:
            connection.tracker.close()
            connection.tracker = None
        if connection.tally and self.context.journal is not None:
            self.context.journal.tally.published(connection.tally, connection.user or "")
        self.sent_before += connection.sent
        self.received_before += connection.received
        self.backpressure.forget(connection)
        connection.account.close()
        if not self.connections:
            self.all_lost.set()

    def dismiss(self, connection: ClientConnection) -> None:
        """A connection is closed, from this side or the other: its session goes on without it or ends."""
        session = connection.session
        if session is None:
            return
        log.info(
            "event=disconnect client=%s address=%s clean=%s error=%s",
            quoted(connection.client_id),
            connection.address,
            connection.clean_end,
            connection.lost_by or "-",
        )
        self.context.refresh()
        if not connection.inside:
            self.context.event("clients", {"event": "disconnected", "client": connection.client_id, "user": connection.user})
        if session.connection is connection:
            self.context.counters.clients -= 1
            if self.queues is not None:
                self.queues.left(session)
            self.sessions.leave(session, connection.clean_end)

    def look_at_connections(self) -> None:
        """Look at each connection (`ClientConnection.check`), in turns: very many may be silent at once. Not before all were looked at."""
        if not self._looking:
            self._looking = True
            turns = self.context.turns
            turns.run(turns.ends, self._looks(), "work=connections")

    def _looks(self) -> Iterator[None]:
        try:
            for connection in list(self.connections):
                connection.check(self.context.loop.time())
                yield
        finally:
            self._looking = False

    # A client in this process

    def joined(self, pair: InProcessPair, connection: ClientConnection) -> None:
        """A client in this process is connected."""
        self._in_process = pair
        self.within = connection

    def hand_over(self) -> None:
        """Give the client in this process what has come for it. Before a flush, with which its answers leave then."""
        assert self.within is not None
        assert self._in_process is not None
        self._in_process.pump_after(self.within.flush)

    # Messages

    @property
    def next_commit(self) -> int:
        """The ticket of the commit that holds what is changed now; 0 without a store."""
        return self.persistence.next_commit if self.persistence is not None else 0

    def retain(self, batch: Batch, payer: Account | None = None) -> bool:
        """Keep or delete a topic's retained message. False: there is no room for it (counted). payer: account of who publishes it.

        What a mesh shares its shell has kept, or not, for all sites alike.
        """
        if (self.mesh is not None and not batch.topic.startswith(b"$")) or self.retained.store(batch, payer=payer):
            return True
        self.context.counters.dropped += 1
        return False
