"""Health finds what is missing or doubled; lineage says what a run has made, in the form of OpenLineage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from uuid import UUID

import pytest
from mqmesh.pipeline.registry import JOBS
from mqmesh.pipeline.run import Order, run
from mqmesh.pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from mqmesh.pipeline.synthesis.synthesize import Made
    from pyspark.sql import SparkSession


def checks(out: Path) -> list[dict[str, Any]]:
    return Tables(out).arrow("health").to_pylist()


def test_all_that_goes_in_comes_out(tables: tuple[Path, Any]) -> None:
    found = {(one["job"], one["name"]): one for one in checks(tables[0])}
    assert all(one["ok"] for one in found.values())
    assert {"messages", "usage", "audit", "journal"} <= {job for job, _ in found}
    for job, name in (("messages", "messages published"), ("usage", "messages delivered"), ("audit", "actions")):
        assert found[job, name]["expected"] == found[job, name]["found"] > 0


def test_what_is_missing_is_found(spark: SparkSession, tables: tuple[Path, Any], journal: tuple[Path, Made], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(tables[0], out)
    usage = Tables(out).arrow("usage")
    Tables(out).write_arrow("usage", usage.slice(1))
    summary = run(Order(str(journal[0]), str(out), ("health",)))
    assert summary.failed
    assert "checks fail: usage: messages " in summary.jobs[-1].error
    assert [one["job"] for one in checks(out) if not one["ok"]] == ["usage"] * len([one for one in checks(out) if not one["ok"]])


def events(out: Path, run_name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "lineage" / f"{run_name}.jsonl").read_text().splitlines()]


def facets(event: dict[str, Any]) -> list[dict[str, Any]]:
    """All facets of an event."""
    places = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
    keys = ("facets", "inputFacets", "outputFacets")
    return [facet for place in places for key in keys for facet in place.get(key, {}).values()]


def test_lineage_is_what_openlineage_asks_for(tables: tuple[Path, Any]) -> None:
    out, summary = tables
    found = events(out, summary.run)
    assert [one["eventType"] for one in found] == ["START", "COMPLETE"] * len(summary.jobs)
    for one in found:
        assert {"eventTime", "producer", "schemaURL", "run", "job"} <= set(one)
        assert one["schemaURL"].endswith("#/$defs/RunEvent")
        assert urlparse(one["producer"]).scheme == "https"
        UUID(one["run"]["runId"])
        assert one["job"]["namespace"]
        assert one["job"]["name"] in JOBS
        assert one["eventTime"].endswith("Z")
        for dataset in (*one["inputs"], *one["outputs"]):
            assert dataset["namespace"] == "file"
            assert dataset["name"].startswith("/")
        for facet in facets(one):
            assert facet["_producer"] == one["producer"]
            assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")
    assert len({one["run"]["runId"] for one in found}) == len(summary.jobs)


def test_lineage_counts_rows(tables: tuple[Path, Any]) -> None:
    out, summary = tables
    made = {}
    for one in events(out, summary.run):
        made |= {dataset["name"]: dataset["outputFacets"]["outputStatistics"]["rowCount"] for dataset in one["outputs"]}
    assert made[f"{out}/messages"] == Tables(out).arrow("messages").num_rows


def test_a_job_that_fails_says_so(spark: SparkSession, journal: tuple[Path, Made], tmp_path: Path) -> None:
    summary = run(Order(str(journal[0]), str(tmp_path / "out"), ("usage",), options={"usage.tariffs": str(tmp_path / "none.toml")}))
    found = events(tmp_path / "out", summary.run)
    assert [one["eventType"] for one in found] == ["START", "FAIL"]
    assert "none.toml: cannot be read" in found[1]["run"]["facets"]["errorMessage"]["message"]


@pytest.mark.parametrize(
    ("root", "namespace", "name"),
    [
        ("/data/tables", "file", "/data/tables"),
        ("file:///data/t/", "file", "/data/t"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3://bucket", "s3://bucket", "/"),
    ],
)
def test_datasets_are_named_by_their_place(root: str, namespace: str, name: str) -> None:
    from mqmesh.pipeline.lineage import _name, _namespace

    assert (_namespace(root), _name(root)) == (namespace, name)
