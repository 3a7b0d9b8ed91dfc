"""The jobs: a table of names. The module of a job is imported when the job is asked for.

A job is one function that takes a `Context` (context.py), writes its output tables and returns nothing; what it wrote is counted there.
To add a job: write the function, and add its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from .errors import PipelineError

if TYPE_CHECKING:
    from .context import Context


@dataclass(frozen=True, slots=True)
class Job:
    """place: `module:function` below this package. tables: what it writes. needs: jobs whose tables it reads."""

    name: str
    place: str
    summary: str
    tables: tuple[str, ...]
    needs: tuple[str, ...] = ()
    optional: bool = False  # not part of a run that names no job

    @property
    def function(self) -> Callable[[Context], None]:
        module, _, name = self.place.partition(":")
        function: Callable[[Context], None] = getattr(import_module(f".{module}", __package__), name)
        return function


JOBS = {
    job.name: job
    for job in (
        Job(
            "messages",
            "correlation.messages:run",
            "one row for each message: parties, times, ends, complete or why not",
            ("messages", "refused"),
        ),
        Job("latency", "latency.job:run", "percentiles of latency by topic prefix, pair of sites and window", ("latency",)),
        Job("hops", "correlation.hops:run", "one row for each step of a message, and the latency of steps", ("hops", "hop_latency")),
        Job(
            "calls", "correlation.calls:run", "requests with their responses; messages with their cause", ("calls", "causes"), ("messages",)
        ),
        Job(
            "sessions",
            "correlation.sessions:run",
            "calls that belong together, with their route",
            ("sessions", "session_calls"),
            ("calls",),
        ),
        Job("orphans", "correlation.orphans:run", "messages that were accepted and have no end", ("orphans",), ("calls",)),
        Job(
            "queues",
            "correlation.queued:run",
            "one row for each message in a queue: who had it, how often, how long it waited and was worked",
            ("queue_messages",),
        ),
        Job(
            "invoked",
            "correlation.invoked:run",
            "hops, calls and sessions of services of the interchange",
            ("service_hops", "service_calls", "service_sessions"),
        ),
        Job(
            "traffic",
            "traffic.job:run",
            "who sends to whom, over which links, with how many copies; advice and pictures",
            ("traffic", "links", "copies", "repeats"),
            ("messages",),
        ),
        Job("faults", "faults.job:run", "faults of links and recipients, and what was available", ("faults", "failovers", "availability")),
        Job("custom", "correlation.custom:run", "values that brokers select from payloads: ids of your own", ("custom",)),
        Job("usage", "usage.job:run", "messages and bytes by account, service, day and role, from the counters", ("usage",)),
        Job(
            "exchanges",
            "usage.exchanges:run",
            "messages between services of the interchange, by account, product, day and role",
            ("service_usage",),
            ("invoked",),
        ),
        Job("charged", "usage.job:run_charged", "the messages behind the usage, where they are journalled", ("charged",), optional=True),
        Job(
            "invoices",
            "billing.job:run",
            "invoices of a month, by tariffs",
            ("invoice_lines",),
            ("usage", "charged", "exchanges"),
            optional=True,
        ),
        Job("audit", "audit.job:run", "who did what, chained by hashes, in audit/", ()),
        Job("health", "health.job:run", "counts in = counts out, for every job whose tables are there", ("health",)),
    )
}


def plan(names: Iterable[str]) -> list[Job]:
    """The jobs to run, those that others need first. names: none is all. Raises PipelineError for a name that is no job."""
    wanted = list(names) or [name for name, job in JOBS.items() if not job.optional]
    ordered: dict[str, Job] = {}

    def add(name: str) -> None:
        if name not in JOBS:
            raise PipelineError(f'"{name}" is no job: give one of {", ".join(JOBS)}')
        for other in JOBS[name].needs:
            add(other)
        ordered.setdefault(name, JOBS[name])

    for name in wanted:
        add(name)
    return list(ordered.values())
