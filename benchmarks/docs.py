"""Writes a run into the documentation: the table between two markers of docs/performance.md, the plot, benchmarks/last.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import plot, report
from benchmarks.peers import ROOT
from benchmarks.report import OURS, Row

PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
LAST = ROOT / "benchmarks" / "last.json"
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


def write(table: list[Row], data: dict[str, Any]) -> list[Path]:
    """Write all three; the files written. ValueError if the page has no markers."""
    PAGE.write_text(between(PAGE.read_text(), markdown(table, data)))
    short = report.without_runs(data)
    plot.draw(short, PLOT)
    report.write_json(LAST, short)
    return [PAGE, PLOT, LAST]


def between(page: str, text: str) -> str:
    """The page with `text` between its markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"{PAGE.name} needs the lines {BEGIN} and {END}, once each and in this order")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def markdown(table: list[Row], data: dict[str, Any]) -> str:
    """What was run where, and the table."""
    machine, settings, versions = data["machine"], data["settings"], data["versions"]
    peers = list(versions)
    lines = [
        f"{machine['cores']} cores of {machine['cpu']}, {machine['system']}; {'; '.join(versions.values())}.",
        f"Each figure is {_measured(settings['repeat'])} of {settings['seconds']:g} s, after {settings['warm_up']:g} s of warm-up.",
        "Deliveries per second; latency: p50 / p99.",
        "",
        "| | " + " | ".join(peers) + " | ratio (bar) |",
        "|---|" + "---:|" * len(peers) + "---|",
    ]
    for row in table:
        figures = [_figure(row, peer) for peer in peers]
        lines.append(f"| {row.scenario.title} | {' | '.join(figures)} | {_ratios(row)} |")
    lines += ["", _cpu(table, peers), "", _faults(table)]
    return "\n".join(lines)


def _measured(repeat: int) -> str:
    return "one measurement" if repeat == 1 else f"the median of {repeat} measurements"


def _figure(row: Row, peer: str) -> str:
    cell = row.cells.get(peer)
    bad = report.trouble(cell) if cell else ""
    return report.figure(cell) + (f" ({bad})" if bad else "")


def _ratios(row: Row) -> str:
    """The ratio to each peer, with the bar where there is one; what misses it is bold."""
    sign = "≤" if row.scenario.latency else "≥"
    bars = {peer: (bar, reached) for peer, bar, _, reached in row.bars()}
    parts = []
    for peer in row.cells:
        ratio = row.ratio(peer) if peer != OURS else None
        if ratio is None:
            continue
        text = f"{report.times(ratio)} × {peer}"
        if peer in bars:
            bar, reached = bars[peer]
            text = f"{text} ({sign} {bar:g})" if reached else f"**{text} ({sign} {bar:g})**"
        parts.append(text)
    return ", ".join(parts)


def _cpu(table: list[Row], peers: list[str]) -> str:
    """CPU time at QoS 0 and 1, one to one."""
    parts = []
    for row in table:
        if row.scenario.name in ("qos0-1to1", "qos1-1to1"):
            named = [(peer, row.cells[peer].per_message("broker_cpu")) for peer in peers if peer in row.cells]
            costs = ", ".join(f"{peer} {cost * 1e6:.2f}" for peer, cost in named if cost is not None)
            parts.append(f"{row.scenario.title}: {costs}")
    return "Microseconds of the broker's CPU time for each delivery. " + "; ".join(parts) + "."


def _faults(table: list[Row]) -> str:
    """Whether mqmesh did anything wrong."""
    faults = sum(row.faults() for row in table)
    total = sum(row.cells[OURS].total("deliveries") for row in table if OURS in row.cells)
    if faults:
        return f"**mqmesh lost, repeated, disordered or altered {faults:,} of {total:,} measured deliveries.**"
    return f"Of {total:,} measured deliveries mqmesh lost, repeated, disordered or altered none."
