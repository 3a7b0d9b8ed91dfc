"""One site of the demo: a paho-mqtt client that publishes this machine's readings and subscribes to those of all sites.

Each site has two threads: paho's notes arrivals and acknowledgements, the other publishes. A reading's payload is
a JSON object with site, run, sequence, time and value. When the connection is lost, publishing waits until it is back;
paho then sends again what was not acknowledged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from ...base.address import Address
from ..sockets import no_delay
from .readings import readings
from .tally import Arrivals, Sent

QOS = 1
UNACKNOWLEDGED = 1000  # readings without acknowledgement at most; then publishing waits
PATIENCE = 10.0  # seconds for CONNACK and SUBACK


class SiteError(Exception):
    """The site's client cannot connect or subscribe. The message says why."""


class Site:
    """The client of one site.

    names: all sites.
    run: distinguishes this run's readings from others.
    rate: readings a second.
    lost_connection: called in paho's thread when the connection is lost.
    """

    def __init__(
        self, name: str, names: Iterable[str], address: Address, run: str, rate: float, lost_connection: Callable[[str], None]
    ) -> None:
        self.name = name
        self.address = address
        self.run = run
        self.rate = rate
        self.sent: list[Sent] = []
        self.arrivals = {origin: Arrivals() for origin in names}
        self.received = 0
        self.foreign = 0  # messages that are no reading of this run
        self.acknowledged = 0
        self.refused = 0
        self._lost_connection = lost_connection
        self._open: dict[int, Sent] = {}  # packet identifier -> reading without PUBACK
        self._early: set[int] = set()  # acknowledged before `publish` told us the identifier
        self._lock = threading.Lock()
        self._step = threading.Lock()  # held while one reading is published
        self._subscribed = threading.Event()
        self._connected = False
        self._running = threading.Event()
        self._ended = False
        self._reason: str | None = None
        self._publisher = threading.Thread(target=self._publish, name=f"publish-{name}", daemon=True)
        self.client = client = Client(
            CallbackAPIVersion.VERSION2, f"demo-{name}", protocol=MQTTProtocolVersion.MQTTv5, reconnect_on_failure=False
        )
        client.max_inflight_messages_set(UNACKNOWLEDGED)
        client.on_socket_open = no_delay
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish

    # Life

    def connect(self) -> None:
        """Connect and subscribe, also again. Returns when the broker has granted the subscription. Raises SiteError."""
        self._subscribed.clear()
        self.client.loop_stop()
        try:
            self.client.connect(self.address.host, self.address.port, 10, clean_start=True)
        except OSError as error:
            raise SiteError(f"the client of {self.name} cannot connect to {self.address.endpoint}: {error.strerror or error}") from None
        self.client.loop_start()
        if not self._subscribed.wait(PATIENCE) or self._reason:
            raise SiteError(f"the client of {self.name} at {self.address.endpoint} got no subscription: {self._reason or 'no answer'}")

    def start(self) -> None:
        """Start to publish."""
        self._running.set()
        if not self._publisher.is_alive():
            self._publisher.start()

    def pause(self) -> None:
        """Stop publishing until `start`. On return, no publish is under way."""
        with self._step:
            self._running.clear()

    def close(self) -> None:
        """Disconnect and end both threads."""
        self._ended = True
        self._running.set()
        self.client.disconnect()
        self.client.loop_stop()
        if self._publisher.is_alive():
            self._publisher.join(5)

    @property
    def online(self) -> bool:
        return self._connected

    @property
    def unacknowledged(self) -> int:
        return len(self._open)

    # Publishing

    def _publish(self) -> None:
        source = readings()
        due = time.monotonic()
        while not self._ended:
            if not self._running.is_set():
                self._running.wait()
                due = time.monotonic()
                continue
            with self._step:
                if self._running.is_set() and self._connected and len(self._open) < UNACKNOWLEDGED:
                    self._publish_one(*next(source))
            due += 1 / self.rate
            behind = time.monotonic() - due
            if behind < 0:
                time.sleep(-behind)
            elif behind > 1:
                due += behind

    def _publish_one(self, subject: str, value: float, unit: str) -> None:
        record = {"site": self.name, "run": self.run, "seq": len(self.sent), "time": time.time(), "value": value, "unit": unit}
        payload = json.dumps(record, separators=(",", ":"))
        one = Sent(time.monotonic())
        self.sent.append(one)
        identifier = self.client.publish(f"site/{self.name}/{subject}", payload, QOS).mid
        with self._lock:
            if identifier in self._early:
                self._early.remove(identifier)
                self._acknowledge(one)
            else:
                self._open[identifier] = one

    def _acknowledge(self, one: Sent) -> None:
        one.acknowledged = True
        one.acknowledged_at = time.monotonic()
        self.acknowledged += 1

    # paho's thread

    def _on_connect(self, client: Client, _userdata: object, _flags: ConnectFlags, reason: ReasonCode, _properties: object) -> None:
        if reason.is_failure:
            self._reason = reason.getName()
            self._subscribed.set()
        else:
            self._connected = True
            client.subscribe("site/#", QOS)

    def _on_subscribe(self, _client: Client, _userdata: object, _mid: int, reasons: list[ReasonCode], _properties: object) -> None:
        self._reason = reasons[0].getName() if reasons[0].is_failure else None
        self._subscribed.set()

    def _on_disconnect(self, _client: Client, _userdata: object, _flags: DisconnectFlags, _reason: ReasonCode, _properties: object) -> None:
        was, self._connected = self._connected, False
        if was and not self._ended:
            self._lost_connection(self.name)

    def _on_publish(self, _client: Client, _userdata: object, mid: int, reason: ReasonCode, _properties: object) -> None:
        with self._lock:
            one = self._open.pop(mid, None)
            if reason.is_failure:
                self.refused += 1
            elif one is None:
                self._early.add(mid)
            else:
                self._acknowledge(one)

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        now = time.monotonic()
        try:
            record = json.loads(message.payload)
            arrivals = self.arrivals[record["site"]] if record["run"] == self.run else None
            sequence = int(record["seq"])
        except (ValueError, KeyError, TypeError):
            arrivals = None
        if arrivals is None:
            self.foreign += 1
            return
        self.received += 1
        arrivals.note(sequence, now)
