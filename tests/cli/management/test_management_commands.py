"""Commands that look at another site and change it, with two brokers that are processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.cli.management.view import cell, table
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow


class Two:
    """porto, which is asked, and lyon, which believes it."""

    def __init__(self, folder: Path) -> None:
        self.ports = {"porto": free_port(), "lyon": free_port()}
        self.socket = f"unix://{folder}/s"
        self.processes = [self._start(folder, number, name) for number, name in enumerate(self.ports, 1)]

    def _start(self, folder: Path, number: int, name: str) -> Any:
        lines = [f'name = "{name}"', f"number = {number}", 'management = { accept = ["porto"] }']
        if name == "porto":
            lines.append(f'listen = ["mqtt://127.0.0.1:{self.ports[name]}", "{self.socket}"]')
        else:
            lines.append(f'listen = ["mqtt://127.0.0.1:{self.ports[name]}"]')
        lines += ["[mesh]", 'name = "m"', 'key = "a key of sixteen bytes"']
        if name == "lyon":
            lines += ["[[mesh.peer]]", f'address = "mqtt://127.0.0.1:{self.ports["porto"]}"']
        file = folder / f"{name}.toml"
        file.write_text("\n".join(lines) + "\n")
        process = start("broker", "--config", file, stderr=folder / f"{name}.log")
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready"), (folder / f"{name}.log").read_text()
        return process

    def ask(self, *arguments: str) -> Any:
        """What a command with `--json` says."""
        done = run(*arguments, "-h", self.socket, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    found = Two(tmp_path_factory.mktemp("management"))
    wait_until(lambda: sum(row["reachable"] for row in found.ask("brokers")["rows"]) == 2, PATIENCE, "the link")
    yield found
    for process in found.processes:
        process.terminate()
        process.communicate()


def test_lists_of_another_site(two: Two) -> None:
    with Paho(two.ports["lyon"], client_id="sensor-1") as client:
        client.publish("plant/1", b"on", 1, retain=True)
        client.subscribe("plant/#", 1)
        done = run("clients", "client=sensor-*", "--at", "lyon", "-h", two.socket)
        assert done.returncode == 0, done.stderr
        head, row, total = done.stdout.decode().splitlines()
        assert head.split()[:3] == ["SITE", "CLIENT", "USER"]
        assert row.split()[:3] == ["lyon", "sensor-1", "-"]
        assert total == "1 of 1"
        found = two.ask("sessions", "--at", "lyon", "sensor-1")
        assert [(one["client"], one["connected"]) for one in found["rows"]] == [("sensor-1", True)]
        assert [one["filter"] for one in two.ask("subscriptions", "client=sensor-1", "--at", "*")["rows"]] == ["plant/#"]
        assert [one["payload"] for one in two.ask("retained", "topic=plant/+", "--at", "lyon", "--payload")["rows"]] == ["on"]
        routes = two.ask("routes", "plant/1", "--at", "porto,lyon")["rows"]
        assert {(one["site"], one["to"], one["gets"]) for one in routes} == {("porto", "lyon", True), ("lyon", "sensor-1", True)}
        links = two.ask("links", "--at", "*", "up=yes")["rows"]
        assert {(one["site"], one["name"]) for one in links} == {("porto", "lyon"), ("lyon", "porto")}
        assert all(one["bytes_out"] > 0 for one in links)


def test_actions_at_another_site(two: Two) -> None:
    assert run("sub", "-h", f"mqtt://127.0.0.1:{two.ports['lyon']}", "-t", "x", "-q", "1", "-c", "-i", "away", "-E").returncode == 0
    done = run("manage", "do", "end-session", "client=away", "--at", "lyon", "--dry-run", "-h", two.socket)
    assert done.stdout.decode() == "lyon: would: the session of away ends, with 0 messages and 1 subscription\n", done.stderr
    assert "lyon" in two.ask("manage", "do", "end-session", "client=away", "--at", "lyon")["done"]
    done = run("sessions", "--end", "away", "--at", "lyon", "-h", two.socket)
    assert (done.returncode, b"there is no session of 'away'" in done.stderr) == (1, True)
    done = run("mesh", "drain", "--at", "lyon", "--dry-run", "-h", two.socket)
    assert done.stdout.startswith(b"would: lyon takes no new clients"), done.stderr
    log = two.ask("manage", "list", "log", "--at", "lyon", "text=*event=managed*", "--sort", "-number")["rows"]
    assert [one["text"].split()[1] for one in log] == ["do=end-session"]
    assert "at porto" in log[0]["text"]


def test_lines_of_the_log_are_whole_and_have_readable_times() -> None:
    text = "event=custody-refused " + "x" * 200
    rows = [{"site": "lyon", "number": 7, "time": 1796140810.4, "level": "warning", "logger": "mqmesh.broker", "text": text}]
    assert table("log", rows, None).splitlines() == [
        "SITE  TIME                     LEVEL    TEXT",
        f"lyon  2026-12-01 16:00:10.400  warning  {text}",
    ]
    assert table("log", [{**rows[0], "time": 1e300}], ["time"]).splitlines()[1] == "1e+300"


def test_what_there_is(two: Two) -> None:
    assert b"retained: retained messages" in run("manage", "show", "lists", "-h", two.socket).stdout
    assert b"disconnect client=" in run("manage", "show", "actions", "-h", two.socket).stdout
    assert run("manage", "show", "roles", "-h", two.socket).stdout == b"administrator\npayload-reader\n"


WRONG = [
    (("clients", "--at", "mars"), 1, "mqmesh: clients: mars: not a site that is known here\n"),
    (("clients", "sensor"), 2, "mqmesh: clients: sensor: give COLUMN=CONDITION, as client='sensor-*' or bytes='>1000'\n"),
    (("manage", "show", "moons"), 2, "mqmesh: manage show moons: one of lists, actions, roles\n"),
    (("manage", "do", "dance"), 1, "there is no action 'dance'"),
    (("sessions", "--at", "lyon", "--end"), 2, "mqmesh: sessions: --end with --at needs one client identifier\n"),
]


@pytest.mark.parametrize(("arguments", "status", "text"), WRONG, ids=str)
def test_mistakes_are_one_line(two: Two, arguments: tuple[str, ...], status: int, text: str) -> None:
    done = run(*arguments, "-h", two.socket)
    assert (done.returncode, text in done.stderr.decode(), done.stderr.count(b"\n")) == (status, True, 1), done.stderr


def test_strangers_get_nothing(two: Two) -> None:
    done = run("clients", "-h", f"mqtt://127.0.0.1:{two.ports['porto']}")
    assert (done.returncode, b"not permitted" in done.stderr) == (1, True)


def test_cells_are_one_line() -> None:
    assert [cell(one) for one in (None, "", True, False, 1234567, "a\nb", ["x", 1], "y" * 99)] == [
        *("-", "-", "yes", "no", "1,234,567", "a?b", "x, 1", "y" * 57 + "...")
    ]
    assert table("x", [], None) == "nothing"
