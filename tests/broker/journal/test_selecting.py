"""Values that a topic's rule selects from payloads: kept in the event of the publication, and asked by."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError, Section
from mqmesh.broker.journal import service
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.search import Query, Search
from mqmesh.broker.journal.selecting import LARGEST, LONGEST, pattern_of, selected, steps_of
from mqmesh.broker.journal.settings import JournalSettings, TopicRule
from mqmesh.mqtt.packets import Publish
from support.broker_site import JumpingLoop, Site

ORDER = (("order", steps_of("$.order.id")), ("article", steps_of("$.lines[0].article")))


def settings(folder: Path, mode: str = "full", rate: float = 1.0) -> JournalSettings:
    rules = TopicRule("orders/#", mode, rate, ORDER), TopicRule("#", "full")
    return JournalSettings(str(folder), topics=rules)


def order(number: object, article: str | None = None) -> bytes:
    body: dict[str, Any] = {"order": {"id": number}}
    return json.dumps(body | ({"lines": [{"article": article}]} if article else {})).encode()


@pytest.mark.parametrize(("payload", "found"), [
    (order(4711), {"order": 4711}),
    (order("A-1", "bolt"), {"order": "A-1", "article": "bolt"}),
    (order(True), {"order": True}),
    (order(0.5), {"order": 0.5}),
    (order("x" * 1000), {"order": "x" * LONGEST}),
    (order("\ud800"), {"order": "\ud800"}),
    (order([1]), None),
    (order(None), None),
    (b'{"order": {"id": NaN}}', None),
    (b'{"order": {"id": 1e999}}', None),
    (b'{"order": 1, "lines": {"0": 1}}', None),
    (b'{"lines": []}', None),
    (b"[" * 100_000, None),
    (b"\xff\x00", None),
    (b"", None),
    (b'{"order": {"id": 1}}' + b" " * LARGEST, None),
])  # fmt: skip
def test_values_of_payloads(payload: bytes, found: dict[str, Any] | None) -> None:
    text = selected(ORDER, payload)
    assert text is None if found is None else text is not None and text.isascii() and json.loads(text) == found


@pytest.mark.parametrize("path", ["", "$", "order", "$.", "$.a b", "$[-1]", "$.a[x]", "$..a", "$.a[*]"])
def test_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="JSON path"):
        steps_of(path)


@pytest.mark.parametrize(("rule", "text"), [
    ({"select": {"order": "order.id"}}, r"select.order.*JSON path"),
    ({"select": {}}, "give 1 to 16 values"),
    ({"select": "$.order"}, "make it a table"),
    ({"select": {"order": "$.id"}, "mode": "counted"}, "writes none"),
])  # fmt: skip
def test_mistakes_are_named(rule: dict[str, Any], text: str) -> None:
    table = {"folder": "journal", "topics": [{"filter": "#", "mode": "full", **rule}]}
    with pytest.raises(ConfigError, match=text):
        JournalSettings.of(Section(Path("broker.toml"), table, "journal"), Path("/"), None)


def test_a_rule_is_read() -> None:
    rule = {"filter": "orders/#", "mode": "full", "select": {"order": "$.order.id", "article": "$.lines[0].article"}}
    read = JournalSettings.of(Section(Path("broker.toml"), {"folder": "journal", "topics": [rule]}, "journal"), Path("/"), None)
    assert read.topics == (TopicRule("orders/#", "full", 1.0, ORDER),)


def journal_of(folder: Path, *batches: list[Publish], rules: JournalSettings | None = None) -> list[dict[str, Any]]:
    """What a broker has written of publications that came together."""

    async def scene() -> None:
        async with Site(journal=rules or settings(folder)) as site:
            subscriber, publisher = await site.client("s"), await site.client("p")
            await subscriber.subscribe("#", qos=1)
            for batch in batches:
                publisher.send(*batch)
                await subscriber.messages(len(batch))

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(scene())
    rows = [row for table in Journal(str(folder)).tables() for row in table.to_pylist()]
    return sorted([row for row in rows if row["kind"] == Kind.PUBLISHED], key=lambda row: row["event"])


def publish(number: int, payload: bytes, topic: str = "orders/new") -> Publish:
    return Publish(topic, payload, 1, packet_id=number)


def test_messages_with_the_same_values_are_one_event(tmp_path: Path) -> None:
    ids = [1, 1, 2, 2, 2, 3]
    rows = journal_of(tmp_path, [publish(place, order(number)) for place, number in enumerate(ids, 1)])
    found = [json.loads(row["detail"])["order"] for row in rows for _ in range(row["count"])]
    assert found == ids
    assert [sequence for row in rows for sequence in range(row["sequence"], row["sequence"] + row["count"])] == [1, 2, 3, 4, 5, 6]


def test_different_topics_that_come_together(tmp_path: Path) -> None:
    batch = [publish(1, order(7)), publish(2, order(8), "other"), publish(3, b"no JSON"), publish(4, order(9, "nut"), "orders/old")]
    rows = journal_of(tmp_path, batch, batch)
    details = [json.loads(row["detail"]) if row["detail"] else None for row in rows]
    assert details == [{"order": 7}, None, None, {"article": "nut", "order": 9}] * 2


def test_sampled_messages_have_their_values(tmp_path: Path) -> None:
    batches = [[publish(place, order(64 * turn + place)) for place in range(1, 65)] for turn in range(8)]
    rows = journal_of(tmp_path, *batches, rules=settings(tmp_path, "sampled", 0.5))
    assert 0 < len(rows) < 8 * 64
    assert all(json.loads(row["detail"])["order"] == row["sequence"] for row in rows)


def test_payloads_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PART", 2**15)  # of 1 GiB
    (row,) = journal_of(tmp_path, [publish(1, order(4711) + b" " * 30_000)])
    assert (row["count"], row["detail"]) == (1, None)


@pytest.mark.parametrize(("value", "messages"), [
    ("order=4711", [1, 2]),
    ("order=471", []),
    ("order=A-1", [3]),
    ("article=bolt", [3]),
    ("article=4711", []),
    ('order=x", "article": "bolt', []),
    ("order=é", [4]),
])  # fmt: skip
def test_messages_are_found_by_a_value(tmp_path: Path, value: str, messages: list[int]) -> None:
    payloads = [order(4711), order("4711"), order("A-1", "bolt"), order("é"), order('"order": 471,')]
    journal_of(tmp_path, [publish(place, payload) for place, payload in enumerate(payloads, 1)])
    found = Search(Journal(str(tmp_path))).find(Query.of({"value": value}))
    assert [message.sequence for message in found.messages] == messages
    delivered = [row["sequence"] for row in found.events.to_pylist() if row["kind"] == Kind.DELIVERED]
    assert sorted(delivered) == messages


@pytest.mark.parametrize("value", ["", "order", "=4711"])
def test_no_value(value: str) -> None:
    with pytest.raises(ValueError, match="NAME=VALUE"):
        pattern_of(value)
