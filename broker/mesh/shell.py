"""The mesh's shell in one broker: sockets, timers and logs around `mesh.node.Node` and `mesh.link.Link`.

A link is one TCP (or Unix socket) connection, dialled by one side to the other's ordinary listener. Every link of the same
pair but one is closed: a new connection from the same side ends the old one; when both sides dial, the connection of the lower
number stays. A peer that cannot be reached is tried again with back-off, and the reason is logged once and shown in
`$SYS/broker/mesh/status`.

What `Node` decides comes back as a list of actions, which `MeshShell.drain` carries out: send, deliver to local subscribers,
drop cached routes, close a link. Nothing here chooses a path.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from ...base.alarm import Alarm
from ...base.quoting import quoted
from ...base.refusals import Refusals
from ...mesh.link.channel import Channel
from ...mesh.link.link import Link
from ...mesh.link.settings import IN_ORDER, LinkConfig
from ...mesh.node import actions
from ...mesh.node.node import MeshConfig, Node, Verdict
from ...mesh.topology.rules import LinkRules, rules_for
from ...mesh.topology.settings import HIGHEST_COST, MeshSettings, PeerSettings
from ...mesh.wire.identity import BLOCK, PROTOCOL, Identity
from ...mesh.wire.keys import Keys, Signer
from ...mqtt import packets
from ...mqtt.batch.batch import Batch
from ...mqtt.batch.parts import PartsBatch
from ...mqtt.reasons import Reason
from ...mqtt.topics import matches
from ..journal.kinds import Kind
from ..ports import AWAY, HELD
from ..roaming.shell import Roaming
from ..routing.route import Recipients
from ..transport.tls.service import trusted_names
from ..transport.tls.transport import TlsTransport
from .custody_store import Custody, stored_identity
from .dialer import Dialler
from .identity import NOTHING, Fenced, keep_identity, own_identity, own_signer, read_identity
from .incoming import Incoming
from .link import LinkProtocol
from .peer_message import PeerMessages
from .rate import RateLimiter
from .receipts import Receipts
from .returned import Returned
from .status import status_of, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...store import Store
    from ..config import BrokerConfig
    from ..ledger import Account
    from ..persistence.commits import Persistence
    from ..ports import Admission, Connection, Context, Neighbours
    from ..queues.sites.sites import Sites
    from ..recipients.shell import Recipients as Watched
    from ..routing.retained import Retained
    from ..routing.router import Route, Router
    from ..session.table import Sessions
    from ..transport.tls.service import TlsService

log = logging.getLogger("mqmesh.mesh")

STATUS_INTERVAL = 1.0  # seconds between two issues of the status while only its counters change
STATUS_DELAY = 0.05  # seconds in which changes are collected into one status
STEADY = 1.0  # seconds that a link has to live for the next attempt to come soon: one that breaks at once must not stir the mesh
FENCED = (
    "another broker with this identity is alive, so this one has stopped: give this data folder an identity of its own "
    "(mqmesh identity new), or let it take the other's place (mqmesh identity claim), then start it again"
)
CLIENTS_ONLY = "is for clients only: a broker's is made for servers too (extended key usage)"
MASK = 2**63 - 1
REASON = 200  # characters of a reason that the journal keeps
KEPT = (actions.Deliver, actions.PeerMessage)  # what may wait for room in the store
HELD_MAX = 5.0  # seconds that a publisher waits for room in the mesh before MQTT 5 is answered 0x97


class MeshShell:
    """The membership of one broker in one mesh."""

    def __init__(
        self,
        context: Context,
        config: BrokerConfig,
        settings: MeshSettings,
        router: Router,
        retained: Retained,
        sessions: Sessions,
        connections: set[Any],
        store: Store | None,
        admission: Admission,
    ) -> None:
        """connections: of clients. store: not yet open; None: nothing is kept. Raises OSError for an identity that cannot be kept."""
        self.context = context
        self.config = config
        self.settings = settings
        self.router = router
        self.retained = retained
        self.sessions = sessions
        self.connections = connections
        self.admission = admission
        self.persistence: Persistence | None = None
        self.tls: TlsService | None = None
        self.registrar: Neighbours | None = None
        stored = None if store is None else stored_identity(store)
        self.signer = own_signer(config.data)
        self.standing = NOTHING if config.data is None else read_identity(config.data)[1]
        who = settings.name, config.name, config.number
        self.identity = own_identity(config.data, *who, stored, self.signer.public, self.standing)
        self.node = Node(
            self.identity,
            _node_settings(settings, config.worker is not None),
            context.wall() - context.loop.time(),
            _keys(config, settings, self.signer),
            self.standing.claim,
            self.standing.former,
        )
        self.incoming = Incoming(self)
        self.key = settings.key.encode()
        self.links: dict[int, LinkProtocol] = {}
        self.costs: dict[int, int] = {}  # number of a peer -> what an operator said that a link dialled by it costs here
        self.by_number: dict[int, LinkProtocol] = {}
        self.errors: dict[str, str] = {}  # address that is dialled -> why there is no link
        self.down_since: dict[str, float] = {}  # the same address -> since when, in seconds since 1970
        self.met: dict[str, Identity] = {}  # address that is dialled -> who was linked from there last
        self._refusals = Refusals(log, "link-refused")
        self._last_number = 0
        self._pending: dict[int, packets.Connect] = {}
        self.dialler = Dialler(self)
        self._held: dict[Connection, asyncio.TimerHandle] = {}
        self._alarm = Alarm(self._handle_timer)
        self._status_alarm = Alarm(self._say_status)
        self.reporter: Callable[[str], None] | None = None  # is told each status too
        self._draining = False
        self.custody: Custody | None = None  # what the store has of it
        self.open = False  # links may come up
        self._returned = Returned(lambda number: self.node.name(number))
        self.fenced = "" if self.standing.fenced is None else FENCED  # why this broker serves nobody: a copy of it lives
        self.starting = settings.start_waits > 0 and not self.fenced  # clients wait: it is not known what others want
        self._early: list[tuple[Connection, packets.Connect]] = []  # those who do
        self._start_timer: asyncio.TimerHandle | None = None
        self.peer_messages = PeerMessages(context, self.node, self.saved, self._gathers)
        self.roaming: Roaming | None = None
        self.recipients: Watched | None = None
        self.queues: Sites | None = None
        self._waking = False
        self.receipts = Receipts(context, self.node, connections, settings.receipts_wait, settings.receipts_kept)
        self.node.reserve(router.access.reserved)
        router.receipts = self._wants_receipts

    def _wants_receipts(self, topic: str) -> bool:
        """Whether the configuration has messages of a topic acknowledged behind receipts."""
        settings = self.settings
        return settings.ack == "receipts" or any(matches(topic_filter, topic) for topic_filter in settings.receipt_topics)

    def now(self) -> float:
        return self.context.loop.time()

    # Life

    def recover(self, persistence: Persistence) -> None:
        """Go on where an earlier life of this broker was. Raises StoreError."""
        self.persistence = self.receipts.persistence = persistence
        self.custody = Custody(persistence, self.node, self._wake)
        self.node.set_kept_offset(persistence.offset)
        self.custody.recover_retained(self.retained, self.now())
        held = self.custody.recover(self.now())
        if self.node.informed:
            self.starting = False
        if held:
            log.info("event=custody-recovered messages=%d", held)
        if self.roaming is not None:
            self.roaming.recover(persistence)

    def _wake(self) -> None:
        """The node was told of a commit: see what it wants, once this piece of work is done."""
        if not self._waking:
            self._waking = True
            self.context.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._waking = False
        self.context.flush()

    def start(self) -> None:
        """Dial the configured peers, once it is kept which life this is: nobody may remember one that this broker forgets."""
        persistence = self.persistence
        if self.starting:
            self._start_timer = self.context.loop.call_later(self.settings.start_waits, self._serve)
        if self.custody is None or persistence is None:
            self._dial_all()
        else:
            persistence.flush()
            persistence.begin_commit()
            persistence.when(persistence.mark(), self._dial_all)

    def _dial_all(self) -> None:
        if self.fenced:
            log.error("event=fenced twin=%s text=%s", self.standing.fenced.twin if self.standing.fenced else "?", self.fenced)
            self.status_soon()
            return
        self.open = True
        for peer in self.settings.peers:
            self.dialler.dial(peer)
        self.status_soon()
        self.drain()

    def add_peer(self, peer: PeerSettings) -> None:
        """Dial one neighbour more, from now on."""
        self.settings.peers = [*self.settings.peers, peer]
        if self.open:
            self.dialler.dial(peer)

    def stop(self) -> None:
        """Say goodbye, so that neighbours route around this broker at once."""
        self.dialler.stop()
        for link in list(self.links.values()):
            link.close(Reason.SERVER_SHUTTING_DOWN, f"{self.identity} is shutting down")
        for timer in (self._alarm, self._status_alarm, self._start_timer, *self._held.values()):
            if timer is not None:
                timer.cancel()
        if self.custody is not None:
            self.custody.ended()

    # Clients that come before it is known what other brokers want

    def keep_waiting(self, connection: Connection, connect: packets.Connect) -> None:
        """Answer a client's CONNECT later: what it publishes now would be acknowledged and reach nobody elsewhere."""
        connection.held = True
        connection.pause_reading_for(HELD)
        self._early.append((connection, connect))

    def _serve(self) -> None:
        """Clients wait no more: a neighbour has said what others want, or none has been there for long enough."""
        if not self.starting:
            return
        self.starting = False
        self.context.now = self.now()
        if self._start_timer is not None:
            self._start_timer.cancel()
        early, self._early = self._early, []
        log.info("event=serving informed=%s clients=%d", self.node.informed, len(early))
        for connection, connect in early:
            connection.admit(connect)

    # Links

    def accept(self, connection: Connection, connect: packets.Connect) -> None:
        """A connection's CONNECT says that it is a link; `adopt` follows with the rest of its bytes."""
        self._pending[id(connection)] = connect

    def adopt(self, connection: Connection, rest: bytes) -> None:
        """Take over the transport of a connection that is a link."""
        connect = self._pending.pop(id(connection))
        if not self.open:
            connection.transport.abort()  # it will try again
            return
        self.connections.discard(connection)
        connection.closing = True
        config = self.link_config(None, connection.address, self.channel(connection.transport.get_extra_info("tls")))
        holders, signer, why_not = self.node.holders(), self.signer, self.node.why_not
        machine = Link.accept(self.identity, self.key, config, connect, rest, self.now(), holders, signer=signer, why_not=why_not)
        link = self.make_link(machine, 1, connection.address)
        self.admission.begin_link(link, connection.address)
        connection.transport.set_protocol(link)
        link.connection_made(connection.transport)
        link.data_received(b"")

    def link_config(self, peer: PeerSettings | None, where: str, channel: Channel, form: int = PROTOCOL) -> LinkConfig:
        number, name = (None, None) if peer is None else (peer.number, peer.name)
        return LinkConfig(
            silence=self.settings.silence,
            handshake=self.config.limits.connect_timeout if peer is not None else self.config.limits.link_timeout,
            number=number,
            where=where,
            name=name,
            channel=channel,
            brokers=self.settings.brokers,
            lowest=self.settings.lowest_protocol,
            form=form,
        )

    def channel(self, tls: TlsTransport | None, host: str | None = None) -> Channel:
        """What a link runs over. host: that was dialled; None for the end that was dialled, which asks nobody's host for a name."""
        if tls is None:
            return Channel(b"", frozenset() if self.settings.certified else None)
        if self.settings.certified:
            return Channel(tls.binding, tls.names, CLIENTS_ONLY if host is None and not tls.serves else "")
        return Channel(tls.binding, None if host is None else trusted_names(tls, host))

    def make_link(self, machine: Link, cost: int, address: str) -> LinkProtocol:
        self._last_number += 1
        return LinkProtocol(self, machine, self._last_number, cost, address)

    def link_up(self, link: LinkProtocol, peer: Identity, incarnation: int) -> None:
        """The handshake is done: make the link the one for this peer, or give it up for the one that stands."""
        if link.machine.dialled:
            configured = next((one for one in self.settings.peers if one.address == link.address), None)
            if configured is None:  # it was removed meanwhile
                link.close(Reason.ADMINISTRATIVE_ACTION, f"{self.identity} does not dial {link.address} any more")
                return
            link.cost = configured.cost
        else:
            link.cost = self.costs.get(peer.number, link.cost)
        twin = peer.twin_of(self.identity)
        old = None if twin else self.by_number.get(peer.number)
        second = old is not None and old.peer is not None and old.peer.twin_of(peer)  # both stay until one of them yields
        if old is not None and old.peer is not None and not second:
            if old.peer.same_life(peer) and old.machine.dialled != link.machine.dialled and not self._preferred(link):
                link.close(Reason.SERVER_BUSY, f"{self.identity} and {peer} are linked already")
                return
            old.close(Reason.SESSION_TAKEN_OVER, f"{peer} and {self.identity} have a new connection")
        link.up = True
        self.admission.end_link(link)
        rules = link.rules = rules_for(self.settings.rules, peer)
        if rules.paced:
            peer = peer._replace(capabilities=peer.capabilities - {BLOCK})  # a limiter counts and parts messages
            link.limiter = RateLimiter(rules.bytes_out, rules.messages_out, self.now(), self.config.limits.link_unsent_bytes)
        self.links[link.id] = link
        if not (twin or second):
            self.by_number[peer.number] = link
        self.errors.pop(link.address, None)
        self.down_since.pop(link.address, None)
        link.since = self.context.wall()
        log.info(
            "event=link-up peer=%s number=%d address=%s cost=%d incarnation=%x policy=%s",
            peer.name,
            peer.number,
            link.address,
            link.cost,
            incarnation,
            words_of(rules),
        )
        self.node.link_up(link.id, peer, incarnation, self.cost_of(link), self.now(), rules.policy)
        self.context.event("links", {"event": "up", "name": peer.name, "number": peer.number, "address": link.address})
        hooks = self.context.hooks
        if hooks is not None:
            hooks.link_up(peer.name, peer.number)
        if self.context.journal is not None:
            values = {"address": link.address, "name": peer.name, "epoch": peer.epoch, "cost": link.cost}
            self.context.journal.event(Kind.LINK_UP, to_broker=peer.number, value=incarnation & MASK, detail=values)
        self.status_soon()

    def cost_of(self, link: LinkProtocol) -> int:
        """What a link costs: a broker that is drained is a detour."""
        return HIGHEST_COST if self.context.draining else link.cost

    def set_rules(self, rules: dict[int | str, LinkRules]) -> int:
        """Take over other rules for links: how many links end because theirs have changed. A link keeps its rules for its whole life."""
        self.settings.rules = rules
        changed = [link for link in self.links.values() if link.peer is not None and rules_for(rules, link.peer) != link.rules]
        for link in changed:
            link.close(Reason.ADMINISTRATIVE_ACTION, f"the policy of {self.identity} for {link.peer} has changed")
        return len(changed)

    def refused(self, link: LinkProtocol, reason: Reason, text: str) -> None:
        """A link that was dialled by another broker did not come up: say why here too, now and then while it tries again."""
        if link.peer is not None and (link.peer.uuid, link.peer.name) == (self.identity.uuid, self.identity.name):
            return  # a link to itself: the dialling end says so
        self._refusals.say(self.now(), link.address, text, what=f"0x{reason:02x}")  # strangers choose the text

    def _preferred(self, link: LinkProtocol) -> bool:
        """Of two connections of one pair the one that the lower number dialled stays."""
        assert link.peer is not None
        return link.machine.dialled == (self.identity.number < link.peer.number)

    def link_closed(self, link: LinkProtocol, reason: Reason, text: str) -> None:
        """A link is over; harmless when it never was up or is known to be over."""
        if self.links.pop(link.id, None) is None:
            return
        if link.peer is not None and self.by_number.get(link.peer.number) is link:
            del self.by_number[link.peer.number]
        level = logging.INFO if reason in IN_ORDER or self.context.stopping else logging.WARNING
        name, number = (link.peer.name, link.peer.number) if link.peer is not None else ("?", "?")
        log.log(level, "event=link-closed peer=%s number=%s address=%s text=%s", name, number, link.address, text)
        self.node.link_down(link.id, self.now())
        if link.peer is not None:
            self.context.event("links", {"event": "down", "name": link.peer.name, "number": link.peer.number, "text": text[:REASON]})
        hooks = self.context.hooks
        if hooks is not None and link.peer is not None:
            hooks.link_down(link.peer.name, link.peer.number)
        if self.context.journal is not None and link.peer is not None:
            values = {"address": link.address, "name": link.peer.name}
            self.context.journal.event(Kind.LINK_DOWN, to_broker=link.peer.number, reason=text[:REASON], detail=values)
        self.status_soon()

    # Interest and messages

    def subscribe(self, topic_filter: str, group: str | None, weight: int) -> None:
        """The first local subscription of a filter, or a shared one whose number of members changed."""
        if not topic_filter.startswith("$"):  # such topics stay in their broker
            self.node.subscribe(topic_filter, group, weight, self.now())

    def unsubscribe(self, topic_filter: str, group: str | None) -> None:
        """The last local subscription of a filter is gone."""
        if not topic_filter.startswith("$"):
            self.node.unsubscribe(topic_filter, group, self.now())

    def route(self, topic: bytes) -> actions.MeshRoute | None:
        """Who wants the topic elsewhere."""
        return self.node.route(topic)

    def publish(self, to: Route | Recipients, run: Batch, hold: bool = False, payer: Account | None = None) -> int | None:
        """A local client's batch goes into the mesh.

        hold: for a will: QoS 1 leaves only after the commit, and it goes out though there is no room to retain it.
        payer: account that is charged for what is retained. Returns 0, the reason code for a run that cannot travel or be retained,
        `AWAY`, or None: no room for QoS 1 or 2, or routes have changed and the messages of a batch that is no run do not go together any
        more. Unless it is 0, nothing was taken.
        """
        if isinstance(to, Recipients):
            return self._publish_parts(to.mask, run.parts())
        mesh = to.mesh
        keep = False
        if run.retain and not run.topic.startswith(b"$"):
            self.incoming.weigh()
            keep = self.retained.room(run, payer)
            if not keep:
                self.context.counters.dropped += run.count
                if run.qos and not hold:
                    return Reason.QUOTA_EXCEEDED
            if mesh is None:
                mesh = self.node.route(run.topic, True)
        if mesh is None:
            return 0
        try:
            verdict = self.node.publish(mesh, run, self.context.now, to.local_groups, keep, hold)
        except ValueError as error:
            log.warning("event=too-long topic=%s text=%s", quoted(to.topic), error)
            self.context.counters.dropped += run.count
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        if run.qos and self.custody is not None:
            self.custody.save()
        if verdict is not Verdict.TAKEN:
            return None if verdict is Verdict.FULL else AWAY
        if keep:
            self.retained.store(run, always=True, payer=payer)
        return 0

    def _publish_parts(self, mask: int, parts: PartsBatch) -> int | None:
        """Messages of different topics that go to the same brokers; see `publish`."""
        verdict = self.node.publish_parts(mask, parts, self.context.now)
        if verdict is None:
            self.drain()
        elif parts.qos and self.custody is not None:
            self.custody.save()
        return 0 if verdict is Verdict.TAKEN else None

    def mask(self, route: actions.MeshRoute) -> int | None:
        """The brokers elsewhere that messages of a topic can go to together with those of other topics; None: they go singly."""
        return None if self.settings.mode == "flood" else route.mask

    @property
    def ordinary(self) -> bool:
        """Whether what comes from elsewhere can be delivered at once: nothing waits for room, and no session is on its way."""
        if self._draining or self.incoming.store_full or self.incoming.waiting:
            return False
        return self.roaming is None or not self.roaming.moving

    def _gathers(self) -> None:
        """Posts wait for the end of this piece of work: they belong into the open batch."""
        if self.persistence is not None:
            self.persistence.dirty[self.peer_messages] = None

    def saved(self) -> None:
        """What the node was just told belongs into the open batch."""
        if self.custody is not None:
            self.custody.save()

    def hold_back(self, order: int, connection: Connection, answer: bytes) -> None:
        """A message may wait for its receipts, unwritten. order: of `SingleMessages.hold_back`. answer: to its publisher."""
        assert self.custody is not None, "without a store nothing is written"
        self.custody.hold_back(order, connection, answer)

    def hold(self, connection: Connection) -> None:
        """A publisher waits for room; MQTT 5 is answered 0x97 after a while."""
        if connection not in self._held:
            self._held[connection] = self.context.loop.call_later(HELD_MAX, self._release, connection, connection.version == 5)

    def _release(self, connection: Connection, refuse: bool) -> None:
        timer = self._held.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.release(refuse)

    def drain(self) -> None:
        """Carry out what the node decided since the last call, and write to the links."""
        if self._draining:
            return
        self.peer_messages.write_state()
        if not self.node.stirred:
            return
        self._draining = True
        touched: set[LinkProtocol] = set()
        links, incoming, node = self.links, self.incoming, self.node
        more = True  # whether the node may have decided more meanwhile: what is only sent changes nothing
        unsettled = False
        try:
            while more:
                more = False
                unsettled = unsettled or node.unsettled
                if self.roaming is not None:
                    self.roaming.busy()
                for action in node.take():
                    if type(action) is not actions.Send:
                        if not ((incoming.store_full or incoming.waiting) and isinstance(action, KEPT) and incoming.waits(action)):
                            self.carry_out(action)
                        more = True
                    elif (link := links.get(action.link)) is not None:
                        link.send(action.data, action.urgent)
                        touched.add(link)
                self.peer_messages.write_state()  # what their handlers post
        finally:
            self._draining = False
        if self.custody is not None:
            self.custody.save_soon()
        self._returned.say()
        for link in touched:
            link.flush()
        if unsettled:
            self._set_timer()

    def carry_out(self, action: actions.Action) -> None:
        """Anything but `Send`."""
        if isinstance(action, actions.Deliver):
            if self.roaming is None:
                self.incoming.deliver(action)
            else:
                self.roaming.deliver(action)
        elif isinstance(action, actions.PeerMessage):
            self.peer_messages.received(action)
            self.incoming.carried_out(action.origin, action.token)
        elif isinstance(action, actions.Retained):
            self.incoming.retained(action)
        elif isinstance(action, actions.FiltersChanged):
            self.router.filters_changed(action.filters)
            if self.roaming is not None:
                self.roaming.interest_changed()
            self.status_soon()
        elif isinstance(action, actions.Confirmed):
            self.receipts.confirmed(action.watch)
        elif isinstance(action, actions.Unblocked):
            for connection in list(self._held):
                self.context.loop.call_soon(self._release, connection, False)
            self.peer_messages.unblocked()
        elif isinstance(action, actions.CloseLink):
            link = self.links.get(action.link)
            if link is not None:
                link.close(action.reason, action.text)
        elif isinstance(action, actions.ReadPage):
            assert self.custody is not None
            self.custody.read_page(action.order)
        elif isinstance(action, actions.GivenUp):
            self.context.counters.dropped += action.messages
            self._returned.given_up(action.destination, action.reason, action.messages)
        elif isinstance(action, actions.Returned) and self.peer_messages.returned(action):
            pass
        elif isinstance(action, actions.Returned):
            self.context.counters.dropped += action.run.count
            if action.run.mark is not None and self.context.journal is not None:
                self.context.journal.given_up(action.run, action.destination, action.reason)
            self._returned.came(action.destination, action.reason, action.run)
        elif isinstance(action, actions.Event) and action.name not in ("link_up", "link_down"):  # said with addresses already
            if self.roaming is not None:
                self.roaming.event(action)
            if self.recipients is not None:
                self.recipients.announcing.event(action)
            if self.queues is not None:
                self.queues.event(action)
            self._log(action)
            if action.name == "epoch_raised":
                self._keep_epoch()
            elif action.name == "fenced":
                self._end_life(action.fields)
            elif action.name == "member_up":
                self.context.loop.call_soon(self.sessions.joined)  # behind the interest that came with it
                if self.persistence is not None:
                    self.persistence.retry()
            elif action.name == "informed":
                self.context.loop.call_soon(self._serve)
            self.status_soon()

    def _log(self, event: actions.Event) -> None:
        """An event that has a text is for whoever has to mend something; so is a site that is missing."""
        warns = "text" in event.fields or (event.name == "member_down" and not self.context.stopping)
        fields = " ".join(f"{key}={value}" for key, value in event.fields.items())
        log.log(logging.WARNING if warns else logging.INFO, "event=%s %s", event.name.replace("_", "-"), fields)

    def _end_life(self, fields: dict[str, Any]) -> None:
        """Another broker with this identity lives: serve nobody until an operator has decided, also after a restart."""
        self.fenced, self.open = FENCED, False
        self.standing = self.standing._replace(fenced=Fenced(str(fields["twin"]), self.context.wall(), tuple(fields["common"])))
        self._keep_epoch()
        self.dialler.stop()
        self._serve()
        for connection in [one for one in self.connections if not one.inside]:
            self.context.loop.call_soon(connection.disconnect, Reason.USE_ANOTHER_SERVER, "this broker is a copy, and has stopped")

    def _keep_epoch(self) -> None:
        """The epoch was raised above that of an earlier life: the next one begins above it."""
        self.identity = self.node.identity
        data = self.config.data
        if data is not None:
            try:
                keep_identity(data, self.identity, self.standing)
            except OSError as error:
                log.error("event=identity-not-kept folder=%s text=%s", data, error)

    # The store

    def reaches(self, route: actions.MeshRoute) -> bool:
        """Whether all brokers that want a topic can be reached."""
        return self.node.reaches(route)

    def store_changed(self, full: bool, on_its_way: int) -> None:
        """The store keeps nothing more, or takes again. on_its_way: bytes that may be on their way to each site; 0: no bound."""
        self.incoming.store_full = full
        self.node.tighten(on_its_way)
        self.context.loop.call_soon(self.drain)  # somebody may have waited for that

    def store_has_room(self) -> None:
        """Go on with what has come and waits for room in the store."""
        self.incoming.go_on()

    # Timers and status

    def _set_timer(self) -> None:
        deadline = self.node.next_deadline()
        if deadline is not None:
            self._alarm.set(self.context.loop, deadline)

    def _handle_timer(self, at: float) -> None:
        # uvloop counts in milliseconds: its timer may come a little early, and would be set again for now, many times over
        self.node.handle_timer(max(self.now(), at))
        self.context.flush()

    def status_soon(self, delay: float = STATUS_DELAY) -> None:
        self._status_alarm.set(self.context.loop, self.now() + delay)

    def _say_status(self, at: float) -> None:
        self.context.now = self.now()
        self.incoming.weigh()
        topic = "$SYS/broker/mesh/status" if self.config.worker is None else "$SYS/broker/workers/status"
        text = json.dumps(self.status(), separators=(",", ":"), sort_keys=True)
        self.context.say(topic, text)
        if self.reporter is not None:
            self.reporter(text)
        self.context.flush()
        self.status_soon(STATUS_INTERVAL)

    def status(self) -> dict[str, object]:
        """Links, members, digest and counters of this broker's view, fit for JSON."""
        return status_of(self)


def _keys(config: BrokerConfig, settings: MeshSettings, signer: Signer) -> Keys:
    """Who may speak for which broker, as far as the broker's file says it."""
    given = {name: bytes.fromhex(key) for name, key in settings.keys.items()}
    return Keys(settings.name, config.number, config.name, signer, given, settings.brokers)


def _node_settings(settings: MeshSettings, workers: bool) -> MeshConfig:
    """What the mesh core is told of the broker's file. workers: it is the mesh inside a broker."""
    return MeshConfig(
        mode="flood" if settings.mode == "flood" else "routed",
        retained_compare=settings.retained_compare,
        deletions_kept=settings.deletions_kept,
        keys_held=settings.keys_held,
        managers=None if settings.managers is None else tuple(settings.managers),
        bounds=settings.custody,
        share="available" if settings.share == "available" else "once",
        forget_after=settings.forget_after,
        one_broker=workers,
    )
