"""Finds packets that can be moved together though their topics and sizes differ.

They are PUBLISH frames in a row that are all plain (no DUP, no retain flag, no property that the broker acts on), to topics whose
recipients, here and elsewhere, are known and the same. They become one `PacketBatch`. What ends them, or cannot be among them, is taken as
a run by `parse.py`, with the same effect for any frame. A property test holds the two against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.packets import PacketBatch
from ..mesh.receipts import WISH
from .handles import HANDLE

if TYPE_CHECKING:
    from ..routing.publication import Numbers
    from ..routing.route import Recipients
    from ..site import ClientConnection

PLAIN = frozenset((0x30, 0x32, 0x34))  # first bytes of the frames that can be moved so
ALIKE = 16  # after so many frames of one size, look whether they are of one topic: then a run is better

_ASKS = WISH.encode()  # a message that says how it wants to be acknowledged goes as a run
_HANDLED = HANDLE.encode()  # and so does one with a handle, alone

_known: set[bytes] = set()  # property blocks that may be in such a frame


def find_packets(
    connection: ClientConnection, data: bytes, position: int, end: int, maximum: int
) -> tuple[PacketBatch, Recipients, Numbers, int] | None:
    """The packets with the same recipients that begin at `position`, a whole frame; None: there are none.

    maximum: the largest packet allowed. Returns the batch, its recipients, its packet identifiers, and where it ends.
    """
    version5 = connection.version == 5
    first = data[position]
    skip = 2 if first != 0x30 else 0
    admitted = connection.admitted
    recipients: Recipients | None = None
    begin = position
    offsets: list[int] = []
    numbers: list[int] = []
    same = last = count = far = 0
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
        found = admitted.get(data[start + 2 : topic_end])
        if found is None:
            break
        if version5:
            if payload >= stop or (data[payload] and not _travels(data, payload, stop)):
                break
        elif payload > stop:
            break
        if found is not recipients:
            if recipients is not None:
                break
            recipients = found
            far = (found.mask or found.noted) if version5 else 0
        if far and data[payload]:
            break  # into the mesh and the journal, properties go with runs
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
    if recipients is None or not count:
        return None
    if recipients.mask and (count == 1 or (recipients.receipts if connection.ack is None else connection.ack)):
        return None  # a single message goes into the mesh as a run: what is known of its topic is kept for runs
    block = data if position - begin == len(data) else data[begin:position]
    batch = PacketBatch(block, connection.version, first >> 1 & 3, count, connection.context.now, offsets)
    return batch, recipients, as_range(numbers), position


def as_range(numbers: list[int]) -> Numbers:
    """Packet identifiers as a range where they are consecutive."""
    if not numbers:
        return range(0)
    whole = range(numbers[0], numbers[-1] + 1)
    return whole if len(whole) == len(numbers) and (len(numbers) == 1 or numbers == list(whole)) else numbers


def alike(data: bytes, position: int, start: int, stop: int, version5: bool) -> bool:
    """Whether the PUBLISH at `position`, whose topic stands at `start`, begins several frames alike: a run is better."""
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
    if _ASKS in block or _HANDLED in block:
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
