"""`mqmesh status` with brokers that are processes: what it shows of a mesh, of a broker that dies, of brokers that say little."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import running_broker
from support.command import run, start, start_with_users
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow
NAMES = ("porto", "lyon", "turin")
DOCS = Path(__file__).parents[3] / "docs/monitoring.md"
TEXT = """
[mesh]
name = "three"
key = "sixteen bytes or more"
silence = 60
[[link]]
between = ["porto", "lyon"]
[[link]]
between = ["lyon", "turin"]
[[link]]
between = ["turin", "porto"]
cost = 5
"""


class Mesh:
    """Three brokers in a triangle, and what `status --watch --json` says at the first."""

    def __init__(self, folder: Path) -> None:
        self.ports = {name: free_port() for name in NAMES}
        brokers = [
            f'[[broker]]\nname = "{name}"\nnumber = {number}\nlisten = "mqtt://127.0.0.1:{port}"\n'
            for number, (name, port) in enumerate(self.ports.items(), 1)
        ]
        (folder / "three.toml").write_text(TEXT + "".join(brokers))
        self.data = folder / "data"
        self.process = start("up", folder / "three.toml", "--data", self.data, stderr=folder / "err")
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready"), (line, (folder / "err").read_text())

    def url(self, name: str) -> str:
        return f"mqtt://127.0.0.1:{self.ports[name]}"

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE)


class Watcher:
    """Reads the reports of `status --watch --json` until one is right."""

    def __init__(self, url: str) -> None:
        self.process = start("status", "-h", url, "--watch", "--json", "--interval", "0.1")
        self.last: dict[str, Any] = {}
        self.seen: list[dict[str, Any]] = []

    def until(self, right: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        killer = threading.Timer(PATIENCE, self.process.kill)  # so that a report that never comes ends the test
        killer.start()
        try:
            for line in self.process.stdout:  # type: ignore[union-attr]
                self.last = json.loads(line)
                if right(self.last):
                    return self.last
        finally:
            killer.cancel()
        raise AssertionError(f"never said; the last report: {self.last}")

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    running = Mesh(tmp_path_factory.mktemp("status"))
    yield running
    running.close()


def member(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in report["mesh"]["members"] if one["name"] == name)


def keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_a_dead_broker_is_seen_and_what_waits_for_it(mesh: Mesh, name: str) -> None:
    with Paho(mesh.ports["porto"]) as publisher, Paho(mesh.ports["turin"]) as subscriber:
        subscriber.subscribe(name, 1)
        wait_until(lambda: publisher.publish(name, b"x", 1) == 0, PATIENCE, "interest at the other broker")  # 0x10: nobody
        watcher = Watcher(mesh.url("porto"))
        report = watcher.until(lambda one: one["ok"])
        assert (report["broker"]["kind"], report["broker"]["name"], report["broker"]["state"]) == ("mqmesh", "porto", "ok")
        assert report["broker"]["clients"] >= 0
        assert [one["name"] for one in report["mesh"]["members"]] == list(NAMES)
        assert member(report, "porto")["next"] is None
        assert (member(report, "turin")["next"], member(report, "turin")["hops"], member(report, "turin")["cost"]) == (2, 2, 2), "over lyon"
        assert sorted(map(tuple, report["mesh"]["graph"])) == [(1, 2, 1, True), (1, 3, 5, True), (2, 3, 1, True)]
        assert {link["name"] for link in report["mesh"]["links"] if link["up"]} == {"lyon", "turin"}
        done = run("status", "-h", mesh.url("porto"), "--check")
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
        assert b"not well" not in done.stdout

        os.kill(int((mesh.data / "turin.pid").read_text()), signal.SIGKILL)
        watcher.until(lambda one: not member(one, "turin")["live"])
        assert publisher.publish(name, b"for the dead", 1) == 0
    report = watcher.until(lambda one: member(one, "turin")["open"] == 1)
    assert watcher.close() == 0
    assert not report["ok"]
    turin = member(report, "turin")
    assert (turin["next"], turin["waits"], turin["open_bytes"] > 0, turin["since"] is not None) == (None, "reach", True, True)
    assert any("turin (number 3) cannot be reached, waiting for it: 1 message" in one for one in report["problems"])
    assert [(low, high) for low, high, _, used in report["mesh"]["graph"] if not used] == [(1, 3), (2, 3)]

    done = run("status", "-h", mesh.url("porto"), "--check", "--picture")
    assert done.returncode == 1
    assert b"not well: turin (number 3) cannot be reached" in done.stdout
    assert b"(turin 3)" in done.stdout
    assert re.search(rb"turin +3 +no +- +- +- +\d+ \w+ +1 +1 \(\d+ B\) +no path to it", done.stdout), done.stdout
    assert run("status", "-h", mesh.url("porto")).returncode == 0, "it was shown"
    done = run("status", "-h", mesh.url("lyon"), "--dot")
    assert b"  2 -- 3 [style=dashed, color=red];" in done.stdout
    assert b'  3 [label="turin 3", color=red, fontcolor=red];' in done.stdout


def test_each_key_is_documented(mesh: Mesh) -> None:
    report = json.loads(run("status", "-h", mesh.url("lyon"), "--json").stdout)
    report["mesh"] = {key: value for key, value in report["mesh"].items() if key != "counters"}  # the docs name where they stand
    documented = set(re.findall(r"`(\w+)`", DOCS.read_text()))
    assert keys(report) - documented == set()


class Guarded:
    """A broker with users: ops sees what the broker says of itself, alice does not."""

    def __init__(self, folder: Path) -> None:
        self.url = f"mqtt://127.0.0.1:{free_port()}"
        self.process = start_with_users(
            folder,
            f'listen = ["{self.url}"]',
            'name = "guarded"',
            "[access]",
            'users = "users"',
            "[[access.rule]]",
            'users = ["ops"]',
            'allow = ["subscribe"]',
            'topics = ["$SYS/broker/#"]',
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    running = Guarded(tmp_path_factory.mktemp("guarded"))
    yield running
    running.process.terminate()
    running.process.communicate()


@pytest.mark.parametrize(
    ("who", "status", "words"),
    [
        (("-u", "ops", "-P", "pw"), 0, "guarded"),
        (("-u", "ops", "-P", "wrong"), 1, "(0x86)"),
        (("-u", "alice", "-P", "pw"), 1, "does not let this user see $SYS/broker/#"),
    ],
)
def test_who_may_look(guarded: Guarded, who: tuple[str, ...], status: int, words: str) -> None:
    done = run("status", "-h", guarded.url, "--check", *who)
    assert done.returncode == status
    assert words in (done.stderr if status else done.stdout).decode()
    assert (done.stdout == b"") == (status == 1)


def test_a_broker_without_sys_and_without_a_mesh(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\nlimits.sys_interval = 0\n')
    process = start("broker", "--config", tmp_path / "site.toml", stderr=tmp_path / "log")
    url = next(word for word in process.stdout.readline().split() if "://" in word)  # type: ignore[union-attr]
    try:
        done = run("status", "-h", url, "--check")
        assert (done.returncode, b"there is no $SYS here" in done.stdout) == (1, True)
        done = run("status", "-h", url, "--dot")
        assert (done.returncode, done.stdout, b"not in a mesh" in done.stderr) == (1, b"", True)
    finally:
        process.terminate()
        process.communicate()


def test_mosquitto_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    with running_broker(tmp_path, kind="mosquitto") as broker:
        report = json.loads(run("status", "-h", broker.url, "--json").stdout)
    assert report["broker"]["kind"] == "mosquitto"
    assert report["broker"]["uptime"] is not None
    assert (report["mesh"], report["metabrokers"], report["ok"]) == (None, [], True)


def test_nobody_is_there() -> None:
    done = run("status", "-p", free_port())
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.count(b"\n") == 1
    assert b"connection refused" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--json", "--dot"), b"choose one"),
        (("--watch", "--check"), b"leave --watch out"),
        (("-h", "http://x"), b"the scheme 'http' is not known"),
        (("--interval", "0"), b"--interval"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], words: bytes) -> None:
    done = run("status", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
