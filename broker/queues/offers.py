"""Messages of a queue on their way to a member: as deliveries that a session sends like any other, but does not keep.

    Slice (of a block) -> Offer, Offer, ...   each of messages that are alike, in the form that the member's connection takes

A session that survives its connection keeps other deliveries; an offer goes back into its queue.

What it does not know: which queue, when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...base.queues import DELIVERIES, POSITION
from ...mqtt.batch.batch import Batch
from ...mqtt.batch.described import DescribedBatch
from ...mqtt.batch.run import Run
from ...mqtt.properties import Property, encode_properties
from ...mqtt.session import Delivery, Observer
from .core.blocks import Block
from .core.queue import Slice
from .core.stock import SECOND

MANY = 32  # messages of one size, from which on a `Run` costs less than a `DescribedBatch`
AHEAD, AHEAD_BYTES = 256, 16_384  # messages, and bytes, about, that become one batch though several members get them


class Offer(Delivery):
    """Messages of a part of a block, or of what stands for one of another site. base: index there of the first message of its run. refused:
    what its client refused.
    """

    __slots__ = ("base", "part_of", "refused", "seat")

    def __init__(self, run: Batch, suffix: bytes, seat: object, part_of: Any, base: int, start: int = 0, count: int | None = None) -> None:
        super().__init__(run, 1, False, suffix, None, start, count)
        self.seat = seat
        self.part_of = part_of
        self.base = base
        self.refused: dict[int, int] | None = None

    def part(self, start: int, stop: int) -> Offer:
        """See `Delivery`."""
        piece = Offer(self.run, self.suffix, self.seat, self.part_of, self.base, self.start + start, stop - start)
        piece.first = self.first + start if self.first else 0
        piece.serial = self.serial
        piece.left = piece.count
        return piece

    def cut_out(self) -> None:
        """See `Delivery`."""
        self.base += self.start
        super().cut_out()


class Tap:
    """The observer of a session that is a member of queues. heard: what was acknowledged since it was last looked at: (offer, begin, end).

    Other deliveries are told to the session's own observer, if it has one. quiet: what is settled now was not acknowledged. speaks: called
    when the client has acknowledged something, of queues or not: it may take more.
    """

    def __init__(self, inner: Observer | None, speaks: Callable[[], None]) -> None:
        self.inner = inner
        self.speaks = speaks
        self.heard: list[tuple[Offer, int, int]] = []
        self.quiet = False

    def sent(self, delivery: Delivery, rest: Delivery | None) -> None:
        """See `Observer`."""
        if self.inner is not None and not isinstance(delivery, Offer):
            self.inner.sent(delivery, rest)

    def settled(self, delivery: Delivery, begin: int, end: int) -> None:
        """See `Observer`."""
        if not self.heard:
            self.speaks()
        if isinstance(delivery, Offer):
            if not self.quiet:
                self.heard.append((delivery, begin, end))
        elif self.inner is not None:
            self.inner.settled(delivery, begin, end)

    def released_changed(self) -> None:
        """See `Observer`."""
        self.speaks()
        if self.inner is not None:
            self.inner.released_changed()


class Ahead:
    """Makes batches of the messages that a queue gives.

    Members that get few messages each take them one after the other from one block. Those of the first of them and some behind become one
    batch, and what comes next is a part of it. What a batch holds beyond what was given is bounded (`AHEAD_BYTES`), and nothing is made
    ahead for members that are at different places.
    """

    def __init__(self) -> None:
        self._last = 0, 0  # the first position of the block of the last slice, and where in it that has ended
        self._first = self._start = -1  # of the block of `_batch`; where in it that begins
        self._batch: DescribedBatch | None = None

    def batch(
        self, block: Block, at: int, stop: int, topic: bytes, payloads: list[bytes], expiry: int | None, now: float
    ) -> tuple[Batch, int]:
        """A batch with the messages of a block from `at` to `stop`, and the index in the block of its first one. See `offers`."""
        goes_on = not at or self._last == (block.first, at)
        self._last = block.first, stop
        made = self._batch
        if made is not None and block.first == self._first and self._start <= at and stop <= self._start + made.count:
            fresh = expiry is None or now - made.received < 1.0  # what is left of it counts from when the batch was made
            if fresh and made.expiry == expiry:
                return made, self._start
        if goes_on:
            end = min(block.count, at + AHEAD, at + AHEAD_BYTES * block.count // (block.size + block.weight))
            own = block.described(at, end) if end > stop else []
            if end > stop and sum(block.lengths[at:end]) + sum(map(len, own)) <= 2 * AHEAD_BYTES:
                self._first, self._start = block.first, at
                self._batch = DescribedBatch(topic, payloads[at:end], own, 1, expiry, now)
                return self._batch, at
        return _together(block, at, stop, topic, payloads[at:stop], expiry, now), at


def offers(
    taken: Slice,
    payloads: list[bytes],
    topic: bytes,
    suffix: bytes,
    seat: object,
    now: float,
    wall: int,
    alone: bool,
    named: bool,
    ahead: Ahead | None = None,
) -> Iterator[Offer]:
    """The offers of a slice, in order.

    payloads: of the whole block. topic: for messages whose block has none. now: of the loop's clock. wall: milliseconds since 1970. alone:
    each message by itself, for a client with wishes about packets. named: each with its position. ahead: of the queue, for a member whose
    offers may be parts of batches.
    """
    block, end = taken.part.block, taken.start + taken.length
    alone = alone or named
    topic = block.key.topic or topic
    expiry = _expiry(block.key.expires, wall)
    at = taken.start
    while at < end:
        stop = at + 1 if alone or taken.tries else end
        run: Batch
        base = at
        if stop == at + 1:
            properties = block.meta(at).properties
            if taken.tries or named:
                pairs = [(DELIVERIES, str(taken.tries))] if taken.tries else []
                pairs += [(POSITION, str(block.first + at))] if named else []
                properties += encode_properties({Property.USER_PROPERTY: pairs})
            run = Run(topic, 1, False, payloads[at:stop], properties, expiry, now)
        elif ahead is not None:
            run, base = ahead.batch(block, at, stop, topic, payloads, expiry, now)
        else:
            run = _together(block, at, stop, topic, payloads[at:stop], expiry, now)
        yield Offer(run, suffix, seat, taken.part, base, at - base, stop - at)
        at = stop


def _together(block: Block, at: int, stop: int, topic: bytes, payloads: list[bytes], expiry: int | None, now: float) -> Batch:
    """Messages of a block from `at` on: many that have one size and the same properties become frames in fewer steps."""
    own, sizes = block.described(at, stop), block.lengths[at:stop]
    if stop - at >= MANY and sizes == sizes[:1] * len(sizes) and own == own[:1] * len(own):
        return Run(topic, 1, False, payloads, own[0] if own else b"", expiry, now)
    return DescribedBatch(topic, payloads, own, 1, expiry, now)


def _expiry(expires: int, wall: int) -> int | None:
    """The Message Expiry Interval of a message that expires then; None: it does not. A whole second is rounded up (`expires_at`)."""
    if not expires:
        return None
    left = expires - wall
    return max(1, left // SECOND if expires % SECOND == 0 else -(-left // SECOND)) if left > 0 else 0


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans [start, stop) in order, those that touch as one."""
    if len(spans) < 2:
        return spans
    spans.sort()
    found = []
    begin, end = spans[0]
    for start, stop in spans:
        if start > end:
            found.append((begin, end))
            begin = start
        end = stop
    found.append((begin, end))
    return found
