"""Brokers for tests, each a process of its own at a free port of 127.0.0.1.

`MQMESH_TEST_BROKER=mosquitto` runs the tests that use the `broker` fixture against Mosquitto instead of mqmesh, to see
that a test states what MQTT says and not what our broker happens to do.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mqmesh.base.address import parse_address

from support.services import PATIENCE, free_port, require, wait_for_port


@dataclass(frozen=True)
class RunningBroker:
    """A broker that listens at `host`:`port`; `kind` is "mqmesh" or "mosquitto". `web`: port of its WebSocket listener, 0 for none."""

    kind: str
    port: int
    process: subprocess.Popen[str]
    log: Path
    host: str = "127.0.0.1"
    web: int = 0

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    @property
    def web_url(self) -> str:
        return f"ws://{self.host}:{self.web}/mqtt"


@contextlib.contextmanager
def running_broker(
    folder: Path, kind: str | None = None, web: bool = False, largest: int = 16_000_000, queues: str = ""
) -> Iterator[RunningBroker]:
    """Start a broker, yield it once it listens, stop it. `folder` takes its log and configuration. web: with a WebSocket listener too.

    largest: bytes of a packet that it takes. queues: tables of an mqmesh broker's file, with a data folder for them.
    """
    kind = kind or os.environ.get("MQMESH_TEST_BROKER", "mqmesh")
    log = folder / f"{kind}.log"
    with log.open("w") as stderr:
        process, ports = _mosquitto(folder, stderr, web, largest) if kind == "mosquitto" else _mqmesh(folder, stderr, web, largest, queues)
        try:
            yield RunningBroker(kind, ports[0], process, log, web=ports[-1] if web else 0)
            assert process.poll() is None, f"{kind} died with status {process.returncode}: {log.read_text()[-2000:]}"
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _mqmesh(folder: Path, stderr: object, web: bool, largest: int, queues: str) -> tuple[subprocess.Popen[str], list[int]]:
    config = folder / "mqmesh.toml"
    config.write_text(f"[limits]\nmax_packet_size = {largest}\n{queues}")
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config), "--listen", "mqtt://127.0.0.1:0"]
    if web:
        command += ["--listen", "ws://127.0.0.1:0"]
    if queues:
        command += ["--data", str(folder / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)  # type: ignore[call-overload]
    line = process.stdout.readline()
    assert line.startswith("ready mqtt://127.0.0.1:"), f"the broker printed {line!r}"
    return process, [parse_address(word).port for word in line.split() if "://" in word]


def _mosquitto(folder: Path, stderr: object, web: bool, largest: int) -> tuple[subprocess.Popen[str], list[int]]:
    program = require("mosquitto")
    ports = [free_port() for _ in range(1 + web)]
    config = folder / "mosquitto.conf"
    listeners = [f"listener {port} 127.0.0.1\n" for port in ports] + ["protocol websockets\n"] * web
    config.write_text(
        "".join(listeners) + "allow_anonymous true\npersistence false\nmax_queued_messages 0\n" + f"max_packet_size {largest}\n"
    )
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=stderr, text=True)  # type: ignore[call-overload]
    for port in ports:
        wait_for_port(port)
    return process, ports
