"""The table of a run: figures, ratios, the bar and whether it is reached, on the terminal, in JSON and in Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.runner import Cell, Settings
from benchmarks.scenarios import Scenario

OURS = "mqmesh"


@dataclass(slots=True)
class Row:
    """One scenario of a finished run."""

    scenario: Scenario
    cells: dict[str, Cell]

    def ratio(self, peer: str) -> float | None:
        """mqmesh to that peer: of rates, or of latencies."""
        ours, theirs = self.cells.get(OURS), self.cells.get(peer)
        if not ours or not theirs or not ours.value or not theirs.value:
            return None
        return ours.value / theirs.value

    def bars(self) -> list[tuple[str, float, float | None, bool | None]]:
        """(peer, bar, ratio, reached) for each bar; the last two are None where a figure is missing."""
        out: list[tuple[str, float, float | None, bool | None]] = []
        for peer, bar in self.scenario.bars.items():
            ratio = self.ratio(peer)
            reached = None if ratio is None else (ratio <= bar if self.scenario.latency else ratio >= bar)
            out.append((peer, bar, ratio, reached))
        return out

    def faults(self) -> int:
        """What mqmesh lost, repeated, disordered or altered."""
        return self.cells[OURS].faults if OURS in self.cells else 0


def rows(table: Iterable[Sequence[Cell]]) -> list[Row]:
    """The run as rows."""
    return [Row(cells[0].scenario, {cell.peer: cell for cell in cells}) for cells in table if cells]


def count(value: float) -> str:
    """A rate for people: 84 k, 1.23 M."""
    return f"{value / 1e6:.2f} M" if value >= 999_500 else f"{value / 1e3:.0f} k" if value >= 9_950 else f"{value / 1e3:.1f} k"


def times(ratio: float) -> str:
    """A ratio for people, to three digits."""
    return f"{ratio:.0f}" if ratio >= 99.95 else f"{ratio:.1f}" if ratio >= 9.995 else f"{ratio:.2f}"


def figure(cell: Cell | None) -> str:
    """A cell for people: a rate, or p50 / p99 in microseconds."""
    if cell is None:
        return "–"
    if cell.value is None:
        return "failed"
    if cell.scenario.latency and cell.scenario.gateway:
        return f"{cell.value * 1e6:.0f} ({(cell.median('p50') or 0) * 1e6:.0f} / {(cell.median('p99') or 0) * 1e6:.0f}) µs"
    if cell.scenario.latency:
        return f"{cell.value * 1e6:.0f} / {(cell.median('p99') or 0) * 1e6:.0f} µs"
    return count(cell.value)


def trouble(cell: Cell) -> str:
    """What was lost, repeated, out of order or altered; "" if nothing."""
    named = {"lost": "lost", "duplicates": "duplicated", "disorder": "out of order", "corrupt": "altered"}
    return ", ".join(f"{cell.total(key):,} {word}" for key, word in named.items() if cell.total(key))


def bar_text(row: Row) -> tuple[str, str, bool | None]:
    """The bar, the ratios reached and whether all are (None: cannot be said)."""
    sign = "≤" if row.scenario.latency else "≥"
    bars = row.bars()
    wanted = ", ".join(f"{sign} {bar:g} × {peer}" for peer, bar, _, _ in bars)
    states = [reached for _, _, _, reached in bars]
    ratios = ", ".join(f"{times(ratio)} × {peer}" for peer in row.cells if peer != OURS and (ratio := row.ratio(peer)) is not None)
    return wanted, ratios, None if not states or None in states else all(states)


def errors(table: list[Row]) -> list[tuple[str, str, list[str]]]:
    """(peer, error, names of the scenarios) for each thing that went wrong."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in table:
        for cell in row.cells.values():
            for error in cell.errors:
                found.setdefault((cell.peer, re.sub(r"127.0.0.1:\d+", "127.0.0.1:PORT", error)), []).append(row.scenario.name)
    return [(peer, error, names) for (peer, error), names in found.items()]


def terminal(table: list[Row], peers: Sequence[str]) -> Table:
    """The table for the terminal: below each peer's figure, how many times as much mqmesh's is."""
    out = Table(title="Deliveries per second (latency: p50 / p99)", title_justify="left")
    out.add_column("scenario", no_wrap=True)
    for peer in peers:
        out.add_column(peer, justify="right", no_wrap=True)
    out.add_column("mqmesh must reach", min_width=16)
    for row in table:
        out.add_row(row.scenario.name, *(_terminal_cell(row, peer) for peer in peers), _terminal_bars(row))
    return out


def _terminal_cell(row: Row, peer: str) -> str:
    cell = row.cells.get(peer)
    lines = [figure(cell)]
    ratio = row.ratio(peer)
    if ratio is not None and peer != OURS:
        lines.append(f"[dim]× {times(ratio)}[/]")
    if cell and (bad := trouble(cell)):
        lines.append(f"[red]{bad}[/]")
    return "\n".join(lines)


def _terminal_bars(row: Row) -> str:
    sign = "≤" if row.scenario.latency else "≥"
    marks = {None: "", True: " [green]met[/]", False: " [red]missed[/]"}
    return "\n".join(f"{sign} {bar:g} × {peer}{marks[reached]}" for peer, bar, _, reached in row.bars())


def cpu(table: list[Row], peers: Sequence[str]) -> Table:
    """CPU time of the broker for each delivery, and of the load generator in brackets."""
    out = Table(title="CPU microseconds for each delivery: broker (load generator)", title_justify="left")
    out.add_column("scenario", no_wrap=True)
    for peer in peers:
        out.add_column(peer, justify="right", no_wrap=True)
    for row in table:
        out.add_row(row.scenario.name, *(_cpu(row.cells.get(peer)) for peer in peers))
    return out


def _cpu(cell: Cell | None) -> str:
    broker, generator = (cell.per_message("broker_cpu"), cell.per_message("generator_cpu")) if cell else (None, None)
    return "–" if broker is None or generator is None else f"{broker * 1e6:.2f} ({generator * 1e6:.2f})"


def as_json(table: list[Row], machine: dict[str, Any], versions: dict[str, str], settings: Settings) -> dict[str, Any]:
    """The run for later readers, with every single measurement under "runs"."""
    return {
        "machine": machine,
        "versions": versions,
        "settings": {"seconds": settings.seconds, "warm_up": settings.warm_up, "repeat": settings.repeat},
        "scenarios": [_row_json(row) for row in table],
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "name": row.scenario.name,
        "title": row.scenario.title,
        "brokers": row.scenario.brokers,
        "spec": row.scenario.spec,
        "unit": "seconds" if row.scenario.latency else "deliveries per second",
        "bars": [{"peer": peer, "bar": bar, "ratio": ratio, "reached": reached} for peer, bar, ratio, reached in row.bars()],
        "peers": {peer: _cell_json(cell) for peer, cell in row.cells.items()},
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "median": cell.value,
        "p99": cell.median("p99") if cell.scenario.latency else None,
        "broker_cpu_per_delivery": cell.per_message("broker_cpu"),
        "generator_cpu_per_delivery": cell.per_message("generator_cpu"),
        "faults": cell.faults,
        "runs": cell.results,
    }


def without_runs(data: dict[str, Any]) -> dict[str, Any]:
    """The same without the single measurements: what is committed."""
    scenarios = []
    for scenario in data["scenarios"]:
        peers = {name: {key: value for key, value in cell.items() if key != "runs"} for name, cell in scenario["peers"].items()}
        scenarios.append({**scenario, "peers": peers})
    return {**data, "scenarios": scenarios}


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write it, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
