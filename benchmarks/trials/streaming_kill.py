"""The streaming job is killed (SIGKILL) and its tables are compared with a batch run: `python -m benchmarks.trials.streaming_kill`.

A journal grows while `mqmesh pipeline follow` keeps its tables current. The job and Spark's JVM are killed at random moments, every
other time between a micro-batch's offset and its commit, and started again on the same checkpoint. In the end the stream is closed, and
the tables are compared with those of `mqmesh pipeline run` over the same journal, row for row. Exit status 1 if a row differs.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from mqmesh.broker.journal.layout import Segment
from mqmesh.pipeline.registry import JOBS as KNOWN
from mqmesh.pipeline.run import Order as RunOrder
from mqmesh.pipeline.run import run
from mqmesh.pipeline.streaming.follow import JOBS
from mqmesh.pipeline.synthesis.synthesize import Order, synthesize
from mqmesh.pipeline.tables.tables import Tables
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import ROOT

PATIENCE = 600.0  # seconds without any progress
app = typer.Typer(add_completion=False)


class Growing:
    """A journal that gets the segments of another one piece by piece, those of one broker in the order of their events' numbers.

    A position of a journal is the last number that was read of a broker: a segment with lower numbers would count as read.
    """

    def __init__(self, full: Path, folder: Path) -> None:
        self.full, self.folder = full, folder
        self.left = sorted(full.glob("manifest/*/*.json"), key=lambda path: Segment.loaded(path.read_bytes()).first)
        for part in ("names", "counts"):
            if (full / part).exists():
                shutil.copytree(full / part, folder / part)

    def add(self, count: int) -> int:
        """Close so many more segments; how many are left."""
        for manifest in self.left[:count]:
            segment = Segment.loaded(manifest.read_bytes())
            for path in (segment.path, segment.name):
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                partial = self.folder / f"{path}.partial"
                shutil.copy(self.full / path, partial)
                partial.replace(self.folder / path)
        del self.left[:count]
        return len(self.left)


@dataclass
class Killed:
    """What a kill hit: between an offset and its commit, or anywhere."""

    between: int = 0
    elsewhere: int = 0


class Job:
    """The streaming job as a process group of its own, so that the JVM dies with it."""

    def __init__(self, folder: Path, once: bool = False) -> None:
        self.checkpoint = folder / "checkpoint"
        jobs = [name for name in JOBS if name in KNOWN]
        command = [sys.executable, "-m", "mqmesh.cli.main", "pipeline", "follow", *jobs, "--master", "local[2]", "--interval", "0.2"]
        command += ["--journal", folder / "journal", "--out", folder / "followed", "--checkpoint", self.checkpoint]  # type: ignore[list-item]
        self.log = (folder / "follow.log").open("ab")
        self.process = subprocess.Popen(
            [*map(str, command), *(["--once"] if once else [])], stdout=self.log, stderr=self.log, cwd=ROOT, start_new_session=True
        )

    def kill(self) -> bool:
        """SIGKILL for the job and its JVM; whether that is between an offset and its commit. They are stopped while that is looked at."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGSTOP)
        between = self.between
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        return between

    def newest(self, kind: str) -> int:
        """The highest number in the checkpoint's offsets or commits, -1 for none."""
        return max((int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*") if path.name.isdigit()), default=-1)

    @property
    def between(self) -> bool:
        """Whether a micro-batch has an offset and no commit."""
        return self.newest("offsets") > self.newest("commits")

    def wait_for(self, condition: Any) -> None:
        """RuntimeError when the job ends, or nothing happens for long."""
        ends = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError(f"the job ended by itself with status {self.process.returncode}: see {self.log.name}")
            if time.monotonic() > ends:
                raise RuntimeError(f"nothing happens: see {self.log.name}")
            time.sleep(0.005)


def rounds(folder: Path, growing: Growing, kills: int, chance: random.Random, bar: Any) -> Killed:
    """Kill and start again."""
    killed = Killed()
    piece = max(1, len(growing.left) // (kills + 1))
    for number in range(kills):
        growing.add(piece)
        job = Job(folder)
        before = job.newest("offsets")
        try:
            if number % 2 == 0 or chance.random() < 0.2:
                job.wait_for(lambda job=job, before=before: job.newest("offsets") > before and job.between)
                time.sleep(chance.uniform(0.0, 2.0))
            else:
                time.sleep(chance.uniform(1.0, 30.0))
        finally:
            between = job.kill()
        if between:
            killed.between += 1
        else:
            killed.elsewhere += 1
        bar()
    return killed


def differences(folder: Path) -> dict[str, int]:
    """table -> rows that only one side has."""
    made = {}
    for name in JOBS:
        for table in KNOWN[name].tables if name in KNOWN else ():
            sides = []
            for out in ("followed", "batch"):
                rows = Tables(str(folder / out)).arrow(table).to_pylist()
                sides.append(Counter(repr(sorted(row.items())) for row in rows))
            made[table] = ((sides[0] - sides[1]) + (sides[1] - sides[0])).total()
    return made


@app.command()
def main(
    kills: Annotated[int, typer.Option(help="How often the job is killed.", min=1)] = 20,
    events: Annotated[int, typer.Option(help="About how many events the journal has.", min=1000)] = 200_000,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 1,
) -> None:
    """Kill the streaming job and compare its tables with a batch run."""
    folder = Path(tempfile.mkdtemp(prefix="mqmesh-streaming-"))
    synthesize(Order(ROOT / "topologies" / "ring-of-five.toml", events=events, days=3, topics=100, seed=seed), folder / "full")
    growing = Growing(folder / "full", folder / "journal")
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("kills", total=kills + 2)
        killed = rounds(folder, growing, kills, random.Random(seed), lambda: progress.advance(task))
        growing.add(len(growing.left))
        job = Job(folder, once=True)
        if job.process.wait():
            raise RuntimeError(f"the job failed: see {folder / 'follow.log'}")
        progress.advance(task)
        names = tuple(name for name in JOBS if name in KNOWN)
        batch = run(RunOrder(str(folder / "full"), str(folder / "batch"), names, "local[2]"))
        progress.advance(task)
    if batch.failed:
        raise RuntimeError(f"the batch run failed: {[job.error for job in batch.jobs]}")
    wrong = differences(folder)
    print(f"killed {killed.between + killed.elsewhere} times, {killed.between} of them between a batch's offset and its commit")
    for table, count in wrong.items():
        print(f"  {table}: {Tables(str(folder / 'followed')).arrow(table).num_rows:,} rows, {count} differ")
    if any(wrong.values()):
        print(f"wrong; look in {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    app()
