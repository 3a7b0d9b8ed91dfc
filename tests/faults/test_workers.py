"""A broker with workers, of which one is killed again and again under load: nothing acknowledged is lost, QoS 2 comes once.

What a killed worker had taken may come behind what its publisher sent by another one meanwhile (docs/roaming.md, "Unreachable
origin"): it is counted only.

MQMESH_WORKER_KILLS says how many kills, MQMESH_WORKERS how many workers, MQMESH_SEED which run.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from pathlib import Path

import pytest
from support.command import start
from support.scenes import until
from support.services import PATIENCE, wait_until

from benchmarks.trials.strict import Judge, Publisher, Subscriber  # behind scenes, which makes `benchmarks` known

KILLS = int(os.environ.get("MQMESH_WORKER_KILLS", "5"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 20 * KILLS)]
WORKERS = int(os.environ.get("MQMESH_WORKERS", "2"))
WINDOW, ROUND = 50, 400


class Trial:
    """Four publishers and three subscribers, wherever the kernel puts them; one subscriber is away half of the time."""

    def __init__(self, port: int, log: Path, dice: random.Random) -> None:
        self.port, self.log, self.dice = port, log, dice
        self.moved = asyncio.Event()
        self.publishers = [Publisher(f"publisher {n}", 5, n, 1 + n % 2, f"w/{n}".encode(), WINDOW) for n in range(1, 5)]
        self.judges = [{one.number: Judge(one.qos) for one in self.publishers} for _ in range(3)]
        self.subscribers = [Subscriber(f"subscriber {n}", 5, judges, 20, 0.2, dice) for n, judges in enumerate(self.judges)]
        self.away: Subscriber | None = None
        for session in (*self.publishers, *self.subscribers):
            session.changed = self.moved.set

    async def come(self) -> None:
        """Everybody who has no connection connects, as often as it takes."""
        for session in (*self.publishers, *self.subscribers):
            async with asyncio.timeout(PATIENCE):
                while not session.up and session is not self.away:
                    try:
                        await session.dial(self.port)
                    except (OSError, TimeoutError):
                        session.leave()

    def worker(self, index: int) -> list[int]:
        """The processes that a worker has had."""
        return [int(found) for found in re.findall(rf"event=worker-ready worker={index} process=(\d+)", self.log.read_text())]

    async def kill(self) -> None:
        """Kill a worker in the middle of the load, and go on when it runs again."""
        acknowledged = sum(len(one.acknowledged) for one in self.publishers) + self.dice.randrange(4 * ROUND)
        for publisher in self.publishers:
            publisher.go(publisher.limit + ROUND)
        await until(
            self.moved, lambda: sum(len(one.acknowledged) for one in self.publishers) >= acknowledged, "some are acknowledged", self.log
        )
        index = self.dice.randrange(WORKERS)
        lives = self.worker(index)
        os.kill(lives[-1], signal.SIGKILL)
        self.away = self.subscribers[0] if self.away is None else None
        if self.away is not None:
            self.away.leave()
        await self.come()
        await asyncio.to_thread(wait_until, lambda: len(self.worker(index)) > len(lives), PATIENCE, "another life of the worker")
        await self.come()
        await until(self.moved, lambda: all(one.idle or not one.up for one in self.publishers), "all are acknowledged", self.log)

    def complete(self) -> bool:
        """Whether each subscriber has all that was acknowledged."""
        for subscriber in self.subscribers:
            subscriber.pay()
        return all(one.acknowledged <= judges[one.number].seen for judges in self.judges for one in self.publishers)

    async def run(self) -> None:
        await self.come()
        for subscriber in self.subscribers:
            subscriber.subscribe(b"w/#", 2)
        await until(self.moved, lambda: all(one.established for one in self.subscribers), "SUBACK", self.log)
        for publisher in self.publishers:
            publisher.established = True
        for _ in range(KILLS):
            await self.kill()
        self.away = None
        await self.come()
        await until(self.moved, lambda: all(one.idle for one in self.publishers), "all are acknowledged", self.log)
        await until(self.moved, self.complete, "all came", self.log)
        for session in (*self.publishers, *self.subscribers):
            assert not session.faults, (session.client_id, session.faults)
            session.leave()


def test_a_worker_is_killed_under_load(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start("broker", "--workers", WORKERS, "--listen", "mqtt://127.0.0.1:0", "--data", tmp_path / "data", stderr=log)
    port = int(process.stdout.readline().split()[1].rpartition(":")[2])
    trial = Trial(port, log, random.Random(int(os.environ.get("MQMESH_SEED", "1"))))
    asyncio.run(trial.run())
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.communicate()
    found = log.read_text()
    assert "Traceback" not in found, found[found.index("Traceback") - 500 :][:4000]
    judged = [judge for judges in trial.judges for judge in judges.values()]
    assert all(len(one.acknowledged) == one.limit == KILLS * ROUND for one in trial.publishers)
    assert all((judge.twice, judge.corrupt) == (0, 0) for judge in judged)
    again, late = (sum(getattr(judge, what) for judge in judged) for what in ("again", "disorder"))
    print(f"{KILLS} kills, {sum(len(judge.seen) for judge in judged)} deliveries, again {again}, late {late}")
