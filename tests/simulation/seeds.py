"""Seeds of whole brokers for a test: in a process of their own, where the order of sets is the same in every run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_seeds(mode: str, start: int, count: int, *more: str, hashes: str = "0") -> str:
    """What became of the messages. AssertionError with what the simulation says. more: options. hashes: PYTHONHASHSEED."""
    command = [sys.executable, "-m", "tests.simulation", "--mode", mode, "--start", str(start), "--seeds", str(count), *more]
    environment = {**os.environ, "PYTHONHASHSEED": hashes}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr + done.stdout
    return done.stdout.partition(" s: ")[2]
