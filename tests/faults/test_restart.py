"""Brokers that come back: with their data folder, with an empty one, as another under the same number; and two that dial each other."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.address import Address
from mqmesh.cli.demo.ring import free_ports
from support.command import start
from support.paho_client import Paho
from support.scenes import TRIANGLE, Fault, Scene, assert_clean, mesh
from support.services import PATIENCE, wait_until
from support.status_client import StatusClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["fsync", "memory"])
def triangle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Scene(mesh(TRIANGLE), tmp_path_factory.mktemp("triangle"), request.param) as scene:
        scene.subscribe()
        scene.publish(800)
        scene.publish(150, qos=2)
        scene.start()
        yield scene


def identity(scene: Scene, site: str) -> dict[str, Any]:
    return dict(json.loads((scene.fleet.folder / site / "identity.json").read_text()))


def test_with_its_data_folder_it_is_the_same_broker_in_a_new_epoch(triangle: Scene) -> None:
    before = identity(triangle, "b")
    assert_clean(triangle.round(triangle.kill("b"), 0.3))
    after = identity(triangle, "b")
    assert after["uuid"] == before["uuid"]
    assert after["epoch"] > before["epoch"]


def test_with_an_empty_one_it_is_another_broker(triangle: Scene) -> None:
    before = identity(triangle, "c")
    assert_clean(triangle.round(triangle.kill("c", wipe=True), 0.3))
    assert identity(triangle, "c")["uuid"] != before["uuid"]
    uuids = {member["uuid"] for status in triangle.statuses().values() for member in status["members"]}
    assert len(uuids) == 3
    assert before["uuid"].replace("-", "") not in uuids


def test_stopped_in_order_and_started_again(triangle: Scene) -> None:
    kill = triangle.kill("b")

    def begin() -> None:
        triangle.load.down.add("b")
        triangle.fleet.stop_one("b")
        triangle.load.killed("b", triangle.keeps)

    assert_clean(triangle.round(Fault("stop b in order", begin, kill.end, kill.gone), 0.3))


def test_another_name_under_its_number(triangle: Scene) -> None:
    """The site is taken over by a new machine, which gets the old one's key: the mesh goes on with the new name, and what was open for
    the old one is returned."""
    kill = triangle.kill("c")
    folder = triangle.fleet.folder
    others = [site for site in triangle.sites if site != "c"]

    def end() -> None:
        (folder / "new").mkdir()
        shutil.copy(folder / "c" / "identity.key", folder / "new")
        renamed = start(
            *("broker", "--config", folder / "c.toml", "--name", "new", "--data", folder / "new", "--stop-with-stdin"),
            stdin=-1,
            stderr=folder / "new.log",
        )
        try:
            assert renamed.stdout.readline().startswith("ready "), (folder / "new.log").read_text()  # type: ignore[union-attr]

            def known() -> bool:
                statuses = triangle.statuses()
                return all(
                    ("new", 3, True) in [(one["name"], one["number"], one["live"]) for one in statuses[site]["members"]] for site in others
                )

            wait_until(known, PATIENCE, "broker called new at both others")
            port = triangle.address("c")[1]
            with Paho(port) as client:
                client.subscribe("load/#", 1)
                assert client.next().topic.startswith("load/")
        finally:
            renamed.stdin.close()  # type: ignore[union-attr]
            assert renamed.wait(PATIENCE) == 0
            renamed.stdout.close()  # type: ignore[union-attr]
        kill.end()  # and the old one comes back

    assert_clean(triangle.round(Fault("kill c, another takes its place", kill.begin, end, kill.gone), 0.3))


def test_two_that_dial_each_other_have_one_link(tmp_path: Path) -> None:
    ports = free_ports(2)
    environment = {**os.environ, "MQMESH_KEY": "a key of sixteen bytes"}
    brokers = []
    patient = tmp_path / "patient.toml"
    patient.write_text('[mesh]\nname = "m"\nsilence = 60\n')  # a link that a busy machine gives up would be made again
    stack = ExitStack()
    for number, (port, other) in enumerate(zip(ports, reversed(ports), strict=True), 1):
        address, peer = f"mqtt://127.0.0.1:{port}", f"mqtt://127.0.0.1:{other}"
        options = ("--config", patient, "--listen", address, "--peer", peer, "--name", f"site{number}", "--number", number)
        brokers.append(start("broker", *options, stderr=tmp_path / f"{number}.log", env=environment))
    try:
        for broker in brokers:
            assert broker.stdout.readline().startswith("ready ")  # type: ignore[union-attr]
        said: dict[int, Any] = {}
        for port in ports:
            address = Address("mqtt", "127.0.0.1", port)
            stack.callback(StatusClient(address, lambda status, port=port: said.__setitem__(port, status)).close)

        def links(port: int) -> list[tuple[bool, int]]:
            return [(link["up"], link.get("incarnation", 0)) for link in (said.get(port) or {"links": ()})["links"]]

        wait_until(lambda: links(ports[0]) == links(ports[1]) and len(links(ports[0])) == 1, PATIENCE, "one link that both see")
        with Paho(ports[0]) as one:
            for number in range(300):  # the connection that stands is not given up for the other again
                one.publish("load", str(number), 1)
        wait_until(
            lambda: links(ports[0]) == links(ports[1]) and len(links(ports[0])) == 1, PATIENCE, "one link still, no handshake of a second"
        )

        def ups() -> list[int]:
            return [len(re.findall("event=link-up", (tmp_path / f"{number}.log").read_text())) for number in (1, 2)]

        # one end may see the first of two crossing connections up that the other end gives up before
        assert max(ups()) <= 2, "the link was made again and again"
    finally:
        stack.close()
        for broker in brokers:
            broker.terminate()
            broker.communicate()
