"""Sessions that outlive the metabroker, with real processes: it is killed and stopped, its remotes and clients come and go."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from mqmesh.base.metabroker import Code
from paho.mqtt.enums import CallbackAPIVersion
from support.brokers import RunningBroker, running_broker
from support.command import run
from support.paho_client import Paho
from support.remotes import POLICY, Kept, Member
from support.services import PATIENCE, free_port, wait_until

pytestmark = [pytest.mark.service, pytest.mark.keeps]


@pytest.fixture(scope="module", params=["mosquitto", "mqmesh"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("remote"), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_broker(tmp_path_factory.mktemp("community"), "mqmesh") as running:
        yield running.port


@pytest.fixture
def kept(tmp_path: Path, community: int) -> Iterator[Kept]:
    made = Kept(tmp_path, community)
    yield made
    made.stop()


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_durable_session_goes_on(kept: Kept, community: int, remote: RunningBroker, kill: bool) -> None:
    """Messages and requests while there is no metabroker are not lost, and its client does nothing but wait."""
    topic = f"go/{kill}"
    member = Member(community, topic.replace("/", "-"))
    assert member.connect(remote.url, durable=True)["present"] is False
    assert member.ask("subscribe", message=1, topics=[topic], qos=1, durable=True)["code"] == 0
    with Paho(remote.port) as far:
        far.publish(topic, b"0", 1)
        assert member.next()[1]["id"] == 1
        member.send("ack", id=1)
        assert member.ask("publish", message=2, topic=f"{topic}/up", payload=b"a", qos=1)["code"] == 0
        kept.kill() if kill else kept.stop()
        for payload in (b"1", b"2"):
            far.publish(topic, payload, 1)
        member.send("publish", message=2, topic=f"{topic}/up", payload=b"a", qos=1)
        member.send("publish", message=3, topic=topic, payload=b"3", qos=1)
        kept.start()
        got: dict[int, bytes] = {}
        answered: dict[int, int] = {}
        told = []
        while len(got) < 3 or len(answered) < 2:
            verb, body = member.next()
            if verb == "publish":
                got.setdefault(body["id"], body["payload"])
            elif verb == "puback":
                answered[body["message"]] = body["code"]
            else:
                told.append(body["code"])
        assert told[0] == Code.RESUMED
        assert [got.get(number, b"0") for number in sorted({1} | set(got))] == [b"0", b"1", b"2", b"3"]
        assert answered == {2: 0, 3: 0}
    member.send("disconnect", clean=True)
    while (answer := member.next())[0] != "discack":  # what has no acknowledgement may come again
        assert answer[0] in ("status", "publish")
    assert answer[1] == {"code": 0}
    member.close()


def test_a_client_that_was_away_gets_what_came_and_says_what_it_has(kept: Kept, community: int, remote: RunningBroker) -> None:
    member = Member(community, "away")
    member.connect(remote.url, durable=True)
    member.ask("subscribe", message=1, topics=["away"], qos=1)
    session = member.session
    member.close()
    with Paho(remote.port) as far:
        for number in range(5):
            far.publish("away", str(number).encode(), 1)
        again = Member(community, "away")
        answer = again.connect(remote.url, durable=True)
        assert (answer["session"], answer["present"]) == (session, True)
        again.send("resume", message=2, id=0)
        while (answered := again.next())[0] == "publish":  # the metabroker may hear of them, and of us, in any order
            pass
        assert (answered[0], answered[1]["code"]) == ("resack", 0)
        assert [again.next()[1]["payload"] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert again.ask("resume", message=3, id=3)["waiting"] == 2
        assert [again.next()[1]["id"] for _ in range(2)] == [4, 5]
        assert again.ask("disconnect") == {"code": 0, "present": True}
        assert again.ask("disconnect", clean=True) == {"code": 0}
        again.close()


def test_sessions_that_are_not_durable_go_on_too(kept: Kept, community: int, remote: RunningBroker) -> None:
    member = Member(community, "plain")
    member.connect(remote.url)
    member.ask("subscribe", message=1, topics=["plain"], qos=1)
    with Paho(remote.port) as far:
        far.publish("plain", b"0", 1)
        assert member.next()[1]["id"] == 1
        kept.kill()
        far.publish("plain", b"1", 1)
        kept.start()
        assert member.next()[1]["code"] == Code.RESUMED
        while member.next() != ("status", {"code": Code.OK}):  # the remote is there, too
            pass
        while (message := member.next()[1])["payload"] == b"0":  # its acknowledgement may have got lost
            assert message["id"] > 1
        assert message["payload"] == b"1"
        assert message["id"] > 1
    assert member.ask("disconnect") == {"code": 0}
    member.close()


def test_nobody_else_may_read_what_is_kept(kept: Kept, community: int, remote: RunningBroker) -> None:
    member = Member(community, "secret")
    member.connect(remote.url, username="ann", password="sesame", durable=True)
    assert stat.S_IMODE((kept.folder / "data").stat().st_mode) == 0o700
    files = list((kept.folder / "data").glob("metabroker.db*"))
    assert any(b"ann" in file.read_bytes() for file in files)  # else this test says nothing
    assert not any(b"sesame" in file.read_bytes() for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in [*files, kept.folder / "data" / "passwords.key"]} == {0o600}
    assert "sesame" not in kept.log.read_text()
    member.ask("disconnect")
    member.close()


def test_a_folder_that_cannot_be(tmp_path: Path, kept: Kept) -> None:
    (tmp_path / "file").write_text("")
    command = ("metabroker", "--community", f"mqtt://127.0.0.1:{free_port()}", "--policy", tmp_path / "policy.toml", "--data")
    done = run(*command, tmp_path / "file")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--data" in done.stderr


def test_it_says_how_it_is(kept: Kept, community: int, remote: RunningBroker) -> None:
    member = Member(community, "told")
    member.connect(remote.url, durable=True)
    member.ask("subscribe", message=1, topics=["told"], qos=1)
    member.ask("publish", message=2, topic="elsewhere", qos=1)
    member.raw("publish", b"\xc1")
    member.next()
    member.ask("disconnect")
    with Paho(remote.port) as far:
        far.publish("told", b"x" * 100, 1)
    with Paho(community) as reader:
        reader.subscribe("metabroker/status/#", 1)
        while (said := json.loads(reader.next().payload)).get("stored", {}).get("messages") != 1:
            pass
        assert said["up"] is True
        assert said["sessions"] == {"all": 1, "durable": 1, "away": 1}
        [there] = said["remotes"]
        assert (there["remote"], there["up"], there["sessions"], there["filters"]) == (remote.url, True, 1, 1)
        assert (said["messages"]["to_remotes"], said["messages"]["from_remotes"]) == (1, 1)
        assert said["refused"] == {"malformed": 1}
        assert said["stored"]["bytes"] > 100
        kept.kill()
        while (said := json.loads(reader.next().payload))["up"]:  # it may have said more before it died
            pass
        assert said == {"up": False}
        kept.start()
        while not (said := json.loads(reader.next().payload))["up"]:
            pass
        assert said["stored"]["messages"] == 1
        kept.stop()
        while json.loads(reader.next().payload)["up"]:
            pass
    kept.start()
    wait_until(lambda: "event=status sessions=1 durable=1" in kept.log.read_text(), PATIENCE, "line of the status")
    member.send("disconnect", clean=True)
    while member.next()[0] != "discack":
        pass
    member.close()


def test_an_unusable_status_topic(tmp_path: Path, kept: Kept) -> None:
    command = ("metabroker", "--community", f"mqtt://127.0.0.1:{free_port()}", "--policy", tmp_path / "policy.toml")
    done = run(*command, "--status-topic", "a/#")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--status-topic" in done.stderr


def test_a_remote_of_mqtt_3_keeps_a_session_and_is_left_clean(tmp_path: Path, community: int) -> None:
    (tmp_path / "remote").mkdir()
    with running_broker(tmp_path / "remote", "mosquitto") as there:
        kept = Kept(tmp_path, community, POLICY + 'version = "3.1.1"\n')
        member = Member(community, "old")
        member.connect(there.url, durable=True)
        member.ask("subscribe", message=1, topics=["old"], qos=1)
        kept.kill()
        with Paho(there.port) as far:
            far.publish("old", b"0", 1)
        kept.start()
        while (came := member.next())[0] != "publish":
            pass
        assert (came[1]["id"], came[1]["payload"]) == (1, b"0")
        client_id = re.findall(r" as (metabroker-\w+) ", there.log.read_text())[-1]
        member.send("disconnect", clean=True)
        while member.next()[0] != "discack":
            pass
        left = f"Client {client_id} disconnected"
        wait_until(lambda: there.log.read_text().count(left) >= 2, PATIENCE, "second leave")  # the one that wants no session
        present = []
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
        client.on_connect = lambda _client, _data, flags, *_: present.append(flags.session_present)
        client.connect("127.0.0.1", there.port)
        client.loop_start()
        wait_until(lambda: bool(present), PATIENCE, "CONNACK")
        client.disconnect()
        client.loop_stop()
        assert present == [False]
        member.close()
        kept.stop()
