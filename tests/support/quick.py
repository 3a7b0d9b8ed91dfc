"""The tests of `make quick` (MQMESH_QUICK=1): units, and a sample of the simulation.

A test is one of them if its folder is in `FOLDERS`, its file shares no server with others (`schedule.GROUPS`), and it has none of the marks
in `LEFT_OUT`. It tries a part of its examples and seeds (support/examples.py). `make test` runs every test.
A test that starts a process is marked `process`; without the mark it fails in a quick run. The simulation may: it starts interpreters in
which the order of sets is known.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any

import pytest

from . import schedule

FOLDERS = (
    *("base", "broker", "client", "contract", "interchange"),
    *("mesh", "metabroker", "mqtt", "pipeline", "simulation", "store"),
)
LEFT_OUT = ("slow", "service", "process")  # marks
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")  # what the interpreter calls a new process

watching = False  # whether the test that runs is to start no process


def may_have(path: PurePath) -> bool:
    """Whether a folder or file can have some of them; `path` begins at the folder of the tests."""
    return not path.parts or (path.parts[0] in FOLDERS and schedule.group(path.as_posix()) == path.as_posix())


def has(item: pytest.Item) -> bool:
    """Whether a test of such a file is one of them."""
    return not any(item.get_closest_marker(mark) for mark in LEFT_OUT)


def watch(folder: str) -> None:
    """Before a test of this folder runs."""
    global watching
    watching = folder != "simulation"


def forbid_processes() -> None:
    """From now on a test that starts a process fails while it is watched."""

    def heard(event: str, _: tuple[Any, ...]) -> None:
        if watching and event in STARTS:
            raise AssertionError("this test starts a process: give it the mark `process`, by which `make quick` leaves it out")

    sys.addaudithook(heard)
