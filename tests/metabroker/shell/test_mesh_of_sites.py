"""A metabroker inside one broker of a mesh serves clients at all sites; inside two it does harm, which is said. Real processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqmesh.client import Context, MetabrokerConnectionFactory
from support.brokers import running_broker
from support.command import run, start
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow
RULES = """[[allow]]
clients = ["*"]
remotes = ["{0}"]
publish = ["rain/#"]
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
            gone = "the metabroker metabroker cannot be reached: it is inside porto"
            sites.until("lyon", lambda one: gone in one["problems"])  # a busy machine may lose sight of turin, too
            sites.start("porto", inside=True)
            sites.until("turin", well)
            each_hears_all("second")
        finally:
            for context in contexts.values():
                context.close()
            sites.close()


def test_two_are_said_to_be_a_mistake(tmp_path: Path) -> None:
    sites = Sites(tmp_path, "mqtt://127.0.0.1:1")
    try:
        for name in SITES:
            sites.start(name, inside=name != "lyon")
        found = sites.until("lyon", lambda one: bool(one["mesh"]) and one["mesh"]["metabrokers"] == [1, 3])
        assert any("several metabrokers answer the clients of this mesh, at porto and turin" in one for one in found["problems"])
        wait_until(lambda: "event=several-metabrokers brokers=porto,turin" in sites.log("lyon").read_text(), PATIENCE, "a line in the log")
        sites.end("turin")
        sites.start("turin")  # without: the session of what was inside collects requests still
        sites.until("lyon", lambda one: one["mesh"]["metabrokers"] == [1, 3])
        done = run("sessions", "-h", sites.socket("turin"), "--end", "metabroker")
        assert done.returncode == 0, done.stderr
        sites.until("lyon", lambda one: one["mesh"]["metabrokers"] == [1])
    finally:
        sites.close()
