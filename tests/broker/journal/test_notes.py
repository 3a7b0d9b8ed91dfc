"""Notes as columns: the same rows as a plain reference makes, note by note and message by message."""

from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.journal.kinds import NOBODY, Kind, MessageId, hop_id, name_id
from mqmesh.broker.journal.mark import Mark, Source, Span
from mqmesh.broker.journal.schema import EVENTS
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.broker.journal.topics import Topics, sampled
from mqmesh.broker.journal.writing.columns import Columns, Fact
from mqmesh.broker.journal.writing.notes import Note

BROKER, EPOCH = 3, 17
RULES = (TopicRule("full/#", "full"), TopicRule("some/#", "sampled", 0.5), TopicRule("#", "counted", 0.0))
TOPICS = [b"full/a", b"full/b", b"some/c", b"few/d"]
names = st.sampled_from(["", "ann", "bob"])


@st.composite
def sources(draw: st.DrawFn) -> tuple[Source, int]:
    """A source, and how many messages it has."""
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    count = sum(lengths)
    topic: Any = draw(st.one_of(st.sampled_from(TOPICS), st.lists(st.sampled_from(TOPICS), min_size=count, max_size=count)))
    size: Any = draw(st.one_of(st.integers(0, 1000), st.lists(st.integers(0, 1000), min_size=count, max_size=count)))
    source = Source(topic, size, draw(st.integers(0, 2)))
    source.client, source.user = draw(names), draw(names)
    source.published = draw(st.integers(1, 2**50))
    source.version, source.protocol, source.sender = draw(st.sampled_from([4, 5])), draw(st.integers(0, 4)), draw(st.integers(1, 5))
    start = 0
    for length in lengths:
        first, stream = draw(st.integers(1, 2**40)), draw(st.integers(0, 2))
        source.spans.append(
            Span(start, start + length, draw(st.integers(1, 5)), draw(st.integers(1, 99)), stream, first, draw(st.integers(0, 4)))
        )
        start += length
    return source, count


@st.composite
def notes(draw: st.DrawFn) -> list[Note | Fact]:
    """Notes about a few sources, with something else now and then."""
    known = draw(st.lists(sources(), min_size=1, max_size=3))
    made: list[Note | Fact] = []
    for _ in range(draw(st.integers(1, 6))):
        now = draw(st.floats(0, 1e6))
        if draw(st.integers(0, 4)) == 0:
            made.append(Fact(Kind.CONNECTED, now, {"client": "ann"}))
            continue
        source, count = draw(st.sampled_from(known))
        begin = draw(st.integers(0, count))
        mark = Mark(source, range(count)).part(begin, draw(st.integers(begin, count)))
        if draw(st.booleans()):
            mark = mark.chosen(draw(st.lists(st.integers(0, len(mark.indexes) - 1), unique=True).map(sorted)) if mark.indexes else [])
        kind = draw(st.sampled_from([Kind.PUBLISHED, Kind.RECEIVED, Kind.DELIVERED, Kind.DROPPED]))
        numbers = draw(st.integers(NOBODY, 5)), draw(st.integers(NOBODY, 5)), draw(st.integers(0, 9)), draw(st.integers(0, 0x2FF))
        made.append(
            Note(kind, now, mark, draw(names), draw(names), draw(names), *numbers, draw(names), draw(st.sampled_from([None, "{}"])))
        )
    return made


def account(user: str) -> str:
    return f"account of {user}"


def expected(noted: list[Note | Fact]) -> list[dict[str, Any]]:
    """Rows of notes, each for as many messages as belong together."""
    rules = Topics(JournalSettings("", topics=RULES))
    rows: list[dict[str, Any]] = []
    for note in noted:
        if isinstance(note, Fact):
            rows.append({"kind": int(note.kind), "client": name_id("ann")})
            continue
        source = note.mark.source
        messages = []
        for index in note.mark.indexes:
            span = next(one for one in source.spans if one.start <= index < one.stop)
            message = span.origin, span.epoch, span.stream, span.first + index - span.start
            if sampled(rules.rule(source.topic(index)), *message):
                messages.append((index, span, source.topic(index), message))
        runs = groupby(enumerate(messages), lambda one: (one[1][0] - one[0], id(one[1][1]), one[1][2]))
        rows += [_row(note, [message for _, message in run]) for _, run in runs]
    return rows


def _row(note: Note, messages: list[Any]) -> dict[str, Any]:
    source, (_, span, topic, first) = note.mark.source, messages[0]
    total = sum(source.size(index) for index, *_ in messages)
    user = note.user or ("" if note.client else source.user)
    comes = note.kind == Kind.RECEIVED and note.sender not in (NOBODY, BROKER)
    return {
        "kind": int(note.kind),
        "mono": int(note.now * 1_000_000),
        "time": int(note.now * 1_000_000) + 5_000_000,
        "broker": BROKER,
        "epoch": EPOCH,
        "count": len(messages),
        **dict(zip(("origin", "origin_epoch", "stream", "sequence"), first, strict=True)),
        "published": source.published,
        "size": total // len(messages),
        "bytes": total,
        "account": name_id(account(user)) if user else 0,
        "topic": name_id(topic),
        "client": name_id(note.client or source.client),
        "recipient": name_id(note.recipient),
        "from_broker": note.sender,
        "to_broker": note.to,
        "hop": hop_id(MessageId(*first), note.sender, BROKER) if comes else 0,
        "qos": note.out >> 8 if note.kind == Kind.DELIVERED else source.qos,
        "version_in": source.version,
        "version_out": note.out & 15,
        "protocol_in": source.protocol,
        "protocol_out": note.out >> 4 & 15,
        "reason": name_id(note.reason),
        "value": span.brokers if note.kind == Kind.PUBLISHED else note.value,
        "detail": note.detail,
    }


@given(notes())
def test_notes_become_the_rows_of_a_plain_reference(noted: list[Note | Fact]) -> None:
    columns = Columns(BROKER, Topics(JournalSettings("", topics=RULES)), account)
    columns.epoch = EPOCH
    table = columns.batch(noted, 5.0)  # type: ignore[arg-type]
    rows = expected(noted)
    assert [{name: row[name] for name in want} for row, want in zip(table.to_pylist(), rows, strict=True)] == rows
    assert table.column("event").to_pylist() == list(range(1, len(rows) + 1))
    assert table.column_names == [name for name, *_ in EVENTS]
    assert columns.rows == len(rows)
    ids = {number for kind, number, name in columns.names.fresh if kind == "topic"}
    assert {row["topic"] for row in rows if "topic" in row} <= ids
