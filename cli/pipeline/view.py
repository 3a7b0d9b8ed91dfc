"""The summary of a run, as tables or JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ...base.plural import counted
from ...pipeline.run import Summary
from ..tables import titled_table


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as JSON takes it."""
    selection = summary.selection
    return {
        "run": summary.run,
        "seconds": round(summary.seconds, 3),
        "segments": len(selection.segments),
        "events": selection.events,
        "repeated": [segment.path for segment in selection.repeated],
        "rejected": [asdict(one) for one in selection.rejected],
        "jobs": [asdict(job) for job in summary.jobs],
    }


def show_summary(summary: Summary) -> None:
    """What was read, what was set aside, and what each job wrote."""
    console, selection = Console(highlight=False), summary.selection
    read = f"{counted(selection.events, 'event')} in {counted(len(selection.segments), 'segment')}"
    console.print(f"read {read} of brokers {_brokers(selection.brokers)}")
    if selection.repeated:
        console.print(f"there twice: {counted(len(selection.repeated), 'segment')}")
    if selection.rejected:
        reasons = Counter(one.reason for one in selection.rejected)
        table = titled_table("set aside (table rejected)", "reason", "segments", "events", left=("reason",))
        for reason, count in sorted(reasons.items()):
            events = sum(max(0, one.events) for one in selection.rejected if one.reason == reason)
            table.add_row(reason, str(count), f"{events:,}")
        console.print(table)
    table = titled_table(f"run {summary.run}, {summary.seconds:.1f} s", "job", "table", "rows", "files", "MB", "s", left=("job", "table"))
    for job in summary.jobs:
        for number, one in enumerate(job.written):
            row = (one.table, f"{one.rows:,}", str(one.files), f"{one.bytes / 1e6:,.1f}")
            table.add_row("" if number else job.job, *row, "" if number else f"{job.seconds:.1f}")
        if not job.written:
            table.add_row(job.job, "-", "", "", "", f"{job.seconds:.1f}")
    console.print(table)


def _brokers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:20])) + (", ..." if len(numbers) > 20 else "")
