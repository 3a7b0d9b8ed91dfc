"""paho-mqtt as sender and recipient, for the systems that speak MQTT."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.recipients.system import Record, Sender, Sent, number_of, payload

SESSION = 3600  # seconds that a session outlives its connection
REPEATED = "mqmesh-repeated"
RETURNED = "mqmesh-returned"


def properties_for(packet: int) -> Properties:
    """Empty properties of a packet of this type."""
    return Properties(packet)  # type: ignore[no-untyped-call]


def properties_of(message: paho.MQTTMessage) -> dict[str, str]:
    """The user properties of a message."""
    return dict(getattr(message.properties, "UserProperty", []))


def client_at(port: int, name: str, keep_alive: int, offers: Sequence[tuple[str, str]] = ()) -> paho.Client:
    """A client that has connected; its own thread serves it from `loop_start` on. offers: user properties of its CONNECT."""
    client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
    client.max_inflight_messages_set(65535)
    client.max_queued_messages_set(0)
    connect = properties_for(PacketTypes.CONNECT)
    connect.SessionExpiryInterval = SESSION
    if offers:
        connect.UserProperty = list(offers)
    client.connect("127.0.0.1", port, keep_alive, clean_start=False, properties=connect)
    return client


class MqttSender(Sender):
    """Publishes at QoS 1. returned: the topic where messages come back, "" where there is none."""

    def __init__(self, sent: Sent, port: int, topic: str, returned: str = "") -> None:
        super().__init__(sent)
        self.port, self.topic, self.returned = port, topic, returned
        self.client: paho.Client | None = None
        self._waiting: dict[int, int] = {}

    async def open(self) -> None:
        client = self.client = client_at(self.port, "sender", 60)

        def published(_client: Any, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
            number = self._waiting.pop(mid, None)
            while number is None:  # the acknowledgement was faster than publish()
                time.sleep(0.0005)
                number = self._waiting.pop(mid, None)
            if not reason.is_failure:
                self.sent.confirmed[number] = time.monotonic()

        def came(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
            if RETURNED in properties_of(message):
                self.sent.told.setdefault(number_of(bytes(message.payload)), time.monotonic())

        connected = threading.Event()
        client.on_connect = lambda *_: connected.set()
        client.on_publish, client.on_message = published, came
        client.loop_start()
        await asyncio.to_thread(connected.wait)
        if self.returned:
            client.subscribe(self.returned, 1)

    def send(self, number: int) -> None:
        assert self.client is not None
        properties = properties_for(PacketTypes.PUBLISH)
        if self.returned:
            properties.ResponseTopic = self.returned
        self._waiting[self.client.publish(self.topic, payload(number), 1, properties=properties).mid] = number

    async def close(self) -> None:
        if self.client is not None:
            self.client.disconnect()
            self.client.loop_stop()


def receive(
    port: int, name: str, topic: str, keep_alive: int, record: Record, ready: Callable[[], None], offers: Sequence[tuple[str, str]] = ()
) -> None:
    """Take what comes for a subscription until the process ends, and connect again after a broken connection."""
    client = client_at(port, name, keep_alive, offers)

    def came(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        record(bytes(message.payload), REPEATED in properties_of(message))

    client.on_message = came
    client.on_connect = lambda client, *_: client.subscribe(topic, 1)
    client.on_subscribe = lambda *_: ready()
    client.loop_forever()
