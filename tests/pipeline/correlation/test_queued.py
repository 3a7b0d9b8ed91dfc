"""Messages in queues as a table: from a journal that the broker's own code wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mqmesh.broker.journal.kinds import MessageId
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.schema import QueueState, name_id
from mqmesh.broker.journal.search import Query
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables
from mqmesh.pipeline.trace.tables import find
from support.written_journal import NOVEMBER, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, DEAD = {"origin_epoch": 1, "topic": "$queue/orders"}, {"origin_epoch": 2, "topic": "$queue/dead"}


def state(
    queue: dict[str, object], first: int, what: QueueState, at: int, client: str = "", count: int = 1, **more: object
) -> dict[str, object]:
    """A queue state. at: milliseconds after the first one; the message was put at 0, or at `put`."""
    put = int(str(more.pop("put", 0)))
    ids = {"kind": 12, "origin": 1, "stream": 3, "sequence": first, "count": count, **queue}
    return {**ids, "value": int(what), "client": client or 0, "time": NOVEMBER + 1000 * at, "published": NOVEMBER + 1000 * put, **more}


def journal_names(folder: Path) -> dict[int, str]:
    return Journal(str(folder / "journal")).names()


def test_a_row_for_each_message(spark: SparkSession, tmp_path: Path) -> None:
    journal = Written(tmp_path / "journal")
    both = {"detail": json.dumps({"groups": 2})}
    journal.events(
        state(ORDERS, 1, QueueState.PUT, 0, "shop", 3, size=10),
        state(ORDERS, 1, QueueState.GET, 5, "a", 3),
        state(ORDERS, 1, QueueState.DONE, 9, "a", 2),
        state(ORDERS, 3, QueueState.CLEAN, 9, "a"),
        state(ORDERS, 3, QueueState.GET, 10, "b"),
        state(ORDERS, 3, QueueState.UNUSABLE, 12, "b"),
        state(DEAD, 1, QueueState.PUT, 12, "shop", put=12, parent="1.1.3.3"),
        state(ORDERS, 4, QueueState.PUT, 20, "shop", put=20, **both),
        state(ORDERS, 4, QueueState.EXPIRED, 21, put=20, detail=json.dumps({"group": 1})),
        state(ORDERS, 5, QueueState.DONE, 22, "a", put=20),
        state(ORDERS, 6, QueueState.PUT, 30, "shop", put=30),
        state(ORDERS, 6, QueueState.UNUSABLE, 31, "a", put=30),
        state(ORDERS, 6, QueueState.CLEAN, 31, "a", put=30),
        {"kind": 1, "origin": 1, "stream": 1, "sequence": 1, "topic": "a", "client": "shop"},
    )
    journal.close()
    summary = run(Order(str(tmp_path / "journal"), str(tmp_path / "out"), ("messages", "queues")))
    assert not summary.failed, [job.error for job in summary.jobs]
    tables = Tables(str(tmp_path / "out"))
    rows = {(row["origin_epoch"], row["sequence"]): row for row in tables.arrow("queue_messages").to_pylist()}
    assert set(rows) == {(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 1)}
    done = rows[1, 2]
    assert (done["waited"], done["worked"], done["status"], done["size"]) == (5000, 4000, 1, 10)
    assert (done["sender"], done["receiver"], done["topic"]) == (name_id("shop"), name_id("a"), name_id("$queue/orders"))
    counts = ("gets", "returns", "dones", "unusable", "expiries", "groups", "through", "status")
    assert {at: tuple(row[name] for name in counts) for at, row in rows.items()} == {
        (1, 1): (1, 0, 1, 0, 0, 1, 1, 1),
        (1, 2): (1, 0, 1, 0, 0, 1, 1, 1),
        (1, 3): (2, 1, 0, 1, 0, 1, 1, 1),
        (1, 4): (0, 0, 0, 0, 1, 2, 1, 3),
        (1, 5): (0, 0, 1, 0, 0, None, 1, 4),
        (1, 6): (0, 1, 0, 1, 0, 1, 0, 3),
        (2, 1): (0, 0, 0, 0, 0, 1, 0, 3),
    }
    dead = rows[2, 1]
    assert (dead["parent_origin"], dead["parent_origin_epoch"], dead["parent_stream"], dead["parent_sequence"]) == (1, 1, 3, 3)
    stories = {at: find(str(tmp_path / "out"), Query(message=MessageId(1, 1, 3, at)), names=journal_names(tmp_path))[0] for at in (2, 3, 4)}
    assert [(step.name, step.client, step.time - NOVEMBER) for step in stories[2].steps] == [
        ("put", "shop", 0),
        ("get", None, 5000),
        ("done", "a", 9000),
    ]
    assert (stories[2].topic, stories[2].publisher, stories[2].status) == ("$queue/orders", "shop", "complete")
    assert [step.name for step in stories[3].steps] == ["put", "get", "unusable"]
    assert (stories[4].status, stories[4].why) == ("no end", "1 of 2 groups of subscribers are through")
    assert find(str(tmp_path / "out"), Query(message=MessageId(1, 1, 3, 99))) == []
    assert tables.arrow("messages").num_rows == 1, "a message in a queue is no message of the mesh"
