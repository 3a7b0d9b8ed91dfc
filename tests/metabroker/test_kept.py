"""Sessions that outlive the metabroker, with real processes: it is killed and stopped, its remotes and clients come and go."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import RunningBroker, running_broker
from command import run
from mqmesh.metabroker.codes import Code
from paho_client import Paho
from remotes import Kept, Member
from services import free_port

pytestmark = pytest.mark.service


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
    assert member.ask("disconnect", clean=True) == {"code": 0}
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
        assert again.ask("resume", message=2, id=0)["code"] == 0
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
        assert member.next() == ("status", {"code": Code.OK})  # the remote is there, too
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
    assert any(b"sesame" in file.read_bytes() for file in files)  # else this test says nothing
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert "sesame" not in kept.log.read_text()
    member.ask("disconnect")
    member.close()


def test_a_folder_that_cannot_be(tmp_path: Path, kept: Kept) -> None:
    (tmp_path / "file").write_text("")
    command = ("metabroker", "--community", f"mqtt://127.0.0.1:{free_port()}", "--policy", tmp_path / "policy.toml", "--data")
    done = run(*command, tmp_path / "file")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"--data" in done.stderr
