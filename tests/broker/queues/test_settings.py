"""Tables `[queues.NAME]`: what is right is taken, what is wrong is told in one line."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import parse


def test_a_table_is_read() -> None:
    config = parse(
        {
            "data": "/tmp/porto",
            "queues": {
                "orders": {
                    "plan": "a | b, c",
                    "deliveries": 5,
                    "dead_letters": "dead",
                    "backoff": "500ms",
                    "retention": "7d",
                    "archive": "weekly",
                    "bytes": "1 GiB",
                    "loaded": "pool",
                    "high": 100,
                },
                "dead": {},
            },
        }
    )
    assert config.queues is not None
    assert config.queues.folder == Path("/tmp/porto/queues")
    rules = config.queues.rules["orders"]
    assert (str(rules.plan), rules.deliveries, rules.backoff, rules.retention, rules.bytes) == ("a | b, c", 5, 0.5, 604800, 2**30)
    assert (rules.archive, config.queues.archive_of("orders")) == ("weekly", Path("/tmp/porto/queue-archive"))
    assert rules.load is not None
    assert (str(rules.load.loaded), rules.load.high, rules.load.low) == ("pool", 100, 50)


@pytest.mark.parametrize(
    ("table", "key", "text"),
    [
        ({"orders": {"plan": "a,,b"}}, "queues.orders.plan", 'give "all", "pool", or groups'),
        ({"orders": {"deliverys": 3}}, "queues.orders.deliverys", 'did you mean "deliveries"'),
        ({"orders": {"dead_letters": "grave"}}, "queues.orders.dead_letters", "there is no queue 'grave'"),
        ({"orders": {"dead_letters": "orders"}}, "queues.orders.dead_letters", "does not take its own dead letters"),
        ({"a": {"dead_letters": "b"}, "b": {"dead_letters": "a"}}, "queues.a.dead_letters", "dead letters go round: a -> b -> a"),
        (
            {"x": {"dead_letters": "a"}, "a": {"dead_letters": "b"}, "b": {"dead_letters": "c"}, "c": {"dead_letters": "a"}},
            "queues.a.dead_letters",
            "a -> b -> c -> a",
        ),
        ({"orders": {"store": "mongodb://host"}}, "queues.orders.store", "give log, sqlite, lmdb, postgresql://"),
        (
            {"orders": {"store": "sqlite", "dead_letters": "dead"}, "dead": {}},
            "queues.orders.dead_letters",
            "queue 'dead' has another store",
        ),
        ({"orders": {"homes": ["mqmesh", "porto"]}}, "queues.orders.homes", "give store, as postgresql://"),
        ({"orders": {"homes": ["lyon"], "store": "postgresql://h/d"}}, "queues.orders.homes", "'mqmesh' is not among them"),
        (
            {"a": {"homes": ["mqmesh"], "store": "postgresql://h/d"}, "b": {"store": "postgresql://h/d"}},
            "queues.a.homes",
            "give this one another store",
        ),
        (
            {"a": {"homes": ["mqmesh"], "store": "postgresql://h/d", "topics": ["a/#"]}},
            "queues.a.homes",
            "bound to no topics",
        ),
        ({"orders": {"when_full": "dead-letter"}}, "queues.orders.when_full", "name a queue for them"),
        ({"orders": {"archive": "yearly"}}, "queues.orders.archive", "hourly"),
        ({"orders": {"archive_folder": "x"}}, "queues.orders.archive_folder", "say how often"),
        ({"orders": {"retention": "7 weeks"}}, "queues.orders.retention", "give seconds, or a text"),
        ({"or/ders": {}}, "queues.or/ders", "give the queue a name"),
        ({"orders": 3}, "queues.orders", "make it a table"),
        ({"orders": {"loaded": "pool"}}, "queues.orders.high", "give a whole number"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(table: dict[str, Any], key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"data": "/tmp/porto", "queues": table})
    line = str(caught.value)
    assert key in line
    assert text in line
    assert "\n" not in line


def test_queues_need_a_place() -> None:
    with pytest.raises(ConfigError, match="queues need a place on the disk"):
        parse({"queues": {"orders": {}}})


def test_reading_very_many_queues_takes_each_as_long_as_reading_few() -> None:
    """A running broker reads its file again, and nobody waits for what grows with the square: steps are counted, not time."""

    def steps(queues: int) -> int:
        counted: Counter[str] = Counter()

        def count(frame: Any, event: str, argument: Any) -> Any:
            counted[event] += 1
            return count

        tables = {f"q{number}": {} for number in range(queues)}
        before = sys.gettrace()
        sys.settrace(count)
        try:
            parse({"data": "/tmp/porto", "queues": tables})
        finally:
            sys.settrace(before)
        return counted["line"]

    steps(10)
    assert steps(400) < 2.2 * steps(200)
