"""What the tests need from outside: real brokers and clients, free ports, waiting for an event.

A missing service skips a test with a reason on a developer's machine and fails it where CI is set, so that nothing is
left untested unnoticed.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

PATIENCE = 90.0  # seconds until a wait counts as failed: a busy machine is no reason to fail

# Debian keeps each version of PostgreSQL in a folder of its own.
_FOLDERS = ["/usr/sbin", "/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS])
PACKAGES = {
    "chromium": "chromium",
    "curl": "curl",
    "ip": "iproute2",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mosquitto": "mosquitto",
    "mosquitto_pub": "mosquitto-clients",
    "mosquitto_sub": "mosquitto-clients",
    "nats-server": "nats-server",
    "node": "nodejs",
    "php": "php-cli",
    "postgres": "postgresql",
    "rabbitmq-server": "rabbitmq-server",
    "redis-server": "redis-server",
}


def missing(what: str) -> NoReturn:
    """Skip the test, or fail it when CI is set to anything but an empty word, 0 or false."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(what)
    pytest.fail(f"{what} (CI is set, so this is a failure)")


def require(command: str) -> str:
    """The path of a program such as ``mosquitto``; without it the test is skipped, or fails when CI is set."""
    path = shutil.which(command, path=SEARCH_PATH)
    if path is None:
        missing(f"{command} is not installed: make services (Debian package {PACKAGES.get(command, command)})")
    return path


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """In a process to be (`preexec_fn`): Linux ends it should the tests die without ending it. The thread that starts it has to live on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def part_of(ports: range) -> range:
    """Those that belong to this process of a parallel run."""
    parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ports[part::parts]


def _ports() -> Iterator[int]:
    """Below those that a system gives to outgoing connections, and beside those that meshes and the demo get."""
    ports = list(part_of(range(10_000, 15_000)))
    random.Random(os.getpid()).shuffle(ports)  # another run on this machine begins elsewhere
    return itertools.cycle(ports)


_PORTS = _ports()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on at this moment, and that nothing else of this run is given."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("endless")


def wait_for_port(port: int, timeout: float = PATIENCE) -> None:
    """Return once something accepts connections at 127.0.0.1:`port`; AssertionError after `timeout` seconds."""

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return True
        return False

    wait_until(answers, timeout, f"a listener at port {port}")


def wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    """Ask `condition` until it holds; AssertionError naming `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"no {what} within {timeout} s"
        time.sleep(0.01)
