"""The hot path in: received bytes become runs, runs go to routes, acknowledgements move blocks.

`ingest` runs for each chunk of bytes, makes one call for each run, span or block of acknowledgements, never builds an object for a
single PUBLISH that has company, and leaves every packet kind but PUBLISH and the four acknowledgements to the connection's handlers.

How a run is found: behind the first PUBLISH, frames of the same size whose bytes up to the packet identifier (QoS 0: up to the
payload) are equal belong to it. Everything that was checked for the first one holds for them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.errors import MalformedPacket, PeerError
from ...mqtt.length import read_length
from ...mqtt.publish import PublishProperties, publish_properties
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBCOMPS, PUBRECS, PUBRELS
from .batch import PLAIN, alike, take_span
from .run import acknowledged, publish

if TYPE_CHECKING:
    from ..client.connection import Connection

CONNECT_MAX = 512 * 1024  # bytes of a first packet: memory for strangers is bounded before anything is known of them
NO_CONNECT = "the first packet is not CONNECT"
TLS = 0x16  # how a TLS handshake begins
NO_CONNECT_BUT_TLS = "the client speaks TLS, and this listener does not: an mqtts:// listener does"

TABLES = {0x40: PUBACKS, 0x50: PUBRECS, 0x62: PUBRELS, 0x70: PUBCOMPS}


_known: dict[bytes, PublishProperties] = {}


def read_properties(data: bytes, position: int, stop: int) -> tuple[PublishProperties, int]:
    """The property block of a PUBLISH from a client, and where the payload starts. Blocks seen before are not read again."""
    length, start = read_length(data, position, stop)
    if length < 0 or start + length > stop:
        raise MalformedPacket("the properties of a PUBLISH are longer than the packet", clause="MQTT-3.3.2")
    block = data[start : start + length]
    properties = _known.get(block)
    if properties is None:
        properties = publish_properties(data, position, stop)
        if properties.subscription_identifiers:
            raise PeerError(Reason.PROTOCOL_ERROR, "a client sent a subscription identifier in PUBLISH", clause="MQTT-3.3.4-6")
        if len(_known) >= 1024:
            _known.clear()
        if length <= 256:
            _known[block] = properties
    return properties, start + length


def ingest(connection: Connection, data: bytes) -> int:
    """Take as many whole packets as `data` holds: how many bytes were used.

    Sets ``connection.need`` to the size of the incomplete packet at the end (0 when unknown). Raises PeerError.
    """
    position = 0
    end = len(data)
    maximum = connection.limits.max_packet_size if connection.session is not None else min(CONNECT_MAX, connection.limits.max_packet_size)
    version5 = connection.version == 5
    connection.need = 0
    general = 0  # no spans are looked for before this position
    while position + 2 <= end:
        first = data[position]
        length = data[position + 1]
        start = position + 2
        if length >= 128:
            length, start = read_length(data, position + 1, end)
            if length < 0:
                break
        stop = start + length
        if connection.session is None and (first >> 4 != 1 or first == TLS):  # the flags are looked at with the body
            raise PeerError(Reason.PROTOCOL_ERROR, NO_CONNECT_BUT_TLS if first == TLS else NO_CONNECT, clause="MQTT-3.1.0-1")
        if stop - position > maximum:
            raise PeerError(Reason.PACKET_TOO_LARGE, f"a packet of {stop - position} bytes; the most is {maximum}", clause="MQTT-3.2.2-15")
        if stop > end:
            connection.need = stop - position
            break

        if (
            first in PLAIN
            and length > 2
            and position >= general
            and connection.session is not None
            and not alike(data, position, start, stop, version5)
        ):
            # nothing special: perhaps frames that only have to be passed on
            after = take_span(connection, data, position, end, maximum)
            if after > 0:
                position = after
                continue
            general = -after

        kind = first & 0xF0
        if kind == 0x30:
            after = take_run(connection, data, position, start, stop, end, version5)
            if after < 0:
                return position
            position = after
            if connection.closing:
                return end
        elif length == 2 and (kind == 0x40 or first == 0x62 or kind == 0x50 or kind == 0x70) and connection.session is not None:
            position += take_acknowledgements(connection, data, position, start, end)
        else:
            connection.packet(first, data[start:stop])
            position = stop
            if connection.closing:
                return end
            if connection.handed_over or connection.held:
                return position
            version5 = connection.version == 5
    return position


def take_run(connection: Connection, data: bytes, position: int, start: int, stop: int, end: int, version5: bool) -> int:
    """The run of PUBLISH that begins at `position`, a whole packet whose body is data[start:stop]: where it ends; -1: it is held."""
    first = data[position]
    qos = (first >> 1) & 3
    if qos == 3 or (first & 0x0E) == 0x08:
        raise MalformedPacket(f"PUBLISH with flags {first & 15:#x}", clause="MQTT-3.3.1-4" if qos == 3 else "MQTT-3.3.1-2")
    topic_end = start + 2 + (data[start] << 8 | data[start + 1]) if stop - start >= 2 else stop + 1
    payload = topic_end
    properties: PublishProperties | None = None
    if qos:
        payload += 2
    if payload > stop:
        raise MalformedPacket("PUBLISH ends inside its topic or packet identifier", clause="MQTT-1.5.4")
    if version5:
        if payload >= stop:
            raise MalformedPacket("PUBLISH without a property length", clause="MQTT-3.3.2")
        if data[payload]:
            properties, payload = read_properties(data, payload, stop)
        else:
            payload += 1
    size = stop - position
    after = stop
    if qos:
        head = data[position:topic_end]
        tail_start = topic_end + 2 - position
        tail = data[topic_end + 2 : payload]
        if tail:
            while data.startswith(head, after) and data.startswith(tail, after + tail_start):
                after += size
        else:
            while data.startswith(head, after):
                after += size
    else:
        head = data[position:payload]
        while data.startswith(head, after):
            after += size
    if after > end:
        after -= size
    taken = publish(connection, data, position, after, size, qos, first, start + 2, topic_end, payload, properties)
    return after if taken else -1


def take_acknowledgements(connection: Connection, data: bytes, position: int, start: int, end: int) -> int:
    """Acknowledgements without reason code: as long a block of consecutive identifiers as there is; its size in bytes."""
    first = data[position]
    table = TABLES.get(first)
    if table is None:
        raise MalformedPacket(f"reserved flags {first & 15:#x} in an acknowledgement", clause="MQTT-2.1.3-1")
    packet_id = data[start] << 8 | data[start + 1]
    if not packet_id:
        raise MalformedPacket("packet identifier 0", clause="MQTT-2.2.1-3")
    count = 1
    most = min((end - position) // 4, 65536 - packet_id)
    if most > 1:
        # twice as far each time, then back by halves: the longest stretch that equals the table
        at = 4 * packet_id
        ahead = 1
        growing = True
        while ahead and count < most:
            ahead = min(ahead, most - count)
            if data.startswith(table[at + 4 * count : at + 4 * (count + ahead)], position + 4 * count):
                count += ahead
            else:
                growing = False
            ahead = 2 * ahead if growing else ahead // 2
    acknowledged(connection, first & 0xF0, packet_id, count)
    return 4 * count
