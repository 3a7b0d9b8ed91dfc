"""Freed memory stays with the process: what is allocated again needs no new pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from mqmesh.base.process.memory import keep_freed_memory
assert keep_freed_memory()
blocks = [bytearray(500_000) for _ in range(4)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    blocks = [bytearray(500_000) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_blocks_are_used_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000  # 200 x 4 blocks of 123 pages would be 98,000
