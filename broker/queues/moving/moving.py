"""Queues go from one store to another while they are worked: copy, catch up, switch (docs/queues.md, "To another store").

    WAITS     nothing is copied yet: something in one of the stores goes on that does not go together with it
    COPIES    what the log of the old store has goes to the new one, in pieces; what is new meanwhile follows
    HOLDS     the queues are written nowhere for some commits: the last of the old log is copied
    CLAIMS    one commit of the new store says that the queues are there, with all that was new meanwhile
    MOVED     the old store forgets them

Until that commit is on the disk the old store has the queues, from then on the new one has them: each log says what it claims
(`log/claims.py`). Whatever fails before is begun anew later.

Queues that belong together, because one takes the dead letters of another, go together.

What it does not know: clients, the bytes of a log.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ....base.quoting import quoted
from ..committer import Committer, Gate, Waiting
from ..core.queue import Queue
from ..log.carry import End
from ..log.locations import shown
from .copying import Arriving, Chunk, Copy

log = logging.getLogger("mqmesh.broker")

ROUNDS = 8  # of catching up; then the queues are held, however much is new
LITTLE = 1 << 20  # bytes of the log that may be copied while the queues are held
AGAIN = 10.0  # seconds until a copy that failed is begun anew
PATIENCE = 5.0  # seconds that queues are held


class State(enum.Enum):
    """See the module."""

    WAITS = "waits"
    COPIES = "copies"
    HOLDS = "holds"
    CLAIMS = "claims"
    MOVED = "moved"


class Between:
    """What a queue that is held has for a committer. store: where its messages are read."""

    def __init__(self, source: Committer) -> None:
        self.store = source.store
        self.gate = Gate()
        self._source = source

    @property
    def away(self) -> bool:
        """See `Committer`."""
        return self._source.away

    def wait(self, error: OSError) -> None:
        """See `Committer`."""
        self._source.wait(error)

    def after(self, waiting: Waiting) -> None:
        """Have something go when the queue has a committer again, and that has written everything so far."""
        self.gate.waiting.append(waiting)


class Passed:
    """What waited at one gate goes when a later commit is done."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._refused: str | None = None

    def refused(self, text: str) -> None:
        """See `Waiting`."""
        self._refused = text

    def go(self) -> None:
        """See `Waiting`."""
        self._gate.let_go(self._refused)


class Moving:
    """See the module.

    source, target: who commits for the stores. to: the name of the new one. wake: has `step` called soon, in the loop, by who looks at
    `state` afterwards; called from any thread. clock: seconds. committer: told who commits what a queue has to write. epoch: a claim that
    no log has yet. archiving: whether something that the old store lets go is being archived.
    """

    def __init__(
        self,
        queues: list[Queue],
        source: Committer,
        target: Committer,
        to: str,
        wake: Callable[[], Any],
        clock: Callable[[], float],
        committer: Callable[[Queue, Committer | Between], None],
        epoch: Callable[[], int],
        archiving: Callable[[], bool],
    ) -> None:
        self.queues = queues
        self.to = to
        self.state = State.WAITS
        self.why: str | None = None
        self._from = source
        self._into = target
        self._wake = wake
        self._clock = clock
        self._set_committer = committer
        self._next_epoch = epoch
        self._archiving = archiving
        self._thread = ThreadPoolExecutor(1, "queue-move")
        self._found: Future[Chunk | None] | None = None
        self._copy: Copy | None = None
        self._arriving: list[Arriving] = []
        self._begin = 0
        self._between = Between(source)
        self._chunk: Chunk | None = None
        self._rounds = 0
        self._until: End | None = None  # where the old log ended when the queues were held
        self._since = 0.0
        self._again_at = 0.0
        self._stepping = self._once_more = self._closed = False

    @property
    def progress(self) -> dict[str, Any]:
        """For who looks at the queue."""
        size = sum(one.size for one in self._from.store.segments.values())
        read = self._copy.read if self._copy is not None else 0
        return {"to": shown(self.to), "state": self.state.value, "read": min(read, size), "of": size, "why": self.why}

    # ---- steps, in the loop

    def step(self) -> None:
        """Go on, if something has happened: a commit of either store, a piece that is read."""
        if self._stepping:
            self._once_more = True
            return
        self._stepping = self._once_more = True
        try:
            while self._once_more and not self._closed:
                self._once_more = False
                self._step()
        finally:
            self._stepping = False

    def tick(self) -> None:
        """Called every now and then."""
        if self.state is State.HOLDS and self._clock() > self._since + PATIENCE:
            self.give_up("the store that they go to does not answer")
        self.step()

    def _step(self) -> None:
        if self.state is State.WAITS:
            self._start()
        elif self.state is State.CLAIMS:
            self._look_at_claims()
        elif self.state is not State.MOVED:
            self._go_on()

    def _start(self) -> None:
        source, target = self._from.store, self._into.store
        busy = source.carry is not None or target.carry is not None or self._archiving()
        if busy or self._clock() < self._again_at or self._from.error is not None or self._into.error is not None:
            return
        source.moving = target.moving = True
        epoch = self._next_epoch()
        self._begin = target.begin_copy(epoch)
        self._arriving = []
        for queue in self.queues:
            number = target.number_for(queue, [one.to for one in self._arriving])
            self._arriving.append(Arriving(queue, queue.number, number, epoch, source.claims.begin(queue.number)))
        end = source.end
        self._copy = Copy(source.where, source.segments, self._arriving, end) if end is not None else None
        self.state, self.why, self._rounds, self._until = State.COPIES, None, 0, None
        self._again()

    def _again(self) -> None:
        self._once_more = True

    def _go_on(self) -> None:
        """One chunk after the other."""
        if self._into.error is not None or self._from.error is not None:
            error = self._into.error or self._from.error
            self.give_up(f"a store takes nothing: {error}")
            return
        if self._chunk is not None:
            if self._into.store.chunk is not None:
                return
            assert self._copy is not None
            self._copy.written(self._chunk)
            self._chunk = None
        if self._found is not None:
            if self._found.done():
                self._take_found()
            return
        if self._copy is not None and not self._copy.ended:
            self._found = self._thread.submit(self._copy.look)
            self._found.add_done_callback(lambda _: None if self._closed else self._wake())
        elif self.state is State.COPIES:
            self._caught_up()
        elif self._until is not None:
            self._switch()
        elif not self._from.busy:
            self._last_of_it()

    def _take_found(self) -> None:
        assert self._found is not None
        error, chunk = self._found.exception(), None
        if error is None:
            chunk = self._found.result()
        self._found = None
        if error is not None:
            self.give_up(f"the log cannot be read: {error}")
        elif chunk is not None:
            self._chunk = self._into.store.chunk = chunk
            self._into.begin()
            self._again()
        else:
            self._again()

    def _caught_up(self) -> None:
        """All that was there is copied: there may be more by now, or the queues are held."""
        end = self._from.store.end
        if self._copy is not None and end is not None and self._rounds < ROUNDS:
            self._rounds += 1
            if self._copy.behind(end) > LITTLE:
                self._copy.until = end
                self._again()
                return
        if self._from.busy:
            return
        self._from.begin()  # what was put so far is answered by the old store
        if any(queue.unwritten for queue in self.queues):
            return
        for queue in self.queues:
            self._from.store.leave(queue)
            self._set_committer(queue, self._between)
        self.state, self._since = State.HOLDS, self._clock()
        self._again()

    def _last_of_it(self) -> None:
        """The last that the old store has of the queues is on its disk."""
        self._until = self._from.store.end
        if self._copy is not None and self._until is not None:
            self._copy.until = self._until
        elif self._until is not None:
            self._copy = Copy(self._from.store.where, self._from.store.segments, self._arriving, self._until)
        else:
            self._until = End(0, 0)
        self._again()

    def _switch(self) -> None:
        source, target = self._from.store, self._into.store
        places = self._copy.places if self._copy is not None else {}
        for one in self._arriving:
            for block in (*one.queue.blocks.values(), *one.queue.kept.values()):
                if (one.to, block.first) not in places:
                    self.give_up(f"messages of queue {one.queue.name!r} from {block.first} on cannot be read: withdraw them")
                    return
        source.bodies.forget_served()
        for one in self._arriving:
            moved = one.queue.freed
            for block in (*one.queue.blocks.values(), *one.queue.kept.values()):
                block.place = places[one.to, block.first]
                moved += block.size if block.payloads is not None else 0
            source.bodies.resident -= moved
            target.bodies.resident += moved
            target.adopt(one.queue, one.to, one.epoch, self._begin)
            self._set_committer(one.queue, self._into)
        target.parcels |= source.parcels
        self._into.after(Passed(self._between.gate))
        self.state = State.CLAIMS
        self._into.begin()
        self._again()

    def _look_at_claims(self) -> None:
        """Whether the commit is on the disk that says where the queues are."""
        source, target = self._from.store, self._into.store
        if not target.claims.new.isdisjoint([one.to for one in self._arriving]):
            self.why = f"the store that they go to takes nothing: {self._into.error}" if self._into.error is not None else None
            return
        for one in self._arriving:
            source.release(one.number)
            log.warning("event=queue-moved queue=%s store=%s", quoted(one.queue.name), shown(self.to))
        source.moving = target.moving = False
        self.state, self.why = State.MOVED, None
        self._thread.shutdown(wait=False)

    # ---- ends

    def give_up(self, why: str) -> None:
        """What is copied does not count; it is begun anew later. After the switch there is no way back, and none is needed."""
        if self.state not in (State.COPIES, State.HOLDS):
            return
        source, target = self._from.store, self._into.store
        if self.state is State.HOLDS:
            for queue in self.queues:
                source.come_back(queue)
                self._set_committer(queue, self._from)
            gate, self._between = self._between.gate, Between(self._from)
            self._from.after(Passed(gate))
        target.chunk = self._chunk = self._found = None
        for one in self._arriving:
            target.release(one.to)
        source.moving = target.moving = False
        if self.why != why and not self._closed:
            log.warning("event=queue-not-moved queue=%s store=%s text=%s", quoted(self.queues[0].name), shown(self.to), quoted(why))
        self.state, self.why, self._copy = State.WAITS, why, None
        self._again_at = self._clock() + AGAIN
        self._from.begin()

    def close(self, why: str) -> None:
        """It does not go on in this life, or another move comes in its place. Blocks while a piece is read."""
        self._closed = True
        self.give_up(why)
        self._thread.shutdown(wait=True, cancel_futures=True)
