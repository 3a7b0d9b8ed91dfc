"""The durable session that a topic is read from: messages come, and are acknowledged when Spark is through with them.

QoS 1: what is not acknowledged comes again. The Receive Maximum bounds what is here and unacknowledged.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from ..errors import PipelineError
from .connecting import Connected
from .deliveries import Deliveries, Offset, checksum
from .options import MOST, NEVER, TopicOptions


class Subscriber(Connected):
    """One session. deliveries: its messages; to be used with `changed` held.

    peek: it acknowledges nothing, so that all messages stay in the session.
    """

    def __init__(self, options: TopicOptions, start: Offset, end: Offset | None = None) -> None:
        """start: where Spark is. end: of a batch that was planned and not committed. Raises PipelineError."""
        super().__init__(options.broker, options.client, manual_ack=True)
        self._topic = options
        self.deliveries = Deliveries()
        self.deliveries.restore(start, end)
        self._fences: dict[bytes, int] = {}  # nonce -> number, 0 until it comes
        self.client.on_message = self._came
        self.client.on_subscribe = self._subscribed
        try:
            self.open(False, SessionExpiryInterval=NEVER, ReceiveMaximum=MOST)
        except PipelineError:
            self.close()
            raise

    # what the source asks

    def latest(self) -> int:
        """The number of the newest message."""
        with self.changed:
            return self.deliveries.latest

    def offset(self, start: Offset, count: int) -> Offset:
        with self.changed:
            return self.deliveries.offset(start, count)

    def rows(self, start: int, end: int) -> list[Any]:
        """The rows of a batch. Raises PipelineError when they do not come."""
        self.wait(
            lambda: self.deliveries.whole(start, end),
            f"the session {self._topic.client} does not have all of the batch's {end - start} messages: is it the same session?",
        )
        with self.changed:
            return self.deliveries.rows(start, end)

    def commit(self, count: int) -> None:
        """Acknowledge everything up to a number."""
        with self.changed:
            marks = self.deliveries.commit(count)
        for packet_id, _ in marks:
            self.client.ack(packet_id, 1)

    def fence(self) -> bytes:
        """Publish to ourselves: what the session had is here when that comes back. Returns what `fenced` asks for. Raises PipelineError."""
        nonce = uuid.uuid4().bytes
        with self.changed:
            self._fences[nonce] = 0
        self.wait(lambda: self.ready, "the session is not ready")
        sent = self.client.publish(f"{self._topic.fence}/now", nonce, 1)
        try:
            sent.wait_for_publish(self._topic.broker.timeout)
        except (RuntimeError, ValueError) as error:
            raise PipelineError(f"the fence {self._topic.fence}/now was not published: {error}") from None
        return nonce

    def until_fence(self, nonce: bytes, more_than: int) -> int | None:
        """Wait until a fence is back, or more messages than a number are here. The fence's number; None: it is not back."""
        self.wait(
            lambda: self._fences[nonce] or self.deliveries.latest > more_than,
            f"nothing came back from {self._topic.fence}/now: may this client publish and subscribe there (option fence)?",
        )
        with self.changed:
            return self._fences[nonce] or None

    # paho's thread

    def accepted(self, present: bool) -> None:
        with self.changed:
            self.deliveries.connected(present)
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        self.client.subscribe([(self._topic.topic, options), (f"{self._topic.fence}/now", options)])

    def _subscribed(self, _client: Client, _data: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        refused = next((reason for reason in reasons if reason.is_failure), None)
        if refused is not None:
            self.fail(f"refuses the subscription to {self._topic.topic}, or to the fence {self._topic.fence}/now: {refused.getName()}")
        else:
            self.is_ready()

    def _came(self, client: Client, _data: object, message: MQTTMessage) -> None:
        topic, payload = message.topic, bytes(message.payload)
        fence = topic == f"{self._topic.fence}/now"
        if not message.qos:
            return  # it cannot come again, so that a batch that has to be run anew would lack it
        properties = message.properties
        correlation = getattr(properties, "CorrelationData", None)
        mark = (message.mid, checksum(topic, payload, correlation))
        row = None if fence else row_of(message, payload, correlation)
        with self.changed:
            through = self.deliveries.came(mark, bool(message.dup), row)
            if fence and payload in self._fences:
                self._fences[payload] = self.deliveries.latest
            self.changed.notify_all()
        if through:
            client.ack(message.mid, 1)


SCHEMA = (
    "topic string, payload binary, qos byte, retain boolean, received timestamp, content_type string, response_topic string,"
    " correlation binary, properties map<string,string>"
)


def row_of(message: MQTTMessage, payload: bytes, correlation: bytes | None) -> tuple[Any, ...]:
    """A message as a row of `SCHEMA`."""
    properties = message.properties
    pairs = getattr(properties, "UserProperty", None)
    return (
        message.topic,
        payload,
        message.qos,
        bool(message.retain),
        datetime.now(UTC),
        getattr(properties, "ContentType", None),
        getattr(properties, "ResponseTopic", None),
        bytes(correlation) if correlation is not None else None,
        dict(pairs) if pairs else None,
    )


def user_properties(pairs: list[tuple[str, str]], **more: Any) -> Properties:
    """Properties of a PUBLISH. more: others, as paho names them; None: not set."""
    found = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if pairs:
        found.UserProperty = pairs
    for name, value in more.items():
        if value is not None:
            setattr(found, name, value)
    return found
