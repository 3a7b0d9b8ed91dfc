"""A broker with a queue is killed while messages are put and worked: what was confirmed is there (docs/queues.md, "After a crash").

`MQMESH_QUEUE_KILLS` says how often; without it, twice. `MQMESH_QUEUE_STORES`: with which stores besides, separated by commas.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.queues import ANSWER, POSITION
from mqmesh.base.queues import TOPIC as REQUESTS
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import start
from support.peers.logs import SERVERS, log_at, started
from support.raw_client import RawClient
from support.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

KILLS = int(os.environ.get("MQMESH_QUEUE_KILLS", "2"))
STORES = os.environ.get("MQMESH_QUEUE_STORES", "sqlite").split(",")
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


class Worker:
    """The member of a queue that says by requests what is done.

    confirmed: payloads that it was told are done. unheard: those whose answer was lost with the broker: each is done, or comes again.
    given: those of this life, by position.
    """

    def __init__(self) -> None:
        self.confirmed: set[bytes] = set()
        self.unheard: set[bytes] = set()
        self.given: dict[int, bytes] = {}
        self._client: RawClient

    def connect(self, port: int) -> None:
        self.unheard |= set(self.given.values()) - self.confirmed
        self.given.clear()
        self._client = client(port, "worker")
        self._client.send(Subscribe(1, [Subscription(ANSWER, 0)]), Subscribe(2, [Subscription(TOPIC, 1)]))
        for _ in range(2):
            self._client.expect(Suback)

    def close(self) -> None:
        self._client.close()

    def take(self) -> None:
        """The next packet: a message, which is then said to be done, or an answer. What was confirmed must not come again."""
        packet = self._client.expect(Publish)
        if packet.topic == ANSWER:
            answer: dict[str, Any] = json.loads(packet.payload)
            assert answer.get("state") == "done", answer
            self.confirmed.add(self.given[answer["first"]])
            return
        assert packet.payload not in self.confirmed, "what was confirmed is offered again"
        position = int(dict(packet.properties[Property.USER_PROPERTY])[POSITION])
        self.given[position] = packet.payload
        asked = json.dumps({"do": "done", "name": "orders", "position": position}).encode()
        self._client.send(Puback(packet.packet_id), Publish(REQUESTS, asked, 0))


@pytest.mark.parametrize("store", STORES)
def test_what_was_confirmed_stays_so_in_each_store(tmp_path: Path, store: str) -> None:
    """Who put is told that it is kept, who worked that it is done: neither is ever taken back."""
    port, worker, put = free_port(), Worker(), set()
    with ExitStack() as stack:
        if store in SERVERS:
            (tmp_path / "server").mkdir()
            store = log_at(stack.enter_context(started(store, tmp_path / "server")))
        file = tmp_path / "porto.toml"
        head = f'listen = ["mqtt://127.0.0.1:{port}"]\ndata = "{tmp_path}/data"\n'
        file.write_text(f'{head}[queues.orders]\nacknowledge = "request"\nstore = "{store}"\n')
        for life in range(KILLS + 1):
            with start("broker", "--config", file, stderr=tmp_path / f"log-{life}") as broker:
                assert broker.stdout is not None
                assert broker.stdout.readline().startswith("ready"), (tmp_path / f"log-{life}").read_text()
                worker.connect(port)
                if life == KILLS:
                    while not put <= worker.confirmed | worker.unheard:
                        worker.take()
                    broker.terminate()
                    break
                shop = client(port, "shop")
                shop.send(*(Publish(TOPIC, b"%d-%d" % (life, number), 1, packet_id=number) for number in range(1, SENT + 1)))
                for _ in range(150 + 50 * life % 300):
                    worker.take()
                for _ in range(SENT // 2 + 37 * life % 250):
                    put.add(b"%d-%d" % (life, shop.expect(Puback).packet_id))
                broker.kill()
                broker.wait()
                shop.close()
                worker.close()
