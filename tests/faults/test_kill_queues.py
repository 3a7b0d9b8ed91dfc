"""A broker with a queue is killed while messages are put and worked: what was confirmed is there (docs/queues.md, "After a crash").

`MQMESH_QUEUE_KILLS` says how often; without it, twice.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from support.command import start
from support.raw_client import RawClient
from support.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

KILLS = int(os.environ.get("MQMESH_QUEUE_KILLS", "2"))
TOPIC = "$queue/orders"
SENT = 600


def client(port: int, name: str) -> RawClient:
    made = RawClient(port)
    made.send(Connect(name, 5, True, 0))
    made.expect(Connack)
    return made


def member(port: int, name: str) -> RawClient:
    made = client(port, name)
    made.send(Subscribe(1, [Subscription(TOPIC, 1)]))
    made.expect(Suback)
    return made


@pytest.mark.parametrize("to", [TOPIC, "orders/new"], ids=["put", "bound"])
def test_what_was_confirmed_is_there_after_kill_9(tmp_path: Path, to: str) -> None:
    """to: the queue's topic, or one that it is bound to."""
    port = free_port()
    file = tmp_path / "porto.toml"
    file.write_text(f'listen = ["mqtt://127.0.0.1:{port}"]\ndata = "{tmp_path}/data"\n[queues.orders]\ntopics = ["orders/#"]\n')
    confirmed: set[bytes] = set()
    worked: set[bytes] = set()
    for life in range(KILLS + 1):
        with start("broker", "--config", file, stderr=tmp_path / f"log-{life}") as broker:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("ready"), (tmp_path / f"log-{life}").read_text()
            worker = member(port, "worker")
            if life == KILLS:
                while not confirmed <= worked:
                    one = worker.expect(Publish)
                    worked.add(one.payload)
                    worker.send(Puback(one.packet_id))
                broker.terminate()
                break
            shop = client(port, "shop")
            shop.send(*(Publish(to, b"%d-%d" % (life, number), 1, packet_id=number) for number in range(1, SENT + 1)))
            for _ in range(100 + 50 * life % 300):
                one = worker.expect(Publish)
                worked.add(one.payload)
                worker.send(Puback(one.packet_id))
            for _ in range(SENT // 2 + 37 * life % 250):
                confirmed.add(b"%d-%d" % (life, shop.expect(Puback).packet_id))
            broker.kill()
            broker.wait()
            shop.close()
            worker.close()
    assert confirmed <= worked
