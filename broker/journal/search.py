"""Finds messages in a journal, with all of their events: by identifier, or by session, call, client, topic, recipient, account and time.

Two steps, so that little is read. The first one reads a few columns and finds which messages are meant, the newest first; Parquet's own
statistics leave out what cannot hold them. The second one reads all columns of these messages' events. A segment that cannot be read
is left out and named.

Needs pyarrow (the extra `mqmesh[journal]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from typing import Any

from ...mqtt.topics import matches
from .kinds import Kind, MessageId, name_id
from .layout import Segment
from .reading import Damaged, Journal, Wrong, read_open
from .schema import arrow_schema, expand
from .selecting import pattern_of

LONGEST_RUN = 1 << 20  # messages that one event stands for, at most
FEW, MOST = 20, 1000
_ID = ("origin", "origin_epoch", "stream", "sequence")
_NAMED = {"client": "client", "recipient": "recipient", "account": "account"}


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for; the conditions that are given hold together.

    message: one message. session, call: numbers of the journal. client, recipient, account: names. topic: a name or a topic
    filter. value: NAME=VALUE of what is kept of payloads (`selecting.py`). since, until: microseconds since 1970, of publishing, the second
    one not included. limit: messages, the newest first.
    """

    message: MessageId | None = None
    session: int | None = None
    call: int | None = None
    client: str | None = None
    topic: str | None = None
    recipient: str | None = None
    account: str | None = None
    value: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = FEW

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Query:
        """From a request's JSON. Raises ValueError, one line."""
        known = {one.name for one in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f'"{unknown[0]}" is no condition: give {", ".join(sorted(known))}')
        made = dict(values)
        if "message" in made:
            made["message"] = message_of(str(made["message"]))
        for name in ("session", "call", "since", "until", "limit"):
            if name in made and (not isinstance(made[name], int) or isinstance(made[name], bool)):
                raise ValueError(f'{name}: "{made[name]}": give a whole number')
        for name in ("client", "topic", "recipient", "account", "value"):
            if name in made and not isinstance(made[name], str):
                raise ValueError(f'{name}: "{made[name]}": give a text')
        if "value" in made:
            pattern_of(made["value"])
        if not 0 < made.get("limit", FEW) <= MOST:
            raise ValueError(f"limit: {made['limit']}: give 1 to {MOST}")
        return cls(**made)

    def values(self) -> dict[str, Any]:
        """For a request, as JSON."""
        made = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        if self.message is not None:
            made["message"] = str(self.message)
        return made


def message_of(text: str) -> MessageId:
    """From `origin.epoch.stream.sequence`, or from `origin:epoch:sequence` as acknowledgements have it. Raises ValueError, one line."""
    parts = text.strip().split(":")
    return MessageId.parse(f"{parts[0]}.{parts[1]}.1.{parts[2]}" if len(parts) == 3 else text)


@dataclass(frozen=True, slots=True)
class Part:
    """Events of a segment that is being written. table: of all columns.

    bounds: origin, epoch and stream of messages -> their lowest sequence, and the first one above their highest; None: not known.
    """

    table: Any
    bounds: dict[tuple[int, int, int], tuple[int, int]] | None = None

    @classmethod
    def bounded(cls, table: Any) -> Part:
        """With its bounds."""
        import pyarrow.compute as pc

        above = pc.add(table.column("sequence"), pc.cast(table.column("count"), "int64"))
        groups = table.select(_ID).append_column("above", above).group_by(list(_ID[:3]))
        columns = groups.aggregate([("sequence", "min"), ("above", "max")]).to_pydict()
        keys = zip(*(columns[name] for name in _ID[:3]), strict=True)
        limits = zip(columns["sequence_min"], columns["above_max"], strict=True)
        return cls(table, dict(zip(keys, limits, strict=True)))

    def may_hold(self, message: MessageId) -> bool:
        """Whether it may have events of a message."""
        if self.bounds is None:
            return True
        low, above = self.bounds.get(message[:3], (0, 0))
        return low <= message.sequence < above


@dataclass(slots=True)
class Found:
    """events: of the messages, one row for each event and message, by time. skipped: files that cannot be read, with the reason."""

    events: Any
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[MessageId]:
        """The messages, each once, in the order of their first event."""
        columns = [self.events.column(name).to_pylist() for name in _ID]
        return list(dict.fromkeys(MessageId(*values) for values in zip(*columns, strict=True)))


class Search:
    """Searches one journal. names: what an id stands for; only topic filters with wildcards need it.

    opened: reads the open segments, each as its parts one after the other.
    """

    def __init__(
        self, journal: Journal, names: Mapping[int, str] | None = None, opened: Callable[[], list[list[Part]]] | None = None
    ) -> None:
        self._journal = journal
        self._opened = opened or self._open_segments
        self._names = names
        self._skipped: dict[str, str] = {}

    def find(self, query: Query) -> Found:
        """The events of the messages that a query means. Raises OSError when the journal cannot be listed."""
        self._skipped = {}
        opened = self._opened()  # first: a segment that is closed meanwhile is read twice, not left out
        segments = self._journal.segments(query.since, None)
        closed = {(one.broker, one.epoch, one.first) for one in segments}
        parts = [part for one in opened if one and _first(one[0].table) not in closed for part in one]
        chosen = [query.message] if query.message is not None else self._choose(query, segments, parts)
        events = self._events(chosen, segments, parts) if chosen else arrow_schema().empty_table()
        return Found(events, sorted(self._skipped.items()))

    def _open_segments(self) -> list[list[Part]]:
        tables = [read_open(self._journal.place, name) for name in self._journal.open_segments()]
        return [[Part(table)] for table in tables if table.num_rows]

    def _choose(self, query: Query, segments: list[Segment], opened: list[Part]) -> list[MessageId]:
        """The newest messages that a query means."""
        condition = self._condition(query)
        if condition is None:
            return []
        names = [*_ID, "count", "published"]
        table = self._read(segments, [one.table.filter(condition) for one in opened], condition, names)
        table = table.sort_by([("published", "descending"), ("sequence", "descending")])
        found: dict[MessageId, None] = {}
        columns = [table.column(name).to_pylist() for name in (*_ID, "count")]
        for origin, epoch, stream, sequence, count in zip(*columns, strict=True):
            if origin < 0:
                continue
            for offset in reversed(range(count)):
                found[MessageId(origin, epoch, stream, sequence + offset)] = None
                if len(found) == query.limit:
                    return list(found)
        return list(found)

    def _condition(self, query: Query) -> Any:
        """For pyarrow; None: nothing can be meant."""
        import pyarrow.compute as pc

        parts = []
        for name in ("session", "call"):
            if getattr(query, name) is not None:
                parts.append(pc.field(name) == getattr(query, name))
        for name, column in _NAMED.items():
            if getattr(query, name) is not None:
                parts.append(pc.field(column) == name_id(getattr(query, name)))
        if query.topic is not None:
            topics = self._topics(query.topic)
            if not topics:
                return None
            parts.append(pc.field("topic").isin(topics))
        if query.value is not None:
            parts.append((pc.field("kind") == int(Kind.PUBLISHED)) & pc.match_substring_regex(pc.field("detail"), pattern_of(query.value)))
        if query.since is not None:
            parts.append(pc.field("published") >= query.since)
        if query.until is not None:
            parts.append(pc.field("published") < query.until)
        parts.append(pc.field("origin") >= 0)
        return reduce(lambda one, other: one & other, parts)

    def _topics(self, topic: str) -> list[int]:
        if "+" not in topic and "#" not in topic:
            return [name_id(topic)]
        wrong: Wrong = []
        names = self._names if self._names is not None else self._journal.names(wrong)
        self._skipped |= dict(wrong)
        return [number for number, name in names.items() if matches(topic, name)]

    def _events(self, messages: list[MessageId], segments: list[Segment], opened: list[Part]) -> Any:
        """All events of these messages."""
        import pyarrow.compute as pc

        spans: dict[tuple[int, int, int], list[int]] = {}
        for message in messages:
            spans.setdefault(message[:3], []).append(message.sequence)
        parts = []
        for (origin, epoch, stream), sequences in spans.items():
            low, high = min(sequences), max(sequences)
            which = (pc.field("origin") == origin) & (pc.field("origin_epoch") == epoch) & (pc.field("stream") == stream)
            parts.append(which & (pc.field("sequence") > low - LONGEST_RUN) & (pc.field("sequence") <= high))
        reach = pc.field("sequence") + pc.field("count")
        lowest = min(message.sequence for message in messages)
        near = [_near(part.table, spans) for part in opened if any(map(part.may_hold, messages))]
        table = self._read(segments, near, reduce(or_, parts) & (reach > lowest))
        return only(expand(table), messages).sort_by([("time", "ascending"), ("broker", "ascending"), ("event", "ascending")])

    def _read(self, segments: list[Segment], opened: list[Any], condition: Any, columns: list[str] | None = None) -> Any:
        """What holds a condition in closed segments, and what was chosen of the open ones, in one table."""
        import pyarrow as pa

        names = columns or arrow_schema().names
        tables = [one.select(names) for one in opened]
        if segments:
            try:
                tables.append(self._dataset(segments).to_table(columns=names, filter=condition))
            except (pa.ArrowException, OSError):  # some segment is damaged: one by one
                tables += [one for one in (self._one(segment, condition, names) for segment in segments) if one is not None]
        schema = pa.schema([arrow_schema().field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *(one.cast(schema) for one in tables)])

    def _one(self, segment: Segment, condition: Any, names: list[str]) -> Any:
        try:
            return self._journal.table(segment, verify=False).filter(condition).select(names)
        except Damaged as error:
            self._skipped[segment.path] = error.reason
            return None

    def _dataset(self, segments: list[Segment]) -> Any:
        import pyarrow.dataset as ds

        place = self._journal.place
        paths = [place.url(one.path) for one in segments]
        if not place.remote:
            return ds.dataset(paths, schema=arrow_schema(), format="parquet", partitioning=None)
        import fsspec

        fs, _ = fsspec.core.url_to_fs(place.root)
        return ds.dataset(
            [fs._strip_protocol(path) for path in paths], schema=arrow_schema(), format="parquet", partitioning=None, filesystem=fs
        )


def _near(table: Any, spans: Mapping[tuple[int, int, int], list[int]]) -> Any:
    """The rows of an open segment that may be events of some messages, as the condition of `_events` says it of closed ones.

    With numpy, because pyarrow's own filter starts threads: 0.1 ms for 2,000 rows instead of 1.0. spans: origin, epoch and stream ->
    sequences.
    """
    import numpy
    import pyarrow as pa

    origin, epoch, stream, sequence, count = (table.column(name).to_numpy() for name in (*_ID, "count"))
    keep = numpy.zeros(table.num_rows, dtype=bool)
    for key, sequences in spans.items():
        reaches = (sequence <= max(sequences)) & (sequence + count > min(sequences))
        keep |= (origin == key[0]) & (epoch == key[1]) & (stream == key[2]) & reaches
    return table.take(pa.array(numpy.flatnonzero(keep)))


def only(table: Any, messages: Iterable[MessageId]) -> Any:
    """The rows of some messages."""
    import numpy
    import pyarrow as pa

    wanted: dict[tuple[int, int, int], list[int]] = {}
    for message in messages:
        wanted.setdefault(message[:3], []).append(message.sequence)
    columns = [table.column(name).to_numpy() for name in _ID]
    keep = numpy.zeros(table.num_rows, dtype=bool)
    for (origin, epoch, stream), sequences in wanted.items():
        keep |= (columns[0] == origin) & (columns[1] == epoch) & (columns[2] == stream) & numpy.isin(columns[3], sequences)
    return table.filter(pa.array(keep))


def only_account(table: Any, account: int) -> Any:
    """The events of messages that an account has published. An event that does not say it belongs to those of its message."""
    own = {
        MessageId(*values[:4])
        for values in zip(*(table.column(name).to_pylist() for name in (*_ID, "account")), strict=True)
        if values[4] == account
    }
    return only(table, own)


def _first(table: Any) -> tuple[int, int, int]:
    broker, epoch, event = (table.column(name)[0].as_py() for name in ("broker", "epoch", "event"))
    return broker, epoch, event
