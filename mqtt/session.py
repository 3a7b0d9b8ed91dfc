"""The QoS 1 and 2 session machine, both directions, on runs.

One message in the sending direction is in one of the states of `Sent`; `TABLE` is the whole machine and `step` one move of it
(clauses of MQTT 5: 4.3.2, 4.3.3, 4.4). `Outbound` makes the same moves for blocks of consecutive identifiers. Its strategy: one
byte a packet identifier says its state, one list entry says which delivery it belongs to, so that a block is moved with a few
slices whatever its length, and an acknowledgement out of order costs no more than one in order. A property test holds
`Outbound` against `step`.

Invariants
- a packet identifier is busy from the PUBLISH until its PUBACK, PUBCOMP or refusing PUBREC; a busy one is never given again;
- at most `limit` identifiers are busy (the receiver's Receive Maximum, MQTT-3.3.4-9);
- redelivery keeps identifiers and order (MQTT-4.4.0-1, MQTT-4.6.0-1).

What it does not know: queues, sockets, topics' recipients, time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from .batch.batch import Batch
from .batch.run import acknowledgement_table
from .errors import PeerError
from .reasons import Reason

PUBACKS = acknowledgement_table(0x40)
PUBRECS = acknowledgement_table(0x50)
PUBRELS = acknowledgement_table(0x62)
PUBCOMPS = acknowledgement_table(0x70)

OVERHEAD = 64  # bytes that a message is taken to need beside its payload, topic and properties
APART = 320  # bytes more of a message that came alone, and of a batch in all: for the batch, and for its delivery
FIRST_SPACE = 127  # identifiers that a session starts with; more when more are busy
PLACE = 9  # bytes of what is known of an identifier
PINNED_MIN = 16_384  # bytes of a run from which on a small part of it is copied rather than holding on to the whole


class Sent(Enum):
    """Where one sent message stands."""

    DONE = 0  # the identifier is free
    PUBLISHED_1 = 1  # QoS 1 PUBLISH sent, PUBACK awaited
    PUBLISHED_2 = 2  # QoS 2 PUBLISH sent, PUBREC awaited
    RELEASED = 3  # PUBREL sent, PUBCOMP awaited


class Input(Enum):
    """What the receiver says of it."""

    PUBACK = "PUBACK"
    PUBREC = "PUBREC, reason below 0x80"
    PUBREC_ERROR = "PUBREC, reason 0x80 or above"
    PUBCOMP = "PUBCOMP"


# (state, input) -> next state. A pair that is in neither table leaves the state as it is: a repeated or late acknowledgement.
TABLE: dict[tuple[Sent, Input], Sent] = {
    (Sent.PUBLISHED_1, Input.PUBACK): Sent.DONE,
    (Sent.PUBLISHED_2, Input.PUBREC): Sent.RELEASED,
    (Sent.PUBLISHED_2, Input.PUBREC_ERROR): Sent.DONE,
    (Sent.RELEASED, Input.PUBCOMP): Sent.DONE,
}

# (state, input) that no receiver may bring about: the acknowledgement is of another QoS, or PUBCOMP comes before PUBREL was sent. To
# ignore it would keep the identifier busy for ever, and with it a part of Receive Maximum.
WRONG: frozenset[tuple[Sent, Input]] = frozenset(
    (
        (Sent.PUBLISHED_1, Input.PUBREC),
        (Sent.PUBLISHED_1, Input.PUBREC_ERROR),
        (Sent.PUBLISHED_1, Input.PUBCOMP),
        (Sent.PUBLISHED_2, Input.PUBACK),
        (Sent.PUBLISHED_2, Input.PUBCOMP),
        (Sent.RELEASED, Input.PUBACK),
    )
)

RELEASED = Sent.RELEASED.value
AWAITED = {Sent.PUBLISHED_1.value: "PUBACK", Sent.PUBLISHED_2.value: "PUBREC", RELEASED: "PUBCOMP"}
_AFTER_PUBACK = bytes((Sent.DONE.value, Sent.PUBLISHED_1.value))  # states in which an acknowledgement is right, repeated or late
_AFTER_PUBREC = bytes((Sent.DONE.value, Sent.PUBLISHED_2.value, RELEASED))
_AFTER_PUBCOMP = bytes((Sent.DONE.value, RELEASED))


def step(state: Sent, event: Input) -> Sent:
    """One move of one message. Raises PeerError for an acknowledgement of the wrong kind."""
    if (state, event) in WRONG:
        raise wrong(0, state.value, event.value[:6].rstrip(","))
    return TABLE.get((state, event), state)


def wrong(packet_id: int, state: int, came: str) -> PeerError:
    """The error for an acknowledgement of the wrong kind. state: a value of `Sent`. came: its name."""
    text = f"{came} for packet identifier {packet_id}, whose {AWAITED[state]} is awaited"
    return PeerError(Reason.PROTOCOL_ERROR, text, "MQTT-4.3.2-1" if state == Sent.PUBLISHED_1.value else "MQTT-4.3.3-1")


class Delivery:
    """Messages of one run for one subscriber: waiting (first = 0) or in flight with identifiers first, first+1, ...

    run, start, count: which messages of it. qos: 1 or 2, the delivery's. retain: the flag to send. suffix: encoded
    properties that this subscriber gets behind the message's own (subscription identifiers). share: the shared
    subscription it was taken for. each: bytes of memory that one of its messages stands for. serial: place in the order of
    sending. left: how many are not acknowledged. ticket: of the commit that must come first; 0: none.
    """

    __slots__ = ("count", "each", "first", "left", "qos", "retain", "run", "serial", "share", "start", "suffix", "ticket")

    def __init__(
        self,
        run: Batch,
        qos: int,
        retain: bool = False,
        suffix: bytes = b"",
        share: object | None = None,
        start: int = 0,
        count: int | None = None,
        ticket: int = 0,
    ) -> None:
        self.run = run
        self.qos = qos
        self.retain = retain
        self.suffix = suffix
        self.share = share
        self.start = start
        self.count = run.count if count is None else count
        common = len(run.topic) + len(run.properties)  # in the packets as they came, and once more
        self.each = run.length + common + OVERHEAD + (APART + common) // run.count
        self.first = 0
        self.serial = 0
        self.left = 0
        self.ticket = ticket

    def part(self, start: int, stop: int) -> Delivery:
        """The messages start..stop of it as a delivery of their own, identifiers and place kept."""
        piece = Delivery(self.run, self.qos, self.retain, self.suffix, self.share, self.start + start, stop - start, self.ticket)
        piece.first = self.first + start if self.first else 0
        piece.serial = self.serial
        piece.left = piece.count
        piece.each = self.each
        return piece

    def cut_out(self) -> None:
        """Hold on to these messages only, not to the bytes of the whole run."""
        self.run = self.run.part(self.start, self.start + self.count)
        self.start = 0

    @property
    def payloads(self) -> list[bytes]:
        """Its messages' payloads."""
        return self.run.payloads[self.start : self.start + self.count]

    @property
    def weight(self) -> int:
        """About how many bytes of memory it stands for."""
        return self.count * self.each

    def encode(self, version: int, properties: bytes, duplicate: bool = False) -> bytes | bytearray:
        """The PUBLISH packets with their identifiers; `properties` is the whole property block (ignored for version 4)."""
        return self.run.stamped(version, self.qos, self.retain, properties, self.start, self.count, self.first, duplicate)


class Observer(Protocol):
    """Is told each change of an `Outbound`."""

    def sent(self, delivery: Delivery, rest: Delivery | None) -> None:
        """A delivery is in flight. rest: the part of it that has to wait."""

    def settled(self, delivery: Delivery, begin: int, end: int) -> None:
        """PUBACK or PUBREC has come for messages of a delivery in flight: those from `begin` to `end`, counted from its first."""

    def released_changed(self) -> None:
        """The identifiers whose PUBCOMP is awaited have changed."""


class Outbound:
    """The sending direction of one session.

    limit: how many messages may be in flight at once, 1 to 65,535; it may be changed with each connection.
    in_flight: how many identifiers are busy.
    bytes: what the messages in flight stand for in memory.
    observer: is told each change; None: nobody is.
    tap: is told what `Observer.settled` is, for whoever writes down what was acknowledged; None: nobody is.
    """

    __slots__ = ("_flights", "_next", "_serial", "_serials", "_states", "bytes", "in_flight", "limit", "observer", "tap")

    def __init__(self, limit: int, observer: Observer | None = None) -> None:
        self.limit = limit
        self.observer = observer
        self.tap: Callable[[Delivery, int, int], None] | None = None
        self.in_flight = 0
        self.bytes = 0
        # Of identifier p: _states[p] is a value of `Sent`; _serials[p] is, while published, the key of its delivery in _flights, and
        # when released, the place of its PUBREC among all.
        self._states = bytearray((255,))  # identifier 0 does not exist
        self._serials = array("Q", (0,))
        self._flights: dict[int, Delivery] = {}
        self._next = 1
        self._serial = 0

    @property
    def table(self) -> int:
        """Bytes of what is known of identifiers, once there were messages."""
        return PLACE * (len(self._states) - 1)

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        return self.limit - self.in_flight

    # Sending

    def send(self, delivery: Delivery) -> tuple[Delivery, Delivery | None]:
        """Give identifiers to as much of the delivery as fits now: (what to send, what has to wait).

        Only to be called while `room` is above 0; what is sent is one block of consecutive identifiers.
        """
        first, count = self._reserve(delivery.count)
        rest = None
        if count < delivery.count:
            delivery, rest = delivery.part(0, count), delivery.part(count, delivery.count)
            if 8 * count < delivery.run.count and delivery.run.count * delivery.each > PINNED_MIN:
                delivery.cut_out()
        self._serial += 1
        delivery.first = first
        delivery.serial = self._serial
        delivery.left = count
        self._flights[self._serial] = delivery
        self._mark(first, count, delivery.qos)
        self.in_flight += count
        self.bytes += count * delivery.each
        if self.observer is not None:
            self.observer.sent(delivery, rest)
        return delivery, rest

    def send_one(self, delivery: Delivery) -> int:
        """`send` for a delivery of one message that no observer is told: its identifier."""
        states = self._states
        first = self._next
        if self.in_flight + 1 >= len(states) or first >= len(states) or states[first]:
            first = self._reserve(1)[0]
        else:
            self._next = first + 1
        self._serial = serial = self._serial + 1
        delivery.first = first
        delivery.serial = serial
        delivery.left = 1
        self._flights[serial] = delivery
        states[first] = delivery.qos
        self._serials[first] = serial
        self.in_flight += 1
        self.bytes += delivery.each
        return first

    def _reserve(self, wanted: int) -> tuple[int, int]:
        """A free block of consecutive identifiers: (first, how many), at most `wanted` and `room`."""
        wanted = min(wanted, self.limit - self.in_flight)
        assert wanted > 0, "send() without room"
        states = self._states
        first = self._next
        if self.in_flight + wanted >= len(states) and len(states) < 65536:
            self._grow(self.in_flight + wanted)
        if first >= len(states) or states[first]:
            first = states.find(0, first)
            if first < 0:
                first = states.find(0, 1)
        count = 1
        if wanted > 1:
            ahead = states[first : first + wanted]
            count = len(ahead) - len(ahead.lstrip(b"\0"))
        self._next = first + count
        return first, count

    def _grow(self, busy: int) -> None:
        """Room for twice as many identifiers as are busy, as far as there are any."""
        more = min(65536, max(FIRST_SPACE + 1, 2 * busy + 1)) - len(self._states)
        self._states += bytes(more)
        self._serials.frombytes(bytes(8 * more))

    def _mark(self, first: int, count: int, state: int) -> None:
        """A block of identifiers is in a state, under the newest serial."""
        if count == 1:
            self._states[first] = state
            self._serials[first] = self._serial
        else:
            self._states[first : first + count] = bytes((state,)) * count
            self._serials[first : first + count] = array("Q", (self._serial,)) * count

    # Acknowledgements

    def acknowledge(self, qos: int, first: int, count: int) -> int:
        """Blocks of PUBACK (qos 1), or of PUBREC that refuses (qos 2): how many were in flight and are done now.

        Raises PeerError for an acknowledgement of the wrong kind, once the right ones of the block are taken.
        """
        if count == 1 and self.observer is None and self.tap is None:
            states = self._states
            if first >= len(states) or not states[first]:
                return 0
            if states[first] != qos:
                self._check(first, 1, *((_AFTER_PUBACK, "PUBACK") if qos == 1 else (_AFTER_PUBREC, "PUBREC")))
                return 0
            states[first] = 0
            self.in_flight -= 1
            serial = self._serials[first]
            flight = self._flights[serial]
            flight.left -= 1
            if not flight.left:
                del self._flights[serial]
                self.bytes -= flight.weight
            return 1
        if self._states.count(qos, first, first + count) == count:
            flight = self._flights[self._serials[first]]
            if flight.first == first and flight.count == flight.left == count:  # mostly: a delivery as it was sent
                self._settle(flight, 0, count)
                self._states[first : first + count] = bytes(count)
                self.in_flight -= count
                return count
        done = sum([self._free(start, stop, published=True) for start, stop in self._blocks(qos, first, count)])
        if done != count:
            self._check(first, count, *((_AFTER_PUBACK, "PUBACK") if qos == 1 else (_AFTER_PUBREC, "PUBREC")))
        return done

    def give_up(self, qos: int, first: int, count: int) -> None:
        """A block that was not sent after all: its identifiers are free again, and nobody has acknowledged anything."""
        tap, self.tap = self.tap, None
        self.acknowledge(qos, first, count)
        self.tap = tap

    def drop(self, flights: Sequence[Delivery]) -> None:
        """Deliveries of QoS 1 in flight are taken back, however many: nobody has acknowledged them, and nobody is told."""
        states, known = self._states, self._flights
        for flight in flights:
            if flight.count == 1:
                states[flight.first] = 0
            else:
                for first, count in [(flight.first, flight.count)] if flight.left == flight.count else self._left_of(flight):
                    states[first : first + count] = bytes(count)
            self.in_flight -= flight.left
            self.bytes -= flight.weight
            flight.left = 0
            del known[flight.serial]

    def release(self, first: int, count: int) -> None:
        """A block of QoS 2 that its subscriber may have and nobody has acknowledged, and that is not sent again: PUBREL is due."""
        tap, self.tap = self.tap, None
        self.receive(first, count)
        self.tap = tap

    def receive(self, first: int, count: int) -> list[tuple[int, int, bool]]:
        """A block of PUBREC, as blocks (first, count, known): for a known one PUBREL is due.

        A message that is released already is known (its PUBREL got lost with a connection); MQTT 5 answers an unknown
        one with PUBREL and reason 0x92. Raises PeerError for a PUBREC of a message of QoS 1, once
        the right ones of the block are taken.
        """
        settled = self._blocks(Sent.PUBLISHED_2.value, first, count)
        for start, stop in settled:
            self._forget(start, stop)
            self._serial += 1
            self._mark(start, stop - start, RELEASED)
        if settled and self.observer is not None:
            self.observer.released_changed()
        if settled == [(first, first + count)]:
            return [(first, count, True)]
        self._check(first, count, _AFTER_PUBREC, "PUBREC")
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
        """A block of PUBCOMP: how many were released and are done now.

        Raises PeerError for one that PUBREL was not sent for, once the right ones of the block are taken.
        """
        done = sum([self._free(start, stop, published=False) for start, stop in self._blocks(RELEASED, first, count)])
        if done and self.observer is not None:
            self.observer.released_changed()
        if done != count:
            self._check(first, count, _AFTER_PUBCOMP, "PUBCOMP")
        return done

    def _check(self, first: int, count: int, right: bytes, came: str) -> None:
        """Raise PeerError when one of these identifiers is in none of the states in which such an acknowledgement may come."""
        rest = self._states[first : first + count].translate(None, right)
        if rest:
            packet_id = self._states.index(rest[0], first)
            raise wrong(packet_id, rest[0], came)

    def _blocks(self, state: int, first: int, count: int) -> list[tuple[int, int]]:
        """The parts [start, stop) of a block of identifiers that are in a state."""
        states = self._states
        stop = first + count
        if states.count(state, first, stop) == count:
            return [(first, stop)]
        found = []
        position = states.find(state, first, stop)
        while position >= 0:
            start = position
            while position < stop and position < len(states) and states[position] == state:
                position += 1
            found.append((start, position))
            position = states.find(state, position, stop)
        return found

    def _free(self, start: int, stop: int, published: bool) -> int:
        """These identifiers are free again."""
        count = stop - start
        if published:
            self._forget(start, stop)
        self._states[start:stop] = bytes(count)
        self.in_flight -= count
        return count

    def _forget(self, start: int, stop: int) -> None:
        """The messages with these identifiers, all published, need not be kept. A delivery's memory is free with its last one."""
        serials, flights = self._serials, self._flights
        while start < stop:
            serial = serials[start]
            flight = flights[serial]
            end = flight.first + flight.count
            if flight.left == flight.count or flight.left == end - start:
                # nothing in it is acknowledged yet, or only what stands before: the block goes on to its end
                end = min(end, stop)
            else:  # identifiers that were acknowledged out of order may be another delivery's by now
                end = start + 1
                while end < stop and serials[end] == serial:
                    end += 1
            self._settle(flight, start - flight.first, end - flight.first)
            start = end

    def _settle(self, flight: Delivery, begin: int, end: int) -> None:
        """Messages of a delivery, all published, need not be kept."""
        if self.observer is not None:
            self.observer.settled(flight, begin, end)
        if self.tap is not None:
            self.tap(flight, begin, end)
        flight.left -= end - begin
        if not flight.left:
            del self._flights[flight.serial]
            self.bytes -= flight.weight

    # Taken over from elsewhere

    def adopt(self, delivery: Delivery) -> None:
        """Have messages in flight that were sent elsewhere or earlier, with the identifiers that they have (`first`), which must be free.

        The observer is not told.
        """
        first, count = delivery.first, delivery.count
        self._extend(first + count)
        assert not any(self._states[first : first + count]), "identifiers that are in use"
        self._serial += 1
        delivery.serial = self._serial
        delivery.left = count
        self._flights[self._serial] = delivery
        self._mark(first, count, delivery.qos)
        self.in_flight += count
        self.bytes += delivery.weight

    def adopt_released(self, first: int, count: int) -> None:
        """Have identifiers whose PUBREC came elsewhere or earlier and whose PUBCOMP is awaited, in the order of their PUBRECs.

        The observer is not told.
        """
        self._extend(first + count)
        self._serial += 1
        self._mark(first, count, RELEASED)
        self.in_flight += count

    def _extend(self, size: int) -> None:
        more = size - len(self._states)
        if more > 0:
            self._states += bytes(more)
            self._serials.frombytes(bytes(8 * more))

    # Looking

    def flights(self) -> list[Delivery]:
        """All deliveries in flight, in the order of sending."""
        return list(self._flights.values())

    def flight(self, serial: int) -> Delivery | None:
        """The delivery in flight with this place in the order of sending."""
        return self._flights.get(serial)

    def flight_of(self, packet_id: int) -> Delivery | None:
        """The delivery in flight that has an identifier now; None: it is free, or a PUBREC has come."""
        if packet_id >= len(self._states) or self._states[packet_id] in (0, RELEASED):
            return None
        return self._flights.get(self._serials[packet_id])

    # Resuming

    def unfinished(self) -> list[Delivery]:
        """What is to be sent again on a resumed session, in the order in which it was first sent, identifiers kept."""
        found = []
        for serial, first, count in self._published():
            flight = self._flights[serial]
            found.append(flight.part(first - flight.first, first - flight.first + count))
        return found

    def released(self) -> list[tuple[int, int]]:
        """Blocks (first, count) whose PUBREL is to be sent again, in the order in which their PUBRECs came."""
        states, serials = self._states, self._serials
        found = []
        start = states.find(RELEASED)
        while start >= 0:
            serial, end = serials[start], start + 1
            while end < len(states) and states[end] == RELEASED and serials[end] == serial:
                end += 1
            found.append((serial, start, end - start))
            start = states.find(RELEASED, end)
        return [(first, count) for _, first, count in sorted(found)]

    def _published(self) -> list[tuple[int, int, int]]:
        """Identifiers of published messages as blocks of one serial, in its order: (serial, first, count)."""
        found = []
        states, serials = self._states, self._serials
        position, end = 1, len(states) if self.in_flight else 1
        while position < end:
            start = position
            position += 1
            if not states[start] or states[start] == RELEASED:
                continue
            while position < end and serials[position] == serials[start] and states[position] == states[start]:
                position += 1
            found.append((serials[start], start, position - start))
        return sorted(found)

    def still(self, delivery: Delivery) -> list[Delivery]:
        """The parts of a block from `unfinished` that are unacknowledged even now."""
        state, first = delivery.qos, delivery.first
        blocks = self._blocks(state, first, delivery.count)
        if blocks == [(first, first + delivery.count)]:
            return [delivery]
        return [delivery.part(start - first, stop - first) for start, stop in blocks]

    def left_of(self, flight: Delivery) -> list[Delivery]:
        """The parts of a delivery in flight that are unacknowledged. An identifier that was freed may be another delivery's by now."""
        if flight.left == flight.count:
            return [flight.part(0, flight.count)]
        return [flight.part(first - flight.first, first - flight.first + count) for first, count in self._left_of(flight)]

    def _left_of(self, flight: Delivery) -> list[tuple[int, int]]:
        """Blocks (first, count) of identifiers."""
        states, serials, first = self._states, self._serials, flight.first
        found = []
        start = first
        for at in range(first, first + flight.count + 1):
            if at == first + flight.count or serials[at] != flight.serial or states[at] != flight.qos:
                if start < at:
                    found.append((start, at - start))
                start = at + 1
        return found

    def state_of(self, packet_id: int) -> Sent:
        """Where one identifier, 1 to 65,535, stands."""
        return Sent(self._states[packet_id]) if packet_id < len(self._states) else Sent.DONE


class Inbound:
    """The receiving direction of one session: QoS 2 identifiers received and not yet released (MQTT-4.3.3-10)."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: set[int] | None = None  # most sessions never receive QoS 2, and an empty set takes 216 bytes

    @property
    def open(self) -> set[int]:
        """The identifiers."""
        if self._open is None:
            self._open = set()
        return self._open

    def __len__(self) -> int:
        """How many they are."""
        return len(self._open) if self._open is not None else 0

    def new(self, packet_ids: range | list[int]) -> list[int] | None:
        """Note QoS 2 PUBLISH packets: None when all are new, else the *indexes* of those that are."""
        opened = self.open
        if opened.isdisjoint(packet_ids):
            before = len(opened)
            opened.update(packet_ids)
            if len(opened) == before + len(packet_ids):
                return None
            opened.difference_update(packet_ids)
        fresh = []
        for index, packet_id in enumerate(packet_ids):
            if packet_id not in opened:
                opened.add(packet_id)
                fresh.append(index)
        return fresh

    def release(self, packet_ids: range | list[int]) -> bool:
        """PUBREL, or a PUBREC that refuses: whether all identifiers were open (else MQTT 5 answers PUBCOMP 0x92)."""
        known = self.open.issuperset(packet_ids)
        self.open.difference_update(packet_ids)
        return known
