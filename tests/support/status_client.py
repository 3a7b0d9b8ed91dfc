"""Follows what a broker reports of its mesh at `$SYS/broker/mesh/status`, with an MQTT client: for brokers that no `Fleet` follows.

The client reconnects whenever the broker is back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mqmesh.base.address import Address
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

STATUS_TOPIC = "$SYS/broker/mesh/status"
RECONNECT = (0.1, 1.0)  # seconds between attempts, first and longest


class StatusClient:
    """Follows one broker. Calls `heard(status)` in paho's thread with each new status."""

    def __init__(self, address: Address, heard: Callable[[dict[str, Any]], None]) -> None:
        self.client = client = Client(CallbackAPIVersion.VERSION2, "", protocol=MQTTProtocolVersion.MQTTv5)
        client.reconnect_delay_set(*RECONNECT)  # type: ignore[arg-type]
        client.on_connect = lambda *_: client.subscribe(STATUS_TOPIC)
        client.on_message = lambda _client, _userdata, message: heard(json.loads(message.payload))
        client.connect_async(address.host, address.port, 10)
        client.loop_start()

    def close(self) -> None:
        """Disconnect and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()
