"""Receipts for publishers: acknowledgements that leave when every reachable destination has the message, and answers to who has it.

Who asks (`mqmesh-ack: receipts`, or the configuration) gets PUBACK or PUBREC behind the receipts of all brokers that can be reached.
The connection then has a `Tracker`, with one queue for PUBACK and one for PUBREC, because each kind goes in the order of the
PUBLISH packets [MQTT-4.6.0-2, MQTT-4.6.0-3]. What is not asked for goes behind what is. PUBCOMP, SUBACK and the rest do not wait.

An item of a queue is ready when the mesh has confirmed its run, or the time for that is over, and what must be kept here is
committed. The first items of a queue that are ready go.

What was published so is remembered (`Limits` of `Ledger`), so that its publisher can ask for it on `TOPIC` at any time.

What it does not know: how messages travel (`mesh/custody/watches.py` says who has them), other clients' messages.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from ...mesh.custody.watches import Standing, Watch
from ...mesh.wire.visited import numbers as brokers_of
from ...mqtt import packets
from ...mqtt.batch.batch import Batch
from ...mqtt.codec import encode
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBRECS

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..persistence.commits import Persistence
    from ..ports import Connection, Context

WISH = "mqmesh-ack"  # the user property of CONNECT and PUBLISH that asks, or asks not
WISHES = {"receipts": True, "custody": False}
OPEN_MAX = 65535  # messages that wait at a connection which is granted no other Receive Maximum
Numbers = range | list[int]  # packet identifiers


def wish_of(pairs: Any) -> bool | None:
    """What the user properties of a packet ask for: True receipts, False none, None says nothing."""
    for name, value in pairs or ():
        if name == WISH:
            return WISHES.get(value)
    return None


class Gate(Protocol):
    """What acknowledgements wait for that promise something which is kept elsewhere."""

    open: bool


class Answering(Protocol):
    """What a tracker asks: `Receipts`, or what stands for them in a broker without a mesh."""

    persistence: Persistence | None
    late: int

    def claim(self) -> int:
        """The ticket of what the message that is being taken has stored, 0 when it needs none."""

    def deadline(self) -> float:
        """For an acknowledgement that begins to wait now, on the loop's clock."""

    def acknowledgements(self, connection: Connection, item: Item) -> bytes:
        """The packets of an item that asked."""


class Asked:
    """One run whose publisher wants to know who has it.

    client: its client identifier. numbers: its packet identifiers. watch: of the mesh. trackers: connections where it is waited for.
    """

    __slots__ = ("client", "numbers", "qos", "topic", "trackers", "watch")

    def __init__(self, client: str, qos: int, topic: bytes, numbers: Numbers, watch: Watch) -> None:
        self.client = client
        self.qos = qos
        self.topic = topic
        self.numbers = numbers
        self.watch = watch
        self.trackers: dict[Tracker, None] = {}
        watch.owner = self


class Item:
    """Acknowledgements that wait. asked, places: of these messages, (packet identifier, index in the run); data: or of others, as bytes.

    gate: must be open. ticket: of the commit that must come first; 0: none. deadline: on the loop's clock. late: it is over.

    sent: it has gone.
    """

    __slots__ = ("asked", "count", "data", "deadline", "gate", "late", "places", "reason", "sent", "ticket")

    def __init__(self, count: int, ticket: int, deadline: float) -> None:
        self.count = count
        self.ticket = ticket
        self.deadline = deadline
        self.late = False
        self.sent = False
        self.asked: Asked | None = None
        self.places: list[tuple[int, int]] = []
        self.reason = 0
        self.data: bytes | bytearray = b""
        self.gate: Gate | None = None

    @property
    def waits(self) -> bool:
        """Whether it is for the mesh to confirm it, and there is time."""
        return self.asked is not None and not self.late and not self.asked.watch.done


class Tracker:
    """What one connection's acknowledgements wait for. waiting: messages in its queues; waiting_1: those of QoS 1."""

    def __init__(self, connection: Connection, receipts: Answering) -> None:
        self.connection = connection
        self.waiting = self.waiting_1 = 0
        self._receipts = receipts
        self._queues: tuple[deque[Item], deque[Item]] = (deque(), deque())
        self._timer: asyncio.TimerHandle | None = None

    def behind(self, qos: int, data: bytes | bytearray, count: int) -> None:
        """An acknowledgement that was not asked to wait: it does so for those before it."""
        if not self._queues[qos - 1]:
            self.connection.answer(data)
            return
        item = Item(count, self._receipts.claim(), 0.0)
        item.data = data
        self._put(qos, item)

    def behind_gate(self, qos: int, data: bytes | bytearray, count: int, gate: Gate, joins: Item | None = None) -> Item:
        """Acknowledgements that wait until a gate is open, which calls `pump` then. Their item; its data may be replaced until then.

        joins: an item of this gate that they go with if it is the last one, and nothing but the gate holds either.
        """
        ticket, queue = self._receipts.claim(), self._queues[qos - 1]
        if joins is not None and queue and queue[-1] is joins and not ticket and not joins.ticket:
            if not isinstance(joins.data, bytearray):
                joins.data = bytearray(joins.data)
            joins.data += data
            joins.count += count
            self._count(qos, count)
            self._bound()
            return joins
        item = Item(count, ticket, 0.0)
        item.data, item.gate = data, gate
        self._put(qos, item)
        return item

    def wait(self, asked: Asked, places: list[tuple[int, int]], reason: int, ticket: int) -> None:
        """Acknowledge these messages of a run when it is confirmed."""
        item = Item(len(places), ticket, self._receipts.deadline())
        item.asked, item.places, item.reason = asked, places, reason
        asked.trackers[self] = None
        self._put(asked.qos, item)

    def _put(self, qos: int, item: Item) -> None:
        self._queues[qos - 1].append(item)
        self._count(qos, item.count)
        if item.ticket:
            persistence = self._receipts.persistence
            assert persistence is not None
            persistence.when(item.ticket, lambda: self.pump(qos))
        if item.gate is None:  # what waits at a gate goes when that opens, and what was there before is pumped by what it waits for
            self.pump(qos)
        if item.asked is not None:
            self._set_timer()
        self._bound()

    def _bound(self) -> None:
        if self.waiting > (self.connection.receive_maximum or OPEN_MAX):
            self.connection.pause_reading_for(self)  # it has more open than it may

    def _count(self, qos: int, count: int) -> None:
        self.waiting += count
        if qos == 1:
            self.waiting_1 += count

    def pump(self, qos: int) -> None:
        """Send what is ready, in order."""
        connection = self.connection
        if connection.closing:
            return
        queue = self._queues[qos - 1]
        persistence = self._receipts.persistence
        reached = persistence.reached if persistence is not None else 0
        while queue and queue[0].ticket <= reached and not queue[0].waits and (queue[0].gate is None or queue[0].gate.open):
            item = queue.popleft()
            item.sent = True
            self._count(qos, -item.count)
            data = item.data if item.asked is None else self._receipts.acknowledgements(connection, item)
            connection.context.counters.packets_sent += item.count if item.asked is not None else 0
            if not data:
                continue
            if persistence is None:
                connection.send(data)
            else:
                persistence.pass_on(connection, data)
        if self in connection.pauses and 2 * self.waiting <= (connection.receive_maximum or OPEN_MAX):
            connection.resume_reading_after(self)

    def _set_timer(self) -> None:
        """For the earliest deadline; later items of a queue have later ones."""
        if self._timer is None:
            waiting = [next((item for item in queue if item.waits), None) for queue in self._queues]
            due = min((item.deadline for item in waiting if item is not None), default=None)
            if due is not None:
                self._timer = self.connection.context.loop.call_at(due, self._over)

    def _over(self) -> None:
        """Somebody took too long: the acknowledgement goes, and says for whom it did not wait."""
        self._timer = None
        context = self.connection.context
        now = context.refresh()
        for qos in (1, 2):
            for item in self._queues[qos - 1]:
                if item.waits and item.deadline <= now:
                    item.late = True
                    self._receipts.late += item.count
            self.pump(qos)
        self._set_timer()
        context.flush()

    def close(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue in self._queues:
            for item in queue:
                if item.asked is not None:
                    item.asked.trackers.pop(self, None)
            queue.clear()
        self.waiting = self.waiting_1 = 0


def tracker_of(connection: Connection, receipts: Answering) -> Tracker:
    """The tracker of a connection, which has one from now on."""
    tracker: Tracker | None = connection.tracker
    if tracker is None:
        tracker = connection.tracker = Tracker(connection, receipts)
    return tracker


class Ledger:
    """What was published with receipts, as far as there is room: the oldest goes first."""

    def __init__(self, room: int) -> None:
        """room: messages."""
        self.messages = 0
        self._room = room
        self._runs: list[Asked] = []  # in order of position
        self._begin = 0  # those before are gone
        self._packets: dict[tuple[str, int], tuple[Asked, int]] = {}  # (client, packet identifier) -> the latest message, its index

    def add(self, asked: Asked) -> None:
        """Remember a run; its position is above those before."""
        self._runs.append(asked)
        self.messages += asked.watch.count
        for index, number in enumerate(asked.numbers):
            self._packets[asked.client, number] = asked, index
        while self.messages > self._room and self._begin < len(self._runs) - 1:
            self._forget(self._runs[self._begin])
            self._begin += 1
        if 2 * self._begin > len(self._runs) + 64:
            del self._runs[: self._begin]
            self._begin = 0

    def _forget(self, asked: Asked) -> None:
        self.messages -= asked.watch.count
        for number in asked.numbers:
            if self._packets.get((asked.client, number), (None, 0))[0] is asked:
                del self._packets[asked.client, number]

    def by_packet(self, client: str, number: int) -> tuple[Asked, int] | None:
        """The message that a client published last with this packet identifier, and its index in its run."""
        return self._packets.get((client, number))

    def by_position(self, client: str, epoch: int, sequence: int) -> tuple[Asked, int] | None:
        """A client's message with this position, and its index in its run."""
        at = bisect_right(self._runs, (epoch, sequence), self._begin, key=lambda a: (a.watch.epoch, a.watch.first)) - 1
        if at < self._begin:
            return None
        asked = self._runs[at]
        index = sequence - asked.watch.first
        return (asked, index) if asked.watch.epoch == epoch and index < asked.watch.count and asked.client == client else None


class Receipts:
    """The receipts of one broker's publishers. late: messages that were acknowledged though some reachable broker was awaited."""

    def __init__(self, context: Context, node: Node, connections: set[Any], wait: float, kept: int) -> None:
        """wait: seconds that an acknowledgement waits at most. kept: messages that are remembered."""
        self._context = context
        self._connections = connections
        self.node = node
        self.persistence: Persistence | None = None
        self.wait = wait
        self.late = 0
        self.ledger = Ledger(kept)

    def deadline(self) -> float:
        """For an acknowledgement that begins to wait now, on the loop's clock."""
        return self._context.now + self.wait

    def claim(self) -> int:
        """The ticket of what the message that is being taken has stored, 0 when it needs none."""
        persistence = self.persistence
        return 0 if persistence is None else persistence.claim()

    def ask(self, connection: Connection, run: Batch, fresh: Numbers, position: tuple[int, int]) -> Asked | None:
        """Watch what was just accepted; None: nobody elsewhere wants it.

        fresh: packet identifiers of what was published after this position.
        """
        watch = self.node.watch(position, len(fresh)) if fresh else None
        if watch is None:
            return None
        asked = Asked(connection.client_id, run.qos, run.topic, fresh, watch)
        self.ledger.add(asked)
        return asked

    def acknowledge(self, connection: Connection, run: Batch, numbers: Numbers, fresh: Numbers, asked: Asked | None, reason: int) -> None:
        """PUBACK or PUBREC for what was accepted, when the mesh has confirmed it.

        numbers: to be acknowledged. fresh: those of them that `ask` was called with; others are QoS 2 that was repeated. asked: what it
        returned. reason: below 0x80.
        """
        tracker = connection.tracker
        if tracker is None:
            tracker = connection.tracker = Tracker(connection, self)
        qos = run.qos
        index = {number: place for place, number in enumerate(fresh)}
        ticket = self.claim()
        parts: list[tuple[Asked | None, list[tuple[int, int]]]] = []
        for number in numbers:
            found = (asked, index[number]) if number in index else self._repeated(connection, qos, number)
            if parts and parts[-1][0] is found[0]:
                parts[-1][1].append((number, found[1]))
            else:
                parts.append((found[0], [(number, found[1])]))
        for whose, places in parts:
            if whose is not None:
                tracker.wait(whose, places, reason, ticket)
            else:
                self._plain(tracker, qos, [number for number, _ in places], reason, ticket)

    def _repeated(self, connection: Connection, qos: int, number: int) -> tuple[Asked | None, int]:
        found = self.ledger.by_packet(connection.client_id, number)
        return found if found is not None and found[0].qos == qos else (None, 0)

    def _plain(self, tracker: Tracker, qos: int, numbers: list[int], reason: int, ticket: int) -> None:
        """Nobody elsewhere wants these, or it is not known any more who did."""
        connection = tracker.connection
        connection.context.counters.packets_sent += len(numbers)
        item = Item(len(numbers), ticket, 0.0)
        item.data = b"".join([bare(connection, qos, number, reason) for number in numbers])
        tracker._put(qos, item)

    def confirmed(self, watch: Watch) -> None:
        """Nobody who can be reached is waited for."""
        asked = watch.owner
        if asked is None:
            return
        trackers = list(asked.trackers)
        asked.trackers.clear()
        for tracker in trackers:
            tracker.pump(asked.qos)

    # What is said

    def acknowledgements(self, connection: Connection, item: Item) -> bytes:
        """The packets of an item that asked."""
        asked = item.asked
        assert asked is not None
        if connection.version != 5 or not connection.request_problem:  # [MQTT-3.1.2-29]
            return b"".join([bare(connection, asked.qos, number, item.reason) for number, _ in item.places])
        return b"".join([self._acknowledgement(connection, asked, number, index, item.reason) for number, index in item.places])

    def _acknowledgement(self, connection: Connection, asked: Asked, number: int, index: int, reason: int) -> bytes:
        stands = self.node.standing(asked.watch, index)
        properties: dict[int, Any] = {Property.USER_PROPERTY: self._pairs(asked, index, stands)}
        if stands.awaited:
            names = ", ".join(self._names(stands.awaited))
            properties[Property.REASON_STRING] = f"in custody here; still awaited: {names}"
        kind = packets.Puback if asked.qos == 1 else packets.Pubrec
        data = encode(kind(number, Reason(reason), properties), 5)
        if connection.max_packet and len(data) > connection.max_packet:  # [MQTT-3.4.2-3]
            return bare(connection, asked.qos, number, reason)
        return data

    def _pairs(self, asked: Asked, index: int, stands: Standing) -> list[tuple[str, str]]:
        pairs = [("mqmesh-id", self.identifier(asked.watch, index))]
        pairs += [("mqmesh-received", name) for name in self._names(stands.received)]
        pairs += [("mqmesh-awaited", name) for name in self._names(stands.awaited)]
        return pairs + [("mqmesh-lost", f"{self.node.name(number)} {reason}") for number, reason in sorted(stands.lost.items())]

    def identifier(self, watch: Watch, index: int) -> str:
        """origin:epoch:sequence."""
        return f"{self.node.identity.number}:{watch.epoch}:{watch.first + index}"

    def _names(self, brokers: int) -> list[str]:
        return [self.node.name(number) for number in brokers_of(brokers)]

    def status(self) -> dict[str, int]:
        """For `$SYS/broker/mesh/status`."""
        connections = self._connections
        waiting = sum(connection.tracker.waiting for connection in connections if connection.tracker is not None)
        return {"waiting": waiting, "late": self.late, "remembered": self.ledger.messages}


def bare(connection: Connection, qos: int, number: int, reason: int) -> bytes:
    """PUBACK or PUBREC without properties."""
    if reason and connection.version == 5:
        return bytes((0x40 if qos == 1 else 0x50, 3)) + number.to_bytes(2, "big") + bytes((reason,))
    return bytes((PUBACKS if qos == 1 else PUBRECS)[4 * number : 4 * number + 4])
