"""The will of a stored session, in a mesh whose broker is killed: published once everywhere, neither lost nor repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from paho_client import Paho
from scenes import TRIANGLE, Scene, mesh

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
        assert client.disconnects.get(timeout=10)
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
