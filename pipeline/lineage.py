"""Lineage of a run as OpenLineage events: which tables were made from which journal, by which job, with how many rows.

The events stand in `lineage/RUN.jsonl` below the output: a START and a COMPLETE or FAIL for each job, with the schemas and counts of its
tables. Any OpenLineage service takes the lines as they are (POST to /api/v1/lineage, one by one).

Source: https://openlineage.io/spec/2-0-2/OpenLineage.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import NAMESPACE_URL, uuid5

from .registry import JOBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .context import Written
    from .reading.segments import Selection
    from .tables.tables import Tables

PRODUCER = "https://pypi.org/project/mqmesh"
SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
NAMESPACE = "mqmesh"


class Ran(Protocol):
    """One job of a run, as `run.Ran` is."""

    job: str
    seconds: float
    written: list[Written]
    error: str


def events(jobs: Sequence[Ran], journal: str, selection: Selection, tables: Tables, ended: float) -> Iterator[dict[str, Any]]:
    """The events of a run. journal: its root. tables: of this run. ended: seconds since 1970."""
    at = ended - sum(job.seconds for job in jobs)
    for ran in jobs:
        run = {"runId": str(uuid5(NAMESPACE_URL, f"{PRODUCER}/{tables.place.root}/{tables.run}/{ran.job}"))}
        job = {"namespace": NAMESPACE, "name": ran.job, "facets": {"jobType": _job_type()}}
        common = {"producer": PRODUCER, "schemaURL": SCHEMA, "job": job, "inputs": _inputs(ran, journal, selection, tables)}
        yield {"eventType": "START", "eventTime": _time(at), "run": run, "outputs": [], **common}
        at += ran.seconds
        if ran.error:
            facet = _facet("1-0-1/ErrorMessageRunFacet", message=ran.error, programmingLanguage="Python")
            yield {"eventType": "FAIL", "eventTime": _time(at), "run": run | {"facets": {"errorMessage": facet}}, "outputs": [], **common}
        else:
            yield {"eventType": "COMPLETE", "eventTime": _time(at), "run": run, "outputs": _outputs(ran, tables), **common}


def write(jobs: Sequence[Ran], journal: str, selection: Selection, tables: Tables, ended: float) -> str:
    """Write the events below the output. Returns the file's name."""
    name = f"lineage/{tables.run}.jsonl"
    lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in events(jobs, journal, selection, tables, ended)]
    tables.place.write(name, "".join(lines).encode())
    return name


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _facet(schema: str, **values: Any) -> dict[str, Any]:
    """A facet. schema: version and name, as in `1-0-1/JobTypeJobFacet`."""
    name = schema.partition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{schema}.json#/$defs/{name}", **values}


def _job_type() -> dict[str, Any]:
    return _facet("2-0-3/JobTypeJobFacet", processingType="BATCH", integration="SPARK", jobType="JOB")


def _inputs(ran: Ran, root: str, selection: Selection, tables: Tables) -> list[dict[str, Any]]:
    """The journal, and the tables of the jobs that this one needs."""
    statistics = _facet(
        "1-0-0/InputStatisticsInputDatasetFacet",
        rowCount=selection.events,
        fileCount=len(selection.segments),
        size=sum(segment.bytes for segment in selection.segments),
    )
    journal = {"namespace": _namespace(root), "name": _name(root), "inputFacets": {"inputStatistics": statistics}}
    needed = [table for other in JOBS[ran.job].needs for table in JOBS[other].tables] if ran.job in JOBS else []
    return [journal, *(_dataset(tables, table) for table in needed)]


def _outputs(ran: Ran, tables: Tables) -> list[dict[str, Any]]:
    made = []
    for one in ran.written:
        version = tables.version(one.table)
        fields = version.schema.get("fields", []) if version is not None else []
        schema = [{"name": field["name"], "type": field["type"] if isinstance(field["type"], str) else "struct"} for field in fields]
        statistics = _facet("1-0-2/OutputStatisticsOutputDatasetFacet", rowCount=one.rows, size=one.bytes, fileCount=one.files)
        facets: dict[str, Any] = {"schema": _facet("1-1-1/SchemaDatasetFacet", fields=schema)}
        if version is not None:
            facets["version"] = _facet("1-0-1/DatasetVersionDatasetFacet", datasetVersion=str(version.number))
        made.append(_dataset(tables, one.table) | {"facets": facets, "outputFacets": {"outputStatistics": statistics}})
    return made


def _dataset(tables: Tables, table: str) -> dict[str, Any]:
    root = tables.place.root
    return {"namespace": _namespace(root), "name": f"{_name(root)}/{table}"}


def _namespace(root: str) -> str:
    """Of a dataset: `file`, or scheme and bucket, as the naming rules of OpenLineage have it."""
    scheme, found, rest = root.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if found and scheme != "file" else "file"


def _name(root: str) -> str:
    scheme, found, rest = root.partition("://")
    if not found or scheme == "file":
        return (rest if found else root).rstrip("/") or "/"
    return rest.partition("/")[2].rstrip("/") or "/"
