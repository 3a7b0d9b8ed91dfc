"""NATS remotes: a client of a community broker and nats-server, with a small client and nats-server's own MQTT listener on the far side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.metabroker import Code
from support.brokers import running_broker
from support.certificates import Certificates
from support.paho_client import Paho
from support.peers.nats_server import NatsPeer, NatsServer, running_nats
from support.remotes import Member, running_metabroker
from support.services import PATIENCE, free_port, wait_until

POLICY = """
[[allow]]
clients = ["*"]
remotes = ["nats://127.0.0.1:*", "tls://localhost:*", "plant"]
publish = ["#", "$JS/#"]
subscribe = ["#", "$JS/#"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: NatsServer) -> Iterator[tuple[int, Path]]:
    """The port of our broker, with a metabroker beside it, and the metabroker's log."""
    folder = tmp_path_factory.mktemp("community")
    services = f'plant = ["nats://127.0.0.1:{free_port()}", "{server.url}", "amqp://127.0.0.1:1"]\n'
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
def far(server: NatsServer) -> Iterator[NatsPeer]:
    peer = NatsPeer(server)
    yield peer
    peer.close()


def publications(member: Member, count: int) -> list[dict[str, Any]]:
    """The next publications, leaving out answers."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        verb, body = member.next()
        if verb == "publish":
            found.append(body)
    return found


def test_there_and_back(member: Member, far: NatsPeer, name: str) -> None:
    """Without a stream: QoS 0 is granted, publications are acknowledged once the server has handled them."""
    far.listen(f"{name}.>")
    assert member.connect("plant")["code"] == Code.OK
    assert member.ask("subscribe", message=1, topics=[f"{name}/+/temperature", f"x/{name}"], qos=1)["codes"] == [0, 0]
    for qos in (0, 1, 2):
        member.send("publish", message=10 + qos, topic=f"{name}/cellar/temperature", payload=f"21.{qos}", qos=qos)
        got = [member.next(), member.next()]
        [puback] = [body for verb, body in got if verb == "puback"]
        [publication] = [body for verb, body in got if verb == "publish"]
        assert puback == {"message": 10 + qos, "code": Code.OK}
        assert (publication["topic"], publication["payload"], publication["qos"]) == (f"{name}/cellar/temperature", f"21.{qos}".encode(), 0)
        message = far.next()
        assert (message.subject, message.data) == (f"{name}.cellar.temperature", f"21.{qos}".encode())
    far.publish(f"x.{name}", b"dots")
    assert member.next()[1]["topic"] == f"x/{name}"
    assert member.ask("unsubscribe", message=5, topics=[f"x/{name}"])["code"] == Code.OK
    far.publish(f"x.{name}", b"unheard")
    far.publish(f"{name}.roof.temperature", b"heard")
    assert member.next()[1]["payload"] == b"heard"


def test_a_filter_for_a_level_and_all_below(member: Member, far: NatsPeer, name: str) -> None:
    """Each message once, though several subscriptions match, of one session and of others."""
    other = Member(member.paho.port, f"{name}-2")
    for who in (member, other):
        assert who.connect("plant")["code"] == Code.OK
    assert member.ask("subscribe", message=1, topics=[f"{name}/#", f"{name}/+", "+/a"], qos=0)["codes"] == [0, 0, 0]
    assert other.ask("subscribe", message=1, topics=[f"{name}/a"], qos=0)["codes"] == [0]
    for subject in (name, f"{name}.a", f"{name}.a.b", f"{name}.a"):
        far.publish(subject, subject.encode())
    assert [body["payload"].decode() for body in publications(member, 4)] == [name, f"{name}.a", f"{name}.a.b", f"{name}.a"]
    assert [body["payload"].decode() for body in publications(other, 2)] == [f"{name}.a", f"{name}.a"]
    far.publish(f"{name}.end", b"")
    assert publications(member, 1)[0]["topic"] == f"{name}/end"
    other.send("disconnect")
    other.close()


def test_topics_as_nats_server_maps_them(member: Member, server: NatsServer, far: NatsPeer, name: str) -> None:
    """Its own MQTT listener and we write the same subjects, empty levels included."""
    mqtt = Paho(server.mqtt_port, 4, client_id=name).open()
    assert member.connect("plant")["code"] == Code.OK
    topics = [f"{name}/a", f"/{name}", f"{name}/", f"{name}//b", f"//{name}", f"{name}///", f"{name}/$x/>y"]
    for number, topic in enumerate(topics):
        member.ask("subscribe", message=number, topics=[topic], qos=0)
        mqtt.publish(topic, topic.encode(), 0)
        assert member.next()[1]["topic"] == topic
        mqtt.subscribe(topic, 0)
        member.send("publish", message=100 + number, topic=topic, payload=b"back", qos=0)
        assert mqtt.next().topic == topic
        assert {member.next()[0], member.next()[0]} == {"puback", "publish"}
    far.listen(f"{name}1.>")
    member.ask("publish", message=200, topic=f"{name}1/1.2/..", payload=b"", qos=1)
    assert far.next().subject == f"{name}1.1//2.////"
    mqtt.close()


def test_a_stream_keeps_what_comes(member: Member, far: NatsPeer, server: NatsServer, name: str) -> None:
    """Where a stream covers the filter QoS 1 is granted; consumers go with the subscription, or the session."""
    stream = name.partition("-")[0]
    far.stream(stream, f"{name}.>", name)
    assert member.connect("plant")["code"] == Code.OK
    assert member.ask("subscribe", message=1, topics=[f"{name}/a/+", f"{name}/#", "#"], qos=2)["codes"] == [1, 1, 1]
    assert len(far.consumers(stream)) == 5
    member.send("publish", message=2, topic=f"{name}/a/b", payload=b"1", qos=2, properties={"response_topic": "r/x"})
    [body] = publications(member, 1)
    assert (body["qos"], body["topic"], body["properties"]["response_topic"]) == (1, f"{name}/a/b", "r/x")
    far.publish(f"{name}.c", b"2")
    assert publications(member, 1)[0]["qos"] == 1
    assert far.ask(f"STREAM.INFO.{stream}")["state"]["messages"] == 2
    member.ask("unsubscribe", message=3, topics=[f"{name}/a/+"])
    wait_until(lambda: len(far.consumers(stream)) == 4, PATIENCE, "end of a consumer")
    wait_until(lambda: all(one["num_ack_pending"] == 0 for one in far.consumers(stream)), PATIENCE, "acknowledgements")
    member.ask("disconnect")
    member.session = ""
    wait_until(lambda: not far.consumers(stream), PATIENCE, "end of the consumers")


def test_a_stream_that_takes_no_more(member: Member, far: NatsPeer, name: str) -> None:
    """The stream's refusal reaches the publisher; when the stream goes the message goes to those who listen."""
    stream = name.partition("-")[0]
    far.stream(stream, name, max_msgs=1, discard="new")
    assert member.connect("plant")["code"] == Code.OK
    assert member.ask("publish", message=1, topic=name, payload=b"1", qos=1)["code"] == Code.OK
    assert member.ask("publish", message=2, topic=name, payload=b"2", qos=1)["code"] == Code.REMOTE_REFUSED
    far.ask(f"STREAM.DELETE.{stream}")
    assert member.ask("publish", message=3, topic=name, payload=b"3", qos=1)["code"] == Code.OK
    far.stream(stream, name)
    assert member.ask("subscribe", message=4, topics=[name], qos=1)["codes"] == [1]
    assert member.ask("publish", message=5, topic=name, payload=b"", qos=0)["code"] == Code.OK


PROPERTIES = {
    "format": 1,
    "expiry": 600,
    "content_type": "text/plain",
    "response_topic": "replies/here",
    "correlation": b"\x00\xff\x01",
    "user": [["unit", "C"], ["tag", "ü"], ["unit", ""], ["tag", "a: b"]],
}


def test_properties_both_ways(member: Member, far: NatsPeer, name: str) -> None:
    far.listen(name)
    assert member.connect("plant")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=[name], qos=0)
    member.send("publish", message=2, topic=name, payload=b"", qos=1, properties=PROPERTIES)
    assert publications(member, 1)[0]["properties"] == PROPERTIES
    message = far.next()
    assert message.reply == "replies.here"
    assert message.headers["Content-Type"] == "text/plain"
    assert message.headers["unit"] in ("C", "")

    far.publish(name, b"1", reply="_INBOX.abc.1", headers={"Nats-Msg-Id": "m-1", "k": "v"})
    found = publications(member, 1)[0]["properties"]
    assert found == {"response_topic": "_INBOX/abc/1", "user": [["Nats-Msg-Id", "m-1"], ["k", "v"]]}


def test_a_request_is_answered_through_the_metabroker(member: Member, far: NatsPeer, name: str) -> None:
    assert member.connect("plant")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=[f"{name}/#"], qos=0)

    waiting = far.request(f"{name}.sum", b"1+1")
    body = publications(member, 1)[0]
    member.ask("publish", message=2, topic=body["properties"]["response_topic"], payload=b"2", qos=0)
    assert waiting.result(PATIENCE).data == b"2"


@pytest.mark.parametrize(
    ("keys", "code", "words"),
    [
        ({"topic": "a b"}, Code.REMOTE_REFUSED, "spaces"),
        ({"topic": "a\r\nPUB x 0\r\n"}, Code.MALFORMED, "control"),
        ({"topic": "a/*/c"}, Code.REMOTE_REFUSED, "'*'"),
        ({"topic": "a/>"}, Code.REMOTE_REFUSED, "'>'"),
        ({"topic": "$JS/API/STREAM/DELETE/x"}, Code.REMOTE_REFUSED, "$"),
        ({"topic": "a" * 2049}, Code.REMOTE_REFUSED, "2048"),
        ({"retain": True}, Code.REMOTE_REFUSED, "retained"),
        ({"payload": bytes(200_000)}, Code.TOO_LARGE, "bytes"),
        ({"properties": {"response_topic": "a b"}}, Code.REMOTE_REFUSED, "spaces"),
        ({"properties": {"user": [["Nats-Rollup", "all"]]}}, Code.REMOTE_REFUSED, "Nats-Rollup"),
        ({"properties": {"user": [["a b", "v"]]}}, Code.REMOTE_REFUSED, "names"),
        ({"properties": {"user": [["k", "v\r\nNats-Rollup: all"]]}}, Code.MALFORMED, "control"),
        ({"properties": {"user": [["a(b)", "v"]]}}, Code.REMOTE_REFUSED, "names"),
        ({"properties": {"user": [["k", "\u00a0v"]]}}, Code.REMOTE_REFUSED, "spaces around"),
        ({"properties": {"content_type": " a"}}, Code.REMOTE_REFUSED, "spaces around"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_what_cannot_be_carried_is_refused(member: Member, far: NatsPeer, name: str, qos: int, keys: Any, code: Code, words: str) -> None:
    """Nothing reaches the remote, and the connection that others share stays."""
    far.listen("*")
    assert member.connect("plant")["code"] == Code.OK
    body = member.ask("publish", **{"message": 1, "topic": name, "payload": b"", "qos": qos} | keys)
    assert body["code"] == code, body
    assert words in body["reason"]
    assert member.ask("publish", message=2, topic=name, payload=b"mark", qos=1)["code"] == Code.OK
    assert far.next().data == b"mark"


def test_filters_that_are_not_to_be_had(member: Member, name: str) -> None:
    assert member.connect("plant")["code"] == Code.OK
    body = member.ask("subscribe", message=1, topics=["a b", f"{name}/+", "$JS/#", "a/>/b"], qos=1)
    assert (body["code"], body["codes"]) == (Code.OK, [0x8F, 0, 0x8F, 0x8F])


def test_messages_that_are_no_topics(member: Member, far: NatsPeer, world: tuple[int, Path], name: str) -> None:
    """Strange subjects and the server's own traffic are not handed on."""
    assert member.connect("plant")["code"] == Code.OK
    member.ask("subscribe", message=1, topics=["#"], qos=0)
    for subject in (f"{name}.a/b", f"{name}.///", f"{name}.+", f"{name}.#x", "_INBOX.x.y", "$KV.x"):
        far.publish(subject, b"no topic")
    far.publish(f"{name}./.x", b"empty level")
    [body] = publications(member, 1)
    assert (body["topic"], body["payload"]) == (f"{name}//x", b"empty level")
    assert "its subject is no topic" in world[1].read_text()  # said once a minute


def test_what_a_user_may_not_do(world: tuple[int, Path], far: NatsPeer, name: str) -> None:
    member = Member(world[0], name)
    assert member.connect("plant", username="gauge", password="gauge")["code"] == Code.OK
    codes = {}
    for number, topic in enumerate(["allowed/1", "secret/x", "allowed/2"]):
        member.send("publish", message=number, topic=topic, payload=b"", qos=1)
    for _ in range(3):
        body = member.next()[1]
        codes[body["message"]] = body["code"]
    assert codes == {0: Code.OK, 1: Code.REMOTE_REFUSED, 2: Code.OK}
    assert member.ask("subscribe", message=5, topics=["open/a", "closed/b", "open/c"], qos=1)["codes"] == [0, 0x87, 0]
    far.publish("open.c", b"seen")
    assert publications(member, 1)[0]["payload"] == b"seen"
    member.send("disconnect")
    member.close()


def test_connect_codes(world: tuple[int, Path], server: NatsServer) -> None:
    attempts = [
        ("wrong", server.url, {"username": "gauge", "password": "no"}, Code.REMOTE_REFUSED_CREDENTIALS),
        ("token", server.url, {"username": "token"}, Code.REMOTE_REFUSED_CREDENTIALS),
        ("gone", f"nats://127.0.0.1:{free_port()}", {}, Code.REMOTE_UNREACHABLE),
        ("path", "nats://host:1/a", {}, Code.MALFORMED),
    ]
    for client, remote, keys, code in attempts:
        member = Member(world[0], client)
        body = member.connect(remote, **keys)
        assert (body["code"], "session" in body) == (code, False), body
        member.close()


def test_tls(tmp_path: Path, name: str) -> None:
    """tls:// begins TLS behind the server's first word; nats:// to such a server says what would be right."""
    pem = Certificates(tmp_path)
    pem.broker("nats")
    (tmp_path / "server").mkdir()
    policy = POLICY + f'ca = "{pem.ca}"\n'
    with (
        running_nats(tmp_path / "server", pem.certificate("nats"), pem.key("nats"), jetstream=False) as server,
        running_broker(tmp_path, "mqmesh") as community,
        running_metabroker(tmp_path, community.port, policy),
    ):
        member = Member(community.port, name)
        refused = member.connect(server.url)
        assert refused["code"] == Code.REMOTE_REFUSED
        assert "tls://" in refused["reason"]
        assert member.connect(f"tls://localhost:{server.port}")["code"] == Code.OK
        assert member.ask("subscribe", message=1, topics=[name], qos=1)["codes"] == [0]
        member.send("publish", message=2, topic=name, payload=b"hidden", qos=1)
        assert publications(member, 1)[0]["payload"] == b"hidden"
        member.close()


def test_nothing_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """nats-server dies by SIGKILL with messages on their way in both directions, and comes back: no stream forgets."""
    count = 400
    (tmp_path / "nats").mkdir()
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path, "mqmesh") as community,
        running_metabroker(tmp_path, community.port, POLICY),
    ):
        peer = NatsPeer(server)
        peer.stream("r", "r.>")
        peer.close()
        sender, receiver = Member(community.port, "sender"), Member(community.port, "receiver")
        for member in (sender, receiver):
            assert member.connect(server.url)["code"] == Code.OK
        assert receiver.ask("subscribe", message=1, topics=["r/+"], qos=1)["codes"] == [1]
        for number in range(count):
            sender.send("publish", message=number, topic=f"r/{number % 7}", payload=json.dumps(number), qos=1)
            if number == count // 2:
                assert receiver.next()[0] == "publish"
                server.kill()
        server.start()
        acknowledged: set[int] = set()
        while len(acknowledged) < count:
            verb, body = sender.next()
            if verb != "status":
                assert (verb, body["code"]) == ("puback", Code.OK), body
                acknowledged.add(body["message"])
        got: set[int] = {0}
        while len(got) < count:
            verb, body = receiver.next()
            if verb == "publish":
                got.add(json.loads(body["payload"]))
        sender.close()
        receiver.close()
