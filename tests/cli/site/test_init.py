"""`mqmesh init`: the broker that it writes serves as was answered, from options and at a terminal."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest
from mqmesh.base.settings import NAME
from mqmesh.broker.auth import passwords
from mqmesh.broker.config import load
from mqmesh.cli.site.init import machine_name
from support.command import MQMESH, PATIENCE, run, start

pytestmark = pytest.mark.process


def test_options_make_a_broker_for_other_machines(tmp_path: Path) -> None:
    arguments = (
        "--name",
        "porto",
        "--host",
        "porto.example.com",
        "--user",
        "alice",
        "--user",
        "bob",
        "--origin",
        "https://app.example.com",
    )
    done = run("init", *arguments, "--stdin", "--out", tmp_path, stdin=b"one\ntwo\n")
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path}/porto\n"), done.stderr
    config = load(tmp_path / "porto/broker.toml")
    assert (config.name, config.data) == ("porto", tmp_path / "porto/data")
    assert config.listen == ["mqtts://0.0.0.0:8883", "mqtt://127.0.0.1:1883", "wss://0.0.0.0:8884/mqtt"]
    assert config.websocket.origins == ["https://app.example.com"]
    assert config.access is not None
    assert not config.access.anonymous
    users = passwords.load(tmp_path / "porto/users")
    assert [passwords.right(users[name], word) for name, word in (("alice", b"one"), ("bob", b"two"), ("bob", b"one"))] == [
        True,
        True,
        False,
    ]
    assert not list((tmp_path / "porto").rglob("ca.key"))  # the authority's key stays where it was made
    assert (tmp_path / "tls/ca.key").is_file()


@pytest.mark.service
def test_what_it_writes_serves_over_tls_and_asks_who_comes(tmp_path: Path) -> None:
    assert (
        run("init", "--name", "porto", "--host", "localhost", "--user", "alice", "--stdin", "--out", tmp_path, stdin=b"pw\n").returncode
        == 0
    )
    there = tmp_path / "machine"
    (tmp_path / "porto").rename(there)  # as it is copied
    process = start("broker", "--config", there / "broker.toml", "--listen", "mqtts://127.0.0.1:0", stderr=tmp_path / "log")
    assert process.stdout is not None
    ready = process.stdout.readline()
    assert ready.startswith("ready mqtts://127.0.0.1:"), (tmp_path / "log").read_text()
    port = ready.split()[1].rpartition(":")[2]
    ask = ("pub", "-h", f"mqtts://localhost:{port}", "--cafile", tmp_path / "tls/ca.crt", "-t", "a", "-m", "b", "-q", 1)
    assert run(*ask, "-u", "alice", "-P", "pw").returncode == 0
    assert run(*ask).returncode == 1
    process.terminate()
    assert process.wait(PATIENCE) == 0


def test_without_a_terminal_the_defaults_count(tmp_path: Path) -> None:
    done = run("init", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    config = load(tmp_path / machine_name() / "broker.toml")
    assert (config.listen, config.access, config.tls) == (["mqtt://127.0.0.1:1883"], None, None)
    assert not (tmp_path / "tls").exists()


def test_a_broker_for_strangers_without_users_is_said_to_be_open(tmp_path: Path) -> None:
    done = run("init", "--name", "porto", "--host", "10.0.0.1", "--no-tls", "--out", tmp_path)
    assert b"everybody who reaches the broker may publish" in done.stderr
    assert load(tmp_path / "porto/broker.toml").listen == ["mqtt://0.0.0.0:1883"]


@pytest.mark.parametrize("host", ["db-1.example.com", "ä.b", "...", "x" * 80, "_a"])
def test_the_name_of_any_machine_becomes_one_of_a_broker(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert NAME.fullmatch(machine_name())


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--name", "../porto"), 2, 'name = "../porto": give a name'),
        (("--name", "q", "--user", "a:b", "--stdin"), 2, "'a:b': a user's name has"),
        (("--name", "q", "--user", "alice", "--stdin"), 2, "a password has 1 to"),
        (("--name", "q", "--user", "alice"), 2, "give the password of alice on stdin with --stdin"),
        (("--name", "q", "--origin", "app.example.com"), 2, "websocket.origins"),
        (("--name", "there"), 1, "there/broker.toml: is there already"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path: Path, arguments: tuple[str, ...], status: int, says: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/broker.toml").write_text("mine")
    done = run("init", *arguments, "--out", tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (status, 1), done.stderr
    assert says in done.stderr.decode()
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "broker.toml"]
    assert (tmp_path / "there/broker.toml").read_text() == "mine"


DIALOGUE = [
    ("Name of the broker [", "lyon"),
    ("Host or address", "10.78.1.2"),
    ("TLS, with an authority of its own? [Y/n]", ""),
    ("Web page that may connect", ""),
    ("User who may come in", "alice"),
    ("User who may come in", ""),
    ("Password of alice: ", "pw"),
    ("Password of alice again: ", "wp"),
    ("two different passwords", None),
    ("Password of alice: ", "pw"),
    ("Password of alice again: ", "pw"),
    ("run it here: mqmesh broker --config", None),
]


def test_at_a_terminal_it_asks_what_no_option_says(tmp_path: Path) -> None:
    terminal, its_side = pty.openpty()
    side = dict.fromkeys(("stdin", "stdout", "stderr"), its_side)
    process = subprocess.Popen([*MQMESH, "init"], cwd=tmp_path, start_new_session=True, **side)  # no terminal but this one
    said = ""
    for question, answer in DIALOGUE:
        while question not in said:
            said += os.read(terminal, 4096).decode()
        _, _, said = said.partition(question)
        if answer is not None:
            os.write(terminal, answer.encode() + b"\n")
    assert process.wait(PATIENCE) == 0
    os.close(terminal)
    os.close(its_side)
    config = load(tmp_path / "lyon/broker.toml")
    assert (config.name, config.listen) == ("lyon", ["mqtts://0.0.0.0:8883", "mqtt://127.0.0.1:1883"])
    assert passwords.right(passwords.load(tmp_path / "lyon/users")["alice"], b"pw")
