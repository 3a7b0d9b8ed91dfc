"""Message table, latency, traffic and usage by the pipeline on Spark and by DuckDB, over the same made journal: `python -m
benchmarks.pipeline`.

Both write Parquet files. Each runs in a process of its own with two threads; Spark's driver has 1 GiB. Memory is the resident memory of
the process and its children together, looked at every 50 ms; what they share counts once, because a JVM that starts a program is two for a
moment. The time of Spark's start is shown apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from mqmesh.cli.tables import titled_table
from mqmesh.pipeline.synthesis.synthesize import Order, synthesize
from rich.console import Console

ROOT = Path(__file__).parents[2]
RING = ROOT / "topologies" / "ring-of-five.toml"
app = typer.Typer(add_completion=False)


@app.command()
def main(
    events: Annotated[list[int] | None, typer.Option(help="Sizes of journals; again for more.")] = None,
    folder: Annotated[Path, typer.Option(help="Where journals are kept and tables are written.")] = Path("/tmp/mqmesh-pipeline"),
    memory: Annotated[str, typer.Option(help="Of Spark's driver.")] = "1g",
    output: Annotated[Path | None, typer.Option(help="A file for the figures, as JSON.")] = None,
) -> None:
    """Compare, and print a table."""
    rows = []
    for count in events or [5_000_000]:
        journal = folder / f"journal-{count}"
        if not (journal / "truth.json").exists():
            print(f"making {count:,} events in {journal}", file=sys.stderr, flush=True)
            synthesize(Order(RING, events=count), journal)
        for engine in ("duckdb", "spark"):
            command = [sys.executable, "-m", f"benchmarks.pipeline.on_{engine}", str(journal), str(folder / f"out-{engine}"), memory]
            row = {"engine": engine, **_measured(command)}
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    _show(rows)
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))


def _measured(command: list[str]) -> dict[str, Any]:
    """What the process says in its last line, its resident memory at most, and its processor time."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    peak, spent = [0], [0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, spent), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {**json.loads(said.strip().splitlines()[-1]), "peak_mib": peak[0] >> 20, "processor": round(spent[0], 1)}


def _watch(pid: int, peak: list[int], spent: list[float]) -> None:
    while psutil.pid_exists(pid):
        resident, processor = 0, 0.0
        try:
            parent = psutil.Process(pid)
            if parent.status() == psutil.STATUS_ZOMBIE:
                return
            for one in (parent, *parent.children(recursive=True)):
                resident += one.memory_full_info().pss
                processor += sum(one.cpu_times()[:2])
        except psutil.Error:
            pass
        peak[0], spent[0] = max(peak[0], resident), max(spent[0], processor)
        time.sleep(0.05)


def _show(rows: list[dict[str, Any]]) -> None:
    table = titled_table(
        "two threads", "events", "engine", "start s", "jobs s", "processor s", "peak MiB", "times DuckDB", left=("engine",)
    )
    duck: dict[int, float] = {}
    spark: list[tuple[int, float]] = []
    for row in rows:
        if row["engine"] == "duckdb":
            duck[row["events"]] = row["seconds"]
        else:
            spark.append((row["events"], row["seconds"]))
        ratio = f"{row['seconds'] / duck[row['events']]:.2f}"
        numbers = (f"{row['start']:.1f}", f"{row['seconds']:.1f}", f"{row['processor']:.0f}", f"{row['peak_mib']:,}")
        table.add_row(f"{row['events']:,}", row["engine"], *numbers, ratio)
    console = Console(highlight=False)
    console.print(table)
    if len(spark) > 1:
        (a, b), (c, d) = spark[0], spark[-1]
        console.print(f"slope of Spark from {a:,} to {c:,} events: {(d - b) / (c - a) * 1e6:.2f} us an event")


if __name__ == "__main__":
    app()
