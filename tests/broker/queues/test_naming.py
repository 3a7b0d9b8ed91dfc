"""A segment of the log names its queues little by little where they are many, and older segments stay until it has named all."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log import naming
from mqmesh.broker.queues.log.store import LogStore
from support.examples import examples

MANY = 12
NAMES = [f"q{number}" for number in range(MANY)]

Known = dict[str, tuple[int, int, list[str]]]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "AT_ONCE", 4)


def opened(folder: Path) -> LogStore:
    store = LogStore(folder, say=lambda text: pytest.fail(text), segment_bytes=4000)
    store.open(lambda name: Rules(), 1)
    for name in NAMES:
        store.queue(name, Rules())
    return store


def commit(store: LogStore) -> int:
    """One commit: the segment that it is in; 0: there was nothing to be written."""
    batch = store.gather(1)
    if batch is None:
        return 0
    store.write(batch)
    store.applied(batch, 1)
    return batch.segment


def known(store: LogStore) -> Known:
    """Of each queue its next position, what waits in it, and its subscribers."""
    return {name: (one.next, one.waiting, sorted(one.subscribers)) for name, one in store.queues.items() if one.next > 1}


def work(store: LogStore, name: str, count: int) -> None:
    """Put messages, and have all but the last one worked."""
    queue = store.queues[name]
    queue.put([b"x" * 100] * count, Meta("shop"), 1)
    commit(store)
    member = queue.join("worker")
    for one in queue.take(member, queue.waiting - 1, 1):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)


def known_after(folder: Path) -> object:
    """What is known after a restart."""
    store = opened(folder)
    found = known(store)
    store.close()
    return found


def begun(folder: Path) -> LogStore:
    """A log that is to begin a segment with its next commit, after all queues were used."""
    store = opened(folder)
    for number, name in enumerate(NAMES):
        store.queues[name].subscribe(f"client-{number}")
        work(store, name, number + 2)
    while store.dirty:
        commit(store)
    store.end_segment()
    return store


def test_a_commit_names_some_of_the_queues_and_those_after_it_the_others(tmp_path: Path) -> None:
    store = begun(tmp_path / "log")
    wanted, before, count = known(store), set(store.segments), 0
    newest = commit(store)
    assert newest > max(before)
    while store.dirty:
        assert store.trim(10**9) == 0  # some queues are known from older segments only
        assert commit(store) == newest
        count += 1
        copy = tmp_path / f"killed-{count}"
        shutil.copytree(tmp_path / "log", copy)
        assert known_after(copy) == wanted
    assert count > 3
    store.close()


def test_older_segments_go_when_all_are_named_also_after_a_restart(tmp_path: Path) -> None:
    store = begun(tmp_path / "log")
    for name in NAMES:
        work(store, name, 2)
        queue = store.queues[name]
        for one in queue.take(queue.join("worker"), 10, 1):
            queue.settle(queue.members["worker"], one.part, one.start, one.length, Subscriber.DONE, 1)
    while store.dirty:
        commit(store)
    store.end_segment()
    wanted = known(store)
    commit(store)
    store.close()
    half = opened(tmp_path / "log")
    assert known(half) == wanted
    segments = len(half.segments)
    assert half.trim(10**9) < segments - 1  # killed before all were named
    half.end_segment()
    while half.dirty:
        commit(half)
    half.close()
    whole = opened(tmp_path / "log")
    whole.trim(10**9)
    assert len(whole.segments) == 1
    assert known(whole) == wanted
    whole.close()
    assert known_after(tmp_path / "log") == wanted


def test_after_a_commit_that_fails_all_are_named_anew(tmp_path: Path) -> None:
    store = begun(tmp_path / "log")
    wanted = known(store)
    first = commit(store)
    batch = store.gather(1)
    assert batch is not None
    store.failed(batch, OSError(errno.ENOSPC, "full"))
    assert commit(store) == first + 1
    while store.dirty:
        assert store.trim(10**9) == 0
        commit(store)
    store.close()
    assert known_after(tmp_path / "log") == wanted


def test_a_queue_that_was_away_while_a_segment_began_is_named_when_it_is_back(tmp_path: Path) -> None:
    store = begun(tmp_path / "log")
    wanted, away = known(store), store.queues["q7"]
    store.leave(away)
    while store.dirty:
        commit(store)
    store.come_back(away)
    assert store.dirty
    before = len(store.segments)
    assert store.trim(10**9) == 0
    commit(store)
    assert not store.dirty
    assert len(store.segments) == before
    store.close()
    assert known_after(tmp_path / "log") == wanted


STEPS = st.lists(st.tuples(st.sampled_from(["put", "work", "subscribe", "leave", "commit", "trim", "end", "open"]), st.sampled_from(NAMES)))


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
def test_nothing_is_lost_whatever_is_done_meanwhile(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("log")
    store = begun(folder)
    for what, name in steps:
        queue = store.queues[name]
        if what == "put":
            queue.put([b"y" * 300], Meta("shop"), 1)
        elif what == "work":
            work(store, name, 2)
        elif what == "subscribe":
            queue.subscribe("late")
        elif what == "leave":
            list(queue.unsubscribe("late", 1))
        elif what == "commit":
            commit(store)
        elif what == "trim":
            store.trim(10**9)
            if store.carry is not None:
                while not store.carry.looked:
                    store.carry.look()
        elif what == "end":
            store.end_segment()
        else:
            while any(one.unwritten for one in store.queues.values()):
                commit(store)
            wanted = known(store)
            store.close()
            store = opened(folder)
            assert known(store) == wanted
    store.close()
