"""Run many seeds: ``python -m tests.simulation --seeds 2000 --start 0``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections import Counter

from rich.progress import track

from .clones import Clones
from .portions import portions_of
from .queues import scenario as queues
from .recipients import scenario as recipients
from .recipients.broker import sliced
from .scenario import Scenario

WHOLE = {"recipients": recipients, "queues": queues}  # modes with whole brokers


def main() -> int:
    """The number of failing seeds is printed, the first one's traceback too; exit status 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--mode",
        choices=("routed", "flood", "policy", "lies", "clones", "recipients", "queues", "both"),
        default="both",
        help="how QoS 0 travels, or: policies, brokers that lie, copies of data folders, recipients that hang, queues",
    )
    parser.add_argument("--turns", action="store_true", help="recipients, queues: every message is delivered in turns, however few get it")
    parser.add_argument("--portions", type=int, help="no more filters than this are taken in one go")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds though one has failed")
    given = parser.parse_args()
    if given.mode in WHOLE and os.environ.get("PYTHONHASHSEED", "random") == "random":  # the order of their sets is the seed's too
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})
    failed = []
    messages = deliveries = frames = 0
    ended: Counter[str] = Counter()  # of messages for recipients, of queues
    began = time.perf_counter()
    for seed in track(range(given.start, given.start + given.seeds), description="seeds", disable=not sys.stderr.isatty()):
        mode = mode_of(seed) if given.mode == "both" else given.mode
        try:
            if mode in WHOLE:
                with sliced(seed) if given.turns else contextlib.nullcontext():
                    told = WHOLE[mode].run(seed)
                messages += len(told.messages)
                deliveries += sum(told.counts.values())
                ended += Counter(told.counts)
                continue
            with portions_of(given.portions) if given.portions else contextlib.nullcontext():
                world = (Clones(seed) if mode == "clones" else Scenario(seed, mode)).run()
            messages += len(world.ledger.messages)
            deliveries += len(world.ledger.got) + len(world.ledger.got_share)
            frames += world.frames
        except Exception as error:
            failed.append(seed)
            if len(failed) <= 3 or not given.keep_going:
                traceback.print_exc()
            print(f"seed {seed} ({mode}): {error!r:.300}", file=sys.stderr)
            print(f"repeat it: python -m tests.simulation --seeds 1 --start {seed} --mode {mode}", file=sys.stderr)
            if not given.keep_going:
                break
    took = time.perf_counter() - began
    counts = f"{messages} messages, {deliveries} deliveries, {frames} frames"
    if ended:
        counts = f"{messages} messages, " + ", ".join(f"{count} {what}" for what, count in sorted(ended.items()))
    print(f"{given.seeds} seeds in {took:.1f} s: {counts}; failed: {failed[:20] or 'none'}")

    return bool(failed)


def mode_of(seed: int) -> str:
    """Every tenth seed floods its QoS 0, two of ten have policies on their links, in one brokers sign, and some lie."""
    return {9: "flood", 4: "policy", 7: "policy", 3: "lies"}.get(seed % 10, "routed")


if __name__ == "__main__":
    sys.exit(main())
