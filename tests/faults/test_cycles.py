"""Meshes with more cycles: as many frames as the best tree needs, no storm, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenes import FIVE, RING, TRIANGLE, Round, Scene, assert_clean, mesh

pytestmark = pytest.mark.slow
MESSAGES = 1000


def frames_each(scene: Scene) -> float:
    """Data frames between brokers for each message, of some thousand published in a mesh that has warmed up."""
    load = scene.load
    load.drain()
    before, begin = scene.still(), load.sent
    load.start()
    assert load.wait(lambda: load.sent >= begin + MESSAGES, 20)
    load.drain()
    after = scene.still()
    sent, received = (after[name] - before.get(name, 0) for name in ("sent", "received"))
    assert sent == received
    assert not scene.held
    return sent / (load.sent - begin)


def single(result: Round, ordered: bool = True) -> None:
    """QoS 0 may be lost, and over two flooded paths overtake while one of them comes or goes; nothing else may happen to it."""
    print(result)
    assert not result.count.duplicates
    assert not (ordered and result.count.disorder)
    assert not result.count.corrupt


@pytest.mark.parametrize(("links", "optimum"), [(TRIANGLE, 2), (FIVE, 4)], ids=["triangle", "full mesh of five"])
def test_cycles(links: list[tuple[str, str]], optimum: int, tmp_path: Path) -> None:
    with Scene(mesh(links), tmp_path, "memory") as scene:
        scene.subscribe()
        scene.publish(1500)
        scene.publish(500, qos=2)
        scene.start()
        assert_clean(scene.round(scene.cut(("a", "b")), 0.3))
        assert_clean(scene.round(scene.kill("c"), 0.3))
        assert_clean(scene.round(scene.stop("b"), 1.2))
        assert frames_each(scene) == optimum


@pytest.mark.parametrize(("links", "frames"), [(RING, 6), (FIVE, 4)], ids=["ring", "full mesh of five"])
def test_flood(links: list[tuple[str, str]], frames: int, tmp_path: Path) -> None:
    """Each message goes to every neighbour that is not marked as visited: the graph says how often at most; delivered once."""
    with Scene(mesh(links, "flood"), tmp_path) as scene:
        scene.subscribe(qos=0)
        scene.publish(2000, qos=0)
        scene.start()
        assert len(scene.sites) - 1 <= frames_each(scene) <= frames
        assert_clean(scene.check("flood"))
        single(scene.round(scene.cut(("a", "b")), 0.3, patience=0.5), ordered=False)


def test_qos_0_in_a_ring(tmp_path: Path) -> None:
    with Scene(mesh(RING), tmp_path) as scene:
        scene.subscribe(qos=0)
        scene.publish(3000, qos=0)
        scene.start()
        assert frames_each(scene) == 4
        assert_clean(scene.check("routed"))
        single(scene.round(scene.kill("c"), 0.3, patience=0.5))
