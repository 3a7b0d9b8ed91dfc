"""The direct lane: one frame by itself is passed on and delivered with what the general way decided for the frame before it.

What a broker adds to the latency of a single message is the Python that it runs. The general way (`Relay.receive`) looks for runs and
spans, checks topics and properties, and reads the envelope. A lone frame repeats all of this, but for the sequence, the time and the
payload. So `remember` keeps the outcome for a frame's topic and stream, and `take` repeats it for the next frame of both.

    take       lone frames only; anything that is unusual leaves it to the general way
    remember   called by the general way

Invariants
- `take` does all that the general way does, or nothing: a property test feeds frames to both;
- what is remembered goes with the streams of its link (`Core.stale`), so that it never outlives a decision.

It does not know how the shell sends or delivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.batch.run import Run
from ..wire.batch import PLAIN_REST
from ..wire.envelope import FIXED
from ..wire.visited import Changes
from .actions import Deliver, Send
from .core import Core, LinkEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..custody.windows import CustodyWindow
    from ..view.trees import Child
    from .relay import Stream

SMALLEST = 8
LARGEST = 16_000  # bytes of a frame: its length takes two bytes at the most, and a copy costs next to nothing
REMEMBERED = 10_000  # topics for each link
HEADER = 4  # bytes of the envelope's property in front of it: length of all properties, identifier, length
TAIL = 16  # bytes behind the visited bits: time, no picks, sequence


class Outcome:
    """What happens to lone frames of one topic in one stream.

    topic: of the message.
    stream: the decisions of the general way.
    forwards: link, its place in the tree, and the bytes from the topic to the bits as they go out there.
    """

    __slots__ = ("forwards", "stream", "topic")

    def __init__(self, topic: bytes, stream: Stream, forwards: list[tuple[LinkEnd, Child, bytes]]) -> None:
        self.topic = topic
        self.stream = stream
        self.forwards = forwards


class DirectLane:
    """Lone frames that come over links."""

    def __init__(self, core: Core, admit: Callable[[CustodyWindow, int, int, int, int], int]) -> None:
        """admit: lets custody messages in; see `Relay.admit`."""
        self._core = core
        self._admit = admit

    def remember(self, link: LinkEnd, stream: Stream, data: bytes, topic_end: int, bits_end: int) -> None:
        """The general way has taken `data`, which is one frame without picks and properties of the application."""
        start = 2 if data[1] < 128 else 3
        if len(data) > LARGEST or bits_end != topic_end + HEADER + FIXED + stream.head.width or stream.head.width > 64:
            return
        if len(link.direct) >= REMEMBERED:
            link.direct.clear()
        known = data[start:bits_end]
        at = len(known) - stream.head.width
        forwards = [(end, child, _changed(known, at, what)) for end, child, what in stream.forwards]
        link.direct[known] = Outcome(data[start + 2 : topic_end], stream, forwards)

    def take(self, link: LinkEnd, data: bytes) -> bool:
        """Take `data` if it is one whole frame of a topic and stream that are remembered. False: nothing was done."""
        size = len(data)
        if not SMALLEST <= size <= LARGEST or data[0] != 0x30:
            return False
        length, start = data[1], 2
        if length > 127:
            length, start = length & 127 | data[2] << 7, 3
        bits = start + 2 + (data[start] << 8 | data[start + 1]) + HEADER + FIXED
        if length != size - start or bits + TAIL >= size:
            return False
        end = bits + data[bits - 1]
        outcome = link.direct.get(data[start:end])
        core = self._core
        if outcome is None or core.actions or end + TAIL > size or data[end + 6 : end + 8] != PLAIN_REST:
            return False
        stream = outcome.stream
        sequence = int.from_bytes(data[end + 8 : end + TAIL], "big")
        position = (stream.head.epoch, sequence)
        window, record = stream.window, stream.record
        assert record is not None, "only what passes is remembered"
        if window is not None and position <= window.seen:
            return False
        for out, child, _ in outcome.forwards:
            if out.full or child.cut:
                return False
        if not stream.custody:
            if position <= record.last:
                return False
            record.last = position
        counters = core.counters
        counters.received += 1
        for out, _, front in outcome.forwards:
            counters.sent += 1
            counters.relayed += 1
            core.actions.append(Send(out.id, b"".join((data[:start], front, data[end:])), False))
        if stream.deliver:
            head = stream.head
            token = None if window is None else self._admit(window, head.origin, head.epoch, sequence, sequence)
            payload = end + TAIL
            run = Run(outcome.topic, head.flags & 3, False, None, b"", None, core.now, (data, payload, size, size - payload))
            counters.delivered += 1
            time = int.from_bytes(data[end : end + 6], "big")
            core.actions.append(Deliver(run, head.origin, token, (), True, False, time))
        return True


def _changed(known: bytes, at: int, changes: Changes) -> bytes:
    """The bytes with other visited bits, which begin at `at`."""
    front = bytearray(known)
    for offset, value in changes:
        front[at + offset] = value
    return bytes(front)
