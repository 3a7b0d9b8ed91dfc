"""Where the answer to a request over MQTT goes, for the topics that the broker itself serves (`request.py`, `session_topic.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...mqtt.properties import Property, encode_properties

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..ports import Connection
    from ..routing.router import Router
    from ..site import ClientConnection


def reply_to(connection: Connection, properties: PublishProperties | None, without: str) -> tuple[bytes, bytes]:
    """(topic, encoded properties) of a JSON answer: the request's Response Topic and Correlation Data [MQTT 5: 4.10].

    without: the topic where the request names none, as it cannot in MQTT 3.1.1, whose answers have no properties either.
    """
    block = b""
    if connection.version == 5:
        found: dict[int, Any] = {Property.PAYLOAD_FORMAT_INDICATOR: 1, Property.CONTENT_TYPE: "application/json"}
        if properties is not None and properties.correlation is not None:
            found[Property.CORRELATION_DATA] = properties.correlation
        block = encode_properties(found)
    return reply_topic(connection, properties, without), block


def reply_topic(connection: Connection, properties: PublishProperties | None, without: str) -> bytes:
    """The topic alone."""
    said = properties.response_topic if connection.version == 5 and properties is not None else None
    return (without if said is None else said).encode()


def own_targets(router: Router, connection: Connection, topic: bytes) -> list[Any]:
    """The targets at a topic that are this client's own: nobody can have the broker write elsewhere."""
    session = connection.session
    route = router.routes.get(topic) or router.route(topic)
    return [target for target in route.targets if session is not None and target.session is session.face]


def work(connection: ClientConnection, steps: Iterator[None]) -> None:
    """Take the steps of a request: at once while the connection's slice lasts, the rest in its turns. It is not read meanwhile."""
    if connection.steps is not None:
        connection.steps = chain(connection.steps, steps)
        return
    turns = connection.context.turns
    if any(turns.over() and not connection.inside for _ in steps):
        connection.steps = steps
        connection.wait_for_turn()
