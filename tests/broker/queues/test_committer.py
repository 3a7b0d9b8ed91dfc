"""Where commits are made: small ones in the loop while the disk answers soon, else in the thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from mqmesh.broker.queues.committer import LONE, STALL, Committer
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.log.batch import Batch
from mqmesh.broker.queues.log.store import LogStore


async def test_one_commit_that_takes_long_leaves_the_next_ones_in_the_loop(tmp_path: Path) -> None:
    store = LogStore(tmp_path, "os")
    store.open(lambda name: Rules(), 1)
    queue, done, here = store.queue("orders", Rules()), asyncio.Event(), list[bool]()
    committer = Committer(store, asyncio.get_running_loop().call_soon_threadsafe, lambda: 1, lambda error: done.set())
    took = 0.0

    def write(batch: Batch) -> tuple[OSError | None, float]:
        here.append(threading.current_thread() is threading.main_thread())
        store.write(batch)
        return None, took

    committer._write = write  # type: ignore[method-assign]

    async def commits(count: int) -> list[bool]:
        here.clear()
        for _ in range(count):
            queue.put([b"x"], Meta("shop"), 1)
            done.clear()
            committer.begin()
            await done.wait()
        return list(here)

    await commits(50)
    assert await commits(3) == [True] * 3
    took = STALL / 2
    await commits(1)
    took = 0.0
    assert await commits(3) == [True] * 3
    took = 2 * LONE
    assert (await commits(50))[-1] is False
    took = 0.0
    await commits(50)
    took = STALL
    assert await commits(2) == [True, False]
    committer.close()
    store.close()
