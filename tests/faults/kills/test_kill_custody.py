"""The broker that holds acknowledged messages is killed while their destination is cut off: none is lost, none comes twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support.examples import how_many
from support.scenes import RING, Scene, mesh, until

from benchmarks.trials.random_faults import run  # behind scenes, which makes `benchmarks` known
from benchmarks.trials.strict import Judge, Publisher, Subscriber

pytestmark = pytest.mark.slow


async def kill_the_origin(scene: Scene) -> None:
    """Publishers of QoS 1 and 2 at a; a subscriber with a persistent session at c, which is cut off before a is killed."""
    judges = {qos: Judge(qos) for qos in (1, 2)}
    subscriber = Subscriber("subscriber", 5, judges, 0, 0.0, random.Random(1))
    publishers = [Publisher(f"publisher {qos}", 5, qos, qos, f"k/{qos}".encode(), 100) for qos in (1, 2)]
    moved = asyncio.Event()
    for session in (subscriber, *publishers):
        session.changed = moved.set
    home = {subscriber: "c"} | dict.fromkeys(publishers, "a")

    def all_came() -> bool:
        return all(one.acknowledged <= judges[one.number].seen for one in publishers)

    await subscriber.dial(scene.address("c")[1])
    subscriber.subscribe(b"k/#", 2)
    await until(moved, lambda: subscriber.established, "SUBACK")
    await asyncio.to_thread(scene.settle)
    for publisher in publishers:
        await publisher.dial(scene.address("a")[1])
        publisher.go(500)
    await until(moved, lambda: all(one.idle for one in publishers) and all_came(), "all came")

    cut = scene.cut(("b", "c"), ("c", "d"))
    cut.begin()
    for publisher in publishers:
        publisher.go(3000)
    await until(moved, lambda: all(one.idle for one in publishers), "all were acknowledged")
    for publisher in publishers:
        publisher.go(6000)
    await until(moved, lambda: all(len(one.acknowledged) >= 3200 for one in publishers), "some more were")
    scene.fleet.kill("a")
    await until(moved, lambda: not any(one.up for one in publishers), "publishers saw it")
    assert all(len(one.acknowledged - judges[one.number].seen) >= 2000 for one in publishers), "c was not cut off"

    await asyncio.to_thread(scene.fleet.restart, "a")
    cut.end()
    await asyncio.to_thread(scene.settle)
    for publisher in publishers:
        await publisher.dial(scene.address(home[publisher])[1])
    await until(moved, lambda: all(one.idle for one in publishers) and all_came(), "all came behind the kill")
    for publisher in publishers:
        judge = judges[publisher.number]
        assert len(publisher.acknowledged) == 6000
        assert not publisher.refused
        assert (judge.twice, judge.disorder, judge.corrupt) == (0, 0, 0)
        assert judge.again <= publisher.window  # QoS 1: what the publisher had to say again
        assert not publisher.faults
    assert not subscriber.faults
    for session in home:
        session.leave()


def test_the_origin_is_killed_while_the_destination_is_cut_off(tmp_path: Path) -> None:
    with Scene(mesh(RING), tmp_path) as scene:
        asyncio.run(kill_the_origin(scene))
        assert not scene.fleet.take_exits()


@pytest.mark.parametrize("kind", ["kill -9", "restart", "full disk"])
def test_a_broker_with_a_store_breaks(kind: str, tmp_path: Path) -> None:
    faults = how_many("MQMESH_FAULTS", 4)
    for verdict in asyncio.run(run(tmp_path, faults, 1, 200.0, (1, 2), (kind,), lambda what: None)):
        assert verdict.ok, verdict
