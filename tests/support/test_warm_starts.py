"""Clones of the helper are like processes that the interpreter starts anew (support/warm_starts.py)."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support import warm_starts
from support.command import MQMESH, PATIENCE

BROKER = [*MQMESH, "broker", "--listen", "mqtt://127.0.0.1:0", "--stop-with-stdin"]
PIPE = subprocess.PIPE


@pytest.fixture(autouse=True)
def _with_clones() -> None:
    if not isinstance(getattr(subprocess, "_fork_exec", None), warm_starts._Starter):
        pytest.skip("all starts are true ones")


def both(start: Callable[[], Any]) -> tuple[Any, Any]:
    """What `start` returns with a clone and with a true start."""
    clone = start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_starts, "enabled", False)
        return clone, start()


def is_clone(process: subprocess.Popen[Any]) -> bool:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().endswith(b"\0\0")


def files_of(pid: int) -> dict[int, str]:
    """Number -> what it is. A broker opens and closes some all the time."""
    found = {}
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(one.name)] = os.readlink(one)
    return found


def seen(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What the system says of a broker that is ready, and how it ends."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    here = Path(f"/proc/{process.pid}")
    _, parent, group, session, terminal, *_ = (here / "stat").read_text().rpartition(")")[2].split()
    own = str(process.pid)
    status = dict(line.split(":\t") for line in (here / "status").read_text().splitlines())
    files, callers = files_of(process.pid), {one for one in files_of(os.getpid()).values() if one.startswith(("pipe:", "socket:"))}
    line = (here / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    process.terminate()
    return {
        "parent": parent,
        "group": "own" if group == own else group,
        "session": "own" if session == own else session,
        "terminal": terminal,
        "line": line,
        "first files": [re.sub(r"\d+", "", files[at]) for at in range(3)],
        "files of the caller": [at for at, one in files.items() if at > 2 and one in callers],
        "status": {key: status[key] for key in ("Name", "Umask", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed", "Uid", "Groups")},
        "end": process.wait(PATIENCE),
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True},
        {"process_group": 0},
        {"cwd": "/"},
        {"stdin": subprocess.DEVNULL, "stderr": PIPE},
        {"env": {**os.environ, "ANY": "välue", "TZ": "Asia/Tokyo"}},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_a_clone_looks_like_a_true_start(options: dict[str, Any]) -> None:
    words = BROKER if "stdin" not in options else BROKER[:-1]

    def start() -> dict[str, Any]:
        process = subprocess.Popen(words, **{"stdin": PIPE, "stdout": PIPE, "stderr": subprocess.DEVNULL, **options})
        with process:
            assert is_clone(process) == warm_starts.enabled
            return seen(process)

    clone, true = both(start)
    assert clone == true
    assert clone["parent"] == str(os.getpid())


def test_limits_mask_and_kept_files_are_the_callers(tmp_path: Path) -> None:
    def start() -> tuple[Any, ...]:
        before, umask = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        with (tmp_path / "kept").open("w") as kept:
            try:
                process = subprocess.Popen(BROKER, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, pass_fds=[kept.fileno()])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                os.umask(umask)
            with process:
                number = os.readlink(f"/proc/{process.pid}/fd/{kept.fileno()}")
                limits = Path(f"/proc/{process.pid}/limits").read_text()
                return number, limits, seen(process)["status"]["Umask"]

    clone, true = both(start)
    assert clone == true
    assert clone[0] == str(tmp_path / "kept")


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["broker", "--nonsense"],
        ["pub", "-h", "mqtt://127.0.0.1:1", "-t", "x", "-m", "y"],
        ["topology", "check", "no-such-file.toml"],
        ["passwd", "-"],
    ],
    ids=" ".join,
)
def test_a_clone_says_the_same_and_ends_the_same(words: list[str]) -> None:
    clone, true = both(lambda: vars(subprocess.run([*MQMESH, *words], input=b"pw\n", capture_output=True, timeout=PATIENCE)))
    assert clone == true


PROGRAM = """
import sys
from mqmesh.cli.main import program
sys.stdin.read()
print(sys.argv, sys.orig_argv[1:], sys.path[0], __name__, sorted(name for name in globals() if name[0] != "_"))
if sys.argv[1] == "raise":
    raise ValueError("of the test")
if sys.argv[1] == "exit":
    sys.exit("said at the end")
program()
"""


@pytest.mark.parametrize("words", [["--version"], ["broker", "--nonsense"], ["raise"], ["exit"]], ids=" ".join)
def test_a_program_that_takes_something_from_the_command(words: list[str]) -> None:
    def start() -> tuple[bytes, list[bytes], int]:
        with subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            assert is_clone(process) == warm_starts.enabled
            said, errors = process.communicate(timeout=PATIENCE)
            return said, errors.splitlines()[-1:], process.returncode  # tracebacks begin with frames of the helper

    clone, true = both(start)
    assert clone == true
    assert clone[0].startswith(b"['-c', ")


def test_an_output_that_nobody_reads_ends_a_clone_in_the_same_way() -> None:
    def start() -> tuple[bytes, int]:
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run([*MQMESH, "--version"], stdout=write, stderr=PIPE, timeout=PATIENCE)
        finally:
            os.close(write)
        return done.stderr, done.returncode

    clone, true = both(start)
    assert clone == true


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_clone_as_it_ends_a_true_start(number: signal.Signals) -> None:
    def start() -> int:
        with subprocess.Popen(BROKER, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            return process.wait(PATIENCE)

    clone, true = both(start)
    assert clone == true


@pytest.mark.parametrize(
    "options",
    [
        {"preexec_fn": os.getpid},
        {"umask": 0o077},
        {"env": {**os.environ, "PYTHONHASHSEED": "1"}},
        {"close_fds": False},
        {"user": os.getuid()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_a_clone_cannot_be_has_a_true_start(options: dict[str, Any]) -> None:
    with subprocess.Popen(BROKER, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, **options) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not is_clone(process)


def test_a_folder_that_is_not_there_is_the_callers_mistake() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        subprocess.Popen(BROKER, cwd="/nowhere")


def test_threads_start_clones_at_the_same_time(tmp_path: Path) -> None:
    def one(number: int) -> bytes:
        return subprocess.run([*MQMESH, f"unknown{number}"], capture_output=True, timeout=PATIENCE, cwd=tmp_path).stderr

    with ThreadPoolExecutor(8) as pool:
        for number, said in enumerate(pool.map(one, range(40))):
            assert f"No such command: unknown{number}.".encode() in said


def test_an_interrupted_start_does_not_give_its_process_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    run = [*MQMESH, "--version"]
    subprocess.run(run, capture_output=True, check=True)

    def interrupted(*_: Any) -> bytes:
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(warm_starts, "_exactly", interrupted)
        with pytest.raises(TimeoutError):
            subprocess.run(run, capture_output=True)
    done = subprocess.run([*MQMESH, "unknown"], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert b"unknown" in done.stderr
