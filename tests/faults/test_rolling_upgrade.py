"""The release before this one and this one in one mesh: brokers are updated one by one under load, and nothing is lost."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.releases import previous_release
from support.scenes import RING, TRIANGLE, Fault, Scene, assert_clean, mesh
from support.status_client import StatusClient

pytestmark = pytest.mark.slow

CHAIN = [("a", "b"), ("b", "c"), ("c", "d")]
LONG = int(os.environ.get("MQMESH_EXAMPLES", "1")) > 1


class Releases:
    """Which broker of a scene runs the previous release. It does not write its status on its standard output: a client reads it."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self._scene = scene
        self._old = {"PYTHONPATH": str(previous_release(folder))}
        self._clients: dict[str, StatusClient] = {}

    def put(self, site: str, old: bool) -> None:
        """For its next start."""
        fleet = self._scene.fleet
        if site in self._clients:
            self._clients.pop(site).close()
        if old:
            fleet.environments[site] = self._old
            member = fleet.members[site]
            self._clients[site] = StatusClient(member.address, lambda status: fleet.heard(member, member.process, status))
        else:
            fleet.environments.pop(site, None)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def update(self, site: str, kill: bool) -> Fault:
        """The broker is stopped (killed) and started in this release, with the same data folder."""
        fault = self._scene.kill(site)

        def stop() -> None:
            self._scene.load.down.add(site)
            self._scene.fleet.stop_one(site)
            self._scene.load.killed(site, self._scene.keeps)

        def start() -> None:
            self.put(site, old=False)
            fault.end()

        return Fault(f"{'kill' if kill else 'stop'} and update {site}", fault.begin if kill else stop, start, fault.gone)


def versions(scene: Scene) -> set[tuple[str, int, int]]:
    """(site, neighbour, version of the mesh protocol) of each link that a broker of this release has."""
    return {
        (site, link["number"], link["version"])
        for site, status in scene.statuses().items()
        for link in status["links"]
        if link["up"] and "version" in link
    }


def load(scene: Scene) -> None:
    scene.subscribe()
    scene.publish(400)
    scene.publish(150, qos=2)
    scene.start()


@pytest.mark.parametrize(
    ("links", "kill"),
    [
        pytest.param(TRIANGLE, True, id="ring, killed"),
        pytest.param(CHAIN, False, id="chain", marks=() if LONG else pytest.mark.skip("a longer run has it: MQMESH_EXAMPLES=10")),
        pytest.param(RING, True, id="ring of five, killed", marks=() if LONG else pytest.mark.skip("a longer run has it")),
    ],
)
@pytest.mark.parametrize(
    "backwards", [False, True] if LONG else [False], ids=lambda backwards: "last first" if backwards else "first first"
)
def test_brokers_are_updated_one_by_one(links: list[tuple[str, str]], kill: bool, backwards: bool, tmp_path: Path) -> None:
    scene = Scene(mesh(links), tmp_path / "mesh")
    with closing(Releases(scene, tmp_path / "previous")) as releases, ExitStack() as running:
        for site in scene.sites:
            releases.put(site, old=True)
        running.enter_context(scene)
        load(scene)
        for site in sorted(scene.sites, reverse=backwards):
            assert_clean(scene.round(releases.update(site, kill), 0.2, 0.2))
        assert {version for _, _, version in versions(scene)} == {3}
        assert len(versions(scene)) == 2 * len(links)


def test_old_and_new_dial_each_other_and_relay_for_each_other(tmp_path: Path) -> None:
    """a - b - c - d: an old broker between two new ones, and a new one between two old ones."""
    scene = Scene(mesh(CHAIN), tmp_path / "mesh")
    with closing(Releases(scene, tmp_path / "previous")) as releases, ExitStack() as running:
        for site in "bd":
            releases.put(site, old=True)
        running.enter_context(scene)
        load(scene)
        assert versions(scene) == {("a", 2, 2), ("c", 2, 2), ("c", 4, 2)}
        assert_clean(scene.round(scene.cut(("b", "c")), 0.3, 0.2))
