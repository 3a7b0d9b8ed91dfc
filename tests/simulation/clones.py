"""Copied data folders: machines that are cloned, snapshots that are started beside their original (docs/copies.md).

A copy is another site under the same number and UUID, with the disk that its original had at one moment. It is linked to some of the
original's neighbours, or to the original itself, at once or after a partition. One of the two yields; an operator gives it an identity
of its own, or lets it take the other's place.

What must hold is in `ledger.py`. Here a broker and its copies count as one destination: what others have sent to the number is at
one of them.
Shared subscriptions, retained messages and messages between brokers are left out: their members, and the brokers, exist twice.
"""

from __future__ import annotations

from collections import Counter

import networkx

from .scenario import FAULTS, TRAFFIC, Scenario
from .site import Site
from .wire import Wire
from .world import World

COPIES = 2  # at most, in one run
SAID_WITHIN = 2.0  # seconds from the end of all faults


class Clones(Scenario):
    """One seed's run with copies of data folders."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world.copied = True
        self.world.keyed = seed % 3 == 0
        self.crowded = self.retaining = False
        self.groups = 0.0
        self.traffic = {name: count for name, count in TRAFFIC.items() if name not in ("retain", "post")} | {"span": 6}
        self.faults = {name: count for name, count in FAULTS.items() if name not in ("amnesia", "wipe", "torn_promise")}
        self.faults |= {"partition": 6, "copy": 12, "decide": 8}
        self.fresh = 50  # the next number that is free
        self.claims = 0
        self.copies = 0
        self.fences = 0
        for site in self.world.sites.values():
            site.durable = True
            site.picky = 0.0

    def run(self) -> World:
        """At least one data folder is copied."""
        self.world.clock.at(2.0 + self.chance.uniform(0, 4.0), self._copy)
        return super().run()

    # ---- faults

    def _copy(self) -> None:
        """A data folder is copied, and the copy started somewhere."""
        world, chance = self.world, self.chance
        twice = {site.number for site in world.everybody.values() if site.uid >= 1000}
        found = [site for site in world.everybody.values() if site.life and site.number not in twice and site.uid < 1000]
        if not found or self.copies >= COPIES or self.over:
            return
        self.copies += 1
        original = chance.choice(found)
        twin = original.copy(1000 * self.copies + original.uid)
        world.everybody[twin.uid] = twin
        neighbours = [w.b if w.a is original else w.a for w in world.wires.values() if original in (w.a, w.b)]
        linked = chance.sample(neighbours, chance.randint(1, len(neighbours)))
        if chance.random() < 0.3:
            linked.append(original)
        others = [site for site in world.sites.values() if site is not original and site not in neighbours]
        if others and chance.random() < 0.3:
            linked.append(chance.choice(others))
        apart = chance.random() < 0.4  # it is started where its original is not
        side = {site.uid for site in linked if site is not original} | {twin.uid}
        for site in linked:
            wire = world.wires[twin.uid, site.uid] = Wire(world, twin, site, chance.choice((1, 1, 2)))
            if apart and site is original:
                wire.cut()
                world.clock.after(3.0, wire.mend)
        if apart:
            self._part(side, chance.uniform(0.5, 3.0))
        world.clock.after(chance.choice((0.0, chance.uniform(0.0, 1.0))), lambda: self._begin(twin))

    def _part(self, side: set[int], seconds: float) -> None:
        """Cut the mesh in two for a while."""
        for wire in self.world.wires.values():
            if (wire.a.uid in side) != (wire.b.uid in side):
                wire.cut()
                self.world.clock.after(seconds, wire.mend)

    def _begin(self, twin: Site) -> None:
        if twin.node is None and twin.life == 0:
            twin.start()
            for wire in self.world.wires.values():
                if twin in (wire.a, wire.b):
                    wire.retry()

    def _decide(self) -> None:
        """An operator sees a broker that has yielded."""
        fenced = [site for site in self.world.everybody.values() if site.fenced is not None]
        if fenced:
            self._resolve(self.chance.choice(fenced))

    def _resolve(self, site: Site) -> None:
        if site.node is not None:
            site.crash()
        self.fences += 1
        if self.chance.random() < 0.3 and not self.over:
            self.claims += 1
            site.claim, site.fenced = self.claims, None
        else:
            site.renew(self.fresh)
            self.fresh += 1
        site.start()

    # ---- the end

    def heal(self) -> None:
        """One of each two has yielded soon; then each has an identity of its own."""
        super().heal()
        world = self.world
        for twin in [site for site in world.everybody.values() if site.uid >= 1000]:
            if twin.node is None:
                twin.start()
            for wire in world.wires.values():
                if twin in (wire.a, wire.b):
                    wire.retry()
        while True:
            world.run(SAID_WITHIN)
            self._check_alone()
            fenced = [site for site in world.everybody.values() if site.fenced is not None]
            if not fenced:
                break
            for site in fenced:  # another copy may have had its only link to one of these
                self._resolve(site)
        world.sites = {site.number: site for site in world.everybody.values()}
        world.wires = {(wire.a.number, wire.b.number): wire for wire in world.wires.values()}
        self.parts = [set(world.sites)]

    def _check_alone(self) -> None:
        """No two brokers with one identity serve where one can know of the other."""
        world = self.world
        serving = {site.uid: site for site in world.everybody.values() if site.fenced is None}
        graph = networkx.Graph([(w.a.uid, w.b.uid) for w in world.wires.values() if w.a.uid in serving and w.b.uid in serving])
        graph.add_nodes_from(serving)
        for part in networkx.connected_components(graph):
            numbers = Counter(serving[uid].number for uid in part)
            twice = [uid for uid in part if numbers[serving[uid].number] > 1]
            assert not twice, f"these live and have one identity: {twice}"
