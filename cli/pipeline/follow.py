"""`mqmesh pipeline follow`: keep the tables current while the journal grows."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...pipeline.errors import PipelineError
from ..output import FAILED, WRONG_USE, fail, note

if TYPE_CHECKING:
    from ...pipeline.streaming.follow import Update


def follow(
    journal: Annotated[str, typer.Option("--journal", metavar="URL", help="The folder or URL of the journal.", show_default=False)],
    out: Annotated[str, typer.Option("--out", metavar="URL", help="The folder or URL of the output tables.", show_default=False)],
    checkpoint: Annotated[str, typer.Option("--checkpoint", metavar="URL", help="Where Spark keeps its position.", show_default=False)],
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs; none: messages, latency, traffic, usage.")] = None,
    master: Annotated[str, typer.Option(help="local[*], spark://host:7077, yarn or k8s://...")] = "local[*]",
    memory: Annotated[str, typer.Option(help="Memory of Spark's driver, such as 1g.")] = "1g",
    interval: Annotated[float, typer.Option(help="Seconds between two looks at the journal.", min=0.1)] = 10.0,
    lateness: Annotated[float, typer.Option(help="Seconds after which an event counts as late.", min=0)] = 3600.0,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, close the tables, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each update.")] = False,
) -> None:
    """Keep the tables current while the journal grows, until Ctrl-C. The tables are those of `mqmesh pipeline run`.

    \b
      mqmesh pipeline follow --journal data/journal --out data/tables --checkpoint data/checkpoint
      mqmesh pipeline follow --journal s3://site/journal --out s3://site/tables --checkpoint s3://site/follow --once

    It may be killed at any moment: started again with the same checkpoint it goes on where it was.

    Status: 0 ended; 1 a job failed; 2 wrong use.
    """
    from ...pipeline.streaming.follow import Follower, Order

    order = Order(journal, out, checkpoint, tuple(jobs or ()), master, memory, interval, lateness)
    try:
        follower = Follower(order, lambda update: print(line(update, as_json), flush=True))
    except PipelineError as error:
        raise fail(f"pipeline follow: {error}", WRONG_USE) from None
    try:
        if once:
            follower.once()
        else:
            note(f"pipeline follow: {', '.join(job.name for job in follower.jobs)}: every {interval:g} s, until Ctrl-C")
            follower.run()
    except KeyboardInterrupt:
        return
    except PipelineError as error:
        raise fail(f"pipeline follow: {error}", FAILED) from None
    except Exception as error:  # Spark raises many kinds
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise fail(f"pipeline follow: {text[:400]}", FAILED) from None


def line(update: Update, as_json: bool = False) -> str:
    """An update as one line."""
    if as_json:
        values: dict[str, Any] = asdict(update)
        return json.dumps(values)
    what = f"batch {update.batch}: {update.events:,} events" if update.batch >= 0 else "closed"
    late = f", {update.late:,} late" if update.late else ""
    days = ", ".join(update.dates) if len(update.dates) <= 3 else f"{len(update.dates)} days from {update.dates[0]} to {update.dates[-1]}"
    return f"{what}{late}; made anew: {days or 'nothing'} ({update.seconds:.1f} s)"
