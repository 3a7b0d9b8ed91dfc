"""Community brokers with the rules of `mqmesh metabroker acl`, and ours: clients work, and who tries to be another one has no effect."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgpack
import pytest
from mqmesh.base.metabroker import CONNECT, Code
from mqmesh.client import MetabrokerConnectionFactory
from support.brokers import RunningBroker, running_broker
from support.command import run
from support.paho_client import Paho
from support.remotes import POLICY, Member, running_metabroker
from support.services import free_port, require, wait_for_port

pytestmark = pytest.mark.service
EXAMPLE = Path(__file__).parents[3] / "examples" / "metabroker.sh"
SECRET = "a secret of the two of them"
USERS = ("metabroker", "near", "thief", "connect", "near/connack")
LIMITS = "[limits]\nsessions_per_client = 3\n"
WIDE = ["#", "+/#", "metabroker/#", "metabroker/request/#", "metabroker/response/+/#", "+/+/+/+/+", "$share/g/metabroker/#", "$share/h/#"]


class Guarded(NamedTuple):
    """A community broker with rules, and a metabroker. login: whether clients have user names. leaks: what it sends all the same."""

    port: int
    version: int
    login: bool
    leaks: tuple[str, ...] = ()

    def user(self, name: str) -> tuple[str, str] | None:
        return (name, SECRET) if self.login else None

    def member(self, name: str) -> Member:
        """A client; by another client identifier than its name where names are those of users."""
        return Member(self.port, name, self.version, self.user(name))

    def stranger(self, name: str) -> Paho:
        """A client that does what it likes."""
        made = Paho(self.port, self.version, name)
        if self.login:
            made.client.username_pw_set(name, SECRET)
        return made.open()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), "mosquitto") as running:
        yield running


def rules(*options: str) -> str:
    done = run("metabroker", "acl", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def serve(folder: Path, port: int, command: list[str]) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_port(port)
        yield
    finally:
        process.terminate()
        process.wait()


def mosquitto(folder: Path, port: int, *options: str) -> Iterator[None]:
    (folder / "acl").write_text(rules("--for", "mosquitto", *options) + "pattern readwrite plant/#\n")
    (folder / "passwords").touch()
    for user in USERS:
        subprocess.run([require("mosquitto_passwd"), "-b", folder / "passwords", user, SECRET], check=True, capture_output=True)
    for name in ("acl", "passwords"):
        (folder / name).chmod(0o644)
    lines = [
        "user root",
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        f"password_file {folder}/passwords",
        f"acl_file {folder}/acl",
    ]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    yield from serve(folder, port, [require("mosquitto"), "-c", str(folder / "mosquitto.conf")])


def amqtt(folder: Path, port: int) -> Iterator[None]:
    made = rules("--for", "amqtt", *[word for user in USERS[1:3] for word in ("--user", user)])
    listener = f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\nplugins:\n"
    anybody = "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: false\n"  # who says a user name comes in
    (folder / "amqtt.yaml").write_text(listener + anybody + re.sub("(?m)^", "  ", made))
    script = "from amqtt.scripts.broker_script import main; main()"
    yield from serve(folder, port, [sys.executable, "-c", script, "-c", str(folder / "amqtt.yaml")])


@pytest.fixture(scope="module", params=["mqmesh", "mosquitto", "amqtt"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("community")
    (folder / "password").write_text(SECRET)
    options = ["--data", str(folder / "data")]
    if request.param == "mqmesh":
        with running_broker(folder, "mqmesh") as running, running_metabroker(folder, running.port, LIMITS + POLICY, "", *options):
            yield Guarded(running.port, 5, False)
        return
    port = free_port()
    made = Guarded(port, 5, True)
    if request.param == "amqtt":
        made = Guarded(port, 4, True, ("metabroker/peer/",))  # retained messages of others' subscriptions, to each client that connects
    options += ["--password-file", str(folder / "password"), "-V", str(made.version)]
    for _ in mosquitto(folder, port) if request.param == "mosquitto" else amqtt(folder, port):
        with running_metabroker(folder, f"mqtt://metabroker@127.0.0.1:{port}", LIMITS + POLICY, "", *options):
            yield made


def forge(thief: Paho, near: str, remote: str) -> None:
    """All that the thief can do: connect, clean, use up sessions, end them, read."""
    asked = {"client": near, "remote": remote}
    for place in (CONNECT, f"metabroker/request/{near.partition('/')[0]}/connect"):
        for keys in ({"durable": True, "clean": True}, {"durable": True}, *[{"expiry": 1000}] * 6):
            thief.publish(place, msgpack.packb(asked | keys), 1)
    for verb, body in (("disconnect", {"clean": True}), ("ack", {"id": 1}), ("unsubscribe", {"message": 9, "topics": ["down"]})):
        thief.publish(f"metabroker/request/{near}/{verb}", msgpack.packb(body), 1)
    thief.publish(f"metabroker/response/{near}/publish", msgpack.packb({"id": 1, "payload": b"forged"}), 1)
    for topic_filter in (*WIDE[:6], f"metabroker/response/{near}/#", "metabroker/response/near/#", "metabroker/response/near/connack"):
        thief.subscribe(topic_filter, 1)


def test_a_forger_has_no_effect(guarded: Guarded, remote: RunningBroker) -> None:
    """Beside a broker without rules each of these ended the other's session, locked it out, used its sessions up, or read its answers."""
    near = guarded.member("near")
    answer = near.connect(remote.url, durable=True)
    assert (answer["code"], answer["session"].partition("/")[0]) == (Code.OK, "near")
    assert near.ask("subscribe", message=1, topics=["down"], qos=1)["code"] == Code.OK
    near.close()
    thief = guarded.stranger("thief")
    forge(thief, near.session, remote.url)
    with Paho(remote.port) as far:
        far.publish("down", b"news", 1)
    forge(thief, near.session, remote.url)

    again = guarded.member("near")
    assert again.connect(remote.url, durable=True)["present"] is True
    assert again.session == near.session
    again.send("resume", message=2, id=0)
    got = dict(again.next() for _ in range(2))
    assert got["resack"]["code"] == Code.OK
    assert (got["publish"]["id"], got["publish"]["payload"]) == (1, b"news")
    durable = again.session
    for _ in range(2):
        assert again.connect(remote.url)["code"] == Code.OK, "the sessions of its own that it may have"
        assert again.ask("disconnect")["code"] == Code.OK
    again.session = durable
    again.send("disconnect", clean=True)
    assert again.next()[1]["code"] == Code.OK
    thief.publish(f"metabroker/request/{'near' if guarded.login else 'thief'}/connect", msgpack.packb({"remote": 1}), 1)
    while not thief.messages.empty():
        topic = thief.messages.get().topic
        assert topic.startswith(("metabroker/status/", "metabroker/response/thief/", *guarded.leaks)), topic
    for client in (again, thief):
        client.close()


def test_python_programs_of_one_user(guarded: Guarded, remote: RunningBroker) -> None:
    """Each of their links has a client identifier of its own."""
    if guarded.version == 4:
        pytest.skip("the API speaks MQTT 5 to the community broker, and amqtt does not")
    login = f"near:{quote(SECRET)}@" if guarded.login else ""
    url = f"mqtt://{login}127.0.0.1:{guarded.port}"
    with MetabrokerConnectionFactory(url, remote.url, client_id="office", by_user=guarded.login).create_context() as context:
        consumer = context.create_consumer(context.create_topic("rain/#"))
        context.create_producer().send(context.create_topic("rain/rhine"), "7 mm")
        assert consumer.receive_body(str, 60) == "7 mm"


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Mosquitto with rules that go by client identifier."""
    folder = tmp_path_factory.mktemp("community")
    (folder / "password").write_text(SECRET)
    port = free_port()
    for _ in mosquitto(folder, port, "--by-client-id"):
        with running_metabroker(folder, f"mqtt://metabroker@127.0.0.1:{port}", POLICY, "", "--password-file", str(folder / "password")):
            yield port


def quiet(client: Paho) -> None:
    """No message has come, and none is on the way: the answer to what it asks now comes behind."""
    client.subscribe("plant/end", 1)
    while not client.messages.empty():
        topic = client.messages.get().topic
        assert topic.startswith("metabroker/status/"), topic  # how the metabroker is, everybody may know


@pytest.mark.parametrize("version", [4, 5])
def test_clients_work_and_are_kept_apart(community: int, remote: RunningBroker, version: int) -> None:
    spy = Paho(community, version, "spy").open()
    granted = [spy.subscribe(topic_filter, 1) for topic_filter in (WIDE if version == 5 else WIDE[:6])]
    assert granted == [1] * len(granted), "it is not asked at SUBSCRIBE"
    near, far = Member(community, f"near{version}", version), Paho(remote.port).open()
    assert near.connect(remote.url, username="u", password="secret")["code"] == Code.OK
    assert re.fullmatch(rf"near{version}/[0-9a-f]{{32}}", near.session)
    assert near.ask("subscribe", message=1, topics=["down"], qos=1)["code"] == Code.OK
    far.publish("down", b"news", 1)
    assert near.next()[1]["payload"] == b"news"
    far.subscribe("up", 1)
    assert near.ask("publish", message=2, topic="up", payload=b"1", qos=1)["code"] == Code.OK
    assert far.next().payload == b"1"

    spy.subscribe(f"metabroker/response/{near.session}/#", 1)
    spy.subscribe(f"metabroker/response/near{version}/connack", 1)
    refused = 0x87 if version == 5 else 0  # MQTT 3.1.1 cannot say it
    body = msgpack.packb({"message": 3, "topic": "up", "payload": b"forged", "qos": 1})
    assert spy.publish(f"metabroker/request/{near.session}/publish", body, 1) == refused, "another's session"
    assert spy.publish(f"metabroker/request/{near.session}/disconnect", b"", 1) == refused
    assert spy.publish(f"metabroker/response/{near.session}/publish", msgpack.packb({"payload": b"forged"}), 1) == refused
    assert spy.publish(f"metabroker/response/near{version}/connack", msgpack.packb({"code": 0, "session": "x"}), 1) == refused
    assert near.ask("publish", message=4, topic="up", payload=b"2", qos=1)["code"] == Code.OK
    assert far.next().payload == b"2"
    assert near.ask("disconnect") == {"code": 0}
    quiet(spy)
    for client in (spy, near, far):
        client.close()


def test_identifiers_with_wildcards_are_no_way_in(community: int, remote: RunningBroker) -> None:
    """`%c` stands for a client identifier as it is: Mosquitto lets none with a wildcard read or write by such a rule."""
    near = Member(community, "near")
    odd = [Paho(community, 5, client_id).open() for client_id in ("+", "#", "near/+", "+/+", "connect")]
    for client in odd:
        client.subscribe("metabroker/#", 1)
        client.subscribe("#", 1)
    assert near.connect(remote.url)["code"] == Code.OK
    assert near.ask("publish", message=1, topic="up", qos=1)["code"] == Code.OK
    for client in odd:
        quiet(client)
        client.close()
    near.close()


def test_the_python_client_and_the_script_work_under_the_rules(community: int, remote: RunningBroker) -> None:
    far = Paho(remote.port).open()
    far.subscribe("demo/#", 1)
    script = ["sh", str(EXAMPLE), "127.0.0.1", str(community), remote.url]
    done = subprocess.run(script, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (0, "")
    assert "session demo/" in done.stdout
    assert far.next().topic == "demo/temperature"
    with MetabrokerConnectionFactory(f"mqtt://127.0.0.1:{community}", remote.url, client_id="office").create_context() as context:
        consumer = context.create_consumer(context.create_topic("rain/#"))
        context.create_producer().send(context.create_topic("rain/rhine"), "7 mm")
        message = consumer.receive(60)
        assert message is not None
        assert message.body == "7 mm"
    look = Paho(community, 5, "look").open()
    look.subscribe("metabroker/status/#", 1)
    assert look.next().topic == "metabroker/status/metabroker"
    for client in (far, look):
        client.close()
