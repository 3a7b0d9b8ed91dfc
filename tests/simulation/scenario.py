"""From a seed to a mesh, traffic and faults; run, heal, settle, check.

Workloads and faults are declared side by side in `TRAFFIC` and `FAULTS`: what may happen and how often. Each run first lets the mesh form,
then makes things happen for some seconds, then heals everything and waits until all is quiet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import networkx
from mqmesh.mesh.custody.bounds import CustodyBounds
from mqmesh.mesh.node.core import MeshConfig
from mqmesh.mesh.retained import Kind
from mqmesh.mesh.wire.identity import BLOCK, BRANCH, PACKED, RECEIPTS
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.topics import matches

from .borders import FAR, some_policy
from .liar import lie
from .site import SKEWS, Site
from .wire import Wire
from .world import World

FILTERS = ("a/#", "a/+", "a/1", "b/#", "b/2", "#", "+/1")
TOPICS = ("a/1", "a/2", "b/1", "b/2", "c")
GROUPS = ("g", "h")
CROWD = (("a/#", "g"), ("#", "h"))  # shared subscriptions that have members at most sites, in some runs: who refuses has others beside it
NEWEST = (BLOCK, PACKED, BRANCH, RECEIPTS)  # capabilities that the last release does not have
SPAN = 8.0  # seconds of trouble
COMPARE = 4.0  # seconds between two comparisons of retained messages


def graph_for(chance: Random) -> networkx.Graph:
    """Three to eight brokers, always connected, most often with cycles."""
    size = chance.randint(3, 8)
    kind = chance.choice(("ring", "full", "line", "random", "random", "grid"))
    if kind == "ring":
        graph = networkx.cycle_graph(size)
    elif kind == "full":
        graph = networkx.complete_graph(min(size, 5))
    elif kind == "line":
        graph = networkx.path_graph(min(size, 5))
    elif kind == "grid":
        graph = networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(2, max(2, size // 2)))
    else:
        graph = networkx.gnp_random_graph(size, 0.35, seed=chance.getrandbits(32))
        for a, b in zip(range(size), range(1, size), strict=False):
            if not networkx.has_path(graph, a, b):
                graph.add_edge(a, b)
    numbers = chance.sample(range(1, 40), len(graph)) if chance.random() < 0.5 else list(range(len(graph)))
    graph = networkx.relabel_nodes(graph, dict(zip(sorted(graph), numbers, strict=True)))
    for _, _, data in graph.edges(data=True):
        data["cost"] = chance.choice((1, 1, 1, 2, 5))
    return graph


class Scenario:
    """One seed's run."""

    def __init__(self, seed: int, mode: str = "routed") -> None:
        self.seed = seed
        self.chance = chance = Random(seed * 7919 + 17)
        self.graph = graph_for(chance)
        tight = chance.random() < 0.4  # small bounds and slow links, so that things fill
        self.config = MeshConfig(
            mode="flood" if mode == "flood" else "routed",
            custody_messages=chance.choice((60, 300)) if tight else 100_000,
            bounds=CustodyBounds(bytes=4_000) if tight and seed % 2 else CustodyBounds(),
            keep_messages=(0, 3, 20)[seed % 3] if tight else 10_000,
            page_messages=(1, 4, 20)[seed // 3 % 3] if tight else 1_000,
            credit_messages=chance.choice((1, 10, 1000)) if tight else 50_000,
            credit_bytes=chance.choice((200, 2_000, 1 << 20)) if tight else 1 << 24,
            credit_floor=200 if tight else 1 << 16,
            share=chance.choice(("once", "available")),
            forget_after=chance.choice((None, None, 0.8)),
            retained_compare=COMPARE,
        )
        if mode == "lies":  # a number that is forgotten is free for the key of whoever says it first: seed 7153
            self.config = replace(self.config, forget_after=None)
        edges = [(a, b, data["cost"]) for a, b, data in self.graph.edges(data=True)]
        self.world = World(seed, self.config, sorted(self.graph), edges)
        self.world.ledger.flood = mode == "flood"
        self.world.topics = TOPICS
        self.world.duplicate = chance.choice((0.0, 0.0, 0.2))
        self.tight = tight
        self.over = False  # nothing breaks any more
        self.met = False  # each broker has seen each other one
        self.crowded = chance.random() < 0.4
        self.serial = 0
        self.traffic = MIXED if seed % 3 == 2 else TRAFFIC
        self.filters = FILTERS
        self.groups = 0.3  # how many subscriptions are shared
        self.retaining = mode != "policy"  # where a policy is walked around, one message may be retained under two names
        self.parts = [set(self.world.sites)]
        self.faults = FAULTS
        if mode == "lies":
            self.world.keyed = True
            self.faults = FAULTS | {"lie": chance.choice((10, 60))}
        if mode == "policy":
            self.filters = FILTERS + FAR
            self.world.guarded = True
            self.faults = FAULTS | {"policy": chance.choice((0, 4, 15))}
            if chance.random() < 0.4:
                self._companies()
            else:
                part = chance.choice((0.3, 0.6, 1.0))
                for wire in self.world.wires.values():
                    if chance.random() < part:
                        for site in (wire.a, wire.b):
                            self._rule(wire, site)
        for site in self.world.sites.values():
            site.commit_delay = chance.choice((0.0, 0.0, 0.2))
            site.picky = chance.choice((0.0, 0.0, 0.3))
            site.durable = chance.random() < 0.85
        if tight:
            for wire in self.world.wires.values():
                if chance.random() < 0.6:
                    wire.slow(chance.choice((20_000.0, 100_000.0)), chance.choice((500, 3_000)))
        self._age(Random(seed * 7907 + 13))
        self._speak_singly(Random(seed * 7901 + 11))

    def _speak_singly(self, chance: Random) -> None:
        """In every other run many messages come by themselves; some sites hold them back, and sessions of some end with their broker."""
        if chance.random() < 0.5:
            self.traffic = self.traffic | {"single": 40}
            for site in self.world.sites.values():
                site.holds, site.clean = chance.random() < 0.7, chance.random() < 0.7

    def _age(self, chance: Random) -> None:
        """In every other run some brokers are of an older release; half of these are of this one once they restart."""
        if chance.random() < 0.5:
            lacks = frozenset(chance.choice((NEWEST, NEWEST, NEWEST[:1], NEWEST[1:], NEWEST[2:])))
            for site in self.world.sites.values():
                if chance.random() < 0.5:
                    site.lacks, site.upgraded = lacks, chance.random() < 0.5

    # ---- the run

    def run(self) -> World:
        """All of it. AssertionError names what did not hold."""
        world, chance = self.world, self.chance
        for site in world.sites.values():
            for _ in range(chance.randint(0, 3)):
                self._subscribe(site)
        world.start()
        world.run(chance.choice((0.2, 2.0)))
        start = world.clock.now
        for _ in range(chance.randint(40, 120)):
            world.clock.at(start + chance.uniform(0, SPAN), self._happen(self.traffic))
        for _ in range(chance.choice((0, 5, 15, 30))):
            world.clock.at(start + chance.uniform(0, SPAN), self._happen(self.faults))
        world.run(SPAN)
        self.heal()
        world.settle()
        self.check()
        self.check_retained()
        if self.config.mode == "routed":
            self.check_copies()
        else:
            self.check_flood()
        return world

    def _happen(self, table: dict[str, int]) -> Callable[[], None]:
        name = self.chance.choices(list(table), list(table.values()))[0]
        return getattr(self, "_" + name)

    def heal(self) -> None:
        """Everything works again."""
        world = self.world
        for wire in world.wires.values():
            wire.slow(1e9, 1 << 20)
            wire.mend()
        self.over = True
        for site in world.sites.values():
            site.picky = 0.0
            site.broken_until = 0.0
            site.promised = None
            if site.node is None:
                site.start()

    # ---- traffic

    def _site(self) -> Site | None:
        up = self.world.up()
        return self.chance.choice(up) if up else None

    def _publish(self) -> None:
        site, chance = self._site(), self.chance
        if site is None or site.blocked:
            return
        topic, qos, count = chance.choice(TOPICS), chance.choice((0, 1, 1, 2)), chance.choice((1, 1, 2, 5, 40))
        self._send(site, topic, qos, count, chance.random() < 0.1 and self.retaining, 1 if chance.random() < 0.1 else None)

    def _send(self, site: Site, topic: str, qos: int, count: int, retain: bool = False, expiry: int | None = None) -> None:
        payloads = []
        for _ in range(count):
            self.serial += 1
            payloads.append(f"{site.uid:03d}:{self.serial:08d}".encode())
        site.publish(topic, qos, payloads, retain, expiry)

    def _retain(self) -> None:
        """A retained message, or the deletion of one."""
        site, chance = self._site(), self.chance
        if site is None or site.blocked or not self.retaining:
            return
        topic, qos = chance.choice(TOPICS), chance.choice((0, 1, 1, 2))
        if chance.random() < 0.35:
            site.publish(topic, qos, [b""], True)
        else:
            self._send(site, topic, qos, chance.choice((1, 1, 3)), True, 2 if chance.random() < 0.1 else None)

    def _burst(self) -> None:
        site = self._site()
        if site is not None and not site.blocked:
            for _ in range(10):
                self._send(site, self.chance.choice(TOPICS), self.chance.choice((0, 1)), self.chance.choice((1, 20)))

    def _span(self) -> None:
        site, chance = self._site(), self.chance
        if site is None or site.blocked:
            return
        for _ in range(chance.choice((1, 3))):
            topics = chance.choices(TOPICS, k=chance.choice((2, 5, 30)))
            payloads = []
            for _ in topics:
                self.serial += 1
                payloads.append(f"{site.uid:03d}:{self.serial:08d}".encode() + b"." * chance.choice((0, 1, 130)))
            site.publish_parts(topics, chance.choice((0, 1, 1, 2)), payloads)

    def _single(self) -> None:
        """Messages of QoS 1, each when the one before it has been acknowledged as a rule."""
        site, topic = self._site(), self.chance.choice(TOPICS)
        if site is None:
            return
        at = self.world.clock.now
        for _ in range(self.chance.randint(2, 6)):
            self.world.clock.at(at, lambda: self._send_single(site, topic))
            at += self.chance.choice((0.01, 0.1, 0.5))

    def _send_single(self, site: Site, topic: str) -> None:
        if site.node is not None and not site.blocked:
            self.serial += 1
            site.publish_parts([topic], 1, [f"{site.uid:03d}:{self.serial:08d}".encode()])

    def _post(self) -> None:
        """One broker says something to some others, and asks for an answer now and then."""
        site, chance = self._site(), self.chance
        if site is None or site.blocked:
            return
        assert site.node is not None
        for _ in range(chance.choice((1, 1, 6))):
            to = sum(1 << n for n in self.world.sites if site.node.known() >> n & 1 and chance.random() < 0.4)
            if to and not site.blocked:
                self.serial += 1
                site.post(to, chance.choice((b"ask", b"say")) + b"%03d:%08d" % (site.number, self.serial) + b"." * chance.choice((0, 700)))

    def _subscribe(self, site: Site | None = None) -> None:
        site = site or self.chance.choice(list(self.world.sites.values()))
        if self.crowded and self.chance.random() < 0.7:
            site.subscribe(*self.chance.choice(CROWD), self.chance.randint(1, 3))
            return
        group = self.chance.choice(GROUPS) if self.chance.random() < self.groups else None
        site.subscribe(self.chance.choice(self.filters), group, self.chance.randint(1, 3))

    def _unsubscribe(self) -> None:
        site = self.chance.choice(list(self.world.sites.values()))
        if site.subscriptions:
            site.unsubscribe(*self.chance.choice(list(site.subscriptions)))

    # ---- faults

    def _cut(self) -> None:
        wire = self.chance.choice(list(self.world.wires.values()))
        wire.cut()
        self.world.clock.after(self.chance.uniform(0.1, 3.0), wire.mend)

    def _rule(self, wire: Wire, site: Site) -> None:
        policy = some_policy(self.chance)
        wire.policies.pop(site.number, None)
        if policy is not None:
            wire.policies[site.number] = policy

    def _companies(self) -> None:
        """Two companies: all links between them have the same policies, for the whole run."""
        world, chance = self.world, self.chance
        inside = {site for site in world.sites if chance.random() < 0.5}
        one, other = (some_policy(chance) or Policy(out_except=("b/2",)) for _ in range(2))
        self.faults = FAULTS
        self.retaining = True
        plain = networkx.Graph()
        plain.add_nodes_from(world.sites)
        for (a, b), wire in world.wires.items():
            if (a in inside) == (b in inside):
                plain.add_edge(a, b)
            else:
                wire.policies = {a: one if a in inside else other, b: one if b in inside else other}
        self.parts = list(networkx.connected_components(plain))

    def _policy(self) -> None:
        """One end of a link is given another policy: the link ends, the next one has it."""
        wire = self.chance.choice(list(self.world.wires.values()))
        self._rule(wire, self.chance.choice((wire.a, wire.b)))
        if wire.connection is not None:
            wire.connection.end(hard=self.chance.random() < 0.5)

    def _lie(self) -> None:
        """A broker says something in the name of another, over one of its links, once each has seen each: before, any key is believed
        that is seen first (docs/security.md, "First sight"; seed 520103)."""
        sites = self.world.sites.values()
        self.met = self.met or all(site.node is not None and len(site.node.holders()) == len(sites) for site in sites)
        liar = self._site()
        if liar is None or not liar.connections or self.over or not self.met:
            return
        connection = self.chance.choice(list(liar.connections.values()))
        hearer = connection.other(liar)
        victim = self.chance.choice([site for site in self.world.sites.values() if site is not liar])
        if not connection.broken:
            self.world.lies += 1
            connection.ways[liar.uid].put(lie(self.chance, liar, victim, hearer, connection.incarnation), True)

    def _reset(self) -> None:
        wire = self.chance.choice(list(self.world.wires.values()))
        if wire.connection is not None:
            wire.connection.end(hard=self.chance.random() < 0.7)

    def _partition(self) -> None:
        side = {n for n in self.world.sites if self.chance.random() < 0.5}
        for (a, b), wire in self.world.wires.items():
            if (a in side) != (b in side):
                wire.cut()
                self.world.clock.after(2.0, wire.mend)

    def _crash(self) -> None:
        self._down(lambda site: None)

    def _amnesia(self) -> None:
        self._down(lambda site: site.forget(wiped=False))

    def _wipe(self) -> None:
        self._down(lambda site: site.forget(wiped=True))

    def _alone(self) -> None:
        """A broker dies, comes back while none of its links does, and is published to at once."""
        site = self._site()
        if site is None:
            return
        now = self.world.clock.now
        for wire in self.world.wires.values():
            if site in (wire.a, wire.b):
                wire.cut()
                self.world.clock.at(now + self.chance.uniform(1.0, 2.5), wire.mend)
        self._down(lambda site: None, site, self.chance.uniform(0.0, 0.5))

        def speak() -> None:
            if site.node is not None and not site.blocked:
                for topic in TOPICS:
                    self._send(site, topic, self.chance.choice((1, 1, 2)), self.chance.choice((1, 3)))

        self.world.clock.at(now + 0.6, speak)

    def _torn(self) -> None:
        """A disk fails, and its broker dies while much waits for it."""
        site = self._site()
        if site is not None:
            self._tear(site, self.chance.uniform(0.1, 0.8))

    def _tear(self, site: Site, last: float) -> None:
        site.broken_until = max(site.broken_until, self.world.clock.now + last + 0.1)
        self.world.clock.after(last, lambda: self._down(lambda site: None, site))

    def _torn_promise(self) -> None:
        """A disk fails right behind the commit that acknowledges a message, and its broker dies while all that comes of the message
        waits for the disk: receipts, refusals, second picks. Others refuse more often meanwhile, so that there are some."""
        site = self._site()
        if site is None:
            return

        def tear() -> None:
            last = self.chance.uniform(0.05, 0.8)
            self._tear(site, last)
            for other in self.world.sites.values():
                if other is not site:
                    other.snub(self.world.clock.now + last)

        site.promised = tear

    def _down(self, then: Callable[[Site], None], site: Site | None = None, after: float | None = None) -> None:
        site = site or self._site()
        if site is None or site.node is None or self.over:
            return
        site.crash()
        then(site)

        def back() -> None:
            if site.node is None:
                site.start()

        self.world.clock.after(self.chance.uniform(0.05, 2.0) if after is None else after, back)

    def _cost(self) -> None:
        wire = self.chance.choice(list(self.world.wires.values()))
        cost = wire.cost = self.chance.randint(1, 6)
        if wire.connection is None:
            return
        for site in (wire.a, wire.b):
            if site.node is not None and wire.connection.id in site.connections:
                site.node.link_cost(wire.connection.id, cost, self.world.clock.now)
                site.flush()

    def _disk(self) -> None:
        """A disk that fails for a while, full or gone."""
        site = self.chance.choice(list(self.world.sites.values()))
        site.broken_until = max(site.broken_until, self.world.clock.now + self.chance.uniform(0.1, 2.0))

    def _slow(self) -> None:
        wire = self.chance.choice(list(self.world.wires.values()))
        wire.slow(self.chance.choice((2_000.0, 20_000.0)), self.chance.choice((300, 3_000)))
        self.world.clock.after(1.5, lambda: wire.slow(1e9, 1 << 20))

    # ---- checks

    def check(self) -> None:
        """Converged, drained, complete."""
        world = self.world
        sites = world.sites
        everybody = set(sites)
        for site in sites.values():
            assert site.node is not None
            assert set(site.node.holders()) == everybody, f"site {site.number} sees {sorted(site.node.holders())}, not {sorted(everybody)}"
        digests = {site.number: site.node.digest() for site in sites.values()}  # type: ignore[union-attr]
        assert len(set(digests.values())) == 1, f"link state or interest differ: {digests}"
        for site in sites.values():
            for topic in TOPICS:
                real = sum(1 << n for n in self._wanted(site, topic))
                assert site.node.interested(topic) == real, f"site {site.number} is wrong about {topic}"  # type: ignore[union-attr]
        for site in sites.values():
            held, size = site.node.custody()  # type: ignore[union-attr]
            assert (held, size) == (0, 0), f"site {site.number} still holds {held} messages: {custody_of(site)}"
            assert not site.blocked, f"site {site.number} was never unblocked"
        assert not self._total("dropped_policy"), "an origin sent what a policy forbids"
        missing = world.ledger.missing()
        assert not missing, f"{len(missing)} missing: " + "; ".join(missing[:5])
        world.check_watches()
        lost = world.events["interest_mismatch"]
        assert not lost, f"{lost} interest mismatches"

    def check_retained(self) -> None:
        """Every site has the same retained messages, and they are what the keys say."""
        world = self.world
        asked = [(site, peer, one, one.sessions) for site in world.sites.values() for peer, one in site.neighbours() if not one.asks]
        world.run(3 * COMPARE + 1.0)  # all neighbours compare
        for site, peer, one, sessions in asked:
            assert one.sessions > sessions or (peer, one) not in site.neighbours(), f"site {site.number} compares with {peer} no more"
        views = {site.number: site.view for site in world.sites.values()}
        for topic in TOPICS:
            raw = topic.encode()
            records = {site.number: site.record(raw) for site in world.sites.values()}
            kept = {n: r.key if r is not None and r.kind is Kind.VALUE else None for n, r in records.items()}
            for part in self.parts:
                assert len({kept[n] for n in part}) == 1, f"{topic} differs: {kept}"
            for number, record in records.items():
                value = record.payload if record is not None and record.kind is Kind.VALUE else None
                shown = views[number].get(raw)
                written = world.ledger.writes.values() if world.guarded else (world.ledger.writes.get(raw, ()),)  # it may have another name
                ended = any(w.payload == shown and w.expires for some in written for w in some)  # the broker's view drops it by itself
                assert shown == value or ended, f"site {number} shows {shown!r} for {topic}, the mesh has {value!r}"
            if not world.guarded:
                world.ledger.check_last(raw, records, given_up=self.config.forget_after is not None)
        digests = {site.number: site.node.status()["retained"]["digest"] for site in world.sites.values()}  # type: ignore
        for part in self.parts:
            assert len({digests[n] for n in part}) == 1, f"retained messages differ: {digests}"
        if world.guarded:
            self._check_kept()
            return
        if any(site.life > 1 for site in world.sites.values()):
            return  # last words of a life that was killed are remembered by some for long
        world.run(sum(abs(skew) for skew in set(SKEWS)) + 20 * COMPARE)  # all clocks pass all keys, and everybody hears of it
        roots = {site.number: site.node._retained.sync._replica.tree.root for site in world.sites.values()}  # type: ignore
        assert len(set(roots.values())) == 1, f"what is remembered of deleted messages differs: {roots}"

    def _check_kept(self) -> None:
        """What is retained at a site may have come there."""
        for site in self.world.sites.values():
            for topic, payload in site.view.items():
                assert self.world.borders.possible(self.world.ledger.messages[payload], site.number, topic.decode()), (site.number, topic)

    def _wanted(self, site: Site, topic: str) -> list[int]:
        """The other sites with ordinary subscriptions that match what a topic is called there, where it may come there."""
        names = {n: self.world.borders.name_at(site, n, topic) for n in self.world.sites if n != site.number}
        held = {n: [f for f, g in self.world.sites[n].subscriptions if g is None] for n in names}
        return [n for n, name in names.items() if name is not None and any(matches(f, name) for f in held[n])]

    def check_copies(self) -> None:
        """While nothing changes: one more message from each site costs the edges of its shortest-path tree towards the interested."""
        world = self.world
        graph = networkx.Graph()
        graph.add_nodes_from(world.sites)
        for (a, b), wire in world.wires.items():
            graph.add_edge(a, b, cost=wire.cost)
        for site in world.sites.values():
            lengths = networkx.single_source_dijkstra_path_length(graph, site.number, weight="cost")
            costs = {m.number: m.cost for m in site.node.members()}  # type: ignore[union-attr]
            assert costs == lengths, f"site {site.number} computes {costs}, shortest are {lengths}"
            for topic in TOPICS:  # have the tree announced and joined
                self._send(site, topic, 1, 1)
            self._arrived(site)
            for qos in (0, 1, 1):
                topic = self.chance.choice(TOPICS)
                wanted = self._wanted(site, topic)
                names = [name for n in world.sites if (name := world.borders.name_at(site, n, topic)) is not None]
                groups = [f for other in world.sites.values() for f, g in other.subscriptions if g is not None]
                shared = any(matches(f, name) for f in groups for name in names)
                first = self.serial + 1
                before, duplicates, resent = world.frames, self._total("duplicates"), self._total("resent")
                self._send(site, topic, qos, 3)
                self._arrived(site)
                assert self._total("duplicates") == duplicates, "duplicates in a stable mesh"
                assert self._total("resent") == resent, "messages sent again in a stable mesh"
                self._check_came(site, first, wanted)
                self._check_names(site, topic, first, wanted)
                if not shared:
                    best = _steiner(graph, site.number, wanted)
                    copies = (world.frames - before) / 3
                    assert copies >= best, f"{copies} copies, {best} are needed"
                    tree = _tree_edges(site, wanted)
                    assert copies == len(tree), f"{copies} copies from {site.number} to {wanted}, its tree has {len(tree)}"
        self.check()

    def _arrived(self, site: Site) -> None:
        """What a site has sent has arrived. With little credit a long way takes one message at a time."""
        for _ in range(10):
            self.world.run(3.0)
            destinations = site.node._dispatch.custody.destinations  # type: ignore[union-attr]
            if not any(destinations[one.number].held_messages for one in site.node.members() if one.number in destinations):  # type: ignore[union-attr]
                return

    def check_flood(self) -> None:
        """While nothing changes, a flooded message reaches everybody who wants it."""
        for site in self.world.sites.values():
            for topic in TOPICS:
                wanted = self._wanted(site, topic)
                first = self.serial + 1
                self._send(site, topic, 0, 3)
                self.world.run(1.0)
                self._check_came(site, first, wanted)

    def _check_came(self, site: Site, first: int, wanted: list[int]) -> None:
        """The messages numbered from `first` on are at all these sites."""
        for serial in range(first, self.serial + 1):
            for number in wanted:
                payload = f"{site.uid:03d}:{serial:08d}".encode()
                assert (payload, self.world.sites[number].uid) in self.world.ledger.got, (
                    f"{payload!r} did not come to {number} in a stable mesh"
                )

    def _check_names(self, site: Site, topic: str, first: int, wanted: list[int]) -> None:
        """In a stable mesh they are called there as the policies on the tree say, and are nowhere where these do not lead."""
        world = self.world
        for serial in range(first, self.serial + 1):
            payload = f"{site.uid:03d}:{serial:08d}".encode()
            for number in world.sites:
                name, got = world.borders.name_at(site, number, topic), world.ledger.got_names.get((payload, world.sites[number].uid))
                assert got == name or (got is None and number not in wanted), (payload, topic, number, got, name)

    def _total(self, name: str) -> int:
        return sum(getattr(s.node.counters, name) for s in self.world.up())  # type: ignore[union-attr]


def _steiner(graph: networkx.Graph, root: int, wanted: list[int]) -> int:
    """No fewer frames than the hops to the farthest, nor than there are brokers that want it."""
    hops = networkx.single_source_shortest_path_length(graph, root)
    return max([len(wanted), *(hops[n] for n in wanted)], default=0)


def _tree_edges(site: Site, wanted: list[int]) -> set[tuple[int, int]]:
    """The edges of the origin's shortest-path tree that lead to the interested, computed from the graph of its link state."""
    paths = site.node._states.paths  # type: ignore[union-attr]
    edges = set()
    for number in wanted:
        while number != site.number:
            parent = paths[number].parent
            edges.add((parent, number))
            number = parent
    return edges


def custody_of(site: Site) -> str:
    """What a site holds, for a failure's text."""
    origin: Any = site.node._origin  # type: ignore[union-attr]
    tree: Any = site.node._tree  # type: ignore[union-attr]
    lines = [f"due={tree.due} tree={tree.number} reach={tree.reach:b}"]
    for d in origin.custody.destinations.values():
        if d.held_messages:
            first = origin.custody.open_for(d)[:1]
            where = [(e.epoch, e.first, e.count) for e in first]
            lines.append(
                f"to {d.number}: joined={d.joined} link={d.link} waiting={len(d.waiting)} flight={len(d.flight)} "
                f"settled={d.settled} seen={d.seen} first={where} credit={d.credit_messages},{d.credit_bytes}"
            )
    return "; ".join(lines)


TRAFFIC = {"publish": 30, "retain": 8, "burst": 2, "post": 6, "subscribe": 4, "unsubscribe": 3}
MIXED = {"publish": 10, "retain": 4, "span": 20, "burst": 2, "post": 6, "subscribe": 4, "unsubscribe": 3}  # of every third seed
FAULTS = {
    "cut": 6,
    "reset": 6,
    "partition": 2,
    "crash": 4,
    "amnesia": 2,
    "wipe": 2,
    "cost": 3,
    "slow": 4,
    "disk": 3,
    "torn": 3,
    "torn_promise": 3,
}
RESTARTS = {"alone": 12, "cut": 3, "crash": 6, "amnesia": 1, "wipe": 1, "torn": 3}
