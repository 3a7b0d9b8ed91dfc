"""Chains of queues (docs/queues.md, "Workflow"): a message that comes of others counts exactly if they are DONE.

A worker that has made a new message of one or several that it has puts it with `mqmesh-parents`. The child is only PUT at first. After its
commit the homes of its parents are asked, which make them DONE; then it is revealed. If it does not count, because the worker had lost the
parents by then, it is deleted.

After a crash the same is asked again for every child that is not revealed, which is the recovery of the source (US 6,970,945):

    1  messages that are not revealed                          `find`
    2  their parents                                           `lineage.parents_in`
    3  one is DONE: all are, and the child is REVEALED;
       none is: they are CLEAN, and the child is DELETED       `_judge`
    4  without parents: REVEALED                               `recover` only: a publisher may want it unrevealed
    5  FETCHED and not DONE: CLEAN                             the start of a broker does that; `recover` for members that are gone

What it does not know: MQTT, how requests travel.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from ....base.queues import PARENTS
from ....base.quoting import quoted
from ....mqtt.errors import UsageError
from ....mqtt.reasons import Reason
from ..core.blocks import spans
from ..core.queue import Queue
from ..refused import Refused
from . import parents as judging
from .lineage import MOST, Parent, parents_in

if TYPE_CHECKING:
    from ..committer import Gate
    from ..core.blocks import Block, Meta
    from ..core.stock import Move

log = logging.getLogger("mqmesh.broker")

DO = "parents"  # the request between brokers
LOOKED = 64  # messages without parents that are looked at in one step
AGAIN = 64  # children that are looked at again in one tick
END = object()
Asked = tuple[tuple[Parent, ...], str]  # parents and who has put the child

HERE = -1  # stands for this broker's own commits among the homes that are waited for


class Here(Protocol):
    """The queues of this broker, and the way to others."""

    def now(self) -> int:
        """Milliseconds since 1970."""

    def queue_here(self, name: str) -> Queue | None:
        """A queue that has its home here."""

    def home_of(self, name: str) -> int | None:
        """The number of the broker that is home of a queue elsewhere."""

    def forget_handle(self, name: str, meta: Meta) -> None:
        """A message does not count: what its publisher called it may be put again."""

    def names_of(self, name: str, client: str) -> list[str]:
        """Under which names a client may be a member of a queue here."""

    def history(self, queue: Queue, position: int) -> Generator[None, None, list[Move]]:
        """All moves of a message that are in the log, in order. In steps."""

    def work(self, steps: Iterator[object]) -> None:
        """Do something step by step, in turns with everybody else."""

    def ask(self, home: int, request: dict[str, Any], answer: Callable[[bytes], None]) -> None:
        """Have another home do something. Raises UsageError."""

    def stir(self, name: str) -> None:
        """A queue may have something for a member."""

    def after_commit(self, queue: Queue, waiting: Any) -> None:
        """Have something go when all that a queue has to write is on the disk."""


@dataclass(slots=True)
class Child:
    """A message that is not revealed before its parents are DONE. counts: one of them is. waiting: homes that have not answered."""

    queue: str
    position: int
    publisher: str
    parents: tuple[Parent, ...]
    counts: bool = False
    waiting: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)


class Workflow:
    """See the module. children: by queue and position."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self.children: dict[tuple[str, int], Child] = {}
        self._asked: dict[Asked, list[tuple[bool, Callable[[bool], None]]]] = {}  # by other homes; with who answers
        self.counts = {"revealed": 0, "deleted": 0}

    # ---- put

    def check(self, publisher: str, parents: tuple[Parent, ...]) -> None:
        """Raise Refused if a publisher does not have the parents, as far as these are here."""
        for name, position in parents:
            queue = self._here.queue_here(name)
            if queue is None and self._here.home_of(name) is None:
                raise Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{PARENTS}: there is no queue {name[:80]!r}")
            if queue is not None and judging.part_held(queue, position, self._here.names_of(name, publisher)) is None:
                text = f"{publisher!r} does not have message {name}:{position}: somebody else works it, or it is worked"
                raise Refused(Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)

    def _settle(self, publisher: str, parents: tuple[Parent, ...]) -> None:
        for name, position in parents:
            names = self._here.names_of(name, publisher)
            judging.settle(self._here.queue_here, ((name, position),), names, self._here.now())
            self._here.stir(name)

    def put(self, queue: Queue, block: Block, index: int, publisher: str, parents: tuple[Parent, ...], gate: Gate) -> None:
        """A child was put that waits for its parents: ask about them after its commit."""
        gate.waiting.append(_Put(self, queue.name, block, index, publisher, parents))

    # ---- judge

    def begin(self, child: Child) -> None:
        """Find out whether a child counts."""
        key = child.queue, child.position
        if key not in self.children:
            self.children[key] = child
            self._start(child)

    def moved(self, names: Collection[str]) -> None:
        """Queues have another home: what the earlier one said of parents there may not be on the disk, so it is asked anew."""
        for child in self.children.values():
            if any(name in names for name, _ in child.parents):
                child.counts, child.waiting, child.denied = False, set(), set()

    def _start(self, child: Child) -> None:
        child.waiting = {HERE}
        self._here.work(self._judge(child))

    def _judge(self, child: Child) -> Iterator[None]:
        try:
            child.counts = child.counts or (yield from self._counts(child.parents, child.publisher))
        finally:
            child.waiting.clear()  # if the log cannot be read, it is tried again
        homes = {self._here.home_of(name) for name, _ in child.parents if self._here.queue_here(name) is None}
        if None in homes and not child.counts:
            return  # nobody knows yet where they are
        child.waiting = {home for home in homes if home is not None}
        for home in sorted(child.waiting):
            self._ask(child, home, child.counts)
        if not homes:
            self._look(child)

    def _counts(self, parents: tuple[Parent, ...], publisher: str) -> Generator[None, None, bool]:
        """Whether a child counts by what its parents here are."""
        for name, position in parents:
            queue = self._here.queue_here(name)
            if queue is not None and (yield from judging.counts(queue, position, self._here.names_of(name, publisher), self._here.history)):
                return True
        return False

    def _ask(self, child: Child, home: int, counts: bool) -> None:
        theirs = [[name, position] for name, position in child.parents if self._here.home_of(name) == home]
        request = {"do": DO, "name": child.queue, "parents": theirs, "publisher": child.publisher, "counts": counts}
        try:
            self._here.ask(home, request, partial(self._answered, child, home, counts))
        except UsageError as error:
            child.waiting.clear()  # it is asked again
            log.warning("event=queue-parents-unasked queue=%s position=%d text=%s", quoted(child.queue), child.position, error)

    def _answered(self, child: Child, home: int, counted: bool, words: bytes) -> None:
        said = json.loads(words)
        if home not in child.waiting:
            return
        if "counts" not in said:
            child.waiting.clear()  # no answer, or an error: it is asked again
            return
        child.waiting.discard(home)
        if said["counts"]:
            child.counts = True
        elif not counted:
            child.denied.add(home)
        self._look(child)

    def _look(self, child: Child) -> None:
        """Whether everything is known."""
        if child.waiting:
            return
        if child.counts and child.denied:  # others are DONE: these are DONE too
            child.waiting, child.denied = child.denied, set()
            for home in sorted(child.waiting):
                self._ask(child, home, True)
            return
        if not child.counts:
            self._end(child)
            return
        child.waiting = {HERE}
        local = tuple(one for one in child.parents if self._here.queue_here(one[0]) is not None)
        self._settle(child.publisher, local)
        self._kept(local, partial(self._kept_here, child))

    def _kept(self, parents: tuple[Parent, ...], then: Callable[[bool], None]) -> None:
        """Go on when what became of parents here is on the disk; then: is told whether it is."""
        queues = [queue for name in sorted({name for name, _ in parents}) if (queue := self._here.queue_here(name)) is not None]
        if not queues:
            then(True)
            return
        waiting = _Kept(len(queues), then)
        for queue in queues:
            self._here.after_commit(queue, waiting)

    def _kept_here(self, child: Child, kept: bool) -> None:
        child.waiting.discard(HERE)
        if kept:  # else it is tried again
            self._end(child)

    def _end(self, child: Child) -> None:
        """It is known what becomes of a child."""
        self.children.pop((child.queue, child.position), None)
        queue = self._here.queue_here(child.queue)
        block = queue.find(child.position) if queue is not None else None
        if queue is None or block is None:
            return
        at = child.position - block.first
        if child.counts:
            if block.hidden is not None and at in block.hidden:
                queue.reveal(block, at, 1, self._here.now())
                self.counts["revealed"] += 1
        elif block.hidden is not None and at in block.hidden:
            queue.delete(block, at, self._here.now())
            self._here.forget_handle(queue.name, block.meta(at))
            self.counts["deleted"] += 1
            log.warning(
                "event=queue-child-deleted queue=%s position=%d text=none of its parents is done", quoted(child.queue), child.position
            )
        self._here.stir(child.queue)

    def asked(self, parents: list[Any], publisher: str, counts: bool, answer: Callable[[bool], None]) -> None:
        """Another home asks about parents here. counts: the child does, whatever these are. answer: gets whether it counts by these, once
        what became of them is on the disk; nothing, if that fails. Who asks again before the answer gets it with the first.
        """
        asked = tuple((str(name), int(position)) for name, position in parents[:MOST]), publisher
        waiting = self._asked.setdefault(asked, [])
        waiting.append((counts, answer))
        if len(waiting) == 1:
            steps = self._judged(asked)
            if next(steps, END) is not END:  # what is in memory is answered at once; the log is read in turns
                self._here.work(steps)

    def _judged(self, asked: Asked) -> Iterator[object]:
        parents, publisher = asked
        by_these = False
        try:
            by_these = any(counts for counts, _ in self._asked[asked]) or (yield from self._counts(parents, publisher))
        finally:
            waiting = self._asked.pop(asked)
        by_these = by_these or any(counts for counts, _ in waiting)
        if by_these:
            self._settle(publisher, parents)

        def kept(there: bool) -> None:
            for _, answer in waiting if there else ():
                answer(by_these)

        self._kept(parents if by_these else (), kept)

    # ---- recovery

    def find(self, queue: Queue) -> Iterator[None]:
        """Steps 1 to 3 for a queue, in steps, as long as it is here: they end when all its children are looked at."""
        for block in list(queue.blocks.values()):
            for _ in self._children(queue, block, [], False):
                yield
                if self._here.queue_here(queue.name) is not queue:
                    return

    def _children(self, queue: Queue, block: Block, plain: list[int], dry_run: bool) -> Generator[None, None, int]:
        """Steps 1 to 3 for a block: how many children are looked at. plain: takes the messages without parents that are not revealed."""
        found = 0
        for number, at in enumerate(sorted(block.hidden or ()), 1):
            meta = block.meta(at)
            parents = parents_in(meta.properties)
            if parents and at in (block.hidden or ()):
                found += 1
                if not dry_run:
                    self.begin(Child(queue.name, block.first + at, meta.publisher, parents))
            elif not parents:
                plain.append(at)
            if parents or number % LOOKED == 0:
                yield
        return found

    def recover(self, queue: Queue, dry_run: bool) -> Generator[None, None, dict[str, int]]:
        """All five steps for a queue, on command, in steps: how many messages each is about."""
        gone = [one for one in queue.members.values() if one.held and not one.active]
        said = {"children": 0, "revealed": 0, "cleaned": sum(one.held for one in gone)}
        for block in list(queue.blocks.values()):
            plain: list[int] = []
            said["children"] += yield from self._children(queue, block, plain, dry_run)
            hidden = block.hidden or ()
            for start, count in spans([at for at in plain if at in hidden]):  # what was not revealed meanwhile
                said["revealed"] += count
                if not dry_run:
                    queue.reveal(block, start, count, self._here.now())
            yield
        for member in gone if not dry_run else ():
            if not member.active:
                queue.leave(member, self._here.now())
            yield
        self._here.stir(queue.name)
        return said

    def tick(self) -> None:
        """Ask again about children that wait for an answer, some at a time."""
        for key in list(islice(self.children, AGAIN)):
            child = self.children[key] = self.children.pop(key)  # the last one now
            if not child.waiting:
                self._start(child)


class _Kept:
    """Goes on when several commits are done. then: is told whether all have succeeded."""

    def __init__(self, left: int, then: Callable[[bool], None]) -> None:
        self._left, self._then, self._good = left, then, True

    def refused(self, text: str) -> None:
        """One has failed."""
        self._good = False

    def go(self) -> None:
        """One is done."""
        self._left -= 1
        if not self._left:
            self._then(self._good)


class _Put:
    """A child whose commit is awaited."""

    def __init__(self, workflow: Workflow, name: str, block: Block, index: int, publisher: str, parents: tuple[Parent, ...]) -> None:
        self._workflow = workflow
        self._args = name, block, index, publisher, parents
        self._failed = False

    def refused(self, text: str) -> None:
        """The commit has failed: there is no child."""
        self._failed = True

    def go(self) -> None:
        """The gate is open."""
        name, block, index, publisher, parents = self._args
        if not self._failed:
            self._workflow.begin(Child(name, block.first + index, publisher, parents))
