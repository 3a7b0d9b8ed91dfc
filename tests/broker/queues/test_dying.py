"""Very many messages that die at one moment: a commit says it of some, with their dead letters, and the next ones of the others."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import DEAD_LETTER, Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.timeline import timeline
from mqmesh.broker.queues.log.dead import position_of
from mqmesh.broker.queues.log.store import MOST_BURIED, LogStore
from support.steps import ended

RULES = {"orders": Rules(deliveries=1, dead_letters="dead"), "dead": Rules()}
MANY = 2 * MOST_BURIED + 500


def opened(folder: Path) -> tuple[LogStore, Queue, Queue]:
    store = LogStore(folder, say=[].append)
    store.open(lambda name: RULES[name], 1)
    return store, store.queue("orders", RULES["orders"]), store.queue("dead", RULES["dead"])


def commit(store: LogStore) -> int:
    """One commit: how many dead letters are in it."""
    batch = store.gather(1)
    assert batch is not None
    store.write(batch)
    store.applied(batch, 1)
    return sum(len(dead) for _, dead in batch.dead)


def dying(store: LogStore, queue: Queue) -> None:
    """All messages of a queue are with a member that is lost, and each was given as often as it may be."""
    queue.put([b"%d" % number for number in range(MANY)], Meta("shop"), 1)
    commit(store)
    worker = queue.join("worker")
    assert sum(one.length for one in queue.take(worker, MANY, 1)) == MANY
    commit(store)
    queue.leave(worker, 1)


def letters(store: LogStore, dead: Queue) -> list[tuple[int, bytes]]:
    """The position where each dead letter was, and its payload, in order."""
    return [
        (position_of(block.meta(at).properties), payload)
        for block in dead.blocks.values()
        for at, payload in enumerate(store.bodies.payloads(block))
    ]


WANTED = [(1 + number, b"%d" % number) for number in range(MANY)]


def test_a_commit_has_some_of_the_dead_letters_and_those_after_it_the_others(tmp_path: Path) -> None:
    store, queue, dead = opened(tmp_path)
    dying(store, queue)
    assert (queue.waiting, queue.held, queue.counts["dead"]) == (0, 0, MANY)
    found = []
    while store.dirty:
        found.append(commit(store))
    assert found == [MOST_BURIED, MOST_BURIED, 500]
    assert letters(store, dead) == WANTED
    queue.check()
    dead.check()


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_a_broker_that_is_killed_between_them_loses_none_and_has_none_twice(tmp_path: Path, commits: int) -> None:
    store, queue, dead = opened(tmp_path)
    dying(store, queue)
    for _ in range(commits):
        commit(store)
    assert len(letters(store, dead)) == min(commits * MOST_BURIED, MANY)
    store, queue, dead = opened(tmp_path)  # as the disk is
    while store.dirty:
        commit(store)
    assert letters(store, dead) == WANTED
    assert not queue.blocks
    store, queue, dead = opened(tmp_path)
    assert letters(store, dead) == WANTED
    assert not queue.blocks


def test_queues_share_what_one_commit_has(tmp_path: Path) -> None:
    store, queue, dead = opened(tmp_path)
    other = store.queue("others", Rules(deliveries=1, dead_letters="dead"))
    for one in (queue, other):
        one.put([b"x"] * 1000, Meta("shop"), 1)
    commit(store)
    for one in (queue, other):
        one.take(one.join("worker"), 1000, 1)
        one.leave(one.members["worker"], 1)
    assert [commit(store), commit(store)] == [MOST_BURIED, 2000 - MOST_BURIED]
    assert (dead.waiting, store.dirty) == (2000, False)


def test_what_a_failed_commit_had_is_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, queue, dead = opened(tmp_path)
    dying(store, queue)
    commit(store)
    batch = store.gather(1)
    assert batch is not None
    store.failed(batch, OSError(errno.ENOSPC, "full"))
    while store.dirty:
        assert commit(store) <= MOST_BURIED
    assert letters(store, dead) == WANTED
    assert letters(*opened(tmp_path)[::2]) == WANTED


def test_a_message_is_revealed_again_whose_death_was_not_said_yet(tmp_path: Path) -> None:
    store, queue, _ = opened(tmp_path)
    dying(store, queue)
    commit(store)
    block, moves = ended(store.history(queue, MANY))
    assert block is not None
    assert [one.state for one in moves] == [Subscriber.GET, Subscriber.UNUSABLE], "its history knows it already"
    assert not store.trim(1), "nothing goes whose dead letters are on their way"
    kept = queue.find(MANY)
    assert kept is not None
    queue.reveal_again(kept, MANY - 1, "worker", 1)
    while store.dirty:
        commit(store)
    block, moves = ended(store.history(queue, MANY))
    assert block is not None
    assert timeline(block, moves, queue.names, ["worker"]).state("worker") is Subscriber.CLEAN
    again = opened(tmp_path)[1]
    assert bool(again.blocks), "and it is there after a start"


def test_what_a_full_queue_has_too_much_of_becomes_dead_letters_little_by_little(tmp_path: Path) -> None:
    store, queue, dead = opened(tmp_path)
    queue.rules = Rules(messages=100, when_full=DEAD_LETTER, dead_letters="dead")
    queue.put([b"%d" % number for number in range(MANY)], Meta("shop"), 1)
    commit(store)
    found = []
    while store.dirty:
        found.append(commit(store))
    assert found == [MOST_BURIED, MOST_BURIED, 400]
    assert letters(store, dead) == WANTED[:-100]
    assert queue.waiting == 100


def test_who_is_lost_with_very_many_messages_gives_them_back_in_few_moves() -> None:
    queue = Queue("orders", Rules(deliveries=3, backoff=1.0))
    queue.put([b"x"] * 8000, Meta("shop"), 1)
    for block in queue.seal(1):
        queue.committed(block, 1)
    now = 1
    for tries in (1, 2, 3):
        worker = queue.join("worker")
        while queue.take(worker, 8000, now):
            pass
        queue.moves.clear()
        queue.leave(worker, now)
        if tries < 3:
            assert [(move.length, move.state) for move in queue.moves] == [(8000, Subscriber.CLEAN)]
            assert len(queue._timers) == 1
        queue.check()
        now += 10_000
        queue.handle_timer(now)
    assert [one.move.length for one in queue.dying] == [1], "a message at its last try is alone"
