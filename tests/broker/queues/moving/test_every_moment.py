"""A broker that ends at any moment of a move: the queue is in exactly one store, with what was confirmed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mqmesh.broker.queues.committer import Gate
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.core.states import Subscriber
from mqmesh.broker.queues.log.store import LogStore
from mqmesh.broker.queues.moving.moving import Moving, State
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.stores import Stores
from support.examples import examples

from ..test_carry import waiting

SMALL = 400  # bytes of a segment
KINDS = "log", "sqlite"


class Inline:
    """A committer that writes at once, when it is asked to. done: called after each commit."""

    def __init__(self, store: LogStore, done: Callable[[], None]) -> None:
        self.store, self.gate, self.error, self.busy, self.away = store, Gate(), None, False, False
        self._done = done

    def after(self, one: Any) -> None:
        """See `Committer`."""
        self.gate.waiting.append(one)
        self.store.end_segment() if not self.store.dirty else None

    def begin(self) -> None:
        """See `Committer`."""
        batch = self.store.gather(1)
        if batch is not None:
            gate, self.gate = self.gate, Gate()
            self.store.write(batch)
            self.store.applied(batch, 1)
            gate.let_go()
            self._done()


class Now:
    """An executor that does at once what it is given."""

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """See `Executor`."""
        future: Future[Any] = Future()
        future.set_result(work())
        return future

    def shutdown(self, **_: object) -> None:
        """See `Executor`."""


class Confirmed:
    """Waits for a commit: then positions belong to a set."""

    def __init__(self, positions: Callable[[], set[int]], to: set[int]) -> None:
        self._positions, self._to = positions, to

    def refused(self, text: str) -> None:
        """No commit fails here."""
        raise AssertionError(text)

    def go(self) -> None:
        """It is on the disk."""
        self._to |= self._positions()


class EveryMoment(RuleBasedStateMachine):
    """A queue that is worked, two stores, and a move that goes on a step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.steps: list[Callable[[], None]] = []
        self.moving: Moving | None = None
        self.committers: dict[str, Any] = {}
        for kind in KINDS:
            store = LogStore(self.folder / "live", "os", lambda text: None, SMALL, kind)
            store.open(lambda name: Rules(), 1)
            self.committers[kind] = Inline(store, self.go_on)
        self.kind = "log"
        self.queue = self.committers["log"].store.queue("orders", Rules())
        self.other = self.committers["sqlite"].store.queue("other", Rules(), 2)
        self.committer: Any = self.committers["log"]
        self.member = self.queue.join("a")
        self.put: set[int] = set()
        self.said: set[int] = set()  # to be done
        self.done: set[int] = set()

    def go_on(self) -> None:
        if self.moving is not None:
            self.steps.append(self.moving.step)

    def _set(self, queue: Any, committer: Any) -> None:
        self.committer = committer

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, 30, 200]))
    def puts(self, count: int, size: int) -> None:
        block, at = self.queue.put([b"x" * size] * count, Meta("shop"), 1)
        self.committer.gate.waiting.append(Confirmed(lambda: set(range(block.first + at, block.first + at + count)), self.put))

    @rule(count=st.integers(1, 8), good=st.booleans())
    def works(self, count: int, good: bool) -> None:
        for one in self.queue.take(self.member, count, 1):
            if not good:
                self.queue.give_back(self.member, one.part, one.start, one.length, 1)
                continue
            self.queue.settle(self.member, one.part, one.start, one.length, Subscriber.DONE, 1)
            first = one.part.block.first + one.start
            positions = set(range(first, first + one.length))
            self.said |= positions
            self.committer.gate.waiting.append(Confirmed(lambda positions=positions: positions, self.done))  # type: ignore[misc]

    @rule(kind=st.sampled_from(KINDS))
    def commits(self, kind: str) -> None:
        self.other.put([b"y"], Meta("shop"), 1)
        self.committers[kind].begin()

    @rule(kind=st.sampled_from(KINDS))
    def trims(self, kind: str) -> None:
        self.committers[kind].store.trim(1)

    @precondition(lambda self: self.moving is None)
    @rule()
    def begins(self) -> None:
        for one in self.committers.values():
            one.store.carry = None
        source, target = self.committers[self.kind], self.committers[KINDS[1 - KINDS.index(self.kind)]]
        epochs = lambda: 1 + max(one.store.claims.highest for one in self.committers.values())  # noqa: E731
        self.moving = Moving([self.queue], source, target, "there", self.go_on, lambda: 1e9, self._set, epochs, lambda: False)
        self.moving._thread = Now()  # type: ignore[assignment]
        self.steps.append(self.moving.step)

    def _call(self, what: Callable[..., None], *rest: Any) -> None:
        self.steps.append(lambda: what(*rest))

    @precondition(lambda self: self.steps)
    @rule()
    def moves(self) -> None:
        self.steps.pop(0)()
        if self.moving is not None and self.moving.state is State.MOVED:
            self.moving, self.kind = None, KINDS[1 - KINDS.index(self.kind)]
            self.steps = []

    @precondition(lambda self: self.moving is not None and self.moving.state in (State.COPIES, State.HOLDS))
    @rule(now=st.integers(0, 9))
    def gives_up(self, now: int) -> None:
        if self.moving is not None and not now:
            self.moving.give_up("for a test")
            self.moving._again_at = 0.0
            self.steps = [self.moving.step]

    @invariant()
    def a_broker_that_ends_now_loses_nothing(self) -> None:
        again = self.folder / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(self.folder / "live", again)
        stores = Stores(QueueSettings({}, folder=again, durability="os"), lambda text: None)
        stores.open(1)
        having = [store for store in stores.here.values() if "orders" in store.queues]
        left = set(waiting(having[0])) if having else set()
        for store in stores.here.values():
            store.close()
        assert len(having) <= 1
        assert not left & self.done
        assert self.put - self.said <= left
        if not self.queue.unwritten and having:
            assert left == set(waiting_in_memory(self.queue))

    def teardown(self) -> None:
        for one in self.committers.values():
            one.store.close()
        shutil.rmtree(self.folder)


def waiting_in_memory(queue: Any) -> set[int]:
    """The messages that are not at an end."""
    return {
        block.first + at for block in queue.blocks.values() for start, count in queue.open_runs(block) for at in range(start, start + count)
    }


EveryMoment.TestCase.settings = settings(max_examples=examples(12), stateful_step_count=50, deadline=None)
TestEveryMoment = EveryMoment.TestCase
