"""A paho-mqtt client for tests: each step waits for its acknowledgement, each message for its arrival."""

from __future__ import annotations

import queue
import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

PATIENCE = 90.0  # seconds until a wait counts as failed


def properties(packet_type: int, **values: Any) -> Properties:
    """MQTT 5 properties by paho's names: ``properties(PacketTypes.PUBLISH, MessageExpiryInterval=5)``."""
    made = Properties(packet_type)
    for key, value in values.items():
        setattr(made, key, value)
    return made


class Paho:
    """Connect on entry, DISCONNECT on exit. `version` is 4 or 5; `persistent` keeps the session when we leave.

    `context`: of TLS. `path`, `headers`: of a WebSocket, instead of plain TCP. With `reading=False` nothing runs in the background, so
    that the caller decides when packets are handled.
    """

    def __init__(
        self,
        port: int,
        version: int = 5,
        client_id: str = "",
        persistent: bool = False,
        will: Any = None,
        context: Any = None,
        path: str = "",
        headers: dict[str, str] | None = None,
        **connect: Any,
    ) -> None:
        self.version = version
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.disconnects: queue.Queue[tuple[bool, int]] = queue.Queue()
        self.connack: Any = None
        self.session_present = False
        self.reason: int | None = None
        self._events: dict[int, tuple[threading.Event, list[Any]]] = {}
        self._lock = threading.Lock()
        self._connected = threading.Event()
        self.port, self.persistent, self.connect_values = port, persistent, connect
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            clean_session=None if version == 5 else not persistent,
            protocol=MQTTProtocolVersion(version),
            reconnect_on_failure=False,
            transport="websockets" if path else "tcp",
        )
        client.on_connect = self._on_connect
        client.on_disconnect = lambda _c, _u, flags, reason, _p: self.disconnects.put(
            (flags.is_disconnect_packet_from_server, reason.value)
        )
        client.on_message = lambda _c, _u, message: self.messages.put(message)
        client.on_subscribe = client.on_unsubscribe = client.on_publish = self._on_done  # type: ignore[assignment]
        if path:
            client.ws_set_options(path, headers)
        if context is not None:
            client.tls_set_context(context)
        if will is not None:
            client.will_set(**will)

    def _on_connect(self, _client: Client, _userdata: object, flags: Any, reason: Any, connack: Any) -> None:
        self.reason, self.session_present, self.connack = reason.value, flags.session_present, connack
        self._connected.set()

    def _on_done(self, _client: Client, _userdata: object, mid: int, reasons: Any, _properties: Any) -> None:
        event, result = self._slot(mid)
        result[:] = reasons if isinstance(reasons, list) else [reasons]
        event.set()

    def _slot(self, mid: int) -> tuple[threading.Event, list[Any]]:
        with self._lock:
            return self._events.setdefault(mid, (threading.Event(), []))

    def _wait(self, mid: int) -> list[int]:
        event, result = self._slot(mid)
        assert event.wait(PATIENCE), f"packet {mid} was not acknowledged within {PATIENCE} s"
        with self._lock:
            del self._events[mid]
        return [reason.value for reason in result]

    def open(self) -> Paho:
        """Connect and wait for CONNACK, whatever it says: see `reason`."""
        if self.version == 5:
            values = dict(self.connect_values)
            if self.persistent:
                values.setdefault("SessionExpiryInterval", 300)
            sent = properties(PacketTypes.CONNECT, **values)
            self.client.connect("127.0.0.1", self.port, 30, clean_start=not self.persistent, properties=sent)
        else:
            self.client.connect("127.0.0.1", self.port, 30)
        self.client.loop_start()
        assert self._connected.wait(PATIENCE), f"no CONNACK within {PATIENCE} s"
        return self

    def __enter__(self) -> Paho:
        self.open()
        assert self.reason == 0, f"the broker refuses the connection: {self.reason:#x}"
        return self

    def close(self) -> None:
        """Send DISCONNECT and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()

    def __exit__(self, *_: object) -> None:
        self.close()

    def vanish(self) -> None:
        """End the connection without DISCONNECT, as a crash or a cut cable does."""
        sock = self.client.socket()
        assert sock is not None
        getattr(sock, "_socket", sock).shutdown(2)  # under paho's WebSocket
        assert self.disconnects.get(timeout=PATIENCE)
        self.client.loop_stop()

    def subscribe(self, topic: str, qos: int = 0, identifier: int | None = None, **options: Any) -> int:
        """Subscribe to one filter and return the SUBACK's reason. Options are paho's: noLocal, retainAsPublished, retainHandling."""
        if self.version == 5:
            extra = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier) if identifier else None
            _, mid = self.client.subscribe(topic, options=SubscribeOptions(qos, **options), properties=extra)
        else:
            _, mid = self.client.subscribe(topic, qos)
        assert mid is not None
        return self._wait(mid)[0]

    def unsubscribe(self, topic: str) -> None:
        _, mid = self.client.unsubscribe(topic)
        assert mid is not None
        self._wait(mid)

    def publish(self, topic: str, payload: bytes | str, qos: int = 0, retain: bool = False, **values: Any) -> int:
        """Publish, wait until paho counts it as done, and return the reason of PUBACK or PUBCOMP (0 for QoS 0)."""
        sent = properties(PacketTypes.PUBLISH, **values) if self.version == 5 else None
        reasons = self._wait(self.client.publish(topic, payload, qos, retain, sent).mid)
        return reasons[0] if reasons else 0

    def next(self) -> MQTTMessage:
        """The next message; an error after `PATIENCE` seconds."""
        return self.messages.get(timeout=PATIENCE)

    def nothing_until(self, marker_topic: str) -> None:
        """Prove that nothing is on its way to us: subscribe to a topic of our own, publish to it, and see that alone arrive."""
        self.subscribe(marker_topic, 1)
        self.publish(marker_topic, b"marker", 1)
        message = self.next()
        assert message.topic == marker_topic, f"{message.topic} came, with {message.payload[:40]!r}"
