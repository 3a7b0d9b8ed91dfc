"""Clients that know nothing of queues put messages and work them: paho, mosquitto_pub and mosquitto_sub, amqtt's client, MQTT.js."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.base.address import parse_address
from support.peers.talking_client import KINDS, TalkingClient
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.slow
CONFIG = """
listen = ["mqtt://127.0.0.1:0"]
data = {data}
{queues}
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a broker with a queue for each kind of client."""
    folder: Path = tmp_path_factory.mktemp("queues")
    file = folder / "porto.toml"
    file.write_text(CONFIG.format(data=json.dumps(str(folder / "data")), queues="\n".join(f"[queues.{kind}]" for kind in KINDS)))
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line.startswith("ready "), line
        try:
            yield parse_address(line.split()[1]).port
        finally:
            broker.terminate()


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_share_the_work_and_one_is_killed(port: int, kind: str) -> None:
    topic = f"$queue/{kind}"
    bodies = [f"order-{number}" for number in range(10)]
    with TalkingClient(kind, port, f"shop-{kind}", "nothing/at/all") as shop:
        shop.publish(topic, bodies[0])  # before anybody is there
        with TalkingClient(kind, port, f"second-{kind}", topic) as second, TalkingClient(kind, port, f"first-{kind}", topic) as first:
            for body in bodies[1:8]:
                shop.publish(topic, body)
            wait_until(lambda: len(first.got) + len(second.got) >= 8, PATIENCE, "eight orders")
            assert sorted(body for _, body in first.got + second.got) == bodies[:8]
            first.hang()
            for body in bodies[8:]:
                shop.publish(topic, body)
            first.kill()
            for body in bodies[8:]:
                second.expect(body, topic)
