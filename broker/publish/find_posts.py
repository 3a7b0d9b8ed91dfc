"""Finds messages for one service of the broker that it takes together, though their sizes and properties differ.

They are PUBLISH frames of MQTT 5 in a row, of QoS 1, to one topic. What ends them, or cannot be among them, is taken by itself, with the
same effect: a message that has something wrong, or a Topic Alias. A property test holds the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.errors import PeerError
from ...mqtt.length import read_length
from .accept import all_utf8
from .find_packets import as_range
from .posts import MOST, Posts
from .properties import read_properties

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..routing.route import Together
    from ..site import ClientConnection

FIRST = 0x32  # the first byte of the frames that can be taken so


def find_posts(connection: ClientConnection, data: bytes, position: int, end: int, maximum: int) -> Posts | None:
    """The messages for one service that begin at `position`; None: there are none.

    maximum: the largest packet allowed.
    """
    topic = b""
    service: Together | None = None
    payloads: list[bytes] = []
    said: list[PublishProperties | None] = []
    numbers: list[int] = []
    while position + 4 < end and data[position] == FIRST and len(payloads) < MOST:
        try:
            length, start = read_length(data, position + 1, end)
        except PeerError:
            break  # what is wrong with it is said when it is taken by itself
        if length < 0:
            break
        stop = start + length
        if service is None:
            topic = data[start : start + 2 + (data[start] << 8 | data[start + 1])]
            service = connection.site.router.together.get(topic[2:]) if connection.version == 5 else None
            if service is None:
                return None
        topic_end = start + len(topic)
        payload = topic_end + 2
        if stop > end or stop - position > maximum or payload >= stop or not data.startswith(topic, start):
            break
        number = data[topic_end] << 8 | data[topic_end + 1]
        properties: PublishProperties | None = None
        if data[payload]:
            try:
                properties, payload = read_properties(data, payload, stop, connection.limits.packet_properties)
            except PeerError:
                break
            if properties.topic_alias is not None or (properties.payload_format == 1 and not all_utf8([data[payload:stop]])):
                break
        else:
            payload += 1
        if not number:
            break
        payloads.append(data[payload:stop])
        said.append(properties)
        numbers.append(number)
        position = stop
    return Posts(service, payloads, said, as_range(numbers), position) if service is not None and payloads else None
