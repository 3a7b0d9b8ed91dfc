"""The same messages from the pipeline's tables as from the journal that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.search import Query, Search
from mqmesh.pipeline.errors import PipelineError
from mqmesh.pipeline.tables.tables import Tables
from mqmesh.pipeline.trace.story import COMPLETE, stories
from mqmesh.pipeline.trace.tables import HOPS, Searched, find


def test_tables_say_what_the_journal_says(journal: tuple[Path, Any], tables: tuple[Path, Any]) -> None:
    folder, out = journal[0], tables[0]
    source = Journal(str(folder))
    names = source.names()
    newest = stories(Search(source, names).find(Query(since=0, limit=30)).events.to_pylist(), names.get)
    searched = Searched(Tables(str(out)), names)
    with_hops = Tables(str(out)).version(HOPS) is not None
    for one in newest:
        (found,) = searched.find(Query.of({"message": one.message}))
        facts = ("message", "topic", "account", "publisher", "published", "size", "status", "why", "call")
        assert [getattr(found, name) for name in facts] == [getattr(one, name) for name in facts]
        if with_hops:
            kinds = ("published", "forwarded", "delivered", "acknowledged")
            assert sorted((step.name, step.broker, step.time) for step in found.steps if step.name in kinds) == sorted(
                (step.name, step.broker, step.time) for step in one.steps if step.name in kinds
            )


def test_conditions(journal: tuple[Path, Any], tables: tuple[Path, Any]) -> None:
    names = Journal(str(journal[0])).names()
    searched = Searched(Tables(str(tables[0])), names)
    one = searched.find(Query(since=0, limit=1))[0]
    assert one.message in {other.message for other in searched.find(Query(topic=one.topic, client=one.publisher, limit=1000))}
    assert {other.status for other in searched.find(Query(limit=50), COMPLETE)} == {COMPLETE}
    assert not searched.find(Query(topic="no/such/topic/#"))
    assert not searched.find(Query(account="nobody"))


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no such table"):
        find(str(tmp_path), Query(limit=1))


def test_a_damaged_table(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    tables.write_arrow("messages", pa.table({name: [1] for name in ("origin", "origin_epoch", "stream", "sequence", "published")}))
    for path in tables.paths("messages"):
        Path(path).write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match="a file cannot be read"):
        find(str(tmp_path), Query(limit=1))
