"""Following a journal, and its events as OpenTelemetry spans that a collector receives and reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mqmesh.broker.journal.export import Export
from mqmesh.broker.journal.following import Follower, position_of, position_text
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.otlp import Collector, ExportError
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.spans import Spans
from mqmesh.cli.main import app
from support.collector import Receiver, receiving
from support.journals import JournalMaker, message, table_of
from typer.testing import CliRunner

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def maker(tmp_path: Any) -> JournalMaker:
    return JournalMaker(tmp_path / "journal")


def test_a_follower_reads_each_event_once(maker: JournalMaker) -> None:
    maker.write(maker.way(1))
    follower = Follower(Journal(maker.root))
    assert sum(table.num_rows for table, _ in follower.read()) == 6
    assert not list(follower.read())
    maker.write(maker.way(2))
    maker.restart(1)
    maker.write(maker.way(3))
    again = Follower(Journal(maker.root), position_of(json.loads(json.dumps(position_text(follower.position)))))
    assert sorted(row for table, _ in again.read() for row in table.column("sequence").to_pylist()) == [2] * 6 + [3] * 6
    assert position_text(again.position) == {"1:1": 4, "1:2": 2, "2:1": 3, "3:1": 9}


def test_a_table_whose_use_failed_comes_again(maker: JournalMaker) -> None:
    maker.write(maker.way(1))
    follower = Follower(Journal(maker.root))
    first, _ = next(follower.read())
    assert next(follower.read())[0].equals(first)


def test_compaction_changes_no_position(maker: JournalMaker) -> None:
    one, two = (maker.number(maker.way(sequence, via=1, to=1)) for sequence in (1, 2))
    old = maker.close(table_of(one))
    follower = Follower(Journal(maker.root))
    list(follower.read())
    maker.close(table_of([*one, *two]), replaces=[old.name])
    assert [table.column("sequence").to_pylist() for table, _ in follower.read()] == [[2] * 6]


def test_a_position_is_checked() -> None:
    with pytest.raises(ValueError, match="is no position of a journal"):
        position_of({"7": 3})


def test_the_spans_of_a_message_are_one_tree(maker: JournalMaker) -> None:
    rows = maker.number(maker.way(1))
    names = {maker.name("shop/orders"): "shop/orders", maker.name("reader"): "reader"}
    spans = [span for _, span in Spans(names.get).of(table_of(rows))]
    assert [span["name"] for span in spans] == [
        *("publish shop/orders", "forward shop/orders", "forward shop/orders"),
        *("receive shop/orders", "deliver shop/orders", "done shop/orders"),
    ]
    assert len({span["traceId"] for span in spans}) == 1
    assert [span.get("parentSpanId") for span in spans] == [None, *[span["spanId"] for span in spans[:-1]]]
    assert len({span["spanId"] for span in spans}) == 6
    assert [int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) for span in spans] == [0, *[1_000_000] * 5]
    values = {one["key"]: one["value"] for one in spans[4]["attributes"]}
    assert values["messaging.operation.type"] == {"stringValue": "process"}
    assert values["messaging.destination.name"] == {"stringValue": "shop/orders"}
    assert values["messaging.client.id"] == {"stringValue": "reader"}
    assert values["messaging.message.id"] == {"stringValue": str(message(1))}


def test_a_trace_is_the_callers_or_of_the_call(maker: JournalMaker) -> None:
    spans = Spans(lambda number: None)
    traced = maker.way(1)
    traced[0]["trace"] = TRACE
    assert {span["traceId"] for _, span in spans.of(table_of(maker.number(traced)))} == {TRACE}
    request, response = (spans.of(table_of(maker.number(maker.way(sequence, call=-5)))) for sequence in (2, 3))
    assert len({span["traceId"] for _, span in [*request, *response]}) == 1


def test_a_failure_is_an_error(maker: JournalMaker) -> None:
    row = {**maker.way(1)[4], "kind": int(Kind.EXPIRED)}
    names = {maker.name("too late"): "too late"}
    span = Spans(names.get).of(table_of(maker.number([{**row, "reason": maker.name("too late")}])))[0][1]
    assert span["status"] == {"code": 2, "message": "too late"}


def test_an_event_of_several_messages_is_a_span_for_each(maker: JournalMaker) -> None:
    table = table_of(maker.number([{**maker.way(5)[0], "count": 3, "bytes": 30}]))
    found = [span for _, span in Spans(lambda number: None).of(table)]
    assert len({span["traceId"] for span in found}) == 3


def test_a_collector_gets_all_and_a_second_export_what_is_new(maker: JournalMaker, receiver: Receiver, tmp_path: Any) -> None:
    maker.write([*maker.way(1), *maker.way(2)])
    state = tmp_path / "state.json"
    collector = Collector(receiver.url, {"X-Key": "k"})
    assert Export(Journal(maker.root), collector, "1", state, {1: "porto"}.get).once() == 12
    assert len(receiver.spans) == 12
    assert receiver.headers[0]["X-Key"] == "k"
    assert {span["broker"] for span in receiver.spans} == {"1", "2", "3"}
    maker.write(maker.way(3))
    assert Export(Journal(maker.root), collector, "1", state).once() == 6
    assert {span["attributes"]["messaging.message.id"] for span in receiver.spans[12:]} == {str(message(3))}
    collector.close()


def test_a_busy_collector_is_tried_again(maker: JournalMaker, receiver: Receiver) -> None:
    maker.write(maker.way(1))
    receiver.answers = [503, 429]
    waited: list[float] = []
    collector = Collector(receiver.url, wait=waited.append)
    assert Export(Journal(maker.root), collector, "1").once() == 6
    assert len(receiver.spans) == 6
    assert len(waited) == 2
    collector.close()


def test_what_a_collector_refuses_ends_the_export(maker: JournalMaker, receiver: Receiver, tmp_path: Any) -> None:
    maker.write(maker.way(1))
    receiver.answers = [400]
    export = Export(Journal(maker.root), Collector(receiver.url), "1", tmp_path / "state")
    with pytest.raises(ExportError, match="answered 400"):
        export.once()
    assert export.once() == 6
    export.collector.close()


def test_an_address_that_is_none() -> None:
    with pytest.raises(ExportError, match="is no address of a collector"):
        Collector("localhost:4318")


def test_the_command(maker: JournalMaker, receiver: Receiver, tmp_path: Any) -> None:
    maker.write(maker.way(1))
    command = ["journal", "export", maker.root, "--otlp", receiver.url, "--state", str(tmp_path / "state"), "--json"]
    for sent in (6, 0):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == {"sent": sent, "rejected": 0}
    assert len(receiver.spans) == 6
    for wrong, status in ((["--otlp", "nowhere"], 2), (["--otlp", receiver.url, "--header", "x"], 2)):
        assert CliRunner().invoke(app, ["journal", "export", maker.root, *wrong]).exit_code == status
