"""The property block of a PUBLISH, read without building a packet.

The fast path needs of a property block only what the broker itself acts on, and the bytes that travel to the subscribers
unchanged and in order [MQTT-3.3.2-4, -15, -16, -18, -20]. Everything is validated as strictly as in `decode_properties`, with the
same errors; the tests hold the two against each other.

    data:  .. topic, packet identifier | Property Length | properties ............ | payload .. | next packet
                                       ^ start                                     ^ .end       ^ end
"""

from __future__ import annotations

from .errors import MalformedPacket, protocol_error
from .fields import read_string, read_varint, truncated
from .properties import PROPERTIES, check_value, read_value


class PublishProperties:
    """What a PUBLISH's properties say. Single values are None when the property is absent.

    block: the raw properties that travel to subscribers: all but Topic Alias and Subscription Identifier, in order.
    without_expiry: `block` without the Message Expiry Interval, which each hop writes anew [MQTT-3.3.2-6].
    length: the Property Length, so that ``len(block) == length`` says that nothing was left out. end: where the payload begins.
    expiry: Message Expiry Interval in seconds. subscription_identifiers: not allowed from a client [MQTT-3.3.4-6].
    """

    __slots__ = (
        "block",
        "content_type",
        "correlation",
        "end",
        "expiry",
        "length",
        "payload_format",
        "response_topic",
        "subscription_identifiers",
        "topic_alias",
        "user_properties",
        "without_expiry",
    )

    def __init__(self, length: int, end: int) -> None:
        self.block = b""
        self.without_expiry = b""
        self.length = length
        self.end = end
        self.expiry: int | None = None
        self.topic_alias: int | None = None
        self.payload_format: int | None = None
        self.correlation: bytes | None = None
        self.response_topic: str | None = None
        self.content_type: str | None = None
        self.subscription_identifiers: tuple[int, ...] = ()
        self.user_properties: tuple[tuple[str, str], ...] = ()


def publish_properties(data: bytes, start: int, end: int) -> PublishProperties:
    """Read and validate the properties of a PUBLISH of MQTT 5.

    data: bytes that hold the packet whole. start: where its Property Length stands. end: where the packet ends.
    Raises `MalformedPacket` or `PeerError` as `decode_properties` does.
    """
    length, used = read_varint(data[start : min(end, start + 4)], 0, "Property Length")
    start += used
    if start + length > end:
        raise truncated("the properties")
    raw = data[start : start + length]
    found = PublishProperties(length, start + length)
    kept: list[bytes] = []  # the raw properties that travel
    expiry_at = -1  # index in `kept`
    pairs: list[tuple[str, str]] = []
    identifiers: list[int] = []
    position = 0
    while position < length:
        begin = position
        identifier, position = read_varint(raw, position, "a property identifier")
        if identifier == 0x26:
            name, position = read_string(raw, position, "User Property")
            value, position = read_string(raw, position, "User Property")
            pairs.append((name, value))
        elif identifier == 0x0B:
            number, position = read_varint(raw, position, "Subscription Identifier")
            if not number:
                raise protocol_error("Subscription Identifier is 0", "3.8.2.1.2")
            identifiers.append(number)
            continue
        else:
            position = _read_single(found, raw, position, identifier)
            if identifier == 0x23:
                continue
            if identifier == 0x02:
                expiry_at = len(kept)
        kept.append(raw[begin:position])
    found.user_properties = tuple(pairs)
    found.subscription_identifiers = tuple(identifiers)
    travels = not identifiers and found.topic_alias is None
    found.block = found.without_expiry = raw if travels else b"".join(kept)
    if expiry_at >= 0:
        del kept[expiry_at]
        found.without_expiry = b"".join(kept)
    return found


# The properties that may stand in a PUBLISH once: identifier -> the attribute that holds the value.
_SINGLE = {
    0x01: "payload_format",
    0x02: "expiry",
    0x03: "content_type",
    0x08: "response_topic",
    0x09: "correlation",
    0x23: "topic_alias",
}


def _read_single(found: PublishProperties, raw: bytes, position: int, identifier: int) -> int:
    """Read the value of a property that may stand once into `found`; the position after it."""
    rule = PROPERTIES.get(identifier)
    if rule is None:
        raise MalformedPacket(f"property identifier 0x{identifier:02x} does not exist", "2.2.2.2")
    attribute = _SINGLE.get(identifier)
    if attribute is None:
        raise MalformedPacket(f"{rule.name} must not stand in PUBLISH", "2.2.2.2")
    value, position = read_value(raw, position, rule)
    check_value(identifier, rule, value)
    if getattr(found, attribute) is not None:
        raise protocol_error(f"{rule.name} stands in the packet more than once", "2.2.2.2")
    setattr(found, attribute, value)
    return position


def strip(block: bytes, *identifiers: int) -> bytes:
    """A *validated* block of PUBLISH properties without those of the given identifiers, the rest in order."""
    kept = []
    position = 0
    while position < len(block):
        end = _skip(block, position)
        if block[position] not in identifiers:
            kept.append(block[position:end])
        position = end
    return b"".join(kept)


def _skip(block: bytes, position: int) -> int:
    """The position after the property that starts here, in a validated block."""
    identifier = block[position]
    position += 1
    if identifier == 0x01:
        return position + 1
    if identifier == 0x02:
        return position + 4
    if identifier == 0x23:
        return position + 2
    if identifier == 0x0B:
        while block[position] & 0x80:
            position += 1
        return position + 1
    position += 2 + (block[position] << 8 | block[position + 1])
    if identifier == 0x26:
        position += 2 + (block[position] << 8 | block[position + 1])
    return position
