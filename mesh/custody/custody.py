"""Custody: what an origin holds of QoS 1 and 2 until each destination's receipt, and how far each destination is.

The unit is the entry, one published run (or a part of it with its own shared-subscription picks). Entries have rising positions
(epoch, sequence). Each destination has two queues of entries, in order: `flight`, sent in the current tree and not yet
receipted, and `waiting`, not sent in the current tree. A new tree moves the flight back in front of the waiting ones; the
destination's JOIN says how far it is.

Invariants
- an entry's `open` bit of a destination is set exactly while that destination still owes the receipt; with the last bit the entry goes;
- what is sent to a destination in one tree is in order and without holes above the JOIN's position;
- bytes and messages held never pass the bounds, except when there is only one entry;
- while it is tight, what is taken is for destinations that have joined, and no more of it than may be on its way.

It does not know links, frames or trees; `dispatch.py` moves it.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ..wire.control import NO_POSITION, Position
from ..wire.envelope import Picks
from ..wire.visited import numbers
from .watches import Watches

if TYPE_CHECKING:
    from ..view.zones import Zone
    from .journal import Journal

LONGEST_RENAMED = 2**28 - 2**18  # bytes of payload and properties that fit a packet whatever its topic is called on the way
OVERHEAD = 96  # bytes counted for each message beside its payload


class Entry:
    """One run in custody.

    first, count: its sequences.
    last: the position of its last message.
    open: destinations that owe the receipt.
    ordinary: destinations with ordinary subscriptions.
    picks: (shared subscription, broker).
    refusers: brokers that found no member for its pick.
    picks_only: ordinary subscriptions have it already.
    time: publish time in ms.
    deadline: when it expires, on the caller's clock, or None.
    order, mark: number and batch of its record, where there is a store.
    hold: it is sent only after the commit.
    here: it was re-picked for members of this broker.
    kept: the mark of a message that is to be retained; such an entry has one message.
    """

    __slots__ = (
        "count",
        "deadline",
        "epoch",
        "first",
        "here",
        "hold",
        "kept",
        "last",
        "mark",
        "open",
        "order",
        "ordinary",
        "picks",
        "picks_only",
        "refusers",
        "repeated",
        "run",
        "size",
        "time",
    )

    def __init__(self, epoch: int, first: int, run: Batch, mask: int, picks: Picks, time: int) -> None:
        self.epoch = epoch
        self.first = first
        self.run = run
        self.count = run.count
        self.open = mask
        self.ordinary = mask
        self.picks = picks
        self.refusers = 0
        self.picks_only = False
        self.repeated = False
        self.time = time
        self.deadline: float | None = None
        self.order = self.mark = 0
        self.hold = self.here = False
        self.kept = b""
        self.last: Position = (epoch, first + run.count - 1)
        self.size = size_of(run)


def size_of(run: Batch) -> int:
    """The bytes that a run counts against the bounds."""
    return run.count * (run.length + len(run.topic) + len(run.properties) + OVERHEAD)


class Destination:
    """How far one broker is with this origin.

    joined: it has said its position in the current tree.
    mark: of the records that say so, where there is a store.
    link: the tree's link towards it.
    settled: everything up to this position has its receipt.
    sent: the highest position ever sent to it.
    sent_born: since when the broker that was sent this remembers.
    reached: the highest position sent in this tree.
    flight_bytes, flight_messages: under way.
    credit_bytes, credit_messages: how much may be under way.
    granted_bytes: how far the credit may grow.
    zone: where it is in the current tree; None: no policy on the way.
    """

    __slots__ = (
        "bit",
        "born",
        "credit_bytes",
        "credit_messages",
        "flight",
        "flight_bytes",
        "flight_messages",
        "granted_bytes",
        "held_bytes",
        "held_messages",
        "joined",
        "link",
        "mark",
        "number",
        "reached",
        "seen",
        "sent",
        "sent_born",
        "settled",
        "uuid",
        "waiting",
        "zone",
    )

    def __init__(self, number: int, uuid: bytes) -> None:
        self.number = number
        self.bit = 1 << number
        self.uuid = uuid
        self.born = 0  # since when it remembers, as it said last
        self.joined = False
        self.mark = 0
        self.link: int | None = None
        self.settled: Position = NO_POSITION
        self.seen: Position = NO_POSITION  # of the last JOIN
        self.reached: Position = NO_POSITION
        self.sent: Position = NO_POSITION
        self.sent_born = 0
        self.flight: deque[tuple[Entry, int]] = deque()  # entry, messages of it that were sent
        self.waiting: deque[Entry] = deque()
        self.flight_bytes = 0
        self.flight_messages = 0
        self.credit_bytes = 0
        self.credit_messages = 0
        self.granted_bytes = 0
        self.held_bytes = 0
        self.held_messages = 0
        self.zone: Zone | None = None

    @property
    def has_credit(self) -> bool:
        """Whether one more entry may be sent."""
        return not self.flight or (self.flight_bytes < self.credit_bytes and self.flight_messages < self.credit_messages)

    @property
    def waits(self) -> str:
        """Why what is held for it is not there yet: "reach" (no link towards it), "join" (it has not said yet how far it is), "credit" (it
        takes no more before it confirms), "receipt" (all of it is under way); "" when nothing is held."""
        if not self.held_messages:
            return ""
        if not self.joined:
            return "reach" if self.link is None else "join"
        return "credit" if self.waiting and not self.has_credit else "receipt"

    def leave(self) -> None:
        """The tree is not current any more: nothing is under way, all waits for the next JOIN."""
        self.joined = False
        self.link = None
        self.waiting.extendleft(entry for entry, _ in reversed(self.flight))
        self.flight.clear()
        self.flight_bytes = self.flight_messages = 0
        self.reached = NO_POSITION

    def next(self) -> Entry | None:
        """The next entry to send, entries that are not open for it any more thrown away."""
        waiting = self.waiting
        while waiting:
            if waiting[0].open & self.bit:
                return waiting[0]
            waiting.popleft()
        return None

    def forbidden(self, run: Batch) -> bool:
        """Whether a policy on the way lets no message of the run through."""
        if self.zone is None:
            return False
        if run.length + len(run.properties) > LONGEST_RENAMED:
            return True
        name = self.zone.name
        return all(name(topic) is None for topic in run.parts().topics) if not run.uniform else name(run.topic) is None

    def start_of(self, entry: Entry) -> int:
        """The first sequence of an entry that the destination has not."""
        epoch, sequence = max(self.seen, self.settled)
        return max(entry.first, sequence + 1) if epoch == entry.epoch else entry.first

    def sending(self, entry: Entry, count: int) -> None:
        """`count` messages of an entry go out now."""
        self.flight.append((entry, count))
        self.flight_messages += count
        self.flight_bytes += count * (entry.size // entry.count)
        self.reached = entry.last
        if self.reached > self.sent:
            self.sent = self.reached
        self.sent_born = self.born

    def add(self, entry: Entry) -> None:
        """Count an entry that is held for it."""
        self.held_messages += entry.count
        self.held_bytes += entry.size


class Custody:
    """All entries, bounded, and the destinations.

    tight: bytes that may be on their way to each destination, while the store has no room for more than that; 0: it has.
    """

    def __init__(self, messages: int, bytes_: int, part: float) -> None:
        """messages, bytes_: bounds of the whole. part: what one destination may hold of them."""
        self._bound = messages, bytes_
        self._part = int(messages * part), int(bytes_ * part)
        self.destinations: dict[int, Destination] = {}
        self.entries: dict[Position, Entry] = {}
        self.messages = 0
        self.bytes = 0
        self.tight = 0
        self.journal: Journal | None = None
        self.watches = Watches()
        self._refused: set[int | None] = set()  # for whose sake FULL was said and not taken back; None: the whole
        self._deadlines: list[tuple[float, Position]] = []

    def fits(self, count: int, size: int, mask: int, frees: bool = False) -> bool:
        """Whether so many messages and bytes for these destinations may be taken. frees: they make room elsewhere in the store."""
        if self.entries and (self.messages + count > self._bound[0] or self.bytes + size > self._bound[1]):
            self._refused.add(None)
            return False
        for number in numbers(mask):
            d = self.destinations.get(number)
            if self.tight and not frees and (d is None or not d.joined or (d.held_messages and d.held_bytes + size > self.tight)):
                self._refused.add(number)
                return False
            if d is None or not d.held_messages:
                continue
            if d.held_messages + count > self._part[0] or d.held_bytes + size > self._part[1]:
                self._refused.add(number)
                return False
        return True

    def unblocked(self) -> bool:
        """Whether FULL can be taken back for some: where it was said, a quarter of the bound is free again."""
        if not self._refused:
            return False
        freed = [who for who in self._refused if self._has_space(who)]
        self._refused.difference_update(freed)
        return bool(freed)

    def _has_space(self, who: int | None) -> bool:
        if who is None:
            return self.messages * 4 <= self._bound[0] * 3 and self.bytes * 4 <= self._bound[1] * 3
        d = self.destinations.get(who)
        if self.tight:
            return d is not None and d.joined and d.held_bytes * 4 <= self.tight * 3
        return d is None or (d.held_messages * 4 <= self._part[0] * 3 and d.held_bytes * 4 <= self._part[1] * 3)

    def put(self, entry: Entry) -> None:
        """Hold an entry. Its destinations must exist; the caller puts it into their queues."""
        self.entries[entry.epoch, entry.first] = entry
        self.messages += entry.count
        self.bytes += entry.size
        if entry.deadline is not None:
            heapq.heappush(self._deadlines, (entry.deadline, (entry.epoch, entry.first)))
        if self.journal is not None and not entry.order:
            self.journal.put(entry)

    def close(self, d: Destination, entry: Entry, settled: bool = False) -> None:
        """The destination owes nothing for this entry any more; with the last destination the entry goes. settled: by a receipt."""
        if not entry.open & d.bit:
            return
        entry.open ^= d.bit
        if self.watches.legs:
            self.watches.closed(entry, d.bit, settled)
        d.held_messages -= entry.count
        d.held_bytes -= entry.size
        if not entry.open:
            del self.entries[entry.epoch, entry.first]
            self.messages -= entry.count
            self.bytes -= entry.size
            if self.journal is not None:
                self.journal.drop(entry)
        elif self.journal is not None and not settled:
            self.journal.change(entry)

    def settle(self, d: Destination, position: Position) -> None:
        """A receipt: all up to the position is done at this destination."""
        if position <= d.settled:
            return
        d.settled = position
        if self.journal is not None:
            self.journal.destination(d)
        flight = d.flight
        while flight and flight[0][0].last <= position:
            entry, count = flight.popleft()
            d.flight_messages -= count
            d.flight_bytes -= count * (entry.size // entry.count)
            self.close(d, entry, True)
        waiting = d.waiting
        while waiting and waiting[0].last <= position:
            self.close(d, waiting.popleft(), True)

    def split_spans(self) -> None:
        """Nothing is under way: a span of which some messages may come to a destination, and others not, becomes runs of one message."""
        guarded = [d for d in self.destinations.values() if d.zone is not None]
        if not guarded:
            return
        split: dict[Position, list[Entry]] = {}
        for position, entry in self.entries.items():
            if not entry.run.uniform and any(entry.open & d.bit and _divided(entry.run, d.zone) for d in guarded):
                split[position] = []
        for position, parts in split.items():
            parts += self._split(self.entries[position])
        if split:
            for d in self.destinations.values():
                d.waiting = deque([part for e in d.waiting for part in split.get((e.epoch, e.first), (e,))])

    def _split(self, entry: Entry) -> list[Entry]:
        run = entry.run
        assert not run.uniform
        messages = run.parts()
        del self.entries[entry.epoch, entry.first]
        self.messages -= entry.count
        self.bytes -= entry.size
        if self.journal is not None:
            self.journal.drop(entry)
        parts = []
        for index in range(entry.count):
            part = Entry(entry.epoch, entry.first + index, messages.single(index), entry.open, (), entry.time)
            part.ordinary, part.hold = entry.ordinary, entry.hold
            self.put(part)
            parts.append(part)
        self.watches.split(entry, parts)
        for d in self.destinations.values():
            if entry.open & d.bit:
                d.held_bytes += sum(part.size for part in parts) - entry.size
                for part in parts:
                    if part.last <= d.settled:
                        self.close(d, part, True)
        return parts

    def open_for(self, d: Destination) -> list[Entry]:
        """What a destination still owes, in order."""
        return [e for e in (*(entry for entry, _ in d.flight), *d.waiting) if e.open & d.bit]

    def next_deadline(self) -> float | None:
        """When the next entry expires."""
        heap = self._deadlines
        while heap and heap[0][1] not in self.entries:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def expired(self, now: float) -> list[Entry]:
        """Entries whose time has come, each once."""
        found = []
        heap = self._deadlines
        while heap and heap[0][0] <= now:
            entry = self.entries.get(heapq.heappop(heap)[1])
            if entry is not None:
                found.append(entry)
        return found


def _divided(run: Batch, zone: Zone | None) -> bool:
    """Whether some messages of a span may come to a zone, and others not."""
    return zone is not None and len({zone.name(topic) is None for topic in run.parts().topics}) > 1
