"""A client with a persistent session goes around a ring of five, under load: nothing acknowledged is lost, QoS 2 comes once, in order."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from support.examples import how_many
from support.scenes import RING, Scene, mesh, until
from support.services import PATIENCE

from benchmarks.trials.strict import Judge, Publisher, Subscriber  # behind scenes, which makes `benchmarks` known

pytestmark = pytest.mark.slow
SITES = "abcde"
WINDOW = 50


async def come(session: Subscriber | Publisher, scene: Scene, site: str) -> None:
    """Connect at a site, as often as it takes: a broker that is dead or busy is tried again."""
    async with asyncio.timeout(PATIENCE):
        while not session.up:
            try:
                await session.dial(scene.address(site)[1])
            except OSError:
                session.leave()
                await asyncio.sleep(0.05)


class Travellers:
    """Publishers of QoS 1 and 2 at home, one of QoS 2 that roams too, and a subscriber that roams."""

    def __init__(self, scene: Scene, dice: random.Random, messages: int) -> None:
        self.scene = scene
        self.dice = dice
        self.moved = asyncio.Event()
        self.homes = {number: SITES[number % 5] for number in range(1, 5)}
        self.publishers = [Publisher(f"publisher {n}", 5, n, 1 + n % 2, f"r/{n}".encode(), WINDOW) for n in [*self.homes, 9]]
        self.judges = {one.number: Judge(one.qos) for one in self.publishers}
        self.subscriber = Subscriber("traveller", 5, self.judges, 20, 0.3, dice)
        self.messages = messages
        self.killed: set[str] = set()  # what an origin has sent comes late if it was away when the session moved (docs/roaming.md)
        for session in (self.subscriber, *self.publishers):
            session.changed = self.moved.set

    async def begin(self) -> None:
        await come(self.subscriber, self.scene, "a")
        self.subscriber.subscribe(b"r/#", 2)
        await until(self.moved, lambda: self.subscriber.established, "SUBACK")
        await asyncio.to_thread(self.scene.settle)
        for publisher in self.publishers:
            await come(publisher, self.scene, self.homes.get(publisher.number, "b"))
            publisher.established = True  # from here on the session may not be forgotten

    def more(self) -> None:
        for publisher in self.publishers:
            publisher.go(publisher.limit + self.messages)

    async def mind(self) -> None:
        """Publishers whose broker died come back."""
        for publisher in self.publishers:
            if not publisher.up and publisher.number in self.homes:
                await come(publisher, self.scene, self.homes[publisher.number])

    async def end(self) -> None:
        await self.mind()
        await until(self.moved, lambda: all(one.idle for one in self.publishers), "all are acknowledged")

        def missing() -> dict[int, int]:
            self.subscriber.pay()
            return {one.number: len(one.acknowledged - self.judges[one.number].seen) for one in self.publishers}

        try:
            async with asyncio.timeout(PATIENCE):
                while any(missing().values()):
                    if not self.subscriber.up:
                        await come(self.subscriber, self.scene, self.dice.choice(SITES))
                    await asyncio.sleep(0.05)
        except TimeoutError:
            gone = {one.number: sorted(one.acknowledged - self.judges[one.number].seen) for one in self.publishers}
            pytest.fail(f"messages never came, by publisher: {[(n, len(m), m[:1], m[-1:]) for n, m in gone.items()]}")

    def judge(self, moves: int, repeats: int) -> None:
        """repeats: how many messages of QoS 1 may have come again."""
        assert not self.subscriber.faults
        for publisher in self.publishers:
            judge = self.judges[publisher.number]
            assert not publisher.faults
            assert not publisher.refused
            assert len(publisher.acknowledged) == publisher.limit
            assert (judge.twice, judge.corrupt) == (0, 0), (publisher.number, judge.twice, judge.corrupt)
            origin = self.homes.get(publisher.number)
            if not (origin in self.killed if origin is not None else self.killed):
                assert judge.disorder == 0, (publisher.number, judge.disorder)
            assert judge.again <= repeats, (publisher.number, judge.again)
        print(f"{moves} moves, {sum(len(j.seen) for j in self.judges.values())} messages, again {[j.again for j in self.judges.values()]}")

    def leave(self) -> None:
        for session in (self.subscriber, *self.publishers):
            session.leave()


async def roam(scene: Scene, seed: int, moves: int, kills: int) -> None:
    dice = random.Random(seed)
    travellers = Travellers(scene, dice, 300)
    await travellers.begin()
    subscriber, nomad = travellers.subscriber, travellers.publishers[-1]
    killed = set(dice.sample(range(1, moves), kills))
    for move in range(moves):
        travellers.more()
        await asyncio.sleep(dice.uniform(0.05, 0.6))
        if dice.random() < 0.7:
            subscriber.leave()
        else:  # the broker there does not know that the client is gone
            old, subscriber._transport, subscriber.up = subscriber._transport, None, False
            assert old is not None
            old.pause_reading()
        if move in killed:
            victim = dice.choice(SITES)
            travellers.killed.add(victim)
            scene.fleet.kill(victim)
            await asyncio.sleep(dice.uniform(0, 0.3))
            await asyncio.to_thread(scene.fleet.restart, victim)
        await come(subscriber, scene, dice.choice(SITES))
        if move in killed:  # a broker that has just started knows others' interest with its first link: nobody publishes there before
            await asyncio.to_thread(scene.settle)
            await travellers.mind()
        if move % 3 == 2:
            nomad.leave()
            await come(nomad, scene, dice.choice(SITES))
    await travellers.end()
    travellers.judge(moves, (moves + kills) * 2 * WINDOW)
    travellers.leave()


def roaming_ring():
    topology = mesh(RING)
    topology.mesh = replace(topology.mesh, clients="roam", roam_wait=30.0)  # longer than a broker is away
    return topology


@pytest.mark.parametrize("kills", [0, how_many("MQMESH_ROAMING_KILLS", 4)])
def test_around_a_ring(kills: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("MQMESH_SEED", "1"))
    with Scene(roaming_ring(), tmp_path) as scene:
        asyncio.run(roam(scene, seed, how_many("MQMESH_MOVES", 16), kills))
        assert not scene.fleet.take_exits()


async def move_a_lot(scene: Scene, victim: str, messages: int) -> bool:
    """A long queue at a; its client comes at c; one of the two is killed while the queue is on its way. False: it had arrived by then."""
    judges = {qos: Judge(qos) for qos in (1, 2)}
    subscriber = Subscriber("traveller", 5, judges, 100, 0.0, random.Random(1))
    publishers = [Publisher(f"publisher {qos}", 5, qos, qos, f"r/{qos}".encode(), 500) for qos in (1, 2)]
    moved = asyncio.Event()
    for session in (subscriber, *publishers):
        session.changed = moved.set
    await come(subscriber, scene, "a")
    subscriber.subscribe(b"r/#", 2)
    await until(moved, lambda: subscriber.established, "SUBACK")
    subscriber.leave()
    await asyncio.to_thread(scene.settle)
    for publisher, site in zip(publishers, "be", strict=True):
        await come(publisher, scene, site)
        publisher.go(messages)
    await until(moved, lambda: all(one.idle for one in publishers), "all are acknowledged")

    await come(subscriber, scene, "c")
    await until(moved, lambda: sum(len(judge.seen) for judge in judges.values()) > messages // 2, "some came")
    for publisher in publishers:
        publisher.go(messages + 1000)
    scene.fleet.kill(victim)
    await until(moved, lambda: all(one.idle for one in publishers), "all that was published meanwhile is acknowledged")
    in_time = sum(len(judge.seen) for judge in judges.values()) < 2 * messages
    await asyncio.to_thread(scene.fleet.restart, victim)
    await come(subscriber, scene, "c")
    await until(moved, lambda: all(len(judge.seen) == messages + 1000 for judge in judges.values()), "all came")
    for qos, judge in judges.items():
        assert (judge.twice, judge.disorder, judge.corrupt) == (0, 0, 0), qos
        assert judge.again < messages // 10, judge.again  # what was acknowledged just before the kill, never all that had come
    assert not subscriber.faults
    for session in (subscriber, *publishers):
        session.leave()
    return in_time


@pytest.mark.parametrize("victim", ["a", "c"])
def test_a_long_queue_moves_while_a_broker_is_killed(victim: str, tmp_path: Path) -> None:
    """The one that the queue leaves, or the one that it comes to."""
    for messages in (15_000, 30_000, 60_000):  # a test that is held up kills too late: a longer queue takes longer
        with Scene(roaming_ring(), tmp_path / str(messages)) as scene:
            if asyncio.run(move_a_lot(scene, victim, messages)):
                return
    pytest.fail("each move was over before the kill")
