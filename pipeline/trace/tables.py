"""Messages in the pipeline's tables, without Spark: for what live brokers and journals do not have any more.

The tables are large and not sorted by message. So one column is read first, one row group after the other in several threads, then the
key columns of the row groups that may hold what is meant, and all columns only of those that do; of `hops` only the dates on which the
messages were published. It knows the columns of `messages`, `hops` and `queue_messages` (`pipeline/correlation/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from typing import Any

from ...broker.journal.kinds import NONE, Kind, MessageId, Stream, name_id
from ...broker.journal.layout import date_in, date_of
from ...broker.journal.search import Query
from ...mqtt.topics import matches
from ..errors import PipelineError
from ..tables.tables import Tables, damage_named
from .story import COMPLETE, NO_END, NOT_RECEIVED, UNKNOWN, Step, Story

TABLE, HOPS, QUEUED, CUSTOM = "messages", "hops", "queue_messages", "custom"
STATUS = {1: COMPLETE, 2: NOT_RECEIVED, 3: NO_END, 4: UNKNOWN}
WORKERS = 4
_KEY = ("origin", "origin_epoch", "stream", "sequence")
_WHY = {
    2: "{arrivals} of {wanted} brokers have received it",
    3: "{ends} of {targets} recipients have an end",
    4: "its publication is not in the journal",
}
_WHY_QUEUED = {3: "{through} of {groups} groups of subscribers are through", 4: _WHY[4]}


def find(root: str, query: Query, status: str | None = None, names: Mapping[int, str] | None = None) -> list[Story]:
    """The messages that a query means, the newest first. names: what an id stands for. Raises PipelineError."""
    tables = Tables(root)
    with damage_named(root):
        if query.message is not None and query.message.stream == Stream.QUEUE:
            return [one for one in queued(tables, query.message, (names or {}).get) if status in (None, one.status)]
        return Searched(tables, names or {}).find(query, status)


def queued(tables: Tables, message: MessageId, names: Callable[[int], str | None]) -> list[Story]:
    """A message in a queue, as the table of these has it."""
    if tables.version(QUEUED) is None:
        return []
    rows = _rows(_hits(groups(tables, QUEUED), _among([message]), _among_column([message])), {tuple(message): 0}, None)
    return [_queued(message, row, names) for row in rows]


def _queued(message: MessageId, row: Mapping[str, Any], names: Callable[[int], str | None]) -> Story:
    def name(column: str) -> str | None:
        number = row[column] or NONE
        return (names(number) or str(number)) if number != NONE else None

    made = Story(
        str(message), name("topic"), publisher=name("sender"), published=row["published"], size=row["size"], qos=1, source="tables"
    )
    made.status = STATUS.get(row["status"], UNKNOWN)
    made.why = _WHY_QUEUED[row["status"]].format(**row) if row["status"] in _WHY_QUEUED else None
    outcome = "done" if row["dones"] else "unusable" if row["unusable"] else "expired"
    steps = (("put", "published", "sender"), ("get", "got", None), (outcome, "finished", "receiver" if row["dones"] else None))
    for what, when, who in steps:
        if row[when]:
            made.steps.append(Step(what, row[when], message.origin, name(who) if who is not None else None))
    return made


class Searched:
    """The message table of one folder. It may be kept, and asked again: the table is as it was when this was made."""

    def __init__(self, tables: Tables, names: Mapping[int, str]) -> None:
        """Raises PipelineError when there is no such table."""
        version = tables.version(TABLE)
        if version is None:
            raise PipelineError(f"{tables.place.url(TABLE)}: there is no such table: run mqmesh pipeline run messages")
        self._brokers: list[int] = list(version.notes.get("brokers", []))
        self._names = names
        self._columns = [field["name"] for field in version.schema["fields"]]
        self._groups = groups(tables, TABLE)
        self._tables = tables
        self._steps: dict[str, list[Any]] | None = None  # date -> row groups

    def find(self, query: Query, status: str | None = None) -> list[Story]:
        """See `find`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        condition = self._condition(query, status)
        if condition is None or not self._groups:
            return []
        valued = self._valued(query.value) if query.value is not None else None
        if valued is not None:
            condition = condition & _among(valued) if valued else pc.scalar(False)
        hits = _hits(self._groups, condition, _among_column([query.message]) if query.message is not None else None)
        if not hits:
            return []
        keys = pa.concat_tables([table for _, table in hits]).sort_by([("published", "descending"), ("sequence", "descending")])
        if valued is not None:
            keys = pa.Table.from_pylist([row for row in keys.to_pylist() if tuple(row.values())[:4] in valued], keys.schema)
        wanted = {tuple(row.values())[:4]: row["published"] for row in keys.slice(0, query.limit).to_pylist()}
        found = _rows(hits, wanted, [name for name in self._columns if name != "date"])
        steps = self._hops(wanted)
        stories = [story(row, self._names.get, self._brokers, steps.get(tuple(row[name] for name in _KEY), [])) for row in found]
        return sorted(stories, key=lambda one: (one.published, one.message), reverse=True)

    def _valued(self, value: str) -> set[tuple[Any, ...]]:
        """The keys of messages with a value. value: NAME=VALUE."""
        import pyarrow.compute as pc

        if self._tables.version(CUSTOM) is None:
            raise PipelineError("--value: the tables do not say it: run mqmesh pipeline run custom, or look in the journal")
        name, _, text = value.partition("=")
        table = self._tables.dataset(CUSTOM).to_table(columns=list(_KEY), filter=(pc.field("name") == name) & (pc.field("value") == text))
        return {tuple(row.values()) for row in table.to_pylist()}

    def _hops(self, wanted: Mapping[tuple[Any, ...], int]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
        """The steps of messages, where there is a table of them. wanted: keys, with the times of publication."""
        if self._steps is None:
            self._steps = {}
            if self._tables.version(HOPS) is not None:
                for group in groups(self._tables, HOPS):
                    self._steps.setdefault(date_in(group.path) or "", []).append(group)
        dates = {date_of(published) for published in wanted.values()} | {""}
        chosen = [group for date in dates for group in self._steps.get(date, [])]
        made: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in _rows(_hits(chosen, _among(wanted), _among_column(wanted)), wanted, None):
            made.setdefault(tuple(row[name] for name in _KEY), []).append(row)
        return made

    def _condition(self, query: Query, status: str | None) -> Any:
        """For pyarrow; None: nothing can be meant."""
        import pyarrow.compute as pc

        parts = []
        if query.message is not None:
            parts = [pc.field(name) == value for name, value in zip(_KEY, query.message, strict=True)]
        for name in ("session", "call"):
            if getattr(query, name) is not None:
                parts.append(pc.field(name) == getattr(query, name))
        if query.client is not None:
            parts.append((pc.field("sender") == name_id(query.client)) | (pc.field("receiver") == name_id(query.client)))
        if query.account is not None:
            parts.append(pc.field("account") == name_id(query.account))
        if query.recipient is not None:
            if "recipient" not in self._columns:
                raise PipelineError("--recipient: the tables do not say it: look in the journal")
            parts.append(pc.field("recipient") == name_id(query.recipient))
        if query.topic is not None:
            topics = [name_id(query.topic)]
            if "+" in query.topic or "#" in query.topic:
                topics = [number for number, name in self._names.items() if matches(query.topic, name)]
            if not topics:
                return None
            parts.append(pc.field("topic").isin(topics))
        if query.since is not None:
            parts.append(pc.field("published") >= query.since)
        if query.until is not None:
            parts.append(pc.field("published") < query.until)
        if status is not None:
            parts.append(pc.field("status") == next((number for number, text in STATUS.items() if text == status), 0))
        return reduce(and_, parts) if parts else pc.scalar(True)


def groups(tables: Tables, table: str) -> list[Any]:
    """The row groups of a table, as pyarrow's fragments."""
    get = getattr(tables.dataset(table), "get_fragments", None)
    return [group for fragment in get() for group in fragment.split_by_row_group()] if get is not None else []


def _hits(groups: list[Any], condition: Any, narrow: Any = None) -> list[tuple[Any, Any]]:
    """The row groups that hold what is meant, with the keys of it. narrow: a condition that most row groups do not meet, about one column:
    of those no more than this column is read.
    """

    def look(group: Any) -> Any:
        if narrow is not None and not group.count_rows(filter=narrow):
            return None
        return group.to_table(columns=[*_KEY, "published"], filter=condition)

    with ThreadPoolExecutor(WORKERS) as pool:
        tables = list(pool.map(look, groups))
    return [(group, table) for group, table in zip(groups, tables, strict=True) if table is not None and table.num_rows]


def _rows(hits: list[tuple[Any, Any]], wanted: Mapping[tuple[Any, ...], int], columns: list[str] | None) -> list[dict[str, Any]]:
    """All columns of the wanted rows. columns: only these; None: all that stand in the file."""
    found = []
    narrow = _among(wanted)
    for group, table in hits:
        if table.filter(narrow).num_rows:
            rows = group.to_table(columns=columns or list(group.physical_schema.names), filter=narrow).to_pylist()
            found += [row for row in rows if tuple(row[name] for name in _KEY) in wanted]
    return found


def _among(keys: Iterable[tuple[Any, ...]]) -> Any:
    """The rows that may have one of these keys."""
    return reduce(and_, [_among_column(keys, place) for place in range(len(_KEY))])


def _among_column(keys: Iterable[tuple[Any, ...]], place: int = 3) -> Any:
    """By one column of the key; the sequence is the one that leaves the fewest."""
    import pyarrow.compute as pc

    return pc.field(_KEY[place]).isin(sorted({key[place] for key in keys}))


def story(row: Mapping[str, Any], names: Callable[[int], str | None], brokers: list[int], hops: Iterable[Mapping[str, Any]] = ()) -> Story:
    """A row of the message table as a story. brokers: the place of a broker is its bit in `reached`. hops: rows of the table of steps."""

    def name(column: str) -> str | None:
        number = row.get(column) or NONE
        return (names(number) or str(number)) if number != NONE else None

    message = MessageId(*(row[column] for column in _KEY))
    made = Story(str(message), source="tables")
    made.topic, made.account, made.publisher = name("topic"), name("account"), name("sender")
    made.published, made.size, made.qos = row["published"] or 0, row["size"] or 0, row.get("qos_in") or 0
    made.call, made.session = row.get("call") or 0, row.get("session") or 0
    made.status = STATUS.get(row["status"], UNKNOWN)
    made.why = _WHY[row["status"]].format(**row) if row["status"] in _WHY else None
    made.steps.append(Step("published", made.published, message.origin, made.publisher, qos=made.qos, value=row.get("wanted") or 0))
    steps = [step for hop in hops for step in _steps(hop, names)]
    if steps:
        made.steps += sorted(steps, key=lambda step: (step.time, _PLACES.get(step.name, 3)))
        return made
    finished = row.get("finished") or row.get("last") or made.published
    reached = [broker for place, broker in enumerate(brokers) if (row.get(f"reached{place // 62}") or 0) >> place % 62 & 1]
    for broker in reached:
        made.steps.append(Step("reached", finished, broker, reason=None))
    if row.get("finished"):
        last = reached[0] if len(reached) == 1 else message.origin
        made.steps.append(Step("finished", finished, last, name("receiver"), reason=name("reason")))
    return made


_PLACES = {"forwarded": 0, "received": 1, "delivered": 2}


def _steps(hop: Mapping[str, Any], names: Callable[[int], str | None]) -> list[Step]:
    """The events that a row of `hops` was made from."""
    made, sender, receiver = [], hop["sender"], hop["receiver"]
    reason = (names(hop["reason"]) or str(hop["reason"])) if hop.get("reason") else None
    if hop["client"] is None:
        if hop["sent"] is not None:
            made.append(Step("forwarded", hop["sent"], sender, to_broker=receiver))
        if hop["arrived"] is not None:
            made.append(Step("received", hop["arrived"], receiver, from_broker=sender))
        return made
    client = names(hop["client"]) or (str(hop["client"]) if hop["client"] else None)
    if hop["sent"] is not None:
        made.append(Step("delivered", hop["sent"], sender, client, qos=hop["qos"] or 0))
    if hop["end"] is not None and hop["end"] != Kind.DELIVERED:
        made.append(
            Step(Kind(hop["end"]).name.lower().replace("_", " "), hop["arrived"], sender, client, reason=reason, qos=hop["qos"] or 0)
        )
    return made
