"""Standard files that are closed when a program starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys
from mqmesh.base.process.descriptors import open_standard_files
open_standard_files()
assert sys.stdin.buffer.read() == b""
print("nobody reads this", file=sys.stdout, flush=True)
print("nor this", file=sys.stderr)
file = os.open(os.devnull, os.O_RDONLY)
sys.exit(100 + file)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_closed_is_nothing_and_its_number_is_taken(closed: str) -> None:
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode >= 103, done.stderr
