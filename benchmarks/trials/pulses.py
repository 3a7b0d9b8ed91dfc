"""Clients that publish to themselves while something happens to their brokers (`pulse.py`): the longest time of a message at each site."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import typer
from mqmesh.cli.tables import titled_table
from rich.console import Console

from benchmarks.peers import ROOT

LONGEST = 0.25  # seconds that a message may take: what a link takes for silence is 0.8


class Pulses:
    """One process for each site, whose lines are in `folder`. Use it with `with`: all of them end there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Pulses:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, site: str, address: tuple[str, int]) -> None:
        """Start the client of a site."""
        host, port = address
        out = self._stack.enter_context(self._lines(site).open("w"))
        command = [sys.executable, "-m", "benchmarks.trials.pulse", host, str(port), "127.0.0.1"]
        self._processes[site] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, cwd=ROOT)
        self._stack.callback(self._processes[site].kill)

    def wait(self) -> None:
        """Until all have had a message."""
        while not all(self._lines(site).read_text().count("\n") > 1 for site in self._processes):
            time.sleep(0.05)

    def end(self) -> dict[str, float]:
        """Stop them; by site, the longest time that a message took, in seconds."""
        waited = {}
        for site, process in self._processes.items():
            process.communicate()
            waited[site] = max(float(line.split()[1]) for line in self._lines(site).read_text().splitlines()[1:])
        return waited

    def _lines(self, site: str) -> Path:
        return self._folder / f"pulse-{site}"


def slow(waited: dict[str, float]) -> list[str]:
    """What took too long, one line each."""
    return [f"a message at {site} took {took:.2f} s" for site, took in waited.items() if took > LONGEST]


def report(
    console: Console, title: str, waited: dict[str, float], line: str, problems: list[str], figures: dict[str, object] | None
) -> None:
    """Say what a trial has found, as a table, or (figures) as one JSON object on stdout. Raises Exit if something went wrong."""
    if figures is not None:
        print(json.dumps({**figures, "waited": waited, "problems": problems}))
    else:
        table = titled_table(title, "", *waited, left=("",))
        table.add_row("longest wait, ms", *(f"{1000 * took:.1f}" for took in waited.values()))
        console.print(table)
        console.print(line, highlight=False)
        for problem in problems:
            console.print(f"[red]{problem}[/]", highlight=False)
    if problems:
        raise typer.Exit(1)
