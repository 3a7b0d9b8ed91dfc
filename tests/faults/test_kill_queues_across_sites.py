"""A mesh of three brokers (publisher's, home, member's) of which one is killed again and again: nothing confirmed is lost.

What is put at one site and worked at another survives the end of any of the three (docs/queues.md, "Across sites"). Who was a subscriber
until its connection ends is none any more.
`MQMESH_QUEUE_KILLS` says how often each is killed; without it, once.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from mqmesh.base.queues import ANSWER
from mqmesh.base.queues import TOPIC as REQUESTS
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import start
from support.raw_client import RawClient
from support.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

KILLS = int(os.environ.get("MQMESH_QUEUE_KILLS", "1"))
TOPIC = "$queue/orders"
SENT = 200
SITES = {"lyon": 1, "porto": 2, "turin": 3}  # porto is the home; messages are put at lyon and worked at turin


class Sites:
    """The three brokers. ports: where they listen. queue: what the file says of the queue."""

    def __init__(self, folder: Path, *queue: str) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in SITES}
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.lives = 0
        self._stack = ExitStack()
        for name, number in SITES.items():
            peers = "".join(f'[[mesh.peer]]\naddress = "mqtt://127.0.0.1:{self.ports[one]}"\n' for one in SITES if one < name)
            lines = [
                f'name = "{name}"',
                f"number = {number}",
                f'listen = ["mqtt://127.0.0.1:{self.ports[name]}"]',
                f'data = "{folder}/{name}"',
            ]
            lines += ["[queues.orders]", *queue] if name == "porto" else []
            lines += ["[mesh]", 'name = "m"', 'key = "0123456789abcdef"', peers]
            (folder / f"{name}.toml").write_text("\n".join(lines))

    def __enter__(self) -> Sites:
        for name in SITES:
            self.start(name)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, name: str) -> None:
        self.lives += 1
        log = self.folder / f"log-{name}-{self.lives}"
        broker = self._stack.enter_context(start("broker", "--config", self.folder / f"{name}.toml", stderr=log))
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready"), log.read_text()
        self.running[name] = broker

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()


def client(port: int, name: str) -> RawClient:
    made = RawClient(port)
    made.send(Connect(name, 5, True, 0))
    made.expect(Connack)
    return made


def shop(sites: Sites) -> RawClient:
    """A publisher whose broker knows the home of the queue."""
    while True:
        made = client(sites.ports["lyon"], "shop")
        made.send(Subscribe(1, [Subscription("$queue/none-such", 1)]), Subscribe(2, [Subscription(f"$share/g/{TOPIC}", 1)]))
        made.expect(Suback)
        if made.expect(Suback).reasons[0] == 0x8F:  # as soon as the topic is that of a queue
            return made
        made.send(Disconnect())
        made.close()


def member(sites: Sites) -> RawClient:
    made = client(sites.ports["turin"], "worker")
    made.send(Subscribe(1, [Subscription(TOPIC, 1)]))
    made.expect(Suback)
    return made


def work(worker: RawClient, worked: set[bytes], until: int) -> None:
    """Take messages and acknowledge them, until so many different ones were seen."""
    while len(worked) < until:
        one = worker.expect(Publish)
        worked.add(one.payload)
        worker.send(Puback(one.packet_id))


@pytest.mark.parametrize("killed", SITES)
def test_what_was_confirmed_is_worked(tmp_path: Path, killed: str) -> None:
    confirmed: set[bytes] = set()
    worked: set[bytes] = set()
    with Sites(tmp_path) as sites:
        for life in range(KILLS):
            publisher, worker = shop(sites), member(sites)
            publisher.send(*(Publish(TOPIC, b"%d-%d" % (life, number), 1, packet_id=number) for number in range(1, SENT + 1)))
            for _ in range(SENT // 4 + 37 * life % (SENT // 2)):
                confirmed.add(b"%d-%d" % (life, publisher.expect(Puback).packet_id))
            work(worker, worked, len(worked) + SENT // 8 + 29 * life % (SENT // 4))
            sites.kill(killed)
            publisher.close()
            worker.close()
            sites.start(killed)
        worker = member(sites)
        while not confirmed <= worked:
            work(worker, worked, len(worked) + 1)
        worker.close()
    assert confirmed <= worked


def subscriber(port: int, name: str, life: int = 0) -> RawClient:
    """life: seconds that its session outlives its connection."""
    made = RawClient(port)
    made.send(Connect(name, 5, not life, 0, properties={Property.SESSION_EXPIRY_INTERVAL: life}))
    made.expect(Connack)
    made.send(Subscribe(1, [Subscription(TOPIC, 1)]))
    made.expect(Suback)
    return made


def wait_for_subscribers(port: int, wanted: set[str]) -> None:
    """Ask the home until these are the subscribers of the queue, and no others."""
    found: set[str] | None = None
    asking = client(port, "asking")
    asking.send(Subscribe(1, [Subscription(ANSWER, 1)]))
    asking.expect(Suback)
    while found != wanted:
        asking.send(Publish(REQUESTS, json.dumps({"do": "show", "name": "orders"}).encode(), 0))
        answer = asking.expect(Publish)
        asking.send(Puback(answer.packet_id))
        found = {one["name"] for one in json.loads(answer.payload)["queue"]["members"] if one["subscriber"]}
    asking.close()


@pytest.mark.parametrize(("killed", "left"), [("turin", "archive near"), ("porto", "archive far"), ("turin porto", "archive")])
def test_sessions_that_end_with_a_killed_broker_are_subscribers_no_more(tmp_path: Path, killed: str, left: str) -> None:
    with Sites(tmp_path, 'plan = "all"') as sites, ExitStack() as stack:
        for port, name, life in (("turin", "far", 0), ("turin", "archive", 1000), ("porto", "near", 0)):
            stack.callback(subscriber(sites.ports[port], name, life).close)
        wait_for_subscribers(sites.ports["porto"], {"far", "archive", "near"})
        publisher = client(sites.ports["porto"], "shop")
        stack.callback(publisher.close)
        publisher.send(Publish(TOPIC, b"for all of them", 1, packet_id=1))
        assert publisher.expect(Puback).reason == 0  # and who they are is on the disk, too
        for name in killed.split():
            sites.kill(name)
        for name in killed.split():
            sites.start(name)
        wait_for_subscribers(sites.ports["porto"], set(left.split()))
