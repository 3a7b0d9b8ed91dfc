"""Metabrokers with their sessions in one PostgreSQL database: when one is killed, or ends, another has its sessions. Real processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from mqmesh.base.metabroker import Code
from mqmesh.metabroker.shell.status import GONE
from support.brokers import RunningBroker, running_broker
from support.command import start
from support.paho_client import Paho
from support.peers.postgres import Server, server
from support.remotes import POLICY, Member
from support.services import PATIENCE, wait_until

pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


class Three:
    """Three metabrokers beside one Mosquitto, and a remote."""

    def __init__(self, folder: Path, community: RunningBroker, remote: RunningBroker, postgres: Server, schema: str) -> None:
        self.folder, self.community, self.remote, self.postgres, self.schema = folder, community, remote, postgres, schema
        (folder / "policy.toml").write_text(POLICY)
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for name in ("one", "two", "three"):
            self.start(name)

    def start(self, name: str) -> None:
        words = ("metabroker", "--community", self.community.url, "--policy", self.folder / "policy.toml", "--id", name)
        url = f"{self.postgres.url}?schema={self.schema}"
        (self.folder / "key").write_text("a key of more than sixteen bytes\n")
        process = self.processes[name] = start(*words, "--data", url, "--data-key-file", self.folder / "key", stderr=self.log(name))
        assert process.stdout.readline().startswith("ready"), self.log(name).read_text()  # type: ignore[union-attr]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def owner(self, client: str) -> str:
        """Who has had a client's session last."""
        began = [name for name in self.processes if f"client='{client}'" in self.log(name).read_text()]
        taken = [name for name in self.processes if "event=sessions-resumed" in self.log(name).read_text()]
        [owner] = taken or began
        return owner

    def homes(self) -> int:
        with psycopg.connect(self.postgres.url) as connection:
            row = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE %s", (f"{self.schema}_%",)).fetchone()
        assert row is not None
        return int(row[0])

    def end(self, name: str, how: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(how)
        process.communicate(timeout=PATIENCE)

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name, signal.SIGTERM)
            assert "Traceback" not in self.log(name).read_text(), self.log(name).read_text()


@pytest.fixture
def three(tmp_path: Path, postgres: Server, request: pytest.FixtureRequest) -> Iterator[Three]:
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    with running_broker(tmp_path / "near", "mosquitto") as community, running_broker(tmp_path / "far", "mosquitto") as remote:
        made = Three(tmp_path, community, remote, postgres, f"three_{abs(hash(request.node.name)) % 10000}")
        try:
            yield made
        finally:
            made.close()


def test_two_under_one_client_identifier_become_two(tmp_path: Path) -> None:
    """Mosquitto gives it to whoever comes last, and cannot say when that one is gone; up to 2.0.11 it does not even say who has it."""
    (tmp_path / "policy.toml").write_text(POLICY)
    with running_broker(tmp_path, "mosquitto") as community:
        words = ("metabroker", "--community", community.url, "--policy", tmp_path / "policy.toml")
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        both = [start(*words, stderr=log) for log in logs]
        wait_until(lambda: sum("event=identifier-in-use" in log.read_text() for log in logs) == 1, PATIENCE, "new identifier")
        member = Member(community.port, "gauge", 5)
        look = Paho(community.port).open()
        look.subscribe("metabroker/status/#", 1)
        topics: set[str] = set()
        while len(topics) < 2:
            topics |= {message.topic} if (message := look.next()).payload != GONE else set()
        assert member.connect(community.url)["code"] == Code.OK
        assert member.ask("publish", message=1, topic="up", qos=1)["code"] == Code.OK, "one answers, and one only"
        for client in (member, look):
            client.close()
        for process in both:
            process.terminate()
            assert process.wait(PATIENCE) == 0
            process.communicate()
        assert not any("Traceback" in log.read_text() for log in logs)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("durable", [False, True])
def test_a_session_goes_on_at_another_one(three: Three, durable: bool, how: signal.Signals) -> None:
    """What the remote accepts in between reaches the client; its subscriptions and its identifier stay."""
    member = Member(three.community.port, "gauge", 5)
    assert member.connect(three.remote.url, durable=durable)["code"] == Code.OK
    assert member.ask("subscribe", message="s", topics=["down/#"], qos=1)["codes"] == [1]
    with Paho(three.remote.port) as far:
        far.subscribe("up/#", 1)
        three.end(three.owner("gauge"), how)
        began = time.monotonic()
        far.publish("down/a", b"meanwhile", 1)
        codes, payloads = [], []
        while Code.RESUMED not in codes or not payloads:
            verb, body = member.next()
            if verb == "publish":
                payloads.append(body["payload"])
                if durable:
                    member.send("ack", id=body["id"])
            else:
                codes.append(body["code"])
        assert payloads == [b"meanwhile"]
        print(f"gone on after {time.monotonic() - began:.2f} s")
        assert member.ask("publish", message="p", topic="up/a", payload=b"x", qos=1)["code"] == Code.OK
        assert far.next().payload == b"x"
        wait_until(lambda: three.homes() == 2, PATIENCE, "one home for each that is left")
        three.end(three.owner("gauge"), how)
        while member.next()[1].get("code") != Code.RESUMED:
            pass
        assert member.ask("publish", message="q", topic="up/a", payload=b"y", qos=1)["code"] == Code.OK
        assert far.next().payload == b"y"
    member.close()
