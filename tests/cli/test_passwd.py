"""`mqmesh passwd` and `mqmesh acl check`, and a broker process that uses what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from command import run
from paho.mqtt.enums import CallbackAPIVersion
from services import wait_until

CONFIG = """
listen = ["mqtt://127.0.0.1:0"]
[access]
users = "users"
[[access.rule]]
deny = ["publish", "subscribe"]
topics = ["plant/secret/#"]
[[access.rule]]
allow = ["publish", "subscribe"]
users = ["alice"]
topics = ["plant/#", "own/%u/%c"]
"""


def passwd(file: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return run("passwd", file, *arguments, stdin=stdin)


def test_add_change_and_take_out(tmp_path: Path) -> None:
    file = tmp_path / "users"
    assert passwd(file, "alice", "--stdin", stdin=b"one\n").stderr == b"mqmesh: alice: added\n"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(f"# people\n{file.read_text()}")
    first = file.read_text()
    assert passwd(file, "bob", "--stdin", stdin=b"two\n").returncode == 0
    assert file.read_text().startswith(first)
    assert b"new password" in passwd(file, "alice", "--stdin", stdin=b"three\n").stderr
    assert passwd(file, "bob", "--delete").returncode == 0
    assert re.fullmatch(r"# people\nalice:\$argon2id\$.*\n", file.read_text())
    assert "one" not in file.read_text()
    assert "three" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "text"),
    [
        (["al:ice", "--stdin"], b"x\n", 2, b"no colon"),
        (["", "--stdin"], b"x\n", 2, b"1 to 255 printable"),
        (["alice", "--stdin"], b"\n", 2, b"1 to 4096 bytes"),
        (["alice"], b"x\n", 2, b"--stdin"),
        (["alice", "--delete"], b"", 1, b"has no user 'alice'"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], stdin: bytes, status: int, text: bytes) -> None:
    done = passwd(tmp_path / "users", *arguments, stdin=stdin)
    assert done.returncode == status
    assert text in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_what_rules_say(tmp_path: Path) -> None:
    (tmp_path / "users").touch()
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)

    def check(*arguments: str) -> tuple[int, dict[str, object]]:
        done = run("acl", "check", *arguments, "--config", config, "--json")
        return done.returncode, json.loads(done.stdout)

    assert check("alice", "plant/x") == (0, {"publish": {"allowed": True, "rule": 2}, "subscribe": {"allowed": True, "rule": 2}})
    assert check("alice", "plant/#") == (1, {"subscribe": {"allowed": False, "rule": 1}})
    assert check("alice", "own/alice/dev", "-i", "dev")[0] == 0
    assert check("bob", "plant/x") == (1, {"publish": {"allowed": False, "rule": None}, "subscribe": {"allowed": False, "rule": None}})
    shown = run("acl", "check", "alice", "plant/secret/x", "--config", config)
    assert b"rule 1 denies it" in shown.stdout
    assert run("acl", "check", "alice", "a/#/b", "--config", config).returncode == 2


def test_a_broker_lets_in_whom_passwd_has_added_and_reads_anew_on_sighup(tmp_path: Path) -> None:
    users = tmp_path / "users"
    passwd(users, "alice", "--stdin", stdin=b"wonderland\n")
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config)]
    log = tmp_path / "log"
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as broker:
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split()[1].rpartition(":")[2])
            assert _connect(port, "alice", "wonderland") == 0
            assert _connect(port, "bob", "builder") == 0x86
            passwd(users, "bob", "--stdin", stdin=b"builder\n")
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda: "event=reloaded" in log.read_text(), 20.0, "the reload")
            assert _connect(port, "bob", "builder") == 0
            address = f"mqtt://bob:builder@127.0.0.1:{port}"
            done = run("pub", "-h", address, "-t", "plant/x", "-m", "x", "-q", "1")
            assert done.returncode == 1
            assert b"0x87" in done.stderr
            assert "event=publish-refused client=" in log.read_text()
            assert "builder" not in log.read_text()
        finally:
            broker.terminate()


def _connect(port: int, user: str, password: str) -> int:
    """The reason code that paho-mqtt gets."""
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set(user, password)
    found: list[int] = []
    client.on_connect = lambda _client, _data, _flags, reason, _properties: found.append(reason.value)
    client.connect("127.0.0.1", port)
    client.loop_start()
    wait_until(lambda: bool(found), 20.0, "CONNACK")
    client.disconnect()
    client.loop_stop()
    return found[0]
