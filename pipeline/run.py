"""A run: look at the journal, then run the jobs one after the other, and say what each one took and gave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..broker.journal.place import Place
from . import lineage
from .context import Context, Written, day_bound
from .errors import PipelineError
from .reading.segments import Selection, select
from .registry import Job, plan
from .session import DRIVER_MEMORY, LOCAL, SMALL, spark_session
from .tables.tables import Tables


@dataclass(slots=True)
class Ran:
    """One job of a run: seconds, what it wrote, and an error as one line."""

    job: str
    seconds: float = 0.0
    written: list[Written] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class Summary:
    """A whole run. selection: what was read and what was set aside."""

    run: str
    selection: Selection
    jobs: list[Ran] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return any(job.error for job in self.jobs)


Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True, slots=True)
class Order:
    """What a user asks for. journal, out: folders or URLs. since, until: dates (UTC). options: of jobs, by name."""

    journal: str
    out: str
    jobs: tuple[str, ...] = ()
    master: str = LOCAL
    memory: str = DRIVER_MEMORY
    since: str | None = None
    until: str | None = None
    verify: bool = True
    options: Mapping[str, str] = field(default_factory=dict)


def run(order: Order, progress: Progress | None = None, say: Callable[[str], None] | None = None) -> Summary:
    """Do all of it. Raises PipelineError for what a user can mend. A job that fails is in the summary, and so are those that need it, which
    are left out; the others run.
    """
    jobs = plan(order.jobs)
    since, until = day_bound("since", order.since), day_bound("until", order.until)
    if since is not None and until is not None and since >= until:
        raise PipelineError(f"--until {order.until}: give a date after --since {order.since}")
    journal, tables = place_of(order.journal), Tables(order.out)
    began, now = time.monotonic(), time.time_ns() // 1000
    show = progress or (lambda what, done, of: None)
    selection = select(journal, now, since, until, order.verify, lambda done, of: show("looking at segments", done, of))
    if not selection.segments and not selection.rejected:
        raise PipelineError(f"{journal.root}: has no closed segments of this time: give the journal's folder, or other dates")
    show("starting Spark", 0, 1)
    spark = spark_session(order.master, order.memory, settings=shuffle_settings(selection), quick=selection.events < SMALL)
    made = Summary(tables.run, selection)
    context = Context(spark, journal, selection, tables, now, since, until, order.options, say or (lambda text: None))
    failed: set[str] = set()
    try:
        write_rejected(context)
        for number, job in enumerate(jobs):
            show(job.name, number, len(jobs))
            made.jobs.append(_one(job, context, failed))
            if made.jobs[-1].error:
                failed.add(job.name)
        lineage.write(made.jobs, journal.root, selection, tables, time.time())
    except OSError as error:
        raise PipelineError(f"{tables.place.root}: cannot be written to: {error.strerror or error}") from error
    show("done", len(jobs), len(jobs))
    made.seconds = time.monotonic() - began
    return made


def place_of(root: str) -> Place:
    """Raises PipelineError."""
    try:
        return Place(root)
    except ValueError as error:
        raise PipelineError(str(error)) from None


def shuffle_settings(selection: Selection) -> dict[str, str]:
    """How many parts a shuffle has: about half a million events each, so that each is aggregated in memory."""
    parts = max(2, min(2000, selection.events // 500_000 + 1))
    return {"spark.sql.shuffle.partitions": str(parts), "spark.sql.adaptive.coalescePartitions.enabled": "true"}


def write_rejected(context: Context) -> None:
    """The table of what this run set aside, with reasons."""
    import pyarrow as pa

    columns: dict[str, Any] = {"path": pa.string(), "reason": pa.string(), "detail": pa.string(), "events": pa.int64()}
    columns |= {"broker": pa.int32(), "epoch": pa.int64(), "first": pa.int64(), "last": pa.int64()}
    rows = [{name: getattr(one, name) for name in columns} for one in context.selection.rejected]
    context.tables.write_arrow("rejected", pa.Table.from_pylist(rows, pa.schema(list(columns.items()))))


def _one(job: Job, context: Context, failed: Iterable[str]) -> Ran:
    """Run one job. failed: those that have failed before."""
    began, made = time.monotonic(), Ran(job.name)
    context.written, context.counts = [], {}
    needed = sorted(set(job.needs) & set(failed))
    if needed:
        made.error = f"left out: it needs {', '.join(needed)}"
        return made
    try:
        job.function(context)
    except PipelineError as error:
        made.error = str(error)
    except OSError as error:  # a disk that is full, a place that cannot be reached
        made.error = f"{context.tables.place.root}: {error.strerror or error}"
    except Exception as error:  # Spark raises many kinds; the rest of the summary is still of use
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        made.error = f"{type(error).__name__}: {next((line for line in str(error).splitlines() if line.strip()), '')[:400]}"
    made.seconds, made.written, made.counts = time.monotonic() - began, context.written, context.counts
    return made


__all__ = ["Order", "Ran", "Summary", "run"]
