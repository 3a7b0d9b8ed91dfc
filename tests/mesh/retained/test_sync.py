"""Retained messages across sites: the rules one by one, the comparison of records, and many seeds of the simulation."""

from __future__ import annotations

import pytest
from support.examples import how_many
from support.models.retained_world import Site, T, World

SEEDS = how_many("MQMESH_RETAINED_SEEDS", 16)
GRAPHS = {
    "pair": (2, [(1, 2)]),
    "chain": (3, [(1, 2), (2, 3)]),
    "ring": (5, [(1, 2), (2, 3), (3, 4), (4, 5), (5, 1)]),
    "bow-tie": (5, [(1, 2), (2, 3), (1, 3), (3, 4), (4, 5), (3, 5)]),
}


class Play:
    """Publish and break for a while, then heal and compare."""

    def __init__(self, seed: int, what: str) -> None:
        count, edges = GRAPHS[list(GRAPHS)[seed % len(GRAPHS)]]
        self.long = "long" in what
        self.wipe = "wiped" in what
        self.world = World(seed, count, edges, skew=(0.0, 3.0, 200.0, 40_000.0)[seed // 4 % 4], keep=T if self.long else 1e9)
        self.world.strict = not self.long
        self.chance = self.world.chance
        self.topics = [f"t/{n}".encode() for n in range(self.chance.choice((1, 3, 12)))]
        self.serial = 0
        self.copies: dict[int, dict[tuple[str, bytes], bytes]] = {}

    def run(self, rounds: int = 40) -> World:
        world, chance = self.world, self.chance
        for _ in range(rounds):
            self.publish(chance.randrange(6))
            self.fault()
            world.run(chance.choice((0.05, 1.0, 20.0, 100.0)))
            if self.long and chance.random() < 0.15:
                self.exile()
        world.heal()
        survivors = world.survivors()
        world.run(400.0)
        world.check(self.wipe)
        if not self.long:
            world.check_survivors(survivors)
        # What is buried may differ for a while: a slow clock remembers longer, and so does who knew a broker that lost its memory.
        if world.skew < T and (self.long or not self.wipe):
            world.run(2.5 * T)
            world.check_digests()
        return world

    def up(self) -> list[Site]:
        return [site for site in self.world.sites.values() if site.sync is not None]

    def publish(self, count: int) -> None:
        for _ in range(count):
            site = self.chance.choice(self.up())
            self.serial += 1
            payload = b"" if self.chance.random() < 0.35 else f"{self.serial} at {site.number}".encode()
            site.publish(self.chance.choice(self.topics), payload, self.chance.randrange(2))
            self.world.run(self.chance.choice((0.0, 0.001, 0.1, 2.0)))

    def fault(self) -> None:
        world, chance = self.world, self.chance
        act = chance.random()
        if act < 0.3:
            world.cut(*chance.choice(world.edges))
        elif act < 0.5:
            world.mend(*chance.choice(world.edges))
        elif act < 0.6:
            self.part()
        elif act < 0.7 and len(self.up()) > 1:
            site = chance.choice(self.up())
            lost = self.wipe and chance.random() < 0.5
            if lost and site.number in self.copies:
                site.crash(wiped=False, rows=self.copies.pop(site.number))
            else:
                site.crash(wiped=lost)
        elif act < 0.85:
            world.heal()
        elif act < 0.9 and self.wipe:
            site = chance.choice(self.up())
            self.copies[site.number] = dict(site.rows)

    def part(self) -> None:
        apart = {n for n in self.world.sites if self.chance.random() < 0.5}
        for a, b in self.world.edges:
            if (a in apart) != (b in apart):
                self.world.cut(a, b)

    def exile(self) -> None:
        """In two parts for about T or longer, with something to disagree about."""
        world, chance = self.world, self.chance
        world.heal()
        world.run(chance.choice((0.0, 1.0, 100.0)))
        self.publish(chance.randrange(6))
        self.part()
        for _ in range(3):
            self.publish(chance.randrange(3))
            world.run(T * chance.choice((0.1, 0.4, 1.0)))
        world.heal()
        world.run(chance.choice((0.3, 5.0, 70.0)))


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
@pytest.mark.parametrize("what", ["short", "long", "wiped", "wiped and long"])
def test_all_sites_become_equal(what: str, start: int) -> None:
    for seed in range(start, min(start + 10, SEEDS)):
        try:
            Play(seed, what).run()
        except Exception as error:
            raise AssertionError(f"seed {seed} ({what}): {error}") from error
