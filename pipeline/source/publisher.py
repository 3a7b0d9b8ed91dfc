"""Publishes a task's rows, each with its handle, and says when the broker has them all.

A message whose acknowledgement is lost goes again after the reconnect, with its handle, so that it is known. At QoS 0 nothing is
acknowledged: such rows are published at least once if nothing fails, and this is not exactly once.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from paho.mqtt.client import Client

from ..errors import PipelineError
from .connecting import Connected
from .options import BrokerOptions
from .subscriber import user_properties

HANDLE, REPEAT = "mqmesh-handle", "mqmesh-repeat"
WINDOW = 500  # messages without an acknowledgement
PATIENCE = 120.0  # seconds without any acknowledgement


@dataclass(frozen=True, slots=True)
class Message:
    """What a row says. handle: of a column; "" for none."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: list[tuple[str, str]]
    content_type: str | None
    response_topic: str | None
    correlation: bytes | None
    expiry: int | None
    handle: str

    def digest(self) -> bytes:
        """Of everything that it says."""
        parts = (self.topic, self.payload, self.qos, self.retain, self.properties, self.content_type, self.response_topic)
        return blake2b(repr((*parts, self.correlation, self.expiry)).encode(), digest_size=16).digest()


class Publisher(Connected):
    """A connection for one task. repeated: messages that the broker knew."""

    def __init__(self, options: BrokerOptions) -> None:
        super().__init__(options, f"mqmesh-sink-{uuid.uuid4().hex[:16]}")
        self.repeated = 0
        self._open: dict[int, str] = {}  # packet identifier -> topic
        self._early: set[int] = set()  # acknowledged before `publish` had returned
        self._acknowledged = 0
        self.client.max_inflight_messages_set(WINDOW)
        self.client.on_publish = self._published

    def __enter__(self) -> Self:
        """Raises PipelineError."""
        self.open(False, SessionExpiryInterval=300)  # a session, so that QoS 2 goes on where it was
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def publish(self, message: Message, handle: str) -> None:
        """Publish, when there is room. Raises PipelineError."""
        self._until(lambda: len(self._open) < WINDOW)
        properties = user_properties(
            [*message.properties, (HANDLE, handle)],
            ContentType=message.content_type,
            ResponseTopic=message.response_topic,
            CorrelationData=message.correlation,
            MessageExpiryInterval=message.expiry,
        )
        try:
            sent = self.client.publish(message.topic, message.payload, message.qos, message.retain, properties)
        except ValueError as error:
            raise PipelineError(f'a row for the topic "{message.topic}" cannot be published: {error}') from None
        if message.qos:
            with self.changed:
                if sent.mid in self._early:
                    self._early.discard(sent.mid)
                else:
                    self._open[sent.mid] = message.topic

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises PipelineError."""
        self._until(lambda: not self._open)

    def _until(self, condition: Any) -> None:
        while not condition():
            before = self._acknowledged
            self.wait(
                lambda: condition() or self._acknowledged > before,  # noqa: B023
                f"no acknowledgement of {len(self._open)} messages came",
                PATIENCE,
            )
        if self.failure is not None:
            raise PipelineError(self.failure)

    def _published(self, _client: Client, _data: object, mid: int, reason: Any, properties: Any) -> None:
        """In paho's thread: PUBACK or PUBCOMP."""
        with self.changed:
            topic = self._open.pop(mid, None)
            if topic is None:
                self._early.add(mid)
            self._acknowledged += 1
            if (REPEAT, "1") in (getattr(properties, "UserProperty", None) or ()):
                self.repeated += 1
            self.changed.notify_all()
        if reason is not None and reason.is_failure:
            text = getattr(properties, "ReasonString", "")
            self.fail(f"refuses a message for {topic or 'a topic'}: {reason.getName()}" + (f": {text}" if text else ""))
