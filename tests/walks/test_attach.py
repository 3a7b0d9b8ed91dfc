"""docs/attach.md, played with a real Mosquitto: it joins a mesh by the page's command, and `mqmesh status` says when it is gone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.command import run, start
from support.documents import of
from support.mosquittos import Mosquitto
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until


@pytest.mark.service
def test_a_mosquitto_joins_a_mesh_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQMESH_KEY", "a secret of 16 bytes or more")
    monkeypatch.chdir(tmp_path)
    (block,) = of("sh", "docs/attach.md")
    port = free_port()
    porto = start("broker", "--name", "porto", "--number", 1, "--mesh", "sites", "--listen", f"mqtt://127.0.0.1:{port}")
    assert porto.stdout is not None
    assert porto.stdout.readline().startswith("ready")
    with Mosquitto(tmp_path) as its_broker:
        text = block.text.replace("127.0.0.1:1884", f"127.0.0.1:{its_broker.port}").replace("10.0.0.1:1883", f"127.0.0.1:{port}")
        gate = start(*shlex.split(text)[1:])
        try:
            assert gate.stdout is not None
            url = gate.stdout.readline().split()[1]
            cross_both_ways(port, its_broker.port)
            its_broker.stop()
            wait_until(lambda: attached(url)["state"] == "down", PATIENCE, "news of the Mosquitto's end")
            assert its_broker.url in attached(url)["trouble"]
            assert b"the attached broker attached is down" in run("status", "-h", url).stdout, run("status", "-h", url).stdout
            its_broker.start()
            cross_both_ways(port, its_broker.port)
        finally:
            for process in (gate, porto):
                process.terminate()
                process.communicate(timeout=PATIENCE)


def attached(url: str) -> dict[str, str]:
    (found,) = json.loads(run("status", "-h", url, "--json").stdout)["attached"]
    return dict(found)


def cross_both_ways(port: int, its_port: int) -> None:
    """A client of the mesh, which is not at the gate, and one of the Mosquitto hear each other."""
    with Paho(port) as ours, Paho(its_port) as its:
        for publisher, subscriber, topic in ((ours, its, "from/mesh"), (its, ours, "from/plant")):
            subscriber.subscribe(topic, 1)

            def said(publisher: Paho = publisher, topic: str = topic, subscriber: Paho = subscriber) -> bool:
                publisher.publish(topic, b"x", 1)
                return not subscriber.messages.empty()

            wait_until(said, PATIENCE, f"{topic} on the other side")
