"""Where commits are made: small ones in the loop while the disk answers soon, else in the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqmesh.broker.queues.committer import LONE, STALL, TOGETHER, Committer, Then
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import Move
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


def test_answers_to_clients_are_sent_before_anything_else_is_done(tmp_path: Path) -> None:
    """Of any commit, if nothing else waits for it."""
    store, queue = opened(tmp_path)
    heard: list[str] = []
    committer = Committer(store, lambda run, *words: run(*words), lambda: 1, lambda error: heard.append("done"))
    committer._work = Now(committer)  # type: ignore[assignment]
    committer.send = lambda: heard.append("sent")
    real = store.applied

    def applied(batch: Batch, now: int) -> None:
        heard.append("applied")
        assert committer.busy
        real(batch, now)

    store.applied = applied  # type: ignore[method-assign]

    def put(*, answers: int, others: int = 0) -> list[str]:
        heard.clear()
        queue.put([b"x"], Meta("shop"), 1)
        for _ in range(answers + others):
            committer.gate.waiting.append(Then(lambda text: heard.append("answer")))
        committer.gate.answers = answers
        committer.begin()
        return heard

    assert put(answers=1) == ["answer", "sent", "applied", "done"]  # a segment begins: in the thread
    while committer._lately >= LONE:
        put(answers=0)
    assert put(answers=2) == ["answer", "answer", "sent", "applied", "done"]
    assert put(answers=1, others=1) == ["applied", "answer", "answer", "done"]
    assert put(answers=0) == ["applied", "done"]
    store.broken = True
    assert put(answers=1) == ["answer", "done"]
    assert store.full is not None
    store.close()


class Rounds:
    """A loop: what it is told is done in the next round, before sockets are read."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call(self, run: Callable[..., None], *words: Any) -> None:
        self.soon.append((run, words))

    def round(self) -> None:
        soon, self.soon = self.soon, []
        for run, words in soon:
            run(*words)


class Scene:
    """A committer whose batches are only noted. begun: what each has. now: milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.store, self.queue = opened(folder)
        self.loop, self.now, self.begun = Rounds(), 1, list[int]()
        self.committer = Committer(self.store, self.loop.call, lambda: self.now, lambda error: None)
        self.committer.begin = lambda: self.begun.append(self.queue.gathering)  # type: ignore[method-assign]

    def put(self, count: int) -> None:
        """A publisher puts so many messages of 100 bytes, and that is the end of a piece of work."""
        self.queue.put([bytes(100)] * count, Meta("shop"), self.now)
        self.committer.begin_together()

    def close(self) -> None:
        self.committer.abandon("the end")
        self.store.close()


def test_publishers_that_put_in_rounds_that_follow_each_other_have_one_commit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(500)
    scene.put(1)
    scene.loop.round()  # it has read the sockets that were readable
    scene.put(499)
    scene.loop.round()
    assert not scene.begun, "more has come: there may be others"
    scene.loop.round()
    scene.put(1000)
    scene.loop.round()
    assert not scene.begun
    scene.loop.round()
    scene.loop.round()
    assert scene.begun == [2000]
    assert not scene.loop.soon
    scene.close()


def test_what_is_little_is_written_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(1)
    assert scene.begun == [1]
    scene.close()


def test_publishers_that_never_stop_do_not_hold_a_commit_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    while not scene.begun:
        scene.put(50)
        scene.loop.round()
        scene.now += 1
        assert scene.queue.gathering <= 50 * 4 * TOGETHER
    scene.close()


def test_a_store_that_goes_meanwhile_is_not_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.put(500)
    scene.committer.abandon("another broker has it")
    scene.loop.round()
    scene.loop.round()
    assert not scene.begun
    scene.store.close()


class Broken(LogStore):
    """A log whose disk can fail."""

    broken = False

    def write(self, batch: Batch) -> None:
        if self.broken:
            raise OSError(28, "no space")
        super().write(batch)


def opened(folder: Path) -> tuple[Broken, Queue]:
    store = Broken(folder, "os")
    store.open(lambda name: Rules(early=True), 1)
    return store, store.queue("inbox", Rules(early=True))


def payloads_of(queue: Queue) -> list[list[bytes] | None]:
    return [block.payloads for block in queue.blocks.values()]


def test_members_are_given_early_messages_before_the_log_has_them(tmp_path: Path) -> None:
    store, queue = opened(tmp_path)
    member = queue.join("bank")
    queue.put([b"x"], Meta("shop", parcel=b"1" * 12), 1, early=True)
    queue.put([b"y"], Meta("shop"), 1)
    queue.give_early(2)
    (taken,) = queue.take(member, 10, 2)
    assert (taken.part.block.payloads, taken.part.block.first) == ([b"x"], 1)
    queue.settle(member, taken.part, 0, 1, Subscriber.DONE, 3)  # before the log knows of it
    batch = store.gather(4)
    assert batch is not None
    store.write(batch)
    store.applied(batch, 5)
    assert payloads_of(queue) == [[b"y"]]
    assert taken.part.block.payloads is None
    assert store.bodies.resident == 1
    store.close()
    store, queue = opened(tmp_path)
    assert [queue.next, *queue.blocks] == [3, 2]
    assert store.parcels == {b"1" * 12}
    assert [move.state for move in store_history(store, queue, 1)][-1] == Subscriber.DONE
    store.close()


def store_history(store: LogStore, queue: Queue, position: int) -> list[Move]:
    steps = store.history(queue, position)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value[1]  # type: ignore[no-any-return]


def test_what_waits_for_early_messages_waits_until_a_commit_succeeds(tmp_path: Path) -> None:
    """They stand elsewhere: a commit that fails is not their end, and they are not put again."""
    store, queue = opened(tmp_path)
    store.eager = False
    heard: list[str | None] = []
    committer = Committer(store, lambda run, *words: run(*words), lambda: 1, lambda error: None)
    committer._work = Now(committer)  # type: ignore[assignment]
    queue.put([b"x"], Meta("shop", parcel=b"1" * 12), 1, early=True)
    queue.give_early(1)
    committer.early.waiting.append(Then(heard.append))
    store.broken = True
    committer.begin()
    assert not heard
    assert store.full is not None
    store.broken, committer._retry_at = False, 0.0
    committer.begin()
    assert heard == [None]
    assert payloads_of(queue) == [[b"x"]]
    store.close()
    store, queue = opened(tmp_path)
    assert list(queue.blocks) == [1]
    store.close()


class Now:
    """A thread that writes at once."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def put(self, batch: Batch | None) -> None:
        if batch is not None:
            self._committer._finish(batch, *self._committer._write(batch))
