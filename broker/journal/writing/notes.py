"""What the event loop noted of marked messages becomes columns of the journal's table. Runs in the writer's thread.

Strategy. A batch of messages has several notes: published, received, delivered, acknowledged. What they say alike (`Piece`) is looked up
once. The columns of all notes are made one after the other by numpy, and not row by row: that takes an eighth of the time, in which the
event loop has to wait for the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ....mqtt.errors import MqttError
from ....mqtt.length import encode_length
from ....mqtt.publish import publish_properties
from ..kinds import NOBODY, Kind, MessageId, call_id, hop_id
from ..mark import Mark, Piece, Source, Span
from ..selecting import runs, selected
from ..topics import Topics, sampled_parts

if TYPE_CHECKING:
    from ....mqtt.batch.batch import Batch
    from .columns import Names

# columns that a piece has, in the order of `Piece.values`
COMMON = (
    "origin",
    "origin_epoch",
    "stream",
    "published",
    "account",
    "topic",
    "client",
    "call",
    "qos",
    "version_in",
    "protocol_in",
    "value",
)


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


class Notes:
    """Collects notes, and makes a table's columns of them. A note is one row for each stretch of one topic and consecutive sequences."""

    def __init__(self, broker: int, topics: Topics, names: Names, account: Callable[[str], str]) -> None:
        """account: user -> account."""
        self._broker = broker
        self._topics = topics
        self._names = names
        self._account = account
        self._begin()

    def _begin(self) -> None:
        self._notes: list[Note] = []
        self._pieces: list[Piece] = []
        self._events: list[int] = []
        self._sequences: list[int] = []
        self._counts: list[int] = []
        self._bytes: list[int] = []

    def add(self, note: Note, event: int) -> int:
        """Take a note. event: the number of its first row. Gives how many rows it is."""
        mark = note.mark
        source = mark.source
        indexes, piece = mark.indexes, source.piece
        if piece is None:
            piece = self._look_at(source)
        if source.batch is not None and note.kind == Kind.PUBLISHED:
            return self._selected(note, event, source.batch)
        if piece and isinstance(indexes, range) and indexes.step == 1:
            count = len(indexes)
            if not count:
                return 0
            self._row(note, piece, event, piece.base + indexes.start, count, piece.size * count)
            return 1
        return self._stretches(note, event)

    def _row(self, note: Note, piece: Piece, event: int, sequence: int, count: int, size: int) -> None:
        self._notes.append(note)
        self._pieces.append(piece)
        self._events.append(event)
        self._sequences.append(sequence)
        self._counts.append(count)
        self._bytes.append(size)

    def _look_at(self, source: Source) -> Piece | Literal[False]:
        """Find out once whether all messages of a source are one piece; False: they are not."""
        if not source.read:
            _read(source)
        topics, sizes = source.topics, source.sizes
        source.piece = False
        if isinstance(topics, bytes) and isinstance(sizes, int) and len(source.spans) == 1 and self._topics.rule(topics).mode == "full":
            source.piece = self._piece(source, source.spans[0], topics, sizes)
        return source.piece

    def _piece(self, source: Source, span: Span, topic: bytes, size: int) -> Piece:
        id_of = self._names.id
        values = (
            span.origin,
            span.epoch,
            int(span.stream),
            source.published,
            id_of("account", self._account(source.user)) if source.user else 0,
            id_of("topic", topic.decode("utf-8", "replace")),
            id_of("client", source.client),
            source.call,
            source.qos,
            source.version,
            source.protocol,
            span.brokers,
        )
        return Piece(span.first - span.start, size, values, source.trace)

    def _stretches(self, note: Note, event: int) -> int:
        """Messages of several topics, sizes or numberings, or sampled ones."""
        source = note.mark.source
        rows = 0
        for span, first, count in note.mark.stretches():
            topic = source.topic(first)
            sequence = span.first + first - span.start
            for skip, part in sampled_parts(self._topics.rule(topic), span.origin, span.epoch, span.stream, sequence, count):
                begin = first + skip
                if isinstance(source.sizes, int):
                    size, total = source.sizes, source.sizes * part
                else:
                    total = sum(source.sizes[begin : begin + part])
                    size = total // part
                self._row(note, self._piece(source, span, topic, size), event + rows, sequence + skip, part, total)
                rows += 1
        return rows

    def _selected(self, note: Note, event: int, batch: Batch) -> int:
        """The same of a publication of whose payloads values are kept: a row for messages one after the other with the same values."""
        source = note.mark.source
        source.batch = None
        payloads = batch.payloads
        topics = [source.topic(index) for index in note.mark.indexes]
        rules = {topic: self._topics.rule(topic) for topic in set(topics)}
        found = [selected(rules[topic].select, payloads[index]) for topic, index in zip(topics, note.mark.indexes, strict=True)]
        rows = 0
        for first, count, detail in runs(found):
            part = note._replace(mark=note.mark.part(first, first + count), detail=detail)
            rows += self._stretches(part, event + rows)
        return rows

    def columns(self, shift: int) -> dict[str, Any] | None:
        """The columns of what was added, but `broker`, `epoch` and those that are empty; None: nothing was.

        shift: from the loop's clock to the wall clock, in microseconds.
        """
        import numpy as np

        if not self._notes:
            return None
        notes, pieces, events, sequences = self._notes, self._pieces, self._events, self._sequences
        counts, sizes = self._counts, self._bytes
        self._begin()
        kinds, nows, _, clients, users, reasons, senders, tos, values, outs, recipients, details = zip(*notes, strict=True)
        distinct = dict(zip(dict.fromkeys(pieces), range(len(pieces)), strict=False))
        at = np.array(list(map(distinct.__getitem__, pieces)))
        common = zip(*[piece.values for piece in distinct], strict=True)
        made: dict[str, Any] = {name: np.array(column, np.int64)[at] for name, column in zip(COMMON, common, strict=True)}
        kind, out = np.array(kinds, np.int64), np.array(outs, np.int64)
        client, account = self._ids("client", clients), self._accounts(users)
        mono = (np.array(nows) * 1_000_000).astype(np.int64)
        made |= {"kind": kind, "time": mono + shift, "mono": mono, "event": events}
        made |= {"count": counts, "sequence": sequences, "bytes": sizes, "from_broker": senders, "to_broker": tos}
        made["size"] = np.array([piece.size for piece in distinct])[at]
        made["account"] = np.where((client == 0) & (account == 0), made["account"], account)
        made["client"] = np.where(client == 0, made["client"], client)
        made["recipient"], made["reason"] = self._ids("recipient", recipients), self._ids("reason", reasons)
        made["qos"] = np.where(kind == Kind.DELIVERED, out >> 8, made["qos"])
        made["version_out"], made["protocol_out"] = out & 15, out >> 4 & 15
        made["value"] = np.where(kind == Kind.PUBLISHED, made["value"], np.array(values, np.int64))
        traces = [piece.trace for piece in distinct]
        made["trace"] = [traces[place] for place in at.tolist()] if any(traces) else None
        made["detail"] = details if any(details) else None
        made["hop"] = [
            self._hop(sender, piece, sequence) if number == 4 and sender != self._broker and sender != NOBODY else 0  # Kind.RECEIVED
            for number, sender, piece, sequence in zip(kinds, senders, pieces, sequences, strict=True)
        ]
        return made

    def _ids(self, kind: str, names: Iterable[str]) -> Any:
        """The ids of names, 0 for none."""
        import numpy as np

        ids = {name: self._names.id(kind, name) for name in set(names)}
        return np.array(list(map(ids.__getitem__, names)), np.int64)

    def _accounts(self, users: Iterable[str]) -> Any:
        import numpy as np

        ids = {user: self._names.id("account", self._account(user)) if user else 0 for user in set(users)}
        return np.array(list(map(ids.__getitem__, users)), np.int64)

    def _hop(self, sender: int, piece: Piece, sequence: int) -> int:
        """The id of the way on which messages have come from another broker."""
        origin, epoch, stream = piece.values[:3]
        return hop_id(MessageId(origin, epoch, stream, sequence), sender, self._broker)


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
