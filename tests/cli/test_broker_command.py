"""`mqmesh broker` as a process: the ready line, signals, and one clear line for each way in which it cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.certificates import Certificates
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.process

KEY = "sixteen bytes or more"


def ready_port(process: object) -> int:
    line = process.stdout.readline()  # type: ignore[attr-defined]
    assert line.startswith("ready mqtt://127.0.0.1:"), line
    return int(line.split()[1].rpartition(":")[2])


def test_ready_line_names_addresses_name_and_number(tmp_path: Path) -> None:
    unix = f"unix://{tmp_path}/b.sock"
    process = start("broker", "--listen", "mqtt://127.0.0.1:0", "--listen", unix, "--name", "porto", "--number", 7)
    line = process.stdout.readline()
    assert line.startswith("ready mqtt://127.0.0.1:")
    assert line.endswith(f" {unix} name=porto number=7\n")
    done = run("pub", "-h", unix, "-t", "a", "-m", "x", "-q", 1)
    assert done.returncode == 0, done.stderr
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert not (tmp_path / "b.sock").exists()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_with_status_0_and_clients_are_told(number: signal.Signals, tmp_path: Path) -> None:
    process = start("broker", "--listen", "mqtt://127.0.0.1:0", stderr=tmp_path / "log")
    client = Paho(ready_port(process)).open()
    process.send_signal(number)
    assert client.disconnects.get(timeout=PATIENCE) == (True, 0x8B)
    client.client.loop_stop()
    assert process.wait(PATIENCE) == 0
    process.communicate()
    log = (tmp_path / "log").read_text()
    assert "level=info broker=mqmesh" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_listens_and_when_it_stops(tmp_path: Path, abstract: bool) -> None:
    address = f"mqmesh-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{address}" if abstract else address)
        manager.settimeout(PATIENCE)
        process = start("broker", "--listen", "mqtt://127.0.0.1:0", env={"NOTIFY_SOCKET": f"@{address}" if abstract else address})
        port = ready_port(process)
        assert manager.recv(4096) == f"READY=1\nSTATUS=listens at mqtt://127.0.0.1:{port}".encode()
        process.terminate()
        assert manager.recv(4096) == b"STOPPING=1"
    assert process.wait(PATIENCE) == 0
    process.communicate()


def test_it_ends_with_its_starter_when_asked_to() -> None:
    process = start("broker", "--listen", "mqtt://127.0.0.1:0", "--stop-with-stdin", stdin=-1)
    ready_port(process)
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def test_standard_files_that_its_starter_has_closed() -> None:
    """`mqmesh broker <&-`: no connection gets their numbers, with which libuv would end the process when it is closed."""
    words = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--listen", "mqtt://127.0.0.1:0"]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *words], stdout=subprocess.PIPE, text=True)
    try:
        port = ready_port(process)
        numbers = {number: os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 2)}
        assert numbers == {0: os.devnull, 2: os.devnull}
        done = run("pub", "-p", port, "-t", "a", "-m", "x", "-q", 1)
        assert done.returncode == 0, done.stderr
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_file_and_options_over_it(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('name = "lyon"\nnumber = 3\nlisten = ["mqtt://127.0.0.1:1"]\n')
    process = start("broker", "--config", file, "--listen", "mqtt://127.0.0.1:0", "--number", 4)
    assert process.stdout.readline().endswith(" name=lyon number=4\n")
    process.terminate()
    process.wait(PATIENCE)
    process.communicate()


def test_short_options_as_for_mosquitto(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('name = "lyon"\nlisten = ["mqtt://127.0.0.1:1"]\n')
    process = start("broker", "-p", "0", "-p", "0", "-c", file, "-v")
    line = process.stdout.readline()
    assert line.count("mqtt://127.0.0.1:") == 2
    assert " name=lyon" in line
    process.terminate()
    process.wait(PATIENCE)
    process.communicate()


def test_a_key_in_the_environment_makes_no_member_of_a_mesh() -> None:
    process = start("broker", "-p", "0", env={**os.environ, "MQMESH_KEY": KEY})
    ready_port(process)
    process.terminate()
    assert process.wait(PATIENCE) == 0
    process.communicate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "mqtt://127.0.0.1:x"], ["--listen", "mqtt://HOST:PORT"]),
        (["--listen", "tcp://127.0.0.1"], ["--listen", "mqtt://HOST:PORT"]),
        (["--name", "a b"], ["--name", "letters"]),
        (["--peer", "mqtt://127.0.0.1:1", "--name", "a", "--number", "1"], ["--mesh-key", "missing"]),
        (["--peer", "mqtt://127.0.0.1:1", "--mesh-key", KEY, "--number", "1"], ["--name", "missing"]),
        (["--peer", "mqtt://127.0.0.1:1?cots=1", "--mesh-key", KEY, "--name", "a", "--number", "1"], ["--peer", "?cost=2&number=7"]),
        (["--mesh", "m", "--mesh-key", "short", "--name", "a", "--number", "1"], ["--mesh-key", "16 bytes"]),
        (["--mesh", "m", "--mesh-key", KEY, "--mode", "flod", "--name", "a", "--number", "1"], ["--mode", "flood"]),
        (["--config", "/nonexistent.toml"], ["/nonexistent.toml", "No such file"]),
        (["--log-level", "loud"], ["--log-level", "debug, info"]),
    ],
)
def test_wrong_options_get_one_line(arguments: list[str], words: list[str]) -> None:
    done = run("broker", *arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert all(word in done.stderr.decode() for word in words), done.stderr
    assert KEY.encode() not in done.stderr


def test_a_taken_port_gets_one_line() -> None:
    process = start("broker", "--listen", "mqtt://127.0.0.1:0")
    port = ready_port(process)
    done = run("broker", "--listen", f"mqtt://127.0.0.1:{port}")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert f"mqtt://127.0.0.1:{port}".encode() in done.stderr
    assert b"taken" in done.stderr
    process.terminate()
    process.communicate()


@pytest.mark.parametrize(
    ("mesh", "key", "number", "words"),
    [
        ("sites", "another key of 16 bytes", 2, ["key"]),
        ("other", KEY, 2, ["sites", "other"]),
        ("sites", KEY, 1, ["number 1"]),
    ],
)
def test_a_peer_that_does_not_belong_is_named_in_the_log(tmp_path: Path, mesh: str, key: str, number: int, words: list[str]) -> None:
    first = start("broker", "--listen", "mqtt://127.0.0.1:0", "--name", "porto", "--number", 1, "--mesh", "sites", "--mesh-key", KEY)
    peer = f"mqtt://127.0.0.1:{ready_port(first)}"
    second = start(
        *(
            "broker",
            "--listen",
            "mqtt://127.0.0.1:0",
            "--name",
            "lyon",
            "--number",
            number,
            "--mesh",
            mesh,
            "--mesh-key",
            key,
            "--peer",
            peer,
        ),
        stderr=tmp_path / "log",
    )
    ready_port(second)
    log = _wait_for_line(tmp_path / "log", "event=link-down")
    assert all(word in log for word in words), log
    for process in (first, second):
        process.terminate()
        process.communicate()


def test_an_unreachable_peer_is_named_in_the_log(tmp_path: Path) -> None:
    peer = f"mqtt://127.0.0.1:{free_port()}"
    process = start(
        *("broker", "--listen", "mqtt://127.0.0.1:0", "--name", "lyon", "--number", 2, "--mesh-key", KEY, "--peer", peer),
        stderr=tmp_path / "log",
    )
    ready_port(process)
    assert peer in _wait_for_line(tmp_path / "log", "event=link-down")
    process.terminate()
    process.communicate()


def _wait_for_line(file: Path, word: str) -> str:
    from support.services import wait_until

    def lines() -> list[str]:
        return [line for line in file.read_text().splitlines() if word in line]

    wait_until(lambda: bool(lines()), PATIENCE, f"line with {word} in the log")
    return lines()[0]


def test_two_brokers_prove_by_certificates_who_they_are(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    mesh = ("--mesh", "m", "--auth", "certificate")
    listen = ("--listen", "mqtts://127.0.0.1:0")
    porto = start("broker", *listen, *mesh, "--name", "porto", "--number", 1, *made.options(made.broker("porto"), "optional"))
    address = porto.stdout.readline().split()[1]
    options = (*made.options(made.broker("lyon"), "optional"), "--peer", address)
    lyon = start("broker", *listen, *mesh, "--name", "lyon", "--number", 2, *options, stderr=tmp_path / "log")
    assert lyon.stdout.readline().startswith("ready mqtts://127.0.0.1:")
    wait_until(lambda: "event=link-up peer=porto number=1" in (tmp_path / "log").read_text(), PATIENCE, "link")
    for process in (porto, lyon):
        process.terminate()
        assert process.wait(PATIENCE) == 0
        process.communicate()


def test_mistakes_with_certificates_are_one_line_that_names_the_option(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.broker("porto")
    listen = ["--listen", "mqtts://127.0.0.1:0"]
    member = ["--mesh", "m", "--auth", "certificate", "--name", "lyon", "--number", 2]
    cases = [
        (listen, '--listen = "mqtts://127.0.0.1:0": a TLS listener needs certificate and key in [tls]'),
        ([*listen, "--tls-certificate", "x"], "--tls-key is missing: give the PEM file of the certificate's private key"),
        ([*listen, *made.options("no")], f'--tls-certificate = "{tmp_path}/no.crt": cannot be read: No such file or directory'),
        ([*made.options("porto", "maybe")], '--client-certificates = "maybe": give "none" or "optional" or "required"'),
        ([*member], '--auth = "certificate": give certificate in [tls]: links prove by certificates who they are'),
        (
            [*member, "--mesh-key", KEY],
            f'--mesh-key = ({len(KEY)} bytes): auth = "certificate" uses no key: leave it out, or',
        ),
        (
            [*member, *made.options("porto")],
            f'--tls-certificate = "{tmp_path}/porto.crt": names 127.0.0.1, ::1, localhost, porto: links need',
        ),
        (
            [*member, *made.options("porto"), "--peer", "mqtt://h:1"],
            '"mqtt://h:1": auth = "certificate" needs TLS: write mqtts://HOST:PORT',
        ),
    ]
    for options, text in cases:
        done = run("broker", *options)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
        assert text in done.stderr.decode(), done.stderr
