"""A delivery with rows in the store.

A row names the stored run, which of its messages, and once they are in flight their first packet identifier. So one row stands for a
whole run, and costs are paid for runs and for blocks of acknowledgements.

Order numbers advance by message: a delivery of `count` messages takes as many numbers, so that whatever part of it needs a row
of its own has a number for it, unique and in order. Acknowledged messages leave their row: it shrinks, is split, or goes.

    state     the row means                                              packet identifier
    WAITING   these messages wait in the queue                           0
    SENT      they are in flight: QoS 1 or 2, PUBACK or PUBREC awaited   of the first of them

A message whose PUBREC has come needs no payload any more: its row goes, and its identifier stands among the session's *released*
ones, one value for the session.

Invariant: the rows of a session are disjoint, and together they are what is not acknowledged.

What it does not know: when a row is written or committed (`stored_session.py`, `commits.py`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ...mqtt.batch.batch import Batch
from ...mqtt.session import Delivery
from ...store.records import StoredDelivery

WAITING = 1
SENT = 2

_EXTRA = Struct(">BIIIH")  # flags, bytes of memory a message, wall clock in seconds when it came and when it expires, length of the suffix
_RETAIN = 1


class Extra(NamedTuple):
    """What a row keeps beside the run.

    retain, each, suffix: see `Delivery`.
    since: the wall clock, in seconds, when it came.
    until: the wall clock when its lifetime ends; 0: never.
    share: `$share/name/filter`, or "".
    """

    retain: bool
    each: int
    since: int
    until: int
    suffix: bytes
    share: str

    def encode(self) -> bytes:
        each, since, until = [max(0, min(value, 0xFFFFFFFF)) for value in (self.each, self.since, self.until)]
        return _EXTRA.pack(_RETAIN if self.retain else 0, each, since, until, len(self.suffix)) + self.suffix + self.share.encode()

    @classmethod
    def decode(cls, data: bytes) -> Extra:
        flags, each, since, until, length = _EXTRA.unpack_from(data)
        end = _EXTRA.size + length
        return cls(bool(flags & _RETAIN), each, since, until, data[_EXTRA.size : end], data[end:].decode())


class PersistentDelivery(Delivery):
    """A delivery with rows in the store.

    run: None while it is not in memory.
    stored: the stored run's identifier.
    base: where in the stored run `run` begins.
    order: number of its first message.
    extra: as its rows have it.
    waiting: it has a row in state WAITING.
    segments: while in flight, the parts that are not acknowledged: (number of the row, first, end) counted from its first message.
    """

    __slots__ = ("base", "extra", "order", "segments", "stored", "waiting")

    run: Batch

    def __init__(self, delivery: Delivery, stored: int, order: int, extra: bytes) -> None:
        self.run = delivery.run
        self.qos = delivery.qos
        self.retain = delivery.retain
        self.suffix = delivery.suffix
        self.share = delivery.share
        self.start = delivery.start
        self.count = delivery.count
        self.each = delivery.each
        self.first = 0
        self.serial = 0
        self.left = 0
        self.stored = stored
        self.base = 0
        self.order = order
        self.extra = extra
        self.waiting = False
        self.segments: list[tuple[int, int, int]] = []
        self.ticket = 0

    @classmethod
    def of_row(cls, row: StoredDelivery, extra: Extra, share: object | None) -> PersistentDelivery:
        """The delivery that a row stands for; its messages are not in memory."""
        kept = cls.__new__(cls)
        kept.run = None  # type: ignore[assignment]
        kept.qos = row.qos
        kept.retain = extra.retain
        kept.suffix = extra.suffix
        kept.share = share
        kept.start = row.start
        kept.count = row.count
        kept.each = extra.each
        kept.first = row.packet_id
        kept.serial = kept.left = kept.base = kept.ticket = 0
        kept.stored = row.run
        kept.order = row.order
        kept.extra = row.extra
        kept.waiting = row.state == WAITING
        kept.segments = [(row.order, 0, row.count)] if row.state == SENT else []
        return kept

    def part(self, start: int, stop: int) -> PersistentDelivery:
        piece = PersistentDelivery(self, self.stored, self.order + start, self.extra)
        piece.start += start
        piece.count = piece.left = stop - start
        piece.first = self.first + start if self.first else 0
        piece.serial = self.serial
        piece.base = self.base
        piece.ticket = self.ticket
        piece.waiting = self.waiting
        return piece

    def cut_out(self) -> None:
        self.base += self.start
        super().cut_out()

    @property
    def weight(self) -> int:
        """About how many bytes of memory it stands for: none while its messages are not loaded."""
        return self.count * self.each if self.run is not None else 0

    @property
    def loaded(self) -> bool:
        """Whether its messages are in memory."""
        return self.run is not None

    def load(self, run: Batch) -> None:
        """Its stored run, whole."""
        self.run = run
        self.start += self.base
        self.base = 0

    def unload(self) -> None:
        """Let go of its messages; the store has them."""
        self.start += self.base
        self.base = 0
        self.run = None  # type: ignore[assignment]

    def shrink(self, begin: int, end: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Take acknowledged messages out of its rows: (number of the row that held them, what is left of that row).

        begin, end: counted from its first message. What is left has the form of `segments`.
        """
        for index, (number, low, high) in enumerate(self.segments):
            if low <= begin < high:
                left = [(number, low, begin)] if low < begin else []
                if end < high:
                    left.append((self.order + end if left else number, end, high))
                self.segments[index : index + 1] = left
                return number, left
        raise AssertionError("a message that has no row was acknowledged")

    def row(self, recipient: str, number: int, begin: int, end: int, state: int) -> StoredDelivery:
        """The row `number` for its messages `begin` to `end`, counted from its first."""
        first = self.first + begin if state == SENT else 0
        return StoredDelivery(
            recipient, number, self.stored, self.base + self.start + begin, end - begin, self.qos, state, first, self.extra
        )
