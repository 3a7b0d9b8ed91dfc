"""A metabroker inside one broker of a mesh serves clients at all sites; several are one service. Real processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.metabroker import Code
from mqmesh.client import Context, MetabrokerConnectionFactory
from support.brokers import running_broker
from support.command import run, start
from support.paho_client import Paho
from support.remotes import Member
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow
RULES = """[[allow]]
clients = ["*"]
remotes = ["{0}"]
publish = ["rain/#", "up"]
subscribe = ["rain/#"]
"""
SITES = ("porto", "lyon", "turin")


class Sites:
    """Three brokers, each linked to the others, that keep what they have; some with the metabroker inside."""

    def __init__(self, folder: Path, remote: str) -> None:
        self.folder, self.remote = folder, remote
        self.urls = {name: f"mqtt://127.0.0.1:{free_port()}" for name in SITES}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        (folder / "policy.toml").write_text(RULES.format(remote))

    def start(self, name: str, inside: bool = False) -> None:
        earlier = SITES[: SITES.index(name)]
        peers = "".join(f'[[mesh.peer]]\naddress = "{self.urls[other]}"\n' for other in earlier)
        metabroker = f'[metabroker]\npolicy = "policy.toml"\ndata = "metabroker-{name}"\n' if inside else ""
        (self.folder / f"{name}.toml").write_text(
            f'name = "{name}"\nnumber = {SITES.index(name) + 1}\nlisten = ["{self.urls[name]}", "{self.socket(name)}"]\ndata = "{name}"\n'
            f'[mesh]\nname = "sites"\nkey = "sixteen bytes or more"\n{peers}{metabroker}'
        )
        process = self.processes[name] = start("broker", "--config", self.folder / f"{name}.toml", stderr=self.log(name))
        assert process.stdout.readline().startswith("ready"), self.log(name).read_text()  # type: ignore[union-attr]

    def socket(self, name: str) -> str:
        return f"unix://{self.folder}/{name[0]}"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(how)
        process.communicate(timeout=PATIENCE)

    def status(self, name: str) -> dict[str, Any]:
        done = run("status", "-h", self.urls[name], "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until(self, name: str, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first status that is right."""
        seen: list[dict[str, Any]] = []

        def look() -> bool:
            seen.append(self.status(name))
            return right(seen[-1])

        wait_until(look, PATIENCE, f"status of {name}")
        return seen[-1]

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name)


def well(found: dict[str, Any]) -> bool:
    return found["ok"] and len(found["mesh"]["members"]) == len(SITES) and [one["inside"] for one in found["metabrokers"]] == ["porto"]


def test_one_serves_all_sites_and_comes_back(tmp_path: Path) -> None:
    with running_broker(tmp_path, kind="mqmesh") as remote:
        sites = Sites(tmp_path, remote.url)
        contexts: dict[str, Context] = {}
        try:
            for name in SITES:
                sites.start(name, inside=name == "porto")
            for name in SITES:
                sites.until(name, well)
            for name in SITES:
                factory = MetabrokerConnectionFactory(sites.urls[name], remote.url, client_id=f"at-{name}", send_timeout=PATIENCE)
                contexts[name] = factory.create_context()
            consumers = {name: one.create_consumer(one.create_topic("rain/#")) for name, one in contexts.items()}

            def each_hears_all(word: str) -> None:
                for name, context in contexts.items():
                    context.create_producer().send(context.create_topic(f"rain/{name}"), f"{word} of {name}")
                wanted = sorted(f"{word} of {name}" for name in SITES)
                for site, consumer in consumers.items():
                    heard: list[str] = []
                    while len(heard) < len(wanted):
                        message = consumer.receive(PATIENCE)
                        assert message is not None, f"at {site}: {heard} of {wanted}"
                        heard += [message.text] * message.text.startswith(word)  # what a killed broker had not heard confirmed comes again
                    assert sorted(heard) == wanted

            each_hears_all("first")
            sites.end("porto", signal.SIGKILL)
            gone = "the metabroker metabroker@porto cannot be reached: it is inside porto"
            sites.until("lyon", lambda one: gone in one["problems"])  # a busy machine may lose sight of turin, too
            sites.start("porto", inside=True)
            sites.until("turin", well)
            each_hears_all("second")
        finally:
            for context in contexts.values():
                context.close()
            sites.close()


class Two:
    """Sites of which porto and turin have a metabroker inside, and a client at each site."""

    def __init__(self, folder: Path, remote: str) -> None:
        self.sites = Sites(folder, remote)
        for name in SITES:
            self.sites.start(name, inside=name != "lyon")
        self.sites.until("lyon", lambda one: bool(one["mesh"]) and one["mesh"]["metabrokers"] == [1, 3] and len(one["metabrokers"]) == 2)
        self.members = {name: Member(int(self.sites.urls[name].rpartition(":")[2]), f"at-{name}") for name in SITES}

    def sessions(self) -> dict[str, int]:
        """How many each metabroker has, by its site."""
        return {one["inside"]: one["sessions"]["all"] for one in self.sites.status("lyon")["metabrokers"] if one["up"]}

    def close(self) -> None:
        for member in self.members.values():
            member.close()
        self.sites.close()


def test_two_are_one_service(tmp_path: Path) -> None:
    """One of them answers; the connection to the remote is shared. When its owner is killed, the other says so, and takes over."""
    with running_broker(tmp_path, kind="mqmesh") as remote:
        two = Two(tmp_path, remote.url)
        try:
            for name, member in two.members.items():
                assert member.connect(remote.url)["code"] == Code.OK, name
                assert member.ask("subscribe", message="s", topics=["rain/#"], qos=1)["codes"] == [1]
            with Paho(remote.port) as far:
                far.publish("rain/a", b"wet", 1)
            for member in two.members.values():
                assert member.next()[1]["payload"] == b"wet"
                assert member.ask("subscribe", message="t", topics=[])["codes"] == []  # no other answer or copy comes before
            two.sites.until("lyon", lambda _: sorted(two.sessions().values()) == [0, 3])
            owner = next(name for name, count in two.sessions().items() if count)
            two.sites.end(owner, signal.SIGKILL)
            lyon = two.members["lyon"]
            verb, body = lyon.next()
            assert (verb, body["code"]) == ("status", Code.SESSION_ENDED)
            assert lyon.connect(remote.url)["code"] == Code.OK
            assert lyon.ask("publish", message="q", topic="rain/b", payload=b"dry", qos=1)["code"] == Code.OK
            other = next(name for name in ("porto", "turin") if name != owner)
            two.sites.until("lyon", lambda _: two.sessions()[other] == 1)
        finally:
            two.close()


def test_a_durable_session_waits_for_its_owner(tmp_path: Path) -> None:
    with running_broker(tmp_path, kind="mqmesh") as remote:
        two = Two(tmp_path, remote.url)
        try:
            lyon = two.members["lyon"]
            assert lyon.connect(remote.url, durable=True)["code"] == Code.OK
            assert lyon.ask("subscribe", message="s", topics=["rain/#"], qos=1)["codes"] == [1]
            two.sites.until("lyon", lambda _: sorted(two.sessions().values()) == [0, 1])
            owner = next(name for name, count in two.sessions().items() if count)
            two.sites.end(owner, signal.SIGKILL)
            verb, body = lyon.next()
            assert (verb, body["code"]) == ("status", Code.REMOTE_UNREACHABLE)
            lyon.send("publish", message="p", topic="up", payload=b"", qos=1)
            assert lyon.connect(remote.url, durable=True)["code"] == Code.REMOTE_UNREACHABLE
            two.sites.start(owner, inside=True)
            seen = set()
            while seen < {("status", Code.RESUMED), ("puback", Code.OK)}:
                verb, body = lyon.next()
                seen.add((verb, body["code"]))
        finally:
            two.close()
