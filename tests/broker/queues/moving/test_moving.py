"""A queue goes from one store to another while it is worked (docs/queues.md, "To another store")."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.locations import KINDS, shown
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.stores import Stores
from support.peers.postgres import Server, server
from support.steps import ended

from ..test_carry import commit, everything, unexplained, waiting

PAIRS = list(itertools.permutations(KINDS, 2))
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


class Life:
    """The stores of one life of a broker, with their threads."""

    def __init__(self, folder: Path, said: list[str] | None = None, **rules: Rules) -> None:
        self.rules = rules
        self.stores = Stores(QueueSettings(rules, folder=folder, durability="os"), (said if said is not None else []).append)
        self.news = asyncio.Event()
        self.errors: list[OSError] = []

    async def __aenter__(self) -> Life:
        self.stores.open(1)
        self.stores.start(asyncio.get_running_loop().call_soon_threadsafe, lambda: 100, self._done, None)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stores.close()

    def _done(self, error: OSError | None) -> None:
        if error is not None:
            self.errors.append(error)
        self.news.set()
        self.stores.begin()

    def change(self, *names: str, store: str) -> None:
        """The rules of queues name another store from now on."""
        self.stores.have(store, lambda error: self._opened(error, dict.fromkeys(names, store)))

    def _opened(self, error: OSError | None, stores: dict[str, str]) -> None:
        assert error is None
        self.stores.change(stores)

    async def until_there(self, *kinds: str) -> None:
        """Until nothing is on its way, and all is written; then the queues have these stores."""
        while self.stores._moves or self.stores._opening or self.stores.dirty or self.stores.busy:
            self.news.clear()
            self.stores.begin()
            await self.news.wait()
        assert [self.stores.kind_of(self.stores.queues[name]) for name in self.rules] == list(kinds)

    def truth(self, name: str = "orders") -> tuple[dict[int, tuple[Any, ...]], dict[int, Any]]:
        """What is to be known of a queue: its messages that are not at an end, and the history of each that it ever had."""
        queue = self.stores.queues[name]
        store = self.stores.of(queue)
        queue.check()
        found = {position: ended(store.history(queue, position)) for position in range(1, queue.next)}
        told = {position: (block.meta(position - block.first), moves) for position, (block, moves) in found.items() if block is not None}
        return waiting(store, name), told


@pytest.mark.parametrize(("source", "target"), PAIRS)
async def test_everything_goes_along(tmp_path: Path, source: str, target: str) -> None:
    everything(tmp_path, source).close()
    said: list[str] = []
    async with Life(tmp_path, said, orders=Rules(deliveries=5, store=source), other=Rules(store=source)) as life:
        queue = life.stores.queues["orders"]
        before, subscribers, following = life.truth(), list(queue.subscribers), queue.next
        assert len(before[1]) > 15
        life.change("orders", store=target)
        await life.until_there(target, source)
        assert life.truth() == before
        assert [one[2] for one in waiting(life.stores.of(life.stores.queues["other"]), "other").values()] == [b"far"]
        page = life.stores.of(queue).reader(queue).page(1, 1000, queue.next)
        assert sum(one.stop - one.start for one in page.found) == len(before[1])
    for _ in range(2):
        async with Life(tmp_path, said, orders=Rules(deliveries=5, store=target), other=Rules(store=source)) as life:
            assert life.stores.kind_of(life.stores.queues["orders"]) == target
            assert life.truth() == before
            assert (list(life.stores.queues["orders"].subscribers), life.stores.queues["orders"].next) == (subscribers, following)
    assert not said


async def test_there_and_back_again(tmp_path: Path) -> None:
    """Each store has had the queue before: what it has of that time does not count."""
    async with Life(tmp_path, orders=Rules(), other=Rules()) as life:
        queue = life.stores.queues["orders"]
        member = queue.join("a")
        done = 0
        for turn, kind in enumerate(("sqlite", "log", "lmdb", "log", "sqlite", "lmdb", "log")):
            queue.put([b"%d" % number for number in range(turn, turn + 3)], Meta("shop"), 100)
            await life.until_there(life.stores.kind_of(queue), "log")
            for one in queue.take(member, 2, 100):
                queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 100)
                done += one.length
            life.change("orders", store=kind)
            await life.until_there(kind, "log")
        before = life.truth()
        assert len(before[0]) == 21 - done
    async with Life(tmp_path, orders=Rules(), other=Rules()) as life:
        assert life.truth() == before


async def test_dead_letters_go_along(tmp_path: Path) -> None:
    async with Life(tmp_path, orders=Rules(deliveries=1, dead_letters="dead"), dead=Rules()) as life:
        queue = life.stores.queues["orders"]
        queue.put([b"1", b"2"], Meta("shop"), 100)
        await life.until_there("log", "log")
        member = queue.join("a")
        (one,) = queue.take(member, 1, 100)
        queue.give_back(member, one.part, one.start, 1, 100)
        life.change("orders", "dead", store="sqlite")
        await life.until_there("sqlite", "sqlite")
        (one,) = queue.take(member, 1, 100)
        queue.give_back(member, one.part, one.start, 1, 100)
        await life.until_there("sqlite", "sqlite")
        assert [one[2] for one in life.truth("dead")[0].values()] == [b"1", b"2"]


async def test_messages_that_belong_together_are_not_in_two_stores(tmp_path: Path) -> None:
    async with Life(tmp_path, orders=Rules(), dead=Rules(store="sqlite")) as life:
        for name in ("orders", "dead"):
            life.stores.queues[name].put([b"1"], Meta("shop"), 100)
        await life.until_there("log", "sqlite")
    with pytest.raises(ConfigError, match="its dead letters are in another store: log and sqlite"):
        async with Life(tmp_path, orders=Rules(dead_letters="dead"), dead=Rules()):
            pass
    async with Life(tmp_path, orders=Rules(), dead=Rules()) as life:
        await life.until_there("log", "log")
    async with Life(tmp_path, orders=Rules(dead_letters="dead"), dead=Rules()) as life:
        assert [one[2] for one in life.truth("dead")[0].values()] == [b"1"]


def damage(folder: Path) -> None:
    path = min(folder.glob("*.queue"))
    path.write_bytes(path.read_bytes().replace(b"message", b"massage"))


async def test_a_message_that_cannot_be_read_holds_its_queue(tmp_path: Path) -> None:
    async with Life(tmp_path, orders=Rules(), other=Rules(store="sqlite")) as life:
        queue = life.stores.queues["orders"]
        queue.put([b"message"], Meta("shop"), 100)
        await life.until_there("log", "sqlite")
        queue.blocks[1].payloads = None
        damage(tmp_path)
        life.change("orders", store="sqlite")
        while not (life.stores.progress(queue) or {})["why"]:
            await asyncio.sleep(0)
            life.stores.begin()
        assert "from 1 on cannot be read" in (life.stores.progress(queue) or {})["why"]
        queue.put([b"next"], Meta("shop"), 100)
        queue.withdraw(queue.blocks[1], 0, 1, 100)
        life.stores._moves[0]._again_at = 0.0
        life.stores.tick()
        await life.until_there("sqlite", "sqlite")
        assert [one[2] for one in life.truth()[0].values()] == [b"next"]


@pytest.mark.service
@pytest.mark.parametrize(("source", "target"), [("log", ""), ("", "lmdb")])
async def test_postgresql(tmp_path: Path, postgres: Server, source: str, target: str) -> None:
    url = f"{postgres.url}?schema=queues_{next(_numbers)}"
    store = everything(tmp_path, source or url)
    commit(store)
    store.close()
    async with Life(tmp_path, orders=Rules(deliveries=5, store=source or url)) as life:
        before = life.truth()
    async with Life(tmp_path, orders=Rules(deliveries=5, store=target or url)) as life:  # the old URL is remembered
        await life.until_there(shown(target or url))
        assert life.truth() == before
    async with Life(tmp_path, orders=Rules(deliveries=5, store=target or url)) as life:
        assert life.truth() == before


@pytest.mark.process
@pytest.mark.parametrize("kinds", [["log", "sqlite"], ["log", "lmdb"], ["sqlite", "lmdb"], KINDS])
async def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path, kinds: list[str]) -> None:
    await killed(tmp_path, list(kinds), range(4))


@pytest.mark.service
async def test_killed_on_the_way_to_postgresql_nothing_is_lost(tmp_path: Path, postgres: Server) -> None:
    await killed(tmp_path, ["log", f"{postgres.url}?schema=queues_{next(_numbers)}"], range(3))


async def killed(folder: Path, kinds: list[str], seeds: range) -> None:
    """A life under load for each seed, killed after so many lines; what is left is what has to be."""
    found: dict[str, set[str]] = {"put": set(), "says": set(), "done": set(), "at": set()}
    for seed in seeds:
        moved = seed != seeds[-1] or len(found["at"]) > 1
        for line in await asyncio.to_thread(lines_of, folder, seed, kinds, moved):
            what, value = line.decode().split()
            found[what].add(value)
    said: list[str] = []
    async with Life(folder, said, **{f"queue-{number}": Rules(store=kind) for number, kind in enumerate(kinds)}) as life:
        queue = life.stores.queues["orders"]
        queue.check()
        left = set(map(str, waiting(life.stores.of(queue))))
        with_it = [kind for kind, store in life.stores.here.items() if "orders" in store.queues]
    assert not unexplained(said)
    assert len(with_it) == 1
    assert len(found["at"]) > 1
    assert not left & found["done"]
    assert found["put"] - found["says"] <= left


def lines_of(folder: Path, seed: int, kinds: list[str], moved: bool) -> list[bytes]:
    """What a life said until it was killed: after so many lines, and not before the queue has been in two places unless it has `moved`."""
    argv = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), str(seed), *kinds]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}) as worker:
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(5000 + 3777 * (seed % 4))]
        places = {line for line in lines if line.startswith(b"at ")}
        while not moved and len(places) < 2:
            lines.append(worker.stdout.readline())
            assert lines[-1], "it ended before the queue had moved"
            places.update(line for line in lines[-1:] if line.startswith(b"at "))
        worker.send_signal(signal.SIGKILL)
        return lines + [line for line in worker.stdout.readlines() if line.endswith(b"\n")]
