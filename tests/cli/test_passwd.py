"""`mqmesh passwd` and `mqmesh acl check`, and a broker process that uses what they say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from support.command import run
from support.services import PATIENCE, wait_until

pytestmark = pytest.mark.process

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

TLS = '[tls]\ncertificate = "c.pem"\nkey = "c.pem"\nca = "c.pem"\nclient_certificates = "optional"\n'


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


def check(config: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run("acl", "check", *arguments, "--config", config, "--json")
    return done.returncode, json.loads(done.stdout)


def test_what_rules_say(tmp_path: Path) -> None:
    passwd(tmp_path / "users", "alice", "--stdin", stdin=b"wonderland\n")
    passwd(tmp_path / "users", "bob", "--stdin", stdin=b"builder\n")
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    known = {"name": "alice", "known": True, "text": f"in {tmp_path / 'users'}"}
    allowed, denied = {"allowed": True, "rule": 2}, {"allowed": False, "rule": None}
    assert check(config, "alice", "plant/x") == (0, {"user": known, "publish": allowed, "subscribe": allowed})
    assert check(config, "alice", "plant/#") == (1, {"user": known, "subscribe": {"allowed": False, "rule": 1}})
    assert check(config, "alice", "own/alice/dev", "-i", "dev")[0] == 0
    status, found = check(config, "bob", "plant/x")
    assert (status, found["publish"], found["subscribe"]) == (1, denied, denied)
    shown = run("acl", "check", "alice", "plant/secret/x", "--config", config)
    assert b"rule 1 denies it" in shown.stdout
    assert run("acl", "check", "alice", "a/#/b", "--config", config).returncode == 2


def test_who_cannot_come_in_is_told_whatever_the_rules_allow(tmp_path: Path) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(users, "alice", "--stdin", stdin=b"wonderland\n")
    rules = '[[access.rule]]\nallow = ["publish", "subscribe"]\ntopics = ["own/%u"]\n'
    config.write_text(f'[access]\nusers = "users"\n{rules}')
    status, found = check(config, "alise", "own/alise")
    assert (status, found["user"]["known"], found["publish"]["allowed"]) == (1, False, True)
    assert 'did you mean "alice"?' in found["user"]["text"]
    assert b"user      refused  not in " in run("acl", "check", "alise", "own/alise", "--config", config).stdout
    status, found = check(config, "", "own/alise")
    assert (status, found["user"]["known"]) == (1, False)

    config.write_text(f'[access]\nusers = "users"\ncertificates = true\n{rules}'.replace("[access]", TLS + "[access]"))
    (tmp_path / "c.pem").touch()
    status, found = check(config, "alise", "own/alise")
    assert (status, found["user"]["known"]) == (0, None)
    assert "a certificate may have this name" in found["user"]["text"]

    config.write_text(f"[access]\n{rules}")  # nobody is asked who he is, so a name counts for nothing, as at the broker
    status, found = check(config, "alice", "own/alice")
    assert (status, found["user"]["known"], found["publish"]["allowed"]) == (1, None, False)

    users.write_text("alice:wonderland\n")
    config.write_text(f'[access]\nusers = "users"\n{rules}')
    done = run("acl", "check", "alice", "own/alice", "--config", config)
    assert done.returncode == 2
    assert b"users line 1" in done.stderr


def test_a_broker_lets_in_whom_passwd_has_added_and_reads_anew_on_sighup(tmp_path: Path) -> None:
    users = tmp_path / "users"
    passwd(users, "alice", "--stdin", stdin=b"wonderland\n")
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config), "--log-level", "debug"]
    log = tmp_path / "log"
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as broker:
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split()[1].rpartition(":")[2])
            assert _connect(port, "alice", "wonderland") == 0
            assert _connect(port, "bob", "builder") == 0x86
            assert _connect(port, "eve\nevent=connect client=root", "x") == 0x86
            passwd(users, "bob", "--stdin", stdin=b"builder\n")
            os.kill(broker.pid, signal.SIGHUP)
            wait_until(lambda: "event=reloaded" in log.read_text(), PATIENCE, "the reload")
            assert _connect(port, "bob", "builder") == 0
            address = f"mqtt://bob:builder@127.0.0.1:{port}"
            done = run("pub", "-h", address, "-t", "plant/x", "-m", "x", "-q", "1")
            assert done.returncode == 1
            assert b"0x87" in done.stderr
            assert "builder" not in log.read_text()
            said = log.read_text()
            assert re.search(r"event=connect client=\S+ user=alice address=127", said)
            assert re.search(r"event=connect-refused address=\S+ client=\S+ user=bob reason=0x86", said)
            assert "event=publish-refused client=" in said
            assert re.search(r"event=publish-refused client=\S+ user=bob ", said)
            assert r'user="eve\nevent=connect client=root"' in said
            # who chooses a name writes no line of the log
            assert all(re.match(r"\d{4}-\d\d-\d\dT\S+ level=", line) for line in said.splitlines())
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
    wait_until(lambda: bool(found), PATIENCE, "CONNACK")
    client.disconnect()
    client.loop_stop()
    return found[0]
