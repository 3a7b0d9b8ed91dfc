"""The order of test files in a parallel run: the longest first, so that no process is left with a long file at the end.

`SECONDS` has the files that take longest, measured alone on a quiet machine. The figures need not be exact: they only give an order.
`make test` prints the 25 slowest tests at its end.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
SECONDS = {
    "faults/test_ring.py": 60,
}
OTHERS = 1.0  # seconds of a file that is not listed


def seconds(path: Path) -> float:
    """How long the tests of a file take, roughly."""
    return SECONDS.get(path.relative_to(TESTS).as_posix(), OTHERS)
