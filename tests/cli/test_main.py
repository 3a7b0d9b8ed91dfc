"""The command `mqmesh` itself."""

from __future__ import annotations

import re
import subprocess
import sys

import mqmesh
import pytest
from mqmesh.cli.main import COMMANDS
from support.command import run

pytestmark = pytest.mark.process

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


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("brker", "Did you mean broker"),
        ("queues", "Did you mean queue?"),
        ("client", "Did you mean clients"),
        ("topology chek", "Did you mean check?"),
        ("xyz", "--help lists them."),
        ("broker --key secret", "--mesh-key"),
    ],
)
def test_a_wrong_name_gets_the_near_ones(typed: str, hint: str) -> None:
    done = run(*typed.split())
    assert done.returncode == 2
    assert hint in done.stderr.decode()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "broker"])
def test_h_is_help_where_it_is_nothing_else(command: str) -> None:
    text = run(command, "--help").stdout.decode()
    assert ("-h, --help" in text) == (not re.search(r"-h, --h?ost|-h HOST", text))


def test_commands_in_the_help_are_not_wrapped() -> None:
    done = run("broker", "-h", env={"COLUMNS": "60", "PATH": "/usr/bin"})
    assert "mqmesh broker --listen mqtts://127.0.0.1:8883 --tls-certificate tls/porto.crt --tls-key tls/porto.key\n" in done.stdout.decode()


def test_a_group_shows_whole_sentences_of_its_commands() -> None:
    assert "a broker may be running." in " ".join(run("store", "-h").stdout.decode().split())


@pytest.mark.parametrize("module", ["main", "messages.pub", "messages.sub", "broker", "fleet.command", "demo.command"])
def test_a_command_loads_nothing_heavy_before_it_is_used(module: str) -> None:
    code = f"import sys, mqmesh.cli.{module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
