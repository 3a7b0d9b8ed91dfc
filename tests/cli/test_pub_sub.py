"""`mqmesh pub` and `mqmesh sub` as processes, against a broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.brokers import RunningBroker
from support.command import MQMESH, run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.process


def pub(broker: RunningBroker, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return run("pub", "-h", broker.url, *arguments, stdin=stdin)


def sub(broker: RunningBroker, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return run("sub", "-h", broker.url, "-W", 90, *arguments)


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_lines_go_out_in_order(broker: RunningBroker, name: str, version: str, qos: int) -> None:
    with Paho(broker.port) as subscriber:
        subscriber.subscribe(name, 2)
        done = pub(broker, "-t", name, "-l", "-q", qos, "-V", version, stdin=b"".join(b"line %d\n" % n for n in range(300)))
        assert done.returncode == 0, done.stderr
        got = [subscriber.next() for _ in range(300)]
        assert [m.payload for m in got] == [b"line %d" % n for n in range(300)]
        assert {m.qos for m in got} == {qos}


def test_payload_sources_and_many_topics(broker: RunningBroker, name: str, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\x00binary\xff")
    with Paho(broker.port) as subscriber:
        subscriber.subscribe(f"{name}/#", 1)
        for arguments, stdin, expected in (
            (["-m", "text é"], b"", "text é".encode()),
            (["-f", file], b"", b"\x00binary\xff"),
            (["-s"], b"all\nof it\n", b"all\nof it\n"),
            (["-n"], b"", b""),
        ):
            assert pub(broker, "-t", f"{name}/a", "-t", f"{name}/b", "-q", 1, *arguments, stdin=stdin).returncode == 0
            assert [(m.topic[-1], m.payload) for m in (subscriber.next(), subscriber.next())] == [("a", expected), ("b", expected)]


@contextmanager
def started(*arguments: object, stderr: Path) -> Iterator[subprocess.Popen[str]]:
    """Killed in the end, as one that stands still does not end otherwise."""
    with start(*arguments, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[str]:
    """The address of a broker that stands still: the system takes connections for it, and nobody answers."""
    port = free_port()
    with started("broker", "--listen", f"mqtt://127.0.0.1:{port}", stderr=tmp_path / "log") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        process.send_signal(signal.SIGSTOP)
        yield f"mqtt://127.0.0.1:{port}"


def test_the_time_bounds_the_wait_for_a_broker_that_stands_still(stopped: str) -> None:
    done = run("sub", "-h", stopped, "-t", "t", "-W", 1, timeout=25)
    assert (done.returncode, done.stdout) == (27, b"")
    assert b"no MQTT CONNACK came in 1 s" in done.stderr
    done = run("interchange", "poll", "bank/credit", "-h", stopped, "-W", 1, timeout=25)
    assert done.returncode == 27, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["pub", "-t", "t", "-m", "x"],
        ["sub", "-t", "t"],
        ["status", "--watch"],
        ["queue", "show", "orders"],
        ["recipients", "--watch"],
        ["interchange", "poll", "bank/credit"],
    ],
)
def test_a_command_says_what_it_waits_for(stopped: str, command: list[str], tmp_path: Path) -> None:
    said = tmp_path / "said"
    with started(*command, "-h", stopped, stderr=said):
        wait_until(lambda: b"\n" in said.read_bytes(), PATIENCE, "word on what it waits for")
        line = said.read_bytes().splitlines()[0]
        assert b"waiting for CONNACK" in line or b"no MQTT CONNACK came" in line


def test_a_watched_broker_that_stands_still_is_missed(tmp_path: Path) -> None:
    port = free_port()
    with started("broker", "--listen", f"mqtt://127.0.0.1:{port}", stderr=tmp_path / "log") as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready")
        with started("status", "--watch", "--json", "-h", f"mqtt://127.0.0.1:{port}", stderr=tmp_path / "said") as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ok"]
            broker.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            while "the connection is lost, and tried again" not in str(json.loads(process.stdout.readline())["problems"]):
                pass
            assert time.monotonic() - begun < 100, "twice the Keep Alive of other commands is 120"


def test_repeat_and_a_topic_in_the_url(broker: RunningBroker, name: str) -> None:
    with Paho(broker.port) as subscriber:
        subscriber.subscribe(name, 0)
        assert run("pub", "-h", f"{broker.url}/{name}", "-m", "x", "--repeat", 3, "--interval", 0.01).returncode == 0
        assert [subscriber.next().payload for _ in range(3)] == [b"x"] * 3


def test_all_properties_from_pub_to_sub(broker: RunningBroker, name: str) -> None:
    options = ["--user-property", "k=v", "--user-property", "k=a=b", "--expiry", 100_000, "--response-topic", "r", "--correlation", "42"]
    assert pub(broker, "-t", name, "-m", '{"a":1}', "-r", "-q", 1, *options, "--content-type", "application/json", "--text").returncode == 0
    record = json.loads(sub(broker, "-t", name, "--json", "-C", 1, "-q", 1, "--identifier", 5).stdout)
    assert record["payload"] == '{"a":1}'
    assert (record["topic"], record["qos"], record["retain"]) == (name, 1, True)
    properties = record["properties"]
    assert 99_000 <= properties.pop("expiry") <= 100_000
    assert properties == {
        "payload_format": 1,
        "content_type": "application/json",
        "response_topic": "r",
        "correlation": "42",
        "subscription_identifiers": [5],
        "user": [["k", "v"], ["k", "a=b"]],
    }
    assert sub(broker, "-t", name, "-F", "%t %J", "-C", 1).stdout.startswith(f"{name} {{".encode())


def test_count_leaves_the_rest_in_the_session(broker: RunningBroker, name: str) -> None:
    session = ["-t", name, "-q", 1, "-c", "-i", name]
    assert sub(broker, *session, "-E").returncode == 0
    pub(broker, "-t", name, "-q", 1, "-l", stdin=b"1\n2\n3\n")
    assert sub(broker, *session, "-C", 2).stdout == b"1\n2\n"
    assert sub(broker, *session, "-C", 1).stdout == b"3\n"
    last = run("sub", "-h", broker.url, *session, "-C", 1, "-W", 0.3)
    assert (last.stdout, last.returncode) == (b"", 27)


def test_retained_options(broker: RunningBroker, name: str) -> None:
    for topic in ("a", "b"):
        pub(broker, "-t", f"{name}/{topic}", "-m", topic, "-r", "-q", 1)
    assert run("sub", "-h", broker.url, "-t", f"{name}/#", "-R", "-W", 0.3).stdout == b""
    assert run("sub", "-h", broker.url, "-t", f"{name}/#", "--retain-handling", "never", "-W", 0.3).stdout == b""
    assert sub(broker, "-t", f"{name}/#", "-T", f"{name}/a", "-C", 1, "-v").stdout == f"{name}/b b\n".encode()
    assert sub(broker, "-t", f"{name}/#", "-C", 2, "-N").stdout in (b"ab", b"ba")


def test_sub_sees_what_comes_and_ends_with_ctrl_c(broker: RunningBroker, name: str) -> None:
    process = start("sub", "-h", broker.url, "-t", name, "-v", "--will-topic", f"{name}/will", "--will-payload", "gone")
    with Paho(broker.port) as publisher:
        publisher.subscribe(f"{name}/will", 1)
        arrived = threading.Event()
        lines: list[str] = []
        reader = threading.Thread(target=lambda: (lines.append(process.stdout.readline()), arrived.set()))
        reader.start()
        while not arrived.wait(0.05):  # until its subscription stands
            publisher.publish(name, b"hello", 1)
        assert lines == [f"{name} hello\n"]
        process.kill()
        assert publisher.next().payload == b"gone"
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sub_ends_with_status_0_and_leaves_no_will(broker: RunningBroker, name: str, number: signal.Signals) -> None:
    will = ["--will-topic", f"{name}/will", "--will-payload", "gone", "--will-retain"]
    process = start("sub", "-h", broker.url, "-t", name, "-t", "$SYS/broker/version", "-C", 5, *will)
    assert process.stdout.readline()  # $SYS: its subscription stands
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    process.communicate()
    found = sub(broker, "-t", f"{name}/will", "-t", "$SYS/broker/version", "-C", 1, "-v").stdout
    assert found.startswith(b"$SYS"), found  # retained messages come in the order of the filters


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_sub_that_cannot_write_says_so_in_one_line(broker: RunningBroker) -> None:
    with open("/dev/full", "wb") as full:
        command = [*MQMESH, "sub", "-h", broker.url, "-t", "$SYS/broker/version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (1, "mqmesh: sub: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["pub", "-m", "x"], 2, "-t TOPIC"),
        (["pub", "-t", "a"], 2, "exactly one of"),
        (["pub", "-t", "a", "-m", "x", "-n"], 2, "exactly one of"),
        (["pub", "-t", "a/+", "-m", "x"], 2, "no wildcard"),
        (["pub", "-t", "a", "-f", "/nonexistent"], 2, "No such file"),
        (["pub", "-t", "a" * 65_536, "-m", "x"], 2, "aaa'...: it has 65536 bytes, at most 65535"),
        (["pub", "-t", "a", "-m", "x", "--response-topic", "a/#"], 2, "no wildcard"),
        (["pub", "-t", "a", "-m", "x", "--response-topic", ""], 2, "not empty"),
        (["pub", "-t", "a", "-f", sys.executable, "--text"], 2, "not UTF-8"),
        (["pub", "-t", "a", "-m", "x", "--user-property", "k"], 2, "KEY=VALUE"),
        (["pub", "-t", "a", "-m", "x", "-V", "3"], 2, "5, or 4"),
        (["pub", "-t", "a", "-m", "x", "-V", "4", "--expiry", "1"], 2, "needs MQTT 5"),
        (["pub", "-t", "a", "-m", "x", "-c"], 2, "give one with -i"),
        (["pub", "-t", "a", "-m", "x", "--will-payload", "x"], 2, "--will-topic"),
        (["sub"], 2, "-t FILTER"),
        (["sub", "-t", "a/#/b"], 2, "# stands alone"),
        (["sub", "-t", "a+"], 2, "+ stands alone"),
        (["sub", "-t", "a", "-F", "%y"], 2, "%y is not known"),
        (["sub", "-t", "a", "--retain-handling", "x"], 2, "always, new and never"),
        (["sub", "-t", "a", "-h", "http://x"], 2, "scheme"),
    ],
)
def test_wrong_use_gets_one_line(arguments: list[str], status: int, text: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert done.stderr.count(b"\n") == 1
    assert text in done.stderr.decode()


def test_no_broker_gets_one_line() -> None:
    done = run("pub", "-p", free_port(), "-t", "a", "-m", "x")
    assert done.returncode == 1
    assert b"connection refused" in done.stderr
    assert done.stderr.count(b"\n") == 1
    done = run("sub", "-h", "unix:///nonexistent.sock", "-t", "a")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert b"no such file" in done.stderr


def test_formats_are_explained() -> None:
    done = run("sub", "--formats")
    assert done.returncode == 0
    assert b"%p payload" in done.stdout
