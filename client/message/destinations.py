"""Destinations: topics, temporary topics, and queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from ...base.queues import PREFIX
from ...base.queues import TEMPORARY as TEMPORARY_QUEUE
from ...mqtt.errors import MqttError
from ...mqtt.topics import check_filter, check_topic
from ..core.errors import InvalidDestinationError, JMSError

TEMPORARY = "jms/temporary/"  # temporary topics are jms/temporary/{connection}/{number}


@dataclass(frozen=True)
class Destination:
    """Where messages go. name: an MQTT topic name. To consume, it may be an MQTT topic filter (``plant/+/temperature``)."""

    name: str

    @property
    def address(self) -> str:
        """The MQTT topic name."""
        return self.name

    def __str__(self) -> str:
        return self.name


class Topic(Destination):
    """Every subscription gets every message."""

    @property
    def topic_name(self) -> str:
        return self.name


class Queue(Destination):
    """Each message goes to one consumer, and waits until there is one. name: of a queue of an mqmesh broker (docs/queues.md)."""

    @property
    def address(self) -> str:
        """The MQTT topic name."""
        return PREFIX + self.name

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


class TemporaryQueueOwner(Protocol):
    """The connection that made a temporary queue."""

    def delete_temporary_queue(self, queue: TemporaryQueue) -> None:
        """Raises `JMSError` while the queue has consumers."""


class TemporaryQueue(Queue):
    """A queue that its broker has made for one connection. It ends with it, and only that connection may consume from it (6.2.2).

    key: what its broker wants to know of consumers.
    """

    connection: TemporaryQueueOwner
    key: str

    def __init__(self, name: str, key: str, connection: TemporaryQueueOwner) -> None:
        super().__init__(name)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "connection", connection)

    def delete(self) -> None:
        """Its messages go too. Raises `JMSError` while consumers use it."""
        self.connection.delete_temporary_queue(self)


def no_queues(what: str) -> JMSError:
    """The error for everything that needs queues."""
    return JMSError(
        f"{what} needs an mqmesh broker with queues, and a direct connection to it; "
        "use a topic, or a shared durable subscription for a pool of consumers",
        "queues",
    )


def is_temporary(destination: Destination) -> bool:
    """Whether a destination ends with the connection that made it."""
    return destination.name.startswith(TEMPORARY_QUEUE if isinstance(destination, Queue) else TEMPORARY)


def destination_of(topic: str) -> Destination:
    """The destination that an MQTT topic name stands for."""
    return Queue(topic.removeprefix(PREFIX)) if topic.startswith(PREFIX) else Topic(topic)


def topic_to_send(destination: Destination | None) -> str:
    """The MQTT topic name of a destination. Raises `InvalidDestinationError` if it cannot be sent to."""
    _check_kind(destination)
    assert destination is not None
    try:
        return check_topic(destination.address.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise InvalidDestinationError(f"cannot send to {destination.name!r}: {error}") from error


def filter_to_consume(destination: Destination) -> str:
    """The topic filter of a destination. Raises `InvalidDestinationError` if it cannot be consumed from."""
    _check_kind(destination)
    if isinstance(destination, Queue):
        return topic_to_send(destination)
    try:
        if destination.name.startswith("$share/"):
            raise InvalidDestinationError("$share/ stands for shared subscriptions: use create_shared_consumer")
        check_filter(destination.name)
        destination.name.encode()
    except (MqttError, UnicodeEncodeError) as error:
        raise InvalidDestinationError(f"cannot consume from {destination.name!r}: {error}") from error
    return destination.name


def _check_kind(destination: object) -> None:
    if not isinstance(destination, Topic | Queue) or not isinstance(destination.name, str):
        raise InvalidDestinationError(f"{destination!r} is not a destination: use session.create_topic(name) or create_queue(name)")
    if isinstance(destination, Topic) and destination.name.startswith(PREFIX):
        raise InvalidDestinationError(f"{destination.name!r} is a queue: use create_queue({destination.name.removeprefix(PREFIX)!r})")


def durable_client_id(client_id: str, name: str, instance: str = "") -> str:
    """The MQTT client identifier of a durable subscription: ``jms/{client id}/{name}``, with ``/{instance}`` for a shared one.

    The parts are percent-encoded. A client in another language that builds the same identifier finds the same subscription.
    """
    parts = [client_id, name, *([instance] if instance else [])]
    return "jms/" + "/".join(quote(part, safe="") for part in parts)


def queue_client_id(client_id: str, queue: str, number: int) -> str:
    """The MQTT client identifier of a consumer of a queue, under which it is a member: ``{client id}:{queue}``, the next one with ``:2``.

    The client identifier is percent-encoded. It is the same after a restart: a queue remembers the names of its members.
    """
    return f"{quote(client_id, safe='')}:{queue}" + (f":{number}" if number > 1 else "")
