"""The broker under test: one process of ours for all tests, or what `MQMESH_CONFORMANCE=host:port` names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import PATIENCE

from .lab import Lab


def outside() -> tuple[str, int] | None:
    """The address in MQMESH_CONFORMANCE, None when it is our broker that is tested."""
    named = os.environ.get("MQMESH_CONFORMANCE", "")
    host, _, port = named.rpartition(":")
    return (host, int(port)) if named else None


def start(folder: Path, text: str, listen: str = "mqtt://127.0.0.1:0") -> tuple[subprocess.Popen[str], tuple[str, int]]:
    """A broker with this configuration, as a process; (process, address)."""
    config = folder / "broker.toml"
    config.write_text(text)
    command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(config), "--listen", listen]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.match(r"ready \w+://127\.0\.0\.1:(\d+)", line)
    assert found, f"{line!r} {(folder / 'log').read_text()[-2000:]}"
    return process, ("127.0.0.1", int(found[1]))


def stop(process: subprocess.Popen[str], folder: Path) -> None:
    """End it; it must have lived until now and have seen no error of its own."""
    log = (folder / "log").read_text()
    assert process.poll() is None, f"the broker died with status {process.returncode}: {log[-2000:]}"
    process.terminate()
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert "event=internal-error" not in log, log[-4000:]


def served(factory: pytest.TempPathFactory, text: str, listen: str = "mqtt://127.0.0.1:0") -> Iterator[tuple[str, int]]:
    found = outside()
    if found is not None:
        yield found
        return
    folder = factory.mktemp("conformance")
    process, address = start(folder, text, listen)
    yield address
    stop(process, folder)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker as it is without any configuration."""
    yield from served(tmp_path_factory, "")


@pytest.fixture(scope="session")
def narrow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker that grants little: what it announces in CONNACK is not the default."""
    limits = "[limits]\nreceive_maximum = 5\nmax_packet_size = 2000\ntopic_alias_maximum = 3\nkeep_alive_maximum = 30\nsys_interval = 0\n"
    yield from served(tmp_path_factory, limits)


@pytest.fixture(scope="session")
def websocket_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A broker that listens for WebSocket at the path /mqtt; of an outside one MQMESH_CONFORMANCE_WEBSOCKET=host:port says where."""
    host, _, port = os.environ.get("MQMESH_CONFORMANCE_WEBSOCKET", "").rpartition(":")
    if outside() is not None and not host:
        pytest.skip("MQMESH_CONFORMANCE_WEBSOCKET=host:port is not set")
    yield from [(host, int(port))] if host else served(tmp_path_factory, "", "ws://127.0.0.1:0/mqtt")


@pytest.fixture
def lab(address: tuple[str, int]) -> Iterator[Lab]:
    """Clients of the broker under test."""
    found = Lab(address)
    yield found
    found.close()


@pytest.fixture
def narrow(narrow_address: tuple[str, int]) -> Iterator[Lab]:
    """Clients of a broker that grants little (or of the outside one, with whatever it grants)."""
    found = Lab(narrow_address)
    yield found
    found.close()
