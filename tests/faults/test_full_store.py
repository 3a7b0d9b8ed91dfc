"""A broker whose store has all that it may have, as a process, with each kind of store: killed while it is full, it goes on as it was."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import urllib.request
from pathlib import Path

import pytest
from support.command import start
from support.paho_client import Paho
from support.peers.postgres import server
from support.scenes import until
from support.services import PATIENCE, free_port

from benchmarks.trials.strict import Judge, Publisher, Subscriber  # behind scenes, which makes `benchmarks` known

pytestmark = pytest.mark.slow
LIMIT = 256 * 1024


class Site:
    """A broker with a store of some kind, which may keep `LIMIT` bytes."""

    def __init__(self, place: Path, kind: str, url: str | None) -> None:
        self.port, self.web = free_port(), free_port()
        self.log, self.config = place / "log", place / "site.toml"
        lines = [
            f'listen = ["mqtt://127.0.0.1:{self.port}"]',
            f'data = "{place / "data"}"',
            f'http.listen = "http://127.0.0.1:{self.web}"',
            f"limits.stored_bytes = {LIMIT}",
            f'store.kind = "{kind}"',
        ]
        if url is not None:
            lines.append(f'store.url = "{url}"')
        self.config.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = start("broker", "--config", self.config, stderr=self.log)
        assert self.process.stdout.readline().startswith("ready"), self.log.read_text()  # type: ignore[union-attr]

    def end(self, kill: bool = False) -> None:
        assert self.process is not None
        (self.process.kill if kill else self.process.terminate)()
        self.process.communicate()

    def says(self, words: str) -> int:
        """How many lines of this life's log have these words."""
        return sum(words in line for line in self.log.read_text().splitlines())

    def get(self, path: str) -> str:
        """What it answers over HTTP."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()  # type: ignore[no-any-return]

    def number(self, name: str) -> float:
        """One number of its metrics."""
        return next(float(line.split()[1]) for line in self.get("/metrics").splitlines() if line.startswith(f"{name} "))


def told(site: Site) -> None:
    """Everybody who asks is told; those who listen are served."""
    health = json.loads(site.get("/health"))
    assert health["state"] == "degraded"
    assert "limits.stored_bytes" in health["reasons"][0]
    assert site.number("mqmesh_store_full") == 1
    assert site.number("mqmesh_store_bytes") >= LIMIT - LIMIT // 16
    with Paho(site.port) as client:
        client.subscribe("free", 1)
        assert client.publish("free", b"goes", 1) == 0
        assert client.next().payload == b"goes"
        assert client.publish("d/1", bytes(1000), 1) == 0x97


async def full_and_killed(site: Site) -> None:
    moved = asyncio.Event()
    publishers = [
        Publisher("five", 5, 1, 1, b"d/1", 100),
        Publisher("five twice", 5, 2, 2, b"d/2", 100),
        Publisher("four", 4, 3, 1, b"d/3", 100),
    ]
    judges = {one.number: Judge(one.qos) for one in publishers}
    away = Subscriber("away", 5, judges, 0, 0.0, random.Random(1))
    for session in (away, *publishers):
        session.changed = moved.set

    await away.dial(site.port)
    away.subscribe(b"d/#", 2)
    await until(moved, lambda: away.established, "SUBACK", site.log)
    away.leave()
    five, twice, four = publishers
    for one in publishers:
        await one.dial(site.port)
        one.go(1000)
    await until(moved, lambda: five.idle and twice.idle, "those who can be told are answered", site.log)
    assert five.refused
    assert twice.refused
    assert not four.idle
    await asyncio.to_thread(told, site)
    assert site.says("event=store-bound") == 1
    refused = {one.number: set(one.refused) for one in publishers}
    five.go(2000)
    site.end(kill=True)

    site.start()
    assert site.says("event=store-bound") == 1
    await asyncio.to_thread(told, site)
    for one in publishers:
        await one.dial(site.port)
    await until(moved, lambda: five.idle and twice.idle, "those who can be told are answered by the next life", site.log)
    await away.dial(site.port)
    await until(moved, lambda: four.idle, "those who were not read go on", site.log)
    await until(
        moved, lambda: all(one.acknowledged <= judges[one.number].seen for one in publishers), "all that was acknowledged came", site.log
    )
    before = len(five.acknowledged)
    five.go(five.sent + 100)
    await until(moved, lambda: five.idle and len(five.acknowledged) >= before + 100, "there is room again", site.log)
    for one in publishers:
        judge = judges[one.number]
        assert (judge.twice, judge.disorder, judge.corrupt) == (0, 0, 0)
        assert not refused[one.number] & judge.seen
        assert not one.faults
    assert site.says("event=store-room")
    assert json.loads(await asyncio.to_thread(site.get, "/health"))["state"] == "ok"


@pytest.mark.parametrize("kind", ["sqlite", "lmdb", pytest.param("postgresql", marks=pytest.mark.service)])
def test_killed_while_full(kind: str, tmp_path: Path) -> None:
    def scene(url: str | None = None) -> None:
        site = Site(tmp_path, kind, url)
        site.start()
        asyncio.run(full_and_killed(site))
        site.end()

    if kind == "postgresql":
        with server() as running:
            scene(running.url)
    else:
        scene()
