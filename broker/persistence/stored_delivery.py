"""What a store keeps of one session: deliveries as rows, the QoS 1 and 2 state of both directions.

`Kept` is a delivery that has rows in the store, `KeptOutbound` is the sending direction of `mqtt/session.py` that writes
down each of its moves, `KeptInbound` the receiving one, which is written down whole. A delivery's row names the stored run,
which of its messages, and once they are in flight their first packet identifier; so one row stands for a whole run, and costs
are paid for runs and for blocks of acknowledgements.

Order numbers advance by message: a delivery of `count` messages takes as many numbers, so that whatever part of it needs a row
of its own has a number for it, unique and in order. Acknowledged messages leave their row: it shrinks, is split, or goes.

    state     the row means                                              packet identifier
    WAITING   these messages wait in the queue                           0
    SENT      they are in flight: QoS 1 or 2, PUBACK or PUBREC awaited   of the first of them

A message whose PUBREC came needs no payload any more: its row goes, and its identifier stands among the session's *released*
ones, one value for the session. QoS 2 identifiers received from the client are another.

Invariants: the rows of a session are disjoint, and together they are what is not acknowledged; a change is in the batch that is
open when the state in memory changes, so that a commit holds a state that was.

What it does not know: when a batch is committed, what may be sent then (`durable.py`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ...mqtt.batch.run import Run
from ...mqtt.session import RELEASED, Delivery, Inbound, Outbound, Sent
from ...store.records import StoredDelivery

if TYPE_CHECKING:
    from .stored_session import DurableSession

WAITING = 1
SENT = 2

_EXTRA = Struct(">BIIIH")  # flags, bytes of memory a message, wall clock in seconds when it came and when it expires, length of the suffix
_RETAIN = 1
_BLOCK = Struct(">HH")


class Extra(NamedTuple):
    """What a row keeps beside the run.

    each: see `Delivery`. since, until: wall clock in seconds when it came and when its lifetime ends, 0 for never. share:
    `$share/name/filter` or "".
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


class Kept(Delivery):
    """A delivery with rows in the store.

    run: None while it is not in memory. stored: the stored run's id; base: where in the stored run `run` begins. order: number of its
    first message. extra: as its rows have it. waiting: it has a row in state WAITING. segments: while in flight, the parts
    that are not acknowledged, as (number of the row, first, end) counted from its first message. ticket: it may be sent when
    this is committed; 0: at once.
    """

    __slots__ = ("base", "extra", "order", "segments", "stored", "waiting")

    run: Run

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
    def of_row(cls, row: StoredDelivery, extra: Extra, share: object | None) -> Kept:
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
        kept.segments = []
        return kept

    def part(self, start: int, stop: int) -> Kept:
        piece = Kept(self, self.stored, self.order + start, self.extra)
        piece.start += start
        piece.count = piece.left = stop - start
        piece.first = self.first + start if self.first else 0
        piece.serial = self.serial
        piece.base = self.base
        piece.ticket = self.ticket
        return piece

    def cut_out(self) -> None:
        self.base += self.start
        super().cut_out()

    @property
    def loaded(self) -> bool:
        """Whether its messages are in memory."""
        return self.run is not None

    def load(self, run: Run) -> None:
        """Its stored run, whole."""
        self.run = run
        self.start += self.base
        self.base = 0

    def unload(self) -> None:
        """Let go of its messages; the store has them."""
        self.start += self.base
        self.base = 0
        self.run = None  # type: ignore[assignment]

    def row(self, recipient: str, number: int, begin: int, end: int, state: int) -> StoredDelivery:
        """The row `number` for its messages `begin` to `end`, counted from its first."""
        first = self.first + begin if state == SENT else 0
        return StoredDelivery(
            recipient, number, self.stored, self.base + self.start + begin, end - begin, self.qos, state, first, self.extra
        )


class KeptOutbound(Outbound):
    """The sending direction of a session in the store."""

    __slots__ = ("_released", "_session")

    def __init__(self, session: DurableSession, limit: int) -> None:
        super().__init__(limit)
        self._session = session
        self._released: dict[int, list[tuple[int, int]]] = {}  # serial -> parts [start, stop) that are still released

    def send(self, delivery: Delivery) -> tuple[Delivery, Delivery | None]:
        session = self._session
        kept = delivery if isinstance(delivery, Kept) else session.keep(delivery)
        now, rest = super().send(kept)
        assert isinstance(now, Kept)
        if rest is not None and kept.waiting:
            assert isinstance(rest, Kept)
            session.split(rest)
        now.waiting = False
        now.segments = [(now.order, 0, now.count)]
        session.put_row(now.row(session.recipient, now.order, 0, now.count, SENT))
        if now.qos == 2:
            now.ticket = session.mark()
        return now, rest

    def unfinished(self) -> list[Delivery]:
        """As `Outbound.unfinished`; QoS 2 may go once the identifiers are committed."""
        found = super().unfinished()
        mark = self._session.mark()
        for piece in found:
            assert isinstance(piece, Kept)
            piece.ticket = mark if piece.qos == 2 else 0
        return found

    def flights(self) -> list[Kept]:
        """All deliveries in flight."""
        return [flight for flight in self._flights.values() if isinstance(flight, Kept)]

    def flight(self, serial: int) -> Kept | None:
        """The delivery in flight with that place in the order of sending."""
        found = self._flights.get(serial)
        return found if isinstance(found, Kept) else None

    # Acknowledgements: rows shrink.

    def acknowledge(self, qos: int, first: int, count: int) -> int:
        done = 0
        for start, stop in self._blocks(qos, first, count):
            self._settle(start, stop)
            done += self._release(start, stop)
        return done

    def receive(self, first: int, count: int) -> list[tuple[int, int, bool]]:
        settled = self._blocks(Sent.PUBLISHED_2.value, first, count)
        for start, stop in settled:
            self._settle(start, stop)
            self._serial += 1
            self._mark_released(start, stop)
        answers = []
        position = first
        for start, stop in self._blocks(RELEASED, first, count):
            if start > position:
                answers.append((position, start - position, False))
            answers.append((start, stop - start, True))
            position = stop
        if position < first + count:
            answers.append((position, first + count - position, False))
        return answers

    def complete(self, first: int, count: int) -> int:
        done = 0
        for start, stop in self._blocks(RELEASED, first, count):
            self._forget_released(start, stop)
            done += self._release(start, stop)
        return done

    def _release(self, start: int, stop: int) -> int:
        """These identifiers are free again."""
        count = stop - start
        self._states[start:stop] = bytes(count)
        self.in_flight -= count
        return count

    def _settle(self, start: int, stop: int) -> None:
        """The messages with these identifiers, all published, need not be kept."""
        while start < stop:
            flight = self._flights[self._serials[start]]
            assert isinstance(flight, Kept)
            end = self._shrink(flight, start - flight.first, stop - flight.first) + flight.first
            flight.left -= end - start
            if not flight.left:
                del self._flights[flight.serial]
                if flight.loaded:
                    self.bytes -= flight.weight
            start = end

    def _shrink(self, flight: Kept, begin: int, end: int) -> int:
        """Take begin to end, or to the end of the segment, out of a flight's rows: how far it came."""
        session = self._session
        segments = flight.segments
        index = _holding(segments, begin)
        number, low, high = segments[index]
        end = min(end, high)
        parts = []
        if low < begin:
            parts.append((number, low, begin))
        if end < high:
            parts.append((number if low == begin else flight.order + end, end, high))
        for part in parts:
            session.put_row(flight.row(session.recipient, *part, SENT))
        if not parts:
            session.delete_row(number)
        segments[index : index + 1] = parts
        return end

    # Released: one value for all.

    def _mark_released(self, start: int, stop: int) -> None:
        self._mark(start, stop - start, RELEASED)
        self._released[self._serial] = [(start, stop)]
        self._session.state_changed()

    def _forget_released(self, start: int, stop: int) -> None:
        while start < stop:
            serial = self._serials[start]
            parts = self._released[serial]
            index = _holding(parts, start)
            low, high = parts[index]
            end = min(stop, high)
            parts[index : index + 1] = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
            if not parts:
                del self._released[serial]
            start = end
        self._session.state_changed()

    def released_value(self) -> bytes:
        """The released identifiers in the order of their PUBRECs, as the store keeps them."""
        return b"".join([_BLOCK.pack(low, high - low) for parts in self._released.values() for low, high in parts])

    # Recovery.

    def restore(self, kept: Kept) -> None:
        """A row in state SENT, read back; in the order of sending."""
        self._extend(kept.first + kept.count)
        self._serial += 1
        kept.serial = self._serial
        kept.left = kept.count
        kept.segments = [(kept.order, 0, kept.count)]
        self._flights[self._serial] = kept
        self._mark(kept.first, kept.count, kept.qos)
        self.in_flight += kept.count

    def restore_released(self, value: bytes) -> None:
        """What `released_value` gave."""
        for first, count in _BLOCK.iter_unpack(value):
            self.adopt_released(first, count)

    # Taken over from elsewhere.

    def adopt(self, delivery: Delivery) -> Delivery:
        session = self._session
        kept = session.keep(delivery)
        kept.first = delivery.first
        super().adopt(kept)
        kept.segments = [(kept.order, 0, kept.count)]
        session.put_row(kept.row(session.recipient, kept.order, 0, kept.count, SENT))
        return kept

    def adopt_released(self, first: int, count: int) -> None:
        self._extend(first + count)
        self._serial += 1
        self._mark_released(first, first + count)
        self.in_flight += count


class KeptInbound(Inbound):
    """The receiving direction of a session in the store."""

    __slots__ = ()

    def value(self) -> bytes:
        """The open identifiers, as the store keeps them."""
        return _swapped(array("H", sorted(self.open))).tobytes()

    def restore(self, value: bytes) -> None:
        """What `value` gave."""
        numbers: array[Any] = array("H")
        numbers.frombytes(value)
        self.open.update(_swapped(numbers))


def _holding(parts: Sequence[tuple[int, ...]], position: int) -> int:
    """The index of the part, whose last two items are its beginning and end, that holds a position."""
    for index, part in enumerate(parts):
        if part[-2] <= position < part[-1]:
            return index
    raise AssertionError("an identifier stands in no part")


def _swapped(numbers: array[Any]) -> array[Any]:
    """In the store's byte order, little-endian, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
