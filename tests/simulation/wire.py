"""A wire between two sites, and the connections that live and die on it.

A connection has a queue for each direction: urgent packets first, then in order. Bytes leave at the wire's bandwidth in
chunks of whole packets, arrive after the delay, in order. When it ends, what is unsent or on the way is lost from some
point on; each end notices in its own time.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqmesh.mesh.wire.policy import Policy

    from .site import Site
    from .world import World


def packets_of(data: bytes) -> list[bytes]:
    """Cut bytes into MQTT packets."""
    found = []
    position = 0
    while position < len(data):
        at, length, shift = position + 1, 0, 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append(bytes(data[position : at + length]))
        position = at + length
    return found


def _may_repeat(packet: bytes) -> bool:
    """Whether the protocol takes it twice. A comparison of retained messages is a dialogue, trees are a stream; links repeat nothing."""
    return b"$mesh/" in packet[:10] and not any(kind in packet[:20] for kind in (b"$mesh/retained", b"$mesh/packed", b"$mesh/branch"))


class Direction:
    """One way of a connection. bound: unsent bytes at which the sender is told that the link is full."""

    def __init__(self, connection: Connection, sender: Site, receiver: Site) -> None:
        self.connection = connection
        self.sender = sender
        self.receiver = receiver
        self.urgent: deque[bytes] = deque()
        self.normal: deque[bytes] = deque()
        self.unsent = 0
        self.full = False
        self.busy = False
        self.arrives = 0.0  # when the last chunk does

    def put(self, data: bytes, urgent: bool) -> None:
        """The shell writes. Packets that the network's chunking may separate are cut here."""
        (self.urgent if urgent else self.normal).extend(packets_of(data))
        self.unsent += len(data)
        wire = self.connection.wire
        if not self.full and self.unsent > wire.bound:
            self.full = True
            self.sender.link_full(self.connection, True)
        if not self.busy:
            self.busy = True
            self.connection.world.clock.after(0.0, self.transmit)

    def transmit(self) -> None:
        """Send a chunk; come back when it is out."""
        world, wire = self.connection.world, self.connection.wire
        if self.connection.broken:
            return
        if not self.urgent and not self.normal:
            self.busy = False
            return
        chunk: list[bytes] = []
        size = 0
        most = world.chance.choice((1, 3, 50, 1000))
        while (self.urgent or self.normal) and len(chunk) < most and size < wire.chunk:
            packet = (self.urgent or self.normal).popleft()
            chunk.append(packet)
            size += len(packet)
        self.unsent -= size
        took = size / wire.bandwidth
        delay = wire.delay * world.chance.uniform(0.5, 1.5)
        self.arrives = max(self.arrives, world.clock.now + took + delay)
        world.clock.at(self.arrives, lambda: self.arrive(chunk))
        world.clock.after(took, self.transmit)
        if self.full and self.unsent < wire.bound // 2:
            self.full = False
            self.sender.link_full(self.connection, False)

    def arrive(self, chunk: list[bytes]) -> None:
        """The chunk is at the receiver, if the network has not lost it."""
        connection = self.connection
        if connection.lost_after < self.connection.world.clock.now:
            return
        connection.world.watch(self, chunk)
        self.receiver.receive(connection, b"".join(chunk))
        if connection.world.chance.random() < connection.world.duplicate and all(_may_repeat(packet) for packet in chunk):
            self.receiver.receive(connection, b"".join(chunk))


class Connection:
    """One life of a link."""

    def __init__(self, world: World, wire: Wire) -> None:
        self.world = world
        self.wire = wire
        world.connections += 1
        self.id = world.connections
        self.incarnation = world.chance.getrandbits(63)
        self.broken = False  # nothing more is sent
        self.lost_after = float("inf")  # what arrives later is lost
        self.ended = float("inf")  # when both ends had noticed
        self.policies = dict(wire.policies)
        self._noticed = 0
        world.borders.add(self)
        self.ways = {
            wire.a.uid: Direction(self, wire.a, wire.b),
            wire.b.uid: Direction(self, wire.b, wire.a),
        }
        self.lives = {wire.a.uid: wire.a.life, wire.b.uid: wire.b.life}

    def other(self, site: Site) -> Site:
        """The other end."""
        return self.wire.b if site is self.wire.a else self.wire.a

    def end(self, *, hard: bool) -> None:
        """The connection ends; hard: what is on the way is lost, else it still arrives. Both ends notice some time later."""
        if self.broken:
            return
        self.broken = True
        chance = self.world.chance
        now = self.world.clock.now
        if hard:
            self.lost_after = now
        for way in self.ways.values():
            notice = now + chance.choice((0.0, chance.uniform(0, 0.3), chance.uniform(0.3, 0.9)))
            if not hard:
                notice = max(notice, way.arrives)
            receiver = way.receiver
            self.world.clock.at(notice, lambda site=receiver: self.notice(site))

    def notice(self, site: Site) -> None:
        """One end sees that the connection is over."""
        self._noticed += 1
        if self._noticed == 2:
            self.ended = self.world.clock.now
        if site.life == self.lives[site.uid]:
            site.link_down(self)
        if self.wire.connection is self:
            self.wire.connection = None
        self.wire.retry()


class Wire:
    """Where a link may be."""

    def __init__(self, world: World, a: Site, b: Site, cost: int) -> None:
        chance: Random = world.chance
        self.world = world
        self.a = a
        self.b = b
        self.cost = cost
        self.delay = chance.choice((0.001, 0.01, 0.05))
        self.bandwidth = 1e9
        self.bound = 1 << 20
        self.chunk = chance.choice((500, 5_000, 100_000))
        self.up = True
        self.policies: dict[int, Policy] = {}  # of its ends, by number
        self.connection: Connection | None = None
        self._retrying = False

    def slow(self, bandwidth: float, bound: int) -> None:
        """Make it slow enough that it overflows."""
        self.bandwidth, self.bound = bandwidth, bound

    def cut(self) -> None:
        """The network is gone."""
        self.up = False
        if self.connection is not None:
            self.connection.end(hard=self.world.chance.random() < 0.7)

    def mend(self) -> None:
        """The network is back."""
        self.up = True
        self.retry()

    def retry(self) -> None:
        """Dial in a while."""
        if not self._retrying:
            self._retrying = True
            self.world.clock.after(self.world.chance.uniform(0.01, 0.3), self._dial)

    def _dial(self) -> None:
        self._retrying = False
        if not self.up or self.connection is not None:
            return
        if self.a.node is None or self.b.node is None or self.a.node.fenced or self.b.node.fenced:
            self.retry()
            return
        connection = self.connection = Connection(self.world, self)
        first, second = (self.a, self.b) if self.world.chance.random() < 0.5 else (self.b, self.a)
        identity = first.node.identity  # as the handshake saw them
        first.link_up(connection, second.node.identity)
        self.world.clock.after(self.delay / 2, lambda: self._second(connection, second, identity))

    def _second(self, connection: Connection, site: Site, peer: object) -> None:
        if connection.broken or site.life != connection.lives[site.uid]:
            connection.end(hard=True)
            return
        site.link_up(connection, peer)
