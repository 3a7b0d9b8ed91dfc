"""Decides what each destination is sent of this broker's custody now, and handles receipts.

Strategy. A destination is sent a message at once if it has joined this tree, nothing older waits for it, it has credit left, and its link
is not full. All such destinations share frames. For the others the message waits; `_pump` sends it later, again in frames that are
shared by all destinations at the same position. The first JOIN of a destination waits a moment for those of others (joins.py), so that
the first message to all is one frame on each link and not one for each destination; later ones do not, since a link may have been lost.

Invariants
- no custody frame goes to a destination before its JOIN in the tree announced last, and where there is a store, before that says that
  more may be sent;
- to one destination custody frames go in order of position;
- where there is a store, a message that a repeat by the publisher or a second pick would duplicate (QoS 2, re-picked) is sent after its
  commit.

It does not know where messages come from (origin.py) nor what a frame looks like (framing.py).
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ..custody.custody import Admission, Custody, Destination, Entry, size_of
from ..custody.joins import Joins
from ..custody.pages import Page
from ..custody.watches import Standing, Watch, standing
from ..view.interest import Interests
from ..view.linkstate import LinkStates
from ..wire.control import NO_POSITION, Noted, Position, Receipt
from ..wire.envelope import Flag, Picks, Share
from ..wire.visited import mask_of, numbers
from .actions import Confirmed, Returned, Unblocked
from .core import Core
from .framing import Framer
from .own_tree import OwnTree
from .paging import Pager
from .shared_picks import Again, Shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..custody.journal import Journal
    from ..view.zones import Zones


class Dispatch:
    """This broker's custody on its way to the destinations."""

    def __init__(
        self, core: Core, states: LinkStates, interests: Interests, zones: Zones, tree: OwnTree, frames: Framer, own_groups: set[Share]
    ) -> None:
        """own_groups: (group, filter) of the shared subscriptions with members here, kept by the owner."""
        config = core.config
        self._core = core
        self._states = states
        self._interests = interests
        self._zones = zones
        self._tree = tree
        self._frames = frames
        self.custody = Custody(config.custody_messages, config.custody_bytes, config.destination_part, config.bounds)
        self.shares = Shares(core, states, zones, self.custody, own_groups, self._place)
        self.pager = Pager(core, states, self.custody, self.shares, self._return)
        self._sequence = 0
        self._pump_due = False
        self._joins = Joins(config.join_pause, config.join_wait)
        self._noted: deque[tuple[int, Noted]] = deque()  # (mark of the records that must be committed before, what to say)
        self.local: Callable[[Batch, Entry, Share], None] | None = None  # serve a re-picked shared subscription here

    # ---- trees

    def announce(self) -> None:
        """Open a new tree, if one is wanted: each destination is sent nothing before its JOIN in it."""
        core, tree, zones = self._core, self._tree, self._zones
        if not tree.wanted():
            return
        core.stirred = True
        for d in self.custody.destinations.values():
            self._leave(d)
        tree.announce()
        for link, mask in tree.branches:
            for member in numbers(mask):
                d = self._destination(member, tree.shape[member].uuid, self.position)
                d.link, d.zone = link, zones.of.get(member)
                d.away, d.moved = False, core.now
        new = mask_of([number for number in numbers(tree.reach) if self.custody.destinations[number].sent == NO_POSITION])
        self._joins = Joins(core.config.join_pause, core.config.join_wait, new)
        if zones.of:
            self.custody.split_spans()
        self._frames.stale()
        core.stale()

    def link_lost(self, link: int) -> None:
        """A link went down; what went over it waits for the next tree."""
        self._tree.link_lost(link)
        self._joins.only(self._tree.reach)
        for d in self.custody.destinations.values():
            if d.link == link:
                self._leave(d)

    def _leave(self, d: Destination) -> None:
        joined = d.joined
        d.leave()
        if joined and self._core.journal is not None:
            self._core.journal.destination(d)

    def _destination(self, number: int, uuid: bytes, before: Position) -> Destination:
        """The destination; one that was not known owes nothing up to `before`, whatever an earlier holder of the number still did."""
        d = self.custody.destinations.get(number)
        if d is None or d.uuid != uuid:
            if d is not None:
                self._give_back(d, "replaced")
            d = self.custody.destinations[number] = Destination(number, uuid, self._name(number, uuid))
            d.settled = before
            d.granted_bytes = d.credit_bytes = self._core.config.credit_bytes
            if self._core.journal is not None:
                self._core.journal.destination(d)
        return d

    def _name(self, number: int, uuid: bytes) -> str:
        record = self._states.records.get((number, uuid))
        return "" if record is None else record.name

    # ---- what is taken

    def admit(self, run: Batch, mask: int, frees: bool = False) -> tuple[Admission, int]:
        """Whether a run may be taken for these destinations, and for which of them; the policy at the bound of others is carried out."""
        core = self._core
        core.stirred = True
        answer, left, drops = self.custody.admit(run, size_of(run), mask, core.now, core.wall_ms, frees)
        if answer is not Admission.TAKEN:
            self.pager.stir()
            core.counters.custody_refused += answer is Admission.NEVER
            return answer, 0
        for d, excess in drops:
            if not self.pager.drop_oldest(d, excess):
                left |= d.bit
        for number in numbers(left):
            core.counters.custody_expired += run.count
            d_ = self.custody.destinations.get(number)
            if d_ is not None:
                d_.expired += run.count
        return answer, mask & ~left

    @property
    def position(self) -> Position:
        """Of the last message in custody."""
        return self._core.identity.epoch, self._sequence

    def entry(self, run: Batch, mask: int, picks: Picks, time: int) -> Entry:
        """A run with the next sequences, for the destinations of the mask; `accept` takes it."""
        return Entry(self._core.identity.epoch, self._sequence + 1, run, mask, picks, time)

    def accept(self, entry: Entry) -> None:
        """Put an entry into custody, and send it to those that may have it now."""
        self._sequence += entry.count
        self.custody.put(entry)
        self._enqueue(entry)
        self._core.stirred = self._core.stirred or self.wants_flush

    def ready_for_one(self, mask: int, size: int) -> Sequence[Destination]:
        """The destinations of a set, if each may be sent one plain message of this size now; else none."""
        to = self.custody.fits_one(mask, size)
        for d in to:
            if d.waiting or d.zone is not None or not self._may_send(d):
                return ()
        return to

    def next_sequence(self) -> int:
        """The sequence of a message that its caller sends itself, and gives to `accept_one` then."""
        self._sequence += 1
        return self._sequence

    def accept_one(self, entry: Entry, to: Sequence[Destination]) -> None:
        """`accept` for one plain message of QoS 1 whose frames are on their way to these destinations (`ready_for_one`)."""
        self.custody.put(entry)
        now = self._core.now
        for d in to:
            d.add_one(entry, now)

    def _enqueue(self, entry: Entry) -> None:
        now: list[Destination] = []
        held = self._core.journal is not None and self._core.journal.held(entry)
        for number in numbers(entry.open):
            d = self.custody.destinations.get(number)
            if d is None:
                d = self._destination(number, self._interests.active.get(number, b""), (entry.epoch, entry.first - 1))
            d.add(entry)
            if held or d.waiting or not self._may_send(d) or d.forbidden(entry.run):
                d.waiting.append(entry)
                self._pump_due = self._pump_due or d.zone is not None
            else:
                now.append(d)
        if now:
            self._send_entry(entry, entry.first, now)

    def _may_send(self, d: Destination) -> bool:
        if not d.joined or d.link is None or not d.has_credit:
            return False
        journal = self._core.journal
        if journal is not None and d.mark > journal.committed:
            journal.waiting = True
            return False
        end = self._core.links.get(d.link)
        return end is not None and not end.full

    def _forbid(self, d: Destination, entry: Entry) -> None:
        """A policy on the only path forbids it."""
        if self.shares.elsewhere(d, entry):
            self.custody.close(d, entry)
        else:
            self._return(d, entry, "forbidden")

    def _send_entry(self, entry: Entry, start: int, to: list[Destination]) -> None:
        """Send an entry from a sequence on to destinations that stand there."""
        run = entry.run
        skip = start - entry.first
        share = 0
        for d in to:
            share |= d.bit
            if entry.last <= d.sent:
                self._core.counters.resent += entry.count - skip
            if not d.flight:
                d.moved = self._core.now
            d.sending(entry, entry.count - skip)
        flags = (Flag.PICKS_ONLY if entry.picks_only else 0) | (Flag.REPEATED if entry.repeated else 0)
        expiry = run.expiry
        if entry.deadline is not None:  # what is left of its life travels [MQTT-3.3.2-6], so that clocks need not agree
            expiry = max(0, min(math.ceil(entry.deadline - self._core.now), run.expiry or 0))  # floats may round up
        self._frames.send(run, skip, share, entry.epoch, start, entry.time, entry.picks, flags, expiry, droppable=False, mark=entry.kept)

    def away(self) -> dict[str, object]:
        """What is on the disk only, and the destinations that are away or behind, fit for JSON."""
        custody, now = self.custody, self._core.now
        found = [
            {
                "number": d.number,
                "name": d.name,
                "messages": d.held_messages,
                "bytes": d.held_bytes,
                "bytes_limit": custody.policy.bytes_of(d.number, d.name),
                "dropped": d.dropped,
                "expired": d.expired,
                "refused": d.refused,
            }
            for d in custody.destinations.values()
            if d.held_messages and (d.paged_messages or not d.takes(now))
        ]
        return {"stored_messages": custody.paged_messages, "stored_bytes": custody.paged_bytes, "away": found}

    # ---- who has it

    def watch(self, behind: Position, count: int) -> Watch | None:
        """See `Node.watch`."""
        self._core.stirred = True  # it may be over already
        entries: list[Entry] = []
        for entry in reversed(self.custody.entries.values()):
            if (entry.epoch, entry.first) <= behind:
                break
            if entry.first <= behind[1] + count and not entry.run.topic.startswith(b"$"):
                entries.append(entry)
        return self.custody.watches.begin(entries[::-1], self._states.live) if entries else None

    def standing(self, watch: Watch, index: int) -> Standing:
        """See `Node.standing`."""
        return standing(watch, index, self.custody.destinations)

    # ---- receipts

    def receipt(self, receipt: Receipt) -> None:
        """A destination says how far it is; its first receipt in a tree is its JOIN, and its very first one may wait for others."""
        d = self.custody.destinations.get(receipt.destination)
        if receipt.tree != self._tree.number or d is None:
            return
        if max(receipt.committed, receipt.seen) > (self._core.identity.epoch, self._sequence):
            self._core.event("receipt_ahead", destination=d.number)  # of what was never numbered: nobody may act on it
            return
        if d.joined or d.sent > NO_POSITION:
            self._take_receipt(d, receipt)
        elif self._joins.came(receipt, self._core.now):
            self._take_joins()

    def single_receipt(self, receipt: Receipt) -> bool:
        """The same for a receipt without refusals that comes by itself, from a destination that has joined. False: nothing was done."""
        core, custody = self._core, self.custody
        d = custody.destinations.get(receipt.destination)
        if d is None or not d.joined or d.deferred is not None or receipt.tree != self._tree.number:
            return False
        if max(receipt.committed, receipt.seen) > self.position:
            return False
        self._take_receipt(d, receipt)
        core.stirred = core.stirred or self.wants_flush or custody.refuses
        return True

    def _take_joins(self) -> None:
        """Act on the JOINs that wait."""
        for receipt in self._joins.take():
            self._take_receipt(self.custody.destinations[receipt.destination], receipt)

    def _take_receipt(self, d: Destination, receipt: Receipt) -> None:
        journal = self._core.journal
        if not d.joined and d.sent > NO_POSITION and receipt.born != d.sent_born:
            self._clear(d)
        refusals = d.sent_of(receipt.refusals) if receipt.refusals else ()
        if refusals and self.pager.must_read(d, refusals):
            d.deferred = receipt
            return
        d.deferred = None
        settled = d.settled
        d.born = receipt.born
        if receipt.refusals:
            self.shares.refusals(d, refusals, settled)
            noted = Noted(self._core.number, self._tree.number, d.number, receipt.committed)
            if journal is None or journal.latest <= journal.committed:
                self._say_noted(noted)
            else:
                self._noted.append((journal.latest, noted))
        if receipt.committed > settled:
            d.moved = self._core.now
            if self._core.tap is not None:
                epoch, last = receipt.committed
                begun = settled[1] + 1 if settled[0] == epoch else None
                first = begun or next((entry.first for entry, _ in d.flight if entry.epoch == epoch), last)
                self._core.tap.released(d.number, epoch, first, last)
        self.custody.settle(d, receipt.committed)
        d.credit_messages = min(receipt.messages, self._core.config.credit_messages)
        d.granted_bytes = min(receipt.bytes, self._core.config.credit_bytes)
        d.credit_bytes = min(d.granted_bytes, max(d.credit_bytes + (d.granted_bytes >> 4), self._core.config.credit_floor))
        if not d.joined:
            d.joined = True
            if journal is not None:
                journal.destination(d)
                journal.urgent = True  # nothing is sent to it before
                d.mark = journal.mark
            d.seen = receipt.seen
            while d.waiting and d.waiting[0].last <= d.seen:
                entry = d.waiting.popleft()
                d.sending(entry, entry.count)
        self._pump_due = self._pump_due or bool(d.waiting)

    def _take_deferred(self) -> None:
        """Try the receipts again that wait for pages: a page was read, or what was to be written before it is read is committed."""
        for d in list(self.custody.destinations.values()):
            if d.deferred is not None and d.deferred.tree == self._tree.number:
                self._take_receipt(d, d.deferred)

    def _say_noted(self, noted: Noted) -> None:
        """Refusals up to a position were acted on, and that will not be forgotten: the destination may forget them."""
        d = self.custody.destinations.get(noted.destination)
        if d is not None and d.link is not None and noted.tree == self._tree.number:
            self._core.control(d.link, "noted", noted, urgent=False)

    def committed(self, mark: int) -> None:
        """Records up to a mark are in the store: what waited for that may go."""
        noted, journal = self._noted, self._core.journal
        while noted and noted[0][0] <= mark:
            self._say_noted(noted.popleft()[1])
        if journal is not None and journal.waiting:
            journal.waiting = False
            self._pump_due = True
            self.pager.go_on()
            self._take_deferred()
        self.pager.stir()

    def dropped(self, tree: int, brokers: int) -> None:
        """A relay dropped custody frames for these brokers and has space again: send more slowly, in a new tree."""
        if tree != self._tree.number:
            return
        for number in numbers(brokers):
            d = self.custody.destinations.get(number)
            if d is not None:
                d.credit_bytes = max(d.credit_bytes >> 1, self._core.config.credit_floor)
        self._tree.holed()

    # ---- destinations that come to nothing, and picks that move

    def _clear(self, d: Destination) -> None:
        """The destination lost its store: what its earlier life was ever sent is neither delivered nor lost for sure."""
        for entry in self.custody.open_for(d):
            if (entry.epoch, entry.first) <= d.sent:
                self._core.counters.cleared += entry.count
                self._return(d, entry, "cleared")
        self.pager.clear(d)
        d.sent = NO_POSITION

    def _return(self, d: Destination, entry: Entry, reason: str) -> None:
        self._core.counters.returned += entry.count
        self._core.actions.append(Returned(entry.run, d.number, reason))
        had = d.settled[1] - entry.first + 1 if d.settled[0] == entry.epoch else 0
        self.custody.watches.lost(entry, d.number, reason, had=had)
        self.custody.close(d, entry)

    def _give_back(self, d: Destination, reason: str) -> None:
        """The broker is no more: what is open for it is returned, shared-subscription picks that it never got go to another."""
        self.shares.pick_again(d, gone=True)
        for entry in self.custody.open_for(d):
            self._return(d, entry, reason)
        self.pager.depart(d, reason)
        self._joins.only(~d.bit)
        if self.custody.destinations.pop(d.number, None) is not None and self._core.journal is not None:
            self._core.journal.forget(d)

    def replaced(self, number: int, uuid: bytes) -> None:
        """Another UUID holds this number now."""
        d = self.custody.destinations.get(number)
        if d is not None and d.uuid != uuid:
            self._give_back(d, "replaced")

    def absent(self, number: int) -> None:
        """A broker is given up."""
        d = self.custody.destinations.get(number)
        if d is not None:
            self._give_back(d, "absent")

    def out_of_reach(self, number: int) -> None:
        """A broker cannot be reached now."""
        d = self.custody.destinations.get(number)
        if d is not None:
            d.away = True
            self.shares.pick_again(d)
            self.pager.look_again(d)
            self.custody.watches.away(number)

    def in_reach(self) -> None:
        """Some broker can be reached again: picks that wait for another one, and were never sent to it, may go there."""
        for d in list(self.custody.destinations.values()):
            if d.waiting and not self._states.live & d.bit:
                self.shares.pick_again(d)
                self.pager.look_again(d)

    def refused_here(self, entry: Entry, share: Share) -> None:
        """The member of this broker that a re-picked message was given to is gone too."""
        self.shares.pick_other(entry, 0, entry.run, share, self._core.number, repeated=False)

    def _place(self, again: Again) -> None:
        """A re-picked message gets a sequence of its own, or goes to a member of this broker."""
        core, old = self._core, again.entry
        fresh = self.entry(again.run, 1 << again.broker, ((again.share, again.broker),), old.time)
        fresh.ordinary, fresh.picks_only, fresh.refusers = 0, True, again.refusers
        fresh.repeated = old.repeated or again.repeated
        fresh.deadline = old.deadline
        fresh.hold = True  # else a crash before the commit would have both the old pick and this one served
        watches = self.custody.watches
        others = {number for share, number in old.picks if share != again.share}
        instead = None if again.instead in others or old.ordinary >> again.instead & 1 else again.instead
        if again.broker == core.number:
            assert self.local is not None
            watches.served(old, again.offset, fresh.count, 1 << core.number, instead)
            self.local(again.run, fresh, again.share)
            return
        self._sequence += again.run.count
        self.custody.put(fresh)
        watches.moved(old, again.offset, fresh, instead, self._states.live)
        self._enqueue(fresh)

    # ---- later

    def wake(self) -> None:
        """A link has space again."""
        self._pump_due = True

    def page_read(self, order: int, body: bytes | None) -> None:
        """The shell has read a page."""
        self.pager.read(order, body)
        self._take_deferred()
        self._pump_due = True

    @property
    def joins_due(self) -> float | None:
        """When JOINs have waited long enough for others; None: none waits."""
        return self._joins.due

    @property
    def wants_flush(self) -> bool:
        """Whether `flush`, or a timer, may have something to do once a message was put and sent, or records were committed."""
        custody = self.custody
        waits = self._pump_due or self._joins.due is not None or self._tree.due or custody.timed or bool(custody.watches.finished)
        return waits or (self._core.journal is not None and self.pager.busy)

    def flush(self) -> None:
        """Announce if custody wants a new tree; act on JOINs that have waited; send what may go now; move to the disk what waits; take
        FULL back."""
        if self._tree.due and (self.custody.entries or self.custody.pages):
            self.announce()
        if self._joins.due is not None and self._joins.due <= self._core.now:
            self._take_joins()
        if self._pump_due:
            self._pump_due = False
            self._pump()
        if self.pager.busy:
            self.pager.go_on()
            self.pager.spill()
        if self.custody.unblocked(self._core.now, self._core.wall_ms):
            self._core.actions.append(Unblocked())
        if self.custody.watches.finished:
            self._core.actions += [Confirmed(watch) for watch in self.custody.watches.take()]

    def _pump(self) -> None:
        """Send what waits, lowest position first, in frames shared by all destinations that stand there."""
        journal = self._core.journal
        able = [d for d in self.custody.destinations.values() if d.waiting and self._may_send(d)]
        while able:
            at: dict[Position, list[Destination]] = {}
            still = []
            for d in able:
                entry = d.next()
                while entry is not None:
                    if isinstance(entry, Page):
                        if not self.pager.head(d):
                            entry = None
                            break
                    elif entry.deadline is not None and entry.deadline <= self._core.now:
                        self._return(d, entry, "expired")
                    elif d.forbidden(entry.run):
                        self._forbid(d, entry)
                    else:
                        break
                    entry = d.next()
                if isinstance(entry, Entry) and self._may_send(d) and not (journal is not None and journal.held(entry)):
                    still.append(d)
                    at.setdefault((entry.epoch, d.start_of(entry)), []).append(d)
            if not still:
                return
            able = still
            position = min(at)
            group = at[position]
            entry = group[0].waiting[0]
            assert isinstance(entry, Entry)
            for d in group:
                d.waiting.popleft()
            self._send_entry(entry, position[1], group)

    def expire(self) -> None:
        """Return what has expired and is not under way."""
        self.pager.expire()
        for entry in self.custody.expired(self._core.now):
            for number in numbers(entry.open):
                d = self.custody.destinations[number]
                if entry.last > d.reached:
                    self._return(d, entry, "expired")

    # ---- after a restart

    def restore(self, destinations: dict[tuple[int, bytes], tuple[Position, Position | None, int]]) -> None:
        """How far destinations were in an earlier life: (number, uuid) -> settled, sent (None: perhaps all), since when it remembers."""
        for (number, uuid), (settled, sent, born) in destinations.items():
            d = self.custody.destinations[number] = Destination(number, uuid, self._name(number, uuid))
            d.settled, d.sent_born = settled, born
            d.sent = (self._core.identity.epoch, 0) if sent is None else sent
            d.granted_bytes = d.credit_bytes = self._core.config.credit_bytes

    def hold(self, entry: Entry, journal: Journal) -> None:
        """An entry of an earlier life, in rising order: it waits for each destination's JOIN."""
        for number in list(numbers(entry.open)):
            d = self.custody.destinations.get(number)
            if d is None or entry.last <= d.settled:
                entry.open ^= 1 << number
        if not entry.open:
            journal.drop(entry)
            return
        self.custody.put(entry)
        for number in numbers(entry.open):
            d = self.custody.destinations[number]
            d.add(entry)
            d.waiting.append(entry)

    def hold_page(self, page: Page, journal: Journal) -> None:
        """A page of an earlier life, in rising order among the entries."""
        for number in list(page.held):
            d = self.custody.destinations.get(number)
            if number not in page.leaving and (d is None or page.last <= d.settled):
                del page.held[number]
                page.open &= ~(1 << number)
        if not page.open:
            journal.page_gone(page)
            return
        self.custody.put_page(page)
        self.pager.held(page)
        for number in page.held:
            if number in page.leaving:
                self.pager.departing(page)
            else:
                self.custody.destinations[number].waiting.append(page)
