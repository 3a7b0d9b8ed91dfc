"""One site: a `Node`, its subscribers and its disk, driven as the real shell drives it.

Deliveries to subscribers, the node's records and what was promised to publishers go into batches, and batches to the disk one after the
other, each taking some time; a disk that fails lets none through until it works again. Subscribers are durable sessions: what
they got is what is on the disk. A crash loses what is not there; of the batch that is being written nobody knows.

At a site that is `clean` the sessions end with the broker: they get QoS 0 and 1 at once, before any commit, and receipts of single messages
wait for none. A site that `holds` back single messages leaves them unwritten for a while, and acknowledges QoS 1 once all receipts
have come.

A site without a disk (`durable` False) commits in memory and loses all with its life. A site that restarts without its disk keeps its UUID
and its epoch, which stand in one small file; one that is wiped loses these too and comes back as another broker under the same number.

Publishers repeat QoS 2 that was not acknowledged when their broker crashed, as it keeps its packet identifiers with its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING
from uuid import UUID

from mqmesh.mesh.custody.journal import Records
from mqmesh.mesh.custody.pages import Page, decode_body
from mqmesh.mesh.node.actions import (
    CloseLink,
    Confirmed,
    Deliver,
    Event,
    FiltersChanged,
    GivenUp,
    PeerMessage,
    ReadPage,
    Retained,
    Returned,
    Send,
    Unblocked,
    Verdict,
)
from mqmesh.mesh.node.node import Identity, Node
from mqmesh.mesh.retained import DeleteValue, PutValue, Record
from mqmesh.mesh.view.lives import Former
from mqmesh.mesh.wire.identity import CAPABILITIES, LIFE_BYTES
from mqmesh.mesh.wire.keys import Keys, Signer
from mqmesh.mqtt.batch.parts import PartsBatch
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.topics import matches

from .asked import take
from .disk import Disk

if TYPE_CHECKING:
    from mqmesh.mesh.retained.sync import _Neighbour
    from mqmesh.mesh.view.interest import Match

    from .wire import Connection
    from .world import World

SKEWS = (0.0, 0.0, -50.0, 30.0)  # of wall clocks, seconds
HOLD = 0.3  # seconds that a message may be held back, and that the disk may be left alone after that
WRITTEN = 0, None, 0.0, 0  # nothing is left unwritten


class Batch:
    """What is committed together. effects: what then is so, whether anybody hears of it or not. tokens: of deliveries. behind: some of
    them wait for the commit at a site whose sessions are clean."""

    def __init__(self) -> None:
        self.records: list[Records] = []
        self.retained: list[PutValue | DeleteValue] = []
        self.effects: list[Callable[[], None]] = []
        self.tokens: list[int] = []
        self.known: dict[str, Match] = {}  # who elsewhere wants each topic
        self.behind = False

    def __len__(self) -> int:
        return len(self.records) + len(self.retained) + len(self.effects) + len(self.tokens)


class Site:
    """A broker that may be up (`node`) or down (None). life: how often it has started."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.uid = number  # of this site for good; a copy of its data folder is another site, under the same number
        self.numbers = {number}  # that it has had
        self.copied = 0  # of a copy: up to which place messages were published before it was made
        self.claim = 0
        self.former: Former | None = None
        self.fenced: tuple[tuple[int, int], ...] | None = None  # it has yielded to a copy; what the other one holds of their past
        self.uuid = UUID(int=world.chance.getrandbits(128))
        self.signer = Signer(number.to_bytes(32, "big"))  # also of a folder that was wiped: who operates it has a copy
        self.life = 0
        self.epoch = 0
        self.epochs: set[int] = set()  # that it has had
        self.skew = world.chance.choice(SKEWS)
        self.node: Node | None = None
        self.durable = True
        self.disk = Disk()
        self.broken_until = 0.0  # when commits work again
        self.open = Batch()
        self.sealed: Batch | None = None
        self.unacknowledged: dict[int, tuple[Run, Callable[[], object]]] = {}
        self.again: list[Callable[[], object]] = []  # what publishers will repeat
        self.publishes = 0
        self.connections: dict[int, Connection] = {}
        self.subscriptions: dict[tuple[str, str | None], int] = {}
        self.blocked = False
        self.view: dict[bytes, bytes] = {}  # what is retained, as subscribers would find it
        self.wake: float | None = None  # when the next timer fires
        self.flushing = False
        self.routes: dict[bytes, object] = {}  # as the real shell keeps them
        self.picky = 0.0  # how often it refuses a pick
        self.snubs_until = 0.0  # until when it refuses every other one at least
        self.commit_delay = 0.0
        self.promised: Callable[[], None] | None = None  # what happens behind the next acknowledgement, once
        self.replaced = False  # the next life is another broker's first
        self.known: dict[str, Match] = {}  # as of the last commit, who elsewhere wants each topic
        self.lacks: frozenset[str] = frozenset()  # capabilities that its release does not have
        self.upgraded = False  # the next life is of this release
        self.clean = False  # sessions end with the broker
        self.holds = False  # single messages are held back
        self.held_back = self.settled_early = 0  # of these, and those acknowledged before a commit
        self._orders: dict[int, Run] = {}  # of messages in custody that were written in this life
        self._unwritten: tuple[int, Run | None, float, int] = WRITTEN  # see `_leave_unwritten`

    # ---- life

    def start(self) -> None:
        """Begin a life, with what the disk holds."""
        world = self.world
        if self.fenced is not None:
            return  # until an operator has decided
        self.life += 1
        if self.upgraded and self.life > 1:
            self.lacks = frozenset()
        if self.replaced:
            self.replaced = False
            world.ledger.forgot(self)
        clock = int((world.clock.now + 1_000 + self.skew) * 1000)
        random = blake2b(b"%d %d" % (self.uid, self.life), key=self.uuid.bytes, digest_size=LIFE_BYTES).digest()
        self.epoch = max(self.epoch + 1, clock) + int.from_bytes(random[2:4])
        self.epochs.add(self.epoch)
        name = f"site{self.number}"
        keys = Keys("mesh", self.number, name, self.signer, None) if world.keyed else None
        able = CAPABILITIES - self.lacks
        identity = Identity("mesh", name, self.number, self.uuid, self.epoch, self.signer.public, random, able)
        node = self.node = Node(identity, world.config, 1_000 + self.skew, keys, self.claim, self.former)
        if self.durable:
            self.disk.restore(node, world.clock.now)
            records = node.records()
            assert records is not None
            self.disk.apply(records)
            node.committed(records.mark, world.clock.now)
            for topic, match in self.known.items():
                found = node.interests.match(topic)
                assert found == match, f"site {self.number} restarts and believes that {found} want {topic}, it knew {match}"
        self.view = {bytes(run.topic): run.payloads[0] for run in node.retained()}
        self.wake = None
        for (filter_, group), weight in self.subscriptions.items():
            node.subscribe(filter_, group, weight, world.clock.now)
        self.connections.clear()
        self.routes.clear()
        self.blocked = False
        self.flush()
        again, self.again = self.again, []
        for what in again:
            world.clock.after(1.0, lambda what=what: self.repeat(what))  # when interest is known again

    def repeat(self, what: Callable[[], object]) -> None:
        """A publisher is back and repeats what was not acknowledged."""
        if self.node is None or self.blocked:
            self.world.clock.after(0.05, lambda: self.repeat(what))
        else:
            what()

    def crash(self) -> None:
        """Die. The disk stays as it is at this moment; what was being written may be there or not."""
        assert self.node is not None
        if self.sealed is not None and self.world.clock.now >= self.broken_until and self.world.chance.random() < 0.5:
            self._store(self.sealed)
        self.open, self.sealed = Batch(), None
        if self.durable:
            self.again += [again for run, again in self.unacknowledged.values() if run.qos == 2]
        self.unacknowledged.clear()
        self._orders.clear()
        self._unwritten = WRITTEN
        if not self.durable:
            self.world.ledger.forgot(self)
        self.epoch = max(self.epoch, self.node.identity.epoch)
        self.node = None
        self.life += 1
        for connection in list(self.connections.values()):
            connection.end(hard=True)
        self.connections.clear()

    def copy(self, uid: int) -> Site:
        """A copy of the data folder, on another machine that is not up yet."""
        twin = Site(self.world, self.number)
        twin.uid, twin.life, twin.epoch, twin.uuid, twin.signer = uid, 0, self.epoch, self.uuid, self.signer
        twin.copied = self.world.ledger.places
        twin.epoch = max(self.epoch, self.node.identity.epoch if self.node is not None else 0)
        twin.disk, twin.known, twin.durable = self.disk.copy(), dict(self.known), True
        twin.subscriptions = dict(self.subscriptions)
        twin.commit_delay, twin.picky = self.commit_delay, self.picky
        twin.claim, twin.former = self.claim, self.former
        twin.clean, twin.holds = self.clean, self.holds
        return twin

    def renew(self, number: int) -> None:
        """While down: an operator gives it an identity of its own."""
        assert self.fenced is not None
        self.former = Former(self.number, self.uuid.bytes, self.fenced)
        self.number, self.fenced = number, None
        self.numbers.add(number)
        self.uuid = UUID(int=self.world.chance.getrandbits(128))
        self.signer = Signer((1_000_000 + number).to_bytes(32, "big"))

    def forget(self, *, wiped: bool) -> None:
        """While down: lose the disk. wiped: the UUID too, so that another broker comes back under this number."""
        self.disk = Disk()
        self.known = {}
        self.again.clear()  # the session that would be resumed is gone
        self.world.ledger.forgot(self)
        if wiped:
            self.replaced = True
            self.epoch = 0
            self.uuid = UUID(int=self.world.chance.getrandbits(128))
            self.skew = self.world.chance.choice(SKEWS)

    # ---- what the network tells

    def link_up(self, connection: Connection, peer: Identity) -> None:
        """The handshake is done at this end."""
        if self.node is None:
            connection.end(hard=True)
            return
        self.connections[connection.id] = connection
        self.node.link_up(
            connection.id, peer, connection.incarnation, connection.wire.cost, self.world.clock.now, connection.policies.get(self.number)
        )
        self.flush()

    def link_down(self, connection: Connection) -> None:
        """This end has noticed that a connection is over."""
        if self.node is not None and self.connections.pop(connection.id, None) is not None:
            self.node.link_down(connection.id, self.world.clock.now)
            self.flush()

    def link_full(self, connection: Connection, full: bool) -> None:
        """Unsent bytes passed a bound."""
        if self.node is not None and connection.id in self.connections:
            self.node.link_full(connection.id, full, self.world.clock.now)
            self.flush()

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes came."""
        if self.node is not None and connection.id in self.connections:
            try:
                if not (self._receive_one(connection.id, data) or self._receive_receipt(connection.id, data)):
                    self.node.receive(connection.id, data, self.world.clock.now)
            except PeerError:
                assert self.world.lies, "a broker that does not lie is an error"
                del self.connections[connection.id]
                self.node.link_down(connection.id, self.world.clock.now)
                connection.end(hard=True)
            self.flush()

    def _receive_one(self, link: int, data: bytes) -> bool:
        """Do what the direct lane says, as the real shell does: at once. False: it was not taken."""
        node, now = self.node, self.world.clock.now
        assert node is not None
        taken = node.receive_one(link, data, now)
        if taken is None:
            return False
        self._send(taken.sends())
        message = taken.delivery(now, None)
        if taken.delivers and taken.outcome.qos and self._at_once(message):
            self.world.ledger.delivered(self, message)
            receipt = node.single.given(taken, now)
            if receipt is not None:
                self._do(Send(*receipt, True))
        elif taken.delivers:
            self._do(node.single.delivery(taken, now))
        return True

    def _receive_receipt(self, link: int, data: bytes) -> bool:
        """The same for one receipt."""
        assert self.node is not None
        sends = self.node.single.take_receipt(link, data, self.world.clock.now)
        for out, packet in sends or ():
            self._do(Send(out, packet, True))
        return sends is not None

    def _send(self, sends: Sequence[tuple[int, bytes | bytearray]] | None) -> bool:
        for link, frame in sends or ():
            self._do(Send(link, frame, False))
        return sends is not None

    # ---- clients

    def subscribe(self, filter_: str, group: str | None, weight: int = 1) -> None:
        """The first subscriber of a filter."""
        self.subscriptions[filter_, group] = weight
        self.world.ledger.subscribed(self, filter_, group)
        if self.node is not None:
            self.node.subscribe(filter_, group, weight, self.world.clock.now)
            self.flush()

    def unsubscribe(self, filter_: str, group: str | None) -> None:
        """The last one is gone."""
        if self.subscriptions.pop((filter_, group), None) is None:
            return
        self.world.ledger.unsubscribed(self, filter_, group)
        if self.node is not None:
            self.node.unsubscribe(filter_, group, self.world.clock.now)
            self.flush()

    def publish(self, topic: str, qos: int, payloads: list[bytes], retain: bool = False, expiry: int | None = None) -> bool:
        """A client publishes; whether the mesh took it (True too when nobody elsewhere wants it)."""
        node, now = self.node, self.world.clock.now
        assert node is not None
        raw = topic.encode()
        route = self.routes.get(raw)
        if route is None or retain:
            route = node.route(raw, retain)
            if route is not None and not retain:
                self.routes[raw] = route
        if route is None:
            return True
        run = Run(raw, qos, retain, payloads, b"\x09\0\2id\x08\0\1r" if len(payloads) % 2 else b"", expiry, now)
        local = frozenset((g, f) for f, g in self.subscriptions if g is not None and matches(f, topic))
        everybody = [n for n in node.holders() if n != self.number and self.world.borders.name_at(self, n, topic) is not None]
        wanted = node.interested(topic) | (sum(1 << n for n in everybody) if retain else 0)
        behind = node.position()
        taken = node.publish(route, run, now, local) is Verdict.TAKEN
        if taken:
            watched = qos and payloads[0] and self.publishes % 3 and not self.world.copied  # deletions are alike
            watch = node.watch(behind, run.count) if watched else None
            if watch is not None:
                self.world.watched(self, watch, run.payloads, wanted)
            self.world.ledger.published(self, run, wanted, {group.share for group in route.match.groups} - local)
            if qos and wanted and not self.connections:
                self.world.apart += run.count
            self._promise(run, lambda: self.publish(topic, qos, payloads, retain, expiry))
            if retain:
                self._keep(raw, payloads[-1])
                write = self.world.ledger.written(self, run, self.record(raw).key)  # type: ignore[union-attr]
                self.open.effects.append(lambda: self.world.ledger.committed(self, raw, write))
        else:
            self.blocked = True
        self.flush()
        return taken

    def record(self, topic: bytes) -> Record | None:
        """What this site knows of a topic, buried or not."""
        assert self.node is not None
        return self.node._retained.sync._replica.tree.get(topic)

    def neighbours(self) -> list[tuple[int, _Neighbour]]:
        """With whom it compares what is retained."""
        return [] if self.node is None else list(self.node._retained.sync._neighbours.items())

    def publish_parts(self, topics: list[str], qos: int, payloads: list[bytes]) -> None:
        """A client publishes to different topics in one go; those that the same brokers want go together, as in the real shell."""
        node, now = self.node, self.world.clock.now
        assert node is not None
        by_mask: dict[int | None, list[int]] = {}
        for index, topic in enumerate(topics):
            route = node.route(topic.encode())
            by_mask.setdefault(route.mask if route is not None else 0, []).append(index)
        for mask, indexes in by_mask.items():
            names = [len(topics[i]).to_bytes(2, "big") + topics[i].encode() for i in indexes]
            run: Run = PartsBatch(names, [payloads[i] for i in indexes], qos, now)
            order = 0
            if mask and len(indexes) == 1:
                run = Run(names[0][2:], qos, False, run.payloads, received=now)
                asks = not self.open and qos == 1 and self.holds and self.durable and node.single.may_ask
                taken = qos < 2 and self._send(node.publish_one(mask, run.topic, qos, run.payloads[0], now, asks))
                if taken and qos and node.keep_one() and asks:
                    order = node.single.hold_back()
            else:
                taken = bool(mask) and node.publish_parts(mask, run, now) is Verdict.TAKEN
            if taken:
                self.world.ledger.published(self, run, mask or 0, set())
                chosen = [topics[i] for i in indexes], qos, [payloads[i] for i in indexes]
                self._promise(run, lambda chosen=chosen: self.publish_parts(*chosen))
                if order:
                    self.held_back += 1
                    self._leave_unwritten(order, run)
            elif mask != 0:
                for i in indexes:
                    self.publish(topics[i], qos, [payloads[i]])
        self.flush()

    def _leave_unwritten(self, order: int = 0, run: Run | None = None) -> None:
        """For a while nothing is written: it is one message that waits for receipts, and positions, or positions only (order 0)."""
        until, life = self.world.clock.now + HOLD, self.life
        self._unwritten = order, run, until, len(self.open)
        self.world.clock.at(until, lambda: self._save() if life == self.life else None)

    def _may_leave(self) -> bool:
        """Whether it goes on. With its receipts the message is acknowledged."""
        assert self.node is not None
        order, run, until, size = self._unwritten
        if order and not self.node.single.unwritten(order):
            self._settled(run)
            if len(self.open) == size:
                self.open = Batch()  # there was nothing but its answer
            self._leave_unwritten()
            return self._may_leave()
        if self.world.clock.now < until and len(self.open) == size and self.node.may_linger():
            return True
        self._unwritten = WRITTEN
        return False

    def _promise(self, run: Run, again: Callable[[], object]) -> None:
        """The publisher is told once this is committed; else it says QoS 2 again. again: how."""
        if run.qos:
            self.publishes += 1
            serial = self.publishes
            self.unacknowledged[serial] = (run, again)
            self.open.effects.append(lambda: self.acknowledge(serial))

    def acknowledge(self, serial: int) -> None:
        """What a publisher was promised is kept from now on."""
        if serial not in self.unacknowledged:
            return  # before the commit
        run, _ = self.unacknowledged.pop(serial)
        self.world.ledger.acknowledged(run.payloads)
        promised, self.promised = self.promised, None
        if promised is not None:
            promised()

    def post(self, brokers: int, body: bytes) -> None:
        """Post to brokers two that go together; whether they were taken is in the ledger. A body that begins with "ask" is answered by each
        with one."""
        node = self.node
        assert node is not None
        first, second = body + b"-", body + b"+"
        if node.send_to_brokers(brokers, "test/ask", first, self.world.clock.now, more=[second]) is Verdict.TAKEN:
            self.posted(brokers, first)
            self.posted(brokers, second)
        else:
            self.blocked = True
        self.flush()

    def posted(self, brokers: int, body: bytes) -> None:
        """A post was taken: it is promised once it is kept."""
        ledger = self.world.ledger
        ledger.posted(self, brokers, body)
        self.open.effects.append(lambda: ledger.post_kept(body))

    def take_post(self, action: PeerMessage) -> None:
        """A post has come: its answer is in the batch that lets it in."""
        node, now, ledger = self.node, self.world.clock.now, self.world.ledger
        assert node is not None
        self.open.effects.append(lambda: ledger.post_came(self, action))
        self.open.behind = True
        if action.body.startswith(b"ask") and node.known() >> action.origin & 1:
            answer = b"re%03d%s" % (self.number, action.body)
            node.send_to_brokers(1 << action.origin, "test/answer", answer, now, must=True)
            self.posted(1 << action.origin, answer)
        if action.token is not None:
            self.open.tokens.append(action.token)
            if self.durable:
                node.handed(action.token, now)

    def snub(self, until: float) -> None:
        """Refuse more often until then."""
        self.snubs_until = max(self.snubs_until, until)

    @property
    def refuses(self) -> float:
        """How often it refuses a pick now."""
        return max(self.picky, 0.5 if self.world.clock.now < self.snubs_until else 0.0)

    def deliver(self, action: Deliver) -> None:
        """Subscribers get it: it is in the open batch."""
        node, now = self.node, self.world.clock.now
        assert node is not None
        ledger, batch = self.world.ledger, self.open
        for share in action.picks:
            group, filter_ = share
            if action.token is not None and ((filter_, group) not in self.subscriptions or self.world.chance.random() < self.refuses):
                node.refuse(action.token, share, now)
                ledger.refusals += 1
            elif (filter_, group) in self.subscriptions:
                batch.effects.append(lambda share=share: ledger.served(self, action, share))
        if action.ordinary and self._at_once(action):
            ledger.delivered(self, action)
        elif action.ordinary:
            batch.behind = True
            batch.effects.append(lambda: ledger.delivered(self, action))
        if action.stored:
            self._keep(action.run.topic, action.run.payloads[-1])
        if action.token is not None:
            batch.tokens.append(action.token)
            if self.durable:
                node.handed(action.token, now)

    def _at_once(self, action: Deliver) -> bool:
        """Whether subscribers get it before the commit, as they have got all before it."""
        if not self.clean or action.run.qos == 2 or action.key or self.open.behind or (self.sealed is not None and self.sealed.behind):
            return False
        names = action.run.topics if not action.run.uniform else [action.run.topic]
        return all(any(group is None and matches(f, name.decode()) for f, group in self.subscriptions) for name in names)

    def announce(self, action: Retained) -> None:
        """A comparison has changed what is retained."""
        self._keep(action.run.topic, action.run.payloads[-1])
        if action.announce:
            self.open.effects.append(lambda: self.world.ledger.announced(self, action))

    def _keep(self, topic: bytes, payload: bytes) -> None:
        """The broker's view."""
        if payload:
            self.view[bytes(topic)] = payload
        else:
            self.view.pop(bytes(topic), None)

    # ---- the disk

    def _save(self) -> None:
        """Seal what is open, if nothing is being written."""
        if self.node is None:
            return
        if self._may_leave():
            return
        self._write()
        if self.sealed is None and self.open:
            self.sealed, self.open = self.open, Batch()
            world, life = self.world, self.life
            delay = world.chance.choice((0.0, world.chance.uniform(0, self.commit_delay))) if self.commit_delay else 0.0
            world.clock.after(delay, lambda: self._commit(life))

    def _write(self) -> None:
        """Put what the node has to write into the open batch."""
        node = self.node
        assert node is not None
        records = node.records()
        if records is not None:
            self.open.records.append(records)
            whole = not (node.remembering or node.interests.late)
            self.open.known = {topic: node.interests.match(topic) for topic in self.world.topics} if whole else {}
            for order, run, _ in records.entries:
                self._orders[order] = run
            for order in records.gone:
                run = self._orders.pop(order, None)
                if not records.entries:  # else it may have been picked again, as one of these
                    self._settled(run)
        if self.durable:
            self.open.retained += node.retained_changes(self.world.clock.now)

    def _settled(self, run: Run | None) -> None:
        """A message need not be in the store any more: whoever waits for its commit need not."""
        if run is None or run.qos != 1 or not self.holds:
            return
        for serial in [serial for serial, (one, _) in self.unacknowledged.items() if one.payloads == run.payloads]:
            self.settled_early += 1
            self.acknowledge(serial)

    def _commit(self, life: int) -> None:
        """The disk has done, or failed and is asked again."""
        world, batch = self.world, self.sealed
        if life != self.life or batch is None:
            return
        if world.clock.now < self.broken_until:
            world.clock.at(self.broken_until, lambda: self._commit(life))
            return
        self.sealed = None
        self._store(batch)
        assert self.node is not None
        if batch.records:
            self.node.committed(batch.records[-1].mark, world.clock.now)
        for token in batch.tokens:
            self.node.delivered(token, world.clock.now)
        self.flush()

    def _store(self, batch: Batch) -> None:
        for records in batch.records:
            self.disk.apply(records)
            self.known = batch.known
        self.disk.apply_retained(batch.retained)
        for effect in batch.effects:
            effect()

    # ---- the shell's loop

    def flush(self) -> None:
        """Do what the node says until it says no more."""
        if self.flushing:
            return
        self.flushing = True
        try:
            while self.node is not None and self.node.stirred and (actions := take(self.node)):
                for action in actions:
                    self._do(action)
            self._save()
        finally:
            self.flushing = False
        self._timer()

    def _do(self, action: object) -> None:
        world = self.world
        if isinstance(action, Send):
            connection = self.connections.get(action.link)
            if connection is not None and not connection.broken:
                connection.ways[self.uid].put(bytes(action.data), action.urgent)
        elif isinstance(action, Deliver):
            world.ledger.handed(self, action)
            self.deliver(action)
        elif isinstance(action, PeerMessage):
            self.take_post(action)
        elif isinstance(action, Retained):
            self.announce(action)
        elif isinstance(action, CloseLink):
            connection = self.connections.pop(action.link, None)
            if connection is not None:
                connection.end(hard=True)
        elif isinstance(action, FiltersChanged):
            if action.filters is None:
                self.routes.clear()
            else:
                for topic in [t for t in self.routes if any(matches(f, t.decode()) for f in action.filters)]:
                    del self.routes[topic]
        elif isinstance(action, Unblocked):
            self.blocked = False
        elif isinstance(action, Confirmed):
            world.confirmed(self, action.watch)
        elif isinstance(action, ReadPage):
            life = self.life
            world.clock.after(world.chance.uniform(0.0, 0.02), lambda: self._read_page(life, action.order))
        elif isinstance(action, GivenUp):
            self._given_up(action)
        elif isinstance(action, Returned):
            world.ledger.returned(self, action)
        else:
            assert isinstance(action, Event), action
            world.note(self, action)

    def _given_up(self, action: GivenUp) -> None:
        """Messages on the disk are returned unread: the ledger has to know which."""
        assert self.node is not None
        written = [r for batch in (self.sealed, self.open) if batch is not None for r in batch.records]
        bodies = [body for records in written for order, _, body in records.pages if order == action.page and body is not None]
        body = bodies[-1] if bodies else self.disk.bodies[action.page]
        page = Page(action.page, (0, 0), (0, 0))
        page.open = 1 << action.destination
        for entry in decode_body(body, page, 1_000 + self.skew):
            if entry.open:
                self.world.ledger.returned(self, Returned(entry.run, action.destination, action.reason))

    def _read_page(self, life: int, order: int) -> None:
        """The disk has read a page of custody."""
        if self.node is not None and life == self.life:
            self.node.page_read(order, self.disk.bodies.get(order), self.world.clock.now)
            self.flush()

    def _timer(self) -> None:
        if self.node is None:
            return
        deadline = self.node.next_deadline()
        if deadline is not None and (self.wake is None or deadline < self.wake):
            life = self.life
            self.wake = deadline
            self.world.clock.at(deadline, lambda: self._fire(life, deadline))

    def _fire(self, life: int, deadline: float) -> None:
        if self.node is not None and life == self.life and self.wake == deadline:
            self.wake = None
            self.node.handle_timer(self.world.clock.now)
            self.flush()
