"""Requests to a broker over MQTT, one after the other, each with its answer: what commands for operators stand on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

    from ..connection import Connection


class Requester:
    """Sends one request after the other to a topic of the broker's own and waits for each answer. connection: not yet made."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.connection = connection
        self.topic = topic
        self.failure: str | None = None
        self.subscribed = False
        self.answer: dict[str, Any] | None = None
        connection.on_ready = self._subscribe

    def request(self, request: dict[str, object]) -> dict[str, Any]:
        """The answer to a request. Raises ConnectionError."""
        from ..connection import PATIENCE

        connection = self.connection
        connection.wait(lambda: self.subscribed, PATIENCE, "SUBACK")
        self.answer = None
        if self.failure is None and connection.failure is None:
            connection.client.publish(self.topic, json.dumps(request), 1)
            connection.wait(lambda: self.answer is not None, PATIENCE, "the answer to a request")
        if self.answer is None:
            raise ConnectionError(self.failure or connection.failure or "no answer: is it an mqmesh broker, of this version?")
        return self.answer

    # paho's thread

    def _subscribe(self, client: Client, _session_present: bool) -> None:
        """Called after each CONNACK."""
        client.on_subscribe = self.connection.guarded(self._subscribed)
        client.on_message = self.connection.guarded(self._message)
        client.subscribe(f"{self.topic}/answer", 1)

    def _subscribed(self, _client: Client, _userdata: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        if reasons[0].is_failure:
            self.failure = "the broker refuses the subscription to its answers: is it an mqmesh broker, and are its rules right?"
        self.subscribed = True
        self.connection.wake()

    def _message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self.answer = json.loads(message.payload)
        self.connection.wake()
