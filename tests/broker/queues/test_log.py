"""The log of segments: what was confirmed is there after any cut, flip, kill or full disk (docs/queues.md, "After a crash")."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.standing import standing
from mqmesh.broker.queues.core.states import HELD, Publisher, Step, Subscriber
from mqmesh.broker.queues.log import bodies
from mqmesh.broker.queues.log.bodies import SERVED
from mqmesh.broker.queues.log.store import LogStore
from support.steps import ended

RULES = {"orders": Rules(deliveries=3, dead_letters="dead"), "dead": Rules()}


def opened(folder: Path, said: list[str] | None = None, **more: Any) -> LogStore:
    store = LogStore(folder, say=(said if said is not None else []).append, **more)
    store.open(lambda name: RULES.get(name, Rules()), 1)
    return store


def commit(store: LogStore, now: int = 1) -> bool:
    batch = store.gather(now)
    if batch is None:
        return False
    store.write(batch)
    store.applied(batch, now)
    return True


def snapshot(store: LogStore) -> dict[str, dict[int, Any]]:
    """What is not at an end, with payloads; what members hold counts as clean, as it is after a start."""
    found: dict[str, dict[int, Any]] = {}
    for name, queue in store.queues.items():
        here = found[name] = {}
        for block in queue.blocks.values():
            for at in range(block.count):
                now = standing(queue, block, at)
                states = {who: Subscriber.CLEAN if state in HELD else state for who, state in now.subscribers.items()}
                held = any(state in HELD for state in now.subscribers.values())
                ended = sorted(one.name for one in states.values() if one is not Subscriber.CLEAN)
                here[block.first + at] = (
                    now.publisher,
                    None if held else ended,
                    store.bodies.payloads(block)[at],
                    block.meta(at),
                    block.key.priority,
                )
    return found


def fill(store: LogStore) -> list[tuple[int, Any]]:
    """A small log of everything: (size of the file, what is true then) after each commit."""
    queue = store.queue("orders", RULES["orders"])
    truth = []

    def done() -> None:
        commit(store)
        size = sum(one.size for one in store.segments.values())
        truth.append((size, snapshot(store)))

    for name in ("a", "b", "c"):
        queue.subscribe(name)
        queue.join(name)
    queue.put([b"one", b"two", b"three"], Meta("shop"), 1)
    queue.put([b"x"], Meta("shop", b"\x26\0\1k\0\1v", "h-1", "g", b"\0parcel"), 1)
    done()
    queue.put([b"", b"22"], Meta("other"), 1, plan=plan_of("all"), priority=9)
    queue.put([b"later"], Meta("shop"), 1, revealed=False)
    done()
    a, b = queue.members["a"], queue.members["b"]
    (first,) = queue.take(a, 2, 1)
    queue.advance(a, first.part, first.start, 1, Step.FETCH, 1)
    done()
    queue.settle(a, first.part, first.start, first.length, Subscriber.DONE, 1)
    (second,) = queue.take(b, 1, 1)
    done()
    queue.settle(b, second.part, second.start, 1, Subscriber.UNUSABLE, 1)
    hidden = next(block for block in queue.blocks.values() if block.hidden)
    queue.reveal(hidden, 0, 1, 1)
    done()
    (third,) = queue.take(a, 1, 1)
    queue.give_back(a, third.part, third.start, 1, 1)
    queue.withdraw(hidden, 0, 1, 1)
    done()
    for _ in range(2):
        (third,) = queue.take(a, 1, 1)
        queue.give_back(a, third.part, third.start, 1, 1)
    done()
    return truth


def comparable(found: dict[str, dict[int, Any]], held: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    """Without what the others hold: a start makes that clean."""
    return {name: {at: one for at, one in here.items() if held[name][at][1] is not None} for name, here in found.items() if here}


def test_everything_is_there_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    truth = fill(store)[-1][1]
    store.close()
    said: list[str] = []
    again = opened(tmp_path, said)
    assert comparable(snapshot(again), truth) == comparable(truth, truth)
    assert not said
    queue = again.queues["orders"]
    assert list(queue.subscribers) == ["a", "b", "c"]
    (dead,) = snapshot(again)["dead"].values()
    assert dead[2] == b"three" or dead[3].publisher == "shop"
    assert b"mqmesh-dead-reason" in dead[3].properties
    assert b"given to members 3 times" in dead[3].properties


@pytest.mark.parametrize("reserved", [0, 5000], ids=["cut", "zeros"])
def test_cut_at_every_byte_nothing_confirmed_is_lost(tmp_path: Path, reserved: int) -> None:
    """reserved: bytes behind the cut that read as zeros."""
    store = opened(tmp_path / "whole")
    truth = fill(store)
    store.close()
    (path,) = (tmp_path / "whole").glob("*.queue")
    data = path.read_bytes()
    assert truth[-1][0] == len(data)
    for size in range(len(data)):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / path.name).write_bytes(data[:size] + bytes(reserved))
        said: list[str] = []
        again = opened(folder, said, durability="os")
        rest = data[size : size + reserved]
        whole = size + len(rest) - len(rest.lstrip(b"\0"))  # a frame whose last bytes are zeros is there
        before = [one for one in truth if one[0] <= whole]
        expected = before[-1][1] if before else {}
        assert comparable(snapshot(again), expected) == comparable(expected, expected), size
        assert bool(said) == (whole not in [end for end, _ in truth]), (size, said)
        if size % 50:
            again.close()
        else:
            queue = again.queue("orders", RULES["orders"])
            before_next = queue.next
            queue.put([b"new"], Meta("shop"), 1)
            assert commit(again)
            again.close()
            last = opened(folder)
            assert last.queues["orders"].next == before_next + 1
            last.close()


def test_a_changed_byte_is_named_and_costs_its_frame_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    for number in range(5):
        queue.put([b"message %d" % number], Meta("shop"), 1)
        commit(store)
    store.close()
    store = opened(tmp_path)  # so that the first segment is not the last
    store.queue("orders", RULES["orders"]).put([b"more"], Meta("shop"), 1)
    commit(store)
    store.close()
    path = min(tmp_path.glob("*.queue"))
    data = bytearray(path.read_bytes())
    at = data.index(b"MQF1", data.index(b"message 1"))
    data[at + 40] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    again = opened(tmp_path, said)
    assert len(said) == 1
    assert "cannot be read" in said[0]
    assert str(path) in said[0]
    assert sorted(snapshot(again)["orders"]) == [1, 2, 4, 5, 6]


def test_a_changed_body_is_told_when_it_is_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("orders", Rules())
    queue.put([b"message"], Meta("shop"), 1)
    commit(store)
    store.close()
    other = opened(tmp_path)
    other.queue("orders", Rules()).put([b"more"], Meta("shop"), 1)
    commit(other)
    other.close()
    path = min(tmp_path.glob("*.queue"))
    path.write_bytes(path.read_bytes().replace(b"message", b"massage"))
    again = opened(tmp_path)
    with pytest.raises(ValueError, match="are not what was written"):
        again.bodies.payloads(again.queues["orders"].blocks[1])


def test_disk_full_put_is_refused_and_done_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    member = queue.join("a")
    queue.put([b"1", b"2"], Meta("shop"), 1)
    commit(store)
    assert (tmp_path / "reserve").stat().st_size > 1_000_000

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        queue.put([b"3"], Meta("shop"), 1)
        (one,) = queue.take(member, 1, 1)
        batch = store.gather(1)
        assert batch is not None
        with pytest.raises(OSError, match="No space"):
            store.write(batch)
        store.failed(batch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        assert store.full == "the disk of the queues takes nothing: No space left on device"
        assert not (tmp_path / "reserve").exists()  # room for states
        queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 1)
        assert queue.take(member, 1, 1)  # gets go on
    assert commit(store)  # the disk has room again
    assert store.full is None
    queue.put([b"4"], Meta("shop"), 1)
    assert commit(store)
    store.close()
    again = opened(tmp_path)
    assert [one[2] for one in snapshot(again)["orders"].values() if not one[1]] == [b"2", b"4"]


def test_space_is_reserved_ahead_and_given_back(tmp_path: Path) -> None:
    """What is reserved does not count as the log's, is cut off by the next segment and at the end, and is found after a crash."""
    store = opened(tmp_path / "log", segment_bytes=3000)
    queue = store.queue("orders", Rules())
    for number in range(20):
        queue.put([b"%0200d" % number + bytes(20)], Meta("shop"), 1)  # they end in zeros too
        commit(store)
    *others, last = sorted((tmp_path / "log").glob("*.queue"))
    sizes = [one.size for _, one in sorted(store.segments.items())]
    assert others
    assert [path.stat().st_size for path in others] == sizes[:-1]
    assert last.stat().st_size > 1_000_000 > sizes[-1] == store.where.size(max(store.segments))
    assert not store.where.read(max(store.segments), sizes[-1], 100)
    shutil.copytree(tmp_path / "log", tmp_path / "crash")
    store.close()
    assert last.stat().st_size == sizes[-1]
    for folder in ("log", "crash"):
        said: list[str] = []
        again = opened(tmp_path / folder, said)
        assert not said
        assert len(snapshot(again)["orders"]) == 20
        assert [one.size for _, one in sorted(again.segments.items())] == sizes
        again.close()


def test_a_segment_that_was_only_reserved_is_none(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.queue("orders", Rules()).put([b"one"], Meta("shop"), 1)
    commit(store)
    store.close()
    (tmp_path / f"{2:012d}.queue").write_bytes(bytes(70_000))
    said: list[str] = []
    again = opened(tmp_path, said)
    assert len(snapshot(again)["orders"]) == 1
    (line,) = said
    assert "it is empty: what it held is lost, unless" in line
    again.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="nothing is reserved")
def test_where_nothing_can_be_reserved_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = opened(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    queue = store.queue("orders", Rules())
    for _ in range(3):
        queue.put([b"one"], Meta("shop"), 1)
        assert commit(store)
    (path,) = tmp_path.glob("*.queue")
    assert path.stat().st_size == store.where.size(1)
    store.close()
    assert len(snapshot(opened(tmp_path))["orders"]) == 3


def test_old_segments_go_when_nobody_needs_them(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=2000)
    queue = store.queue("orders", Rules(retention=10.0))
    member = queue.join("a")
    for number in range(20):
        queue.put([b"%0500d" % number], Meta("shop"), 1)
        commit(store)
    assert len(list(tmp_path.glob("*.queue"))) == 5
    assert not store.trim(1_000_000)
    for one in queue.take(member, 100, 1):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
    commit(store)
    assert not queue.blocks
    assert not store.trim(2000)  # from now on they are kept for the retention
    assert not store.trim(11_000)
    block, moves = ended(store.history(queue, 7))
    assert block is not None
    assert store.bodies.payloads(block) == [b"%0500d" % 6]
    assert [Subscriber(move.state) for move in moves] == [Subscriber.GET, Subscriber.DONE]
    assert store.trim(13_000) == 5
    assert len(list(tmp_path.glob("*.queue"))) == 1
    store.close()
    again = opened(tmp_path)
    assert again.queues["orders"].next == 21
    assert not again.queues["orders"].blocks


def test_bodies_leave_memory_when_they_are_served_but_for_those_of_the_last_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that are lost at once give messages of the same blocks back, a few each: a block is not read for each of them."""
    store = opened(tmp_path)
    queue = store.queue("orders", Rules())
    member = queue.join("a")
    for _ in range(SERVED + 3):
        queue.put([b"1", b"2"], Meta("shop"), 1)
        commit(store)
    assert store.bodies.resident == 2 * (SERVED + 3)
    (first,) = queue.take(member, 1, 1)
    store.bodies.served(first.part.block)
    taken = [first, *queue.take(member, 1000, 1)]
    for one in taken:
        store.bodies.served(one.part.block)
    assert store.bodies.resident == 2 * SERVED
    reads: list[int] = []
    monkeypatch.setattr(bodies, "read_body", lambda where, place: reads.append(place.offset) or b"12")
    for _ in range(10):
        queue.leave(queue.join("a"), 1)
        (again, *_) = queue.take(queue.join("a"), 2 * (SERVED + 3), 1)[-1:]
        assert store.bodies.payloads(again.part.block) == [b"1", b"2"]
        store.bodies.served(again.part.block)
    assert not reads
    assert store.bodies.payloads(first.part.block) == [b"1", b"2"]
    assert len(reads) == 1
    store.bodies.served(first.part.block)
    store.bodies.forget_served()
    assert store.bodies.resident == 0


def test_bodies_of_large_blocks_that_are_served_leave_memory_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SERVED_BYTES", 2500)
    store = opened(tmp_path)
    queue = store.queue("orders", Rules())
    for _ in range(4):
        queue.put([bytes(1000)], Meta("shop"), 1)
        commit(store)
    for one in queue.take(queue.join("a"), 10, 1):
        store.bodies.served(one.part.block)
    assert store.bodies.resident == 2000


WORKER = """
import sys, os
from pathlib import Path
sys.path.insert(0, {root!r})
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.store import LogStore
store = LogStore(Path({folder!r}), segment_bytes=100_000)
store.open(lambda name: Rules(), 1)
queue = store.queue("orders", Rules())
member = queue.join("a")
while True:
    number = queue.next
    queue.put([b"%d" % (number + at) * 20 for at in range(7)], Meta("shop"), 1)
    done = []
    for one in queue.take(member, 5, 1):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
        done += range(one.part.block.first + one.start, one.part.block.first + one.start + one.length)
    batch = store.gather(1)
    store.write(batch)
    store.applied(batch, 1)
    os.write(1, b"%d %s\\n" % (queue.next - 1, b",".join(b"%d" % one for one in done)))
"""


@pytest.mark.process
@pytest.mark.parametrize("lines", [3, 40, 200])
def test_kill_9_nothing_confirmed_is_lost_or_offered_again(tmp_path: Path, lines: int) -> None:
    code = WORKER.format(root=str(Path(__file__).parents[3]), folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        read = [worker.stdout.readline() for _ in range(lines)]
        worker.send_signal(signal.SIGKILL)
        read += worker.stdout.readlines()
    said: list[str] = []
    store = opened(tmp_path, said)
    queue: Queue = store.queues["orders"]
    whole = [line for line in read if line.endswith(b"\n")]
    put, done = 0, set()
    for line in whole:
        last, ended = line.split(b" ")
        put = int(last)
        done |= {int(one) for one in ended.split(b",") if one.strip()}
    assert queue.next > put
    left = snapshot(store)["orders"]
    open_ones = {at for at, one in left.items() if one[0] is not Publisher.JOURNALLED and not one[1]}
    assert not open_ones & done
    missing = set(range(1, put + 1)) - done - open_ones
    assert len(missing) <= 5  # the last commit, which nobody was told of
    for at in open_ones:
        assert left[at][2] == b"%d" % at * 20


def test_the_log_knows_which_parcels_it_has(tmp_path: Path) -> None:
    store = LogStore(tmp_path, "os")
    store.open(lambda name: RULES.get(name, Rules()), 1)
    store.queue("orders", RULES["orders"]).put([b"1"], Meta("shop", parcel=b"first"), 1)
    store.queue("orders", RULES["orders"]).put([b"2"], Meta("shop"), 1)
    batch = store.gather(2)
    assert batch is not None
    store.write(batch)
    store.close()
    again = LogStore(tmp_path, "os")
    again.open(lambda name: RULES.get(name, Rules()), 3)
    assert again.parcels == {b"first"}
    again.close()


def test_a_crash_at_the_last_delivery_makes_a_dead_letter(tmp_path: Path) -> None:
    """What a member had comes back at the start, which may be once too often: then it is dead as at any other time."""
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    member = queue.join("a")
    queue.put([b"poison"], Meta("shop"), 1)
    commit(store)
    for _ in range(RULES["orders"].deliveries - 1):
        [taken] = queue.take(member, 1, 1)
        queue.give_back(member, taken.part, 0, 1, 1)
    queue.take(member, 1, 1)
    commit(store)
    store.close()
    store = opened(tmp_path)
    commit(store)
    assert not store.queues["orders"].blocks
    assert [store.bodies.payloads(block) for block in store.queues["dead"].blocks.values()] == [[b"poison"]]
    store.close()


def test_what_is_put_while_a_commit_fails_is_not_put_either(tmp_path: Path) -> None:
    """It would stand before what comes again because it was refused."""
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    queue.put([b"1"], Meta("shop"), 1)
    batch = store.gather(1)
    assert batch is not None
    queue.put([b"2"], Meta("shop"), 1)
    store.failed(batch, OSError(errno.EIO, os.strerror(errno.EIO)))
    assert (queue.gathering, queue.gathering_size, queue.gathering_memory) == (0, 0, 0)
    for payload in (b"1", b"2"):
        queue.put([payload], Meta("shop"), 1)
    commit(store)
    assert [store.bodies.payloads(block) for block in queue.blocks.values()] == [[b"1", b"2"]]
    store.close()


def test_it_says_whose_sessions_end_with_their_connections(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    for name, ends in (("a", True), ("b", False), ("c", True), ("c", False), ("d", False), ("d", True), ("e", True)):
        queue.subscribe(name, ends)
    for _ in queue.unsubscribe("e", 1):
        pass
    commit(store)
    store.close()
    assert opened(tmp_path).queues["orders"].subscribers == {"a": True, "b": False, "c": False, "d": True}


@pytest.mark.parametrize("busy", [False, True])
def test_what_was_put_for_a_subscriber_that_left_expires_whatever_members_get_before_the_commit(tmp_path: Path, busy: bool) -> None:
    """What members get at once has a position before what was put earlier, and waits for its commit."""
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    for name in "ab":
        queue.subscribe(name)
    queue.put([b"1", b"2"], Meta("shop"), 1, plan=plan_of("all"))
    batch = store.gather(1) if busy else None
    queue.put([b"3", b"4"], Meta("shop"), 1, plan=plan_of("all"))
    for _ in queue.unsubscribe("a", 1):
        pass
    queue.put([b"5", b"6", b"7"], Meta("shop"), 1, plan=plan_of("all"), early=True)
    queue.give_early(1)
    if batch is not None:
        store.write(batch)
        store.applied(batch, 1)
    commit(store)
    assert (queue.waiting_for(queue.member("a")), queue.waiting_for(queue.member("b"))) == (0, 7)
    store.close()


def test_what_is_left_of_a_subscriber_expires_after_a_crash_and_is_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = store.queue("orders", RULES["orders"])
    for name in "ab":
        queue.subscribe(name)
    queue.put([b"1", b"2"], Meta("shop"), 1, plan=plan_of("all"))
    commit(store)
    queue.put([b"3"], Meta("shop"), 1, plan=plan_of("all"))
    queue.unsubscribe("a", 1)  # none of its steps is taken before the crash
    commit(store)
    store.close()
    for life in range(2):
        again = opened(tmp_path)
        queue = again.queues["orders"]
        assert list(queue.subscribers) == ["b"]
        assert [(move.first, move.length, move.state) for move in queue.moves] == ([(1, 2, 16), (3, 1, 16)] if not life else [])
        assert queue.waiting_for(queue.member("a")) == 0
        assert queue.waiting_for(queue.member("b")) == 3
        commit(again)
        again.close()
