"""The metabroker as a process: every kind of community broker, every kind of remote, and a client made of mosquitto's tools."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.base.metabroker import Code
from support.brokers import RunningBroker, running_broker
from support.certificates import Certificates
from support.command import run, start
from support.paho_client import Paho
from support.remotes import POLICY, Member, running_amqtt, running_metabroker
from support.services import PATIENCE, free_port, require, wait_for_port, wait_until

EXAMPLE = Path(__file__).parents[3] / "examples" / "metabroker.sh"


@contextlib.contextmanager
def broker_of(kind: str, folder: Path) -> Iterator[int]:
    folder.mkdir()
    if kind == "amqtt":
        with running_amqtt(folder) as port:
            yield port
    else:
        with running_broker(folder, kind) as running:
            yield running.port


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), "mosquitto") as running:
        yield running


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory, remote: RunningBroker) -> Iterator[int]:
    """Our broker with a metabroker beside it."""
    folder = tmp_path_factory.mktemp("community")
    services = f'weather = ["mqtt://127.0.0.1:{free_port()}", "{remote.url}"]\ngone = ["mqtt://127.0.0.1:{free_port()}"]\n'
    with running_broker(folder, "mqmesh") as running, running_metabroker(folder, running.port, services=services):
        yield running.port


@pytest.fixture
def members(community: int) -> Iterator[list[Member]]:
    made = [Member(community, f"m{number}") for number in range(3)]
    yield made
    for member in made:
        if member.session:
            member.send("disconnect")
        member.close()


@pytest.mark.parametrize(
    ("community_kind", "remote_kind", "version"),
    [
        ("mqmesh", "mosquitto", "5"),
        ("mosquitto", "mqmesh", "5"),
        ("mosquitto", "mosquitto", "3.1.1"),
        ("mqmesh", "amqtt", "3.1.1"),
        ("amqtt", "mosquitto", "5"),
    ],
)
def test_there_and_back(tmp_path: Path, community_kind: str, remote_kind: str, version: str) -> None:
    """Publish and subscribe at every QoS, for community and remote brokers of all kinds and both versions."""
    options = ("-V", "4") if community_kind == "amqtt" or version == "3.1.1" else ()
    policy = POLICY + f'version = "{version}"\n'
    with (
        broker_of(community_kind, tmp_path / "community") as here,
        broker_of(remote_kind, tmp_path / "remote") as there,
        running_metabroker(tmp_path, here, policy, "", *options),
    ):
        member = Member(here, "gauge", 4 if community_kind == "amqtt" else 5)
        far = Paho(there, 4).open()
        assert member.connect(f"mqtt://127.0.0.1:{there}")["code"] == Code.OK
        far.subscribe("up/#", 2)
        for qos in (0, 1, 2):
            assert member.ask("publish", message=f"p{qos}", topic=f"up/{qos}", payload=b"\0x", qos=qos) == {"message": f"p{qos}", "code": 0}
            message = far.next()
            assert (message.topic, message.payload) == (f"up/{qos}", b"\0x")
            assert message.qos == qos or remote_kind == "amqtt"  # which sends at the subscription's QoS
        assert member.ask("subscribe", message=1, topics=["down/#"], qos=2) == {"message": 1, "code": 0, "codes": [2]}
        for qos in (0, 1, 2):
            far.publish(f"down/{qos}", b"y", qos)
            verb, body = member.next()
            came = 2 if remote_kind == "amqtt" else qos
            assert verb == "publish"
            assert body == {"id": qos + 1, "topic": f"down/{qos}", "payload": b"y", "qos": came, "retain": False}
        assert member.ask("unsubscribe", message=2, topics=["down/#"])["code"] == Code.OK
        far.publish("down/0", b"unheard", 1)
        assert member.ask("disconnect", message=3) == {"code": 0}
        assert member.ask("publish", message=4, topic="up/4")["code"] == Code.UNKNOWN_SESSION
        member.close()
        far.close()


def test_sharers_have_one_connection_and_each_its_own_messages(members: list[Member], remote: RunningBroker) -> None:
    far = Paho(remote.port).open()
    before = remote.log.read_text().count(" as metabroker-")
    far.publish("shared/kept", b"old", 1, retain=True)
    for member in members:
        assert member.connect(remote.url)["code"] == Code.OK
    assert remote.log.read_text().count(" as metabroker-") == before + 1
    first, second, third = members
    assert first.ask("subscribe", message=1, topics=["shared/#"], qos=1)["code"] == 0
    assert first.next()[1]["retain"] is True
    second.send("subscribe", message=1, topics=["shared/#", "shared/b"], qos=1)
    answers = dict(second.next() for _ in range(2))
    assert answers["suback"]["codes"] == [1, 1]
    assert [answers["publish"][key] for key in ("topic", "payload", "retain")] == ["shared/kept", b"old", True]
    assert third.ask("subscribe", message=1, topics=["other"], qos=1)["code"] == 0
    far.publish("shared/b", b"once", 1)
    far.publish("other", b"third's", 1)
    # whatever else was sent would come before the answer to a request behind it
    assert first.next()[1]["payload"] == b"once"
    assert second.next()[1]["payload"] == b"once"
    assert third.next()[1]["payload"] == b"third's"
    for member in members:
        assert member.ask("subscribe", message=2, topics=[])["code"] == 0
    far.publish("shared/kept", b"", 1, retain=True)
    assert [member.next()[1]["payload"] for member in (first, second)] == [b"", b""]
    far.close()


def test_codes_tell_what_is_wrong(members: list[Member], remote: RunningBroker) -> None:
    member = members[0]
    assert member.connect("weather")["code"] == Code.OK  # the first of its addresses does not answer
    assert members[1].connect("gone")["code"] == Code.REMOTE_UNREACHABLE
    assert members[1].connect("nowhere")["code"] == Code.NO_SUCH_SERVICE
    assert members[1].connect("mqtt://192.0.2.1")["code"] == Code.REFUSED_BY_POLICY
    assert members[1].connect("http://127.0.0.1")["code"] == Code.MALFORMED
    member.raw("publish", b"\xc1")
    assert member.next()[1]["code"] == Code.MALFORMED
    assert member.ask("publish", message=7, topic="a/#")["code"] == Code.MALFORMED
    assert member.ask("publish", message=8, topic="a", payload=b"x" * 1_040_000)["code"] == Code.TOO_LARGE
    assert member.ask("subscribe", message=9, topics=["a"], durable=True)["code"] == Code.NOT_SUPPORTED
    members[1].session = f"{members[1].name}/{'0' * 32}"
    members[1].paho.subscribe(f"metabroker/response/{members[1].session}/#", 1)
    assert members[1].ask("publish", message=1, topic="a")["code"] == Code.UNKNOWN_SESSION
    members[1].session = ""
    assert member.ask("publish", message=10, topic="still/works", qos=1)["code"] == Code.OK


def test_properties_travel_both_ways(members: list[Member], remote: RunningBroker) -> None:
    member = members[0]
    member.connect(remote.url)
    properties = {"content_type": "text/plain", "correlation": b"7", "response_topic": "back", "user": [["k", "v"]], "format": 1}
    member.ask("subscribe", message=1, topics=["echo"], qos=1)
    member.send("publish", message=2, topic="echo", payload="hi", qos=1, properties=properties)
    got = dict(member.next() for _ in range(2))
    assert got["puback"] == {"message": 2, "code": 0}
    assert got["publish"]["properties"] == properties


def test_credentials_are_the_remotes_business(tmp_path: Path, community: int) -> None:
    passwords = tmp_path / "passwords"
    subprocess.run([require("mosquitto_passwd"), "-b", "-c", str(passwords), "ann", "right"], check=True, capture_output=True)
    passwords.chmod(0o644)
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n")
    process = subprocess.Popen([require("mosquitto"), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        member = Member(community, "ann")
        url = f"mqtt://127.0.0.1:{port}"
        assert member.connect(url, username="ann", password="wrong")["code"] == Code.REMOTE_REFUSED_CREDENTIALS
        assert member.connect(url, username="ann", password="right")["code"] == Code.OK
        member.ask("disconnect")
        member.close()
    finally:
        process.terminate()
        process.wait()


def test_a_remote_that_comes_back(tmp_path: Path, community: int) -> None:
    """Its death is told, requests at QoS 1 wait for it, and it is subscribed anew."""
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")

    def remote_starts() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([require("mosquitto"), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(port)
        return process

    process = remote_starts()
    member = Member(community, "patient")
    try:
        member.connect(f"mqtt://127.0.0.1:{port}")
        member.ask("subscribe", message=1, topics=["x"], qos=1)
        process.kill()
        process.wait()
        verb, body = member.next()
        assert (verb, body["code"]) == ("status", Code.REMOTE_UNREACHABLE)
        assert member.ask("publish", message=2, topic="x", payload=b"0")["code"] == Code.REMOTE_UNREACHABLE
        member.send("publish", message=3, topic="x", payload=b"1", qos=1)
        process = remote_starts()
        got: dict[str, dict] = {}
        while "puback" not in got or got.get("status", {}).get("code") != Code.OK:
            verb, body = member.next()
            got[verb] = body
        assert (got["puback"]["message"], got["puback"]["code"]) == (3, 0)  # with a reason if it went before the subscription
        if "publish" not in got:
            # the waiting message may have gone before the new subscription; from now on it holds
            member.send("subscribe", message=4, topics=["x"], qos=1)
            member.send("publish", message=5, topic="x", payload=b"2", qos=1)
            came: dict[str, list[dict]] = {"suback": [], "puback": [], "publish": []}
            while not all(came.values()):
                verb, body = member.next()
                came[verb].append(body)
            assert [body["code"] for body in came["suback"] + came["puback"]] == [0, 0]
    finally:
        process.kill()
        process.wait()
    member.send("disconnect")
    member.close()


def test_a_client_of_mosquitto_tools_and_a_file(community: int, remote: RunningBroker) -> None:
    """The example in docs/metabroker-protocol.md."""
    require("mosquitto_pub")
    require("mosquitto_rr")
    words = ["sh", str(EXAMPLE), "127.0.0.1", str(community), remote.url]
    unheard = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)  # its answer has a reason, too: nobody subscribes
    assert unheard.returncode == 0, unheard.stderr
    far = Paho(remote.port).open()
    far.subscribe("demo/#", 1)
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    message = far.next()
    assert (message.topic, message.payload) == ("demo/temperature", b"21.5")
    message = far.next()
    assert (message.topic, message.payload) == ("demo/rain", b"3 mm")
    far.close()


def test_a_community_broker_that_comes_back(tmp_path: Path, remote: RunningBroker) -> None:
    """Sessions go on: the metabroker listens again, and what the remote sent meanwhile at QoS 1 comes."""
    port = free_port()
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")

    def starts() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([require("mosquitto"), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(port)
        return process

    process = starts()
    try:
        with running_metabroker(tmp_path, port) as log:
            member = Member(port, "steady")
            member.connect(remote.url)
            assert member.ask("subscribe", message=1, topics=["steady"], qos=1)["code"] == 0
            process.kill()
            process.wait()
            wait_until(lambda: "event=community-down" in log.read_text(), PATIENCE, "notice of the death")
            process = starts()
            again = Member(port, "steady")
            again.session = member.session
            again.paho.subscribe(f"metabroker/response/{member.session}/#", 1)
            wait_until(lambda: log.read_text().count("event=community-up") >= 2, PATIENCE, "second connection")
            with Paho(remote.port) as far:
                far.publish("steady", b"on", 1)
            verb, body = again.next()
            assert (verb, body["payload"], body["id"]) == ("publish", b"on", 1)
            # its subscription to requests is acknowledged soon after it is connected
            wait_until(lambda: again.send("publish", message=2, topic="x", qos=1) or not again.paho.messages.empty(), PATIENCE, "answer")
            verb, body = again.next()
            assert (verb, body["message"], body["code"]) == ("puback", 2, 0)
            again.close()
            member.close()
    finally:
        process.kill()
        process.wait()


def test_tls_on_both_sides(tmp_path: Path) -> None:
    """mqtts:// at the community and at the remote; a certificate of an unknown authority is refused."""
    certificates = Certificates(tmp_path)
    certificates.broker("far")
    port, plain, there = free_port(), free_port(), free_port()
    files = f"cafile {certificates.ca}\ncertfile {certificates.certificate('far')}\nkeyfile {certificates.key('far')}\n"
    here_file, far_file = tmp_path / "here.conf", tmp_path / "far.conf"
    common = "user root\nallow_anonymous true\npersistence false\nper_listener_settings false\n"
    here_file.write_text(f"{common}listener {plain} 127.0.0.1\nlistener {port} 127.0.0.1\n{files}")
    far_file.write_text(f"{common}listener {there} 127.0.0.1\n{files}")
    policy = f'[[allow]]\nclients = ["trusting"]\nremotes = ["mqtts://*"]\npublish = ["#"]\nca = "{certificates.ca}"\n'
    policy += '[[allow]]\nclients = ["doubting"]\nremotes = ["mqtts://*"]\n'
    brokers = []
    for file, listener in ((here_file, plain), (far_file, there)):
        brokers.append(subprocess.Popen([require("mosquitto"), "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for_port(listener)
    try:
        (tmp_path / "policy.toml").write_text(policy)
        process = start(
            "metabroker", "--community", f"mqtts://127.0.0.1:{port}", "--cafile", certificates.ca, "--policy", tmp_path / "policy.toml"
        )
        assert process.stdout.readline().startswith("ready mqtts://")  # type: ignore[union-attr]
        trusting, doubting = Member(plain, "trusting"), Member(plain, "doubting")
        assert trusting.connect(f"mqtts://127.0.0.1:{there}")["code"] == Code.OK
        assert trusting.ask("publish", message=1, topic="x", qos=1)["code"] == Code.OK
        refused = doubting.connect(f"mqtts://127.0.0.1:{there}")
        assert refused["code"] == Code.REMOTE_UNREACHABLE
        assert "authority" in refused["reason"]
        trusting.close()
        doubting.close()
        process.terminate()
        assert process.wait(PATIENCE) == 0
        process.communicate()
    finally:
        for broker in brokers:
            broker.kill()
            broker.wait()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--policy": "none.toml"}, b"none.toml: cannot be read"),
        ({"--community": "http://x"}, b"--community"),
        ({"--protocol": "6"}, b"-V 6"),
        ({"--cafile": "x"}, b"--cafile needs TLS"),
        ({"--password-file": "none"}, b"--password-file none: No such file"),
        ({"--password-file": "policy.toml", "--password": "x"}, b"there is a password already"),
        ({"--directory": "ftp://x"}, b"--directory"),
        ({"--services": "policy.toml"}, b"[services]"),
    ],
)
def test_mistakes_on_the_command_line(tmp_path: Path, change: dict[str, str], says: bytes) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    options = {"--community": "mqtt://127.0.0.1:1", "--policy": "policy.toml"} | change
    done = run("metabroker", *[word for pair in options.items() for word in pair], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert says in done.stderr


def test_a_password_in_a_file(tmp_path: Path) -> None:
    """The broker knows its metabroker by it; one with another password, or with another name, is refused and says so."""
    (tmp_path / "right").write_text("a secret of the two of them\n")
    (tmp_path / "wrong").write_text("a secret of somebody else\n")
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "broker.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\n[metabroker]\nclient = "gate"\npassword_file = "right"\n')
    broker = start("broker", "--config", tmp_path / "broker.toml", stderr=tmp_path / "broker.log")
    port = int(broker.stdout.readline().split()[1].rpartition(":")[2])  # type: ignore[union-attr]
    try:
        for options, says in (
            (("--id", "gate", "--password-file", tmp_path / "wrong"), "event=community-down"),
            (("--id", "other"), "take this client for the metabroker"),  # it may not have a will at the status topic
            (("--id", "other", "--status-topic", ""), "event=community-refuses"),
        ):
            log = tmp_path / "refused.log"
            files = ("--policy", tmp_path / "policy.toml")
            refused = start("metabroker", "--community", f"mqtt://127.0.0.1:{port}", *files, *options, stderr=log)
            wait_until(lambda log=log, says=says: says in log.read_text(), PATIENCE, "refusal")
            refused.terminate()
            assert refused.wait(PATIENCE) == 0
            assert refused.communicate()[0] == ""
        with running_metabroker(tmp_path, port, POLICY, "", "--id", "gate", "--password-file", str(tmp_path / "right")):
            pass
    finally:
        broker.terminate()
        assert broker.wait(PATIENCE) == 0
        broker.communicate()
    said = (tmp_path / "broker.log").read_text()
    assert "event=connect-refused" in said
    assert re.search("event=subscribe-refused client=other user=[^ ]+ filter=metabroker/request/#", said)


def test_a_host_that_is_none(members: list[Member], tmp_path: Path) -> None:
    assert members[0].connect("mqtt://127.0.0.1:" + "9" * 9)["code"] == Code.MALFORMED
    assert members[0].connect("mqtt://" + "a" * 300)["code"] == Code.REFUSED_BY_POLICY
    with (
        running_broker(tmp_path, "mqmesh") as running,
        running_metabroker(tmp_path, running.port, POLICY.replace("127.0.0.1:*", "*")),
    ):
        odd = Member(running.port, "odd")
        assert odd.connect("mqtt://" + "a" * 300)["code"] == Code.REMOTE_UNREACHABLE
        odd.close()
