"""The command `mqmesh` itself."""

from __future__ import annotations

import subprocess
import sys

import mqmesh
import pytest
from mqmesh.cli.main import COMMANDS
from support.command import run

HEAVY = ("networkx", "paho", "psutil", "rich", "asyncio", "uvloop", "msgpack", "matplotlib", "mqmesh.broker", "mqmesh.mesh")


def test_version() -> None:
    assert run("--version").stdout.decode() == f"mqmesh {mqmesh.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_teaches_by_examples(command: str) -> None:
    done = run(command, "--help", env={"COLUMNS": "150", "PATH": "/usr/bin"})
    assert done.returncode == 0
    text = done.stdout.decode()
    assert f"mqmesh {command} " in text.partition("Usage")[2].partition("\n")[2]
    assert COMMANDS[command][2] in " ".join(text.split())  # what `mqmesh --help` says of it


def test_unknown_commands_are_refused() -> None:
    done = run("pubb")
    assert done.returncode == 2
    assert b"pubb" in done.stderr


@pytest.mark.parametrize("module", ["main", "pub", "sub", "broker", "fleet.command", "demo.command"])
def test_a_command_loads_nothing_heavy_before_it_is_used(module: str) -> None:
    code = f"import sys, mqmesh.cli.{module}; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
