"""Machines on one network, each with an address of its own: network namespaces of Linux, joined by a bridge in one more.

Only root may make them, and not in every container. The file system is that of this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from support.services import PATIENCE, require

SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


class Lan:
    """addresses: of the machines by name. The interface of each is eth0. Skips the test where namespaces are not permitted."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self._ip = require("ip")
        self._addresses = addresses
        self._prefix = f"mqmesh-{os.getpid()}-"
        self._switch = f"{self._prefix}switch"
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("only root may make network namespaces")
        try:
            self._do("netns", "add", self._switch)
            self._do("-n", self._switch, "link", "add", "lan", "up", "type", "bridge")
        except subprocess.CalledProcessError as error:
            self._remove()
            pytest.skip(f"this machine does not permit network namespaces: {error.stderr.strip()}")
        for name, address in self._addresses.items():
            there = self._prefix + name
            self._do("netns", "add", there)
            self._do("-n", there, "link", "set", "lo", "up")
            self._do("-n", there, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self._switch)
            self._do("-n", self._switch, "link", "set", name, "master", "lan", "up")
            self._do("-n", there, "address", "add", f"{address}/24", "dev", "eth0")
            self._do("-n", there, "link", "set", "eth0", "up")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._remove()

    def run(self, machine: str, folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
        """Run shell commands on a machine to their end."""
        return subprocess.run(self._on(machine, commands), cwd=folder, env=SHELL, capture_output=True, text=True, timeout=PATIENCE)

    def start(self, machine: str, folder: Path, commands: str, log: Path) -> subprocess.Popen[str]:
        """Start shell commands on a machine, which end with the network at the latest. log: for their stderr."""
        with log.open("w") as errors:
            process = subprocess.Popen(
                self._on(machine, commands),
                cwd=folder,
                env=SHELL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _on(self, machine: str, commands: str) -> list[str]:
        return [self._ip, "netns", "exec", self._prefix + machine, "bash", "-ec", commands]

    def _do(self, *words: str) -> None:
        subprocess.run([self._ip, *words], check=True, capture_output=True, text=True)

    def _remove(self) -> None:
        for name in [*self._addresses, "switch"]:
            subprocess.run([self._ip, "netns", "delete", self._prefix + name], capture_output=True)
