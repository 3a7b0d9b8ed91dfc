"""Destinations: topics, temporary topics, and names of queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, check_topic
from ..core.errors import InvalidDestinationError, JMSError

TEMPORARY = "jms/temporary/"  # temporary topics are jms/temporary/{connection}/{number}


@dataclass(frozen=True)
class Destination:
    """Where messages go. name: an MQTT topic name. To consume, it may be an MQTT topic filter (``plant/+/temperature``)."""

    name: str

    def __str__(self) -> str:
        return self.name


class Topic(Destination):
    """Every subscription gets every message."""

    @property
    def topic_name(self) -> str:
        return self.name


class Queue(Destination):
    """Each message goes to one consumer. No broker offers queues to this client yet."""

    @property
    def queue_name(self) -> str:
        return self.name


class TemporaryTopicOwner(Protocol):
    """The connection that made a temporary topic."""

    def delete_temporary_topic(self, topic: TemporaryTopic) -> None:
        """Raises `JMSError` while the topic has consumers."""


class TemporaryTopic(Topic):
    """Lives as long as its connection. Only that connection may consume from it (6.2.2)."""

    connection: TemporaryTopicOwner

    def __init__(self, name: str, connection: TemporaryTopicOwner) -> None:
        super().__init__(name)
        object.__setattr__(self, "connection", connection)

    def delete(self) -> None:
        """Raises `JMSError` while consumers use it."""
        self.connection.delete_temporary_topic(self)


class TemporaryQueue(Queue):
    """A queue of one connection. No broker offers queues to this client yet."""


def no_queues(what: str) -> JMSError:
    """The error for everything that needs queues."""
    return JMSError(
        f"{what} needs an mqmesh broker with queues; use a topic, or a shared durable subscription for a pool of consumers", "queues"
    )


def topic_to_send(destination: Destination | None) -> str:
    """The topic name of a destination. Raises `InvalidDestinationError` if it cannot be sent to."""
    if not isinstance(destination, Topic):
        if isinstance(destination, Queue):
            raise no_queues(f"sending to the queue {destination.name!r}")
        raise InvalidDestinationError(f"{destination!r} is not a destination: use session.create_topic(name)")
    try:
        return check_topic(destination.name.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise InvalidDestinationError(f"cannot send to {destination.name!r}: {error}") from error


def filter_to_consume(destination: Destination) -> str:
    """The topic filter of a destination. Raises `InvalidDestinationError` if it cannot be consumed from."""
    if not isinstance(destination, Topic):
        if isinstance(destination, Queue):
            raise no_queues(f"consuming from the queue {destination.name!r}")
        raise InvalidDestinationError(f"{destination!r} is not a destination: use session.create_topic(name)")
    try:
        if destination.name.startswith("$share/"):
            raise InvalidDestinationError("$share/ stands for shared subscriptions: use create_shared_consumer")
        check_filter(destination.name)
    except MqttError as error:
        raise InvalidDestinationError(f"cannot consume from {destination.name!r}: {error}") from error
    return destination.name


def durable_client_id(client_id: str, name: str, instance: str = "") -> str:
    """The MQTT client identifier of a durable subscription: ``jms/{client id}/{name}``, with ``/{instance}`` for a shared one.

    The parts are percent-encoded. A client in another language that builds the same identifier finds the same subscription.
    """
    parts = [client_id, name, *([instance] if instance else [])]
    return "jms/" + "/".join(quote(part, safe="") for part in parts)
