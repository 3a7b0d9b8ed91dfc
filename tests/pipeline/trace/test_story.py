"""Messages found in a journal, and their timelines."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.search import Query, Search, message_of
from mqmesh.pipeline.trace.drawing import hexadecimal, number_of, svg, text
from mqmesh.pipeline.trace.story import COMPLETE, NO_END, NOT_RECEIVED, REFUSED, UNKNOWN, Story, stories
from support.journals import SECOND, START, JournalMaker, message, table_of

STEPS = ["published", "forwarded", "forwarded", "received", "delivered", "acknowledged"]


@pytest.fixture
def maker(tmp_path: Path) -> JournalMaker:
    return JournalMaker(tmp_path / "journal")


def found(maker: JournalMaker, **query: Any) -> list[Story]:
    journal = Journal(maker.root)
    return stories(Search(journal).find(Query(**query)).events.to_pylist(), journal.names().get)


def numbers(made: list[Story]) -> list[int]:
    return [int(one.message.split(".")[3]) for one in made]


def test_the_whole_way_of_a_message(maker: JournalMaker) -> None:
    maker.write([*maker.way(1), *maker.way(2, at=START + SECOND)])
    (one,) = found(maker, message=message(2))
    assert (one.message, one.topic, one.account, one.publisher) == (str(message(2)), "shop/orders", "anna", "publisher")
    assert [step.name for step in one.steps] == STEPS
    assert (one.status, one.why, one.path) == (COMPLETE, None, [1, 2, 3])
    assert (one.steps[1].to_broker, one.steps[3].from_broker, one.steps[4].client) == (2, 2, "reader")
    assert one.ended - one.published == 5000


def test_the_newest_messages_of_a_condition(maker: JournalMaker) -> None:
    maker.write([row for number in range(1, 9) for row in maker.way(number, at=START + number * SECOND, call=number % 2, session=7)])
    maker.write(maker.way(20, topic=maker.name("shop/returns"), at=START + 20 * SECOND, recipient=maker.name("orders")))
    assert numbers(found(maker, client="reader", limit=3)) == [20, 8, 7]
    assert numbers(found(maker, call=1)) == [7, 5, 3, 1]
    assert numbers(found(maker, session=7, limit=2)) == [8, 7]
    assert numbers(found(maker, topic="shop/returns")) == [20]
    assert numbers(found(maker, topic="shop/+", limit=2)) == [20, 8]
    assert numbers(found(maker, recipient="orders")) == [20]
    assert numbers(found(maker, since=START + 3 * SECOND, until=START + 5 * SECOND)) == [4, 3]
    assert not found(maker, topic="nobody/#")
    assert not found(maker, account="bert")
    assert len(found(maker, account="anna")) == 9


def test_a_message_within_a_run(maker: JournalMaker) -> None:
    maker.write([{**row, "count": 100, "bytes": 1000} for row in maker.way(50)])
    (one,) = found(maker, message=message(149))
    assert [step.name for step in one.steps] == STEPS
    assert not found(maker, message=message(150))
    assert numbers(found(maker, client="publisher", limit=3)) == [149, 148, 147]


@pytest.mark.parametrize(("left_out", "status", "why"), [
    (slice(3, 6), NOT_RECEIVED, "0 of 1 brokers have received it"),
    (slice(5, 6), NO_END, "0 of 1 recipients have an end"),
    (slice(0, 1), UNKNOWN, "its publication is not in the journal"),
])  # fmt: skip
def test_why_a_message_is_not_complete(maker: JournalMaker, left_out: slice, status: str, why: str) -> None:
    rows = maker.way(1)
    del rows[left_out]
    maker.write(rows)
    (one,) = found(maker, message=message(1))
    assert (one.status, one.why) == (status, why)


def test_a_qos_0_delivery_is_an_end_and_so_is_a_drop(maker: JournalMaker) -> None:
    maker.write([{**row, "qos": 0} for row in maker.way(1)[:5]])
    rows = maker.way(2)
    maker.write([*rows[:4], {**rows[4], "kind": int(Kind.DROPPED), "reason": maker.name("queue full")}])
    one, other = (found(maker, message=message(number))[0] for number in (1, 2))
    assert (one.status, other.status) == (COMPLETE, COMPLETE)
    assert other.steps[4].reason == "queue full"


def test_a_refused_message(maker: JournalMaker) -> None:
    maker.write([{**maker.way(1)[0], "kind": int(Kind.REFUSED), "reason": maker.name("not authorised")}])
    assert found(maker, message=message(1))[0].status == REFUSED


def test_a_clock_that_is_behind(maker: JournalMaker) -> None:
    rows = [{**row, "time": row["time"] - (10 * SECOND if row["broker"] == 2 else 0)} for row in maker.way(1)]
    maker.write(rows)
    (one,) = found(maker, message=message(1))
    assert [step.name for step in one.steps] == STEPS
    assert {step.broker for step in one.steps if step.moved} == {2}
    assert "clock is behind" in text(one)


def test_events_that_two_sources_have_are_shown_once(maker: JournalMaker) -> None:
    rows = table_of(maker.number(maker.way(1))).to_pylist()
    (one,) = stories([*rows, *rows], lambda number: None)
    assert len(one.steps) == 6


def test_a_damaged_segment_is_named_and_left_out(maker: JournalMaker) -> None:
    maker.write(maker.way(1))
    segment = next(one for one in maker.write(maker.way(2)) if one.broker == 3)
    (Path(maker.root) / segment.path).write_bytes(b"PAR1 no")
    found_ = Search(Journal(maker.root)).find(Query(client="publisher"))
    assert [path for path, _ in found_.skipped] == [segment.path]
    assert {one.sequence for one in found_.messages} == {1, 2}


def test_text_json_and_picture(maker: JournalMaker) -> None:
    maker.write(maker.way(1, call=-1, trace="a" * 32))
    (one,) = found(maker, message=message(1))
    shown = text(one, {1: "porto", 2: "lyon", 3: "turin"}.get)  # type: ignore[arg-type]
    assert "1.000 ms" in shown
    assert "delivered" in shown
    assert "call ffffffffffffffff" in shown
    assert "turin" in shown
    assert json.loads(json.dumps(one.values()))["path"] == [1, 2, 3]
    picture = ET.fromstring(svg(one))
    assert len(picture.findall("{http://www.w3.org/2000/svg}circle")) == 6


def test_conditions_are_checked() -> None:
    assert message_of("7:1763:42") == message_of("7.1763.1.42")
    assert number_of(hexadecimal(-5)) == -5
    assert number_of("-5") == -5
    assert Query.of(Query(message=message(1), limit=3).values()) == Query(message=message(1), limit=3)
    for values, says in (
        ({"colour": "red"}, "is no condition"),
        ({"limit": 0}, "1 to 1000"),
        ({"call": "x"}, "whole number"),
        ({"message": "x"}, "no message id"),
    ):
        with pytest.raises(ValueError, match=says):
            Query.of(values)
