"""The log keeps no more than it needs: what waits in an old segment is written again, and the segment goes (docs/queues.md, "The log")."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from mqmesh.broker.queues.committer import Committer
from mqmesh.broker.queues.core.blocks import OPEN_BYTES, Block, Key, Meta
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.standing import standing
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.core.stock import Move
from mqmesh.broker.queues.log import carry as log_carry
from mqmesh.broker.queues.log import store as log_store
from mqmesh.broker.queues.log.locations import LOG
from mqmesh.broker.queues.log.store import Batch, LogStore
from support.examples import examples
from support.steps import ended

from .test_queue import MEMBERS, Against

FAR = 10**9  # milliseconds
SMALL = 200  # bytes: a commit or two


def opened(folder: Path, said: list[str] | None = None, rules: Rules | None = None, durability: str = "os", **more: Any) -> LogStore:
    store = LogStore(folder, durability, say=(said if said is not None else []).append, **more)
    store.open(lambda name: rules or Rules(), 1)
    return store


def commit(store: LogStore, now: int = 1) -> Batch | None:
    batch = store.gather(now)
    if batch is not None:
        store.write(batch)
        store.applied(batch, now)
    return batch


def carry(store: LogStore, now: int = 1) -> int:
    """Let go of what is not needed: in how many commits."""
    commits = 0
    store.trim(now)
    while store.carry is not None:
        while not store.carry.looked:
            store.carry.look()
        commits += commit(store, now) is not None
        if store.trim_soon:
            store.trim(now)
    return commits


def work(store: LogStore, queue: Queue, payload: bytes, now: int = 1) -> None:
    """One message is put and done."""
    queue.put([payload], Meta("shop"), now)
    commit(store, now)
    member = queue.join("a")
    for one in queue.take(member, 100, now):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, now)
    commit(store, now)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.queue"))


def unexplained(said: list[str]) -> list[str]:
    """What a log says at its start that SIGKILL does not explain: a frame cut off at the end, or a file that was just begun."""
    return [text for text in said if "cut off" not in text and "unless the broker was killed while it began it" not in text]


def waiting(store: LogStore, name: str = "orders") -> dict[int, tuple[Any, ...]]:
    """Everything of the messages that are not at an end."""
    queue = store.queues[name]
    found = {}
    for block in queue.blocks.values():
        for start, count in queue.open_runs(block):
            for at in range(start, start + count):
                tries = [part.tries(at) for part in block.parts if part.states[at] in OPEN_BYTES]
                now = standing(queue, block, at)
                found[block.first + at] = now, tries, store.bodies.payloads(block)[at], block.meta(at), block.key, block.at
    return found


class AgainstTheLog(Against):
    """The queue and its reference, through a log of small segments that are carried."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log_store, "SHARE", 0)  # always worth it
        self.patch.setattr(log_carry, "LOOK_BYTES", 100)
        self.folder = Path(tempfile.mkdtemp())
        self.rules_ = Rules(deliveries=3)
        self.store = opened(self.folder, rules=self.rules_, segment_bytes=SMALL)
        self.queue = self.store.queue("orders", self.rules_)
        for name in MEMBERS:
            self.queue.subscribe(name)
            self.queue.join(name)

    @rule()
    def commit(self) -> None:
        self.kept()

    @rule()
    def trim(self) -> None:
        self.store.trim(self.now)

    @rule()
    def look(self) -> None:
        if self.store.carry is not None and not self.store.carry.looked:
            self.store.carry.look()

    @rule()
    def carry(self) -> None:
        self.kept()
        carry(self.store, self.now)

    @rule(number=st.integers(0, 5))
    def reopen(self, number: int) -> None:
        if number:
            return
        for name in MEMBERS:
            self.leave(name)
        self.kept()
        before = waiting(self.store)
        self.store.close()
        self.store = opened(self.folder, rules=self.rules_, segment_bytes=SMALL)
        self.store.queues["orders"].handle_timer(self.now)
        self.store.queues["orders"].moves.clear()
        assert waiting(self.store) == before
        self.store.close()
        self.store = opened(self.folder, rules=self.rules_, segment_bytes=SMALL)
        self.queue = self.store.queue("orders", self.rules_)
        for name in MEMBERS:
            self.queue.join(name)
        self.queue.handle_timer(self.now)
        self.messages = {position: one for position, one in self.messages.items() if position in before}  # the others are gone

    def kept(self) -> list[Block]:
        batch = commit(self.store, self.now)
        self.written += [move for _, moves in batch.moves for move in moves] if batch is not None else []
        return [block for _, block in batch.blocks] if batch is not None else []

    def may_come_again(self, block: Block, at: int) -> bool:
        return block.unusable is not None and any(index == at for _, index in block.unusable)

    def teardown(self) -> None:
        try:
            self.compare()
        finally:
            self.patch.undo()
            self.store.close()
            shutil.rmtree(self.folder)

    def compare(self) -> None:
        self.kept()
        carry(self.store, self.now)
        for position in waiting(self.store):
            block, moves = ended(self.store.history(self.queue, position))
            said = [one for one in self.written if isinstance(one, Move) and one.first <= position < one.first + one.length]
            assert block is not None
            assert [move[2:] for move in moves] == [move[2:] for move in said]
        for name in MEMBERS:
            self.leave(name)
        self.kept()
        before = waiting(self.store)
        again = opened(self.folder, rules=self.rules_)
        again.queues["orders"].check()
        assert waiting(again) == before
        assert again.queues["orders"].next == self.queue.next
        again.close()


AgainstTheLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAgainstTheReference = AgainstTheLog.TestCase


def everything(folder: Path, kind: str = LOG) -> LogStore:
    """A log whose oldest segments have little that is needed: of two queues, in all states, with other plans and publishers."""
    store = opened(folder, segment_bytes=4000, kind=kind)
    queue, other = store.queue("orders", Rules(deliveries=5)), store.queue("other", Rules())
    for name in ("a", "b", "c"):
        queue.subscribe(name)
        queue.join(name)
    other.put([b"far"], Meta("shop"), 2, delay=FAR)
    queue.put([b"hidden-%d" % number for number in range(3)], Meta("x", b"\x26\0\1k\0\1v", "h-1"), 2, revealed=False)
    queue.put([b"for-%d" % number for number in range(3)], Meta("y", group="g"), 3, plan=plan_of("a > b | c"))
    queue.put([b"1"], Meta("one"), 3)
    queue.put([b"22", b"333"], Meta("two"), 3)
    queue.put([b"4444"], Meta("three"), 3)
    commit(store, 4)
    a, b = queue.members["a"], queue.members["b"]
    for one in queue.take(a, 4, 5):  # for-0 to for-2 are done by a, and one is returned
        queue.settle(a, one.part, one.start, one.length, Subscriber.DONE, 6)
    for one in queue.take(b, 5, 7):
        queue.give_back(b, one.part, one.start, one.length, 8)
    commit(store, 8)
    hidden = next(block for block in queue.blocks.values() if block.hidden)
    queue.reveal(hidden, 1, 1, 9)
    queue.withdraw(hidden, 2, 1, 9)
    commit(store, 9)
    (one,) = queue.take(a, 1, 10)
    queue.settle(a, one.part, one.start, 1, Subscriber.UNUSABLE, 10)
    for number in range(12):
        queue.put([b"%0500d" % number], Meta("shop"), 11, priority=9)
        commit(store, 11)
        for one in queue.take(a, 1, 12):
            queue.settle(a, one.part, one.start, 1, Subscriber.DONE, 12)
    commit(store, 12)
    return store


@pytest.mark.slow
def test_carried_messages_are_as_they_were_at_every_cut(tmp_path: Path) -> None:
    store = everything(tmp_path / "log")
    truth, begin = waiting(store), {position: ended(store.history(store.queues["orders"], position))[1] for position in waiting(store)}
    assert len(truth) > 5
    store.trim(20)
    assert store.carry is not None
    cuts = 0
    while store.carry is not None:
        while not store.carry.looked:
            store.carry.look()
        batch = store.gather(20)
        assert batch is not None
        before = batch.offset if not batch.new else 0
        store.write(batch)
        path = max((tmp_path / "log").glob("*.queue"))
        whole = path.read_bytes()
        for size in range(before, len(whole) + 1):
            folder = tmp_path / "cut"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(tmp_path / "log", folder)
            (folder / path.name).write_bytes(whole[:size])
            again = opened(folder)
            assert waiting(again) == truth, size
            again.queues["orders"].check()
            again.close()
            cuts += 1
        store.applied(batch, 20)
        if store.trim_soon:
            store.trim(20)
    assert cuts > 500
    assert len(list((tmp_path / "log").glob("*.queue"))) == 1
    assert waiting(store) == truth
    again = opened(tmp_path / "log")  # the old segments are gone
    assert waiting(again) == truth
    for position, moves in begin.items():
        assert ended(again.history(again.queues["orders"], position))[1] == moves
    assert list(again.queues["orders"].subscribers) == ["a", "b", "c"]


def test_what_happens_while_it_is_carried_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path, segment_bytes=2000)
    queue = store.queue("orders", Rules())
    queue.put([b"old-%d" % number for number in range(4)], Meta("shop"), 1, priority=0)
    commit(store)
    member = queue.join("a")
    for number in range(5):
        queue.put([b"%0900d" % number], Meta("shop"), 1)
        commit(store)
        (one,) = queue.take(member, 1, 1)
        queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 1)
    commit(store)
    store.trim(1)
    assert store.carry is not None
    monkeypatch.setattr(log_carry, "LOOK_BYTES", 1)
    looks = 0
    while not store.carry.looked:
        store.carry.look()
        looks += 1
    assert looks == 5  # a frame at a time
    (first,) = queue.take(member, 2, 2)  # after the look, in a commit before
    batch = store.gather(2)
    assert batch is not None
    assert len(batch.pieces) == 1
    store.write(batch)
    queue.settle(member, first.part, first.start, 1, Subscriber.DONE, 3)  # while it is written
    store.applied(batch, 3)
    assert store.bodies.payloads(first.part.block) == [b"old-0", b"old-1", b"old-2", b"old-3"]
    queue.give_back(member, first.part, first.start + 1, 1, 4)
    commit(store, 4)
    carry(store)
    assert len(list(tmp_path.glob("*.queue"))) == 1
    again = opened(tmp_path)
    assert [one[2] for one in waiting(again).values()] == [b"old-1", b"old-2", b"old-3"]
    assert [one[1] for one in waiting(again).values()] == [[1], [0], [0]]


def test_the_log_stays_small_whatever_waits(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=50_000)
    queue = store.queue("orders", Rules())
    queue.put([b"old"], Meta("shop"), 1, delay=FAR)
    largest = 0
    for number in range(1000):
        work(store, queue, b"%0500d" % number)
        if number % 50 == 0:
            carry(store)
            largest = max(largest, size_of(tmp_path))
    assert largest < 4 * 50_000  # 600,000 bytes were written
    assert [one[2] for one in waiting(store).values()] == [b"old"]


def test_a_long_backlog_does_not_hold_what_is_done(tmp_path: Path) -> None:
    """All of the oldest segments waits: they are carried as soon as most of the log is not needed."""
    store = opened(tmp_path, segment_bytes=20_000)
    queue = store.queue("orders", Rules())
    for number in range(100):
        queue.put([b"%0500d" % number], Meta("shop"), 1, delay=FAR)
        commit(store)
    largest = 0
    for number in range(1000):
        work(store, queue, b"%0500d" % number)
        carry(store)
        largest = max(largest, size_of(tmp_path))
    assert largest < 6 * 60_000
    assert len(waiting(store)) == 100


@pytest.mark.parametrize("metas", [[Meta("shop", handle="h-0")], [Meta("shop", handle="h-0"), Meta("shop"), Meta("shop", handle="h-2")]])
def test_nothing_is_said_of_messages_that_are_not_carried(tmp_path: Path, metas: list[Meta]) -> None:
    """A repeat of a handle was answered with the position of another message of its block."""
    store = opened(tmp_path, segment_bytes=2000)
    queue = store.queue("orders", Rules())
    block, _ = queue.put_each(Key(), [b"0"], metas[:1], 1)
    queue.put_each(Key(), [b"1", b"2"], metas[1:] or [Meta("shop")], 1)
    assert block.count == 3
    commit(store)
    member = queue.join("a")
    (one,) = queue.take(member, 3, 1)
    queue.settle(member, one.part, 1, 2, Subscriber.DONE, 1)
    for _ in range(5):
        work(store, queue, b"%0900d" % 0)
    carry(store)
    store.close()
    again = opened(tmp_path)
    found = again.queues["orders"].blocks[block.first]
    assert [found.meta(at).handle for at in range(found.count)] == ["h-0", "", ""]
    assert list(waiting(again)) == [block.first]
    assert waiting(again)[block.first][2:4] == (b"0", metas[0])


def test_a_full_disk_while_carrying_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = everything(tmp_path)
    truth = waiting(store)
    store.trim(20)
    assert store.carry is not None
    while not store.carry.looked:
        store.carry.look()
    pwrite = os.pwrite
    written = 0

    def full(fd: int, data: bytes, at: int) -> int:
        nonlocal written
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = pwrite(fd, bytes(data[:100]), at)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        batch = store.gather(20)
        assert batch is not None
        with pytest.raises(OSError, match="No space"):
            store.write(batch)
        store.failed(batch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert store.carry is None
    assert waiting(store) == truth
    again = opened(tmp_path)
    assert waiting(again) == truth
    again.close()
    assert carry(store, 20)  # a little is carried into what is set aside, and frees more
    assert store.full is None
    assert len(list(tmp_path.glob("*.queue"))) <= 2
    assert waiting(store) == truth


def test_a_message_that_cannot_be_read_keeps_its_segment(tmp_path: Path) -> None:
    said: list[str] = []
    store = opened(tmp_path, said, segment_bytes=2000)
    queue = store.queue("orders", Rules())
    queue.put([b"message"], Meta("shop"), 1, delay=FAR)
    commit(store)
    path = min(tmp_path.glob("*.queue"))
    path.write_bytes(path.read_bytes().replace(b"message", b"massage"))
    for number in range(5):
        work(store, queue, b"%0900d" % number)
    before = size_of(tmp_path)
    for _ in range(3):
        carry(store)
    assert [text for text in said if "cannot be read" in text] == [f"{path}: the messages of 'orders' at 1 cannot be read"]
    assert path.exists()
    assert size_of(tmp_path) < before + 1000


def test_names_that_nobody_needs_go(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=3000)
    queue = store.queue("orders", Rules())
    queue.put([b"old"], Meta("shop"), 1)
    commit(store)
    (one,) = queue.take(queue.join("first"), 1, 1)
    queue.leave(queue.members["first"], 2)  # it has returned a message that still waits
    queue.subscribe("subscriber")
    for number in range(300):
        member = queue.join(f"member-{number}")
        queue.put([b"%0100d" % number], Meta("shop"), 1, priority=9)
        commit(store)
        (one,) = queue.take(member, 1, 1)
        queue.settle(member, one.part, one.start, 1, Subscriber.DONE, 1)
        queue.leave(member, 1)
        commit(store)
        carry(store)
    assert len(queue.names) < 40
    assert {"first", "subscriber"} <= set(queue.members)
    again = opened(tmp_path)
    found = again.queues["orders"]
    assert len(found.names) < 40
    assert found.know is not None
    assert [move.state for move in ended(again.history(found, 1))[1]] == [Subscriber.GET, Subscriber.CLEAN]
    assert {found.names[move.member] for move in ended(again.history(found, 1))[1]} == {"first"}
    highest = max(found.names)
    assert found.join("another").number > highest


def test_a_queue_at_rest_keeps_its_positions_and_subscribers(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=2000)
    resting, busy = store.queue("resting", Rules()), store.queue("busy", Rules())
    resting.subscribe("s")
    work(store, resting, b"1")
    for number in range(10):
        work(store, busy, b"%0500d" % number)
    carry(store)
    assert len(list(tmp_path.glob("*.queue"))) == 1
    again = opened(tmp_path)
    assert not again.trim(1)  # nothing is written yet that says it again
    again.close()
    again = opened(tmp_path)
    assert again.queues["resting"].next == 2
    assert list(again.queues["resting"].subscribers) == ["s"]


def test_a_dead_letter_outlives_a_commit_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(deliveries=1, dead_letters="dead")
    store = opened(tmp_path, rules=rules)
    queue, dead = store.queue("orders", rules), store.queue("dead", Rules())
    queue.put([b"bad"], Meta("shop"), 1)
    commit(store)
    member = queue.join("a")
    (one,) = queue.take(member, 1, 1)
    queue.give_back(member, one.part, 0, 1, 1)
    assert not store.trim(1)
    batch = store.gather(1)
    assert batch is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            store.write(batch)
    store.failed(batch, OSError(errno.ENOSPC, "full"))
    assert not dead.blocks
    commit(store)
    assert [one[2] for one in waiting(store, "dead").values()] == [b"bad"]


async def test_the_committer_carries_between_batches(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_bytes=2000)
    queue = store.queue("orders", Rules())
    queue.put([b"old"], Meta("shop"), 1, delay=FAR)
    for number in range(10):
        work(store, queue, b"%0500d" % number)
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def committed(error: OSError | None) -> None:
        assert error is None
        if store.trim_soon:
            store.trim(1)
        committer.begin()
        if store.carry is None and not committer.busy:
            done.set()

    committer = Committer(store, loop.call_soon_threadsafe, lambda: 1, committed)
    store.trim(1)
    committer.begin()
    await done.wait()
    committer.close()
    assert size_of(tmp_path) < 3000
    assert [one[2] for one in waiting(store).values()] == [b"old"]


WORKER = """
import sys, os
from pathlib import Path
sys.path.insert(0, {root!r})
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.store import LogStore
store = LogStore(Path({folder!r}), segment_bytes=10_000, kind={kind!r})
store.open(lambda name: Rules(), 1)
queue = store.queue("orders", Rules())
member = queue.join("a")

def commit():
    batch = store.gather(1)
    store.write(batch)
    store.applied(batch, 1)

while True:
    done = []
    for one in queue.take(member, 6, 1):
        queue.settle(member, one.part, one.start, one.length, Subscriber.DONE, 1)
        done += range(one.part.block.first + one.start, one.part.block.first + one.start + one.length)
    number = queue.next
    if number % 1000 < 7:
        queue.put([b"%d" % number * 20], Meta("shop"), 1, delay=10**9)
        number += 1
    commit() if store.dirty else None
    queue.put([b"%d" % (number + at) * 20 for at in range(6)], Meta("shop"), 1)
    commit()
    os.write(1, b"%d %s\\n" % (queue.next - 1, b",".join(b"%d" % one for one in done)))
    store.trim(1)
    while store.carry is not None:
        while not store.carry.looked:
            store.carry.look()
        commit()
        if store.trim_soon:
            store.trim(1)
"""


@pytest.mark.process
@pytest.mark.parametrize("lines", [50, 300, 700])
def test_kill_9_while_it_is_carried_loses_nothing(tmp_path: Path, lines: int) -> None:
    killed(tmp_path, lines)
    assert size_of(tmp_path) < 100_000


def killed(tmp_path: Path, lines: int, kind: str = LOG) -> None:
    """Three lives under load, killed after so many commits; what is left is what has to be."""
    code = WORKER.format(root=str(Path(__file__).parents[3]), folder=str(tmp_path), kind=kind)
    read: list[bytes] = []
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            read += [worker.stdout.readline() for _ in range(lines)]
            worker.send_signal(signal.SIGKILL)
            read += [line for line in worker.stdout.readlines() if line.endswith(b"\n")]
    said: list[str] = []
    store = opened(tmp_path, said, kind=kind)
    left = waiting(store)
    put, done = 0, set()
    for line in read:
        last, ended = line.split(b" ")
        put = max(put, int(last))
        done |= {int(one) for one in ended.split(b",") if one.strip()}
    assert not unexplained(said)
    assert not set(left) & done
    for position, one in left.items():
        assert one[2] == b"%d" % position * 20
    late = [position for position, one in left.items() if one[4].due]
    assert len(late) >= 3 * lines * 6 // 1000
    missing = set(range(1, put + 1)) - done - set(left)
    assert len(missing) <= 3 * 12  # of each life: what was done last, and one commit that nobody was told of
    store.close()
