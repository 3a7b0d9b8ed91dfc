"""The sites, the wires and the clock of one simulated mesh, and what is watched while it runs."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.view.trees import EPOCH_SHIFT
from mqmesh.mesh.wire.visited import numbers, share_of

from .borders import Borders
from .clock import Clock
from .ledger import Ledger
from .site import Site
from .wire import Wire, packets_of

if TYPE_CHECKING:
    from mqmesh.mesh.custody.watches import Watch
    from mqmesh.mesh.node.actions import Event

    from .wire import Direction


class World:
    """A mesh of `numbers` with wires between pairs (a, b, cost)."""

    def __init__(self, seed: int, config: MeshConfig, numbers: list[int], edges: list[tuple[int, int, int]]) -> None:
        self.chance = Random(seed)
        self.config = config
        self.clock = Clock()
        self.ledger = Ledger(self)
        self.borders = Borders(self)
        self.connections = 0
        self.duplicate = 0.0
        self.guarded = False  # some wires have policies
        self.keyed = False  # brokers sign what they say, and some lie
        self.lies = 0  # told
        self.events: Counter[str] = Counter()
        self.topics: tuple[str, ...] = ()  # that may be published
        self.apart = 0  # QoS 1 and 2 messages taken for others while their origin had no link
        self.frames = 0  # data frames that arrived anywhere
        self.watches: list[tuple[Site, int, Watch, list[bytes], int]] = []  # origin, its life, what is watched, payloads, who wants them
        self.confirmations = 0
        self._gone: dict[tuple[int, int], float] = {}  # (origin, broker) -> when the origin last saw it go
        self._passed: set[tuple[int, int, bytes, bytes]] = set()
        self.sites = {number: Site(self, number) for number in numbers}
        self.everybody = dict(self.sites)  # by uid; also copies of data folders
        self.copied = False  # some data folder is copied
        self._heard: list[tuple[int, int, int, bytes]] = []  # what came then: receiver, its life, tree, packet
        self.wires = {(a, b): Wire(self, self.sites[a], self.sites[b], cost) for a, b, cost in edges}

    def start(self) -> None:
        """All sites up, all wires dialled."""
        for site in self.sites.values():
            site.start()
        for wire in self.wires.values():
            wire.retry()

    def run(self, seconds: float, steps: int = 400_000) -> None:
        """Let time pass."""
        self.clock.run(self.clock.now + seconds, steps)

    def settle(self, steps: int = 400_000) -> None:
        """Let all that is under way arrive, however long it takes: a refused pick may come to an origin that holds nothing more."""
        quiet = 0
        for _ in range(200):
            self.clock.run(self.clock.now + 1.0, steps)
            busy = any(way.unsent for way in self._ways()) or any(s.node.custody()[0] for s in self.up())
            quiet = 0 if busy else quiet + 1
            if quiet == 3:
                return

    def _ways(self) -> list[Direction]:
        return [way for wire in self.wires.values() if wire.connection for way in wire.connection.ways.values()]

    def up(self) -> list[Site]:
        """The sites that live."""
        return [site for site in self.everybody.values() if site.node is not None]

    def note(self, site: Site, event: Event) -> None:
        """A node's event."""
        self.events[event.name] += 1
        if event.name == "fenced":
            site.fenced, site.blocked = event.fields["common"], True
        if event.name == "epoch_raised":
            site.epochs.add(event.fields["epoch"])
        if event.name == "member_down":
            self._gone[site.number, event.fields["number"]] = self.clock.now

    def watched(self, site: Site, watch: Watch, payloads: list[bytes], wanted: int) -> None:
        """A publisher wants to know who has these."""
        assert watch.count == len(payloads)
        watch.owner = self.clock.now, {n for n in self.sites if site.node.reachable(n)}
        self.watches.append((site, site.life, watch, payloads, wanted))

    def confirmed(self, site: Site, watch: Watch) -> None:
        """Its origin says that no reachable broker owes the receipt: so who was there all the time has it."""
        self.confirmations += 1
        for _, _, one, payloads, wanted in self.watches:
            if one is not watch:
                continue
            for index, payload in enumerate(payloads):
                stands = site.node.standing(watch, index)
                assert wanted & ~(stands.received | stands.awaited | sum(1 << n for n in stands.lost)) == 0, payload
                for number in numbers(stands.awaited):
                    since, reachable = watch.owner
                    away = number not in reachable or self._gone.get((site.number, number), -1.0) >= since
                    assert away, f"{payload!r} is confirmed, site {number} is awaited and was there"

    def check_watches(self) -> None:
        """At the end nobody is awaited, and whoever is said to have a message has it."""
        for site, life, watch, payloads, wanted in self.watches:
            if site.life != life:
                continue
            assert watch.done, f"site {site.number} never confirmed {payloads[0]!r}"
            for index, payload in enumerate(payloads):
                stands = site.node.standing(watch, index)
                assert not stands.awaited, f"{payload!r} is still awaited at {stands.awaited:b}"
                for number in numbers(stands.received & wanted):
                    # its subscribers were given up while it was away; then it was picked for a shared subscription, and has it for that
                    given_up = number in self.ledger.messages[payload].given_up
                    has = (payload, number) in self.ledger.got or number in self.ledger.forgotten or given_up
                    assert has, f"{payload!r} is said to be at site {number}"

    def watch(self, way: Direction, chunk: list[bytes]) -> None:
        """Frames arrive: none may pass a link twice for the same broker in the same tree, so none circles."""
        for packet in chunk:
            frame = dissect(packet)
            if frame is None:
                continue
            self.frames += 1
            constants, share, sequence = frame
            if self.copied and share >> way.receiver.number & 1:
                self._heard.append((way.receiver.uid, way.receiver.life, int.from_bytes(constants[10:]), packet))
            self.borders.check_frame(way.connection, way.sender.number, topic_of(packet))
            for number in range(share.bit_length()):
                if share >> number & 1:
                    key = (way.sender.uid << 20 | way.receiver.uid << 4, number, constants, sequence)
                    assert key not in self._passed, f"a frame for {number} went twice from {way.sender.number} to {way.receiver.number}"
                    self._passed.add(key)

    def senders(self, site: Site, payload: bytes) -> list[Site]:
        """Which origins have sent a message to this life of a site: the tree of a frame has the epoch of the life that sends."""
        trees = [tree for uid, life, tree, packet in self._heard if (uid, life) == (site.uid, site.life) and payload in packet]
        return [one for one in self.everybody.values() if any(tree >> EPOCH_SHIFT in one.epochs for tree in trees)]


def topic_of(packet: bytes) -> str:
    """The topic of a frame."""
    at = 1
    while packet[at] > 127:
        at += 1
    return packet[at + 3 : at + 3 + (packet[at + 1] << 8 | packet[at + 2])].decode()


def dissect(packet: bytes) -> tuple[bytes, int, bytes] | None:
    """(constants without bits, share, sequence) of a data frame; None for a control packet or a flooded frame."""
    at = 1
    while packet[at] > 127:
        at += 1
    at += 1
    length = packet[at] << 8 | packet[at + 1]
    if packet[at + 2 : at + 8] == b"$mesh/":
        return None
    at += 2 + length
    while packet[at] > 127:
        at += 1
    at += 1
    assert packet[at] == 9
    size = packet[at + 1] << 8 | packet[at + 2]
    envelope = packet[at + 3 : at + 3 + size]
    if envelope[1] & 8:
        return None
    width = envelope[18] << 8 | envelope[19]
    return envelope[:18], share_of(envelope[20 : 20 + width]), envelope[-8:]


__all__ = ["World", "dissect", "packets_of"]
