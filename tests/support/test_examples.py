"""A usual run tries half of what the tests name; `make nightly` tries all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from support.schedule import TESTS

PROGRAM = 'from support.examples import examples, how_many; print(examples(100), how_many("MQMESH_OF_NOTHING", 7), examples(1))'


@pytest.mark.parametrize(
    ("environment", "tried"),
    [
        ({}, "50 3 1"),
        ({"MQMESH_EXAMPLES": "10"}, "1000 7 10"),
        ({"MQMESH_QUICK": "1"}, "10 1 1"),
        ({"MQMESH_OF_NOTHING": "2000"}, "50 2000 1"),
    ],
)
def test_how_much_a_run_tries(environment: dict[str, str], tried: str) -> None:
    clean = {key: value for key, value in os.environ.items() if key not in ("MQMESH_EXAMPLES", "MQMESH_QUICK")}
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, cwd=TESTS, env=clean | environment)
    assert said.strip() == tried


def test_nightly_tries_all_in_every_test() -> None:
    steps = re.search(r"^nightly:.*\n((?:\t.*\n)+)", (TESTS.parent / "Makefile").read_text(), re.MULTILINE)
    assert steps is not None
    assert re.search(r"MQMESH_EXAMPLES=\d+ \$\(BIN\)/pytest$", steps[1], re.MULTILINE)
