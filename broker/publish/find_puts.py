"""Finds messages for one queue that can be put together though their sizes and properties differ.

They are PUBLISH frames in a row, of QoS 0 or 1, to one `$queue/NAME` of this broker. What ends them, or cannot be among them, is put by
itself, with the same effect: a message with a handle or with parents, with a plan of its own, one that has something wrong, or sets a
Topic Alias. A property test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack
from typing import TYPE_CHECKING

from ...base.queues import PREFIX
from ...mqtt.batch.run import PIDS
from ...mqtt.errors import PeerError
from ...mqtt.length import known_length
from ..queues.putting import PLAIN, Way, how_of
from .accept import all_utf8
from .find_packets import ALIKE, alike
from .handles import handle_of
from .properties import read_properties

if TYPE_CHECKING:
    from ..routing.publication import Numbers
    from ..site import ClientConnection

FIRST = frozenset((0x30, 0x32))  # first bytes of the frames that can be put so
KNOWN_MAX = 1024
NAMES_MAX, SIZES_MAX = 256, 1024
QUEUE = PREFIX.encode()
NONE = b"\0\0"  # no packet identifier

NO_PROPERTIES = Way(0, PLAIN)  # of MQTT 3.1.1

_known: dict[bytes, Way] = {}
_sizes: dict[tuple[int, bytes], dict[bytes, int]] = {}  # first byte, topic -> fixed header with the topic -> how long the frame is


@dataclass(slots=True)
class Puts:
    """Messages for one queue, in order. ways: how each is put. numbers: their packet identifiers; none at QoS 0. stop: where they end."""

    queue: str
    qos: int
    payloads: list[bytes]
    ways: list[Way]
    numbers: Numbers
    stop: int

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.payloads)


def may_be_put(data: bytes, start: int) -> bool:
    """Whether a PUBLISH whose body begins at `start` may be for a queue: it says so, or has a Topic Alias only."""
    return data.startswith(QUEUE, start + 2) or data.startswith(b"\0\0", start)


def find_puts(connection: ClientConnection, data: bytes, position: int, end: int, maximum: int) -> Puts | None:
    """The messages for one queue that begin at `position`, a whole frame; None: there are none.

    maximum: the largest packet allowed.
    """
    first = data[position]
    found = _goal(connection, data, position) if first in FIRST else None
    if found is None:
        return None
    queue, name, alias = found
    version5 = connection.version == 5
    most, skip = connection.limits.packet_properties, 2 if first & 6 else 0
    near, far = 2 + len(name), 3 + len(name)
    last = same = 0
    payloads: list[bytes] = []
    ways: list[Way] = []
    numbers: list[bytes] = []
    add, add_way, add_number = payloads.append, ways.append, numbers.append
    sizes = _sizes.get((first, name))
    if sizes is None:
        if len(_sizes) >= NAMES_MAX:
            _sizes.clear()
        sizes = _sizes[first, name] = {}
    size_of, way_of = sizes.get, _known.get
    while position < end:
        size, block = size_of(data[position : position + far]), position + far + skip
        if size is None:
            size, block = size_of(data[position : position + near]), position + near + skip
            if size is None:
                if data[position] == first and _learn(sizes, data, position, name, skip):
                    continue
                break
        stop = position + size
        if stop > end or size > maximum:
            break
        number, body = data[block - skip : block], data[block:stop]
        if number == NONE:
            break
        if version5:
            if not body:
                break
            way = way_of(body[: 1 + body[0]]) or _way(body, 0, len(body), most)
            if way is None or way.alias != alias:
                break
            body = body[way.length :]
            if way.text and not all_utf8([body]):
                break
            add_way(way)
        add_number(number)
        add(body)
        if size != last:
            last, same = size, 0
        else:
            same += 1
            if same == ALIKE:
                same = 0
                if alike(data, position, block - skip - len(name), stop, version5):
                    position = stop
                    break
        position = stop
    if not payloads:
        return None
    return Puts(queue, first >> 1 & 3, payloads, ways or [NO_PROPERTIES] * len(payloads), _identifiers(b"".join(numbers)), position)


def _learn(sizes: dict[bytes, int], data: bytes, position: int, name: bytes, skip: int) -> bool:
    """Remember how long frames are that begin as the one at `position`. False: it is not to this topic, or of 16 KiB and more.

    sizes: of frames to this topic. skip: bytes of the packet identifier.
    """
    head = data[position : position + 3]
    if len(head) < 3 or (head[1] >= 128 and not 0 < head[2] < 128):
        return False
    length, start = known_length(data, position + 1)
    if not data.startswith(name, start) or length < len(name) + skip:
        return False
    if len(sizes) >= SIZES_MAX:
        sizes.clear()
    sizes[data[position : start + len(name)]] = start - position + length
    return True


def _goal(connection: ClientConnection, data: bytes, position: int) -> tuple[str, bytes, int] | None:
    """The queue of the frame at `position`, its topic as it stands there, and the Topic Alias that says it instead; 0: none does."""
    length, start = known_length(data, position + 1)
    name = data[start : start + 2 + (data[start] << 8 | data[start + 1])]
    topic, alias, stop = name[2:], 0, start + length
    if not topic:
        if connection.version != 5:
            return None
        block = start + (4 if data[position] & 6 else 2)
        way = _way(data, block, stop, connection.limits.packet_properties) if block < stop else None
        if way is None or not way.alias:
            return None
        alias = way.alias
        topic = connection.aliases_in.get(alias, b"")
    to = connection.admitted.get(topic)
    return (to.queue, name, alias) if to is not None and to.queue is not None else None


def _identifiers(joined: bytes) -> Numbers:
    """Packet identifiers that stand one after the other: a range where they are consecutive."""
    count, first = len(joined) // 2, int.from_bytes(joined[:2], "big")
    if joined == PIDS[2 * first : 2 * (first + count)]:
        return range(first, first + count)
    return list(unpack(f">{count}H", joined))


def _way(data: bytes, position: int, stop: int, most: int) -> Way | None:
    """How a message is put whose properties stand at `position`; None: by itself. most: how many properties it may have."""
    if data[position]:
        try:
            said, payload = read_properties(data, position, stop, most)
            if handle_of(said.user_properties) is not None:
                return None
            how = how_of(said)
        except (PeerError, ValueError):
            return None  # what is wrong with it is said when it is put by itself
        if how.parents or how.plan is not None:
            return None
        way = Way(payload - position, how, said.expiry, said.payload_format == 1, said.topic_alias or 0)
    else:
        way = Way(1, PLAIN)
    if data[position] < 128:
        if len(_known) >= KNOWN_MAX:
            _known.clear()
        _known[data[position : position + way.length]] = way
    return way
