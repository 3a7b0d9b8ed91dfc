"""Follows what a broker reports of its mesh: an MQTT client subscribes to its retained topic `$SYS/broker/mesh/status`.

The client reconnects whenever the broker is back. The status is dropped with the connection.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from ...base.address import Address
from ..sockets import no_delay

if TYPE_CHECKING:
    from ...mesh.topology.tls import TlsSettings

STATUS_TOPIC = "$SYS/broker/mesh/status"
RECONNECT = (0.1, 1.0)  # seconds between attempts, first and longest

Status = dict[str, Any]


class Watch:
    """Follows one broker. Calls `changed(status)` in paho's thread with each new status, and with None when the connection is lost.

    tls: the broker's own certificates, for a broker that listens only with TLS. Host names are not checked: certificates may name only the
    broker, which is on this machine.
    """

    def __init__(self, address: Address, changed: Callable[[Status | None], None], tls: TlsSettings | None = None) -> None:
        self.changed = changed
        transport = "unix" if address.scheme == "unix" else "tcp"
        self.client = client = Client(CallbackAPIVersion.VERSION2, "", protocol=MQTTProtocolVersion.MQTTv5, transport=transport)  # type: ignore[arg-type]
        if address.tls:
            self._set_tls(tls)
        client.reconnect_delay_set(*RECONNECT)  # type: ignore[arg-type]
        client.on_socket_open = no_delay
        client.on_connect = self._connected
        client.on_disconnect = lambda *_: self.changed(None)
        client.on_message = self._message
        host = address.path if address.scheme == "unix" else address.host
        client.connect_async(host, address.port or 1, 10)  # paho wants a port for a Unix socket too
        client.loop_start()

    def _set_tls(self, tls: TlsSettings | None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE if tls is None or tls.ca is None else ssl.CERT_REQUIRED
        if tls is not None and tls.ca is not None:
            context.load_verify_locations(tls.ca)
        if tls is not None and tls.certificate is not None:
            password = tls.key_password_file.read_text().partition("\n")[0] if tls.key_password_file is not None else ""
            context.load_cert_chain(tls.certificate, tls.key, lambda: password)
        self.client.tls_set_context(context)
        self.client.tls_insecure_set(True)

    def close(self) -> None:
        """Disconnect and end the thread."""
        self.client.on_disconnect = None
        self.client.disconnect()
        self.client.loop_stop()

    def _connected(self, client: Client, _userdata: object, _flags: object, reason: ReasonCode, _properties: object) -> None:
        if reason.packetType == PacketTypes.CONNACK and not reason.is_failure:
            client.subscribe(STATUS_TOPIC)

    def _message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self.changed(json.loads(message.payload))
