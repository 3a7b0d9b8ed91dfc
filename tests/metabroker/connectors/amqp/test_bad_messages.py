"""AMQP remotes, what is odd: messages that the library cannot read, queues that take no more, a missing library, bindings left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pika
import pytest
from mqmesh.base.extras import install
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.connectors.amqp.guard import LARGEST_INCOMING
from pika.exceptions import ConnectionClosedByBroker, UnroutableError
from support.brokers import running_broker
from support.command import run
from support.peers.amqp_client import Pika
from support.peers.rabbitmq import RabbitMQ
from support.remotes import Kept, Member, running_metabroker
from support.services import PATIENCE, wait_until

from .test_mapping_and_guard import GOOD, POISON

POLICY = """
[[allow]]
clients = ["*"]
remotes = ["amqp*://127.0.0.1:*"]
publish = ["#"]
subscribe = ["#"]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of our broker, with a metabroker beside it, and the metabroker's log."""
    folder = tmp_path_factory.mktemp("community")
    with running_broker(folder, "mqmesh") as running, running_metabroker(folder, running.port, POLICY) as log:
        yield running.port, log


@pytest.fixture
def member(world: tuple[int, Path], rabbitmq: RabbitMQ, name: str) -> Iterator[Member]:
    member = Member(world[0], name)
    assert member.connect(rabbitmq.url)["code"] == Code.OK
    yield member
    member.send("disconnect")
    member.close()


@pytest.fixture
def far(rabbitmq: RabbitMQ) -> Iterator[Pika]:
    far = Pika(rabbitmq.port)
    yield far
    far.close()


class Raw(pika.BasicProperties):
    """Properties of any bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw

    def encode(self) -> list[bytes]:
        return [self.raw]


def test_what_the_library_cannot_read_costs_no_connection(
    member: Member, far: Pika, rabbitmq: RabbitMQ, world: tuple[int, Path], name: str
) -> None:
    """RabbitMQ passes on what it has not read itself. Each comes without its properties, and what follows comes whole."""
    member.ask("subscribe", message=1, topics=[f"{name}/#"], qos=1)
    passed = []
    for what, raw in POISON.items():
        sender = Pika(rabbitmq.port)
        try:
            sender.channel.basic_publish("amq.topic", f"{name}.poison", what.encode(), Raw(raw))
        except ConnectionClosedByBroker:
            continue
        passed.append(what)
        sender.close()
    assert {"a name that is no text", "no text", "a time that is none", "deep", "many"} <= set(passed)
    far.channel.basic_publish("amq.topic", name.encode() + b".\xff", b"no key", Raw(GOOD))  # type: ignore[arg-type]
    far.channel.basic_publish("amq.topic", f"{name}.large", bytes(LARGEST_INCOMING + 1), Raw(GOOD))
    far.channel.basic_publish("amq.topic", f"{name}.well", b"", Raw(GOOD))
    for what in passed:
        body = member.next()[1]
        assert (body["topic"], body["payload"], body.get("properties")) == (f"{name}/poison", what.encode(), None)
    body = member.next()[1]
    assert (body["topic"], body["properties"]) == (f"{name}/well", {"user": [["k", "v"], ["l", "1"], ["n", "7"]]})
    log = world[1].read_text()
    assert "event=remote-down" not in log
    assert f"it has {LARGEST_INCOMING + 1} bytes" in log


def test_what_the_remote_does_not_take_is_told(member: Member, far: Pika, name: str) -> None:
    """A queue that is full and refuses; a topic without a queue, with identifiers that come again."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    mailbox = far.channel.queue_declare("", exclusive=True, arguments=full).method.queue
    far.channel.queue_bind(mailbox, "amq.topic", f"{name}.full")
    assert member.ask("publish", message=1, topic=f"{name}/full", payload=b"", qos=1) == {"message": 1, "code": Code.OK}
    body = member.ask("publish", message=2, topic=f"{name}/full", payload=b"", qos=1)
    assert (body["code"], "quota" in body["reason"].lower()) == (Code.REMOTE_REFUSED, True)
    mine = {"user": [["amqp-message-id", "the-same"]]}
    far.listen(f"{name}.heard")
    for number in range(10, 50):
        topic = f"{name}/heard" if number % 2 else f"{name}/nobody"
        member.send("publish", message=number, topic=topic, payload=b"", qos=1, properties=mine)
    answers = {body["message"]: "reason" in body for _, body in (member.next() for _ in range(40))}
    assert answers == {number: not number % 2 for number in range(10, 50)}


def test_refused_topics_among_many_messages_cost_no_connection(world: tuple[int, Path], rabbitmq: RabbitMQ, name: str) -> None:
    """RabbitMQ closes the channel while hundreds of messages are on their way to it; each of them has its own answer."""
    member = Member(world[0], name)
    assert member.connect(rabbitmq.url, username="gauge", password="gauge")["code"] == Code.OK
    count = 900
    for number in range(count):
        topic = f"secret/{number}" if number % 300 == 150 else f"allowed/{number % 50}"
        body = msgpack.packb({"message": number, "topic": topic, "payload": bytes(2000), "qos": 1})
        member.paho.client.publish(f"metabroker/request/{member.session}/publish", body, 1)
    answers = [member.next() for _ in range(count)]
    assert {verb for verb, _ in answers} == {"puback"}
    assert sorted(body["message"] for _, body in answers if body["code"]) == [150, 450, 750]
    assert len({body["message"] for _, body in answers}) == count
    member.send("disconnect")
    member.close()


def test_what_was_published_before_leaving_is_there(world: tuple[int, Path], far: Pika, rabbitmq: RabbitMQ, name: str) -> None:
    """A session publishes and ends at once, and its connection with it."""
    far.listen(f"{name}.#")
    count, size = 20, 300_000  # less than `buffer`
    for qos in (0, 1):
        member = Member(world[0], f"{name}-{qos}")
        assert member.connect(rabbitmq.url, username="guest", password="guest")["code"] == Code.OK
        for number in range(count):
            keys = {"message": number} if qos else {}
            member.send("publish", topic=f"{name}/{qos}", payload=number.to_bytes(2, "big") + bytes(size), qos=qos, **keys)
        member.send("disconnect")
        assert [int.from_bytes(far.next().body[:2], "big") for _ in range(count)] == list(range(count))
        member.close()


def test_bindings_that_nobody_wants_any_more_are_taken_back(tmp_path: Path, rabbitmq: RabbitMQ, far: Pika, name: str) -> None:
    """They stay at the queue while the metabroker is dead; the policy forbids one meanwhile."""
    with running_broker(tmp_path, "mqmesh") as community:
        kept = Kept(tmp_path, community.port, POLICY)
        member = Member(community.port, name)
        assert member.connect(rabbitmq.url, durable=True)["code"] == Code.OK
        topics = [f"{name}/kept", f"{name}/forbidden"]
        assert member.ask("subscribe", message=1, topics=topics, qos=1, durable=True)["codes"] == [1, 1]
        kept.kill()
        assert bound(far, f"{name}.kept")
        assert bound(far, f"{name}.forbidden")
        (tmp_path / "policy.toml").write_text(POLICY.replace('subscribe = ["#"]', f'subscribe = ["{name}/kept"]'))
        kept.start()
        wait_until(lambda: not bound(far, f"{name}.forbidden"), PATIENCE, "end of the binding")
        assert bound(far, f"{name}.kept")
        member.send("disconnect", clean=True)
        while member.next()[0] != "discack":
            pass
        wait_until(lambda: not bound(far, f"{name}.kept"), PATIENCE, "end of the queue")
        member.close()
        kept.stop()


def bound(far: Pika, key: str) -> bool:
    """Whether a queue takes messages of this key."""
    try:
        far.channel.basic_publish("amq.topic", key, b"probe", mandatory=True)
    except UnroutableError:
        return False
    return True


@pytest.fixture
def without_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find no aio-pika."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "aio_pika.py").write_text("raise ImportError('there is no aio_pika')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("without_library")
def test_without_the_library_a_client_is_told(tmp_path: Path, name: str) -> None:
    with running_broker(tmp_path, "mqmesh") as community, running_metabroker(tmp_path, community.port, POLICY) as log:
        member = Member(community.port, name)
        body = member.connect("amqp://127.0.0.1:1")
        assert (body["code"], "has no library for amqp" in body["reason"]) == (Code.REMOTE_REFUSED, True)
        assert install("amqp") in log.read_text()
        member.close()


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("where", ["policy", "services"])
def test_without_the_library_files_that_need_it_are_refused(tmp_path: Path, where: str) -> None:
    policy, services = tmp_path / "policy.toml", tmp_path / "services.toml"
    policy.write_text(POLICY.replace("amqp*:", "amqp:") if where == "policy" else POLICY)
    services.write_text('[services]\nplant = ["amqp://127.0.0.1:1"]\n')
    files: list[Any] = ["--policy", policy, *(("--services", services) if where == "services" else ())]
    done = run("metabroker", "--community", "mqtt://127.0.0.1:1", *files)
    assert done.returncode == 2
    assert install("amqp") in done.stderr.decode()
    assert f"{where}.toml" in done.stderr.decode()
