"""A queue that is worked while it goes from store to store, until somebody kills this process: FOLDER SEED STORE...

Each line on stdout was on the disk before: `put POSITION`, `done POSITION`; but for `says POSITION`, which will be done, and `at STORE`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.stores import Stores

AHEAD = 2000  # messages that wait


class Said:
    """A line that goes out after a commit."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def refused(self, text: str) -> None:
        """Nothing of it counts."""
        self._lines = []

    def go(self) -> None:
        """It is on the disk."""
        os.write(1, "".join(f"{line}\n" for line in self._lines).encode())


class Put:
    """The positions of a block, known with its commit."""

    def __init__(self, block: object, at: int, count: int) -> None:
        self._what, self._refused = (block, at, count), False

    def refused(self, text: str) -> None:
        """It was not put."""
        self._refused = True

    def go(self) -> None:
        """It is on the disk."""
        block, at, count = self._what
        if not self._refused:
            os.write(1, "".join(f"put {block.first + one}\n" for one in range(at, at + count)).encode())  # type: ignore[attr-defined]


async def main(folder: Path, seed: int, kinds: list[str]) -> None:
    dice, news = random.Random(seed), asyncio.Event()
    rules = Rules(store=dice.choice(kinds))
    stores = Stores(QueueSettings({"orders": rules, "other": Rules(store=kinds[0])}, folder=folder), lambda text: None)
    stores.open(1)
    stores.start(asyncio.get_running_loop().call_soon_threadsafe, lambda: 1, lambda error: news.set(), None)
    queue, other = stores.queues["orders"], stores.queues["other"]
    member = queue.join("a")
    while True:
        for store in stores.here.values():
            store._segment_bytes = 20_000
        if dice.random() < 0.05 and not stores._moves:
            os.write(1, f"at {stores.kind_of(queue).partition(':')[0]}\n".encode())
            kind = dice.choice(kinds)
            stores.have(kind, lambda error, to=kind: stores.change({"orders": to}))  # type: ignore[misc]
        if queue.waiting < AHEAD:
            for _ in range(dice.randrange(1, 4)):
                count = dice.randrange(1, 20)
                late = 10**9 if dice.random() < 0.02 else 0
                block, at = queue.put([b"payload"] * count, Meta("shop"), 1, delay=late, priority=dice.randrange(3, 6))
                stores.committer(queue).gate.waiting.append(Put(block, at, count))
        other.put([b"x"], Meta("shop"), 1)
        lines = []
        for one in queue.take(member, dice.randrange(60), 1):
            first = one.part.block.first + one.start
            if dice.random() < 0.1:
                queue.give_back(member, one.part, one.start, one.length, 1)
            else:
                queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
                positions = range(first, first + one.length)
                os.write(1, "".join(f"says {position}\n" for position in positions).encode())
                lines += [f"done {position}" for position in positions]
        stores.after(queue, Said(lines))
        for store in stores.here.values():
            store.trim(1)
        news.clear()
        stores.begin()
        if stores.busy:
            await news.wait()
        else:
            await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
