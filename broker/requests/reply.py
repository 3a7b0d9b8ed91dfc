"""The answers to requests over MQTT, for the topics that the broker itself serves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...mqtt.batch.run import Run
from ...mqtt.properties import Property, encode_properties
from ..routing.publication import Publication

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..ports import Connection
    from ..routing.router import Router


class Reply:
    """Where the answers to one client's request go: to its Response Topic, with its Correlation Data [MQTT 5: 4.10], and to nobody else.

    without: the topic where the request names none, as it cannot in MQTT 3.1.1, whose answers have no properties either.
    """

    __slots__ = ("_connection", "_router", "_said", "_topic")

    def __init__(self, router: Router, connection: Connection, properties: PublishProperties | None, without: str) -> None:
        self._said = said = properties if connection.version == 5 else None
        self._router = router
        self._connection = connection
        self._topic = (without if said is None or said.response_topic is None else said.response_topic).encode()

    def _targets(self) -> list[Any]:
        """The client's own: nobody can have the broker write elsewhere."""
        session = self._connection.session
        route = self._router.routes.get(self._topic) or self._router.route(self._topic)
        return [target for target in route.targets if session is not None and target.session is session.face]

    def wanted(self) -> bool:
        """Whether the client takes answers there."""
        return bool(self._targets())

    def answer(self, found: dict[str, Any]) -> None:
        """Send an answer as JSON."""
        if targets := self._targets():
            self._deliver(targets, json.dumps(found, separators=(",", ":")).encode())

    def send(self, text: bytes) -> None:
        """Send an answer: JSON."""
        self._deliver(self._targets(), text)

    def _deliver(self, targets: list[Any], text: bytes) -> None:
        block = self._properties()
        for target in targets:
            run = Run(self._topic, 1, False, [text], block, received=self._connection.context.now)
            self._router.deliver_to(run, target, Publication())

    def _properties(self) -> bytes:
        """The properties of an answer, encoded: made when one goes, since many a client wants none."""
        if self._connection.version != 5:
            return b""
        found: dict[int, Any] = {Property.PAYLOAD_FORMAT_INDICATOR: 1, Property.CONTENT_TYPE: "application/json"}
        if self._said is not None and self._said.correlation is not None:
            found[Property.CORRELATION_DATA] = self._said.correlation
        return encode_properties(found)
