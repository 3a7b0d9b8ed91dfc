"""The demo's output: a live table on a terminal, plain lines elsewhere, and tables at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..tables import titled_table

if TYPE_CHECKING:
    from .scenario import Job, Report

LINE_EVERY = 2.0  # seconds between two lines of numbers


class _Rates:
    """Published and received readings a second for each site, over about the last second."""

    def __init__(self) -> None:
        self.rates: dict[str, tuple[float, float]] = {}
        self._at = 0.0
        self._last: dict[str, tuple[int, int]] = {}

    def update(self, job: Job) -> None:
        now = time.monotonic()
        if now - self._at < 1.0:
            return
        for name, site in job.sites.items():
            before = self._last.get(name, (0, 0))
            current = (len(site.sent), site.received)
            if self._at:
                self.rates[name] = ((current[0] - before[0]) / (now - self._at), (current[1] - before[1]) / (now - self._at))
            self._last[name] = current
        self._at = now


class _Lines:
    """Plain lines, for a file or a pipe."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.begin = time.monotonic()
        self.last = 0.0

    def phase(self, text: str) -> None:
        self._write(text)

    def tick(self, job: Job) -> None:
        now = time.monotonic()
        if not job.begin or now - self.last < LINE_EVERY:
            return
        self.last = now
        published = sum(len(site.sent) for site in job.sites.values())
        received = sum(site.received for site in job.sites.values())
        self._write(f"  published {published:,}  received {received:,}  links up {_links_up(job)} of {len(job.fleet.topology.links)}")

    def _write(self, text: str) -> None:
        print(f"{time.monotonic() - self.begin:6.1f} s  {text}", file=self.out, flush=True)


class _Live:
    """A table of sites that follows the run, events above it."""

    def __init__(self, display: Live) -> None:
        self.display = display
        self.rates = _Rates()
        self.begin = time.monotonic()

    def phase(self, text: str) -> None:
        self.display.console.print(Text(f"{time.monotonic() - self.begin:6.1f} s  {text}"))

    def tick(self, job: Job) -> None:
        self.rates.update(job)
        self.display.update(_site_table(job, self.rates), refresh=True)


@contextlib.contextmanager
def lines(out: TextIO) -> Iterator[_Lines]:
    """Plain lines to `out`."""
    yield _Lines(out)


@contextlib.contextmanager
def live(out: TextIO) -> Iterator[_Live]:
    """A live table on the terminal `out`."""
    with Live(console=Console(file=out), auto_refresh=False, transient=True) as display:
        yield _Live(display)


def _links_up(job: Job) -> int:
    members = job.fleet.members
    return sum(
        _end_up(members[link.listener].status, link.dialler) and _end_up(members[link.dialler].status, link.listener)
        for link in job.fleet.topology.links
    )


def _end_up(status: dict[str, object] | None, other: str) -> bool:
    links = status["links"] if status else []
    return any(link["name"] == other and link["up"] for link in links)  # type: ignore[attr-defined]


def _site_table(job: Job, rates: _Rates) -> Table:
    left = max(0.0, job.begin + job.seconds - time.monotonic()) if job.begin else job.seconds
    text = ("site", "process", "links")
    counts = ("published", "a second", "received", "a second", "copies sent", "held for others")
    table = titled_table(f"{left:.0f} s left" if left else "waiting for the last readings", *text, *counts, left=text)
    for name, member in job.fleet.members.items():
        site, status = job.sites[name], member.status
        out_rate, in_rate = rates.rates.get(name, (0.0, 0.0))
        process = f"{member.pid}" if member.alive else "[red]killed[/]"
        table.add_row(
            name if site.online else f"[red]{name}[/]",
            process,
            _neighbours(job, name),
            f"{len(site.sent):,}",
            f"{out_rate:.0f}",
            f"{site.received:,}",
            f"{in_rate:.0f}",
            f"{status['counters']['sent']:,}" if status else "",
            f"{status['custody']['messages']:,}" if status else "",
        )
    return table


def _neighbours(job: Job, name: str) -> str:
    shown = []
    for link in job.fleet.topology.links:
        if name in link.ends:
            other = link.dialler if link.listener == name else link.listener
            up = _end_up(job.fleet.members[name].status, other)
            shown.append(f"[green]{other}[/]" if up else f"[red strike]{other}[/]")
    return " ".join(shown)


def result_tables(report: Report, out: TextIO = sys.stdout) -> None:
    """Print the results: a line for each site, the sums, copies, faults, and what the killed broker excuses."""
    console = Console(file=out, width=None if out.isatty() else 110, highlight=False)
    console.print(_results(report))
    copies = report.copies
    exact = "" if copies.exact else " (the brokers' counters did not add up: take this as rough)"
    if copies.trees:
        exact += f" (links broke meanwhile: {copies.trees} trees were announced anew)"
    console.print(
        f"Copies per message between brokers, while stable: [bold]{copies.per_message:.3f}[/]; the best tree needs {copies.optimum}{exact}"
    )
    if report.faults:
        console.print("Faults, in seconds since traffic began:")
    for fault in report.faults:
        again = "[red]never[/]" if fault.flowed_again is None else f"{fault.flowed_again:.2f} s"
        console.print(f"{fault.at:5.1f} s  {fault.what}: traffic flowed again after [bold]{again}[/]")
    console.print(
        f"Between surviving sites, from publishing to arrival: half within {report.delay_p50 * 1000:.1f} ms, "
        f"99 % within {report.delay_p99 * 1000:.1f} ms, the slowest {report.delay_max * 1000:.0f} ms"
    )
    apart = report.apart
    console.print(
        f"Counted apart, as what a killed broker takes with it: {apart.own} readings of {report.killed} itself were on their way when it "
        f"died ({apart.own_everywhere} arrived at all other sites, {apart.own_somewhere} at some, {apart.own_nowhere} at none; "
        f"{apart.own_lost} of the missing were acknowledged; {apart.own_duplicates} came twice, because its client sent them again), and "
        f"{apart.missed} readings of others passed while {report.killed} was away."
    )
    _foreign_broker(report, console)
    _recipients(report, console)
    _queue(report, console)
    _interchange(report, console)
    _journal(report, console)


def _foreign_broker(report: Report, console: Console) -> None:
    """Print the result of the third act."""
    abroad = report.abroad
    if abroad.skipped:
        console.print(f"Not shown, a foreign broker through a metabroker: {abroad.skipped}")
        return
    returned = "[red]never[/]" if abroad.returned is None else f"{abroad.returned:.2f} s"
    title = f"A foreign broker through a metabroker: {abroad.acknowledged:,} readings with QoS 1"
    table = titled_table(title, "site", "delivered", "lost", "duplicates", "out of order", left=("site",))
    for one in abroad.visitors:
        lost = f"[bold red]{one.lost:,}[/]" if one.lost else "0"
        table.add_row(one.site, f"{one.delivered:,}", lost, f"{one.duplicates:,}", f"{one.disorder:,}")
    console.print(table)
    console.print(
        f"{abroad.sessions} sessions shared {abroad.connections} connection to it. It was killed: {abroad.told} sites were told, and heard "
        f"of it again [bold]{returned}[/] after it was started."
    )


def _recipients(report: Report, console: Console) -> None:
    """Print the result of the fourth act."""
    found = report.recipients
    table = titled_table(
        f"An application that hangs: {found.sent:,} orders with QoS 1", "seconds", "what", "noticed after", "then", left=("what", "then")
    )
    for step in found.steps:
        noticed = "[red]never[/]" if step.noticed is None else f"{step.noticed:.2f} s"
        table.add_row(f"{step.at:.1f}", step.what, noticed, step.then)
    console.print(table)
    handled = ", ".join(f"{count:,} handled by {name}" for name, count in found.handled.items())
    lost, repeated = (f"[bold red]{count:,}[/]" if count else "0" for count in (found.lost, found.repeated))
    console.print(
        f"Orders: {handled}, {found.returned:,} returned to the shop; {lost} lost, {repeated} repeated; "
        f"{found.marked:,} that a hanging clerk had taken without acknowledging went elsewhere too, marked as possibly repeated"
    )


def _queue(report: Report, console: Console) -> None:
    """Print the result of the fifth act."""
    found = report.queue
    title = f"A queue across sites: {found.sent:,} orders of three shops, worked once each"
    table = titled_table(title, "worker", "orders", left=("worker",))
    for name, count in sorted(found.worked.items()):
        table.add_row(name, f"{count:,}")
    console.print(table)
    lost, repeated = (f"[bold red]{count:,}[/]" if count else "0" for count in (found.lost, found.repeated))
    handed_over = "[red]never[/]" if found.handed_over is None else f"{found.handed_over:.2f} s"
    console.print(
        f"{lost} lost, {repeated} repeated, {found.marked:,} worked again and marked. A worker was killed: others worked its orders after "
        f"{handed_over}. The poisoned order is {'a dead letter' if found.dead else '[bold red]missing[/]'}; its history:"
    )
    for line in found.trace:
        console.print(f"  {line}", markup=False)


def _interchange(report: Report, console: Console) -> None:
    """Print the result of the sixth act."""
    found = report.interchange
    if report.no_interchange:
        console.print(f"Not shown, services that ask each other: {report.no_interchange}")
        return
    expired, returned = ("[bold red]never[/]" if one is None else f"{one:.1f} s" for one in (found.expired, found.returned))
    console.print(
        f"A shop asked two banks at other sites: {found.answered} answered. A filter ended {found.refused} requests that were too large. "
        f"One bank's site was cut off: a request to it expired after {expired}. {returned} after the links were back, both banks had "
        "answered again. The session of the cut:"
    )
    for line in found.picture:
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _journal(report: Report, console: Console) -> None:
    """Print the result of the last act."""
    found = report.journal
    if found.skipped:
        console.print(f"Not shown, Spark over the journal: {found.skipped}")
        return
    counts = ", ".join(f"{count:,} {what}" for what, count in found.messages.items())
    console.print(f"The journal, read by Spark in {found.seconds:.0f} s, has messages: {counts}")
    if len(found.messages) > 1:
        console.print("What a killed broker had not yet written is missing there: a part of a second.")
    if found.story:
        console.print("One message's whole way, with milliseconds since its publication:")
        for line in found.story:
            console.print(f"  {line}", markup=False)
    table = titled_table(
        "Faults that the journal knows, in seconds since traffic began",
        "at",
        "what",
        "lasted",
        "noticed after",
        "the demo did",
        left=("what", "the demo did"),
    )
    for one in found.faults:
        lasted = "-" if one.lasted is None else f"{one.lasted:.2f} s"
        noticed = "-" if one.noticed is None else f"{one.noticed:.2f} s"
        table.add_row(f"{one.at:.1f}", one.what, lasted, noticed, one.did)
    if found.faults:
        console.print(table)
    for path in found.pictures:
        console.print(f"picture: {path}", soft_wrap=True)


def _results(report: Report) -> Table:
    headings = ("site", "published", "acknowledged", "due", "delivered", "lost", "duplicates", "out of order")
    table = titled_table(f"{report.seconds:.0f} s of readings with QoS 1", *headings, left=("site",))
    for one in [*report.sites, report.totals]:
        label = f"{one.site} (killed)" if one.site == report.killed else one.site
        numbers = (one.published, one.acknowledged, one.due, one.delivered, one.lost, one.duplicates, one.disorder)
        cells = [f"{number:,}" for number in numbers]
        for place in (4, 5):
            if numbers[place]:
                cells[place] = f"[bold red]{cells[place]}[/]"
        if one is not report.sites[-1] and one.site == report.sites[-1].site:
            table.add_section()
        table.add_row(label, *cells, end_section=one is report.sites[-1])
    return table
