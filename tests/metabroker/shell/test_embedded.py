"""The metabroker inside a broker's process, with real processes: both directions, kills, a blocked remote, faults, reloads, mistakes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.base.address import parse_address
from mqmesh.base.metabroker import Code
from support.brokers import RunningBroker, running_broker
from support.command import MQMESH, run, start
from support.paho_client import PATIENCE, Paho
from support.remotes import POLICY, Member
from support.services import free_port, wait_until

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[3] / "examples" / "metabroker.sh"

FAULTY = """
import sys
from mqmesh.metabroker.core.publishing import Publishing
from mqmesh.metabroker.mqtt.client import ClientMachine
publish, receive = Publishing.publish, ClientMachine.receive
def publishing(self, session, request):
    if request.publish.topic == "fault":
        raise RuntimeError("of the test")
    publish(self, session, request)
def machine(self, data, now):
    if b"fault-in-the-wire" in data:
        raise RuntimeError("of the test")
    return receive(self, data, now)
Publishing.publish, ClientMachine.receive = publishing, machine
sys.argv[0] = "mqmesh"
from mqmesh.cli.main import app
app()
"""


class Inside:
    """A broker with a metabroker inside, from a file; killed and started at will. It keeps its port."""

    def __init__(self, folder: Path, more: str = "", policy: str = POLICY, broker: str = "", command: list[str] = MQMESH) -> None:
        self.port = free_port()
        self.policy = folder / "policy.toml"
        self.policy.write_text(policy)
        self.config = folder / "broker.toml"
        self.config.write_text(f'listen = ["mqtt://127.0.0.1:{self.port}"]\n{broker}\n[metabroker]\npolicy = "policy.toml"\n{more}\n')
        self.log = folder / "broker.log"
        self._command = command
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            words = [*self._command, "broker", "--config", str(self.config), "--stop-with-stdin"]
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self, faults: int = 0) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0
            self.process.communicate()
        assert self.log.read_text().count("Traceback") == faults, self.log.read_text()


@contextlib.contextmanager
def inside(folder: Path, more: str = "", policy: str = POLICY, broker: str = "") -> Iterator[Inside]:
    folder.mkdir(exist_ok=True)
    made = Inside(folder, more, policy, broker)
    try:
        yield made
        made.stop()
    finally:
        made.process.kill()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), "mosquitto") as running:
        yield running


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory, remote: RunningBroker) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("community")
    (folder / "services.toml").write_text(f'[services]\nweather = ["{remote.url}"]\n')
    with inside(folder, 'services = "services.toml"', broker='management = { role = [{ role = "viewer" }] }') as running:
        yield running


@pytest.mark.service
def test_its_sessions_are_a_list_of_management(community: Inside) -> None:
    member = Member(community.port, "listed", 5)
    assert member.connect("weather")["code"] == Code.OK
    done = run("manage", "list", "metabroker-sessions", "client=listed", "--json", "-h", f"mqtt://127.0.0.1:{community.port}")
    assert [(row["remote"], row["up"]) for row in json.loads(done.stdout)["rows"]] == [("weather", True)], done.stderr
    member.close()


@pytest.mark.service
@pytest.mark.parametrize("version", [4, 5])
def test_there_and_back(community: Inside, remote: RunningBroker, version: int) -> None:
    """Publish and subscribe at every QoS."""
    member, far = Member(community.port, f"gauge{version}", version), Paho(remote.port, 4).open()
    assert member.connect("weather")["code"] == Code.OK
    far.subscribe(f"up{version}/#", 2)
    assert member.ask("subscribe", message=0, topics=[f"down{version}/#"], qos=2)["codes"] == [2]
    for qos in (0, 1, 2):
        topic = f"up{version}/{qos}"
        assert member.ask("publish", message=f"p{qos}", topic=topic, payload=b"\0x", qos=qos) == {"message": f"p{qos}", "code": 0}
        message = far.next()
        assert (message.topic, message.payload, message.qos) == (topic, b"\0x", qos)
        far.publish(f"down{version}/{qos}", b"y", qos)
        verb, body = member.next()
        assert (verb, body["id"], body["topic"], body["payload"], body["qos"]) == ("publish", qos + 1, f"down{version}/{qos}", b"y", qos)
    assert member.ask("disconnect", message=3) == {"code": 0}
    member.close()
    far.close()


@pytest.mark.service
def test_the_examples_of_the_docs_work_unchanged(community: Inside, remote: RunningBroker) -> None:
    words = ["sh", str(EXAMPLE), "127.0.0.1", str(community.port), remote.url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.service
def test_the_jms_client_works_unchanged(community: Inside, remote: RunningBroker) -> None:
    from mqmesh.client import MetabrokerConnectionFactory

    factory = MetabrokerConnectionFactory(f"mqtt://127.0.0.1:{community.port}", "weather")
    with factory.create_context() as context, Paho(remote.port) as far:
        consumer = context.create_consumer(context.create_topic("jms/+"))
        far.publish("jms/a", b"21.5", 1)
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert message.get_body(bytes) == b"21.5"
        far.subscribe("jms-up", 1)
        context.create_producer().send(context.create_topic("jms-up"), "hello")
        assert far.next().payload == b"hello"


def test_nobody_else_is_the_metabroker(community: Inside) -> None:
    """Whatever password he shows, and whatever is in the file that programs of one user share."""
    for password in (None, "x" * 64):
        thief = Paho(community.port, 5, "metabroker")
        thief.client.username_pw_set("metabroker", password)
        assert thief.open().reason == 0x87
        thief.close()
    assert "this client identifier is that of the metabroker inside this broker" in community.log.read_text()
    member = Member(community.port, "still-there")
    assert member.connect("nowhere")["code"] == Code.NO_SUCH_SERVICE
    member.close()


def test_a_crowded_broker_still_has_its_metabroker(tmp_path: Path) -> None:
    with inside(tmp_path, broker="[limits]\nconnections = 16\n") as here:
        member = Member(here.port, "one")
        assert member.connect("nowhere")["code"] == Code.NO_SUCH_SERVICE
        member.close()


@pytest.mark.service
def test_a_blocked_remote_holds_nobody_else_up(community: Inside, remote: RunningBroker) -> None:
    """A remote that accepts a connection and says nothing: other sessions and plain MQTT go on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = Member(community.port, "waiting")
        waiting.paho.subscribe("metabroker/response/waiting/connack", 1)
        body = b"\x82\xa6client\xa7waiting\xa6remote" + bytes((0xA0 | len(url := f"mqtt://127.0.0.1:{silent.getsockname()[1]}"),))
        waiting.paho.publish("metabroker/request/connect", body + url.encode(), 1)
        connection, _ = silent.accept()  # the metabroker is there, and will get no answer
        with connection:
            member = Member(community.port, "lively")
            assert member.connect(remote.url)["code"] == Code.OK
            for number in range(20):
                assert member.ask("publish", message=number, topic="lively", payload=b"x" * 1000, qos=1)["code"] == 0
            with Paho(community.port) as one, Paho(community.port) as other:
                one.subscribe("plain", 1)
                other.publish("plain", b"x", 1)
                assert one.next().payload == b"x"
            member.close()
            waiting.close()


@pytest.mark.service
@pytest.mark.parametrize("topic", ["fault", "fault-in-the-wire"])
def test_a_fault_of_the_metabroker_is_not_one_of_the_broker(tmp_path: Path, remote: RunningBroker, topic: str) -> None:
    """It is logged, the metabroker begins again, clients of the broker notice nothing."""
    here = Inside(tmp_path, command=[sys.executable, "-c", FAULTY])
    try:
        with Paho(here.port, 5, "watcher") as watcher, Paho(here.port, 5, "other") as other:
            watcher.subscribe("metabroker/status/#", 1)
            watcher.subscribe("plain", 1)
            member = Member(here.port, "m")
            assert member.connect(remote.url)["code"] == Code.OK
            # with properties: a request that the core takes one by one
            member.send("publish", message=1, topic=topic, payload=b"", qos=1, properties={"user": [["a", "b"]]})
            while watcher.next().payload != b'{"up":false}':
                pass
            while b'"up":true' not in watcher.next().payload:
                pass
            other.publish("plain", b"x", 1)
            while watcher.next().topic != "plain":
                pass
            member.session = ""
            assert member.connect(remote.url)["code"] == Code.OK
            assert member.ask("publish", message=2, topic="fine", qos=1)["code"] == 0
            member.close()
        assert "event=metabroker-failed" in here.log.read_text()
        here.stop(faults=1)
    finally:
        here.process.kill()


@pytest.mark.service
def test_a_kill_loses_nothing(tmp_path: Path, remote: RunningBroker) -> None:
    """The broker dies, and with it the metabroker; a durable session goes on, with what came meanwhile."""
    with inside(tmp_path, 'data = "kept"', broker='data = "data"') as here:
        member = Member(here.port, "durable")
        assert member.connect(remote.url, durable=True)["code"] == Code.OK
        session = member.session
        assert member.ask("subscribe", message=1, topics=["kill"], qos=1, durable=True)["code"] == 0
        with Paho(remote.port) as far:
            far.publish("kill", b"0", 1)
            assert member.next()[1]["payload"] == b"0"
            member.send("ack", id=1)
            assert member.ask("publish", message=2, topic="kill/up", payload=b"a", qos=1)["code"] == 0
            here.kill()
            far.publish("kill", b"1", 1)
            here.start()
            member = Member(here.port, "durable")
            assert member.connect(remote.url, durable=True)["present"] is True
            assert member.session == session
            member.send("resume", message=3, id=1)
            payloads = []
            while payloads[-1:] != [b"1"]:
                verb, body = member.next()
                if verb == "publish" and body["id"] > 1:
                    payloads.append(body["payload"])
            assert payloads == [b"1"] * len(payloads)
        member.close()


@pytest.mark.service
def test_the_policy_is_read_again(tmp_path: Path, remote: RunningBroker) -> None:
    """SIGHUP: a mistake changes nothing, a change takes effect, the rest of the broker goes on."""
    with inside(tmp_path, 'data = "kept"') as here, Paho(here.port, 5, "watcher") as watcher:
        watcher.subscribe("metabroker/status/#", 1)
        member = Member(here.port, "m")
        assert member.connect(remote.url, durable=True)["code"] == Code.OK
        here.policy.write_text(POLICY.replace("publish", "publsh"))
        here.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "event=reload-failed" in here.log.read_text(), PATIENCE, "the line in the log")
        assert member.ask("publish", message=1, topic="a", qos=1)["code"] == 0
        here.policy.write_text(POLICY.replace('publish = ["#"]', 'publish = ["b"]'))
        here.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "event=metabroker-renewed" in here.log.read_text(), PATIENCE, "the line in the log")
        while member.next()[1].get("code") != Code.RESUMED:
            pass
        for message, topic, code in ((2, "a", Code.REFUSED_BY_POLICY), (3, "b", Code.OK)):
            member.send("publish", message=message, topic=topic, qos=1)
            while (said := member.next())[0] == "status":
                pass
            assert (said[0], said[1]["message"], said[1]["code"]) == ("puback", message, code)
        here.process.send_signal(signal.SIGHUP)  # nothing has changed
        wait_until(lambda: here.log.read_text().count("event=reloaded") == 3, PATIENCE, "the line in the log")
        assert here.log.read_text().count("event=metabroker-renewed") == 1
        member.close()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('policy = "nowhere.toml"', "nowhere.toml"),
        ('policy = "wrong.toml"', "allow"),
        ('policy = "policy.toml"\nservices = "nowhere.toml"', "nowhere.toml"),
        ('policy = "policy.toml"\ndirectory = "ftp://x"', "metabroker.directory"),
        ('policy = "policy.toml"\ndata = "policy.toml"', "metabroker.data"),
        ('policy = "policy.toml"\nprotect = false', "metabroker.protect"),
    ],
)
def test_mistakes_are_named_and_nothing_starts(tmp_path: Path, table: str, says: str) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "wrong.toml").write_text("[[allow]]\nclient = ['*']\n")
    (tmp_path / "broker.toml").write_text(f'listen = ["mqtt://127.0.0.1:0"]\n[metabroker]\n{table}\n')
    done = run("broker", "--config", tmp_path / "broker.toml")
    words = done.stderr.decode()
    assert done.returncode == 2
    assert says in words
    assert "Traceback" not in words


def test_it_ends_in_order_and_begins_with_an_option_alone(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    process = start("broker", "--listen", "mqtt://127.0.0.1:0", "--metabroker", tmp_path / "policy.toml", stderr=tmp_path / "log")
    line = process.stdout.readline()  # type: ignore[union-attr]
    port = parse_address(line.split()[1]).port
    with Paho(port) as watcher:
        watcher.subscribe("metabroker/status/#", 1)
        process.terminate()
        while watcher.next().payload != b'{"up":false}':
            time.sleep(0)
    assert process.wait(PATIENCE) == 0
    process.communicate()
    assert "Traceback" not in (tmp_path / "log").read_text()
