"""The origin's part: announce the tree, publish into it, hold QoS 1 and 2 until each destination's receipt.

Strategy. What a destination may be sent now is decided for each publish from its state in custody: joined in this tree, nothing older
waiting, credit left, its link not full. All that may go now shares frames; what may not waits and is sent by `pump`, again
with shared frames for destinations that stand at the same position.

Invariants
- the tree announced last is the only one in which this origin sends;
- no custody frame goes to a destination before its JOIN in that tree, and where there is a store, before it says that more may be sent;
- to one destination custody frames go in order of position;
- where there is a store, what a repeat by the publisher or a second pick would double (QoS 2, re-picked) is sent after its commit.

It does not know how a relay works nor how the shell delivers.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ..mqtt.loose import Loose
from ..mqtt.mixed import Mixed
from ..mqtt.run import Run
from .actions import Confirmed, MeshRoute, Returned, Send, Unblocked, Verdict
from .control import NOTHING, Noted, Position, Receipt
from .core import Core
from .custody import Custody, Destination, Entry, size_of
from .envelope import EASY_PAYLOAD, EASY_PROPERTIES, Flag, Picks, Share, Template, check_travels, encode_head, encode_rest, split_properties
from .interest import Interests
from .linkstate import LinkStates
from .receipts import Standing, Watch, standing
from .rename import renamed, renamed_loose
from .shares import Again, Shares
from .span import encode_span
from .trees import EPOCH_SHIFT, Shape, branches, shape_of
from .visited import bits_for, changes, numbers, patch, width_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from .records import Journal
    from .zones import Zones

TEMPLATES = 4096  # kept


class Origin:
    """This broker as the source of messages."""

    def __init__(self, core: Core, states: LinkStates, interests: Interests, zones: Zones, own_groups: set[Share]) -> None:
        """own_groups: (group, filter) of the shared subscriptions with members here, kept by the owner."""
        config = core.config
        self._core = core
        self._states = states
        self._interests = interests
        self._zones = zones
        self.custody = Custody(config.custody_messages, config.custody_bytes, config.destination_part)
        self._shares = Shares(core, states, zones, self.custody, own_groups, self._place)
        self.tree = core.identity.epoch << EPOCH_SHIFT
        self.announced = False
        self.shape: Shape = {}
        self.due = True  # the shape that link state asks for is not the announced one
        self.reach = 0  # brokers in the announced tree
        self._branches: list[tuple[int, int]] = []  # (link, brokers behind it)
        self._sequence = 0  # of custody
        self._sequence0 = 0  # of QoS 0
        self._templates: dict[tuple[object, ...], Template] = {}
        self._pump_due = False
        self._noted: deque[tuple[int, Noted]] = deque()  # (mark of the records that must be committed before, what to say)
        self.local: Callable[[Run, Entry, Share], None] | None = None  # serve a re-picked shared subscription here
        self.keep: Callable[[Run, int], bytes] | None = None  # retain a run's last message; who has it in custody -> its mark

    # ---- trees

    def shape_changed(self) -> None:
        """Link state has changed: see whether a new tree is due."""
        self.due = not self.announced or shape_of(self._states.paths, self._states.holders) != self.shape

    @property
    def position(self) -> Position:
        """Of the last message in custody."""
        return self._core.identity.epoch, self._sequence

    def epoch_raised(self) -> None:
        """A new life as far as numbering goes."""
        self.tree = max(self.tree, self._core.identity.epoch << EPOCH_SHIFT)
        self.due = True

    def announce(self) -> None:
        """Open a new tree along the shortest paths that link state shows."""
        core, states = self._core, self._states
        self.shape = shape_of(states.paths, states.holders)
        self.tree += 1
        self.announced, self.due = True, False
        core.counters.trees += 1
        nodes = [(number, node.parent, node.incarnation) for number, node in self.shape.items()]
        body = (core.number, core.uuid, core.identity.epoch, self.tree, nodes)
        self._branches = []
        self.reach = 0
        for d in self.custody.destinations.values():
            self._leave(d)
        for number, mask in branches([(n, p) for n, p, _ in nodes], core.number, core.number).items():
            end = core.by_number.get(number)
            if end is None or end.incarnation != self.shape[number].incarnation:
                continue
            self._branches.append((end.id, mask))
            self.reach |= mask
            core.control(end.id, "open", body, urgent=False)
            for member in numbers(mask):
                d = self._destination(member, self.shape[member].uuid, (core.identity.epoch, self._sequence))
                d.link, d.zone = end.id, self._zones.of.get(member)
        if self._zones.of:
            self.custody.split_spans()
        self._templates.clear()
        core.stale()
        core.event("tree_announced", tree=self.tree, brokers=len(nodes))

    def link_lost(self, link: int) -> None:
        """A link went down; what went over it waits for the next tree."""
        self._branches = [(end, mask) for end, mask in self._branches if end != link]
        self.reach = 0
        for _, mask in self._branches:
            self.reach |= mask
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
                self.give_back(d, "replaced")
            d = self.custody.destinations[number] = Destination(number, uuid)
            d.settled = before
            d.granted_bytes = d.credit_bytes = self._core.config.credit_bytes
            if self._core.journal is not None:
                self._core.journal.destination(d)
        return d

    # ---- publishing

    def publish(self, route: MeshRoute, run: Run, local_groups: frozenset[Share] | None, keep: bool = True, hold: bool = False) -> Verdict:
        """See `Node.publish`."""
        if run.retain:
            return self._publish_retained(route, run, local_groups, keep, hold)
        match = route.match
        mask = match.mask
        if not match.groups:
            if len(run.properties) > EASY_PROPERTIES or run.length > EASY_PAYLOAD:
                check_travels(run.topic, run.properties, run.length, (), width_for(mask))
            if run.qos:
                return self._publish_custody([(run, ())], mask, run, hold)
            self._publish0(run, mask, ())
            return Verdict.TAKEN
        parts = self._shares.parts(route.match, run, local_groups)
        for part, picks in parts:
            check_travels(part.topic, part.properties, part.length, picks, width_for(mask))
        if run.qos:
            return self._publish_custody(parts, mask, run, hold)
        for part, picks in parts:
            self._publish0(part, mask, picks)
        return Verdict.TAKEN

    def _publish_retained(self, route: MeshRoute, run: Run, local_groups: frozenset[Share] | None, keep: bool, hold: bool) -> Verdict:
        """A message for each site to keep: it goes to every live member, the last one of the run with its mark. keep: False: to nobody."""
        mask = route.match.mask | self._everybody(run.topic)
        parts = self._parts(route, run, local_groups)
        for part, picks in parts:
            check_travels(part.topic, part.properties, part.length, picks, width_for(mask), retain=True)
        if run.qos:
            return self._publish_custody(parts, mask, run, hold, keep)
        parts, mark = self._marked(parts, 0, run) if keep else (parts, b"")
        for part, picks in parts[:-1]:
            self._publish0(part, mask, picks)
        part, picks = parts[-1]
        self._publish0(part, mask, picks, mark)
        return Verdict.TAKEN

    def _parts(self, route: MeshRoute, run: Run, local_groups: frozenset[Share] | None) -> list[tuple[Run, Picks]]:
        if route.match.groups:
            return self._shares.parts(route.match, run, local_groups)
        return [(run, ())]

    def _marked(self, parts: list[tuple[Run, Picks]], custody: int, run: Run) -> tuple[list[tuple[Run, Picks]], bytes]:
        """Retain a run's last message: the parts, that message alone in the last of them, and its mark."""
        mark = self.keep(run, custody) if self.keep is not None else b""
        part, picks = parts[-1]
        last = part.count - 1
        if last and mark:
            parts = [*parts[:-1], (part.part(0, last), picks), (part.part(last, last + 1), picks)]
        return parts, mark

    def publish_span(self, mask: int, run: Loose) -> Verdict:
        """See `Node.publish_span`."""
        if run.qos:
            return self._publish_custody([(run, ())], mask, run)
        self._publish0(run, mask, ())
        return Verdict.TAKEN

    def post(self, mask: int, run: Run, must: bool) -> Verdict:
        """See `Node.post`. It is marked as for picks only, so that no subscription gets it."""
        check_travels(run.topic, run.properties, run.length, (), width_for(mask))
        if not must and not self.custody.fits(run.count, size_of(run), mask):
            return Verdict.FULL
        if self.due:
            self.announce()
        entry = Entry(self._core.identity.epoch, self._sequence + 1, run, mask, (), self._core.wall_ms())
        entry.ordinary, entry.picks_only = 0, True
        entry.hold = True  # what one broker says to another is what it will remember to have said
        self._sequence += 1
        self.custody.put(entry)
        self._enqueue(entry)
        return Verdict.TAKEN

    def _everybody(self, topic: bytes) -> int:
        """All live members but this one that may have the topic: a retained message goes to each site."""
        return self._zones.everybody(topic, self._states.live & ~(1 << self._core.number))

    def _publish0(self, run: Run, mask: int, picks: Picks, mark: bytes = b"") -> None:
        if picks:
            mask = _share(mask, picks)
        if not mask:
            return
        if self.due:
            self.announce()
        share = mask & self.reach
        counters = self._core.counters
        if share != mask:
            counters.dropped_no_path += run.count * (mask & ~share).bit_count()
            if not share:
                return
        counters.published += run.count
        first = self._sequence0 + 1
        self._sequence0 += run.count
        epoch = self._core.identity.epoch
        time = self._core.wall_ms()
        self._send(run, run.payloads, share, epoch, first, time, picks, 0, run.expiry, droppable=True, mark=mark)

    def _publish_custody(self, parts: list[tuple[Run, Picks]], mask: int, run: Run, hold: bool = False, keep: bool = False) -> Verdict:
        everyone = mask
        for _, picks in parts:
            everyone = _share(everyone, picks)
        if everyone and not self.custody.fits(run.count, size_of(run), everyone):
            return Verdict.FULL
        mark = b""
        if keep:
            # not who has it for a shared subscription only: another broker may serve that in the end, and it would never come there
            parts, mark = self._marked(parts, mask, run)
        if not everyone:
            return Verdict.TAKEN
        if self.due:
            self.announce()
        time = self._core.wall_ms()
        left = len(parts)
        for part, picks in parts:
            left -= 1
            share = _share(mask, picks)
            if share:
                self._take(part, share, mask, picks, time, hold, b"" if left else mark)
        return Verdict.TAKEN

    def _take(self, run: Run, mask: int, ordinary: int, picks: Picks, time: int, hold: bool, mark: bytes) -> Entry:
        """Put a run into custody for the destinations of the mask and send it to those that may have it now."""
        core = self._core
        core.counters.published += run.count
        entry = Entry(core.identity.epoch, self._sequence + 1, run, mask, picks, time)
        entry.ordinary = ordinary
        if run.expiry is not None:
            entry.deadline = core.now + run.expiry
        # what others keep with the word that it comes from here must be here: a record with its mark leaves behind its commit too
        entry.hold = hold or run.qos == 2 or bool(mark)
        entry.kept = mark
        self._sequence += run.count
        self.custody.put(entry)
        self._enqueue(entry)
        return entry

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
        if self._shares.elsewhere(d, entry):
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
            d.sending(entry, entry.count - skip)
        flags = (Flag.PICKS_ONLY if entry.picks_only else 0) | (Flag.REPEATED if entry.repeated else 0)
        payloads = run.payloads[skip:] if skip else run.payloads
        expiry = run.expiry
        if entry.deadline is not None:  # what is left of its life travels [MQTT-3.3.2-6], so that clocks need not agree
            expiry = max(0, min(math.ceil(entry.deadline - self._core.now), run.expiry or 0))  # floats may round up
        self._send(run, payloads, share, entry.epoch, start, entry.time, entry.picks, flags, expiry, droppable=False, mark=entry.kept)

    def _send(
        self,
        run: Run,
        payloads: list[bytes],
        share: int,
        epoch: int,
        first: int,
        time: int,
        picks: Picks,
        flags: int,
        expiry: int | None,
        *,
        droppable: bool,
        mark: bytes = b"",
    ) -> None:
        """Frames for a share, one block for each branch of the tree; the first is built, the others are copies with other bits."""
        core = self._core
        if isinstance(run, Mixed):
            self._send_loose(run.loose(), run.count - len(payloads), share, epoch, first, time, flags, droppable)
            return
        width = width_for(share)
        template = self._template(run, flags, epoch, width, picks, expiry, mark=mark)
        stamp = time.to_bytes(6, "big")
        built: bytes | bytearray | None = None
        built_bits = b""
        count = len(payloads)
        for link, mask in self._branches:
            part = share & mask
            if not part:
                continue
            end = core.links[link]
            if droppable and end.full:
                core.counters.dropped_full += count
                continue
            bits = bits_for(part, width)
            if built is None:
                built, built_bits = template.block(bits, stamp, first, payloads), bits
                data = built
            else:
                data = bytearray(built)
                patch(data, template.bits_offset, template.size, count, changes(built_bits, bits))
            if end.gate is not None:
                block = renamed(data, template.size, run.topic, end.gate.outwards(run.topic))
                if block is None:
                    self._not_out(count, droppable)
                    continue
                data = block.block
            core.counters.sent += count
            core.actions.append(Send(link, data, False))

    def _send_loose(self, run: Loose, start: int, share: int, epoch: int, first: int, time: int, flags: int, droppable: bool) -> None:
        """The same for messages of different topics and sizes: for each branch one join, with its own bits between the parts."""
        core = self._core
        width = width_for(share)
        head = encode_head(flags | run.qos, core.number, epoch, self.tree, width)
        stamp = time.to_bytes(6, "big")
        count = run.count - start
        flat: list[bytes] | None = None
        for link, mask in self._branches:
            part = share & mask
            if not part:
                continue
            end = core.links[link]
            if droppable and end.full:
                core.counters.dropped_full += count
                continue
            if end.gate is not None:
                other = renamed_loose(run, end.gate)
                if other is None:
                    self._not_out(count, droppable)
                    continue
                core.actions.append(Send(link, b"".join(encode_span(other, start, head, bits_for(part, width), stamp, first)), False))
                core.counters.sent += count
                continue
            flat = encode_span(run, start, head, bits_for(part, width), stamp, first, flat)
            core.counters.sent += count
            core.actions.append(Send(link, b"".join(flat), False))

    def _not_out(self, count: int, droppable: bool) -> None:
        """The own link's policy forbids it, though the tree's did not: custody needs a new tree, so that there is no hole."""
        self._core.counters.dropped_policy += count
        if not droppable:
            self.due = True

    def _template(
        self, run: Run, flags: int, epoch: int, width: int, picks: Picks, expiry: int | None, tree: int | None = None, mark: bytes = b""
    ) -> Template:
        if mark:
            return self._new_template(run, flags, epoch, width, picks, expiry, tree, mark)  # a mark is never used again
        key = (run.topic, run.qos, run.retain, run.length, run.properties, expiry, flags, epoch, width, picks, tree)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = self._new_template(run, flags, epoch, width, picks, expiry, tree, b"")
        return template

    def _new_template(
        self, run: Run, flags: int, epoch: int, width: int, picks: Picks, expiry: int | None, tree: int | None, mark: bytes
    ) -> Template:
        correlation, others = split_properties(run.properties)
        flags |= run.qos | (Flag.RETAIN if run.retain else 0)
        flags |= (Flag.CORRELATION if correlation is not None else 0) | (Flag.EXPIRY if expiry is not None else 0)
        head = encode_head(flags, self._core.number, epoch, self.tree if tree is None else tree, width)
        middle = encode_rest(expiry, picks, correlation, mark if run.retain else None)
        return Template(run.topic, head, width, middle, others, run.length)

    def publish_flood(self, route: MeshRoute, run: Run, local_groups: frozenset[Share] | None, keep: bool = True) -> Verdict:
        """QoS 0 to every neighbour, each copy marked as visited by this broker and all neighbours that are served now."""
        parts = self._parts(route, run, local_groups)
        mark = b""
        if run.retain and keep:
            parts, mark = self._marked(parts, 0, run)
        for part, picks in parts[:-1]:
            self._flood(part, picks, b"")
        self._flood(*parts[-1], mark)
        return Verdict.TAKEN

    def _flood(self, run: Run, picks: Picks, mark: bytes) -> None:
        core = self._core
        links = [end for end in core.links.values() if end.gate is None]
        targets = [end for end in links if not end.full]
        core.counters.dropped_full += run.count * (len(links) - len(targets))
        if not targets:
            return
        core.counters.published += run.count
        visited = 1 << core.number
        for end in targets:
            visited |= 1 << end.peer.number
        width = width_for(visited)
        template = self._template(run, Flag.FLOOD, core.identity.epoch, width, picks, run.expiry, tree=0, mark=mark)
        first = self._sequence0 + 1
        self._sequence0 += run.count
        block = template.block(visited.to_bytes(width, "little"), core.wall_ms().to_bytes(6, "big"), first, run.payloads)
        for end in targets:
            core.counters.sent += run.count
            core.actions.append(Send(end.id, block, False))

    # ---- who has it

    def watch(self, behind: Position, count: int) -> Watch | None:
        """See `Node.watch`."""
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
        """A destination says how far it is; its first receipt in a tree is its JOIN."""
        d, journal = self.custody.destinations.get(receipt.destination), self._core.journal
        if receipt.tree != self.tree or d is None:
            return
        if max(receipt.committed, receipt.seen) > (self._core.identity.epoch, self._sequence):
            self._core.event("receipt_ahead", destination=d.number)  # of what was never numbered: nobody may act on it
            return
        if not d.joined and d.sent > NOTHING and receipt.born != d.sent_born:
            self._clear(d)
        settled = d.settled
        d.born = receipt.born
        if receipt.refusals:
            self._shares.refusals(d, receipt.refusals, settled)
            noted = Noted(self._core.number, self.tree, d.number, receipt.committed)
            if journal is None or journal.latest <= journal.committed:
                self._say_noted(noted)
            else:
                self._noted.append((journal.latest, noted))
        self.custody.settle(d, receipt.committed)
        d.credit_messages = min(receipt.messages, self._core.config.credit_messages)
        d.granted_bytes = min(receipt.bytes, self._core.config.credit_bytes)
        d.credit_bytes = min(d.granted_bytes, max(d.credit_bytes + (d.granted_bytes >> 4), self._core.config.credit_floor))
        if not d.joined:
            d.joined = True
            if journal is not None:
                journal.destination(d)
                d.mark = journal.mark
            d.seen = receipt.seen
            while d.waiting and d.waiting[0].last <= d.seen:
                entry = d.waiting.popleft()
                d.sending(entry, entry.count)
        self._pump_due = True

    def _say_noted(self, noted: Noted) -> None:
        """Refusals up to a position were acted on, and that will not be forgotten: the destination may forget them."""
        d = self.custody.destinations.get(noted.destination)
        if d is not None and d.link is not None and noted.tree == self.tree:
            self._core.control(d.link, "noted", noted, urgent=False)

    def committed(self, mark: int) -> None:
        """Records up to a mark are in the store: what waited for that may go."""
        noted, journal = self._noted, self._core.journal
        while noted and noted[0][0] <= mark:
            self._say_noted(noted.popleft()[1])
        if journal is not None and journal.waiting:
            journal.waiting = False
            self._pump_due = True

    def dropped(self, tree: int, brokers: int) -> None:
        """A relay dropped custody frames for these brokers and has space again: send more slowly, in a new tree."""
        if tree != self.tree:
            return
        for number in numbers(brokers):
            d = self.custody.destinations.get(number)
            if d is not None:
                d.credit_bytes = max(d.credit_bytes >> 1, self._core.config.credit_floor)
        self.due = True

    def _clear(self, d: Destination) -> None:
        """The destination lost its store: what its earlier life was ever sent is neither delivered nor lost for sure."""
        for entry in self.custody.open_for(d):
            if (entry.epoch, entry.first) <= d.sent:
                self._core.counters.cleared += entry.count
                self._return(d, entry, "cleared")
        d.sent = NOTHING

    def _return(self, d: Destination, entry: Entry, reason: str) -> None:
        self._core.counters.returned += entry.count
        self._core.actions.append(Returned(entry.run, d.number, reason))
        had = d.settled[1] - entry.first + 1 if d.settled[0] == entry.epoch else 0
        self.custody.watches.lost(entry, d.number, reason, had=had)
        self.custody.close(d, entry)

    def give_back(self, d: Destination, reason: str) -> None:
        """The broker is no more: what is open for it is returned, shared-subscription picks that it never got go to another."""
        self._shares.pick_again(d, gone=True)
        for entry in self.custody.open_for(d):
            self._return(d, entry, reason)
        if self.custody.destinations.pop(d.number, None) is not None and self._core.journal is not None:
            self._core.journal.forget(d)

    def replaced(self, number: int, uuid: bytes) -> None:
        """Another UUID holds this number now."""
        d = self.custody.destinations.get(number)
        if d is not None and d.uuid != uuid:
            self.give_back(d, "replaced")

    def absent(self, number: int) -> None:
        """A broker is given up."""
        d = self.custody.destinations.get(number)
        if d is not None:
            self.give_back(d, "absent")

    def out_of_reach(self, number: int) -> None:
        """A broker cannot be reached now."""
        d = self.custody.destinations.get(number)
        if d is not None:
            self._shares.pick_again(d)
            self.custody.watches.away(number)

    def in_reach(self) -> None:
        """Some broker can be reached again: picks that wait for another one, and were never sent to it, may go there."""
        for d in list(self.custody.destinations.values()):
            if d.waiting and not self._states.live & d.bit:
                self._shares.pick_again(d)

    def refused_here(self, entry: Entry, share: Share) -> None:
        """The member of this broker that a re-picked message was given to is gone too."""
        self._shares.pick_other(entry, 0, entry.run, share, self._core.number, repeated=False)

    def _place(self, again: Again) -> None:
        """A re-picked message gets a sequence of its own, or goes to a member of this broker."""
        core, old = self._core, again.entry
        fresh = Entry(core.identity.epoch, self._sequence + 1, again.run, 1 << again.broker, ((again.share, again.broker),), old.time)
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

    def flush(self) -> None:
        """Announce if custody wants a new tree; send what may go now; take FULL back."""
        if self.due and self.custody.entries:
            self.announce()
        if self._pump_due:
            self._pump_due = False
            self.pump()
        if self.custody.unblocked():
            self._core.actions.append(Unblocked())
        if self.custody.watches.finished:
            self._core.actions += [Confirmed(watch) for watch in self.custody.watches.take()]

    def pump(self) -> None:
        """Send what waits, lowest position first, in frames shared by all destinations that stand there."""
        journal = self._core.journal
        able = [d for d in self.custody.destinations.values() if d.waiting and self._may_send(d)]
        while able:
            at: dict[Position, list[Destination]] = {}
            still = []
            for d in able:
                entry = d.next()
                while entry is not None:
                    if entry.deadline is not None and entry.deadline <= self._core.now:
                        self._return(d, entry, "expired")
                    elif d.forbidden(entry.run):
                        self._forbid(d, entry)
                    else:
                        break
                    entry = d.next()
                if entry is not None and self._may_send(d) and not (journal is not None and journal.held(entry)):
                    still.append(d)
                    at.setdefault((entry.epoch, d.start_of(entry)), []).append(d)
            if not still:
                return
            able = still
            position = min(at)
            group = at[position]
            entry = group[0].waiting[0]
            for d in group:
                d.waiting.popleft()
            self._send_entry(entry, position[1], group)

    def expire(self) -> None:
        """Return what has expired and is not under way."""
        for entry in self.custody.expired(self._core.now):
            for number in numbers(entry.open):
                d = self.custody.destinations[number]
                if entry.last > d.reached:
                    self._return(d, entry, "expired")

    # ---- after a restart

    def restore(self, destinations: dict[tuple[int, bytes], tuple[Position, Position | None, int]]) -> None:
        """How far destinations were in an earlier life: (number, uuid) -> settled, sent (None: perhaps all), since when it remembers."""
        for (number, uuid), (settled, sent, born) in destinations.items():
            d = self.custody.destinations[number] = Destination(number, uuid)
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


def _share(mask: int, picks: Picks) -> int:
    """The brokers that a part goes to: those that all parts go to, and those that are picked."""
    for _, number in picks:
        mask |= 1 << number
    return mask
