"""The journal as the broker's event loop sees it: it notes what happens, in memory, and never waits.

What is noted is bounded, by events (`JournalSettings.pending`) and by bytes (`PART` of what the broker may hold). When the disk is slower
than the traffic, what does not fit is counted, and the next batch begins with an event that says how many events are missing
(`Kind.GAP`). Traffic goes on.

Bytes are counted by the loop as it notes, and by the writer as it takes. What notes of the same messages share counts with one of them:
with the first, and when the writer has taken that, with the next that comes. So up to twice the bound may wait while the writer is slow.

A topic that is counted only never comes here: its routes are not `noted`, and its batches carry no mark.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from .kinds import Kind, Stream
from .kinds import Protocol as Way
from .mark import Mark, Source, Span
from .tally import ONE, Tally, amount_of
from .topics import Topics
from .writing.columns import Fact, Passed
from .writing.notes import Note
from .writing.queue_states import Queued
from .writing.weights import FACT, weight_of, weight_of_note, weight_of_passage, weight_of_queued, weight_of_source

if TYPE_CHECKING:
    from ...mesh.node.core import Passage
    from ...mqtt.batch.batch import Batch
    from ...mqtt.session import Delivery

PART = 8  # events that wait may hold one part of so many of what the broker may hold


class Clock(Protocol):
    """The clocks of a broker. now: of its loop, as last read."""

    now: float

    def wall(self) -> float:
        """Seconds since 1970."""


class Recorder:
    """What one broker notes. number, epoch: the broker's, of this life.

    noted: events that wait for the writer. weights: the bytes that each of them holds. lost: that found no room so far.
    wake: asks the writer to come soon. offset: from the loop's clock to the wall clock, in seconds.
    events_taken, bytes_taken, ranges_written: events, their bytes, and states of queues that the writer has taken so far.
    remembered: bytes of names that the writer remembers. unselected: messages whose values are not kept, since too much waited.
    """

    def __init__(self, context: Clock, topics: Topics, number: int, most: int, most_bytes: int) -> None:
        """most: events that may wait. most_bytes: that they may hold."""
        self.context = context
        self.offset = 0.0
        self.topics = topics
        self.number = number
        self.epoch = 0
        self.tally = Tally()
        self.noted: deque[Note | Passed | Queued | Fact] = deque()  # appended to by the loop, taken from by the writer's thread
        self.weights: deque[int] = deque()  # an event's weight is here before the event is there
        self.lost = 0
        self.wake: Callable[[], None] = lambda: None
        self.events_taken = 0
        self.bytes_taken = 0
        self.ranges_written = 0
        self.remembered = 0
        self.unselected = 0
        self._added = 0
        self._added_bytes = 0
        self._ranges = 0
        self._most = most
        self._most_bytes = most_bytes
        self._wake_at = 0  # bytes noted in all, at which the writer is asked to come
        self._local = 0  # the number of the last message that nobody elsewhere wants

    # What is noted

    @property
    def size(self) -> int:
        """Bytes of what waits for the writer."""
        return self._added_bytes - self.bytes_taken

    @property
    def held(self) -> int:
        """Bytes of all that the journal has in memory."""
        return self.size + self.remembered

    def _add(self, one: Note | Passed | Queued | Fact, weight: int) -> bool:
        """Have an event wait, which holds so many bytes. False: it finds no room."""
        noted = self.noted
        waiting = self._added_bytes - self.bytes_taken
        if len(noted) >= self._most or waiting + weight > self._most_bytes:
            self.lost += 1
            return False
        self._added += 1
        self._added_bytes += weight
        self.weights.append(weight)
        noted.append(one)
        if len(noted) == self._most // 2 or (2 * waiting > self._most_bytes and self._added_bytes >= self._wake_at):
            self._wake_at = self._added_bytes + self._most_bytes // 8
            self.wake()
        return True

    def _note(self, note: Note, more: int = 0) -> None:
        """Have a note wait. more: bytes that it holds beside those of any note."""
        source, weight = note.mark.source, weight_of_note(note) + more
        fresh = source.counted <= self.events_taken
        if fresh:
            weight += weight_of_source(source)
        if self._add(note, weight) and fresh:
            source.counted = self._added

    def event(self, kind: Kind, **values: Any) -> None:
        """Note something that is no matter of a batch. values: of columns; names as text, `user` for the account, `detail` a dictionary, or
        a function that makes one in the writer's thread.
        """
        self._add(Fact(kind, self.context.now, values), FACT + sum(map(weight_of, values.values())))

    def connected(self, connection: Any, session: Any, present: bool) -> None:
        """A client's CONNECT is taken. present: its session was there."""
        via = connection.via = way_of(connection)
        detail = {"address": connection.address, "keep_alive": connection.keep_alive / 1.5}
        values = {"client": session.client_id, "user": session.user or "", "value": int(present), "detail": detail}
        self.event(Kind.CONNECTED, **values, version_in=via & 15, protocol_in=via >> 4)

    def subscribed(self, session: Any, topic_filter: str, qos: int, gone: bool = False) -> None:
        """A client has a subscription, or one less."""
        kind = Kind.UNSUBSCRIBED if gone else Kind.SUBSCRIBED
        self.event(kind, client=session.client_id, user=session.user or "", topic=topic_filter, qos=qos)

    def managed(self, connection: Any, what: str, **detail: Any) -> None:
        """An operator has done something."""
        values = {"client": connection.client_id, "user": connection.user or "", "reason": what}
        self.event(Kind.MANAGED, **values, detail={**detail, "address": connection.address})

    def gateway(self, text: str) -> None:
        """The metabroker in this process says something: `event=NAME key=value ...`. Sessions and remotes are written down."""
        name = text.removeprefix("event=").partition(" ")[0]
        if name.startswith("session-"):
            self.event(Kind.GATEWAY_SESSION, reason=name, detail={"text": text[:1000]})
        elif name.startswith(("remote-", "connect-", "subscribe-")):
            self.event(Kind.GATEWAY_EVENT, reason=name, detail={"text": text[:1000]})

    def queued(self, queued: Queued) -> None:
        """A commit of the queues: its ranges count as events."""
        count = queued.ranges
        waiting = self._ranges - self.ranges_written
        if waiting and waiting + count > self._most:
            self.lost += count
        elif self._add(queued, weight_of_queued(queued)):
            self._ranges += count
        else:
            self.lost += count - 1  # one is counted

    # What is published here

    def begin(self, batch: Batch, connection: Any) -> None:
        """A batch of a noted topic is to be taken: it gets a mark, and its ids from the mesh (`taken`) or from `accepted`.

        connection: the publisher's; None for the broker itself, a will.
        """
        if batch.uniform:
            source = Source(batch.topic, batch.length, batch.qos, batch.properties)
        else:
            parts = batch.parts()
            source = Source(parts.topics, list(map(len, parts.payloads)), batch.qos)
        if connection is not None:
            source.client = connection.client_id
            source.user = connection.user or ""
            source.version = connection.version
            source.protocol = connection.via >> 4
        source.sender = self.number
        batch.mark = Mark(source, range(batch.count))

    def accepted(self, batch: Batch, to: Any, connection: Any, publisher: Any) -> None:
        """A batch is taken. to: its route, or what its topics share. publisher: session that it comes from, as routes know it."""
        if connection is not None:
            tally = connection.tally
            if tally is None:
                tally = connection.tally = {}
            dimension = to.dimension
            tally[dimension] = tally.get(dimension, 0) + amount_of(batch)
        if batch.mark is None:
            return
        mark: Mark = batch.mark  # type: ignore[assignment]
        targets = len(to.targets) + len(to.shares)
        if not to.plain and publisher is not None:
            targets -= sum([target.deaf and target.session is publisher for target in to.targets])
        source = mark.source
        now = self.context.now
        if not source.published:
            source.published = int(self.context.wall() * 1000) * 1000
        if source.spans:
            self._number_rest(source, batch.count)
        else:
            self._own(source, 0, batch.count)
        selects = self.topics.selecting and self.topics.selects(source.topics)
        self._note(Note(Kind.PUBLISHED, now, mark), self._hold(source, batch) if selects else 0)
        taken = next((span for span in source.spans if span.stream == Stream.CUSTODY), None)
        if taken is not None:
            self._note(Note(Kind.CUSTODY_TAKEN, now, mark, value=taken.brokers))
        if targets:
            self._note(Note(Kind.RECEIVED, now, mark, sender=self.number, to=self.number, value=targets))

    def _hold(self, source: Source, batch: Batch) -> int:
        """Keep the payloads for the writer, which looks for values in them, while half of what may wait is free: how many bytes."""
        size = batch.payload_bytes
        if 2 * (self.size + size) > self._most_bytes:
            self.unselected += batch.count
            return 0
        source.batch = batch
        return size

    def _number_rest(self, source: Source, count: int) -> None:
        """Numbers of the journal's own for messages that the mesh did not number."""
        position = 0
        for span in sorted(source.spans):
            if span.start > position:
                self._own(source, position, span.start)
            position = max(position, span.stop)
        if position < count:
            self._own(source, position, count)

    def _own(self, source: Source, start: int, stop: int) -> None:
        source.spans.append(Span(start, stop, self.number, self.epoch, Stream.LOCAL, self._local + 1))
        self._local += stop - start

    def refused(self, batch: Batch, connection: Any, count: int, reason: str) -> None:
        """The last `count` messages of a batch are not taken."""
        mark = batch.mark
        topic = (batch.topic if batch.uniform else batch.topics[-1]).decode("utf-8", "replace")
        size = batch.length if batch.uniform else batch.payload_bytes // batch.count
        self.tally.add(Kind.REFUSED, self.topics.prefix(topic), connection.user or "", "", count * (ONE + size))
        if mark is not None and mark.source.spans:  # type: ignore[attr-defined]
            self._note(Note(Kind.REFUSED, self.context.now, mark.part(batch.count - count, batch.count), reason=reason))  # type: ignore[arg-type]
            return
        values: dict[str, Any] = {"count": count, "topic": topic, "size": size, "bytes": count * size, "reason": reason}
        values |= {"qos": batch.qos, "client": connection.client_id, "user": connection.user or "", "version_in": connection.version}
        self.event(Kind.REFUSED, **values, protocol_in=connection.via >> 4)

    # What is delivered here

    def received(self, batch: Batch, targets: int, recipient: str = "") -> None:
        """A batch has come from elsewhere, for so many sessions and shared subscriptions here. recipient: that it has failed over to."""
        mark: Mark = batch.mark  # type: ignore[assignment]
        sender = mark.source.sender
        self._note(Note(Kind.RECEIVED, self.context.now, mark, sender=sender, to=self.number, value=targets, recipient=recipient))

    def retained(self, batch: Batch) -> None:
        """The last message of a batch is the topic's retained one now; an empty one: nothing is retained any more."""
        mark = batch.mark.part(batch.count - 1, batch.count)  # type: ignore[union-attr]
        self._note(Note(Kind.RETAINED_CHANGED, self.context.now, mark, to=self.number, value=int(batch.length > 0)))  # type: ignore[arg-type]

    def failed_over(self, delivery: Delivery, recipient: str, reason: str) -> None:
        """Messages of a recipient go to an alternative, or back."""
        if delivery.run.mark is not None:
            mark = delivery.run.mark.part(delivery.start, delivery.start + delivery.count)
            self._note(Note(Kind.FAILED_OVER, self.context.now, mark, reason=reason, to=self.number, recipient=recipient))  # type: ignore[arg-type]

    def returned(self, run: Batch, tried: list[str], topic: str, reason: str) -> None:
        """Messages go back to their originator. tried: recipients that did not take them. topic: where they go."""
        if run.mark is not None:
            detail = json.dumps({"tried": tried, "topic": topic})
            recipient = tried[0] if tried else ""
            self._note(Note(Kind.RETURNED, self.context.now, run.mark, reason=reason, to=self.number, recipient=recipient, detail=detail))  # type: ignore[arg-type]

    def given_up(self, run: Batch, destination: int, reason: str) -> None:
        """Messages leave custody without having come to a destination."""
        kind = Kind.EXPIRED if reason == "expired" else Kind.DROPPED
        self._note(Note(kind, self.context.now, run.mark, reason=reason, sender=self.number, to=destination))  # type: ignore[arg-type]

    def sent(self, connection: Any, mark: Any, qos: int) -> None:
        """Messages were given to a client's connection. qos: as they go out."""
        session = connection.session
        name = session.client_id if session is not None else ""
        self._note(Note(Kind.DELIVERED, self.context.now, mark, name, connection.user or "", to=self.number, out=connection.via | qos << 8))

    def missed(self, dimension: str, session: Any, batch: Batch) -> None:
        """A target of a route did not get a batch that was given to the route."""
        self.tally.add(Kind.DELIVERED, dimension, session.main.user or "", session.client_id, -amount_of(batch))

    def away(self, dimension: str, session: Any, batch: Batch) -> None:
        """A session without a connection does not get QoS 0."""
        self.missed(dimension, session, batch)
        if batch.mark is not None:
            self.dropped(session.client_id, batch.mark, "away", session.main.user or "")

    def full(self, dimension: str, session: Any, batch: Batch, count: int) -> None:
        """A session had no room for the last `count` messages of a batch."""
        size = batch.length if batch.uniform else batch.payload_bytes // batch.count
        self.tally.add(Kind.DELIVERED, dimension, session.main.user or "", session.client_id, -count * (ONE + size))
        if batch.mark is not None:
            self.dropped(session.client_id, batch.mark.part(batch.count - count, batch.count), "queue full", session.main.user or "")

    def given(self, session: Any, run: Batch) -> None:
        """A session has messages by a shared subscription, or a retained one for a new subscription."""
        topic = run.topic.decode("utf-8", "replace")
        self.tally.add(Kind.DELIVERED, self.topics.prefix(topic), session.main.user or "", session.client_id, amount_of(run))

    def dropped(self, client_id: str, mark: Any, reason: str, user: str = "", kind: Kind = Kind.DROPPED) -> None:
        """Messages do not get to a client. kind: dropped or expired."""
        self._note(Note(kind, self.context.now, mark, client_id, user, reason, to=self.number))

    def queued_as_well(self, mark: Any, queue: str) -> None:
        """Messages are in a queue that is bound to their topic. queue: `$queue/NAME`."""
        self._note(Note(Kind.ACKNOWLEDGED, self.context.now, mark, queue, to=self.number))

    def settled(self, session: Any) -> Callable[[Delivery, int, int], None]:
        """What `Outbound.tap` is for a session."""

        def acknowledged(delivery: Delivery, begin: int, end: int) -> None:
            run = delivery.run
            mark = run.mark if run is not None else None
            if mark is not None:
                part = mark.part(delivery.start + begin, delivery.start + end)
                self._note(Note(Kind.ACKNOWLEDGED, self.context.now, part, session.client_id, session.user or "", to=self.number))  # type: ignore[arg-type]

        return acknowledged

    def ended(self, session: Any, deliveries: Iterable[Delivery], reason: str, expired: bool = False) -> None:
        """What a session had is not delivered."""
        for delivery in deliveries:
            run = delivery.run
            if run is not None and run.mark is not None:
                mark = run.mark.part(delivery.start, delivery.start + delivery.count)
                self.dropped(session.client_id, mark, reason, session.user or "", Kind.EXPIRED if expired else Kind.DROPPED)

    # What the mesh says (`mesh.node.core.Tap`)

    def wants(self, topic: bytes) -> bool:
        return self.topics.noted(topic)

    def taken(self, run: Batch, custody: bool, epoch: int, first: int, published: int, brokers: int) -> None:
        mark: Mark | None = run.mark  # type: ignore[assignment]
        if mark is None or not mark.indexes:
            return
        stream = Stream.CUSTODY if custody else Stream.QOS0
        start = mark.indexes[0]
        mark.source.published = published * 1000
        mark.source.spans.append(Span(start, start + run.count, self.number, epoch, stream, first, brokers.bit_count()))

    def forwarded(self, passage: Passage, peer: int) -> None:
        self._add(Passed(self.context.now, passage, peer), weight_of_passage(passage))

    def came(self, run: Batch, origin: int, epoch: int, custody: bool, first: int, published: int, peer: int) -> None:
        if run.uniform:
            if not self.topics.noted(run.topic):
                return
            source = Source(run.topic, run.length, run.qos, run.properties)
        else:
            topics = run.topics
            if not any(map(self.topics.noted, set(topics))):
                return
            source = Source(topics, list(map(len, run.payloads)), run.qos)
        source.published = published * 1000
        source.sender = peer
        source.protocol = Way.MESH
        source.spans.append(Span(0, run.count, origin, epoch, Stream.CUSTODY if custody else Stream.QOS0, first))
        run.mark = Mark(source, range(run.count))

    def released(self, destination: int, epoch: int, first: int, last: int) -> None:
        if self.topics.full and first <= last:
            ids = {"origin": self.number, "origin_epoch": epoch, "stream": int(Stream.CUSTODY), "sequence": first}
            self.event(Kind.CUSTODY_RELEASED, **ids, count=last - first + 1, to_broker=destination)


def way_of(connection: Any) -> int:
    """How a client talks to the broker, as `Note.out` has it: version + 16 * protocol."""
    if connection.inside:
        protocol = Way.IN_PROCESS
    else:
        protocol = Way.MQTT if connection.transport.get_extra_info("websocket") is None else Way.WEBSOCKET
    return int(connection.version | protocol << 4)
