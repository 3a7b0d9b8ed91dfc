"""`mqmesh sessions` with a broker that is a process: shows the sessions that are kept, ends them, and is for operators only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.cli.sessions import lasting, size
from support.command import run, start_with_users
from support.paho_client import Paho
from support.services import free_port

pytestmark = pytest.mark.slow


class Running:
    """A broker with a store, users and a Unix socket."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.socket = f"unix://{folder}/s"
        self.process = start_with_users(
            folder,
            f'listen = ["mqtt://127.0.0.1:{self.port}", "{self.socket}"]',
            'data = "data"',
            "limits.stored_sessions = 10",
            'access = { users = "users", anonymous = true, operators = ["ops"] }',
        )
        self.log = folder / "log"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("sessions"))
    yield running
    running.process.terminate()
    running.process.communicate()


def away(broker: Running, name: str, messages: int) -> None:
    done = run("sub", "-h", f"mqtt://127.0.0.1:{broker.port}", "-t", f"to/{name}", "-q", "1", "-c", "-i", name, "-E")
    assert done.returncode == 0, done.stderr
    with Paho(broker.port) as publisher:
        for _ in range(messages):
            assert publisher.publish(f"to/{name}", bytes(1000), 1) == 0


def test_shown_and_ended(broker: Running) -> None:
    away(broker, "sensor 1", 3)
    away(broker, "sensor-2", 1)
    done = run("sessions", "-h", broker.socket)
    assert done.returncode == 0, done.stderr
    head, first, second, total = done.stdout.decode().splitlines()
    assert head.split() == ["CLIENT", "USER", "MESSAGES", "BYTES", "OLDEST", "AWAY", "EXPIRES", "IN"]
    assert first.startswith("sensor 1  ")
    assert "3  " in first
    assert second.startswith("sensor-2  ")
    assert total.startswith("2 of 10 sessions, ")
    assert " in the store" in total

    done = run("sessions", "-h", f"mqtt://127.0.0.1:{broker.port}", "-u", "ops", "-P", "pw", "--json", "--by", "messages", "-n", "1")
    found = json.loads(done.stdout)
    assert [one["client"] for one in found["sessions"]] == ["sensor 1"]
    assert (found["sessions"][0]["messages"], found["total"]) == (3, 2)

    done = run("sessions", "-h", broker.socket, "--end", "sensor 1", "nobody", "sensor-2")
    assert done.returncode == 1
    assert done.stderr.decode() == "mqmesh: sessions: no session is kept for 'nobody'\n"
    assert [line.split("  ")[0] for line in done.stdout.decode().splitlines()[1:]] == ["sensor 1", "sensor-2"]
    assert json.loads(run("sessions", "-h", broker.socket, "--json").stdout)["sessions"] == []
    assert 'event=session-ended client="sensor 1"' in broker.log.read_text()


@pytest.mark.parametrize("who", [(), ("-u", "alice", "-P", "pw")], ids=["nobody", "another user"])
def test_others_are_told_that_they_may_not(broker: Running, who: tuple[str, ...]) -> None:
    done = run("sessions", "-h", f"mqtt://127.0.0.1:{broker.port}", *who)
    assert done.returncode == 1
    assert not done.stdout
    assert b"not permitted" in done.stderr


@pytest.mark.parametrize(("arguments", "words"), [(("--end",), b"client identifiers"), (("--by", "age"), b"bytes, messages, away")])
def test_wrong_use(arguments: tuple[str, ...], words: bytes) -> None:
    done = run("sessions", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_figures_are_readable() -> None:
    assert [size(count) for count in (0, 1023, 1024, 5 * 2**20, 2**41)] == ["0 B", "1023 B", "1.0 KiB", "5.0 MiB", "2048.0 GiB"]
    assert [lasting(seconds) for seconds in (None, 0, 119, 120, 7199, 7200, 200_000)] == [
        "-",
        "0 s",
        "119 s",
        "2 min",
        "119 min",
        "2 h",
        "2 d",
    ]
