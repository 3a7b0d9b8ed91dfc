"""What the event loop noted becomes rows of the journal's table. Runs in the writer's thread.

The loop notes these kinds of things, as cheaply as it can: what happens to marked messages (`Note`, by far the most: notes.py), messages
that pass through (`mesh.node.core.Passage`), states of queues (`Queued`: queue_states.py), and everything else (`Fact`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ....base.cache import LONGEST
from ...ledger import weight_of_text
from ..kinds import DIMENSIONS, Kind, MessageId, Stream, hop_id, name_id
from ..schema import EVENTS, arrow_schema
from ..topics import Topics, sampled_parts
from .notes import Note, Notes
from .queue_states import Queued, QueueRows

if TYPE_CHECKING:
    from ....mesh.node.core import Passage

NAME = 192  # bytes of a name that is remembered, beside its text
REMEMBERED = 2**27  # bytes of names that are remembered, unless a broker says otherwise


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
    """Names that have ids here, and which of them are not written down yet.

    size: bytes of those that are remembered as written down. Beyond a bound all are forgotten, and written again.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        """most: bytes that may be remembered."""
        self.size = 0
        self._most = most
        self._known: dict[str, dict[str | int, int]] = {kind: {} for kind in DIMENSIONS}  # a long name is known by its id
        self.fresh: list[tuple[str, int, str]] = []

    def id(self, kind: str, name: str) -> int:
        """The id of a name, which is written down if it was not."""
        known = self._known[kind]
        number = known.get(name)
        if number is None:
            if not name:
                return 0
            number = name_id(name)
            if len(name) > LONGEST and number in known:
                return number
            key = name if len(name) <= LONGEST else number
            weight = NAME + (weight_of_text(name) if key is name else 0)
            if self.size + weight > self._most:
                for one in self._known.values():
                    one.clear()
                self.size = 0
            known[key] = number
            self.size += weight
            self.fresh.append((kind, number, name))
        return number


class Columns:
    """Makes rows. broker: its number. account: user -> account. rows: how many were made in this life."""

    def __init__(self, broker: int, topics: Topics, account: Callable[[str], str], names: int = REMEMBERED) -> None:
        """names: bytes of names that may be remembered."""
        self.broker = broker
        self.epoch = 0
        self.rows = 0
        self.names = Names(names)
        self._topics = topics
        self.account = account
        self._made: list[tuple[Any, ...]] = []
        self._notes = Notes(broker, topics, self.names, account)
        self._queues = QueueRows(broker, topics, self.names, self._timed)

    def batch(self, noted: list[Note | Passed | Queued | Fact], offset: float) -> Any:
        """The rows of what was noted, as a table. offset: from the loop's clock to the wall clock, in seconds."""
        import pyarrow as pa

        self._shift = int(offset * 1_000_000)
        notes = self._notes
        for one in noted:
            if isinstance(one, Note):
                self.rows += notes.add(one, self.rows + 1)
            elif isinstance(one, Passed):
                self._passed(one)
            elif isinstance(one, Queued):
                self._queues.add(one)
            else:
                self._fact(one)
        tables = [table for table in (self._of_notes(), self._of_rows()) if table is not None]
        if len(tables) < 2:
            return tables[0] if tables else arrow_schema().empty_table()
        return pa.concat_tables(tables).sort_by("event").combine_chunks()

    def _of_notes(self) -> Any:
        import pyarrow as pa

        columns = self._notes.columns(self._shift)
        if columns is None:
            return None
        count = len(columns["event"])
        columns |= {"broker": pa.repeat(self.broker, count), "epoch": pa.repeat(self.epoch, count), "session": pa.repeat(0, count)}
        made = []
        for field in arrow_schema():
            column = columns.get(field.name)
            if column is None:
                made.append(pa.nulls(count, field.type))
            else:
                made.append(column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type))
        return pa.table(made, schema=arrow_schema())

    def _of_rows(self) -> Any:
        import pyarrow as pa

        made, self._made = self._made, []
        if not made:
            return None
        schema = arrow_schema()
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
        if callable(given.get("detail")):
            given["detail"] = given["detail"]()
        if isinstance(given.get("detail"), dict):
            given["detail"] = json.dumps(given["detail"], sort_keys=True, default=str)
        self._row(fact.kind, fact.now, tuple([given.get(name, default) for name, _, default in EVENTS[6:]]))
