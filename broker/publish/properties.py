"""Reads the properties of a PUBLISH: blocks that came before are known, because many messages have the same."""

from __future__ import annotations

from ...mqtt.bounds import SHORTEST_PROPERTY, check_properties
from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import read_length
from ...mqtt.publish import PublishProperties, publish_properties
from ...mqtt.reasons import Reason

_known: dict[bytes, PublishProperties] = {}


def read_properties(data: bytes, position: int, stop: int, most: int) -> tuple[PublishProperties, int]:
    """The property block of a PUBLISH from a client, and where the payload starts. Blocks seen before are not read again.

    most: how many properties it may have.
    """
    length, start = read_length(data, position, stop)
    if length < 0 or start + length > stop:
        raise MalformedPacket("the properties of a PUBLISH are longer than the packet", clause="MQTT-3.3.2")
    block = data[start : start + length]
    properties = _known.get(block)
    if properties is None:
        if length > SHORTEST_PROPERTY * most:
            check_properties(data, position, most)
        properties = publish_properties(data, position, stop)
        if properties.subscription_identifiers:
            raise PeerError(Reason.PROTOCOL_ERROR, "a client sent a subscription identifier in PUBLISH", clause="MQTT-3.3.4-6")
        if len(_known) >= 1024:
            _known.clear()
        if length <= 256:
            _known[block] = properties
    return properties, start + length
