"""Blocks: messages of a queue that were put together, and how far each group of subscribers is with them.

A block is the unit of everything: one record in the log, one entry in a heap, states as bytes in a row. A step of many messages is a
few slices, whatever their number. Messages of one block have the same priority, delay, expiry, plan and topic.

    positions     first, first + 1, ...           of the queue, never used twice
    Part          one group's view of the block: one byte a message, and who has it

A byte of `Part.states` is a value of `Subscriber`, of the member that has taken the message, or of nobody:

    CLEAN 0    free: the next member may take it          WAITS 1    clean, but not yet: not revealed, delayed, or not its turn
    APART 2    free, with a priority of its own or at its last try: it stands in its lane's other heap, by itself

Invariants: `free` and `open` of a part count its bytes; a part is in its lane's heap while something is free (perhaps longer).
What it does not know: the queue, files, times.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from zlib import crc32

from .plan import ANYBODY, Group
from .states import HELD, OUTCOMES, Subscriber

if TYPE_CHECKING:
    from .selection import Selection

WAITS, APART = 1, 2
NOBODY = 0  # number of a member that is none
FREE = int(Subscriber.CLEAN)
CLEAN_BYTES = bytes((FREE, WAITS, APART))
HELD_BYTES = bytes(sorted(HELD))
OPEN_BYTES = CLEAN_BYTES + HELD_BYTES
ENDED_BYTES = bytes(sorted(OUTCOMES))
GROUP_BUCKETS = 65_536
BLOCK_WEIGHT, MESSAGE_WEIGHT, META_WEIGHT = 1000, 11, 100  # bytes of memory, measured
SPARE = 1024  # parts without free messages that a lane may have
FEW = 32  # entries of a heap that are found without sorting all: members have some 16 messages at a time
KEPT_RETURNS = 256  # of one message, in memory; the log has them all

E = TypeVar("E", bound=tuple[Any, ...])


class Meta(NamedTuple):
    """What messages of a publisher have in common.

    publisher: client identifier. properties: encoded MQTT 5 properties that travel to subscribers, without the expiry. handle: the
    publisher's name for the message, unique for it; "" without. group: its message group; "" without. parcel: what brought it from another
    site, unique; b"" for messages of this one.
    """

    publisher: str = ""
    properties: bytes = b""
    handle: str = ""
    group: str = ""
    parcel: bytes = b""


DEFAULT_PRIORITY = 4


class Key(NamedTuple):
    """What messages of one block have in common.

    due, expires: in milliseconds since 1970, 0: at once, never. early: they are given to members before the log has them.
    """

    groups: tuple[Group, ...] = (ANYBODY,)
    ordered: bool = False
    revealed: bool = True
    priority: int = DEFAULT_PRIORITY
    due: int = 0
    expires: int = 0
    topic: bytes = b""
    early: bool = False

    @property
    def line(self) -> Key:
        """What messages that keep their order have in common: all but the expiry."""
        return self._replace(expires=0) if self.expires else self


class Place(NamedTuple):
    """Where the bodies of a block are in the log. segment: its number. offset: of the first body. size: of all. crc: over all."""

    segment: int
    offset: int
    size: int
    crc: int


class Part:
    """One group's view of a block. lane: what has it in its heap. cursor: nothing before it is free.

    queued: the lane's heap has it. returns: who returned a message lately, and when, by index. tried: how often that was. dead: indexes of
    dead letters.
    """

    __slots__ = ("block", "cursor", "dead", "free", "index", "lane", "open", "queued", "returns", "states", "takers", "tried")

    def __init__(self, block: Block, index: int, lane: Lane) -> None:
        self.block = block
        self.index = index
        self.lane = lane
        self.states = bytearray()
        self.takers = array("I")
        self.free = 0
        self.open = 0
        self.cursor = 0
        self.queued = False
        self.dead: set[int] | None = None
        self.returns: dict[int, tuple[tuple[int, int], ...]] | None = None
        self.tried: dict[int, int] | None = None

    def begin(self, count: int, state: int) -> None:
        """All messages are in a state and nobody's."""
        self.states = bytearray((state,)) * count
        self.takers = array("I", bytes(4 * count))
        self.open = count
        self.free = count if state == FREE else 0

    def free_run(self, most: int) -> tuple[int, int]:
        """The first free messages in a row: (index, count), at most so many; count 0: none is free."""
        start = self.states.find(FREE, self.cursor)
        if start < 0:
            self.cursor = len(self.states)
            return 0, 0
        ahead = self.states[start : start + most]
        self.cursor = start
        return start, len(ahead) - len(ahead.lstrip(b"\0"))

    def tries(self, index: int) -> int:
        """How often a message was given to members, and returned."""
        return self.tried.get(index, 0) if self.tried is not None else 0

    def note_return(self, start: int, count: int, member: int, at: int) -> list[tuple[int, int, int]]:
        """A member returns messages: (index, count, how often that was) in order."""
        if self.returns is None or self.tried is None:
            self.returns, self.tried = {}, {}
        indexes, said = range(start, start + count), ((member, at),)
        if self.tried.keys().isdisjoint(indexes):  # a client that is lost may have had very many
            self.returns.update(dict.fromkeys(indexes, said))
            self.tried.update(dict.fromkeys(indexes, 1))
            return [(start, count, 1)]
        found: list[tuple[int, int, int]] = []
        for index in indexes:
            self.returns[index] = (*self.returns.get(index, ()), *said)[-KEPT_RETURNS:]
            self.tried[index] = tries = self.tried.get(index, 0) + 1
            if found and found[-1][2] == tries:
                found[-1] = found[-1][0], found[-1][1] + 1, tries
            else:
                found.append((index, 1, tries))
        return found

    def give(self, start: int, count: int, member: int) -> None:
        """A member takes free messages."""
        self.states[start : start + count] = bytes((Subscriber.GET,)) * count
        self.takers[start : start + count] = array("I", (member,)) * count
        self.free -= count
        if self.cursor == start:
            self.cursor = start + count

    def has(self, start: int, count: int, member: int) -> bool:
        """Whether a member has all these messages."""
        if start < 0 or count <= 0 or start + count > len(self.states):
            return False
        if self.states[start : start + count].strip(HELD_BYTES):
            return False
        if count == 1:
            return self.takers[start] == member
        return self.takers[start : start + count] == array("I", (member,)) * count

    def held_by(self, member: int) -> list[tuple[int, int]]:
        """What a member has: (index, count) in order."""
        if len(self.states) == 1:
            return [(0, 1)] if self.takers[0] == member and self.states[0] in HELD_BYTES else []
        found: list[tuple[int, int]] = []
        takers, wanted, width = self.takers.tobytes(), array("I", (member,)).tobytes(), self.takers.itemsize
        at = takers.find(wanted)  # members may be thousands that leave at once: each message is not looked at for each of them
        while at >= 0:
            index, between = divmod(at, width)
            at = takers.find(wanted, at + (1 if between else width))
            if between or self.states[index] not in HELD_BYTES:
                continue
            if found and sum(found[-1]) == index:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((index, 1))
        return found

    def mark(self, start: int, count: int, state: int) -> None:
        """Messages are in another state of the same kind, or at an end."""
        self.states[start : start + count] = bytes((state,)) * count

    def runs(self, *wanted: int) -> list[tuple[int, int, int]]:
        """Messages in these states as (index, count, state)."""
        return runs_of(self.states, bytes(wanted))

    def note_unusable(self, start: int, count: int) -> None:
        """Who has these messages cannot use them."""
        block = self.block
        if block.unusable is None:
            block.unusable = set()
        block.unusable.update([(self.index, at) for at in range(start, start + count)])

    def note_dead(self, start: int, count: int) -> None:
        """Messages went to the dead letters: nobody has to say that they are journalled."""
        if self.dead is None:
            self.dead = set()
        self.dead.update(range(start, start + count))

    def implied(self, index: int) -> bool:
        """Whether a message with an outcome is journalled whatever the rules."""
        return self.dead is not None and index in self.dead

    @property
    def clean(self) -> bool:
        """Whether somebody is still to get one of the messages."""
        return self.free > 0 or WAITS in self.states or APART in self.states

    @property
    def held(self) -> int:
        """How many messages members have."""
        return sum(map(self.states.count, HELD_BYTES))


def runs_of(states: bytes | bytearray, wanted: bytes) -> list[tuple[int, int, int]]:
    """Equal bytes in a row that are wanted: (index, count, byte)."""
    found = []
    at, end = 0, len(states)
    while at < end:
        state = states[at]
        rest = states[at:]
        count = len(rest) - len(rest.lstrip(bytes((state,)))) if at + 1 < end and states[at + 1] == state else 1
        if state in wanted:
            found.append((at, count, state))
        at += count
    return found


def spans(indexes: list[int]) -> list[tuple[int, int]]:
    """Indexes in order as (first, count) of those in a row."""
    found: list[tuple[int, int]] = []
    begin = end = -1
    for one in indexes:
        if one != end:
            if end > begin:
                found.append((begin, end - begin))
            begin = one
        end = one + 1
    if end > begin:
        found.append((begin, end - begin))
    return found


def bucket_of(group: str) -> int:
    """Message groups are many; those of one bucket go to one member together."""
    return crc32(group.encode("utf-8", "surrogatepass")) % GROUP_BUCKETS


class Lane:
    """One group of members of a queue. ready: heap of parts with free messages, the highest priority first, then the oldest.

    apart: heap of messages with a priority of their own, or at their last try; one of them may be no more. apart_most: how long it may get.
    owners: message group, by `bucket_of` -> the member that has its messages. blocks: those that are not at an end. grouped: of these,
    the ones whose messages have groups. selections: what members with selectors may take, by the selector. asked: the message that all
    who have this selector, and room, wait behind.
    """

    __slots__ = ("apart", "apart_most", "asked", "blocks", "group", "grouped", "owners", "ready", "selections", "waiting")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ready: list[tuple[int, int, Part]] = []
        self.apart: list[tuple[int, int, Part, int]] = []
        self.apart_most = SPARE
        self.owners: dict[int, int] = {}
        self.selections: dict[str, Selection] = {}
        self.asked: dict[str, tuple[Part, int]] = {}
        self.blocks = 0
        self.grouped = 0
        self.waiting = 0  # messages that are clean

    def prune(self) -> None:
        """Let go of parts without free messages: those that would be next, and all when most are such."""
        ready = self.ready
        while ready and not ready[0][2].free:
            heapq.heappop(ready)[2].queued = False
        if len(ready) > 2 * self.blocks + SPARE:
            for _, _, part in ready:
                part.queued = part.free > 0
            ready[:] = [one for one in ready if one[2].free]
            heapq.heapify(ready)
        while self.apart and not _stands(self.apart[0]):
            heapq.heappop(self.apart)

    def set_apart(self, part: Part, index: int) -> None:
        """A message that may be taken stands by itself."""
        block = part.block
        heapq.heappush(self.apart, (-block.priority_of(index), block.first + index, part, index))
        if len(self.apart) > self.apart_most:
            self.apart = sorted({one[:2]: one for one in self.apart if _stands(one)}.values(), key=lambda one: one[:2])
            self.apart_most = 2 * len(self.apart) + SPARE

    @property
    def next(self) -> tuple[int, int] | None:
        """What may be taken next, as (priority below 0, position or that of its block); None: nothing. To be pruned before."""
        if self.apart_first:
            return self.apart[0][:2]
        return self.ready[0][:2] if self.ready else None

    @property
    def apart_first(self) -> bool:
        """Whether what may be taken next is set apart. To be pruned before."""
        if not self.apart or not self.ready:
            return bool(self.apart)
        priority, first, part = self.ready[0]
        return self.apart[0][:2] < (priority, first + part.states.find(FREE, part.cursor))

    def in_order(self) -> Iterator[tuple[Part, int]]:
        """What may be taken: (part, index). It may be taken meanwhile."""
        singles = (one for one in rising(self.apart) if _stands(one))
        for _, _, part, at in heapq.merge(self._free_in_order(), singles, key=_key):
            yield part, at

    def _free_in_order(self) -> Iterator[tuple[int, int, Part, int]]:
        for priority, first, part in rising(self.ready):
            at = part.states.find(FREE, part.cursor)
            while at >= 0:
                yield priority, first + at, part, at
                at = part.states.find(FREE, at + 1)


def _key(one: tuple[Any, ...]) -> tuple[int, int]:
    """The order of what may be taken: priority below 0, position."""
    return one[0], one[1]


def rising(heap: list[E]) -> Iterator[E]:
    """The entries of a heap, the least first. It may change meanwhile. There may be very many: they are sorted only for who wants more than
    a `FEW` of them."""
    entries = heap.copy()
    waiting = [(*_key(entries[0]), 0)] if entries else []
    for _ in range(min(FEW, len(entries))):
        at = heapq.heappop(waiting)[2]
        yield entries[at]
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(entries):
                heapq.heappush(waiting, (*_key(entries[child]), child))
    if len(entries) > FEW:
        yield from islice(sorted(entries, key=_key), FEW, None)


def _stands(one: tuple[int, int, Part, int]) -> bool:
    """Whether a message still waits with the priority that it had when it was set apart."""
    priority, _, part, index = one
    return part.states[index] == APART and part.block.priority_of(index) == -priority


class Block:
    """Messages that were put together. See the module.

    first: position of the first one; 0 until the queue gives it. at: when they were put, in milliseconds since 1970.
    metas, which: what their publishers said of them, and for each message which of these; None: the first. lengths: of the payloads.
    payloads: None: they are in the log only, at `place`. left: messages of parts that are not at an end.
    unusable: what a subscriber could not use: (number of the part, index). withdrawn, hidden: indexes that are UNAVAILABLE, or still PUT.
    priorities: of messages with one of their own, by index. departed: subscribers at their PUT that left before they had positions.
    """

    __slots__ = (
        "at",
        "count",
        "departed",
        "first",
        "grouped",
        "hidden",
        "key",
        "left",
        "lengths",
        "metas",
        "parts",
        "payloads",
        "place",
        "priorities",
        "size",
        "unusable",
        "weight",
        "which",
        "withdrawn",
    )

    def __init__(self, key: Key, at: int) -> None:
        self.key = key
        self.at = at
        self.first = 0
        self.count = 0
        self.metas: list[Meta] = []
        self.which: array[int] | None = None
        self.payloads: list[bytes] | None = []
        self.lengths: array[int] = array("I")
        self.size = 0
        self.weight = 0
        self.parts: list[Part] = []
        self.left = 0
        self.place: Place | None = None
        self.grouped = False
        self.unusable: set[tuple[int, int]] | None = None
        self.withdrawn: set[int] | None = None
        self.hidden: set[int] | None = None
        self.priorities: dict[int, int] | None = None
        self.departed: set[str] | None = None

    def add(self, payloads: list[bytes], metas: list[Meta]) -> int:
        """More messages: the index of the first. metas: what was said of each; one: of all."""
        assert self.payloads is not None
        start, count = self.count, len(payloads)
        self.payloads += payloads
        sizes = list(map(len, payloads))
        self.size += sum(sizes)
        self.lengths.fromlist(sizes)
        numbers = [self._number(metas[0])] * count if len(metas) == 1 else self._numbers(metas)
        if len(self.metas) > 1:
            if self.which is None:
                self.which = array("I", bytes(4 * start))
            self.which.extend(numbers)
        self.count = start + count
        return start

    def _number(self, meta: Meta) -> int:
        """The place of what was said of messages."""
        if not self.metas or meta != self.metas[-1]:
            self.metas.append(meta)
            self.grouped = self.grouped or bool(meta.group)
        return len(self.metas) - 1

    def _numbers(self, metas: list[Meta]) -> list[int]:
        """The same of each: most are few objects."""
        known: dict[int, int] = {}
        found = []
        for meta in metas:
            number = known.get(id(meta))
            if number is None:
                number = known[id(meta)] = self._number(meta)
            found.append(number)
        return found

    def weigh(self) -> int:
        """How many bytes of memory it stands for, without payloads."""
        said = sum([len(one.properties) + len(one.publisher) + len(one.handle) + len(one.group) for one in self.metas])
        self.weight = BLOCK_WEIGHT + MESSAGE_WEIGHT * self.count * max(1, len(self.parts)) + META_WEIGHT * len(self.metas) + said
        return self.weight

    def meta(self, index: int) -> Meta:
        """What the publisher said of a message."""
        return self.metas[self.which[index] if self.which is not None else 0]

    def described(self, start: int, stop: int) -> list[bytes]:
        """The properties of messages; an empty list: none has any."""
        known = [meta.properties for meta in self.metas]
        if not any(known):
            return []
        if self.which is None:
            return known[:1] * (stop - start)
        found = list(map(known.__getitem__, self.which[start:stop]))
        return found if any(found) else []

    def priority_of(self, index: int) -> int:
        """The priority of a message now."""
        return self.priorities.get(index, self.key.priority) if self.priorities is not None else self.key.priority

    def close(self, first: int) -> None:
        """No more messages: they have their positions."""
        self.first = first

    def holds(self, position: int) -> bool:
        """Whether a position is in it."""
        return self.first <= position < self.first + self.count

    @property
    def clean(self) -> list[int]:
        """The messages that somebody is still to get, by index, in order."""
        return sorted({at for part in self.parts for start, count, _ in part.runs(*CLEAN_BYTES) for at in range(start, start + count)})

    def payloads_in(self, body: bytes) -> list[bytes]:
        """The payloads in the bytes of the log."""
        cut, at = [], 0
        for length in self.lengths:
            cut.append(body[at : at + length])
            at += length
        return cut
