"""What the queues of a broker need from time to time: their timers, the ledger's charge, the end of segments and their archive.

What it does not know: members, publishers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ..ledger import QUEUES, SHARE
from .archive.archiver import Archiver
from .archive.files import missing
from .core.levels import Levels
from .core.timers import Timers
from .handles import WEIGHT as HANDLE_WEIGHT

if TYPE_CHECKING:
    import asyncio

    from ..ports import Context
    from .core.queue import Queue
    from .handles import Handles
    from .settings import QueueSettings
    from .sites.sites import Sites
    from .stores import Stores

AT_ONCE = 2048  # messages that are given, or expire, before everybody else has a turn
MOST_FIRED = 256  # queues that something is due in, before everybody else has a turn
OVERDUE = 1  # stands for any time that is over
MEMBER_WEIGHT = 500  # bytes of memory of a member
UNCHARGED = 64  # such a part of what the broker may hold is put, and then the ledger is told
TRIM = 10.0  # seconds between looks for segments that nobody needs


class Upkeep:
    """See the module. stir: told which queues may have something for a member."""

    def __init__(
        self, context: Context, settings: QueueSettings, store: Stores, sites: Sites, handles: Handles, stir: Callable[[str], None]
    ) -> None:
        self._context = context
        self._settings = settings
        self._store = store
        self._sites = sites
        self._handles = handles
        self._stir = stir
        self._archiver: Archiver | None = None
        self._uncharged = 0  # bytes that were put since the ledger was told
        self._held: dict[str, int] = {}  # bytes of memory, by queue, and all together
        self._held_by_all = 0
        self._buries: set[str] | None = None  # names of queues that take dead letters of others; None: to be looked for
        self._levels = Levels(lambda values: context.event("queues", values))
        self._deadlines: Timers[Queue] = Timers()
        self._deadline_of: dict[Queue, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0
        self._trim_at = 0.0
        self._trimming = False

    def _now(self) -> int:
        return int(self._context.steady() * 1000)

    def start(self) -> None:
        """Have what the retention lets go archived, where a queue asks for that. The stores are open. Raises ImportError."""
        settings, call = self._settings, self._context.loop.call_soon_threadsafe
        archiver = self._archiver = Archiver(settings.archive_of, settings.site, call, self._now, self._trim_soon)
        self._store.may_go, self._store.archiving = archiver.may_go, lambda: archiver.busy
        if any(rules.archive for rules in settings.rules.values()) and (text := missing()) is not None:
            raise ImportError(text)

    def stop(self) -> None:
        """No timer fires any more, and nothing is archived. Blocks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._archiver is not None:
            self._archiver.close()

    def tick(self) -> None:
        """Called every now and then."""
        self._charge()
        self._store.tick()
        self._fire(self._now())
        self.set_timer()
        self._store.forget_calm()
        if self._context.now >= self._trim_at:
            self.trim()

    # ---- memory

    def no_room(self, size: int) -> str | None:
        """Why the broker has no memory for more messages of queues; None: it has."""
        ledger = self._context.ledger
        self._uncharged += size
        if self._uncharged > ledger.limit // UNCHARGED:
            self._charge()
        if ledger.held[QUEUES] <= SHARE * ledger.free:
            return None
        return f"the queues hold {ledger.held[QUEUES]:,} bytes of memory of the {ledger.limit:,} of this broker (limits.broker_bytes)"

    def _charge(self) -> None:
        """Tell the ledger what queues hold in memory."""
        self._uncharged = 0
        self._look()
        held = self._store.resident + HANDLE_WEIGHT * len(self._handles) + self._held_by_all
        self._context.ledger.own.settle(QUEUES, held)

    def rules_changed(self) -> None:
        """A queue has come or gone, which may have said where its dead letters go."""
        self._buries = None

    def _look(self) -> None:
        """Note what queues with something new hold in memory, and when each is due."""
        if self._buries is None:
            self._buries = {one.dead_letters for one in self._settings.rules.values()}
        for queue in self._store.touched():
            held = queue.memory + queue.gathering_memory + queue.gathering_size + MEMBER_WEIGHT * len(queue.members)
            self._held_by_all += held - self._held.get(queue.name, 0)
            self._held[queue.name] = held
            self._schedule(queue)
            self._levels.look(queue, queue.name in self._buries)
        if len(self._held) > len(self._store.queues):
            for name in self._held.keys() - self._store.queues.keys():
                self._held_by_all -= self._held.pop(name)
                self._levels.gone(name)

    def _schedule(self, queue: Queue) -> None:
        before, due = self._deadline_of.get(queue, 0), queue.deadline
        if due == before:
            return
        if before:
            self._deadlines.remove(before, queue)
            del self._deadline_of[queue]
        if due:
            self._deadlines.add(due, queue)
            self._deadline_of[queue] = due

    # ---- segments

    def _trim_soon(self) -> None:
        """A segment may go now."""
        self._trim_at = 0.0
        self.trim()

    def trim(self, soon: bool = False) -> None:
        """Let go of what nobody needs, in turns with everybody else. soon: of stores only of which a segment may go."""
        if self._trimming:
            return
        self._trimming = True
        if not soon:
            self._trim_at = self._context.now + TRIM
        if self._archiver is not None:
            self._archiver.look(self._store.here)
        # Until the store has forgotten parcels that the log has, the log has to know them.
        self._sites.arrivals.when_settled(partial(self._begin_to_trim, soon, self._store.newest))

    def _begin_to_trim(self, soon: bool, before: Mapping[str, int]) -> None:
        turns = self._context.turns
        turns.run(turns.broker, self._trimmed(soon, before), "work=queues-trim")

    def _trimmed(self, soon: bool, before: Mapping[str, int]) -> Iterator[None]:
        try:
            for step in self._store.trimming(self._now(), soon, before):
                yield step
                if self._context.stopping:
                    return
        finally:
            self._trimming = False

    # ---- timers

    def _fire(self, now: int) -> None:
        fired: list[Queue] = []
        while len(fired) < MOST_FIRED and 0 < self._deadlines.next <= now:  # the others with the next timer, which is due at once
            _, queue = self._deadlines.pop()
            del self._deadline_of[queue]
            if self._store.queues.get(queue.name) is queue:
                fired.append(queue)
        share = AT_ONCE // 2 // max(1, len(fired))
        for queue in fired:
            if queue.handle_timer(now, share):
                self._stir(queue.name)
            self._schedule(queue)

    def set_timer(self) -> None:
        """Have the queue that is due first looked at then."""
        self._look()
        due, now = self._deadlines.next, self._now()
        if 0 < due <= now:
            due = OVERDUE
        if due and due != self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._context.loop.call_later(max(0.0, (due - now) / 1000), self._time)

    def _time(self) -> None:
        self._timer, self._due = None, 0
        self._context.refresh()
        self._fire(self._now())
        self.set_timer()
        self._context.flush()
