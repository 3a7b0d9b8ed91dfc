"""A connection to a broker with paho-mqtt, for the source and the sink: MQTT 5, errors of one line."""

from __future__ import annotations

import threading
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ..errors import PipelineError
from .options import BrokerOptions


class Connected:
    """One client. changed: held by whoever looks at what the network thread changes.

    A lost connection is opened again by paho, with back-off. A refusal ends it: `failure` is the line.
    """

    def __init__(self, options: BrokerOptions, client_id: str, manual_ack: bool = False) -> None:
        self.options = options
        self.changed = threading.Condition()
        self.failure: str | None = None
        self.ready = False
        self._address = options.parsed()
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            transport="websockets" if self._address.websocket else "tcp",
            manual_ack=manual_ack,
        )
        if self._address.websocket:
            client.ws_set_options(self._address.path)
        user, password = options.user or self._address.user, options.password or self._address.password
        if user is not None:
            client.username_pw_set(user, password)
        if self._address.tls:
            client.tls_set(ca_certs=options.cafile, certfile=options.certfile, keyfile=options.keyfile)
        client.reconnect_delay_set(1, 10)
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected

    def open(self, clean: bool, **properties: Any) -> None:
        """Connect, and wait until the session is ready. properties: of CONNECT, as paho names them. Raises PipelineError."""
        found = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        for name, value in properties.items():
            setattr(found, name, value)
        address = self._address
        try:
            self.client.connect(address.host, address.port, 60, clean_start=clean, properties=found)
        except (OSError, ValueError) as error:
            raise PipelineError(f"{address.endpoint}: cannot connect: {error}") from None
        self.client.loop_start()
        self.wait(lambda: self.ready, "the session is not ready")

    def wait(self, condition: Any, otherwise: str, timeout: float | None = None) -> None:
        """Wait until something holds. otherwise: what is said when it does not in time. Raises PipelineError."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.failure is not None, timeout or self.options.timeout)
            if self.failure is not None:
                raise PipelineError(self.failure)
            if not condition():
                raise PipelineError(f"{self._address.endpoint}: {otherwise} after {timeout or self.options.timeout:g} seconds")

    def close(self) -> None:
        """Send DISCONNECT and end the network thread."""
        self.client.disconnect()
        self.client.loop_stop()

    def fail(self, text: str) -> None:
        """End it for good. text: one line."""
        with self.changed:
            self.failure = f"{self._address.endpoint}: {text}"
            self.changed.notify_all()

    def accepted(self, present: bool) -> None:
        """In paho's thread: the broker has taken the connection. present: it had the session."""
        self.is_ready()

    def is_ready(self) -> None:
        """In paho's thread: the session can be used."""
        with self.changed:
            self.ready = True
            self.changed.notify_all()

    def _connected(self, _client: Client, _data: object, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            text = getattr(properties, "ReasonString", "")
            self.fail(f"refuses the connection: {reason.getName()}" + (f": {text}" if text else ""))
            self.client.disconnect()
            return
        self.accepted(flags.session_present)

    def _disconnected(self, _client: Client, _data: object, flags: Any, reason: Any, _properties: Any) -> None:
        with self.changed:
            self.ready = False
        if flags.is_disconnect_packet_from_server and reason.value in (0x8E, 0x87, 0x95):
            self.fail(f"ended the connection: {reason.getName()}")
            self.client.disconnect()
