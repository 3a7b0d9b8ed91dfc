"""A short run of the fuzzing of commands; `fuzz_commands.py` runs longer by hand. What it has found stays tried."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.command import run

from .fuzz_commands import call, check, commands, furnish, round_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["store", "check", "http://[::1"], "mqmesh: store check: store http://[::1: Invalid IPv6 URL: memory:, sqlite:///path/file.db, "),
        (["journal", "ls", "ftp://127.0.0.1:1/x"], "ftp://127.0.0.1:1/x: [Errno 111] Connection refused"),
        (["broker", "--worker", "/dev/null"], "mqmesh: /dev/workers.json: No such file or directory\n"),
        (["pipeline", "tables", "--out", ""], "the path is empty: give a folder or a URL\n"),
        (["interchange", "audit", "verify", "--database", "http://[::1"], "http://[::1: invalid literal for int()"),
        (["journal", "ls", ""], "the path is empty: give a folder or a URL\n"),
        (
            ["directory", "serve", "--listen", "127.0.0.1:0", "--cert", "{folder}/none", "--key", "{folder}/none"],
            "{folder}/none: No such file or directory\n",
        ),
        (
            ["interchange", "serve", "--broker", "mqtt://127.0.0.1:1", "--cert", "{folder}/binary", "--key", "{folder}/binary"],
            "{folder}/binary, {folder}/binary: no certificate with its key (no pem): give PEM files\n",
        ),
        (["interchange", "export", "--data", "x", "--otlp", "http://[::1"], '"http://[::1" is no address of a collector'),
        (["directory", "find", "--url", "http://127.0.0.1:99999"], "write http://host:port or https://host:port"),
    ],
)
def test_what_was_given_is_named(words: list[str], said: str, tmp_path: Path) -> None:
    furnish(tmp_path)
    done = run(*[word.format(folder=tmp_path) for word in words], cwd=tmp_path)
    error = done.stderr.decode()
    assert done.returncode in (1, 2)
    assert error.count("\n") == 1, error
    assert said.format(folder=tmp_path) in error, error


@pytest.mark.parametrize("seed", range(2))
def test_commands_say_what_is_wrong(seed: int) -> None:
    outcomes = round_of(seed)
    assert sum(count for outcome, count in outcomes.items() if not outcome.endswith(": 0"))


def test_the_check_finds_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would say nothing."""
    monkeypatch.setattr("support.command.MQMESH", ["/usr/bin/python3", "-c", "raise KeyError", ";"])
    with pytest.raises(AssertionError, match="KeyError"):
        check(["status"], tmp_path)


def test_the_calls_of_a_seed_are_the_same() -> None:
    assert [call(random.Random(seed)) for seed in range(5)] == [call(random.Random(seed)) for seed in range(5)]
    assert len(commands()) > 60
