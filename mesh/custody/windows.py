"""Windows: what lets a message in once.

`CustodyWindow` is the whole memory of QoS 1 and 2 at a destination: one position for each origin, because an origin sends in order and
a relay that drops one frame passes none after it. `SlidingWindow` serves flooded QoS 0, where copies come over many
paths in any order.

Invariants
- a position is let in at most once, whatever comes;
- `committed` <= `handed` <= `seen` where there is a store (without one `handed` stands still); `committed` follows the shell's
  commits in the order of arrival.

They do not know links, trees or bytes.
"""

from __future__ import annotations

from collections import deque

from ..wire.control import NO_POSITION, Position, Refusal

PAST_KEPT = 16  # epochs of one origin whose ends are remembered


class Pending:
    """A delivery that the shell has and has not committed. One run: sequences first to last of one epoch.

    foreign: of a life that is not in the past of the one that sends now. heir: the same delivery in the window of another identity.
    """

    __slots__ = ("done", "epoch", "first", "foreign", "heir", "last", "refusals")

    def __init__(self, epoch: int, first: int, last: int) -> None:
        self.epoch = epoch
        self.first = first
        self.last = last
        self.done = False
        self.foreign = False
        self.heir: tuple[CustodyWindow, Pending] | None = None
        self.refusals: list[tuple[str, str]] = []


class CustodyWindow:
    """What this broker has of one origin, the owner (number, uuid).

    committed: all up to here is delivered for good. seen: all up to here is with the shell. refusals: what the origin has not yet noted.
    handed, kept: the position and the refusals that belong into the batch with the deliveries that the shell has carried out.
    early: what it has carried out beyond that, before its turn: (epoch, first, last).
    past: the last sequence handed over of each other epoch, as two lives of the owner may have parted there (`resume`).
    """

    __slots__ = ("committed", "early", "handed", "kept", "owner", "past", "pending", "refusals", "seen")

    def __init__(
        self,
        committed: Position = NO_POSITION,
        refusals: list[Refusal] | None = None,
        owner: tuple[int, bytes] = (0, b""),
        early: list[tuple[int, int, int]] | None = None,
        past: dict[int, int] | None = None,
    ) -> None:
        self.owner = owner
        self.committed = committed
        self.seen = committed
        self.handed = committed
        self.pending: deque[Pending] = deque()
        self.refusals: list[Refusal] = refusals or []
        self.kept: list[Refusal] = list(self.refusals)
        self.early = early or []
        self.past = past or {}

    def take(self, epoch: int, first: int, last: int) -> Pending:
        """Let a run in; it must lie above `seen`."""
        assert (epoch, first) > self.seen
        self.seen = (epoch, last)
        pending = Pending(epoch, first, last)
        self.pending.append(pending)
        return pending

    def hand_over(self, pending: Pending) -> None:
        """The shell has carried out a delivery, in the order of arrival but for early ones; its refusals are known."""
        self._pass(self.handed, pending)
        if not pending.foreign:
            self.handed = (pending.epoch, pending.last)
        if self.early:
            self.early = [one for one in self.early if (one[0], one[2]) > self.handed]
        self.kept += [Refusal(pending.epoch, pending.first, pending.last, share) for share in pending.refusals]

    def hand_over_early(self, pending: Pending) -> None:
        """The shell has carried out a delivery while some before it wait. Those in a row are one, whatever went elsewhere in between."""
        newest = iter(reversed(self.pending))
        for one in newest:
            if one is pending:
                break
        before, first = next(newest, None), pending.first
        if self.early and before is not None and (before.epoch, before.last) == (pending.epoch, self.early[-1][2]):
            first = self.early.pop()[1]
        self.early.append((pending.epoch, first, pending.last))

    def came_early(self, epoch: int, sequence: int) -> bool:
        """Whether a message was carried out before its turn, perhaps in an earlier life."""
        return any(one[0] == epoch and one[1] <= sequence <= one[2] for one in self.early)

    def commit(self, pending: Pending) -> bool:
        """A delivery is committed; whether `committed` moved."""
        pending.done = True
        waiting = self.pending
        if len(waiting) == 1 and pending.epoch == self.committed[0] and not (pending.foreign or pending.refusals):
            del waiting[0]  # the usual case: all before it is committed, in the same epoch
            self.committed = (pending.epoch, pending.last)
            return True
        moved = False
        while waiting and waiting[0].done:
            first = waiting.popleft()
            if self.handed == NO_POSITION:  # nothing is stored, so that nothing is handed over either
                self._pass(self.committed, first)
            if not first.foreign:
                self.committed = (first.epoch, first.last)
            self.refusals += [Refusal(first.epoch, first.first, first.last, share) for share in first.refusals]
            moved = True
        return moved

    # ---- lives that have parted

    def _pass(self, before: Position, pending: Pending) -> None:
        """What comes now is perhaps of another epoch than what came before."""
        past = self.past
        if pending.foreign:
            past[pending.epoch] = pending.last
        elif pending.epoch != before[0]:
            past.pop(pending.epoch, None)
            if before != NO_POSITION:
                past[before[0]] = before[1]
        if len(past) > PAST_KEPT:
            del past[min(past)]

    def resume(self, epochs: tuple[int, ...]) -> None:
        """A life of the owner sends from now on. epochs: its own and those of the lives before it, as it says them.

        Where two lives of a copied data folder have sent, what one of them was let in for says nothing of the other: its position is the
        highest one of an epoch that is in its own past.
        """
        if not epochs:
            return
        handed = dict(self.past)
        stored = self.handed != NO_POSITION
        kept = self.handed if stored else self.committed
        if kept != NO_POSITION:
            handed[kept[0]] = kept[1]
        seen = dict(handed)
        for pending in self.pending:
            seen[pending.epoch] = max(pending.last, seen.get(pending.epoch, 0))
        before = _newest(seen, epochs)
        if before == self.seen:
            return  # older than all that it says
        self.seen = before
        waiting = None
        for pending in self.pending:
            pending.foreign = not _own(pending.epoch, epochs)
            waiting = pending if waiting is None and not pending.foreign else waiting
        self.committed = self.seen if waiting is None else (waiting.epoch, waiting.first - 1)
        kept = _newest(handed, epochs)
        self.handed = kept if stored else NO_POSITION
        self.past = {epoch: last for epoch, last in handed.items() if epoch != kept[0]}

    def branch(self, owner: tuple[int, bytes], epochs: tuple[int, ...]) -> CustodyWindow:
        """The window of the identity that a copy of the owner's data folder was given: what the copy has sent before counts."""
        heir = CustodyWindow(self.handed, None, owner, None, dict(self.past))
        heir.seen, heir.committed = self.seen, self.committed
        for pending in self.pending:
            same = Pending(pending.epoch, pending.first, pending.last)
            same.done = pending.done
            heir.pending.append(same)
            pending.heir = heir, same
        heir.resume(epochs)
        return heir

    def noted(self, position: Position) -> None:
        """The origin has acted on the refusals up to here."""
        self.refusals = [r for r in self.refusals if (r.epoch, r.last) > position]
        self.kept = [r for r in self.kept if (r.epoch, r.last) > position]


def _own(epoch: int, epochs: tuple[int, ...]) -> bool:
    """Whether an epoch is in the past of a life that says these; what is older than all of them is."""
    return epoch in epochs or epoch < min(epochs)


def _newest(ends: dict[int, int], epochs: tuple[int, ...]) -> Position:
    """Of the last sequences of some epochs the newest one in the past of a life."""
    return max(((epoch, last) for epoch, last in ends.items() if _own(epoch, epochs)), default=NO_POSITION)


class SlidingWindow:
    """Which of the last `size` sequences of one (origin, epoch) have come. What is older counts as come."""

    __slots__ = ("_bits", "_size", "_top")

    def __init__(self, size: int = 65_536) -> None:
        self._size = size
        self._top = 0  # highest sequence seen
        self._bits = 0  # bit i: sequence _top - i

    def take(self, first: int, last: int) -> list[tuple[int, int]]:
        """Let sequences first..last in (at least 1, at most `size` of them); the parts (first, last) that are new, in order."""
        if first > self._top:
            self._shift(last - self._top)
            self._bits |= (1 << last - first + 1) - 1
            return [(first, last)]
        if last > self._top:
            self._shift(last - self._top)
        oldest = self._top - self._size + 1
        if last < oldest:
            return []
        first = max(first, oldest, 1)
        if first > last:
            return []
        low = self._top - last
        count = last - first + 1
        mask = (1 << count) - 1
        here = (self._bits >> low) & mask
        if here == mask:
            return []
        self._bits |= mask << low
        return [(first, last)] if not here else self._parts(here, first, last)

    def _shift(self, by: int) -> None:
        self._bits = (self._bits << by) & ((1 << self._size) - 1) if by < self._size else 0
        self._top += by

    @staticmethod
    def _parts(here: int, first: int, last: int) -> list[tuple[int, int]]:
        parts: list[tuple[int, int]] = []
        for sequence in range(first, last + 1):
            if not here >> (last - sequence) & 1:
                if parts and parts[-1][1] == sequence - 1:
                    parts[-1] = (parts[-1][0], sequence)
                else:
                    parts.append((sequence, sequence))
        return parts
