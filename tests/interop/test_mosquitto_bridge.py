"""Mosquitto's bridges with their defaults: they say by a bit in the level of MQTT that they are bridges."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from paho.mqtt.client import MQTTMessage
from support.brokers import running_broker
from support.paho_client import Paho
from support.services import PATIENCE, free_port, require, wait_for_port


@contextlib.contextmanager
def bridging_mosquitto(folder: Path, address: str, lines: str) -> Iterator[int]:
    """A Mosquitto with a bridge to an address: its port."""
    port = free_port()
    config = folder / "bridge.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nconnection site\naddress {address}\n{lines}")
    with (folder / "bridge.log").open("w") as log:
        process = subprocess.Popen([require("mosquitto"), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=log)
    try:
        wait_for_port(port)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
def test_messages_go_both_ways_once_and_what_is_retained_stays_so(tmp_path: Path, version: str) -> None:
    lines = f"bridge_protocol_version {version}\ntopic # both 2\nrestart_timeout 1\n"
    with (
        running_broker(tmp_path, "mqmesh") as broker,
        Paho(broker.port, 4) as ours,
        bridging_mosquitto(tmp_path, f"127.0.0.1:{broker.port}", lines) as port,
        Paho(port, 4) as its,
    ):
        ours.subscribe("a/#", 2)
        its.subscribe("a/#", 2)
        ours.publish("a/ours", b"kept", 1, retain=True)
        kept = its.next()  # the bridge has subscribed
        assert (kept.topic, kept.payload) == ("a/ours", b"kept")
        sent = {(topic, b"%d" % number) for number in range(20) for topic in ("a/ours", "a/its")} | {("a/its", b"kept")}
        for number in range(20):
            ours.publish("a/ours", b"%d" % number, number % 3)
            its.publish("a/its", b"%d" % number, number % 3)
        its.publish("a/its", b"kept", 1, retain=True)
        assert Counter(_seen(its.next()) for _ in sent) == Counter(sent)
        assert Counter(_seen(ours.next()) for _ in range(len(sent) + 1)) == Counter([*sent, ("a/ours", b"kept")])
        for client in (ours, its):  # one crosses the bridge and would come back behind an echo of the others
            client.publish("a/last", b"", 2)
        for client in (ours, its):
            assert [client.next().topic for _ in range(2)] == ["a/last"] * 2
            client.nothing_until(f"own/{client.port}")
        for at in (broker.port, port):  # both keep both
            with Paho(at, 4) as later:
                later.subscribe("a/#", 1)
                retained = sorted((later.next() for _ in range(2)), key=lambda one: one.topic)
                assert [(one.topic, one.payload, one.retain) for one in retained] == [("a/its", b"kept", True), ("a/ours", b"kept", True)]


def _seen(message: MQTTMessage) -> tuple[str, bytes]:
    return message.topic, message.payload
