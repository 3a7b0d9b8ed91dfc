"""`mqmesh attach`: a broker whose only work is to bring another one in, and what `mqmesh status` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import run, start
from support.mosquittos import Mosquitto
from support.paho_client import Paho
from support.services import PATIENCE, free_port


def test_it_brings_a_mosquitto_in_and_says_when_it_is_gone(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as its_broker:
        process = start("attach", its_broker.url, "--as", "plant", "--in", "a/#", "--qos", 1)
        try:
            url = process.stdout.readline().split()[1]
            port = int(url.rpartition(":")[2])
            with Paho(port) as ours, Paho(its_broker.port) as its:
                ours.subscribe("#", 2)
                ours.subscribe("$SYS/broker/attach/plant/state", 0)
                while ours.next().payload != b"up":
                    pass
                its.publish("b", b"stays", 2)
                its.publish("a/1", b"comes", 2)
                message = ours.next()
                assert (message.topic, message.payload, message.qos) == ("a/1", b"comes", 1)
                its_broker.stop()
                while ours.next().payload != b"down":
                    pass
            done = run("status", "-h", url, "--json")
            (plant,) = json.loads(done.stdout)["attached"]
            assert (plant["name"], plant["state"]) == ("plant", "down")
            assert its_broker.url in plant["trouble"]
            assert b"the attached broker plant is down" in run("status", "-h", url).stdout
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("http://a:1",), b'attach: attach[1].address = "http://a:1"'),
        (("mqtt://a:1", "--qos", 3), b"attach[1].qos = 3: give a whole number from 0 to 2"),
        (("mqtt://a:1", "--cafile", "ca"), b"it needs TLS"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[object, ...], text: bytes) -> None:
    done = run("attach", *arguments, "--listen", f"mqtt://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1
