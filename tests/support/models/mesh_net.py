"""A few nodes on perfect links, for tests that look at one thing."""

from __future__ import annotations

import itertools
from uuid import UUID

from mqmesh.mesh.node.actions import (
    Action,
    CloseLink,
    Confirmed,
    Deliver,
    Event,
    GivenUp,
    PeerMessage,
    ReadPage,
    Retained,
    Returned,
    Send,
    Unblocked,
)
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.node.node import Node
from mqmesh.mesh.wire.identity import BLOCK, LIFE_BYTES, MANAGE, Identity
from mqmesh.mesh.wire.keys import Keys, Signer
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.batch.run import Run
from simulation.asked import take
from simulation.disk import Disk


def names(count: int) -> list[bytes]:
    """Payloads of one length, named after their place."""
    return [b"%0*d" % (len(str(count - 1)), i) for i in range(count)]


def signer_of(number: int, lasting: bool = True) -> Signer:
    """The key pair of the broker with this number."""
    return Signer(number.to_bytes(32, "big"), lasting)


class Net:
    """Nodes by number; what they deliver is committed at once unless `hold`. durable: they have disks, written at once.
    keyed: they sign. able: capabilities of their release, which all ends say beside `capabilities`."""

    def __init__(
        self,
        *numbers: int,
        config: MeshConfig | None = None,
        durable: bool = False,
        keyed: bool = False,
        able: frozenset[str] = frozenset(),
    ) -> None:
        self.config = config
        self.keyed = keyed
        self.able = able
        self.durable = durable
        self.disks: dict[int, Disk] = {}
        self.full: set[int] = set()  # nodes whose disks take nothing
        self.nodes: dict[int, Node] = {}
        self.ends: dict[tuple[int, int], tuple[int, int]] = {}
        self.flying: dict[tuple[int, int], list[bytes]] = {}
        self.delivered: list[tuple[int, Deliver]] = []
        self.retained: list[tuple[int, Retained]] = []
        self.views: dict[tuple[int, bytes], bytes] = {}  # (node, topic) -> what its shell shows as retained, of what came over links
        self.events: list[tuple[int, Event]] = []
        self.posted: list[tuple[int, PeerMessage]] = []
        self.order: list[tuple[int, bytes]] = []  # payloads and posts as they came
        self.heard: list[tuple[int, bytes]] = []  # what subscribers hear, messages and what comparisons have found
        self.closed: list[tuple[int, CloseLink]] = []
        self.returned: list[tuple[int, Returned]] = []
        self.given_up: list[tuple[int, GivenUp]] = []
        self.unblocked: list[int] = []
        self.confirmed: list[object] = []  # watches
        self.stuck: set[tuple[int, int]] = set()  # (node, link) whose data stays
        self.hold = False
        self.capabilities = frozenset({MANAGE, BLOCK})  # that both ends of a new link name
        self.now = 0.0
        self.links = 0
        for number in numbers:
            self.add(number)

    def add(
        self, number: int, uuid: int | None = None, epoch: int = 1000, keys: Keys | None = None, given: dict[str, bytes] | None = None
    ) -> Node:
        """A node comes to life, with what its disk holds. keys: other ones than the number's own."""
        if self.keyed:
            keys = keys or Keys("mesh", number, f"b{number}", signer_of(number), given)
        key, life = b"" if keys is None else keys.signer.public, (b"%d %d" % (number, epoch)).ljust(LIFE_BYTES) if self.able else b""
        identity = Identity("mesh", f"b{number}", number, UUID(int=uuid or number), epoch, key, life, self.able)
        node = self.nodes[number] = Node(identity, self.config, keys=keys)
        if self.durable:
            self.disks.setdefault(number, Disk()).restore(node, self.now)
            self.save(number)
        return node

    def save(self, number: int) -> bool:
        """Write what there is to write; whether there was something."""
        if number in self.full:
            return False
        records = self.nodes[number].records()
        if number in self.disks:
            self.disks[number].apply_retained(self.nodes[number].retained_changes(self.now))
        if records is None:
            return False
        self.disks[number].apply(records)
        self.nodes[number].committed(records.mark, self.now)
        return True

    def commit(self, number: int, token: int) -> None:
        """A delivery is carried out and stored."""
        if self.durable:
            self.nodes[number].handed(token, self.now)
            self.save(number)
        self.nodes[number].delivered(token, self.now)

    def link(self, a: int, b: int, cost: int = 1, policies: dict[int, Policy] | None = None) -> int:
        """A link comes up at both ends; its number. policies: of its ends, by the node's number."""
        own = policies or {}
        self.links += 1
        link = self.links
        self.ends[a, link], self.ends[b, link] = (b, link), (a, link)
        ends = {one: self.nodes[one].identity for one in (a, b)}
        peers = {one: identity._replace(capabilities=self.capabilities | identity.capabilities) for one, identity in ends.items()}
        self.nodes[a].link_up(link, peers[b], 1_000_000 + link, cost, self.now, own.get(a))
        self.nodes[b].link_up(link, peers[a], 1_000_000 + link, cost, self.now, own.get(b))
        return link

    def cut(self, link: int) -> None:
        """It is over, and what is on the way is lost."""
        for end in [end for end in self.ends if end[1] == link]:
            del self.ends[end]
            self.flying.pop(end, None)
            if end[0] in self.nodes:
                self.nodes[end[0]].link_down(link, self.now)

    def settle(self) -> None:
        """Let everything arrive."""
        busy = True
        while busy:
            busy = False
            for number in list(self.nodes):
                while (actions := take(self.nodes[number])) or self.save(number):
                    busy = True
                    for action in actions:
                        self._do(number, action)
                deadline = self.nodes[number].next_deadline()
                if not busy and deadline is not None and deadline <= self.now + 2 * self.nodes[number].receipt_delay:
                    self.now = max(self.now, deadline)
                    self.nodes[number].handle_timer(self.now)
                    busy = True
            for end in [end for end in self.flying if end not in self.stuck]:
                busy = True
                data = b"".join(self.flying.pop(end))
                target = self.ends.get(end)
                if target is not None:
                    self.nodes[target[0]].receive(target[1], data, self.now)

    def receive_one(self, number: int, link: int, data: bytes) -> bool:
        """Give one frame to a node's direct lane; whether it was taken."""
        taken = self.nodes[number].receive_one(link, data, self.now)
        if taken is not None:
            for out, frame in taken.sends():
                self._do(number, Send(out, frame, False))
            if taken.delivers:
                self._do(number, self.nodes[number].single.delivery(taken, self.now))
        return taken is not None

    def _do(self, number: int, action: Action) -> None:
        if isinstance(action, Send):
            if (number, action.link) in self.ends:
                self.flying.setdefault((number, action.link), []).append(bytes(action.data))
        elif isinstance(action, Deliver):
            self.delivered.append((number, action))
            if action.stored:
                self.views[number, bytes(action.run.topic)] = action.run.payloads[-1]
            self.order += [(number, payload) for payload in action.run.payloads]
            self.heard += [(number, payload) for payload in action.run.payloads]
            if action.token is not None and not self.hold:
                self.commit(number, action.token)
        elif isinstance(action, PeerMessage):
            self.posted.append((number, action))
            self.order.append((number, action.body))
            if action.token is not None and not self.hold:
                self.commit(number, action.token)
        elif isinstance(action, Retained):
            self.retained.append((number, action))
            if action.announce:
                self.heard.append((number, action.run.payloads[0]))
            self.views[number, bytes(action.run.topic)] = action.run.payloads[0]
        elif isinstance(action, CloseLink):
            self.closed.append((number, action))
            self.cut(action.link)
        elif isinstance(action, ReadPage):
            self.nodes[number].page_read(action.order, self.disks[number].bodies.get(action.order), self.now)
        elif isinstance(action, GivenUp):
            self.given_up.append((number, action))
        elif isinstance(action, Returned):
            self.returned.append((number, action))
        elif isinstance(action, Unblocked):
            self.unblocked.append(number)
        elif isinstance(action, Confirmed):
            self.confirmed.append(action.watch)
        elif isinstance(action, Event):
            self.events.append((number, action))

    def publish(self, origin: int, topic: str, qos: int = 1, count: int = 1, **more: object) -> object:
        """Messages named after their place; the verdict, None when nobody wants them."""
        retain = bool(more.pop("retain", False))
        payloads = more.pop("payloads", None) or names(count)
        route = self.nodes[origin].route(topic.encode(), retain)
        if route is None:
            return None
        run = Run(topic.encode(), qos, retain, payloads, **more)  # type: ignore[arg-type]
        verdict = self.nodes[origin].publish(route, run, self.now)
        self.save(origin)
        return verdict

    def got(self, number: int) -> list[bytes]:
        """All payloads that a node has delivered, in order."""
        return [payload for n, action in self.delivered if n == number for payload in action.run.payloads]


def ring(*numbers: int, config: MeshConfig | None = None) -> Net:
    """Nodes in a ring, settled."""
    net = Net(*numbers, config=config)
    for a, b in zip(numbers, numbers[1:] + numbers[:1], strict=True):
        net.link(a, b)
    net.settle()
    return net


def line(*numbers: int, config: MeshConfig | None = None, durable: bool = False) -> Net:
    """Nodes in a line, settled."""
    net = Net(*numbers, config=config, durable=durable)
    for a, b in itertools.pairwise(numbers):
        net.link(a, b)
    net.settle()
    return net
