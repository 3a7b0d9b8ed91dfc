"""Participants of an act: programs in processes of their own, which an act stops or kills, and shops, which send orders in threads."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds for an order that is being sent


def start(command: list[str], log: Path) -> subprocess.Popen[str]:
    """Start a process whose stdout we read, and whose stderr is a file."""
    with log.open("w") as errors:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0)


class Crew:
    """Programs that take orders. folder: for their logs. stack: ends them. said: takes, in a thread, who said what: one JSON object."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, said: Callable[[str, dict[str, Any]], None]) -> None:
        self._folder, self._stack, self._said = folder, stack, said
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def employ(self, program: str, name: str, *arguments: str) -> None:
        """Start a module of this folder, and wait until it is ready. Raises OSError."""
        process = start([sys.executable, "-m", f"mqmesh.cli.demo.{program}", *arguments], self._folder / f"{program}-{name}.log")
        self._processes[name] = process
        self._stack.callback(self.kill, name)  # a stopped process does not end in order
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise ChildProcessError(f"the {program} {name} did not start; its log is in {self._folder}")
        threading.Thread(target=self._read, args=(name, process), name=f"{program} {name}", daemon=True).start()

    def stop(self, name: str) -> None:
        """SIGSTOP: it hangs, its connection stays open."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """SIGCONT: it goes on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for its end."""
        self._processes[name].kill()
        self._processes[name].wait()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(ValueError):  # a line that the end of the process has cut
                    self._said(name, json.loads(line))


class Shops:
    """Send orders until they close. rate: orders a second of each."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.closed = threading.Event()
        self.sellers: list[threading.Thread] = []
        self.errors: list[str] = []

    def open(self, name: str, send: Callable[[int], object]) -> None:
        """Open one. send: an order by its number, from 0 on; it returns once the broker has acknowledged the order."""
        seller = threading.Thread(target=self._sell, args=(name, send), name=name, daemon=True)
        self.sellers.append(seller)
        seller.start()

    def close(self) -> None:
        """Send no more orders; each one that was sent is noted when this returns."""
        self.closed.set()
        for seller in self.sellers:
            seller.join(PATIENCE)

    def _sell(self, name: str, send: Callable[[int], object]) -> None:
        from ...client import JMSError

        number = 0
        try:
            while not self.closed.wait(1 / self._rate):
                send(number)
                number += 1
        except JMSError as error:
            self.errors.append(f"{name}: {error}")
