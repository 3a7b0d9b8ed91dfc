"""`mqmesh pipeline run|jobs|tables|synthesize`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ...pipeline.errors import PipelineError
from ...pipeline.registry import JOBS
from ..output import FAILED, WRONG_USE, command_group, fail, note
from ..tables import titled_table
from .follow import follow
from .progress import Bar
from .view import as_json, show_summary

app = command_group(
    no_args_is_help=True,
    help="""Make tables from journals with Spark: messages, calls, latency, traffic, faults, usage.

    \b
      mqmesh pipeline run --journal data/journal --out data/tables
      mqmesh pipeline run latency traffic --journal s3://site/journal --out s3://site/tables --since 2026-11-01
      mqmesh pipeline synthesize topologies/ring-of-five.toml /tmp/journal --events 5000000
    """,
)

app.command()(follow)

AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of tables.")]
Out = Annotated[str, typer.Option("--out", metavar="URL", help="The folder or URL of the output tables.", show_default=False)]


@app.command()
def run(
    journal: Annotated[str, typer.Option("--journal", metavar="URL", help="The folder or URL of the journal.", show_default=False)],
    out: Out,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs to run (mqmesh pipeline jobs); none: all.")] = None,
    master: Annotated[str, typer.Option(help="local[*], spark://host:7077, yarn, k8s://..., or sc://host for Spark Connect.")] = "local[*]",
    memory: Annotated[str, typer.Option(help="Memory of Spark's driver, such as 1g.")] = "1g",
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Messages published on this date (UTC) or later.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Messages published before this date (UTC).", show_default=False)
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", metavar="JOB.KEY=VALUE", help="An option of a job; again for more.", show_default=False)
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Do not compare the segments' hashes.")] = False,
    as_json_: AsJson = False,
) -> None:
    """Run jobs over a journal. A run replaces the tables' rows of its dates, and never doubles them.

    Status: 0 done, even if segments were set aside (table `rejected`); 1 a job failed; 2 wrong use.
    """
    from ...pipeline.run import Order
    from ...pipeline.run import run as start

    order = Order(journal, out, tuple(jobs or ()), master, memory, since, until, not trust, _options(options or []))
    try:
        with Bar() as bar:
            summary = start(order, bar.show, note)
    except PipelineError as error:
        raise fail(str(error), WRONG_USE) from None
    if as_json_:
        print(json.dumps(as_json(summary), ensure_ascii=False, indent=2))
    else:
        show_summary(summary)
    for job in summary.jobs:
        if job.error:
            raise fail(f"{job.job}: {job.error}", FAILED)


@app.command()
def jobs(as_json_: AsJson = False) -> None:
    """List the jobs and the tables that they write."""
    if as_json_:
        print(json.dumps([{"name": j.name, "summary": j.summary, "tables": j.tables, "needs": j.needs} for j in JOBS.values()], indent=2))
        return
    table = titled_table("jobs", "job", "makes", "tables", "needs")
    for job in JOBS.values():
        table.add_row(job.name, job.summary, ", ".join(job.tables), ", ".join(job.needs))
    Console(highlight=False).print(table)


@app.command()
def tables(out: Out, as_json_: AsJson = False) -> None:
    """List the output tables: rows, files, dates."""
    from ...pipeline.tables.tables import Tables

    try:
        place = Tables(out)
        found = [version for name in place.names() if (version := place.version(name)) is not None]
    except PipelineError as error:
        raise fail(str(error), WRONG_USE) from None
    if as_json_:
        rows = [{"table": v.table, "version": v.number, "rows": v.rows, "dates": v.dates, "files": place.paths(v.table, v)} for v in found]
        print(json.dumps(rows, indent=2))
        return
    table = titled_table(f"tables in {place.place.root}", "table", "version", "rows", "files", "dates", left=("table", "dates"))
    for one in found:
        dates = f"{one.dates[0]} to {one.dates[-1]}" if one.dates else "-"
        table.add_row(one.table, str(one.number), f"{one.rows:,}", str(len(one.files)), dates)
    Console(highlight=False).print(table)


@app.command()
def synthesize(
    topology: Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A topology file.", show_default=False)],
    journal: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the journal is written.", show_default=False)],
    events: Annotated[int, typer.Option(help="About how many events.", min=1)] = 100_000,
    days: Annotated[int, typer.Option(help="Days that they spread over.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    topics: Annotated[int, typer.Option(help="How many topics.", min=1)] = 200,
    run_length: Annotated[int, typer.Option("--run", help="Messages that one event stands for.", min=1)] = 1,
    faults: Annotated[int, typer.Option(help="Faults of links, and as many of recipients.", min=0)] = 4,
    skew: Annotated[int, typer.Option(help="Microseconds that the last broker's clock is ahead.")] = 0,
    as_json_: AsJson = False,
) -> None:
    """Make a journal from a topology, with the brokers' own trees. The expected results are in truth.json."""
    from ...pipeline.synthesis.synthesize import TRUTH, Order
    from ...pipeline.synthesis.synthesize import synthesize as make

    order = Order(topology, events, days, seed, topics=topics, run=run_length, faults=faults, skew=skew)
    try:
        with Bar() as bar:
            made = make(order, journal, lambda done, of: bar.show("events", done, of))
    except PipelineError as error:
        raise fail(str(error), WRONG_USE) from None
    if as_json_:
        values: dict[str, Any] = asdict(made)
        print(json.dumps({**values, "journal": str(journal)}, indent=2))
        return
    print(f"{made.events:,} events of {made.messages:,} messages in {made.segments} segments, {made.bytes / 1e6:,.1f} MB: {journal}")
    print(f"what is true about them: {journal / TRUTH}")


def _options(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise fail(f"--set {text}: write JOB.KEY=VALUE, such as latency.window=3600", WRONG_USE)
        found[name] = value
    return found
