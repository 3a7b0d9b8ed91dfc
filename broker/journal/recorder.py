"""The journal as the broker's event loop sees it: it notes what happens, in memory, and never waits.

What is noted is bounded (`JournalSettings.pending`). When the disk is slower than the traffic, what does not fit is counted, and the
next batch begins with an event that says how many events are missing (`Kind.GAP`). Traffic goes on.

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
from .selecting import HELD
from .tally import ONE, Tally, amount_of
from .topics import Topics
from .writing.columns import Fact, Passed
from .writing.notes import Note
from .writing.queue_states import Queued

if TYPE_CHECKING:
    from ...mesh.node.core import Passage
    from ...mqtt.batch.batch import Batch
    from ...mqtt.session import Delivery


class Clock(Protocol):
    """The clocks of a broker. now: of its loop, as last read."""

    now: float

    def wall(self) -> float:
        """Seconds since 1970."""


class Recorder:
    """What one broker notes. number, epoch: the broker's, of this life.

    noted: events that wait for the writer. lost: that found no room so far. wake: asks the writer to come soon.
    offset: from the loop's clock to the wall clock, in seconds. ranges_written: states of queues that the writer has taken so far.
    held_written: bytes of payloads that it has looked into. unselected: messages whose values are not kept, since too much waited.
    """

    def __init__(self, context: Clock, topics: Topics, number: int, most: int) -> None:
        """most: events that may wait."""
        self.context = context
        self.offset = 0.0
        self.topics = topics
        self.number = number
        self.epoch = 0
        self.tally = Tally()
        self.noted: deque[Note | Passed | Queued | Fact] = deque()  # appended to by the loop, taken from by the writer's thread
        self.lost = 0
        self.wake: Callable[[], None] = lambda: None
        self.ranges_written = 0
        self.held_written = 0
        self.unselected = 0
        self._held = 0
        self._ranges = 0
        self._most = most
        self._half = most // 2
        self._local = 0  # the number of the last message that nobody elsewhere wants

    # What is noted

    def _add(self, one: Note | Passed | Queued | Fact) -> None:
        noted = self.noted
        if len(noted) >= self._most:
            self.lost += 1
            return
        noted.append(one)
        if len(noted) == self._half:
            self.wake()

    def event(self, kind: Kind, **values: Any) -> None:
        """Note something that is no matter of a batch. values: of columns; names as text, `user` for the account, `detail` a dictionary, or
        a function that makes one in the writer's thread.
        """
        self._add(Fact(kind, self.context.now, values))

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
        if len(self.noted) >= self._most or (waiting and waiting + count > self._most):
            self.lost += count
            return
        self._ranges += count
        self._add(queued)

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
        if self.topics.selecting and self.topics.selects(source.topics):
            self._hold(source, batch)
        self._add(Note(Kind.PUBLISHED, now, mark))
        taken = next((span for span in source.spans if span.stream == Stream.CUSTODY), None)
        if taken is not None:
            self._add(Note(Kind.CUSTODY_TAKEN, now, mark, value=taken.brokers))
        if targets:
            self._add(Note(Kind.RECEIVED, now, mark, sender=self.number, to=self.number, value=targets))

    def _hold(self, source: Source, batch: Batch) -> None:
        """Keep the payloads for the writer, which looks for values in them; as many as may wait."""
        size = batch.payload_bytes
        if self._held - self.held_written + size > HELD or len(self.noted) >= self._most:
            self.unselected += batch.count
        else:
            self._held += size
            source.batch = batch

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
            self._add(Note(Kind.REFUSED, self.context.now, mark.part(batch.count - count, batch.count), reason=reason))  # type: ignore[arg-type]
            return
        values: dict[str, Any] = {"count": count, "topic": topic, "size": size, "bytes": count * size, "reason": reason}
        values |= {"qos": batch.qos, "client": connection.client_id, "user": connection.user or "", "version_in": connection.version}
        self.event(Kind.REFUSED, **values, protocol_in=connection.via >> 4)

    # What is delivered here

    def received(self, batch: Batch, targets: int, recipient: str = "") -> None:
        """A batch has come from elsewhere, for so many sessions and shared subscriptions here. recipient: that it has failed over to."""
        mark: Mark = batch.mark  # type: ignore[assignment]
        sender = mark.source.sender
        self._add(Note(Kind.RECEIVED, self.context.now, mark, sender=sender, to=self.number, value=targets, recipient=recipient))

    def retained(self, batch: Batch) -> None:
        """The last message of a batch is the topic's retained one now; an empty one: nothing is retained any more."""
        mark = batch.mark.part(batch.count - 1, batch.count)  # type: ignore[union-attr]
        self._add(Note(Kind.RETAINED_CHANGED, self.context.now, mark, to=self.number, value=int(batch.length > 0)))  # type: ignore[arg-type]

    def failed_over(self, delivery: Delivery, recipient: str, reason: str) -> None:
        """Messages of a recipient go to an alternative, or back."""
        if delivery.run.mark is not None:
            mark = delivery.run.mark.part(delivery.start, delivery.start + delivery.count)
            self._add(Note(Kind.FAILED_OVER, self.context.now, mark, reason=reason, to=self.number, recipient=recipient))  # type: ignore[arg-type]

    def returned(self, run: Batch, tried: list[str], topic: str, reason: str) -> None:
        """Messages go back to their originator. tried: recipients that did not take them. topic: where they go."""
        if run.mark is not None:
            detail = json.dumps({"tried": tried, "topic": topic})
            recipient = tried[0] if tried else ""
            self._add(Note(Kind.RETURNED, self.context.now, run.mark, reason=reason, to=self.number, recipient=recipient, detail=detail))  # type: ignore[arg-type]

    def given_up(self, run: Batch, destination: int, reason: str) -> None:
        """Messages leave custody without having come to a destination."""
        kind = Kind.EXPIRED if reason == "expired" else Kind.DROPPED
        self._add(Note(kind, self.context.now, run.mark, reason=reason, sender=self.number, to=destination))  # type: ignore[arg-type]

    def sent(self, connection: Any, mark: Any, qos: int) -> None:
        """Messages were given to a client's connection. qos: as they go out."""
        session = connection.session
        name = session.client_id if session is not None else ""
        self._add(Note(Kind.DELIVERED, self.context.now, mark, name, connection.user or "", to=self.number, out=connection.via | qos << 8))

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
        self._add(Note(kind, self.context.now, mark, client_id, user, reason, to=self.number))

    def queued_as_well(self, mark: Any, queue: str) -> None:
        """Messages are in a queue that is bound to their topic. queue: `$queue/NAME`."""
        self._add(Note(Kind.ACKNOWLEDGED, self.context.now, mark, queue, to=self.number))

    def settled(self, session: Any) -> Callable[[Delivery, int, int], None]:
        """What `Outbound.tap` is for a session."""

        def acknowledged(delivery: Delivery, begin: int, end: int) -> None:
            run = delivery.run
            mark = run.mark if run is not None else None
            if mark is not None:
                part = mark.part(delivery.start + begin, delivery.start + end)
                self._add(Note(Kind.ACKNOWLEDGED, self.context.now, part, session.client_id, session.user or "", to=self.number))  # type: ignore[arg-type]

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
        self._add(Passed(self.context.now, passage, peer))

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
