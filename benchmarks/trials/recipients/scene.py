"""Four brokers, an application at three of them, and a sender at the fourth; what was sent, and where it has come to.

The applications stand in the brokers' files, and their clients know nothing of it. `orders` at lyon has the alternatives `orders-turin` and
`orders-graz`, which have none. What nobody takes comes back to the sender's Response Topic, at porto.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.recipients.settings import Application, Intervals, RecipientSettings
from mqmesh.cli.fleet.process import Fleet, FleetError

from benchmarks.peers import ROOT
from benchmarks.recipients.mqtt import RETURNED, client_at, properties_for, properties_of
from benchmarks.recipients.system import number_of, payload
from benchmarks.trials.scene import mesh

LINKS = [("porto", "lyon"), ("lyon", "turin"), ("turin", "graz"), ("graz", "porto"), ("porto", "turin")]
HOMES = {"orders": "lyon", "orders-turin": "turin", "orders-graz": "graz"}
ORIGIN = "porto"
SETTLE = READY = 90.0  # seconds
TICK = 0.01  # seconds between two bursts of the sender
REPLIES = "replies/sender"
EVENTS = "$mqmesh/events/recipients"  # of each broker's own recipients


@dataclass
class Copy:
    """A message somewhere: who ("returned" and "dead" are the sender and the dead letters), when, whether it is marked as a repeat."""

    who: str
    at: float
    marked: bool
    before: str = ""


@dataclass
class Accounts:
    """What was sent and where it is.

    sent, confirmed: number -> monotonic seconds. copies: number -> where it has come to. came: the same in the order of learning it.
    """

    sent: dict[int, float] = field(default_factory=dict)
    confirmed: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    copies: dict[int, list[Copy]] = field(default_factory=dict)
    came: list[tuple[int, Copy]] = field(default_factory=list)

    def add(self, number: int, copy: Copy) -> None:
        """A message has come somewhere."""
        self.copies.setdefault(number, []).append(copy)
        self.came.append((number, copy))

    def missing(self) -> list[int]:
        """Confirmed and nowhere."""
        return [number for number in list(self.confirmed) if number not in self.copies]

    def ended(self, who: str) -> int:
        """How many messages have a copy there."""
        return sum(any(copy.who == who for copy in copies) for copies in list(self.copies.values()))

    def repeated(self) -> tuple[list[int], int]:
        """(those with more than one copy of which none is marked, how many have a marked one)"""
        several = {number: copies for number, copies in self.copies.items() if len(copies) > 1}
        marked = sum(any(copy.marked for copy in copies) for copies in several.values())
        return [number for number, copies in several.items() if not any(copy.marked for copy in copies)], marked

    def disordered(self, who: str) -> int:
        """Unmarked messages that came there behind a later one."""
        found = sorted(
            (copy.at, number) for number, copies in self.copies.items() for copy in copies if copy.who == who and not copy.marked
        )
        last = count = 0
        for _, number in found:
            count += number < last
            last = max(last, number)
        return count


class Process:
    """One application's process."""

    def __init__(self, name: str, port: int, folder: Path) -> None:
        self.name, self.file = name, folder / f"{name}.log"
        self.ready = False
        self.stopped = False
        self._read = 0
        command = [sys.executable, "-m", "benchmarks.trials.recipients.recipient", str(port), name, str(self.file)]
        with (folder / f"{name}.errors").open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def hang(self) -> float:
        """SIGSTOP; the moment."""
        self.stopped = True
        os.kill(self.process.pid, signal.SIGSTOP)
        return time.monotonic()

    def wake(self) -> float:
        """SIGCONT; the moment."""
        self.stopped = False
        os.kill(self.process.pid, signal.SIGCONT)
        return time.monotonic()

    def read(self, accounts: Accounts) -> int:
        """Take over what it has noted; how many messages."""
        if not self.file.exists():
            return 0
        with self.file.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            if line == "ready":
                self.ready = True
                continue
            number, at, marked, before = line.split(" ", 3)
            accounts.add(int(number), Copy(self.name, float(at), marked == "1", before))
        return whole.count(b"\n")

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class _Fleet(Fleet):
    """With the same table of recipients in each file."""

    recipients: RecipientSettings | None = None

    def configuration(self, name: str) -> BrokerConfig:
        return replace(super().configuration(name), recipients=self.recipients)


class Scene:
    """All of it; use it with `with`. intervals: of all recipients. said: told each line of the timeline."""

    def __init__(self, folder: Path, intervals: Intervals, said: Callable[[str], None] = lambda text: None) -> None:
        self.folder, self.intervals, self._said = folder, intervals, said
        self.fleet = _Fleet(mesh(LINKS), folder / "brokers")
        alternatives = {"orders": ["orders-turin", "orders-graz"]}
        self.fleet.recipients = RecipientSettings(
            intervals=intervals,
            applications=[
                Application(name, [name], [], alternatives.get(name, []), intervals, broker=home) for name, home in HOMES.items()
            ],
        )
        self.accounts = Accounts()
        self.applications: dict[str, Process] = {}
        self.states: list[tuple[float, str, str, str]] = []  # heard at, name, state, why
        self.timeline: list[tuple[float, str]] = []
        self.begin = time.monotonic()
        self._clients: list[paho.Client] = []
        self._waiting: dict[int, int] = {}
        self._early: dict[int, Any] = {}

    def port(self, site: str) -> int:
        """Where the site's clients connect."""
        return self.fleet.members[site].address.port

    def __enter__(self) -> Scene:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.fleet.start()
        try:
            self.fleet.wait_settled(SETTLE)
            for name, home in HOMES.items():
                self.applications[name] = Process(name, self.port(home), self.folder)
            self._sender = self._client(ORIGIN, "sender", [REPLIES], self._returned)
            self._sender.on_publish = self._published
            self._client("graz", "undertaker", ["dead/#"], self._dead)
            for site in HOMES.values():
                self._client(site, f"watcher-{site}", [EVENTS], self._heard)
            self.wait(lambda: all(one.ready for one in self.applications.values()), READY, "application that is ready")
        except BaseException:
            self.__exit__()
            raise
        self.begin = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        for application in self.applications.values():
            application.stop()
        self.fleet.stop()

    # Clients

    def _client(self, site: str, name: str, filters: list[str], came: Callable[[paho.MQTTMessage], None]) -> paho.Client:
        client = client_at(self.port(site), name, 60)
        client.on_message = lambda _client, _data, message: came(message)
        client.on_connect = lambda client, *_: client.subscribe([(one, 1) for one in filters])
        client.reconnect_delay_set(1, 1)
        client.loop_start()
        self._clients.append(client)
        return client

    def _published(self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
        number = self._waiting.pop(mid, None)
        if number is None:
            self._early[mid] = reason
        else:
            self._confirm(number, reason)

    def _confirm(self, number: int, reason: Any) -> None:
        if reason.is_failure:
            self.accounts.refused += 1
        else:
            self.accounts.confirmed[number] = time.monotonic()

    def _returned(self, message: paho.MQTTMessage) -> None:
        said = properties_of(message)
        marked = "mqmesh-repeated" in said or bool(message.dup)
        self._note("returned" if RETURNED in said else "reply", message, marked)

    def _dead(self, message: paho.MQTTMessage) -> None:
        self._note("dead", message, "mqmesh-repeated" in properties_of(message) or bool(message.dup))

    def _note(self, who: str, message: paho.MQTTMessage, marked: bool) -> None:
        copy = Copy(who, time.monotonic(), marked, properties_of(message).get("mqmesh-tried", ""))
        self.accounts.add(number_of(bytes(message.payload)), copy)

    def _heard(self, message: paho.MQTTMessage) -> None:
        event = json.loads(message.payload)
        name, state, why = event["name"], str(event["to"]).upper(), event.get("why", "")
        self.states.append((time.monotonic(), name, state, why))
        self.note(f"{name} is {state}: {why}")

    # What happens

    def note(self, text: str) -> None:
        """A line of the timeline."""
        at = time.monotonic() - self.begin
        self.timeline.append((at, text))
        self._said(f"{at:8.3f} s  {text}")

    def state(self, name: str) -> str:
        """What its home's broker last said of it; "" for nothing yet."""
        return next((entry[2] for entry in reversed(self.states) if entry[1] == name), "")

    def state_at(self, name: str, state: str, after: float) -> float | None:
        """When the watcher heard that it is in this state, after a moment; None: it has not."""
        return next((at for at, who, what, _ in self.states if who == name and what == state and at >= after), None)

    def publish(self, seconds: float, rate: float, until: Callable[[], bool] = lambda: False) -> None:
        """Publish to `orders` for so long, or until something holds."""
        begin, done = time.monotonic(), 0
        total = round(seconds * rate)
        while done < total and not until():
            due = min(total, int((time.monotonic() - begin) * rate) + 1)
            for _ in range(due - done):
                self._send()
            done = due
            self.read()
            time.sleep(TICK)

    def _send(self) -> None:
        number = len(self.accounts.sent)
        properties = properties_for(3)
        properties.ResponseTopic = REPLIES
        self.accounts.sent[number] = time.monotonic()
        mid = self._sender.publish("app/orders/new", payload(number), 1, properties=properties).mid
        self._waiting[mid] = number
        if mid in self._early:
            del self._waiting[mid]
            self._confirm(number, self._early.pop(mid))

    def read(self) -> int:
        """Take over what applications have noted."""
        return sum([one.read(self.accounts) for one in self.applications.values()])

    def wait(self, condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.005) -> None:
        """Until it holds; it is asked each `pause` seconds. FleetError after so many seconds."""
        end = time.monotonic() + seconds
        while True:
            self.read()
            if condition():
                return
            if time.monotonic() > end:
                raise FleetError(f"no {what} within {seconds:g} s")
            time.sleep(pause)

    def _confirmed(self) -> bool:
        return len(self.accounts.confirmed) + self.accounts.refused >= len(self.accounts.sent)

    def drain(self, seconds: float) -> bool:
        """Wait until everything is confirmed and somewhere, and nothing more comes; whether that is so in time."""
        accounts = self.accounts
        try:
            self.wait(lambda: self._confirmed() and not accounts.missing(), seconds, "end", 0.1)
        except FleetError:
            return False
        since, before = time.monotonic(), -1
        while time.monotonic() - since < 1.5:
            self.read()
            now = sum(map(len, list(accounts.copies.values())))
            if now != before:
                since, before = time.monotonic(), now
            time.sleep(0.05)
        return True
