"""Run `mqmesh` as its users do: as a process."""

from __future__ import annotations

import atexit
import subprocess
import sys
from pathlib import Path
from typing import Any

from mqmesh.broker.auth import passwords

MQMESH = [sys.executable, "-m", "mqmesh.cli.main"]
PATIENCE = 90.0


def run(*arguments: object, stdin: bytes = b"", timeout: float = PATIENCE, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run to the end; stdout and stderr are bytes."""
    return subprocess.run([*MQMESH, *map(str, arguments)], input=stdin, capture_output=True, timeout=timeout, **options)


def start(*arguments: object, stderr: Path | None = None, **options: Any) -> subprocess.Popen[str]:
    """Run in the background; the caller reads `stdout` and ends it.

    What a failing test leaves behind ends with the tests: everything at their end, brokers however the tests die.
    """
    command = [*MQMESH, *map(str, arguments)]
    if arguments[0] == "broker" and "stdin" not in options:
        command.append("--stop-with-stdin")
        options["stdin"] = subprocess.PIPE
    errors = stderr.open("w") if stderr is not None else subprocess.DEVNULL
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, **options)
    finally:
        if stderr is not None:
            errors.close()  # type: ignore[union-attr]
    _started.append(process)
    return process


def start_with_users(folder: Path, *lines: str) -> subprocess.Popen[str]:
    """A broker with the users ops and alice in `folder`/users, password pw, once it is ready. lines: its file; its log is `folder`/log."""
    for name in ("ops", "alice"):
        passwords.change(folder / "users", name, b"pw")
    (folder / "site.toml").write_text("\n".join(lines) + "\n")
    process = start("broker", "--config", folder / "site.toml", stderr=folder / "log")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready"), (folder / "log").read_text()
    return process


_started: list[subprocess.Popen[str]] = []


@atexit.register
def _end_what_is_left() -> None:
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.wait()
