"""This broker as origin: turns what its clients publish, and what it sends to other brokers, into frames.

A message of QoS 0 goes at once along the tree (framing.py), or is flooded. A message of QoS 1 or 2, or to another broker, is put into
custody; each destination is sent it when it may have it (dispatch.py). This origin sends only in the tree that it announced last
(own_tree.py).

It does not know how a relay works nor how the shell delivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.run import Run
from ..custody.custody import Admission, size_of
from ..custody.entry import Entry, cost_of
from ..view.linkstate import LinkStates
from ..wire.batch import PLAIN_REST
from ..wire.envelope import ASKS, EASY_PAYLOAD, EASY_PROPERTIES, Picks, Share, check_travels
from ..wire.visited import width_for
from .actions import MeshRoute, Send, Verdict
from .core import Core
from .dispatch import Dispatch
from .framing import Framer
from .own_tree import OwnTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..custody.custody import Destination
    from ..view.zones import Zones

    Sends = list[tuple[int, bytes | bytearray]]  # (link, frame)

VERDICTS = {Admission.LATER: Verdict.FULL, Admission.NEVER: Verdict.REFUSED}


class Origin:
    """This broker as the source of messages."""

    def __init__(self, core: Core, states: LinkStates, zones: Zones, tree: OwnTree, frames: Framer, dispatch: Dispatch) -> None:
        self._core = core
        self._states = states
        self._zones = zones
        self._tree = tree
        self._frames = frames
        self._dispatch = dispatch
        self.custody = dispatch.custody
        self._sequence0 = 0  # of QoS 0
        self._unkept: tuple[int, int, bytes, bytes, int, Sequence[Destination]] | None = None  # what `keep_one` has to take
        self.keep: Callable[[Batch, int], bytes] | None = None  # retain a run's last message; who has it in custody -> its mark

    # ---- what is published

    def publish(
        self, route: MeshRoute, run: Batch, local_groups: frozenset[Share] | None, keep: bool = True, hold: bool = False
    ) -> Verdict:
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
        parts = self._dispatch.shares.parts(route.match, run, local_groups)
        for part, picks in parts:
            check_travels(part.topic, part.properties, part.length, picks, width_for(mask))
        if run.qos:
            return self._publish_custody(parts, mask, run, hold)
        for part, picks in parts:
            self._publish0(part, mask, picks)
        return Verdict.TAKEN

    def _publish_retained(self, route: MeshRoute, run: Batch, local_groups: frozenset[Share] | None, keep: bool, hold: bool) -> Verdict:
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

    def _parts(self, route: MeshRoute, run: Batch, local_groups: frozenset[Share] | None) -> list[tuple[Batch, Picks]]:
        if route.match.groups:
            return self._dispatch.shares.parts(route.match, run, local_groups)
        return [(run, ())]

    def _marked(self, parts: list[tuple[Batch, Picks]], custody: int, run: Batch) -> tuple[list[tuple[Batch, Picks]], bytes]:
        """Retain a run's last message: the parts, that message alone in the last of them, and its mark."""
        mark = self.keep(run, custody) if self.keep is not None else b""
        self._core.stirred = True
        part, picks = parts[-1]
        last = part.count - 1
        if last and mark:
            parts = [*parts[:-1], (part.part(0, last), picks), (part.part(last, last + 1), picks)]
        return parts, mark

    def publish_parts(self, mask: int, run: Batch) -> Verdict:
        """See `Node.publish_parts`."""
        if run.qos:
            return self._publish_custody([(run, ())], mask, run)
        self._publish0(run, mask, ())
        return Verdict.TAKEN

    def publish_one(self, mask: int, topic: bytes, qos: int, payload: bytes, asks: bool) -> Sends | None:
        """A message by itself, see `Node.publish_one`."""
        sends = self._send_one(mask, topic, qos, payload, asks)
        if sends is not None or not qos:
            return sends
        core = self._core
        if self.publish_parts(mask, Run(topic, qos, False, [payload], received=core.now)) is not Verdict.TAKEN:
            core.stirred = True
            return None
        sends = [(action.link, action.data) for action in core.actions if isinstance(action, Send)]
        core.actions = [action for action in core.actions if not isinstance(action, Send)]  # a policy may have let others go
        return sends

    def keep_one(self) -> bool:
        """See `Node.keep_one`."""
        if self._unkept is None:
            return False
        (sequence, mask, topic, payload, time, to), self._unkept = self._unkept, None
        core = self._core
        run = Run(topic, 1, False, [payload], received=core.now)
        self._dispatch.accept_one(Entry(core.identity.epoch, sequence, run, mask, (), time), to)
        return True

    def _send_one(self, mask: int, topic: bytes, qos: int, payload: bytes, asks: bool) -> Sends | None:
        """A message that each destination may have now, and all links take as it is. It does all that the general way does, or nothing.

        At QoS 1 custody does not have it before `keep_one`.
        """
        fronts = self._frames.fronts(topic, qos, mask, len(payload))
        if fronts is None:
            return None
        core = self._core
        time = core.wall_ms()
        if not qos:
            sequence = self._sequence0 = self._sequence0 + 1
        elif core.tap is not None and core.tap.wants(topic):
            return None
        else:
            to = self._dispatch.ready_for_one(mask, cost_of(len(topic) + len(payload)))
            if not to:
                return None
            sequence = self._dispatch.next_sequence()
            self._unkept = sequence, mask, topic, payload, time, to
        core.counters.published += 1
        for end, _ in fronts:
            end.sent += 1
        tail = (time | ASKS << 40 if asks else time).to_bytes(6, "big") + PLAIN_REST + sequence.to_bytes(8, "big") + payload
        return [(end.id, front + tail) for end, front in fronts]

    def publish_flood(self, route: MeshRoute, run: Batch, local_groups: frozenset[Share] | None, keep: bool = True) -> Verdict:
        """QoS 0 to every neighbour, each copy marked as visited by this broker and all neighbours that are served now."""
        parts = self._parts(route, run, local_groups)
        mark = b""
        if run.retain and keep:
            parts, mark = self._marked(parts, 0, run)
        for part, picks in parts[:-1]:
            self._flood(part, picks, b"")
        self._flood(*parts[-1], mark)
        return Verdict.TAKEN

    def _flood(self, run: Batch, picks: Picks, mark: bytes) -> None:
        if self._frames.flood(run, picks, self._sequence0 + 1, mark):
            self._sequence0 += run.count

    def send_to_brokers(self, mask: int, run: Batch, must: bool) -> Verdict:
        """See `Node.send_to_brokers`. It is marked as for picks only, so that no subscription gets it."""
        check_travels(run.topic, run.properties, run.length, (), width_for(mask))
        if not must:
            answer, _ = self._admit(run, mask)
            if answer is not Admission.TAKEN:
                return VERDICTS[answer]
        if self._tree.due:
            self._dispatch.announce()
        entry = self._dispatch.entry(run, mask, (), self._core.wall_ms())
        entry.ordinary, entry.picks_only = 0, True
        if run.expiry is not None:
            entry.deadline = self._core.now + run.expiry
        entry.hold = True  # what one broker says to another is what it will remember to have said
        self._dispatch.accept(entry)
        return Verdict.TAKEN

    def _everybody(self, topic: bytes) -> int:
        """All live members but this one that may have the topic: a retained message goes to each site."""
        return self._zones.everybody(topic, self._states.live & ~(1 << self._core.number))

    # ---- how it goes

    def _publish0(self, run: Batch, mask: int, picks: Picks, mark: bytes = b"") -> None:
        if picks:
            mask = _share(mask, picks)
        if not mask:
            return
        if self._tree.due:
            self._dispatch.announce()
        share = mask & self._tree.reach
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
        if self._core.tap is not None:
            self._core.tap.taken(run, False, epoch, first, time, share)
        self._frames.send(run, 0, share, epoch, first, time, picks, 0, run.expiry, droppable=True, mark=mark)

    def _publish_custody(self, parts: list[tuple[Batch, Picks]], mask: int, run: Batch, hold: bool = False, keep: bool = False) -> Verdict:
        everyone = mask
        for _, picks in parts:
            everyone = _share(everyone, picks)
        left = 0
        if everyone and not self.custody.fits(run.count, size_of(run), everyone):
            answer, taken = self._admit(run, everyone, run.retain and not run.length)
            if answer is not Admission.TAKEN:
                return VERDICTS[answer]
            left = everyone & ~taken
        mark = b""
        if keep:
            # not who has it for a shared subscription only: another broker may serve that in the end, and it would never come there
            parts, mark = self._marked(parts, mask & ~left, run)
        if not everyone:
            return Verdict.TAKEN
        if self._tree.due:
            self._dispatch.announce()
        time = self._core.wall_ms()
        final = parts[-1][0]
        for part, picks in parts:
            share = _share(mask, picks) & ~left
            if share:
                self._take(part, share, mask & ~left, picks, time, hold, mark if part is final else b"")
        return Verdict.TAKEN

    def _admit(self, run: Batch, mask: int, frees: bool = False) -> tuple[Admission, int]:
        if self.custody.tight and self._tree.due:
            self._dispatch.announce()  # only those that have joined are sent anything
        return self._dispatch.admit(run, mask, frees)

    def _take(self, run: Batch, mask: int, ordinary: int, picks: Picks, time: int, hold: bool, mark: bytes) -> None:
        """Put a run into custody for the destinations of the mask and send it to those that may have it now."""
        core = self._core
        core.counters.published += run.count
        entry = self._dispatch.entry(run, mask, picks, time)
        entry.ordinary = ordinary
        if run.expiry is not None:
            entry.deadline = core.now + run.expiry
        # what others keep with the word that it comes from here must be here: a record with its mark leaves behind its commit too
        entry.hold = hold or run.qos == 2 or bool(mark)
        entry.kept = mark
        if core.tap is not None:
            core.tap.taken(run, True, entry.epoch, entry.first, time, mask)
        self._dispatch.accept(entry)


def _share(mask: int, picks: Picks) -> int:
    """The brokers that a part goes to: those that all parts go to, and those that are picked."""
    for _, number in picks:
        mask |= 1 << number
    return mask
