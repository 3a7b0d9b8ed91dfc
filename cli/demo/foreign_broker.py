"""The demo's third act: two sites reach a foreign broker, by the name of a service, through a metabroker.

The foreign broker is amqtt, MQTT 3.1.1. Only the metabroker has its password (`password_file` in its policy). A gauge at the foreign
broker publishes this machine's counters of sent and received bytes with QoS 1, as if they were rainfall. A directory knows the broker's
address. At two sites, a program with the JMS-like API knows only its own broker and the service's name. The foreign broker is killed in
mid-run.

amqtt keeps nothing over its death. So it is killed after it has forwarded all that it has acknowledged. Meanwhile the gauge holds its
readings. It sends them when both sites hear it again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import secrets
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psutil

from ...base.extras import install
from .participants import start
from .ring import free_ports
from .tally import Arrivals

if TYPE_CHECKING:
    from ...client import Context, JMSError, Message
    from ..fleet.process import Fleet

NEEDS = {
    "amqtt": "amqtt",
    "lxml": "directory",
    "sqlalchemy": "directory",
    "starlette": "directory",
    "uvicorn": "directory",
    "argon2": "directory",
    "zeep": "uddi",
}
SERVICE = "abroad/rain"
RATE = 50  # readings a second
PART = 2.0  # seconds before, during and after the outage
PATIENCE = 60.0

POLICY = """
[[allow]]
clients = ["weather-*"]
remotes = ["abroad/rain"]
subscribe = ["rain/#"]
version = "3.1.1"
username = "metabroker"
password_file = "abroad.password"
"""


class ForeignBrokerError(Exception):
    """The act cannot continue. The message says why."""


@dataclass(slots=True)
class SiteArrivals:
    """What one site received of the foreign broker's readings."""

    site: str
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    disorder: int = 0


@dataclass(slots=True)
class ForeignBrokerResult:
    """The result of the act.

    skipped: why it was not played.
    acknowledged: readings that the foreign broker acknowledged.
    sessions, connections: of the metabroker with the foreign broker, before that was killed.
    told: sites that were told of the outage.
    refused: the foreign broker refused a client without the password.
    returned: seconds from its restart until both sites heard the gauge again.
    """

    skipped: str = ""
    acknowledged: int = 0
    visitors: list[SiteArrivals] = field(default_factory=list)
    sessions: int = 0
    connections: int = 0
    told: int = 0
    refused: bool = False
    returned: float | None = None

    def problems(self) -> list[str]:
        """What went wrong, one line each."""
        if self.skipped:
            return []
        found = [f"{one.lost} readings from abroad were lost at {one.site}" for one in self.visitors if one.lost]
        if self.connections != 1:
            found.append(f"the sites shared {self.connections} connections to the foreign broker, not one")
        if self.told != len(self.visitors):
            found.append(f"{self.told} of {len(self.visitors)} sites were told that the foreign broker was away")
        if not self.refused:
            found.append("the foreign broker let somebody in without its password")
        return found


class ForeignBrokerAct:
    """Plays the act beside a running ring.

    sites: names of the two sites.
    beside: the site whose broker the metabroker is connected to.
    phase: called with each event, in words.
    """

    def __init__(self, fleet: Fleet, sites: tuple[str, str], beside: str, phase: Callable[[str], None]) -> None:
        self.fleet, self.sites, self.beside, self.phase = fleet, sites, beside, phase
        self.folder = fleet.folder
        self.result = ForeignBrokerResult()
        self.arrivals = {site: Arrivals() for site in sites}
        self._told: set[str] = set()  # sites that were told of the outage
        self._heard_gauge: set[str] = set()  # sites that have heard the gauge after the restart
        self._processes: list[subprocess.Popen[str]] = []
        self._stack = contextlib.ExitStack()

    def run(self) -> ForeignBrokerResult:
        """Play the act, and end everything that it started. Raises ForeignBrokerError."""
        missing = sorted({extra for module, extra in NEEDS.items() if find_spec(module) is None})
        if missing:
            self.result.skipped = f"it needs {', '.join(missing)}: {install('demo')}"
            self.phase(f"the third act is left out: {self.result.skipped}")
            return self.result
        try:
            self._play()
        finally:
            self._stack.close()
            for process in reversed(self._processes):
                process.terminate()
            for process in self._processes:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                if process.stdout is not None:
                    process.stdout.close()
        return self.result

    def _play(self) -> None:
        logging.getLogger("mqmesh.client").addHandler(logging.NullHandler())  # this demo shows its warnings
        gauge = self._start()
        contexts = [self._start_program(site) for site in self.sites]
        log = (self.folder / "metabroker.log").read_text()
        self.result.connections = log.count("event=remote-up")
        self.result.sessions = max((int(number) for number in re.findall(r"event=session-begin .* sharers=(\d+)", log)), default=0)
        self.phase(
            f"{' and '.join(self.sites)} subscribe to {SERVICE} through their own brokers; the metabroker beside {self.beside} serves "
            f"{self.result.sessions} sessions over {self.result.connections} connection"
        )
        gauge.measure(PART)
        self._wait(lambda: self._arrived(gauge.acknowledged), "all readings at both sites")
        self.phase("the foreign broker is killed (SIGKILL); its gauge holds what it measures")
        self._broker.kill()
        self._broker.wait()
        gauge.close()
        gauge.measure(PART)
        self._wait(lambda: len(self._told) == len(self.sites), "word of it at both sites")
        self.result.told = len(self._told)
        self._start_broker()
        again = time.monotonic()
        self._wait(gauge.connect, "the foreign broker again")
        self._wait(lambda: self._heard_again(gauge), "a word of the gauge at both sites")
        self.result.returned = time.monotonic() - again
        self.phase(f"it was started again: {self.result.returned:.1f} s later both sites hear the gauge")
        gauge.measure(PART)
        self._wait(lambda: self._arrived(gauge.acknowledged), "", must=False)
        self.result.acknowledged = gauge.acknowledged
        for site, arrivals in self.arrivals.items():
            lost = sum(number not in arrivals.first for number in range(gauge.acknowledged))
            self.result.visitors.append(SiteArrivals(site, len(arrivals.first), lost, sum(arrivals.again.values()), arrivals.disorder))
        for context in contexts:
            context.close()

    def _arrived(self, count: int) -> bool:
        return all(len(arrivals.first) >= count for arrivals in self.arrivals.values())

    def _heard_again(self, gauge: _Gauge) -> bool:
        gauge.call()
        time.sleep(0.1)
        return len(self._heard_gauge) == len(self.sites)

    # Participants

    def _start(self) -> _Gauge:
        """Start the foreign broker, the directory, the metabroker and the gauge."""
        password = secrets.token_hex(16)
        host, port = self._foreign(password)
        directory = self._spawn("directory", "serve", "--listen", "127.0.0.1:0", "--database", f"sqlite:///{self.folder / 'directory.db'}")
        url = self._ready(directory, "the directory").split()[1]
        self._register(url, f"mqtt://{host}:{port}")
        (self.folder / "abroad.password").write_text(password + "\n")
        (self.folder / "abroad.toml").write_text(POLICY)
        address = self.fleet.members[self.beside].address
        options = (
            "--community",
            str(address),
            "--policy",
            self.folder / "abroad.toml",
            "--directory",
            url,
            "--data",
            self.folder / "kept",
        )
        metabroker = self._spawn("metabroker", *options)
        gauge = _Gauge(host, port, password)
        self._stack.callback(gauge.close)
        self._wait(gauge.connect, "the foreign broker")
        self.result.refused = not _Gauge(host, port, None).connect()
        self.phase(
            f"a foreign broker (amqtt, MQTT 3.1.1) at {host}:{port}, found as {SERVICE} in a directory; without the password, which only "
            f"the metabroker has, it {'turns clients away' if self.result.refused else 'lets clients in'}"
        )
        self._ready(metabroker, "the metabroker")
        for _ in self.fleet.settling(PATIENCE):
            pass
        return gauge

    def _foreign(self, password: str) -> tuple[str, int]:
        from pwdlib.hashers.argon2 import Argon2Hasher

        (port,) = free_ports(1)
        accounts = self.folder / "amqtt.accounts"
        accounts.write_text(f"metabroker:{Argon2Hasher().hash(password)}\n")
        config = self.folder / "amqtt.yaml"
        config.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n"
            f"plugins:\n  amqtt.plugins.authentication.FileAuthPlugin:\n    password_file: {accounts}\n"
        )
        self._start_broker()
        return "127.0.0.1", port

    def _start_broker(self) -> None:
        command = [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(self.folder / "amqtt.yaml")]
        with (self.folder / "amqtt.log").open("a") as log:
            self._broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, text=True, process_group=0)
        self._processes.append(self._broker)

    def _register(self, url: str, address: str) -> None:
        from ...directory.client import Client
        from ...directory.storage.accounts import add_account
        from ...directory.storage.store import Store

        store = Store(f"sqlite:///{self.folder / 'directory.db'}")
        secret = add_account(store, "demo", "demo")
        store.close()
        client = Client(url)
        client.log_in("demo", secret)
        client.put("mesh", "abroad")
        client.put("service", "rain", "abroad", addresses=[address])

    def _spawn(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mqmesh.cli.main", *map(str, arguments)]
        process = start(command, self.folder / f"{arguments[0]}.log")
        self._processes.append(process)
        return process

    def _ready(self, process: subprocess.Popen[str], what: str) -> str:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(PATIENCE) else ""
        if not line.startswith("ready"):
            raise ForeignBrokerError(f"{what} did not start")
        return line

    def _start_program(self, site: str) -> Context:
        """Start a program at a site. It knows the address of its own broker and the name of the service."""
        from ...client import JMSError, MetabrokerConnectionFactory

        factory = MetabrokerConnectionFactory(
            str(self.fleet.members[site].address), SERVICE, client_id=f"weather-{site}", probe=1.0, retry_last=1.0
        )
        try:
            context = factory.create_context()
            self._stack.callback(context.close)
            context.exception_listener = functools.partial(self._note_error, site)
            consumer = context.create_durable_consumer(context.create_topic("rain/#"), "readings")
            consumer.message_listener = functools.partial(self._note_reading, site)
        except JMSError as error:
            raise ForeignBrokerError(f"{site} has no connection abroad: {error}") from None
        return context

    def _note_error(self, site: str, error: JMSError) -> None:
        if error.error_code == "remote_unreachable":
            self._told.add(site)

    def _note_reading(self, site: str, message: Message) -> None:
        sequence = json.loads(message.body)["seq"]
        if sequence is None:
            self._heard_gauge.add(site)
        else:
            self.arrivals[site].note(int(sequence), time.monotonic())

    def _wait(self, condition: Callable[[], bool], what: str, must: bool = True) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() >= end:
                if must:
                    raise ForeignBrokerError(f"{what}: nothing within {PATIENCE:g} s; the logs are in {self.folder}")
                return
            time.sleep(0.02)


class _Gauge:
    """A client of the foreign broker, MQTT 3.1.1. It publishes numbered readings."""

    def __init__(self, host: str, port: int, password: str | None) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self.acknowledged = 0
        self._number = 0
        self._held: list[str] = []  # measured, not published
        self._calls: set[int] = set()  # packet identifiers of messages that are no readings
        self._where = (host, port)
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._accepted = False
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311, reconnect_on_failure=False)
        if password is not None:
            self._client.username_pw_set("metabroker", password)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self._answered.set()
        self._client.on_publish = self._on_publish

    def connect(self) -> bool:
        """Connect. Returns whether the broker accepts."""
        self._answered.clear()
        try:
            self._client.connect(*self._where)
        except OSError:
            return False
        self._client.loop_start()
        self._answered.wait(PATIENCE)
        if not self._accepted:
            self.close()
        return self._accepted

    def measure(self, seconds: float) -> None:
        """Measure for some seconds. While connected, publish the readings; returns when the broker has acknowledged all."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            io = psutil.net_io_counters()
            record = {"seq": self._number, "received": io.bytes_recv if io else 0, "sent": io.bytes_sent if io else 0}
            self._number += 1
            self._held.append(json.dumps(record))
            while self._held and self._accepted:
                self._client.publish("rain/north/gauge", self._held.pop(0), 1)
            time.sleep(1 / RATE)
        while self._accepted and self.acknowledged < self._number and time.monotonic() < end + PATIENCE:
            time.sleep(0.01)

    def call(self) -> None:
        """Publish a message that is no reading, so that the sites hear the gauge."""
        with self._lock:
            self._calls.add(self._client.publish("rain/north/call", json.dumps({"seq": None}), 1).mid)

    def close(self) -> None:
        self._accepted = False
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._accepted = not reason.is_failure
        self._answered.set()

    def _on_publish(self, _client: Any, _userdata: Any, mid: int, _reason: Any, _properties: Any) -> None:
        with self._lock:
            if mid in self._calls:
                self._calls.discard(mid)
            else:
                self.acknowledged += 1
