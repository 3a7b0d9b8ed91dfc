"""What tests on meshes under load share: the scenes of `benchmarks/` and the judgement of a round."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.services import PATIENCE

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:  # `benchmarks` stands outside the wheel
    sys.path.append(ROOT)

from benchmarks.trials.load import Load  # noqa: E402
from benchmarks.trials.scene import Fault, Round, Scene, mesh  # noqa: E402

__all__ = ["FIVE", "RING", "SIZES", "TRIANGLE", "Fault", "Load", "Round", "Scene", "assert_clean", "both", "mesh", "until"]

RING = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]
TRIANGLE = [("a", "b"), ("b", "c"), ("c", "a")]
FIVE = [(one, other) for one in "abcde" for other in "abcde" if one < other]
SIZES = (64, 64, 64, 18, 1000, 64, 300, 9000)


def assert_clean(result: Round) -> None:
    """Nothing lost, doubled or out of order; the figures go to the test's output."""
    print(result)
    assert result.ok, str(result)


def both(one: Fault, other: Fault) -> Fault:
    """Two faults at once."""

    def begin() -> None:
        one.begin()
        other.begin()

    def end() -> None:
        one.end()
        other.end()

    return Fault(f"{one.what}; {other.what}", begin, end, one.gone | other.gone, one.cut + other.cut)


async def until(moved: asyncio.Event, condition: Callable[[], bool], what: str, log: Path | None = None) -> None:
    """Wait until it is so; it changes with what clients hear, who then set `moved`. While they hear something there is no end to it but the
    test's. log: a broker's, shown if it never is."""
    while not condition():
        moved.clear()
        try:
            async with asyncio.timeout(PATIENCE):
                await moved.wait()
        except TimeoutError:
            pytest.fail(f"it never came to this: {what}{_end_of(log)}")


def _end_of(log: Path | None) -> str:
    return f"; the log: {log.read_text()[-2000:]}" if log is not None else ""
