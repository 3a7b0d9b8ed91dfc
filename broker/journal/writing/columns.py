"""What the event loop noted becomes rows of the journal's table. Runs in the writer's thread.

The loop notes three kinds of things, as cheaply as it can: what happens to marked messages (`Note`), messages that pass through
(`mesh.node.core.Passage`), and everything else (`Fact`). A note becomes one row for each stretch of one topic and consecutive sequences.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ....mqtt.errors import MqttError
from ....mqtt.length import encode_length
from ....mqtt.publish import publish_properties
from ..kinds import DIMENSIONS, NOBODY, Kind, MessageId, Stream, call_id, hop_id, name_id
from ..mark import Mark, Source
from ..schema import EVENTS, arrow_schema
from ..topics import Topics, sampled_parts
from .queue_states import Queued, QueueRows

if TYPE_CHECKING:
    from ....mesh.node.core import Passage

NAMED = 1_000_000  # names that are remembered as written; beyond, they are written again


class Note(NamedTuple):
    """Something happened to marked messages.

    now: the loop's clock. client, user: whom it concerns, where it is not the publisher. reason: in words. sender, to: numbers of brokers.
    out: how it goes out: version + 16 * protocol + 256 * QoS.
    """

    kind: int
    now: float
    mark: Mark
    client: str = ""
    user: str = ""
    reason: str = ""
    sender: int = NOBODY
    to: int = NOBODY
    value: int = 0
    out: int = 0
    recipient: str = ""
    detail: str | None = None


class Passed(NamedTuple):
    """Messages were given to the link to a neighbour."""

    now: float
    passage: Passage
    peer: int


class Fact(NamedTuple):
    """Something else happened. values: of columns by name; strings for names."""

    kind: int
    now: float
    values: dict[str, Any]


class Names:
    """Names that have ids here, and which of them are not written down yet."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {kind: {} for kind in DIMENSIONS}
        self.fresh: list[tuple[str, int, str]] = []

    def id(self, kind: str, name: str) -> int:
        """The id of a name, which is written down if it was not."""
        known = self._known[kind]
        number = known.get(name)
        if number is None:
            if not name:
                return 0
            if len(known) >= NAMED:
                known.clear()
            number = known[name] = name_id(name)
            self.fresh.append((kind, number, name))
        return number


class Columns:
    """Makes rows. broker: its number. account: user -> account. rows: how many were made in this life."""

    def __init__(self, broker: int, topics: Topics, account: Callable[[str], str]) -> None:
        self.broker = broker
        self.epoch = 0
        self.rows = 0
        self.names = Names()
        self._topics = topics
        self.account = account
        self._made: list[tuple[Any, ...]] = []
        self._queues = QueueRows(broker, topics, self.names, self._timed)

    def batch(self, noted: list[Note | Passed | Queued | Fact], offset: float) -> Any:
        """The rows of what was noted, as a table. offset: from the loop's clock to the wall clock, in seconds."""
        import pyarrow as pa

        self._offset = offset
        self._shift = int(offset * 1_000_000)
        for one in noted:
            if isinstance(one, Note):
                if not self._plain(one):
                    self._note(one)
            elif isinstance(one, Passed):
                self._passed(one)
            elif isinstance(one, Queued):
                self._queues.add(one)
            else:
                self._fact(one)
        made, self._made = self._made, []
        schema = arrow_schema()
        if not made:
            return schema.empty_table()
        columns = zip(*made, strict=True)
        return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)

    def _row(self, kind: int, now: float, values: tuple[Any, ...]) -> None:
        self.rows += 1
        mono = int(now * 1_000_000)
        self._made.append((kind, mono + self._shift, mono, self.broker, self.epoch, self.rows, *values))

    def _timed(self, kind: int, time: int, values: tuple[Any, ...]) -> None:
        """A row whose time is known. time: microseconds since 1970."""
        self.rows += 1
        self._made.append((kind, time, time - self._shift, self.broker, self.epoch, self.rows, *values))

    def _plain(self, note: Note) -> bool:
        """`_note` for what is common, with few steps: a run that is journalled in full, of one stretch. False: it is not."""
        kind, now, mark, client, user, reason, sender, to, value, out, recipient, detail = note
        source, indexes = mark.source, mark.indexes
        if not source.plain:
            if source.plain is None:
                self._look_at(source)
            if not source.plain:
                return False
        if not isinstance(indexes, range) or indexes.step != 1 or not indexes:
            return False
        (span,) = source.spans
        count, size = len(indexes), source.sizes
        number = span.first + indexes.start - span.start
        id_of = self.names.id
        if client:
            account = id_of("account", self.account(user)) if user else 0
            who = id_of("client", client)
        else:
            account, who = source.account_id, source.client_id
        hop = 0
        if kind == 4 and sender not in (NOBODY, self.broker):  # Kind.RECEIVED
            hop = hop_id(MessageId(span.origin, span.epoch, span.stream, number), sender, self.broker)
        mono = int(now * 1_000_000)
        self.rows += 1
        # fmt: off
        self._made.append((
            kind, mono + self._shift, mono, self.broker, self.epoch, self.rows,
            count, span.origin, span.epoch, span.stream, number, source.published, size, size * count,
            account, source.topic_id, who, id_of("recipient", recipient) if recipient else 0,
            sender, to, hop, source.call, 0, source.trace, None,
            out >> 8 if kind == 5 else source.qos,  # Kind.DELIVERED
            source.version, out & 15, source.protocol, out >> 4 & 15,
            id_of("reason", reason) if reason else 0, span.brokers if kind == 1 else value, detail,  # Kind.PUBLISHED
        ))
        # fmt: on
        return True

    def _look_at(self, source: Source) -> None:
        """Find out once whether a source is plain, and its ids."""
        if not source.read:
            _read(source)
        topics = source.topics
        source.plain = isinstance(topics, bytes) and isinstance(source.sizes, int) and len(source.spans) == 1
        if isinstance(topics, bytes) and source.plain:
            source.plain = self._topics.rule(topics).mode == "full"
            source.topic_id = self.names.id("topic", topics.decode("utf-8", "replace"))
            source.client_id = self.names.id("client", source.client)
            source.account_id = self.names.id("account", self.account(source.user)) if source.user else 0

    def _note(self, note: Note) -> None:
        kind, now, mark, client, user, reason, sender, to, value, out, recipient, detail = note
        source = mark.source
        if not source.read:
            _read(source)
        names = self.names
        who = client or source.client
        account = self.account(user or ("" if client else source.user))
        ids = (names.id("account", account), names.id("client", who), names.id("recipient", recipient), names.id("reason", reason))
        account_id, client_id, recipient_id, reason_id = ids
        for span, first, count in mark.stretches():
            topic = source.topic(first)
            text = topic.decode("utf-8", "replace")
            topic_id = names.id("topic", text)
            sequence = span.first + first - span.start
            for skip, part in sampled_parts(self._topics.rule(topic), span.origin, span.epoch, span.stream, sequence, count):
                begin = first + skip
                if isinstance(source.sizes, int):
                    size, total = source.sizes, source.sizes * part
                else:
                    total = sum(source.sizes[begin : begin + part])
                    size = total // part
                number = sequence + skip
                hop = 0
                if kind == Kind.RECEIVED and sender not in (NOBODY, self.broker):
                    hop = hop_id(MessageId(span.origin, span.epoch, span.stream, number), sender, self.broker)
                self._row(
                    kind,
                    now,
                    (
                        part,
                        span.origin,
                        span.epoch,
                        span.stream,
                        number,
                        source.published,
                        size,
                        total,
                        account_id,
                        topic_id,
                        client_id,
                        recipient_id,
                        sender,
                        to,
                        hop,
                        source.call,
                        0,
                        source.trace,
                        None,
                        out >> 8 if kind == Kind.DELIVERED else source.qos,
                        source.version,
                        out & 15,
                        source.protocol,
                        out >> 4 & 15,
                        reason_id,
                        span.brokers if kind == Kind.PUBLISHED else value,
                        detail,
                    ),
                )

    def _passed(self, passed: Passed) -> None:
        now, passage, peer = passed
        stream = Stream.CUSTODY if passage.custody else Stream.QOS0
        index, count = 0, passage.messages
        while index < count:
            if passage.names is None:
                topic, stop = passage.topic, count
            else:
                name, stop = passage.names[index], index + 1
                while stop < count and passage.names[stop] == name:
                    stop += 1
                topic = name[2:]
            sequence = passage.first + index
            topic_id = self.names.id("topic", topic.decode("utf-8", "replace"))
            for skip, part in sampled_parts(self._topics.rule(topic), passage.origin, passage.epoch, stream, sequence, stop - index):
                begin = index + skip
                if isinstance(passage.sizes, int):
                    size, total = passage.sizes, passage.sizes * part
                else:
                    total = sum(passage.sizes[begin : begin + part])
                    size = total // part
                number = sequence + skip
                hop = hop_id(MessageId(passage.origin, passage.epoch, stream, number), self.broker, peer)
                numbers = (part, passage.origin, passage.epoch, int(stream), number, passage.published * 1000, size, total)
                rest = (0, topic_id, 0, 0, self.broker, peer, hop, 0, 0, None, None, 1 if passage.custody else 0, 0, 0, 2, 2, 0, 0, None)
                self._row(Kind.FORWARDED, now, numbers + rest)
            index = stop

    def _fact(self, fact: Fact) -> None:
        given = dict(fact.values)
        for kind in ("topic", "client", "recipient", "reason"):
            if isinstance(given.get(kind), str):
                given[kind] = self.names.id(kind, given[kind])
        if "user" in given:
            given["account"] = self.names.id("account", self.account(given.pop("user")))
        if isinstance(given.get("detail"), dict):
            given["detail"] = json.dumps(given["detail"], sort_keys=True, default=str)
        self._row(fact.kind, fact.now, tuple([given.get(name, default) for name, _, default in EVENTS[6:]]))


def _read(source: Source) -> None:
    """Find the call and the trace in what a source's messages have in common."""
    source.read = True
    block = source.properties
    if not block or not isinstance(source.topics, bytes):
        return
    data = encode_length(len(block)) + block
    try:
        found = publish_properties(data, 0, len(data))
    except MqttError:
        return
    if found.correlation:
        source.call = call_id(found.response_topic or source.topics, found.correlation)
    for name, value in found.user_properties:
        parts = value.split("-")
        if name == "traceparent" and len(parts) >= 4 and len(parts[1]) == 32:
            source.trace = parts[1].lower()
