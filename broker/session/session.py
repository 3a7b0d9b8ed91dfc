"""A session: what the broker keeps for one client identifier, with or without a connection.

Deliveries of QoS 1 and 2 pass through here: straight into flight when the connection has room, else into the session's
bounded queue. Retained messages for a new subscription are replayed from the store as the connection takes them, so that they
need no room. Each delivery that waits has a named reason (`Waiting`), which metrics and the console can show.

Order of sending: what is repeated on a resumed session, then replays, then the queue, then what comes. Nothing new overtakes the
queue; a replayed message that has been replaced meanwhile is left out, because the newer one went its own way.

Invariants: what is in flight stays until it is acknowledged or the session ends; in flight are at most `outbound.limit` messages
and about `max_bytes` bytes. What it does not know: other sessions, listeners, the mesh.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...mqtt.packets import Subscription
from ...mqtt.session import PUBRELS, Delivery, Inbound, Outbound
from ..empty import EMPTY_QUEUE, EMPTY_SET
from ..ledger import IDENTIFIER, IN_FLIGHT, KINDS, QUEUED, SESSION, SESSIONS, SUBSCRIPTIONS, WILLS, weight_of_text

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..ports import Context, Publisher, Receiver, Recipient
    from .will import Will

ENDED = "session ended"  # why the journal says that a message is dropped
REPLAY_STEP = 128 * 1024  # bytes of replayed messages given to the transport before other connections get their turn
REPLAY_STEPS = 256  # messages, or steps of the search for them, until then


class Waiting(Enum):
    """Why a session's queue is not empty."""

    NOTHING = "caught up"
    AWAY = "no connection"
    LOADING = "being read from the store"
    WINDOW = "in-flight window full"
    SLOW = "unsent bytes over the bound"


class Replay:
    """The retained messages that a subscription is to get, as far as they have not been sent.

    filter: the subscription's. runs: of one message each, searched as they are sent; None where a step has found none. qos: the
    subscription's. suffix: its identifier.
    """

    __slots__ = ("filter", "qos", "runs", "suffix")

    def __init__(self, topic_filter: str, runs: Iterator[Batch | None], qos: int, suffix: bytes) -> None:
        self.filter = topic_filter
        self.runs = runs
        self.qos = qos
        self.suffix = suffix


class End(Enum):
    """The sentinel of `next(runs, END)`: a replay has no more steps. None is a step without a message."""

    END = 0


END = End.END


class ReplayTurn:
    """A turn of a session's replays."""

    __slots__ = ("_connection", "_session")

    def __init__(self, session: Session, connection: Receiver) -> None:
        self._session = session
        self._connection = connection

    @property
    def who(self) -> str:
        """Whose work it is, for the log."""
        return f"client={quoted(self._session.client_id)} work=retained"

    def turn(self) -> bool:
        """Send some."""
        self._session.replay_on(self._connection)
        return False


FACELESS: Any = object()  # the face of a session that has ended: it holds itself no longer, so that its memory is freed at once


class Session:
    """State of one client identifier (MQTT 5: 4.1).

    expiry: seconds that it outlives its connection; 0: it ends with it; None: it never ends.
    moved: when its queue last moved, on the loop's clock.
    face: what routes know it by: itself, or what stands for it while it moves to another site (`roaming/moving_session.py`).
    paused: publishers that are not read until the queue is shorter.
    gone: it has ended, and the last of its subscriptions are being removed: what comes for it is nobody's.
    stored: a store keeps it. table: bytes of its table of identifiers, as the ledger has them.
    window_bytes: about how many bytes may be in flight.
    """

    stored = False

    __slots__ = (
        "account",
        "client_id",
        "connection",
        "context",
        "counters",
        "ends_at",
        "expiry",
        "face",
        "gone",
        "inbound",
        "listener",
        "max_bytes",
        "max_messages",
        "moved",
        "outbound",
        "paused",
        "queue",
        "queued",
        "queued_bytes",
        "replay_due",
        "replays",
        "resending",
        "subscriptions",
        "table",
        "timer",
        "unsent",
        "user",
        "vanished",
        "waiting",
        "will",
        "window_bytes",
    )

    def __init__(self, client_id: str, context: Context) -> None:
        self.client_id = client_id
        self.face: Recipient = self
        self.user: str | None = None
        self.listener = ""
        self.gone = False
        self.context = context
        self.counters = context.counters
        self.account = context.ledger.account()
        self.account.charge(SESSIONS, SESSION + weight_of_text(client_id))
        self.table = 0
        self.connection: Receiver | None = None
        self.expiry: float | None = 0.0
        self.ends_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.outbound = self.tapped(Outbound(1))
        self.inbound = Inbound()
        self.queue: deque[Delivery] = EMPTY_QUEUE
        self.queued = 0
        self.queued_bytes = 0
        self.max_messages, self.max_bytes = context.limits.queue(on_disk=False)
        self.window_bytes = self.max_bytes
        self.resending: deque[Delivery] = EMPTY_QUEUE
        self.unsent = 0  # messages in `resending`: in flight, not yet sent on this connection
        self.replays: deque[Replay] = EMPTY_QUEUE
        self.replay_due = False  # a turn of theirs comes
        self.waiting = Waiting.NOTHING
        self.will: Will | None = None
        self.vanished = False  # its last connection was lost: the client did not say DISCONNECT
        self.paused: set[Publisher] = EMPTY_SET
        self.moved = 0.0

    @property
    def main(self) -> Session:
        """The session, as `Recipient` has it."""
        return self

    @property
    def known(self) -> bool:
        """Whether routes know it by this face, as `Recipient` has it."""
        return self.face is self

    def tapped(self, outbound: Outbound) -> Outbound:
        """Have the journal told of acknowledgements, if there is one."""
        journal = self.context.journal
        if journal is not None and journal.topics.full:
            outbound.tap = journal.settled(self)
        return outbound

    def note_dropped(self, deliveries: Iterable[Delivery], reason: str, expired: bool = False) -> None:
        """Have the journal told of messages that the client does not get."""
        if self.context.journal is not None:
            self.context.journal.ended(self, deliveries, reason, expired)

    # Bounds

    @property
    def pressing(self) -> bool:
        """Whether the queue is half full."""
        return 2 * self.queued >= self.max_messages or 2 * self.queued_bytes >= self.max_bytes

    @property
    def eased(self) -> bool:
        """Whether the queue is at most a quarter full."""
        return 4 * self.queued <= self.max_messages and 4 * self.queued_bytes <= self.max_bytes

    @property
    def full(self) -> bool:
        """Whether the queue takes no more."""
        return self.queued >= self.max_messages or self.queued_bytes >= self.max_bytes or self.account.full

    @property
    def idle(self) -> bool:
        """Whether a message given now would be sent now (while the window has room)."""
        return self.connection is not None and not self.connection.congested and not self.queue and not self.resending

    def _room(self) -> bool:
        """Whether one more message may be in flight."""
        outbound = self.outbound
        return outbound.in_flight < outbound.limit and (outbound.bytes < self.window_bytes or not outbound.in_flight)

    def bound_window(self, most: int | None) -> None:
        """Have at most so many bytes in flight from now on; None: as many as usual."""
        self.window_bytes = self.max_bytes if most is None else min(most, self.max_bytes)

    def settle(self) -> None:
        """Tell the ledger what is in flight, in both directions, and what the session needs for it."""
        table = self.outbound.table
        if table != self.table:
            self.account.charge(SESSIONS, table - self.table)
            self.table = table
        size = self.outbound.bytes + IDENTIFIER * len(self.inbound)
        if size != self.account.held[IN_FLIGHT]:
            self.account.settle(IN_FLIGHT, size)

    def keep_will(self, will: Will | None) -> None:
        """Have a will, or none any more."""
        self.will = will
        self.account.settle(WILLS, 0 if will is None else will.weight)

    def relax(self) -> None:
        """Read again from the publishers that were slowed for this session."""
        publishers, self.paused = self.paused, EMPTY_SET
        for publisher in publishers:
            publisher.resume_reading_after(self)

    # What a session in a store does more (see `persistence/stored_session.py`)

    def mark(self) -> int:
        """The ticket of the commit that holds its state as it is now; 0: nothing needs to be waited for."""
        return 0

    def record(self) -> None:
        """What is known of the client has changed."""

    def renamed(self, client_id: str) -> None:
        """It belongs to another name from now on."""
        self.account.charge(SESSIONS, weight_of_text(client_id) - weight_of_text(self.client_id))
        self.client_id = client_id

    def left(self, will_delay: float | None) -> None:
        """Its connection is gone for now. will_delay: seconds until its will is due, None without one."""

    def subscribed(self, subscription: Subscription, identifier: int) -> None:
        """It has a subscription; SUBACK follows."""

    def unsubscribed(self, topic_filter: str) -> None:
        """It has one less; UNSUBACK follows."""

    # Deliveries

    def deliver(self, delivery: Delivery) -> int:
        """Send it, or as much as fits, and queue the rest: how many of its first messages were taken."""
        connection = self.connection
        if connection is None:
            self.waiting = Waiting.AWAY
        elif not (self.queue or self.resending or self.replays):
            if connection.congested:
                self.waiting = Waiting.SLOW
            else:
                return self._send(connection, delivery)
        return self._enqueue(delivery)

    def prepared(self, delivery: Delivery) -> Delivery:
        """A delivery in the form in which this session sends it."""
        return delivery

    def _send(self, connection: Receiver, delivery: Delivery) -> int:
        count = delivery.count
        rest: Delivery | None = delivery
        while rest is not None:
            if not self._room():
                self.waiting = Waiting.WINDOW
                return count - rest.count + self._enqueue(rest)
            now, rest = self.outbound.send(rest)
            if not connection.send_delivery(now):
                self.outbound.give_up(now.qos, now.first, now.count)
        return count

    def _enqueue(self, delivery: Delivery) -> int:
        count = delivery.count
        if self.gone:
            return count
        if self.full:
            self._drop_expired()
        room = 0 if self.account.full else min(self.max_messages - self.queued, -(-(self.max_bytes - self.queued_bytes) // delivery.each))
        if room <= 0:
            return 0
        if room < count:
            delivery = delivery.part(0, room)
            delivery.cut_out()
        if not self.queue:
            self.moved = self.context.now
        self._put(delivery)
        self._queued(delivery, 1)
        return delivery.count

    def _put(self, delivery: Delivery) -> None:
        if self.queue is EMPTY_QUEUE:
            self.queue = deque()
        self.queue.append(delivery)

    def _queued(self, delivery: Delivery, sign: int) -> None:
        weight = sign * delivery.weight
        self.queued += sign * delivery.count
        self.queued_bytes += weight
        self.account.charge(QUEUED, weight)

    def _drop_expired(self) -> None:
        """Make room by what has expired at the head of the queue."""
        while self.queue and self.queue[0].run.expired(self.context.now):
            delivery = self.queue.popleft()
            self._queued(delivery, -1)
            self.counters.expired += delivery.count
            self.note_dropped([delivery], "expired", expired=True)

    def pump(self) -> None:
        """Send what waits while connection and window have room; to be called when either gains some."""
        connection = self.connection
        if connection is None:
            return
        if self.resending:
            self._resend(connection)
        if self.replays and not self.resending:
            self._replay(connection)
        if not self.resending and not self.replays:
            self._drain(connection)
        if self.paused and self.eased:
            self.relax()

    def _drain(self, connection: Receiver) -> None:
        """From the queue into flight."""
        queue, outbound = self.queue, self.outbound
        while queue and not connection.congested and self._room():
            delivery = queue.popleft()
            self._queued(delivery, -1)
            self.moved = self.context.now
            now, rest = outbound.send(delivery)
            if rest is not None:
                queue.appendleft(rest)
                self._queued(rest, 1)
            if not connection.send_delivery(now):
                outbound.give_up(now.qos, now.first, now.count)
        if not queue:
            self.waiting = Waiting.NOTHING
        else:
            self.waiting = Waiting.SLOW if connection.congested else Waiting.WINDOW

    # Retained messages for new subscriptions

    def replay(self, replays: list[Replay]) -> None:
        """Send subscriptions' retained messages as the connection takes them. One that is under way for the same filter ends."""
        again = {replay.filter for replay in replays}
        waiting = [replay for replay in self.replays if replay.filter not in again]
        idle = not waiting
        self.replays = deque([*waiting, *replays])
        if idle and not self.resending and self.connection is not None:
            self._replay(self.connection)
            if not self.replays:
                self._drain(self.connection)

    def _replay(self, connection: Receiver) -> None:
        """Send retained messages for a slice of the loop's time; the next one follows when it is the client's turn."""
        if self.replay_due:
            return
        now, turns = self.context.now, self.context.turns
        given = steps = 0
        while self.replays and not connection.congested and self._room():
            steps += 1
            if given > REPLAY_STEP or steps > REPLAY_STEPS or (steps > 1 and turns.over()):
                connection.flush()
                if not connection.congested:
                    self.replay_due = True
                    turns.wait(connection.share, ReplayTurn(self, connection))
                return
            replay = self.replays[0]
            run = next(replay.runs, END)
            if isinstance(run, End):
                self.replays.popleft()
                continue
            if run is None or run.expired(now):
                continue
            given += run.length + len(run.topic)
            qos = min(run.qos, replay.qos)
            if not qos:
                if connection.send_qos0(run, True, replay.suffix) and self.context.journal is not None:
                    self.context.journal.given(self, run)
                continue
            if self.context.journal is not None:
                self.context.journal.given(self, run)
            delivery, _ = self.outbound.send(self.prepared(Delivery(run, qos, True, replay.suffix)))
            if not connection.send_delivery(delivery):
                self.outbound.give_up(qos, delivery.first, 1)

    def replay_on(self, connection: Receiver) -> None:
        """It is the connection's turn."""
        self.replay_due = False
        if self.connection is connection:
            self.context.refresh()
            self.pump()

    # Connections come and go

    def resume(self, connection: Receiver) -> None:
        """A connection took the session up: repeat what is unfinished (MQTT-4.4.0-1), then the queue."""
        self.connection = connection
        for first, count in self.outbound.released():
            connection.send_after(self.mark(), PUBRELS[4 * first : 4 * (first + count)])
        unfinished = self.unfinished()
        self.resending = deque(unfinished) if unfinished else EMPTY_QUEUE
        self.unsent = sum([delivery.count for delivery in self.resending])
        self.pump()

    def unfinished(self) -> list[Delivery]:
        """What is to be sent again, in the order in which it was first sent."""
        return self.outbound.unfinished()

    def adopt(self, delivery: Delivery) -> None:
        """Have messages in flight that were sent elsewhere; the session has no connection."""
        self.outbound.adopt(delivery)
        self.account.charge(IN_FLIGHT, delivery.weight)

    def pause(self) -> None:
        """The connection is gone."""
        self.connection = None
        self.bound_window(None)
        self.settle()
        self.resending = self.replays = EMPTY_QUEUE
        self.unsent = 0
        self.waiting = Waiting.AWAY if self.queue else Waiting.NOTHING
        self.relax()

    def _resend(self, connection: Receiver) -> None:
        """Repeat in order, never more unacknowledged ones at once than the client's Receive Maximum (MQTT-3.3.4-9)."""
        outbound = self.outbound
        while self.resending and not connection.congested:
            room = outbound.limit - (outbound.in_flight - self.unsent)
            if room <= 0:
                return
            delivery = self.resending.popleft()
            if delivery.count > room:
                self.resending.appendleft(delivery.part(room, delivery.count))
                delivery = delivery.part(0, room)
            self.unsent -= delivery.count
            for piece in outbound.still(delivery):
                if not connection.send_delivery(piece, duplicate=True):
                    outbound.give_up(piece.qos, piece.first, piece.count)

    # The end

    def withdraw(self, share: object, queued_only: bool) -> list[Delivery]:
        """Take back what waits for a shared subscription, so that another member can have it.

        What is only queued can go elsewhere; of what is in flight, QoS 1 can when the session ends (MQTT 5: 4.8.2), QoS 2 never.
        share: of this shared subscription; None: of any.
        """
        taken = []
        if not queued_only:
            taken += [delivery for delivery in self.outbound.unfinished() if delivery.qos == 1 and _of(delivery, share)]
        if any(_of(delivery, share) for delivery in self.queue):
            queue = list(self.queue)
            self.queue.clear()
            for delivery in queue:
                if _of(delivery, share):
                    self._queued(delivery, -1)
                    taken.append(delivery)
                else:
                    self.queue.append(delivery)
        return taken

    def give_back(self) -> None:
        """Nothing is held for it any more.

        While its subscriptions are being removed they are held for its account, which is closed after the last one.
        """
        if self.gone:
            for kind in range(len(KINDS)):
                if kind != SUBSCRIPTIONS:
                    self.account.settle(kind, 0)
        else:
            self.account.close()

    def discard(self) -> None:
        """The session ends: forget what waits, give its memory back to the broker's account."""
        self.give_back()
        if self.context.journal is not None:
            left = [*self.outbound.unfinished(), *self.queue]  # what goes on to other members of shared subscriptions is not lost
            self.note_dropped([one for one in left if one.share is None or one.qos == 2], ENDED)
        self.queue.clear()
        self.queued = self.queued_bytes = 0
        self.outbound = Outbound(1)
        self.table = 0
        self.relax()


def _of(delivery: Delivery, share: object) -> bool:
    return delivery.share is not None and (share is None or delivery.share is share)
