"""The hot path for traffic that is not uniform: frames of different topics, sizes and properties that go the same way.

A *span* is a stretch of PUBLISH frames in a received chunk that are all plain (no DUP, no retain flag, no property that the broker
acts on), whose topics are known and have one `Fan`: the same recipients, here and elsewhere. It is moved as one `PacketBatch` run.
What ends a span, or cannot be in one, is taken by the general path in `ingest` and `incoming`, which does the same for any
frame; a property test holds the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.packets import PacketBatch
from ...mqtt.reasons import Reason
from ..mesh import receipts
from . import run as incoming

if TYPE_CHECKING:
    from ..client.connection import Connection
    from ..routing.route import Fan

PLAIN = frozenset((0x30, 0x32, 0x34))  # first bytes of the frames that a span can hold
ALIKE = 16  # after so many frames of one size, look whether they are of one topic: then a run is better

WISH = receipts.WISH.encode()  # what a message says of its own acknowledgement is for the general path

_known: set[bytes] = set()  # property blocks that may stand in a span


def take_span(connection: Connection, data: bytes, position: int, end: int, maximum: int) -> int:
    """Deliver the span that begins at `position`, a whole frame, and acknowledge it.

    maximum: the largest packet allowed. Returns where it ends. 0: there is none; -p: one up to p that the general path has to take,
    because a QoS 2 identifier in it is not new, or the mesh has no room for all of it. Then nothing was done.
    """
    first = data[position]
    span = _find(connection, data, position, end, maximum)
    if span is None:
        return 0
    fan, position, count, block, numbers, offsets = span
    version = connection.version
    if first == 0x30:
        if fan.mask and not _published(connection, PacketBatch(block, version, 0, count, connection.broker.now), fan):
            return -position
        connection.broker.router.deliver_block(block, version, count, fan)
    else:
        mixed = PacketBatch(block, version, first >> 1 & 3, count, connection.broker.now, offsets)
        last = numbers[-1]
        consecutive = last - numbers[0] == count - 1 and (count == 1 or numbers == list(range(numbers[0], last + 1)))
        if not _acknowledged(connection, mixed, fan, range(numbers[0], last + 1) if consecutive else numbers):
            return -position
    connection.received += count
    connection.broker.counters.publish_bytes_received += len(block)
    return position


def _find(
    connection: Connection, data: bytes, position: int, end: int, maximum: int
) -> tuple[Fan, int, int, bytes, list[int], list[int]] | None:
    """The span at `position`: where its messages go, where it ends, how many they are, their bytes, packet identifiers, and where these
    stand in the bytes."""
    version5 = connection.version == 5
    first = data[position]
    skip = 2 if first != 0x30 else 0
    fans, allowed = connection.fans, connection.allowed
    fan: Fan | None = None
    far = 0
    begin = position
    offsets: list[int] = []
    numbers: list[int] = []
    same = last = count = 0
    while position + 4 < end and data[position] == first:
        start = position + 2
        length = data[position + 1]
        if length >= 128:
            high = data[start]
            if not 0 < high < 128:
                break
            length += (high << 7) - 128
            start += 1
        stop = start + length
        if stop > end or stop - position > maximum:
            break
        topic_end = start + 2 + (data[start] << 8 | data[start + 1])
        payload = topic_end + skip
        if version5:
            if payload >= stop or (data[payload] and not _travels(data, payload, stop)):
                break
        elif payload > stop:
            break
        topic = data[start + 2 : topic_end]
        found = fans.get(topic)
        if allowed is not None and topic not in allowed:
            break  # nobody has been asked for it yet
        if found is not fan:
            if fan is not None:
                break
            fan = found
            far = found.mask if found is not None and version5 else 0
        if found is None or (far and data[payload]):
            break  # into the mesh, properties go with runs
        if skip:
            number = data[topic_end] << 8 | data[topic_end + 1]
            if not number:
                break
            numbers.append(number)
            offsets.append(topic_end - begin)
        count += 1
        if length != last:
            last = length
            same = 0
        else:
            same += 1
            if same == ALIKE:
                same = 0
                if alike(data, position, start, stop, version5):
                    position = stop
                    break
        position = stop
    if fan is None or not count or (count == 1 and fan.mask):
        return None  # a lone message goes into the mesh as a run: what is known of its topic is kept for runs
    block = data if position - begin == len(data) else data[begin:position]
    return fan, position, count, block, numbers, offsets


def alike(data: bytes, position: int, start: int, stop: int, version5: bool) -> bool:
    """Whether the PUBLISH at `position`, whose topic stands at `start`, begins several frames alike: a run is better than a span."""
    ahead = 4 * (stop - position)
    topic_end = start + 2 + (data[start] << 8 | data[start + 1])
    if not data.startswith(data[position:topic_end], position + ahead):
        return False
    if not version5:
        return True
    properties = topic_end + 2 if data[position] & 6 else topic_end
    if properties >= stop:
        return False
    return data.startswith(data[properties : properties + 1 + (data[properties] & 127)], properties + ahead)


def _published(connection: Connection, mixed: PacketBatch, fan: Fan) -> bool:
    """Give a span to the mesh. False: there is no room for QoS 1 or 2, or interest is changing; nothing was done."""
    mesh = connection.broker.mesh
    return mesh is not None and mesh.publish_span(fan.mask, mixed.loose())


def _acknowledged(connection: Connection, mixed: PacketBatch, fan: Fan, numbers: receipts.Numbers) -> bool:
    """QoS 1 and 2. False: the general path has to see to it. Some identifier is open or stands twice, receipts are asked for, or the
    mesh has no room."""
    if fan.mask and (fan.receipts if connection.ack is None else connection.ack):
        return False
    session = connection.session
    assert session is not None
    broker = connection.broker
    durable = broker.durable
    if durable is not None:
        if durable.closed and (fan.mask or any(member.stored for member in fan.sessions)):
            return False
        durable.begin()
    opened = session.inbound.open
    if mixed.qos == 2:
        if not opened.isdisjoint(numbers) or (not isinstance(numbers, range) and len(set(numbers)) < len(numbers)):
            return False
        opened.update(numbers)
        if durable is not None and session.stored:
            durable.received(session)
    taken = connection.taken
    if connection.receive_maximum:
        incoming.check_quota(connection, session, mixed)
    if fan.mask and not _published(connection, mixed, fan):
        connection.taken = taken
        if mixed.qos == 2:
            opened.difference_update(numbers)
        return False
    if mixed.qos == 2 and durable is not None and session.stored:  # they may come again until their identifiers are kept
        broker.behind = durable.next_commit
    refused = broker.router.deliver_mixed(mixed, fan)
    broker.behind = 0
    if refused:
        kept = len(numbers) - refused
        if kept:
            incoming.acknowledge(connection, mixed.qos, numbers[:kept])
        incoming.refuse(connection, session, mixed, numbers[kept:], Reason.QUOTA_EXCEEDED)
    else:
        if fan.queued:
            broker.pressure.press(connection, fan.sessions)
        incoming.acknowledge(connection, mixed.qos, numbers, 0 if fan.sessions or fan.mask else Reason.NO_MATCHING_SUBSCRIBERS)
    return True


def _travels(data: bytes, position: int, stop: int) -> bool:
    """Whether the properties, whose length stands at `position`, are valid and travel to subscribers as they are.

    False also for what is only unusual (text that is not ASCII, blocks of 16 KiB): the general path takes the time to look.
    """
    length = data[position]
    position += 1
    if length >= 128:
        high = data[position]
        if not 0 < high < 128:
            return False
        length += (high << 7) - 128
        position += 1
    end = position + length
    if end > stop:
        return False
    block = data[position:end]
    if block in _known:
        return True
    if not _plain(block):
        return False
    if len(_known) >= 2048:
        _known.clear()
    _known.add(block)
    return True


_ONCE = {0x03: 1, 0x08: 2, 0x09: 4, 0x01: 8}  # Content Type, Response Topic, Correlation Data, Payload Format Indicator


def _plain(block: bytes) -> bool:
    """Whether a property block holds nothing but well-formed properties that travel, each as often as it may."""
    if WISH in block:
        return False
    position, end = 0, len(block)
    seen = 0
    while position < end:
        kind = block[position]
        if kind == 0x26:  # User Property: a name, then a value
            position = _text_end(block, position + 1, end)
            position = _text_end(block, position, end) if position else 0
        else:
            bit = _ONCE.get(kind)
            if bit is None or seen & bit:
                return False
            seen |= bit
            if kind == 0x09:
                position = _binary_end(block, position + 1, end)
            elif kind == 0x01:
                position = position + 2 if block[position + 1 : position + 2] == b"\0" else 0
            else:
                begin = position + 3
                position = _text_end(block, position + 1, end)
                if kind == 0x08 and (position == begin or b"+" in block[begin:position] or b"#" in block[begin:position]):
                    return False
        if not position:
            return False
    return True


def _binary_end(block: bytes, position: int, end: int) -> int:
    """The end of binary data; 0 when it goes beyond the block."""
    if position + 2 > end:
        return 0
    position += 2 + (block[position] << 8 | block[position + 1])
    return position if position <= end else 0


def _text_end(block: bytes, position: int, end: int) -> int:
    """The end of a string of ASCII characters without U+0000; 0 when it is another or goes beyond the block."""
    if position + 2 > end:
        return 0
    stop = position + 2 + (block[position] << 8 | block[position + 1])
    if stop > end:
        return 0
    text = block[position + 2 : stop]
    return stop if text.isascii() and b"\0" not in text else 0
