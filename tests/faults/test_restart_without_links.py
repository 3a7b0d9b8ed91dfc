"""A broker that is killed and starts again: what it acknowledges before it has a link arrives at those whose interest it knew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scenes import TRIANGLE, Scene, mesh

from benchmarks.trials.strict import Judge, Publisher, Subscriber  # behind scenes, which makes `benchmarks` known

pytestmark = pytest.mark.slow
PATIENCE = 90.0


class Clients:
    """A subscriber with a persistent session at c, a publisher of QoS 1 at a."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.judge = Judge(1)
        self.subscriber = Subscriber("subscriber", 5, {1: self.judge}, 0, 0.0, random.Random(1))
        self.publisher = Publisher("publisher", 5, 1, 1, b"k/1", 100)
        self.moved = asyncio.Event()
        self.subscriber.changed = self.publisher.changed = self.moved.set

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it is so; it changes with what clients hear."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    self.moved.clear()
                    await self.moved.wait()
        except TimeoutError:
            pytest.fail(f"it never came to this: {what}")

    def all_came(self) -> bool:
        return self.publisher.acknowledged <= self.judge.seen

    async def begin(self) -> None:
        await self.subscriber.dial(self.scene.address("c")[1])
        self.subscriber.subscribe(b"k/#", 1)
        await self.until(lambda: self.subscriber.established, "SUBACK")
        await asyncio.to_thread(self.scene.settle)
        await self.publisher.dial(self.scene.address("a")[1])
        self.publisher.go(200)
        await self.until(lambda: self.publisher.idle and self.all_came(), "all came")
        self.scene.fleet.kill("a")
        await self.until(lambda: not self.publisher.up, "the publisher saw it")

    async def publish(self, count: int) -> None:
        """At once, to the broker that has just started."""
        await self.publisher.dial(self.scene.address("a")[1])
        self.publisher.go(count)
        await self.until(lambda: self.publisher.idle, "all were acknowledged")

    async def end(self) -> None:
        await self.until(self.all_came, "all came behind the restart")
        assert not self.publisher.refused
        assert not self.publisher.faults + self.subscriber.faults
        assert (self.judge.twice, self.judge.disorder, self.judge.corrupt) == (0, 0, 0)
        self.publisher.leave()
        self.subscriber.leave()


async def kill_and_cut(scene: Scene) -> None:
    clients = Clients(scene)
    await clients.begin()
    cut = scene.cut(("a", "b"), ("c", "a"))
    cut.begin()
    await asyncio.to_thread(scene.fleet.restart, "a")
    await clients.publish(500)
    assert len(clients.publisher.acknowledged - clients.judge.seen) >= 300, "a had a link"
    cut.end()
    await clients.end()


def test_with_a_store_it_knows_at_once_who_wants_what(tmp_path: Path) -> None:
    with Scene(mesh(TRIANGLE), tmp_path) as scene:
        asyncio.run(kill_and_cut(scene))
        assert not scene.fleet.take_exits()


async def kill_without_a_store(scene: Scene) -> None:
    clients = Clients(scene)
    await clients.begin()
    await asyncio.to_thread(scene.fleet.restart, "a")
    await clients.publish(500)
    await clients.end()


def test_without_a_store_clients_wait_for_the_first_link(tmp_path: Path) -> None:
    with Scene(mesh(TRIANGLE), tmp_path, durability="memory") as scene:
        asyncio.run(kill_without_a_store(scene))
        assert not scene.fleet.take_exits()
