"""Clients that people use, with TLS: mosquitto_pub and mosquitto_sub, paho-mqtt, openssl, and our own commands; on both loops."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Certificates
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, require, wait_until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("tls"))
    certificates.broker("porto")
    certificates.client("desk")
    return certificates


class Broker:
    """`mqmesh broker` with one TLS listener."""

    def __init__(self, certificates: Certificates, folder: Path, asks: str, loop: str = "uvloop") -> None:
        self.log = folder / f"{asks}-{loop}.log"
        self.certificates = certificates
        options = certificates.options("porto", asks)
        environment = {**os.environ, "MQMESH_LOOP": loop}
        self.process = start("broker", "--listen", "mqtts://127.0.0.1:0", *options, stderr=self.log, env=environment)
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready mqtts://127.0.0.1:"), self.log.read_text()
        self.port = int(line.split()[1].rpartition(":")[2])
        self.to = ["-h", "localhost", "-p", str(self.port)]
        self.trusts = ["--cafile", str(certificates.ca)]
        self.shows = ["--cert", str(certificates.certificate("desk")), "--key", str(certificates.key("desk"))]

    def refused(self, text: str) -> None:
        wait_until(lambda: any("event=tls-refused" in line and text in line for line in self.log.read_text().splitlines()), PATIENCE, text)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log.read_text()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def broker(request: pytest.FixtureRequest, made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """It asks for certificates."""
    running = Broker(made, tmp_path_factory.mktemp("broker"), "required", request.param)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def open_broker(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """It asks for none."""
    running = Broker(made, tmp_path_factory.mktemp("broker"), "none")
    yield running
    running.stop()


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([require(name), *arguments], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_tools_with_a_certificate(broker: Broker, name: str, version: str, qos: str) -> None:
    secret = [*broker.to, *broker.trusts, *broker.shows, "-V", version]
    done = tool("mosquitto_pub", *secret, "-t", name, "-m", "kept", "-q", qos, "-r")
    assert done.returncode == 0, done.stderr
    large = "x" * 200_000
    subscriber = subprocess.Popen(
        ["stdbuf", "-oL", require("mosquitto_sub"), *secret, "-t", name, "-q", qos, "-C", "2", "-W", str(int(PATIENCE))],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    assert subscriber.stdout.readline() == "kept\n"
    done = subprocess.run([require("mosquitto_pub"), *secret, "-t", name, "-q", qos, "-s"], input=large, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert subscriber.stdout.readline() == large + "\n"
    assert subscriber.wait(PATIENCE) == 0
    subscriber.communicate()


def test_mosquitto_tools_that_are_refused(broker: Broker, made: Certificates, tmp_path: Path) -> None:
    pub = ["-t", "t", "-m", "x"]
    with Paho(broker.port, context=made.context("desk")) as healthy:
        healthy.subscribe("healthy")
        assert tool("mosquitto_pub", *broker.to, *broker.trusts, *pub).returncode != 0
        broker.refused("it shows no certificate, and one is required here")
        others = Certificates(tmp_path, "others")
        others.client("desk")
        wrong = ["--cert", str(others.certificate("desk")), "--key", str(others.key("desk"))]
        assert tool("mosquitto_pub", *broker.to, *broker.trusts, *wrong, *pub).returncode != 0
        broker.refused("its certificate is signed by an authority that is not trusted here")
        done = tool("mosquitto_pub", *broker.to, "--cafile", str(others.ca), *broker.shows, *pub)
        assert done.returncode != 0
        broker.refused("it does not trust the authority of the certificate that was shown")
        assert tool("mosquitto_pub", *broker.to, *pub).returncode != 0
        broker.refused("it speaks MQTT without TLS")
        assert healthy.publish("healthy", b"x", 1) == 0
        assert healthy.next().payload == b"x"
        assert healthy.disconnects.empty()


@pytest.mark.parametrize("version", [4, 5])
def test_paho(broker: Broker, made: Certificates, name: str, version: int) -> None:
    with Paho(broker.port, version, context=made.context("desk")) as client:
        client.subscribe(name, 2)
        for number in range(200):
            client.client.publish(name, bytes([number]) * (number * 100), 2)
        assert [client.next().payload for _ in range(200)] == [bytes([number]) * (number * 100) for number in range(200)]


@pytest.mark.parametrize(("option", "version"), [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")])
def test_versions_that_are_taken(open_broker: Broker, option: str, version: str) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{open_broker.port}", *("-CAfile", open_broker.trusts[1]), "-brief", option]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE)
    assert f"Protocol version: {version}" in done.stderr
    assert "Verification: OK" in done.stderr


@pytest.mark.parametrize("option", ["-tls1", "-tls1_1"])
def test_versions_that_are_too_old(open_broker: Broker, option: str) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{open_broker.port}", "-brief", option, "-cipher", "ALL:@SECLEVEL=0"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE)
    assert "Protocol version" not in done.stderr
    assert "alert protocol version" in done.stderr
    open_broker.refused("it speaks no version of TLS that is taken here (1.2 or newer for clients, 1.3 for links)")


def session_of(broker: Broker, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> tuple[ssl.SSLSession, bool]:
    """A connection that offers to resume that session; what it could be resumed by, and whether it was resumed itself."""
    with (
        socket.create_connection(("127.0.0.1", broker.port), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as sock,
    ):
        sock.sendall(b"\x10\x0e\0\4MQTT\4\2\0\0\0\2ab")
        assert sock.recv(4) == b"\x20\2\0\0"
        assert sock.session is not None
        return sock.session, bool(sock.session_reused)


def test_sessions_are_not_resumed(made: Certificates, tmp_path: Path) -> None:
    """TLS 1.3 gives nothing to resume by; TLS 1.2 resumes until the certificates are looked at again."""
    broker = Broker(made, tmp_path, "none")
    context = made.context()
    session, _ = session_of(broker, context)
    assert not session.has_ticket
    assert not session_of(broker, context, session)[1]
    context = made.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session, _ = session_of(broker, context)
    assert not session.has_ticket
    os.kill(broker.process.pid, signal.SIGHUP)
    wait_until(lambda: "event=tls-reloaded" in broker.log.read_text(), PATIENCE, "reload")
    assert not session_of(broker, context, session)[1]
    broker.stop()


def test_our_commands(broker: Broker, made: Certificates, name: str) -> None:
    url = f"mqtts://localhost:{broker.port}"
    secret = ["-h", url, *broker.trusts, *broker.shows]
    done = run("pub", *secret, "-t", name, "-m", "21.5", "-q", 1, "-r")
    assert (done.returncode, done.stderr) == (0, b"")
    done = run("sub", *secret, "-t", name, "-C", 1, "-W", 90)
    assert (done.returncode, done.stdout) == (0, b"21.5\n")


def test_our_commands_say_what_is_wrong(broker: Broker, open_broker: Broker, made: Certificates, tmp_path: Path) -> None:
    pub = ["-t", "t", "-m", "x"]
    url = f"mqtts://localhost:{broker.port}"
    others = Certificates(tmp_path, "others")
    cases = [
        (["-h", url, *broker.trusts], 1, "Does it ask for a certificate (--cert, --key)"),
        (["-h", url, "--cafile", others.ca], 1, "its certificate is signed by an authority that is not trusted here"),
        (["-h", f"mqtt://localhost:{broker.port}"], 1, "Is it a port for TLS (mqtts://)?"),
        (["-h", url, *broker.trusts, "--cert", tmp_path / "no"], 2, f"--cert {tmp_path / 'no'}: no such file"),
        (
            ["-h", url, *broker.trusts, *broker.shows[:2], "--key", others.authority.made.key],
            2,
            "the key that the certificate was made with",
        ),
        (["-h", "localhost", *broker.shows], 2, "--cert and --key need TLS"),
        (["-h", url, "--key", "x"], 2, "--key goes with --cert"),
    ]
    for options, status, text in cases:
        done = run("pub", *options, *pub)
        assert (done.returncode, done.stderr.count(b"\n")) == (status, 1), done.stderr
        assert text.encode() in done.stderr
    made.broker("elsewhere", "elsewhere.example")
    elsewhere = Broker.__new__(Broker)
    elsewhere.log = tmp_path / "log"
    process = start("broker", "--listen", "mqtts://127.0.0.1:0", *made.options("elsewhere"), stderr=elsewhere.log)
    port = int(process.stdout.readline().split()[1].rpartition(":")[2])  # type: ignore[union-attr]
    done = run("pub", "-h", f"mqtts://localhost:{port}", *broker.trusts, *pub)
    assert b"(--insecure does not ask)" in done.stderr, done.stderr
    assert run("pub", "-h", f"mqtts://localhost:{port}", *broker.trusts, "--insecure", *pub).returncode == 0
    process.terminate()
    process.wait(PATIENCE)
    process.communicate()


def test_a_certificate_is_renewed_while_clients_stay(made: Certificates, tmp_path: Path, name: str) -> None:
    broker = Broker(made, tmp_path, "none")

    def serial() -> str:
        with Paho(broker.port, context=made.context()) as client:
            sock = client.client.socket()
            assert isinstance(sock, ssl.SSLSocket)
            return str(sock.getpeercert()["serialNumber"])  # type: ignore[index]

    with Paho(broker.port, context=made.context()) as stays:
        stays.subscribe(name)
        before = serial()
        made.broker("porto", renew=True)
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: "event=tls-reloaded" in broker.log.read_text(), PATIENCE, "reload")
        assert serial() != before
        key = made.key("porto").read_bytes()
        made.key("porto").write_text("nonsense")
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: "event=tls-not-reloaded" in broker.log.read_text(), PATIENCE, "line")
        made.key("porto").write_bytes(key)
        serial()
        assert stays.publish(name, b"x", 1) == 0
        assert stays.next().payload == b"x"
        assert stays.disconnects.empty()
    broker.stop()
