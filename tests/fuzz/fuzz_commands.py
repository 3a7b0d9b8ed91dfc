"""Fuzzing of the command line: every command with options and arguments that people mistype, and files that are something else.

By hand:  python -m tests.fuzz.fuzz_commands --for 600          seeded rounds; prints the seed
          python -m tests.fuzz.fuzz_commands --seed 7 --runs 1  one round again; --json for a report in JSON

`check` is the contract: a command ends with a status of its own, and whoever gets another one than 0 is told why, without a traceback.
Commands that serve until they are stopped, and those that start Spark, are left out. Nothing leaves this machine.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import typer
from mqmesh.cli import main
from support.command import run

from .runs import main_of

CALLS = 12  # of a round
STATUSES = (0, 1, 2, 3, 4)
SERVERS = ("broker", "up", "demo", "attach", "directory serve", "interchange serve", "metabroker run", "pipeline", "journal follow", "sub")
# Options that name a server: what is given there would be looked for in the network.
REACHING = ("host", "url", "otlp", "address", "broker", "directory", "journal", "tables")
CLOSED = ("mqtt://127.0.0.1:1", "http://127.0.0.1:1", "ftp://127.0.0.1:1/x", "postgresql://x@127.0.0.1:1/x", "mqtt://user:pw@127.0.0.1:1/x")
NONE = ("http://[::1", "mqtt://127.0.0.1:99999", "", "-1", "#", "{folder}/none/x", "{folder}", "{folder}/binary")
FILES = {
    "binary": bytes(range(256)) * 8,
    "half.json": b'{"a": [1, 2',
    "half.toml": b"x = [1",
    "empty": b"",
    "broker.toml": b'name = "x"\nlisten = ["mqtt://127.0.0.1:0"]\n',
    "deep.json": b"[" * 100_000,
}
VALUES = (
    *CLOSED,
    *NONE,
    *("{folder}/" + name for name in FILES),
    *("0", "99999999999999999999", "1e309", "nan", "ü", "a" * 3000, "orders", "+/a", "a/#/b", "$queue/x", '{"a":', "{}", "[]", "5s"),
    *("2020-01-01", "9999-99-99", "now", "*", "-", "1,2,x", "00:00-25:00", "\udcff"),
)


@cache
def commands() -> list[tuple[tuple[str, ...], Any]]:
    """All that end by themselves: the words of each, and the command."""
    found = list(_commands((), typer.main.get_command(main.app), None))
    return [(words, command) for words, command in found if not f"{' '.join(words)} ".startswith(tuple(f"{one} " for one in SERVERS))]


def _commands(words: tuple[str, ...], command: Any, parent: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = command.context_class(command, parent=parent)
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    for name in command.list_commands(context):
        yield from _commands((*words, name), command.get_command(context, name), context)


def call(chance: random.Random) -> list[str]:
    """The words of a command that somebody got wrong. `{folder}` is to be replaced."""
    words, command = chance.choice(commands())
    given = list(words)
    for one in command.params:
        values = (*CLOSED, *NONE) if one.name in REACHING else VALUES
        if one.param_type_name == "argument":
            count = 1 if one.required else chance.randrange(3)
            given += [chance.choice(values) for _ in range(count if one.nargs != 1 else min(count, 1))]
        elif one.name == "help" or chance.random() > (0.9 if one.required else 0.25):
            continue
        elif getattr(one, "is_flag", False):
            given.append(chance.choice(one.opts))
        else:
            choices = getattr(one.type, "choices", None)
            given += [chance.choice(one.opts), chance.choice([*choices, "bogus"] if choices else values)]
    return given


def furnish(folder: Path) -> None:
    """The files that are something else than what is asked for."""
    for name, data in FILES.items():
        (folder / name).write_bytes(data)


def check(words: list[str], folder: Path) -> str:
    """What becomes of a call; AssertionError if it does not end as a command does."""
    given = [word.format(folder=folder) if word.startswith("{folder}") else word for word in words]
    try:
        done = run(*given, cwd=folder, timeout=60)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it does not end: {given}") from None
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said, f"{given}: {said[-2000:]}"
    assert done.returncode in STATUSES, f"{given}: {done.returncode} {said[-2000:]}"
    assert done.returncode == 0 or said.strip(), f"{given}: it ends with {done.returncode} and does not say why"
    return f"{words[0]}: {done.returncode}"


def round_of(seed: int) -> Counter[str]:
    """Some calls: what became of them."""
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mqmesh-fuzz-") as name:
        for number in range(CALLS):
            folder = Path(name) / str(number)
            folder.mkdir()
            furnish(folder)
            outcomes[check(call(chance), folder)] += 1
    return outcomes


if __name__ == "__main__":
    main_of(__doc__, round_of)
