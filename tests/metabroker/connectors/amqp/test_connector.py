"""AMQP remotes: a client of a community broker and RabbitMQ, with pika and RabbitMQ's own MQTT listener on the far side."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.certificates import Certificates
from support.paho_client import Paho
from support.peers.amqp_client import Pika
from support.peers.rabbitmq import RabbitMQ, running_rabbitmq
from support.remotes import Member, running_metabroker
from support.services import PATIENCE, free_port, wait_until

POLICY = """
[limits]
body = 4194304

[[allow]]
clients = ["archive"]
remotes = ["amqp://127.0.0.1:*/*"]
publish = ["#"]
subscribe = ["#"]
exchange = "archive"
queue_length = 50

[[allow]]
clients = ["*"]
remotes = ["amqp*://127.0.0.1:*/*", "plant"]
publish = ["#"]
subscribe = ["#"]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, rabbitmq: RabbitMQ) -> Iterator[tuple[int, Path]]:
    """The port of our broker, with a metabroker beside it, and the metabroker's log."""
    folder = tmp_path_factory.mktemp("community")
    services = f'plant = ["amqp://127.0.0.1:{free_port()}", "{rabbitmq.url}", "mqtt://127.0.0.1:1"]\n'
    with running_broker(folder, "mqmesh") as running, running_metabroker(folder, running.port, POLICY, services) as log:
        yield running.port, log


@pytest.fixture
def member(world: tuple[int, Path], name: str) -> Iterator[Member]:
    member = Member(world[0], name)
    yield member
    if member.session:
        member.send("disconnect")
    member.close()


@pytest.fixture
def pika(rabbitmq: RabbitMQ) -> Iterator[Pika]:
    pika = Pika(rabbitmq.port)
    yield pika
    pika.close()


def queues(rabbitmq: RabbitMQ) -> set[str]:
    """Our queues, as RabbitMQ's log and our names tell: those of connections that were ever made."""
    return set(re.findall(r"metabroker-[0-9a-f]{12}", rabbitmq.log.read_text(errors="replace")))


def new_queue(rabbitmq: RabbitMQ, before: set[str]) -> str:
    """The one of a connection that was made since: RabbitMQ writes its log behind what it does."""
    wait_until(lambda: bool(queues(rabbitmq) - before), PATIENCE, "line about the connection")
    [found] = queues(rabbitmq) - before
    return found


def test_there_and_back(member: Member, rabbitmq: RabbitMQ, pika: Pika, name: str) -> None:
    """Every QoS, wildcards, properties, with an AMQP client and an MQTT client on the far side."""
    far = Paho(rabbitmq.mqtt_port, 4).open()
    far.subscribe(f"{name}/+/temperature", 1)
    pika.listen(f"{name}.*.temperature")
    before = queues(rabbitmq)
    assert member.connect("plant")["code"] == Code.OK
    assert member.ask("subscribe", message=1, topics=[f"{name}/#", f"x/{name}"], qos=2)["codes"] == [1, 1]
    for qos in (0, 1, 2):
        member.send("publish", message=10 + qos, topic=f"{name}/cellar/temperature", payload=f"21.{qos}", qos=qos)
        got = [member.next(), member.next()]
        [puback] = [body for verb, body in got if verb == "puback"]
        [publication] = [body for verb, body in got if verb == "publish"]
        assert puback == {"message": 10 + qos, "code": Code.OK}
        assert (publication["topic"], publication["payload"]) == (f"{name}/cellar/temperature", f"21.{qos}".encode())
        assert publication["qos"] == min(qos, 1)
        message = pika.next()
        assert (message.routing_key, message.body) == (f"{name}.cellar.temperature", f"21.{qos}".encode())
        assert message.properties.delivery_mode == (2 if qos else 1)
        assert far.next().topic == f"{name}/cellar/temperature"
    far.publish(f"{name}/roof/wind", b"strong", 1)
    verb, body = member.next()
    assert (verb, body["topic"], body["payload"], body["qos"]) == ("publish", f"{name}/roof/wind", b"strong", 1)
    pika.publish(f"x.{name}", b"dots")
    assert member.next()[1]["topic"] == f"x/{name}"

    assert member.ask("unsubscribe", message=5, topics=[f"{name}/#"])["code"] == Code.OK
    pika.publish(f"{name}.gone", b"unheard")
    pika.publish(f"x.{name}", b"heard")
    assert member.next()[1]["payload"] == b"heard"
    mailbox = new_queue(rabbitmq, before)
    assert pika.depth(mailbox) == 0
    assert member.ask("disconnect")["code"] == Code.OK
    member.session = ""
    wait_until(lambda: pika.depth(mailbox) is None, PATIENCE, "end of the queue")
    far.close()


PROPERTIES = {
    "format": 1,
    "expiry": 600,
    "content_type": "text/plain",
    "response_topic": "replies/here",
    "correlation": b"\x00\xff\x01",
    "user": [["", "no name"], ["tag", "ü"], ["tag", ""], ["unit", "C"], ["amqp-type", "reading"]],
}


def test_properties_both_ways(member: Member, pika: Pika, name: str) -> None:
    """What MQTT 5 says with properties, AMQP says with its own and with headers."""
    pika.listen(name)
    assert member.connect("plant")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=[name], qos=1)
    member.send("publish", message=2, topic=name, payload=b"", qos=1, properties=PROPERTIES)
    [publication] = [body for verb, body in (member.next(), member.next()) if verb == "publish"]
    assert publication["properties"] == PROPERTIES
    theirs = pika.next().properties
    assert (theirs.content_type, theirs.expiration, theirs.reply_to, theirs.type) == ("text/plain", "600000", "replies.here", "reading")
    assert theirs.headers["unit"] == "C"
    assert theirs.headers["tag"] == ["ü", ""]

    headers = {"count": 3, "good": True, "parts": ["a", "b"], "nested": {"deep": 1}, "x-mqtt-publish-qos": 0, "ratio": Decimal("0.5")}
    pika.publish(name, b"1", headers=headers, correlation_id="c-7", reply_to="q.1", expiration=2500.5, message_id="m-1", app_id="scada")
    body = member.next()[1]
    assert body["qos"] == 0
    found = body["properties"]
    assert (found["correlation"], found["response_topic"], found["expiry"]) == (b"c-7", "q/1", 2501)
    assert sorted(map(tuple, found["user"])) == [
        ("amqp-app-id", "scada"),
        ("amqp-message-id", "m-1"),
        ("count", "3"),
        ("good", "true"),
        ("parts", "a"),
        ("parts", "b"),
        ("ratio", "0.5"),
    ]


@pytest.mark.parametrize(
    ("keys", "code", "words"),
    [
        ({"topic": "a.b/c"}, Code.REMOTE_REFUSED, "'.'"),
        ({"topic": "a/*/c"}, Code.REMOTE_REFUSED, "'*'"),
        ({"topic": "a" * 256}, Code.REMOTE_REFUSED, "255"),
        ({"retain": True}, Code.REMOTE_REFUSED, "retained"),
        ({"properties": {"user": [["CC", "elsewhere"]]}}, Code.REMOTE_REFUSED, "'CC'"),
        ({"properties": {"user": [["Bcc", "a"], ["Bcc", "b"]]}}, Code.REMOTE_REFUSED, "'Bcc'"),
        ({"properties": {"user": [["x-mqtt-publish-qos", "2"]]}}, Code.REMOTE_REFUSED, "x-mqtt"),
        ({"properties": {"user": [["k" * 129, "v"]]}}, Code.REMOTE_REFUSED, "128"),
        ({"properties": {"user": [["k", "v" * 60_000]] * 3}}, Code.REMOTE_REFUSED, "length"),
        ({"properties": {"content_type": "t" * 300}}, Code.REMOTE_REFUSED, "255"),
        ({"properties": {"response_topic": "a.b"}}, Code.REMOTE_REFUSED, "'.'"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_what_cannot_be_carried_is_refused(member: Member, pika: Pika, name: str, qos: int, keys: Any, code: Code, words: str) -> None:
    """Nothing reaches the remote, and the connection that others share stays."""
    pika.listen("#")
    assert member.connect("plant")["code"] == Code.OK
    body = member.ask("publish", **{"message": 1, "topic": name, "payload": b"", "qos": qos} | keys)
    assert body["code"] == code
    assert words in body["reason"]
    assert member.ask("publish", message=2, topic=name, payload=b"mark", qos=1)["code"] == Code.OK
    assert pika.next().body == b"mark"


def test_filters_that_are_not_to_be_had(member: Member, name: str) -> None:
    assert member.connect("plant")["code"] == Code.OK
    body = member.ask("subscribe", message=1, topics=[f"{name}/a.b", f"{name}/+", f"{name}/*"], qos=1)
    assert (body["code"], body["codes"]) == (Code.OK, [0x8F, 1, 0x8F])
    assert member.ask("subscribe", message=2, topics=["a.b"], qos=1)["code"] == Code.REMOTE_REFUSED


def test_messages_that_are_no_topics(member: Member, pika: Pika, world: tuple[int, Path], name: str) -> None:
    """Strange routing keys and headers of other people: dropped or carried without, and the next message comes."""
    assert member.connect("plant")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=["#"], qos=1)
    for key in (f"{name}.a/b", "", f"{name}.#", f"{name}.+", "\x00"):
        pika.publish(key, b"no topic")
    headers = {"long": "x" * 70_000, "bin": b"\xff", "nul": "a\0b", "ok": "1"}
    pika.publish(f"{name}..x", b"empty levels", headers=headers, message_id="m-2")
    verb, body = member.next()
    assert (verb, body["topic"], body["payload"]) == ("publish", f"{name}//x", b"empty levels")
    assert body["properties"] == {"user": [["ok", "1"], ["amqp-message-id", "m-2"]]}
    assert "its routing key is no topic" in world[1].read_text()  # said once a minute


def test_topics_that_a_user_may_not_use(world: tuple[int, Path], pika: Pika, name: str) -> None:
    """RabbitMQ closes the channel; only the message or filter that was to blame is refused, everybody else's goes through."""
    one, two = Member(world[0], f"{name}-1"), Member(world[0], f"{name}-2")
    keys = {"username": "gauge", "password": "gauge"}
    remote = "plant"
    assert one.connect(remote, **keys)["code"] == Code.OK
    assert two.connect(remote, **keys)["code"] == Code.OK
    pika.listen("allowed.#")
    for number in range(50):
        one.send("publish", message=number, topic=f"allowed/{number}", payload=b"", qos=1)
        two.send("publish", message=number, topic="secret/x" if number == 20 else f"allowed/two/{number}", payload=b"", qos=number % 2 or 1)
    codes = {who.name: {body["message"]: body["code"] for verb, body in (who.next() for _ in range(50))} for who in (one, two)}
    assert set(codes[one.name].values()) == {Code.OK}
    assert {number for number, code in codes[two.name].items() if code} == {20}
    assert codes[two.name][20] == Code.REMOTE_REFUSED
    assert two.ask("publish", message=100, topic="secret/x", payload=b"", qos=0)["code"] == Code.REMOTE_REFUSED
    seen = set()
    while len(seen) < 99:
        seen.add(pika.next().routing_key)
    assert one.ask("subscribe", message=200, topics=["open/a", "closed/b", "open/c"], qos=1)["codes"] == [1, 0x87, 1]
    pika.publish("open.c", b"seen")
    assert one.next()[1]["payload"] == b"seen"
    for who in (one, two):
        who.send("disconnect")
        who.close()


def test_connect_codes(world: tuple[int, Path], rabbitmq: RabbitMQ, name: str) -> None:
    port = rabbitmq.port
    attempts = [
        ("wrong", f"amqp://127.0.0.1:{port}", {"username": "guest", "password": "no"}, Code.REMOTE_REFUSED_CREDENTIALS),
        ("vhost", f"amqp://127.0.0.1:{port}/nowhere", {}, Code.REMOTE_REFUSED),
        ("archive", f"amqp://127.0.0.1:{port}", {}, Code.REMOTE_REFUSED),
        ("gone", f"amqp://127.0.0.1:{free_port()}", {}, Code.REMOTE_UNREACHABLE),
        ("mqtt", f"amqp://127.0.0.1:{world[0]}", {}, Code.REMOTE_UNREACHABLE),
        ("text", "amqp://host:1/a/b", {}, Code.MALFORMED),
        ("user", "amqp://guest:guest@127.0.0.1:1", {}, Code.MALFORMED),
    ]
    for client, remote, keys, code in attempts:
        member = Member(world[0], client)
        body = member.connect(remote, **keys)
        assert (body["code"], "session" in body) == (code, False), body
        member.close()


def test_virtual_host_exchange_and_length(world: tuple[int, Path], rabbitmq: RabbitMQ) -> None:
    """An address names a virtual host, a policy an exchange and how much waits."""
    site = Pika(rabbitmq.port, "site")
    site.channel.exchange_declare("archive", "topic", durable=True)
    member = Member(world[0], "archive")
    before = queues(rabbitmq)
    assert member.connect(f"amqp://127.0.0.1:{rabbitmq.port}/site")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=["a/b"], qos=1)
    site.publish("a.b", b"elsewhere")
    site.publish("a.b", b"here", exchange="archive")
    assert member.next()[1]["payload"] == b"here"
    mailbox = new_queue(rabbitmq, before)
    with pytest.raises(Exception, match=r"x-max-length.*50"):
        site.channel.queue_declare(f"{mailbox}.archive", durable=True, arguments={"x-expires": 3_600_000, "x-max-length": 51})
    member.send("disconnect")
    member.close()
    site.close()


@pytest.mark.slow
def test_nothing_is_lost_when_the_server_is_killed(tmp_path: Path, name: str) -> None:
    """RabbitMQ, reached by TLS, dies by SIGKILL with messages on their way in both directions, and comes back."""
    count = 400
    (tmp_path / "rabbitmq").mkdir()
    pem = Certificates(tmp_path)
    pem.broker("rabbit")
    with (
        running_rabbitmq(tmp_path / "rabbitmq", pem.certificate("rabbit"), pem.key("rabbit")) as node,
        running_broker(tmp_path, "mqmesh") as community,
        running_metabroker(tmp_path, community.port, POLICY + f'ca = "{pem.ca}"\n'),
    ):
        remote = f"amqps://127.0.0.1:{node.tls_port}"
        sender, receiver = Member(community.port, "sender"), Member(community.port, "receiver")
        for member in (sender, receiver):
            assert member.connect(remote)["code"] == Code.OK
        assert receiver.ask("subscribe", message=1, topics=["r/#"], qos=1)["codes"] == [1]
        for number in range(count):
            sender.send("publish", message=number, topic=f"r/{number % 7}", payload=json.dumps(number), qos=1)
            if number == count // 2:
                assert receiver.next()[0] == "publish"
                node.kill()
        acknowledged: set[int] = set()
        states = []
        node.start()
        while len(acknowledged) < count:
            verb, body = sender.next()
            if verb == "status":
                states.append(body["code"])
            else:
                assert (verb, body["code"]) == ("puback", Code.OK), body
                acknowledged.add(body["message"])
        assert states == [Code.REMOTE_UNREACHABLE, Code.OK] or states[-1] == Code.OK
        got: set[int] = {0}
        while len(got) < count:
            verb, body = receiver.next()
            if verb == "publish":
                got.add(json.loads(body["payload"]))
        pika = Pika(node.port)
        pika.publish("r.after", json.dumps(count).encode())
        while json.loads(receiver.next()[1]["payload"]) != count:
            pass
        pika.close()
        sender.close()
        receiver.close()


def test_the_remote_waits_for_the_community(tmp_path: Path, rabbitmq: RabbitMQ, pika: Pika, name: str) -> None:
    """A community broker that stands still: RabbitMQ is read no longer, and everything comes once, in order, when it goes on."""
    count, size = 300, 20_000
    (tmp_path / "here").mkdir()
    with (
        running_broker(tmp_path / "here", "mosquitto") as here,
        running_metabroker(tmp_path, here.port, "[limits]\nbuffer = 100000\n" + POLICY.partition("4194304\n")[2]) as log,
    ):
        member = Member(here.port, name)
        assert member.connect(rabbitmq.url)["code"] == Code.OK
        member.ask("subscribe", message=1, topics=[name], qos=1)
        here.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(count):
                pika.publish(name, number.to_bytes(4, "big") + bytes(size), delivery_mode=2)
            wait_until(lambda: "event=remotes-paused" in log.read_text(), PATIENCE, "pause")
        finally:
            here.process.send_signal(signal.SIGCONT)
        bodies = [member.next()[1] for _ in range(count)]
        assert [int.from_bytes(body["payload"][:4], "big") for body in bodies] == list(range(count))
        wait_until(lambda: "event=remotes-resumed" in log.read_text(), PATIENCE, "end of the pause")
        assert member.ask("publish", message=2, topic="x", qos=1)["code"] == Code.OK
        member.send("disconnect")
        member.close()
