"""Custody: what an origin holds of QoS 1 and 2 until each destination's receipt, and how far each destination is.

The unit is the entry, one published run (or a part of it with its own shared-subscription picks). Entries have rising positions
(epoch, sequence). Each destination has two queues of entries, in order: `flight`, sent in the current tree and not yet
receipted, and `waiting`, not sent in the current tree. A new tree moves the flight back in front of the waiting ones; the
destination's JOIN says how far it is. In both queues a page (`pages.py`) may stand for entries that are on the disk only.

Two kinds of bounds. What is in memory is bounded for everybody together, and for each destination that takes messages: its publishers
wait. What waits for a destination that is away is bounded by `bounds.py`, and what happens at that bound is a matter of policy.

Invariants
- an entry's `open` bit of a destination is set exactly while that destination still owes the receipt; with the last bit the entry goes;
- what is sent to a destination in one tree is in order and without holes above the JOIN's position;
- bytes and messages in memory never pass the bounds, except when there is only one entry;
- while it is tight, what is taken is for destinations that have joined, and no more of it than may be on its way.

It does not know links, frames or trees; `dispatch.py` moves it.
"""

from __future__ import annotations

import heapq
from bisect import bisect, insort
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ..wire.control import NO_POSITION, Position
from ..wire.visited import numbers
from .bounds import AtBound, CustodyBounds, Policy
from .entry import OVERHEAD, Entry, size_of
from .pages import Page
from .watches import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..view.zones import Zone
    from ..wire.control import Receipt, Refusal
    from .journal import Journal

LONGEST_RENAMED = 2**28 - 2**18  # bytes of payload and properties that fit a packet whatever its topic is called on the way
STALLED = 5.0  # seconds after which a destination that takes nothing counts as away
PAGES_MOST = 20_000  # pages of one destination


class Admission(Enum):
    """What custody says of a run."""

    TAKEN = "taken"
    LATER = "later"  # there will be room soon: somebody who takes messages has too many
    NEVER = "never"  # a site that is away has all that may wait for it


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
    held_bytes, held_messages: held for it, in memory or in pages; paged_bytes, paged_messages: of these, in pages. pages: how many.
    zone: where it is in the current tree; None: no policy on the way.
    away: it cannot be reached. moved: when it took something last. deferred: a receipt that has to wait for a page.
    unfolded: entries of pages are in its queues.
    dropped, expired, refused: messages that the policy at its bound dropped, left out, or had refused.
    """

    __slots__ = (
        "away",
        "bit",
        "born",
        "credit_bytes",
        "credit_messages",
        "deferred",
        "dropped",
        "expired",
        "flight",
        "flight_bytes",
        "flight_messages",
        "granted_bytes",
        "held_bytes",
        "held_messages",
        "joined",
        "link",
        "mark",
        "moved",
        "name",
        "number",
        "paged_bytes",
        "paged_messages",
        "pages",
        "reached",
        "refused",
        "seen",
        "sent",
        "sent_born",
        "settled",
        "unfolded",
        "uuid",
        "waiting",
        "zone",
    )

    def __init__(self, number: int, uuid: bytes, name: str = "") -> None:
        self.name = name
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
        self.flight: deque[tuple[Entry | Page, int]] = deque()  # entry, messages of it that were sent
        self.waiting: deque[Entry | Page] = deque()
        self.flight_bytes = 0
        self.flight_messages = 0
        self.credit_bytes = 0
        self.credit_messages = 0
        self.granted_bytes = 0
        self.held_bytes = 0
        self.held_messages = 0
        self.paged_bytes = 0
        self.paged_messages = 0
        self.pages = 0
        self.zone: Zone | None = None
        self.moved = 0.0
        self.away = True
        self.deferred: Receipt | None = None
        self.unfolded = False
        self.dropped = self.expired = self.refused = 0

    def takes(self, now: float) -> bool:
        """Whether it takes messages, or will as soon as it has joined: it is not away."""
        return not self.away and (now - self.moved < STALLED or (self.joined and not self.flight))

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
        self.deferred = None
        if self.unfolded:
            self._fold()

    def _fold(self) -> None:
        """Entries of pages stand for nothing but their pages again."""
        self.unfolded = False
        folded: dict[Entry | Page, None] = {}
        for one in self.waiting:
            page = one.page if isinstance(one, Entry) else None
            folded[one if page is None else page] = None
            if page is not None:
                page.users &= ~self.bit
        self.waiting = deque(folded)
        for one in folded:
            if isinstance(one, Page):
                one.release()

    def next(self) -> Entry | Page | None:
        """The next entry to send, or the page that holds it; what is not open for it any more is thrown away."""
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

    def sent_of(self, refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
        """Refusals without what was never sent to it, which it cannot refuse."""
        epoch, last = self.sent
        found = [r._replace(last=min(r.last, last)) if r.epoch == epoch else r for r in refusals if (r.epoch, r.first) <= self.sent]
        return tuple(found)

    def start_of(self, entry: Entry) -> int:
        """The first sequence of an entry that the destination has not."""
        epoch, sequence = max(self.seen, self.settled)
        return max(entry.first, sequence + 1) if epoch == entry.epoch else entry.first

    def sending(self, entry: Entry | Page, count: int) -> None:
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

    def add_one(self, entry: Entry, now: float) -> None:
        """`add` and `sending` for an entry of one message."""
        size, last, flight = entry.size, entry.last, self.flight
        self.held_messages += 1
        self.held_bytes += size
        if not flight:
            self.moved = now
        flight.append((entry, 1))
        self.flight_messages += 1
        self.flight_bytes += size
        self.reached = last
        if last > self.sent:
            self.sent = last
        self.sent_born = self.born


class Custody:
    """All entries, bounded, and the destinations.

    tight: bytes that may be on their way to each destination, while the store has no room for more than that; 0: it has.
    messages, bytes: in memory. pages: by their orders. paged_messages, paged_bytes: in pages.

    `fits_one`, `Destination.add_one` and `_settle_one` are `fits`, `add` with `sending`, and `close` for a message that goes by itself.
    With `Relay.delivered_one` they take a quarter off what the brokers at both ends do for it (2,800 bytecode instructions instead of
    3,741, from one worker to another).
    """

    def __init__(self, messages: int, bytes_: int, part: float, bounds: CustodyBounds | None = None) -> None:
        """messages, bytes_: bounds of what is in memory. part: what one destination may hold of them. bounds: of sites that are away."""
        self.policy = Policy(bounds or CustodyBounds())
        self.pages: dict[int, Page] = {}
        self.paged_messages = 0
        self.paged_bytes = 0
        self._starts: list[Position] = []  # of pages, in order
        self._bound = messages, bytes_
        self._part = int(messages * part), int(bytes_ * part)
        rules = self.policy.bounds
        least = min([rules.bytes, *(rule.bytes for rule in rules.rules if rule.bytes is not None)])
        self._easy = -1 if self.policy.aged or rules.total else min(self._part[1], least)  # of one destination, below all bounds
        self.destinations: dict[int, Destination] = {}
        self.entries: dict[Position, Entry] = {}
        self.messages = 0
        self.bytes = 0
        self.tight = 0
        self.journal: Journal | None = None
        self.watches = Watches()
        self._refused: set[int | None] = set()  # for whose sake FULL was said and not taken back; None: the whole
        self._deadlines: list[tuple[float, Position]] = []

    def fits(self, count: int, size: int, mask: int) -> bool:
        """Whether so many messages and bytes are far from every bound, as most batches are; else `admit` says more."""
        if self.tight or self.messages + count > self._bound[0] or self.bytes + size > self._bound[1]:
            return False
        most, easy = self._part[0] - count, self._easy - size
        for number in numbers(mask) if mask & (mask - 1) else (mask.bit_length() - 1,):
            d = self.destinations.get(number)
            if d is not None and (d.held_messages > most or d.held_bytes > easy):
                return False
        return True

    def fits_one(self, mask: int, size: int) -> Sequence[Destination]:
        """The destinations of a set, if all are known and `fits` says so of one message of this size for them; else none."""
        if self.tight or self.messages >= self._bound[0] or self.bytes + size > self._bound[1]:
            return ()
        most, easy, destinations = self._part[0], self._easy - size, self.destinations
        found = [destinations.get(number) for number in numbers(mask)] if mask & (mask - 1) else (destinations.get(mask.bit_length() - 1),)
        for d in found:
            if d is None or d.held_messages >= most or d.held_bytes > easy:
                return ()
        return found  # type: ignore[return-value]  # none of them is None

    def admit(
        self, run: Batch, size: int, mask: int, now: float, clock: Callable[[], int], frees: bool = False
    ) -> tuple[Admission, int, list[tuple[Destination, int]]]:
        """Whether a run may be taken for these destinations; for which of them it is left out; of whom how many bytes have to go for it.

        now: the node's clock in seconds. clock: says how many ms have passed since 1970. frees: it makes room elsewhere in the store.
        """
        later = bool(self.entries) and (self.messages + run.count > self._bound[0] or self.bytes + size > self._bound[1])
        if later:
            self._refused.add(None)
        left, never = 0, False
        drops: list[tuple[Destination, int]] = []
        for number in numbers(mask):
            d = self.destinations.get(number)
            if not self.tight and (d is None or not d.held_messages):
                continue
            excess = self._excess(d, run.count, size, now, clock, frees)
            if not excess:
                continue
            if d is not None and d.takes(now):
                self._refused.add(number)
                later = True
                continue
            name = "" if d is None else d.name
            what = self.policy.at_bound(number, name, run.topic)
            if what is AtBound.REFUSE:
                self._refused.add(number)
                never = True
                if d is not None:
                    d.refused += run.count
            elif what is AtBound.DROP_OLDEST and d is not None:
                drops.append((d, excess))
            else:
                left |= 1 << number
        if never or later:
            return Admission.NEVER if never else Admission.LATER, 0, []
        return Admission.TAKEN, left, drops

    def _excess(self, d: Destination | None, count: int, size: int, now: float, clock: Callable[[], int], frees: bool) -> int:
        """By how many bytes a destination would pass its bound, 0: it does not."""
        loaded = 0 if d is None else d.held_bytes - d.paged_bytes
        if self.tight and not frees and (d is None or not d.joined or (loaded and loaded + size > self.tight)):
            return size
        if d is None or not d.held_messages:
            return 0
        if self.journal is None or d.takes(now):
            over = max(loaded + size - self._part[1], 0)
            if not over and d.held_messages - d.paged_messages + count > self._part[0]:
                over = max(1, self._part[1] >> 4)
            if over or self.journal is None:
                return over
        return self._beyond(d, size, clock)

    def _beyond(self, d: Destination, size: int, clock: Callable[[], int]) -> int:
        """The same for what waits on the disk."""
        bounds = self.policy.bounds
        over = d.held_bytes + size - self.policy.bytes_of(d.number, d.name)
        if bounds.total:
            over = max(over, self.bytes + self.paged_bytes + size - bounds.total)
        if d.pages > PAGES_MOST or (self.policy.aged and self.too_old(d, clock())):
            over = max(over, size)
        return max(over, 0)

    def too_old(self, d: Destination, wall: int) -> bool:
        """Whether something has waited for a destination for longer than it may. wall: ms since 1970."""
        age = self.policy.age_of(d.number, d.name)
        return bool(age and d.waiting and wall - d.waiting[0].time > age * 1000)

    @property
    def refuses(self) -> bool:
        """Whether something was refused, and nobody was told since that there is room."""
        return bool(self._refused)

    def unblocked(self, now: float, clock: Callable[[], int]) -> bool:
        """Whether what was refused may be tried again by some: where it was said, a quarter of the bound is free again."""
        if not self._refused:
            return False
        freed = [who for who in self._refused if self._has_space(who, now, clock)]
        self._refused.difference_update(freed)
        return bool(freed)

    def _has_space(self, who: int | None, now: float, clock: Callable[[], int]) -> bool:
        if who is None:
            return self.messages * 4 <= self._bound[0] * 3 and self.bytes * 4 <= self._bound[1] * 3
        d = self.destinations.get(who)
        loaded = 0 if d is None else d.held_bytes - d.paged_bytes
        if self.tight:
            return d is not None and d.joined and loaded * 4 <= self.tight * 3
        if d is None:
            return True
        if self.journal is not None:
            most = self.policy.bytes_of(d.number, d.name)
            if d.held_bytes * 4 > most * 3 or self._beyond(d, most >> 4, clock):
                return False
            if not d.takes(now):
                return True
        return (d.held_messages - d.paged_messages) * 4 <= self._part[0] * 3 and loaded * 4 <= self._part[1] * 3

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
        if entry.page is not None:
            self._close_in(entry.page, d, entry, settled)
        elif not entry.open:
            del self.entries[entry.epoch, entry.first]
            self.messages -= entry.count
            self.bytes -= entry.size
            if self.journal is not None:
                self.journal.drop(entry)
        elif self.journal is not None and not settled:
            self.journal.change(entry)

    # ---- pages

    def put_page(self, page: Page) -> None:
        """Hold a page. Its destinations must exist; the caller puts it into their queues."""
        self.pages[page.order] = page
        self.paged_messages += page.count
        self.paged_bytes += page.size
        insort(self._starts, (page.epoch, page.first))
        for number, (messages, size) in page.held.items():
            d = self.destinations.get(number)
            if d is not None and number not in page.leaving:
                d.held_messages += messages
                d.held_bytes += size
                d.paged_messages += messages
                d.paged_bytes += size
                d.pages += 1

    def page_out(self, entries: list[Entry], drop: int, expire: int) -> Page:
        """Entries that the store has become a page; the caller puts it into the queues in their place."""
        assert self.journal is not None
        for entry in entries:
            del self.entries[entry.epoch, entry.first]
            self.messages -= entry.count
            self.bytes -= entry.size
            for number in numbers(entry.open):
                d = self.destinations[number]
                d.held_messages -= entry.count
                d.held_bytes -= entry.size
        page = self.journal.page(entries, drop, expire)
        self.put_page(page)
        if len(self._deadlines) > 2 * len(self.entries) + 1000:
            self._deadlines = [one for one in self._deadlines if one[1] in self.entries]
            heapq.heapify(self._deadlines)
        return page

    def divides(self, one: Position, other: Position) -> bool:
        """Whether a page begins between two positions."""
        return bisect(self._starts, one) != bisect(self._starts, other)

    def load(self, page: Page, entries: list[Entry]) -> None:
        """The entries of a page are in memory. What receipts said since they were written is not in them."""
        page.entries = entries
        for number in list(page.held):
            bit = 1 << number
            mine = [entry for entry in entries if entry.open & bit]
            was, page.held[number] = page.held[number], [sum(e.count for e in mine), sum(e.size for e in mine)]
            d = self.destinations.get(number)
            if d is None or number in page.leaving:
                continue
            messages, size = page.held[number][0] - was[0], page.held[number][1] - was[1]
            d.held_messages += messages
            d.paged_messages += messages
            d.held_bytes += size
            d.paged_bytes += size
            for entry in mine:
                if entry.last <= d.settled:
                    self.close(d, entry, True)
            if not mine:
                self.close_page(d, page, True)

    def _close_in(self, page: Page, d: Destination, entry: Entry, settled: bool) -> None:
        held = page.held[d.number]
        held[0] -= entry.count
        held[1] -= entry.size
        if d.number not in page.leaving:
            d.paged_messages -= entry.count
            d.paged_bytes -= entry.size
        if held[0] <= 0:
            self._leave_page(page, d, settled)
        elif not settled and self.journal is not None:
            self.journal.rewrite(page)

    def close_page(self, d: Destination, page: Page, settled: bool = False) -> int:
        """The destination owes nothing for a page any more: how many messages it owed. settled: by a receipt."""
        if not page.open & d.bit:
            return 0
        messages, size = page.held[d.number]
        d.held_messages -= messages
        d.held_bytes -= size
        d.paged_messages -= messages
        d.paged_bytes -= size
        for entry in page.entries or ():
            entry.open &= ~d.bit
        if self.watches.legs:
            self.watches.closed_between((page.epoch, page.first), page.last, d.bit, settled)
        self._leave_page(page, d, settled)
        return messages

    def _leave_page(self, page: Page, d: Destination, settled: bool) -> None:
        del page.held[d.number]
        d.pages -= 1
        page.leaving.pop(d.number, None)
        page.cleared.pop(d.number, None)
        page.open &= ~d.bit
        page.users &= ~d.bit
        if not page.open:
            del self.pages[page.order]
            self.paged_messages -= page.count
            self.paged_bytes -= page.size
            del self._starts[bisect(self._starts, (page.epoch, page.first)) - 1]
            if self.journal is not None:
                self.journal.page_gone(page)
            return
        if not settled and self.journal is not None:
            self.journal.page_changed(page)
        page.release()

    # ---- receipts

    def settle(self, d: Destination, position: Position) -> None:
        """A receipt: all up to the position is done at this destination."""
        if position <= d.settled:
            return
        d.settled = position
        if self.journal is not None:
            self.journal.destination(d)
        flight = d.flight
        watched = bool(self.watches.legs)
        while flight and flight[0][0].last <= position:
            entry, count = flight.popleft()
            d.flight_messages -= count
            if count == 1 and not watched and type(entry) is Entry and entry.count == 1 and entry.open == d.bit and entry.page is None:
                self._settle_one(d, entry)
                continue
            d.flight_bytes -= count * (entry.size // entry.count)
            self._settled(d, entry)
        waiting = d.waiting
        while waiting and waiting[0].last <= position:
            self._settled(d, waiting.popleft())

    def _settle_one(self, d: Destination, entry: Entry) -> None:
        """`close` for one message that was under way, that nobody watches, and that nobody else owes the receipt for."""
        size = entry.size
        entry.open = 0
        d.flight_bytes -= size
        d.held_messages -= 1
        d.held_bytes -= size
        del self.entries[entry.last]
        self.messages -= 1
        self.bytes -= size
        if self.journal is not None:
            self.journal.drop(entry)

    def _settled(self, d: Destination, one: Entry | Page) -> None:
        if isinstance(one, Page):
            self.close_page(d, one, True)
        else:
            self.close(d, one, True)

    def split_spans(self) -> None:
        """Nothing is under way: a span of which some messages may come to a destination, and others not, becomes runs of one message."""
        guarded = [d for d in self.destinations.values() if d.zone is not None]
        if not guarded:
            return
        split: dict[Position, list[Entry]] = {}
        for position, entry in self.entries.items():
            if not entry.run.uniform and any(entry.open & d.bit and divided(entry.run, d.zone) for d in guarded):
                split[position] = []
        for position, parts in split.items():
            parts += self._split(self.entries[position])
        if split:
            for d in self.destinations.values():
                d.waiting = deque([part for e in d.waiting for part in self._in_parts(e, split)])

    @staticmethod
    def _in_parts(one: Entry | Page, split: dict[Position, list[Entry]]) -> Sequence[Entry | Page]:
        return (one,) if isinstance(one, Page) else split.get((one.epoch, one.first), (one,))

    def _split(self, entry: Entry) -> list[Entry]:
        del self.entries[entry.epoch, entry.first]
        self.messages -= entry.count
        self.bytes -= entry.size
        if self.journal is not None:
            self.journal.drop(entry)
        parts = entry.singles()
        for part in parts:
            self.put(part)
        self.watches.split(entry, parts)
        for d in self.destinations.values():
            if entry.open & d.bit:
                d.held_bytes += sum(part.size for part in parts) - entry.size
                for part in parts:
                    if part.last <= d.settled:
                        self.close(d, part, True)
        return parts

    def open_for(self, d: Destination) -> list[Entry]:
        """What a destination still owes, in order, as far as it is in memory."""
        found: list[Entry] = []
        for one in (*(entry for entry, _ in d.flight), *d.waiting):
            if isinstance(one, Entry):
                found.append(one)
            else:
                found += one.entries or ()
        return [entry for entry in found if entry.open & d.bit]

    def pages_for(self, d: Destination) -> list[Page]:
        """The pages of which a destination still owes something, and of which it has nothing in its queues by itself."""
        queues = (*(entry for entry, _ in d.flight), *d.waiting)
        return [one for one in queues if isinstance(one, Page) and one.open & d.bit]

    @property
    def timed(self) -> bool:
        """Whether entries expire, or may become too old."""
        return bool(self._deadlines) or self.policy.aged

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


def divided(run: Batch, zone: Zone | None) -> bool:
    """Whether some messages of a span may come to a zone, and others not."""
    return zone is not None and len({zone.name(topic) is None for topic in run.parts().topics}) > 1


__all__ = ["OVERHEAD", "Admission", "Custody", "Destination", "Entry", "divided", "size_of"]
