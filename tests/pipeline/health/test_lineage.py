"""Lineage without Spark: the events of a run of two jobs, one of which failed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline import lineage
from mqmesh.pipeline.context import Written
from mqmesh.pipeline.reading.segments import select
from mqmesh.pipeline.run import Ran
from mqmesh.pipeline.tables.tables import Tables
from support.written_journal import NOVEMBER
from support.written_journal import Written as Journal


def test_a_run_is_said_job_by_job(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.events({"kind": 14, "client": "a"}, {"kind": 15, "client": "a"})
    selection = select(Place(tmp_path / "journal"), NOVEMBER * 2)
    tables = Tables(tmp_path / "out")
    tables.write_arrow("usage", pa.table({"account": ["acme"], "messages": [3]}))
    jobs = [Ran("usage", 1.5, [Written("usage", 1, 1, 900)]), Ran("audit", 0.25, error="it failed")]
    name = lineage.write(jobs, str(tmp_path / "journal"), selection, tables, 1_800_000_000.0)
    found = [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]
    assert [(one["eventType"], one["job"]["name"], one["eventTime"]) for one in found] == [
        ("START", "usage", "2027-01-15T07:59:58.250Z"),
        ("COMPLETE", "usage", "2027-01-15T07:59:59.750Z"),
        ("START", "audit", "2027-01-15T07:59:59.750Z"),
        ("FAIL", "audit", "2027-01-15T08:00:00.000Z"),
    ]
    (source,) = found[1]["inputs"]
    assert (source["namespace"], source["name"]) == ("file", f"{tmp_path}/journal")
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 2
    (made,) = found[1]["outputs"]
    assert made["name"] == f"{tmp_path}/out/usage"
    assert [field["name"] for field in made["facets"]["schema"]["fields"]] == ["account", "messages"]
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert found[3]["run"]["facets"]["errorMessage"]["message"] == "it failed"
    assert found[0]["run"]["runId"] == found[1]["run"]["runId"] != found[2]["run"]["runId"]
