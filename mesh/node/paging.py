"""Moves custody that nobody can be sent now to the disk, and back: pages (custody/pages.py).

Strategy. When the messages in memory that wait for sites that are away, or far behind, pass a bound, the oldest of them become pages,
some at a time. A page is read when one of its destinations has come to it, a few ahead; when somebody else can serve its shared
subscriptions; and when a destination is given up and its messages are not to be lost unseen. The shell reads (`ReadPage`) and answers
(`read`).

Invariants
- only entries that the store has, and that are on their way to nobody, become pages;
- a page is read only after the commit that holds what was written of it last;
- of pages that nobody is sent, one at a time is read.

It does not know frames and receipts; `dispatch.py` sends.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from ..custody.bounds import AtBound
from ..custody.custody import Custody, Destination, Entry, divided
from ..custody.pages import Page, decode_body
from ..view.linkstate import LinkStates
from ..wire.control import NO_POSITION, Position, Refusal
from ..wire.visited import numbers
from .actions import GivenUp, ReadPage
from .core import Core
from .shared_picks import Shares

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..custody.journal import Journal

AHEAD = 4  # pages that are read ahead for a destination
A_TURN = 2  # pages that are made at once, so that others have their turn


class Pager:
    """The pages of one origin."""

    def __init__(
        self,
        core: Core,
        states: LinkStates,
        custody: Custody,
        shares: Shares,
        give: Callable[[Destination, Entry, str], None],
    ) -> None:
        """give: returns an entry that a destination will not get, with the reason."""
        self._core = core
        self._states = states
        self._custody = custody
        self._shares = shares
        self._give = give
        self._todo: deque[Page] = deque()  # to be read for other reasons than that they are sent
        self._reading: Page | None = None  # the one of these that is being read
        self._departed: dict[tuple[int, int], Destination] = {}  # (page, number) of destinations that are given up
        self._deadlines: list[tuple[float, int]] = []  # of pages
        self._fruitless = 0  # messages in memory at which nothing could be moved

    @property
    def _journal(self) -> Journal:
        assert self._core.journal is not None
        return self._core.journal

    # ---- to the disk

    def stir(self) -> None:
        """What could not be moved before may be moved now."""
        self._fruitless = 0

    @property
    def busy(self) -> bool:
        """Whether something may have to be moved to or from the disk, or is there and may expire."""
        custody, config = self._custody, self._core.config
        return bool(self._todo or custody.pages) or custody.messages > config.keep_messages or custody.bytes > config.keep_bytes

    def spill(self) -> None:
        """Move to the disk what is too much in memory and may go there."""
        custody, config = self._custody, self._core.config
        if custody.messages <= config.keep_messages and custody.bytes <= config.keep_bytes:
            return
        if self._core.journal is None or (self._fruitless and custody.messages < self._fruitless + config.page_messages):
            return
        behind = joined = 0
        over = False
        for d in custody.destinations.values():
            if d.held_messages and (d.paged_messages or not d.takes(self._core.now)):
                behind |= d.bit
                joined |= d.bit if d.joined else 0
                over = over or d.held_messages - d.paged_messages > config.keep_messages or d.held_bytes - d.paged_bytes > config.keep_bytes
        groups = self._groups(behind, joined) if over else []
        self._fruitless = 0 if groups else custody.messages
        for group in groups:
            self._page_out(group)
        if groups:
            self._core.stirred = True

    def _groups(self, behind: int, joined: int) -> list[list[Entry]]:
        """Entries that go to the disk together, each group without a hole for any destination."""
        custody, journal, config = self._custody, self._journal, self._core.config
        found: list[list[Entry]] = []
        group: list[Entry] = []
        messages = size = 0
        for entry in custody.entries.values():
            may = not entry.open & ~behind and journal.stored(entry) and not (entry.open & joined and self._under_way(entry))
            position = (entry.epoch, entry.first)
            if group and (not may or position <= group[-1].last or custody.divides(group[-1].last, position)):
                if 4 * messages >= config.page_messages or 4 * size >= config.page_bytes:
                    found.append(group)
                group, messages, size = [], 0, 0
            if may:
                group.append(entry)
                messages += entry.count
                size += entry.size
                if messages >= config.page_messages or size >= config.page_bytes:
                    found.append(group)
                    group, messages, size = [], 0, 0
            if len(found) >= A_TURN:
                break
        return found

    def _under_way(self, entry: Entry) -> bool:
        position = (entry.epoch, entry.first)
        return any(position <= self._custody.destinations[number].reached for number in numbers(entry.open))

    def _page_out(self, group: list[Entry]) -> None:
        custody, core = self._custody, self._core
        kinds: dict[tuple[int, int], list[Entry]] = {}
        everybody = 0
        for entry in group:
            everybody |= entry.open
            kinds.setdefault(self._may_go(entry), []).append(entry)
        queues = {number: self._cut_out(custody.destinations[number], group) for number in numbers(everybody)}
        pages = []
        for (drop, expire), entries in kinds.items():
            page = custody.page_out(entries, drop, expire)
            pages.append(page)
            core.counters.custody_stored += page.count
            self.held(page)
        for number, index in queues.items():
            d = custody.destinations[number]
            d.waiting.extendleft(page for page in reversed(pages) if page.open & d.bit)
            d.waiting.rotate(index)

    def held(self, page: Page) -> None:
        """A page is held from now on: it goes when all of it has expired."""
        if page.deadline is not None:
            heapq.heappush(self._deadlines, (page.deadline, page.order))

    @staticmethod
    def _cut_out(d: Destination, group: list[Entry]) -> int:
        """Take the entries of a group out of a queue, which then begins behind them; how far it was turned for that."""
        mine = [entry for entry in group if entry.open & d.bit]
        index = d.waiting.index(mine[0])
        d.waiting.rotate(-index)
        for entry in mine:
            while (one := d.waiting.popleft()) is not entry:
                assert not one.open & d.bit, "a hole in a page"
        return index

    def _may_go(self, entry: Entry) -> tuple[int, int]:
        """The destinations for which a policy lets an entry go first, and those for which it lets it go when it is old."""
        policy, drop, expire = self._custody.policy, 0, 0
        if policy.strict or entry.run.topic.startswith(b"$"):
            return 0, 0
        for number in numbers(entry.open):
            what = self._at_bound(self._custody.destinations[number], entry.run)
            drop |= (what is AtBound.DROP_OLDEST) << number
            expire |= (what is not AtBound.REFUSE) << number
        return drop, expire

    def _at_bound(self, d: Destination, run: Batch) -> AtBound:
        policy = self._custody.policy
        if run.uniform:
            return policy.at_bound(d.number, d.name, run.topic)
        what = {policy.at_bound(d.number, d.name, topic) for topic in run.topics}
        return what.pop() if len(what) == 1 else AtBound.REFUSE

    # ---- from the disk, for those who come to it

    def head(self, d: Destination) -> bool:
        """A queue begins with a page: whether its entries are there instead now; if not, it is being read."""
        cluster: list[Page] = []
        reach: Position = NO_POSITION
        for one in d.waiting:
            if not isinstance(one, Page) or (cluster and (one.epoch, one.first) > reach):
                break
            cluster.append(one)
            reach = max(reach, one.last)
        for one in islice(d.waiting, len(cluster), len(cluster) + AHEAD):
            if isinstance(one, Page) and one.entries is None:
                self._ask(one)
        missing = [page for page in cluster if page.open & d.bit and (page.entries is None or page.dirty)]
        if missing:
            for page in missing:
                self._ask(page)
            return False
        for _ in cluster:
            d.waiting.popleft()
        for page in cluster:
            for entry in [entry for entry in page.entries or () if entry.open & d.bit and entry.last <= d.settled]:
                self._custody.close(d, entry, True)
        found = [entry for page in cluster if page.open & d.bit for entry in page.entries or () if entry.open & d.bit]
        for page in cluster:
            page.users |= page.open & d.bit
        d.waiting.extendleft(sorted(found, key=_descending))
        d.unfolded = True
        while d.waiting and d.waiting[0].last <= d.seen:
            one = d.waiting.popleft()
            d.sending(one, one.count)
        return True

    def _ask(self, page: Page) -> None:
        journal = self._journal
        if page.asked:
            return
        if page.dirty or page.mark > journal.committed:
            journal.waiting = True
            return
        page.asked = True
        self._core.actions.append(ReadPage(page.order))

    def read(self, order: int, body: bytes | None) -> None:
        """The shell has read a page; None: it is damaged. Receipts that waited for it are to be tried again."""
        page = self._custody.pages.get(order)
        if page is None:
            self._go_on(order)
            return
        if page.entries is None:
            self._load(page, body)
        if page.entries is not None:
            self._look_through(page)
        page.asked = False  # not before: a destination that turns out to be done would have the entries released
        held = [self._custody.destinations.get(number) for number in numbers(page.open)]
        if not any(d is not None and (d.joined or d.deferred is not None) for d in held):
            page.release()
        self._go_on(order)

    def _load(self, page: Page, body: bytes | None) -> None:
        why = "it is not there"
        if body is not None:
            try:
                entries = decode_body(body, page, self._core.kept_offset)
            except ValueError as error:
                why = str(error)
            else:
                self._core.counters.custody_read += page.count
                self._custody.load(page, self._in_parts(page, entries))
                return
        text = f"{page.count} messages in custody cannot be read: {why}"
        self._core.event("custody_damaged", page=page.order, messages=page.count, text=text)
        for number in list(numbers(page.open)):
            self.give_up(self._owner(page, number), page, "damaged")

    def _in_parts(self, page: Page, entries: list[Entry]) -> list[Entry]:
        """A span of which some messages may come to a destination, and others not, as entries of one message."""
        guarded = [d for n in numbers(page.open) if (d := self._custody.destinations.get(n)) is not None and d.zone is not None]
        if not guarded:
            return entries
        found: list[Entry] = []
        for entry in entries:
            if entry.run.uniform or not any(entry.open & d.bit and divided(entry.run, d.zone) for d in guarded):
                found.append(entry)
                continue
            parts = entry.singles()
            self._custody.watches.split(entry, parts)
            found += parts
        return found

    def _owner(self, page: Page, number: int) -> Destination:
        """Who the bit of a page stands for."""
        if number in page.leaving:
            d = self._departed.get((page.order, number))
            if d is None:
                d = Destination(number, b"")
                _, d.settled, d.sent = page.leaving[number]
            return d
        return self._custody.destinations[number]

    # ---- from the disk, for other reasons

    def _look_through(self, page: Page) -> None:
        """Do with the entries of a page what was to be done when it is read."""
        former = self._core.former
        if former is not None:  # a part of it is held by whoever keeps the former identity
            for entry in [entry for entry in page.entries or () if former.others(*entry.last)]:
                for number in list(numbers(entry.open)):
                    self._custody.close(self._owner(page, number), entry, True)
        for number, position in list(page.cleared.items()):
            d = self._owner(page, number)
            for entry in page.entries or ():
                if entry.open & d.bit and (entry.epoch, entry.first) <= position:
                    self._core.counters.cleared += entry.count
                    self._give(d, entry, "cleared")
            if page.cleared.pop(number, None) is not None:
                self._journal.page_changed(page)
        for number, (reason, _, _) in list(page.leaving.items()):
            d = self._owner(page, number)
            for entry in list(page.entries or ()):
                if entry.last <= d.settled:
                    self._custody.close(d, entry, True)
                elif entry.open & d.bit:
                    self._shares.again(d, entry, gone=True)
                    if entry.open & d.bit:
                        self._give(d, entry, reason)
            self._departed.pop((page.order, number), None)
        again, page.again = page.again, 0
        for number in numbers(again & page.open):
            d = self._owner(page, number)
            for entry in list(page.entries or ()):
                if entry.open & d.bit and not d.joined:
                    self._shares.again(d, entry)

    def look_again(self, d: Destination) -> None:
        """A destination is out of reach: what is on the disk for shared subscriptions may be served elsewhere."""
        for page in self._custody.pages_for(d):
            if page.special and page.entries is None and not page.again & d.bit and self._somebody(page, d):
                page.again |= d.bit
                self._todo.append(page)
        self.go_on()

    def _somebody(self, page: Page, d: Destination) -> bool:
        """Whether a reachable broker has members of a shared subscription of a page."""
        live = self._states.live & ~d.bit
        return any(self._shares.served_by(share, live) for share in page.shares)

    def depart(self, d: Destination, reason: str) -> None:
        """A destination is given up: what is on the disk for it is returned, unread unless somebody else is to get it."""
        for page in self._custody.pages_for(d):
            if not page.special:
                self.give_up(d, page, reason)
                continue
            page.leaving[d.number] = reason, d.settled, d.sent
            self._departed[page.order, d.number] = d
            self._journal.page_changed(page)
            self._todo.append(page)
        self.go_on()

    def departing(self, page: Page) -> None:
        """A page of an earlier life of this broker, some destination of which was given up then."""
        self._todo.append(page)

    def go_on(self) -> None:
        """Read the next page that nobody is sent."""
        while self._reading is None and self._todo:
            page = self._todo[0]
            if not page.open:
                self._todo.popleft()
                continue
            if page.entries is not None and not page.dirty:
                self._todo.popleft()
                self._look_through(page)
                continue
            self._ask(page)
            if not page.asked:
                return  # a commit comes first
            self._reading = self._todo.popleft()

    def _go_on(self, order: int) -> None:
        if self._reading is not None and self._reading.order == order:
            self._reading = None
        self.go_on()

    def must_read(self, d: Destination, refusals: Iterable[Refusal]) -> bool:
        """Whether a destination refuses messages that are on the disk only; then the first page of them is read."""
        for page in self._custody.pages_for(d):
            if not page.special or (page.entries is not None and not page.dirty):
                continue
            if any((r.epoch, r.first) <= page.last and (r.epoch, r.last) >= (page.epoch, page.first) for r in refusals):
                if page is not self._reading and page not in self._todo:
                    self._todo.appendleft(page)
                self.go_on()
                return True
        return False

    # ---- what goes

    def give_up(self, d: Destination, page: Page, reason: str) -> int:
        """A destination will not get what a page has for it; how many bytes that was."""
        size = page.held[d.number][1]
        if page.entries is not None:
            for entry in [entry for entry in page.entries if entry.open & d.bit]:
                self._give(d, entry, reason)
            return size
        self._custody.watches.lost_between((page.epoch, page.first), page.last, d.number, reason)
        messages = self._custody.close_page(d, page)
        self._core.counters.returned += messages
        self._core.actions.append(GivenUp(d.number, reason, messages, page.order))
        return size

    def clear(self, d: Destination) -> None:
        """A destination lost its store: what its earlier life was ever sent is neither delivered nor lost for sure."""
        for page in self._custody.pages_for(d):
            if page.entries is not None or (page.epoch, page.first) > d.sent:
                continue
            if page.last <= d.sent:
                self._core.counters.cleared += page.held[d.number][0]
                self.give_up(d, page, "cleared")
            else:
                page.cleared[d.number] = d.sent
                self._journal.page_changed(page)

    def drop_oldest(self, d: Destination, excess: int) -> bool:
        """Make room for so many bytes where a policy lets the oldest messages go. False: there are none."""
        for page in [p for p in d.waiting if isinstance(p, Page) and p.drop & p.open & d.bit and not p.users & d.bit]:
            if excess <= 0:
                return True
            d.waiting.remove(page)
            d.dropped += page.held[d.number][0]
            excess -= self.give_up(d, page, "dropped")
        if excess <= 0:
            return True
        excess = max(excess, d.held_bytes >> 4)  # at one go, so that the queue is not searched for each message
        dropped = False
        for one in list(d.waiting):
            if excess <= 0:
                break
            if isinstance(one, Page) or one.page is not None or not one.open & d.bit or one.run.topic.startswith(b"$"):
                continue
            if self._at_bound(d, one.run) is AtBound.DROP_OLDEST:
                excess -= one.size
                d.dropped += one.count
                dropped = True
                self._give(d, one, "dropped")
        return dropped or excess <= 0

    def next_deadline(self) -> float | None:
        """When something on the disk expires, or something is too old."""
        heap, pages = self._deadlines, self._custody.pages
        while heap and heap[0][1] not in pages:
            heapq.heappop(heap)
        if not heap and not self._custody.policy.aged:
            return None
        due = [heap[0][0]] if heap else []
        if self._custody.policy.aged:
            for d in self._custody.destinations.values():
                age = self._custody.policy.age_of(d.number, d.name)
                if age and d.waiting and not d.joined and self._goes(d, d.waiting[0]):
                    one = d.waiting[0]
                    newest = one.newest if isinstance(one, Page) else one.time
                    due.append(newest / 1000 - self._core.wall_offset + age + 0.002)
        return min(due, default=None)

    def _goes(self, d: Destination, one: Entry | Page) -> bool:
        """Whether a message is given up when it is too old."""
        return bool((one.expire if isinstance(one, Page) else self._may_go(one)[1]) & d.bit) or not one.open & d.bit

    def expire(self) -> None:
        """Give up pages all of whose messages have expired, and what has waited for longer than it may."""
        heap, custody = self._deadlines, self._custody
        while heap and heap[0][0] <= self._core.now:
            page = custody.pages.get(heapq.heappop(heap)[1])
            if page is None or page.special or page.entries is not None:
                continue
            for number in list(numbers(page.open)):
                if number not in page.leaving:
                    self.give_up(custody.destinations[number], page, "expired")
        if not custody.policy.aged:
            return
        wall = self._core.wall_ms()
        for d in custody.destinations.values():
            age = custody.policy.age_of(d.number, d.name)
            while age and d.waiting and not d.joined and self._goes(d, d.waiting[0]):
                one = d.waiting[0]
                newest = one.newest if isinstance(one, Page) else one.time
                if one.open & d.bit and wall - newest <= age * 1000:
                    break
                d.waiting.popleft()
                if not one.open & d.bit:
                    continue
                if isinstance(one, Page):
                    d.expired += one.held[d.number][0]
                    self.give_up(d, one, "expired")
                else:
                    d.expired += one.count
                    self._give(d, one, "expired")


def _descending(entry: Entry | Page) -> tuple[int, int]:
    return -entry.epoch, -entry.first
