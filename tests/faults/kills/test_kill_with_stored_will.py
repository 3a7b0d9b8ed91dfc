"""The will of a stored session, in a mesh whose broker is killed: published once everywhere, neither lost nor repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paho_client import Paho
from support.scenes import TRIANGLE, Scene, mesh
from support.services import PATIENCE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("retain", [True, False])
def test_a_stored_will_survives_kill_9_and_fires_once(tmp_path: Path, retain: bool) -> None:
    with Scene(mesh(TRIANGLE), tmp_path) as scene:
        ports = {site: scene.address(site)[1] for site in scene.sites}
        watchers = {site: Paho(ports[site]).open() for site in ("b", "c")}
        for watcher in watchers.values():
            watcher.subscribe("will/#", 1)
        will = {"topic": "will/x", "payload": "gone", "qos": 1, "retain": retain}
        client = Paho(ports["a"], client_id="mortal", persistent=True, will=will).open()
        assert client.reason == 0
        scene.settle()
        scene.fleet.kill("a")
        assert client.disconnects.get(timeout=PATIENCE)
        client.client.loop_stop()
        for site, watcher in watchers.items():
            watcher.nothing_until(f"marker/1/{site}")

        scene.fleet.restart("a")
        for watcher in watchers.values():
            message = watcher.next()
            assert (message.topic, message.payload, message.retain) == ("will/x", b"gone", False)
        scene.settle()

        scene.fleet.kill("a")
        scene.fleet.restart("a")
        scene.settle()
        with Paho(ports["a"]) as other:
            other.subscribe("will/#", 1)
            if retain:
                message = other.next()
                assert (message.payload, message.retain) == (b"gone", True)
            other.publish("will/end", "end", 1)
            assert other.next().topic == "will/end"
        for site, watcher in watchers.items():
            assert watcher.next().topic == "will/end"
            watcher.nothing_until(f"marker/2/{site}")
            watcher.close()


def test_the_broker_dies_with_its_client(tmp_path: Path) -> None:
    """At any moment around the will: it comes to each other site once."""
    with Scene(mesh(TRIANGLE), tmp_path) as scene:
        ports = {site: scene.address(site)[1] for site in scene.sites}
        watcher = Paho(ports["c"]).open()
        watcher.subscribe("will/#", 1)
        for number in range(5):
            topic = f"will/{number}"
            will = {"topic": topic, "payload": "gone", "qos": 1 + number % 2, "retain": True}
            client = Paho(ports["a"], client_id=f"mortal-{number}", persistent=True, will=will).open()
            with Paho(ports["a"]) as other:
                scene.settle()
                client.vanish()
                for _ in range(number):  # the will has gone farther each time
                    other.publish("between", "x", 1)
                scene.fleet.kill("a")
            scene.fleet.restart("a")
            message = watcher.next()
            assert (message.topic, message.payload) == (topic, b"gone")
            scene.settle()
            watcher.nothing_until(f"marker/{number}")
        for port in ports.values():
            with Paho(port) as late:
                late.subscribe("will/#", 1)
                assert sorted(late.next().topic for _ in range(5)) == [f"will/{number}" for number in range(5)]
        watcher.close()
