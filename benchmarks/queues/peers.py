"""Queues beside other products, in one run: `python -m benchmarks.queues.peers`.

Four publishers and four members of one pool, put and done at once, 2,000 messages unconfirmed; each product over its own protocol. The
load generator (`load/`, in C: it is compiled for the run) is the same for all, has a core of its own, and says what processor time it
took. It checks every payload, and counts what was lost or came again. Products take turns, each with a fresh server; the median counts.

    in order    payloads of 64 to 256 bytes; members acknowledge in the order in which messages come; AMQP with `multiple`
    at random   in any order, one by one: AMQP without `multiple`, Redis with names in any order
    uniform     payloads of 160 bytes, in order
    properties  in order; MQTT 5, priorities 0 to 9, an expiry, a user property; others have nothing like that, and stay as they are
    reordering  the same with members that say that they order what they have by priority
    alone       one message at a time, from its first byte to its confirmation

Streams of other products keep what is done, because that is faster there than to delete it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers import PeerError
from benchmarks.queues.products import DEFAULT, PRODUCTS, USER, Product

SOURCES = Path(__file__).parent / "load"
PATIENCE = 60.0  # seconds that a server may take until it serves
# row -> (order or alone, sizes, what clients say of it)
ROWS = {
    "in order": ("order", "mixed", ""),
    "at random": ("random", "mixed", ""),
    "uniform": ("order", "uniform", ""),
    "properties": ("order", "mixed", "properties"),
    "reordering": ("order", "mixed", "reorders"),
    "alone": ("alone", "mixed", ""),
}
app = typer.Typer(add_completion=False)


def compiled(folder: Path) -> Path:
    """The load generator. PeerError: there is no compiler."""
    program = folder / "load"
    try:
        subprocess.run(["cc", "-O2", "-o", str(program), *sorted(map(str, SOURCES.glob("*.c")))], check=True)
    except FileNotFoundError:
        raise PeerError("there is no C compiler (apt install gcc)") from None
    return program


def processor(pids: list[int]) -> float:
    """Seconds of processor time of these processes and of all that they have started."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            try:
                times = each.cpu_times()
            except psutil.NoSuchProcess:  # its parent has its time now
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def generator(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The load generator with its connections, on the last core. It waits for a line. A server that does not serve yet is tried again."""
    cores = sorted(os.sched_getaffinity(0))
    end = time.monotonic() + PATIENCE
    while True:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            os.sched_setaffinity(process.pid, cores[-1:])
            if process.stdout.readline() == "ready\n":
                yield process
                return
            if time.monotonic() > end:
                raise PeerError(f"the load generator: {process.stderr.read().strip()}")
        time.sleep(0.2)


def measured(program: Path, product: Product, row: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One measurement with a fresh server. PeerError if it fails, or if messages are lost."""
    how, sizes, said = ROWS[row]
    protocol = product.protocols.get(said, product.protocol)
    deployment = product.deploy(folder)
    try:
        with generator([str(program), protocol, str(deployment.ports[0]), str(seconds), how, sizes, USER]) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            before = processor(deployment.pids)
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.readline()
            if not said:
                raise PeerError(f"{row}: {process.stderr.read().strip()}")
            found: dict[str, Any] = json.loads(said)
            found["server"] = processor(deployment.pids) - before
            process.stdin.close()
    finally:
        deployment.stop()
    if found["lost"]:
        raise PeerError(f"{row}: {found['lost']} messages were lost")
    return found


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of a cell."""
    found: dict[str, Any] = {"again": sum(one["again"] for one in results), "messages": sum(one["messages"] for one in results)}
    found["rate"] = statistics.median(one["messages"] / one["seconds"] for one in results)
    for key in ("server", "generator"):
        found[key] = statistics.median(one[key] / one["messages"] for one in results)
    for key in ("p50", "p99"):
        found[key] = statistics.median(one[key] for one in results)
    return found


def shown(table: dict[str, dict[str, dict[str, Any]]], names: list[str]) -> Table:
    """Rates and processor time a message; where one message goes alone, its time."""
    text = Table("", *names, title="messages/s; processor time a message: server, generator")
    for row, cells in table.items():
        words = []
        for name in names:
            one = cells.get(name)
            if one is None:
                words.append("-")
            elif row == "alone":
                words.append(f"{1e6 * one['p50']:.0f} us, p99 {1e6 * one['p99']:.0f} us\n{1e6 * one['server']:.0f} us")
            else:
                words.append(f"{one['rate'] / 1e3:,.0f} k\n{1e6 * one['server']:.2f} us, {1e6 * one['generator']:.2f} us")
        text.add_row(row, *words)
    return text


@app.command()
def main(
    products: Annotated[str, typer.Option(help=f"Separated by commas, of {', '.join(PRODUCTS)}.")] = ",".join(DEFAULT),
    only: Annotated[str, typer.Option(help="Rows that contain one of these parts, separated by commas.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Measurements of each product in each row; the median counts.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long messages are put.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Measure queues beside other products."""
    console = Console(stderr=as_json)
    names = [name.strip() for name in products.split(",")]
    for name in names:
        if name not in PRODUCTS:
            raise typer.BadParameter(f"no product is called {name!r}; there are {', '.join(PRODUCTS)}", param_hint="--products")
    rows = [row for row in ROWS if not only or any(part.strip() in row for part in only.split(","))]
    table: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="mqmesh-queues-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        program = compiled(folder)
        for row in rows:
            results: dict[str, list[dict[str, Any]]] = {}
            for turn in range(repeat):
                for name in names:
                    try:
                        place = folder / f"{rows.index(row)}-{names.index(name)}-{turn}"
                        results.setdefault(name, []).append(measured(program, PRODUCTS[name], row, seconds, place))
                    except PeerError as error:
                        console.print(f"{name}: {error}", style="red", markup=False)
            table[row] = {name: summary(found) for name, found in results.items() if found}
    if as_json:
        print(json.dumps(table))
        return
    for name in names:
        console.print(f"{name}: {PRODUCTS[name].version()}", highlight=False)
    console.print(shown(table, names))


if __name__ == "__main__":
    app()
