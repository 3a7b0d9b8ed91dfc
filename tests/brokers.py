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

from services import free_port, require, wait_for_port


@dataclass(frozen=True)
class RunningBroker:
    """A broker that listens at `host`:`port`; `kind` is "mqmesh" or "mosquitto"."""

    kind: str
    port: int
    process: subprocess.Popen[str]
    log: Path
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"


@contextlib.contextmanager
def running_broker(folder: Path, kind: str | None = None) -> Iterator[RunningBroker]:
    """Start a broker, yield it once it listens, stop it. `folder` takes its log and configuration."""
    kind = kind or os.environ.get("MQMESH_TEST_BROKER", "mqmesh")
    log = folder / f"{kind}.log"
    with log.open("w") as stderr:
        process, port = _mosquitto(folder, stderr) if kind == "mosquitto" else _mqmesh(stderr)
        try:
            yield RunningBroker(kind, port, process, log)
            assert process.poll() is None, f"{kind} died with status {process.returncode}: {log.read_text()[-2000:]}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _mqmesh(stderr: object) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--listen", "mqtt://127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)  # type: ignore[call-overload]
    line = process.stdout.readline()
    assert line.startswith("ready mqtt://127.0.0.1:"), f"the broker printed {line!r}"
    return process, int(line.split()[1].rpartition(":")[2])


def _mosquitto(folder: Path, stderr: object) -> tuple[subprocess.Popen[str], int]:
    program = require("mosquitto")
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n")
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=stderr, text=True)  # type: ignore[call-overload]
    wait_for_port(port)
    return process, port
