"""What the queues of a broker keep, for administrators: read again, given to others, edited; and who still needs what (rows Q17, Q18, Q24).

    read          messages by position or time, those that are at an end too, while the queue goes on
    distribute    copies of them go to a topic or into another queue
    edit          another message takes the place of one; what is on the disk is not changed
    needed        messages that somebody still needs, by subscriber

What it does not know: who asks and what that one may (`broker/requests/queues.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ...base.queues import PREFIX
from ...mqtt.batch.run import Run
from ...mqtt.errors import UsageError
from .core.blocks import CLEAN_BYTES, HELD_BYTES, OPEN_BYTES, Block, Meta
from .core.plan import Plan
from .core.queue import Queue
from .core.standing import publisher_of
from .core.states import name_of
from .log.format import Damaged
from .rows import Row, bytes_of, changed, content, iso, time_of, with_origin

if TYPE_CHECKING:
    from .log.reading import Found, Page
    from .log.store import LogStore
    from .shell import Queues

MOST_READ = 100  # messages of one answer
MOST_BYTES = 262_144  # of payloads in one answer; a larger message goes by itself
MOST_DISTRIBUTED = 1000  # messages of one request
NO_ROOM = "there is no room for more messages"
MOST_BLOCKS = 256  # that one request looks at for what is needed


class Position:
    """The position of a message that is put now: known with its commit."""

    def __init__(self, block: Block, at: int) -> None:
        self._block = block
        self._at = at

    @property
    def number(self) -> int:
        """It."""
        return self._block.first + self._at


class Replacement:
    """A message that takes the place of another one. queue: whose store both have. put: puts it.

    The other one's end is to be said in the same piece of work: both are in one commit, and if that fails, in a later one.
    """

    def __init__(self, queues: Queues, queue: Queue, put: Callable[[], tuple[Block, int]]) -> None:
        self._store, self._queue = queues.store, queue
        self._put = put
        self._wait()

    def _wait(self) -> None:
        self.position = Position(*self._put())
        self._store.committer(self._queue).gate.waiting.append(self)

    def refused(self, text: str) -> None:
        """The commit has failed: the end of the other one goes with the next."""
        self._wait()

    def go(self) -> None:
        """It is on the disk, or waits for the next commit."""


class Kept:
    """See the module. Methods raise UsageError, one line. find: a queue by its name."""

    def __init__(self, queues: Queues, find: Callable[[str], Queue]) -> None:
        self._queues = queues
        self._find = find

    # ---- read

    def read(self, name: str, begin: int, since: str | None, most: int) -> Row:
        """Messages of the log from a position on, put at a time or later: at most so many, and where to go on."""
        queue, at = self._find(name), time_of(since) if since is not None else 0
        reader = self._queues.store.of(queue).reader(queue)
        page = reader.page(max(1, begin, reader.since(at) if at else 1), most, queue.next)
        rows: list[Row] = []
        size = 0
        for found, index in _each(page):
            if found.block.at < at:
                continue
            size += found.block.lengths[index]
            if rows and size > MOST_BYTES:
                return {"messages": rows, "more": found.block.first + index}
            rows.append(self._row(queue, found.block, index))
        return {"messages": rows, "more": page.more}

    def _row(self, queue: Queue, block: Block, at: int) -> Row:
        meta, position = block.meta(at), block.first + at
        here = queue.find(position)
        row = {
            "position": position,
            "publisher": meta.publisher,
            "handle": meta.handle or None,
            "group": meta.group or None,
            "priority": (here or block).priority_of(at),
            "put": iso(block.at),
            "expires": iso(block.key.expires),
            "size": block.lengths[at],
            "state": name_of(publisher_of(queue, here, at)) if here is not None else None,
        }
        return row | content(
            block.key.topic or (PREFIX + queue.name).encode(), meta.properties, self._payload(self._queues.store.of(queue), block, at)
        )

    def _payload(self, store: LogStore, block: Block, at: int) -> bytes:
        try:
            return store.bodies.payload(block, at)
        except (Damaged, OSError) as error:
            raise UsageError(f"message {block.first + at} cannot be read: {error}") from None

    def _one(self, queue: Queue, position: int) -> tuple[Block, int]:
        page = self._queues.store.of(queue).reader(queue).page(position, 1, position + 1)
        for found, index in _each(page):
            return found.block, index
        raise UsageError(f"there is no message {position} in the log of queue {queue.name!r}: it never was, or its retention is over")

    # ---- give to others

    def distribute(self, name: str, begin: int, last: int, to: str, publish: Callable[[Run], bool]) -> Generator[None, None, Row]:
        """Copies go to a topic, or to `$queue/NAME`: how many, and where to go on; a message a step.

        publish: takes one for a topic; False: there is no room.
        """
        queue = self._find(name)
        goal = self._find(to[len(PREFIX) :]) if to.startswith(PREFIX) else None
        if goal is queue:
            raise UsageError(f"{to!r}: a queue does not take copies of its own messages: give another one, or edit a message")
        count, at = 0, max(1, begin)
        while at <= last and count < MOST_DISTRIBUTED:
            store = self._queues.store.of(queue)  # it may be another one by the next page
            page = store.reader(queue).page(at, min(MOST_READ, MOST_DISTRIBUTED - count), min(last + 1, queue.next))
            for found, index in _each(page):
                block, meta = found.block, found.block.meta(index)
                properties = with_origin(meta.properties, name, block.first + index)
                payload = self._payload(store, block, index)
                if goal is not None:
                    goal = self._find(goal.name)  # it may be deleted meanwhile
                    text = self._queues.store.of(goal).full or goal.refusal(1, len(payload))
                    if text is None:
                        goal.put([payload], Meta(meta.publisher, properties, "", meta.group), self._queues.now(), b"", block.key.priority)
                else:
                    text = None if publish(Run(to.encode("utf-8", "surrogatepass"), 1, False, [payload], properties)) else NO_ROOM
                if text is not None:
                    return {"queue": name, "to": to, "distributed": count, "more": block.first + index, "refused": text}
                count += 1
                yield
            if page.more is None:
                break
            at = page.more
        else:
            return {"queue": name, "to": to, "distributed": count, "more": at if at <= last else None}
        return {"queue": name, "to": to, "distributed": count, "more": None}

    # ---- edit

    def edit(self, name: str, position: int, payload: str | None, properties: Row) -> Row:
        """Another message takes the place of one, for those who still need it; for all if it is at an end."""
        queue, now = self._find(name), self._queues.now()
        here = queue.find(position)
        block, at = self._one(queue, position)
        meta, key = block.meta(at), block.key
        groups, revealed = key.groups, True
        if here is not None:
            self._check(queue, here, at)
            left = [part for part in here.parts if part.states[at] in CLEAN_BYTES]
            groups = tuple(key.groups[part.index] for part in left) or groups
            revealed = here.hidden is None or at not in here.hidden
        body = bytes_of(payload, "payload") if payload is not None else self._payload(self._queues.store.of(queue), block, at)
        made = Meta(meta.publisher, with_origin(changed(meta.properties, properties), name, position), "", meta.group)
        plan = Plan(groups, key.ordered)
        life, delay = max(0, key.expires - now), max(0, key.due - now)

        def put() -> tuple[Block, int]:
            return queue.put([body], made, now, key.topic, (here or block).priority_of(at), delay, life, plan, revealed)

        new = Replacement(self._queues, queue, put)
        if here is not None:
            queue.withdraw(here, at, 1, now)
        self._queues.stir(name)
        return {"queue": name, "edited": position, "position": new.position}

    def _check(self, queue: Queue, block: Block, at: int) -> None:
        position = block.first + at
        if block.withdrawn is not None and at in block.withdrawn:
            raise UsageError(f"message {position} of queue {queue.name!r} is withdrawn")
        for part in block.parts:
            if part.states[at] in HELD_BYTES:
                who = queue.names[part.takers[at]]
                raise UsageError(f"{who!r} has message {position} of queue {queue.name!r}: edit it when it is returned, or at an end")

    # ---- who needs what

    def needed(self, name: str, begin: int, most: int) -> Row:
        """What is not at an end, from a position on: for each subscriber what waits for it, and what it has, as ranges of positions."""
        queue = self._find(name)
        found: dict[str, dict[str, Any]] = {}
        block, ranges = queue.block_from(max(1, begin)), 0
        for _ in range(MOST_BLOCKS):
            if block is None or ranges >= most:
                break
            for part in block.parts:
                whose = " | ".join(sorted(part.lane.group)) or "any member"
                for start, count, state in part.runs(*OPEN_BYTES):
                    for low, length, number in _takers(part.takers, start, count) if state in HELD_BYTES else [(start, count, 0)]:
                        who, what = (queue.names[number], "has") if number else (whose, "waits")
                        ranges += _note(found, who, what, block.first + low, length)
            block = queue.block_from(block.first + block.count)
        return {"queue": name, "needed": found, "more": block.first if block is not None else None}


def _each(page: Page) -> list[tuple[Found, int]]:
    return [(found, index) for found in page.found for index in range(found.start, found.stop)]


def _takers(takers: Any, start: int, count: int) -> list[tuple[int, int, int]]:
    """Messages in a row with one taker: (index, count, taker)."""
    runs: list[tuple[int, int, int]] = []
    for at in range(start, start + count):
        if runs and runs[-1][2] == takers[at]:
            runs[-1] = runs[-1][0], runs[-1][1] + 1, runs[-1][2]
        else:
            runs.append((at, 1, takers[at]))
    return runs


def _note(found: dict[str, dict[str, Any]], who: str, what: str, first: int, count: int) -> bool:
    """Add a range: whether it does not continue the one before."""
    row = found.setdefault(who, {"messages": 0, "waits": [], "has": []})
    row["messages"] += count
    ranges = row[what]
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1][1] += count
        return False
    ranges.append([first, first + count - 1])
    return True
