"""The command line of a fuzzer: rounds by seed for some time, what came of them, and what they cost in memory."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import psutil

FIRST = 20  # rounds behind which memory has settled
GROWTH = 64 * 2**20  # bytes that a long run may need more at its end than after its first rounds: what allocators keep


class Report(NamedTuple):
    """What a run did. grown: bytes of resident memory behind the first rounds. slowest: seconds of the slowest round, and its seed."""

    seed: int
    rounds: int
    inputs: int
    outcomes: dict[str, int]
    seconds: float
    grown: int
    slowest: tuple[float, int]
    failures: list[tuple[int, str]]  # seeds of rounds that failed, and how


def run(
    round_of: Callable[[int], Counter[str]], count: Callable[[Counter[str]], int], seed: int, seconds: float, runs: int | None
) -> Report:
    """Rounds from a seed on. count: inputs in the outcomes. A round that fails is told on standard error, the next one follows."""
    outcomes: Counter[str] = Counter()
    begin = time.monotonic()
    process = psutil.Process()
    rounds = settled = 0
    slowest = (0.0, seed)
    failures: list[tuple[int, str]] = []
    while rounds < runs if runs is not None else time.monotonic() < begin + seconds:
        start = time.monotonic()
        try:
            outcomes += round_of(seed + rounds)
        except Exception as error:
            print(f"failed at --seed {seed + rounds} --runs 1", file=sys.stderr)
            traceback.print_exc()
            failures.append((seed + rounds, f"{type(error).__name__}: {error}"[:300]))
        slowest = max(slowest, (time.monotonic() - start, seed + rounds))
        rounds += 1
        gc.collect()  # what is left behind then is held by something
        if rounds == FIRST:
            settled = process.memory_info().rss
    grown = process.memory_info().rss - settled if settled else 0
    return Report(seed, rounds, count(outcomes), dict(outcomes.most_common()), time.monotonic() - begin, grown, slowest, failures)


def main_of(text: str | None, round_of: Callable[[int], Counter[str]], count: Callable[[Counter[str]], int] = Counter.total) -> None:
    """The command line; ends with status 1 when a round has failed or memory has grown."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=float, default=60.0, help="seconds to run (60)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (random)")
    parser.add_argument("--runs", type=int, default=None, help="rounds; without it, as many as fit the time")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each refusal is told there
    seed = options.seed if options.seed is not None else random.randrange(2**31)
    report = run(round_of, count, seed, options.seconds, options.runs)
    if options.json:
        print(json.dumps(report._asdict(), indent=1))
    else:
        failed, grown = len(report.failures) or "no", report.grown / 2**20
        print(f"{report.inputs} inputs from seed {seed}, {failed} failure(s); memory grew by {grown:.1f} MiB behind {FIRST} rounds")
        for outcome, number in report.outcomes.items():
            print(f"{number:10} {outcome}")
    if report.failures:
        sys.exit(f"{len(report.failures)} round(s) failed")
    if report.grown > GROWTH:
        sys.exit("memory grew too much")
