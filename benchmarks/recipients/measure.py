"""One measurement: a recipient hangs under load, comes back, and hangs again together with the one that took its place.

1. Both recipients are there; messages flow at the given rate.
2. The first one gets SIGSTOP. Messages go on for a while. What has no recipient may take until `patience` to reach the other one.
3. The first one gets SIGCONT. What is left may reach it.
4. Both get SIGSTOP. A hundred more messages: does their sender hear, within `hear` seconds, that nobody has them?
5. Both get SIGCONT, and what is left arrives. What was confirmed and is neither with a recipient nor returned is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT, PeerError
from benchmarks.recipients.system import WHO, Sender, Sent, System

TICK = 0.01  # seconds between two bursts of the sender
LAST = 100  # messages while both hang
READY = 60.0  # seconds that a recipient may take to connect
DRAIN = 30.0  # seconds that messages may take once all recipients are back
STILL = 2.0  # seconds in which nothing comes: then repetitions have come too


@dataclass(frozen=True)
class Plan:
    """rate: messages a second. before, hang: seconds of load before and after SIGSTOP. patience, hear: seconds, see above."""

    rate: float = 1000.0
    before: float = 3.0
    hang: float = 10.0
    patience: float = 180.0
    hear: float = 30.0


@dataclass
class Result:
    """What happened. Times are seconds; None: never.

    first: from SIGSTOP until a message that was published after it reached somebody. worst: the longest that any message of the
    load waited, None if some waited until the first recipient came back; `stranded` is their number. repeated: messages that
    two recipients noted, or one twice, and no copy said so; marked: those of which one did. told: of the last hundred messages
    those of which the sender heard that nobody has them; told_after: the time until it heard of the last of them.
    """

    system: str
    settings: str
    published: int
    confirmed: int
    first: float | None
    worst: float | None
    stranded: int
    lost: int
    repeated: int
    marked: int
    told: int
    told_after: float | None

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Recipient:
    """A recipient's process, and what it has noted: `got` is number -> [(time, marked), ...]."""

    def __init__(self, name: str, system: System, ports: list[int], who: str, folder: Path) -> None:
        self.file = folder / f"{who}.log"
        self.got: dict[int, list[tuple[float, bool]]] = {}
        self.ready = False
        self._read = 0
        tuned = "tuned" if system.tuned else "as-it-comes"
        command = [sys.executable, "-m", "benchmarks.recipients.worker", name, tuned, ",".join(map(str, ports)), who, str(self.file)]
        with (folder / f"{who}.errors").open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def read(self) -> int:
        """Read what it has noted since the last call; how many messages that is."""
        if not self.file.exists():
            return 0
        with self.file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        count = 0
        for line in whole.splitlines():
            if line == b"ready":
                self.ready = True
                continue
            number, at, marked = line.split()
            self.got.setdefault(int(number), []).append((float(at), marked == b"1"))
            count += 1
        return count

    def signal(self, number: int) -> None:
        """SIGSTOP or SIGCONT."""
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Run:
    """One system under one plan."""

    def __init__(self, name: str, system: System, plan: Plan, folder: Path, step: Callable[[str], None]) -> None:
        self.name, self.system, self.plan, self.folder, self.step = name, system, plan, folder, step
        self.sent = Sent()
        self.recipients: list[Recipient] = []
        self.sender: Sender | None = None

    async def measure(self) -> Result:
        """Do all five steps."""
        self.step("start")
        deployment = self.system.deploy(self.folder / "broker")
        try:
            await self.system.prepare(deployment.ports)
            for who in WHO:
                self.recipients.append(Recipient(self.name, self.system, deployment.ports, who, self.folder))
                await self._until(lambda: self.recipients[-1].ready, READY, f"recipient {who}: see {self.folder / who}.errors")
            self.sender = self.system.sender(deployment.ports, self.sent)
            await self.sender.open()
            return await self._steps(self.sender)
        finally:
            for recipient in self.recipients:
                recipient.stop()
            if self.sender is not None:
                with contextlib.suppress(Exception):
                    await self.sender.close()
            deployment.stop()

    async def _steps(self, sender: Sender) -> Result:
        plan, (first, second) = self.plan, self.recipients
        self.step("load")
        await self._publish(sender, plan.before)
        await self._until(lambda: bool(first.got or second.got), READY, "message at a recipient")
        self.step("the first recipient hangs")
        first.signal(signal.SIGSTOP)
        stopped, before = time.monotonic(), len(self.sent.at)
        await self._publish(sender, plan.hang)
        await self._wait(self._all_here, stopped + plan.patience - time.monotonic())
        stranded = set(self._missing())
        load = set(self.sent.at)
        self.step("it comes back")
        first.signal(signal.SIGCONT)
        await self._wait(self._all_here, DRAIN)
        await self._quiet()
        reached, waits = self._waits(load, stopped, before)
        self.step("both hang")
        began = await self._both_hang(sender)
        self.step("both come back")
        for recipient in self.recipients:
            recipient.signal(signal.SIGCONT)
        await self._wait(self._all_here, DRAIN)
        await self._quiet()
        told = [at - began for number, at in self.sent.told.items() if number not in load]
        return Result(
            self.system.name,
            self.system.settings,
            len(self.sent.at),
            len(self.sent.confirmed),
            reached,
            None if stranded else max(waits, default=None),
            len(stranded),
            len(self._missing()),
            *self._repeats(),
            len(told),
            max(told, default=None),
        )

    async def _both_hang(self, sender: Sender) -> float:
        """The moment where it began."""
        for recipient in self.recipients:
            recipient.signal(signal.SIGSTOP)
        began, known = time.monotonic(), len(self.sent.told)
        await self._publish(sender, LAST / self.plan.rate)
        await self._wait(lambda: len(self.sent.told) - known >= LAST, self.plan.hear)
        return began

    # Load and waiting

    async def _publish(self, sender: Sender, seconds: float) -> None:
        begin, done = time.monotonic(), 0
        total = round(seconds * self.plan.rate)
        while done < total:
            due = min(total, int((time.monotonic() - begin) * self.plan.rate) + 1)
            for _ in range(due - done):
                number = len(self.sent.at)
                self.sent.at[number] = time.monotonic()
                sender.send(number)
            done = due
            await asyncio.sleep(TICK)

    async def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time."""
        end = time.monotonic() + seconds
        while True:
            self._read()
            if done():
                return True
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.05)

    async def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        if not await self._wait(done, seconds):
            raise PeerError(f"{self.system.name}: no {what} within {seconds:g} s")

    async def _quiet(self) -> None:
        since = time.monotonic()
        while time.monotonic() - since < STILL:
            if self._read():
                since = time.monotonic()
            await asyncio.sleep(0.05)

    def _read(self) -> int:
        return sum([recipient.read() for recipient in self.recipients])

    # Figures

    def _missing(self) -> list[int]:
        """Confirmed, and neither with a recipient nor known to the sender as undelivered."""
        got = [recipient.got for recipient in self.recipients]
        return [n for n in list(self.sent.confirmed) if n not in self.sent.told and not any(n in one for one in got)]

    def _all_here(self) -> bool:
        return len(self.sent.confirmed) == len(self.sent.at) and not self._missing()

    def _waits(self, load: set[int], stopped: float, before: int) -> tuple[float | None, list[float]]:
        """The first arrival of what was published after SIGSTOP, counted from there; how long each message of the load waited."""
        waits: list[float] = []
        reached: float | None = None
        for number in load:
            arrivals = [at for recipient in self.recipients for at, _ in recipient.got.get(number, [])]
            if not arrivals:
                continue
            waits.append(min(arrivals) - self.sent.at[number])
            if number >= before and (reached is None or min(arrivals) - stopped < reached):
                reached = min(arrivals) - stopped
        return reached, waits

    def _repeats(self) -> tuple[int, int]:
        """(repeated without a word, repeated and marked)"""
        plain = marked = 0
        for number in self.sent.at:
            copies = [copy for recipient in self.recipients for copy in recipient.got.get(number, [])]
            if len(copies) > 1:
                if any(mark for _, mark in copies):
                    marked += 1
                else:
                    plain += 1
        return plain, marked
