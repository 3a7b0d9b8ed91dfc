"""Spans on a link: frames of one stream and one moment that differ in topic and size.

Frames that an origin makes of one `PartsBatch` run, and all that follow each other in one stream and one millisecond, have one *seam* in
common: everything from behind the topic to the two low bytes of the sequence. So a span is found by splitting the bytes at the
seam, and what stands between two seams is the low sequence, the payload and the *front* (fixed header, topic) of the next
frame. A front that was seen before says how long its payload is; if then the next front begins exactly where that payload ends,
the cut is right, whatever bytes the payload holds. A relay joins the pieces with its own seam in which other bits are set.

Only frames without retain flag, expiry, picks, properties and Correlation Data of the application make spans; others are runs, of one frame
in the worst case.

It does not know trees, windows or who wants what.
"""

from __future__ import annotations

from itertools import pairwise
from struct import unpack
from typing import NamedTuple

from ...mqtt.batch.parts import PartsBatch
from ...mqtt.batch.run import PID_HIGH, PID_LOW, PIDS
from ...mqtt.errors import MqttError
from ...mqtt.length import encode_length, read_length
from ...mqtt.topics import check_topic
from .envelope import CORRELATION_DATA, FIXED

FRONTS = 50_000  # kept for each length of seam
WINDOW, WINDOW_MAX = 4_096, 262_144  # bytes that are looked at in one go

PLAIN_REST = b"\0\0"  # what stands between publish time and sequence: no picks


def encode_span(
    run: PartsBatch, start: int, head: bytes, bits: bytes, time: bytes, first: int, other: list[bytes] | None = None
) -> list[bytes]:
    """The frames of a run from message `start` on as a flat list of parts, four each.

    head: of `encode_head`. time: 6 bytes. first: sequence of the first frame. other: the list made for another branch of the tree,
    which may be changed and returned.
    """
    size = len(seam(head, bits, time, first)) + 2
    flat = run.flat(0x30, b"", size, start) if other is None else other
    count = run.count - start
    begin = 0
    while begin < count:
        low = first & 0xFFFF
        number = min(count - begin, 65_536 - low)
        front = seam(head, bits, time, first)
        flat[4 * begin + 2 : 4 * (begin + number) : 4] = [front + PIDS[at : at + 2] for at in range(2 * low, 2 * (low + number), 2)]
        begin, first = begin + number, first + number
    return flat


def seam(head: bytes, bits: bytes, time: bytes, sequence: int) -> bytes:
    """What stands between the topic and the low bytes of the sequence."""
    correlation = FIXED + len(bits) + 6 + len(PLAIN_REST) + 8
    length = encode_length(3 + correlation)
    high = sequence.to_bytes(8, "big")[:6]
    return b"".join((length, bytes((CORRELATION_DATA,)), correlation.to_bytes(2, "big"), head, bits, time, PLAIN_REST, high))


class Front(NamedTuple):
    """cut: where the payload behind it ends in its piece. name: the topic with its length."""

    cut: int
    name: bytes


class Span(NamedTuple):
    """Frames with one seam. pieces: low sequence, payload, next front, but for the last one. first, last: sequences."""

    names: list[bytes]
    payloads: list[bytes]
    pieces: list[bytes]
    first: int
    last: int
    stop: int  # where it ends in the data


class Spans:
    """Finds spans in what comes over links."""

    def __init__(self) -> None:
        self._fronts: dict[int, dict[bytes, Front]] = {}  # length of the seam -> front -> what it says
        self.window = WINDOW

    def find(self, data: bytes, name_at: int, seam_at: int, low_at: int, payload: int, end: int) -> Span | None:
        """The span whose first frame, checked, has its topic, seam, low sequence at these places and a payload of so many bytes.

        None when no second frame belongs to it, or their sequences do not rise. The window in which it looks follows what it finds.
        """
        seam_ = data[seam_at:low_at]
        size = low_at - seam_at
        fronts = self._fronts.get(size)
        if fronts is None:
            fronts = self._fronts[size] = {}
        known = fronts.get
        window = self.window
        pieces = data[low_at : min(end, low_at + window)].split(seam_)
        names = [data[name_at:seam_at]]
        lows, payloads = [], []
        cut = payload + 2
        for piece in pieces:
            if len(piece) < cut:
                break
            lows.append(piece[:2])
            payloads.append(piece[2:cut])
            front = piece[cut:]
            found = known(front) or (self._learn(fronts, front, size) if len(front) < 70_000 else None)
            if found is None:
                last_cut = cut
                break
            last_cut = cut
            cut, name = found
            names.append(name)
        count = len(lows)
        if count < 2:
            self.window = max(WINDOW, window >> 1)
            return None
        del pieces[count:]
        del names[count:]
        pieces[-1] = pieces[-1][:last_cut]
        length = sum(map(len, pieces)) + (count - 1) * size
        self.window = min(WINDOW_MAX, 2 * window) if 2 * length > window else max(WINDOW, 2 * length)
        joined = b"".join(lows)
        low = joined[0] << 8 | joined[1]
        last = low + count - 1
        if joined != PIDS[2 * low : 2 * low + 2 * count]:
            rising = unpack(f">{count}H", joined)
            if any(one >= other for one, other in pairwise(rising)):
                return None
            last = rising[-1]
        high = int.from_bytes(data[low_at - 6 : low_at], "big") << 16
        return Span(names, payloads, pieces, high | low, high | last, low_at + length)

    def _learn(self, fronts: dict[bytes, Front], front: bytes, size: int) -> Front | None:
        """Read and check a front that was not seen before; None when it is none."""
        if len(front) < 5 or front[0] != 0x30:
            return None
        try:
            remaining, at = read_length(front, 1, len(front))
        except MqttError:
            return None
        if at + 2 >= len(front) or (front[at] << 8 | front[at + 1]) != len(front) - at - 2:
            return None
        payload = remaining - (len(front) - at) - size - 2
        topic = front[at + 2 :]
        if payload < 0 or topic.startswith(b"$"):
            return None
        try:
            check_topic(topic)
        except MqttError:
            return None
        if len(fronts) >= FRONTS:
            fronts.clear()
        found = fronts[front] = Front(payload + 2, front[at:])
        return found


def has_gaps(block: bytes, size: int, count: int, at: int, low: int) -> bool:
    """Whether the sequences of a block, whose low bytes stand at `at` in each frame and begin with `low`, are not consecutive."""
    return block[at + 1 :: size] != PID_LOW[low : low + count] or block[at::size] != PID_HIGH[low : low + count]


def alike_with(data: bytes, prefix: bytes, others: bytes, position: int, size: int, end: int, skip: int) -> int:
    """Where frames end that begin alike and have the same properties after their sequence. skip: where these are in each."""
    following, last_start, same = position + size, end - size, data.startswith
    while following <= last_start and same(prefix, following) and same(others, following + skip):
        following += size
    return following
