"""The direct lane: one frame by itself is passed on and delivered with what the general way decided for the frame before it.

What a broker adds to the latency of a single message is the Python that it runs. The general way (`Relay.receive`) looks for runs and
spans, checks topics and properties, and reads the envelope. A single frame repeats all of this, but for the sequence, the time and the
payload. So `remember` keeps the outcome for a frame's topic and stream, and `take` repeats it for the next frame of both.

    take       single frames only; anything that is unusual leaves it to the general way
    remember   called by the general way

Invariants
- `take` does all that the general way does, or nothing: a property test feeds frames to both;
- what is remembered goes with the streams of its link (`Core.stale`), so that it never outlives a decision.

It does not know how the shell sends or delivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ....base.cache import LONGEST
from ....mqtt.batch.run import Run
from ...wire.batch import PLAIN_REST
from ...wire.envelope import ASKS, FIXED, publish_time
from ...wire.visited import Changes
from ..actions import Deliver
from ..core import Core, LinkEnd, Stream

if TYPE_CHECKING:
    from ...view.trees import Child

SMALLEST = 8
LARGEST = 16_000  # bytes of a frame: its length takes two bytes at the most, and a copy costs next to nothing
REMEMBERED = 10_000  # topics for each link
HEADER = 4  # bytes of the envelope's property in front of it: length of all properties, identifier, length
TO_BITS = 2 + HEADER + FIXED  # bytes in front of the visited bits, beside the topic
TAIL = 16  # bytes behind the visited bits: time, no picks, sequence


class Outcome:
    """What happens to single frames of one topic in one stream.

    topic: of the message.
    name: the same with its length in front, as in a packet.
    qos: of the message.
    size, front, start: of the last frame: its bytes in all, those up to the end of the visited bits, where its topic begins.
    stream: the decisions of the general way.
    forwards: link, its place in the tree, and the bytes from the topic to the bits as they go out there.
    """

    __slots__ = ("forwards", "front", "name", "qos", "size", "start", "stream", "topic")

    def __init__(self, topic: bytes, stream: Stream, forwards: list[tuple[LinkEnd, Child, bytes]]) -> None:
        self.size = self.start = 0
        self.front = b""
        self.topic = topic
        self.name = len(topic).to_bytes(2, "big") + topic
        self.qos = stream.head.flags & 3
        self.stream = stream
        self.forwards = forwards


class Taken(NamedTuple):
    """A single frame that was taken. Its message is let in by `SingleMessages.given` or `SingleMessages.delivery`.

    data: the frame.
    start: where its topic begins, with the length in front.
    end: where its visited bits end.
    sequence: of its origin.
    """

    outcome: Outcome
    data: bytes
    start: int
    end: int
    sequence: int

    def sends(self) -> list[tuple[int, bytes]]:
        """(link, frame) of what has to be sent now."""
        _, data, start, end, _ = self
        return [(out.id, b"".join((data[:start], front, data[end:]))) for out, _, front in self.outcome.forwards]

    @property
    def delivers(self) -> bool:
        """Whether the message is for clients of this broker."""
        return self.outcome.stream.deliver

    @property
    def asks(self) -> bool:
        """Whether the origin waits for the receipt."""
        return self.data[self.end] >= ASKS

    @property
    def payload(self) -> int:
        """Where the payload begins."""
        return self.end + TAIL

    def run(self, now: float) -> Run:
        """The message."""
        data, payload, size = self.data, self.end + TAIL, len(self.data)
        return Run(self.outcome.topic, self.outcome.qos, False, None, b"", None, now, (data, payload, size, size - payload))

    def delivery(self, now: float, token: int | None) -> Deliver:
        """The message, as the general way hands it over."""
        time = publish_time(self.data, self.end)
        return Deliver(self.run(now), self.outcome.stream.head.origin, token, (), True, False, time)


class DirectLane:
    """Single frames that come over links."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def remember(self, link: LinkEnd, stream: Stream, data: bytes, topic_end: int, bits_end: int) -> None:
        """The general way has taken `data`, which is one frame without picks and properties of the application."""
        start = 2 if data[1] < 128 else 3
        if len(data) > LARGEST or bits_end != topic_end + HEADER + FIXED + stream.head.width or stream.head.width > 64:
            return
        if topic_end - start - 2 > LONGEST:  # clients choose topics, and this counts entries
            return
        if len(link.direct) >= REMEMBERED:
            link.direct.clear()
        known = data[start:bits_end]
        at = len(known) - stream.head.width
        forwards = [(end, child, _changed(known, at, what)) for end, child, what in stream.forwards]
        link.direct[known] = Outcome(data[start + 2 : topic_end], stream, forwards)
        link.latest = None

    def take(self, link: int, data: bytes, now: float) -> Taken | None:
        """Take `data` if it is one whole frame of a topic and stream that are remembered. None: nothing was done."""
        size = len(data)
        core = self._core
        source = core.links.get(link)
        if source is None:
            return None
        outcome = source.latest
        if outcome is not None and size == outcome.size and data.startswith(outcome.front):
            start, end = outcome.start, len(outcome.front)  # it is like the last one
        else:
            if not SMALLEST <= size <= LARGEST or data[0] != 0x30:
                return None
            length, start = data[1], 2
            if length > 127:
                length, start = length & 127 | data[2] << 7, 3
            bits = start + (data[start] << 8 | data[start + 1]) + TO_BITS
            if length != size - start or bits + TAIL >= size:
                return None
            end = bits + data[bits - 1]
            outcome = source.direct.get(data[start:end])
            if outcome is None or end + TAIL > size:
                return None
            outcome.size, outcome.front, outcome.start = size, data[:end], start
            source.latest = outcome
        if core.actions or data[end + 6 : end + 8] != PLAIN_REST:
            return None
        stream = outcome.stream
        head, window, record = stream.head, stream.window, stream.record
        assert record is not None, "only what passes is remembered"
        sequence = int.from_bytes(data[end + 8 : end + TAIL], "big")
        position = (head.epoch, sequence)
        if window is not None and position <= window.seen:
            return None
        for out, child, _ in outcome.forwards:
            if out.full or child.cut:
                return None
        if not stream.custody:
            if position <= record.last:
                return None
            record.last = position
        core.now = now
        counters = core.counters
        source.received += 1
        for out, _, _ in outcome.forwards:
            out.sent += 1
            counters.relayed += 1
        if stream.deliver:
            counters.delivered += 1
        return Taken(outcome, data, start, end, sequence)


def _changed(known: bytes, at: int, changes: Changes) -> bytes:
    """The bytes with other visited bits, which begin at `at`."""
    front = bytearray(known)
    for offset, value in changes:
        front[at + offset] = value
    return bytes(front)
