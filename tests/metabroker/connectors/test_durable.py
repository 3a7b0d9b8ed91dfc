"""Durable sessions with remotes that do not speak MQTT: metabroker and remote are killed and stopped, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.peers.amqp_client import Pika
from support.peers.nats_server import NatsPeer, running_nats
from support.peers.rabbitmq import RabbitMQ
from support.remotes import Kept, Member

pytestmark = [pytest.mark.service, pytest.mark.keeps]
POLICY = """
[[allow]]
clients = ["*"]
remotes = ["amqp://127.0.0.1:*", "nats://127.0.0.1:*"]
publish = ["#"]
subscribe = ["#"]
"""


@pytest.fixture(params=["amqp", "nats"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[str, bytes], None]]]:
    """A remote's address, and a way to publish there."""
    if request.param == "amqp":
        node: RabbitMQ = request.getfixturevalue("rabbitmq")
        pika = Pika(node.port)
        yield node.url, lambda topic, payload: pika.publish(topic.replace("/", "."), payload, delivery_mode=2)
        pika.close()
        return
    with running_nats(tmp_path) as server:
        peer = NatsPeer(server)
        peer.stream("all", "kept.>")
        yield server.url, lambda topic, payload: peer.publish(topic.replace("/", "."), payload)
        peer.close()


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_durable_session_goes_on(tmp_path: Path, far: tuple[str, Callable[[str, bytes], None]], name: str, kill: bool) -> None:
    """What comes while there is no metabroker waits at the remote, in the queue or the stream, and comes once."""
    url, publish = far
    topic = f"kept/{name.partition('-')[0]}"
    (tmp_path / "here").mkdir()
    with running_broker(tmp_path / "here", "mqmesh") as community:
        kept = Kept(tmp_path / "here", community.port, POLICY)
        member = Member(community.port, name)
        assert member.connect(url, durable=True)["code"] == Code.OK
        assert member.ask("subscribe", message=1, topics=[f"{topic}/#"], qos=1, durable=True)["codes"] == [1]
        publish(f"{topic}/a", b"0")
        assert member.next()[1]["id"] == 1
        member.send("ack", id=1)
        assert member.ask("publish", message=2, topic="kept/up", payload=b"", qos=1)["code"] == Code.OK
        kept.kill() if kill else kept.stop()
        for payload in (b"1", b"2"):
            publish(f"{topic}/b", payload)
        member.send("publish", message=3, topic=f"{topic}/c", payload=b"3", qos=1)
        kept.start()
        got: dict[int, bytes] = {}
        answered = set()
        while len(got) < 3 or not answered:
            verb, body = member.next()
            if verb == "publish":
                assert body["qos"] == 1
                got.setdefault(body["id"], body["payload"])
            elif verb == "puback":
                answered.add((body["message"], body["code"]))
        assert answered == {(3, Code.OK)}
        assert sorted(got) == [2, 3, 4]
        assert set(got.values()) == {b"1", b"2", b"3"}
        member.send("disconnect", clean=True)
        while member.next()[0] != "discack":  # what has no acknowledgement may come again
            pass
        member.close()
        kept.stop()
