"""Flooding: the disclosure's rule in its literal form, for QoS 0.

Before a broker passes a message to a neighbour it looks at the neighbour's visited bit and skips it if it is set; it sets
its own bit, and the bits of all neighbours that it serves in the same step. Bits suppress loops, not copies over parallel
paths: a sliding window lets each (origin, epoch, sequence) in once.

Invariants
- a copy's visited bits only grow, so that no frame circles;
- frames keep their bytes but for the bits, in a wider field where a neighbour needs one;
- nothing is flooded over a link with a policy: what is marked as served depends on no topic.

It does not know trees, custody or interest.
"""

from __future__ import annotations

from collections.abc import Callable

from ..custody.windows import SlidingWindow
from ..wire.envelope import Head, Template, encode_head, publish_time
from ..wire.visited import Changes, changes, mask_of, patch, width_for
from .actions import Send
from .core import Core, LinkEnd, Passage, Stream

Deliver = Callable[[Stream, bytes, bytes, bytes, bytes, int, int, int, int | None, int], None]


class Flood:
    """For a flooded stream. bits: with this broker and all that it sends to marked. widened: they need a wider field."""

    __slots__ = ("bits", "links", "patches", "widened", "window")

    def __init__(self, window: SlidingWindow | None, links: list[LinkEnd], old: bytes, bits: bytes) -> None:
        self.window = window
        self.links = links
        self.bits = bits
        self.widened = len(bits) != len(old)
        self.patches: Changes = () if self.widened else changes(old, bits)


class Flooder:
    """This broker's part in flooding."""

    def __init__(self, core: Core, deliver: Deliver) -> None:
        """deliver: hands a run to the shell, as `Relay` does."""
        self._core = core
        self._deliver = deliver
        self._windows: dict[int, tuple[int, SlidingWindow]] = {}  # origin -> (epoch, window)

    def decide(self, link: LinkEnd, head: Head, bits: bytes) -> Flood:
        """What happens to a flooded stream of this link, until links change."""
        core = self._core
        visited = int.from_bytes(bits, "little")
        window = None
        if head.origin != core.number:
            known = self._windows.get(head.origin)
            if known is None or known[0] < head.epoch:
                known = self._windows[head.origin] = (head.epoch, SlidingWindow())
            if known[0] == head.epoch:
                window = known[1]
        targets = [end for end in core.links.values() if end is not link and end.gate is None and not visited >> end.peer.number & 1]
        visited |= 1 << core.number | mask_of([end.peer.number for end in targets])
        return Flood(window, targets, bits, visited.to_bytes(max(head.width, width_for(visited)), "little"))

    def take(
        self,
        stream: Stream,
        flood: Flood,
        topic: bytes,
        rest: bytes,
        others: bytes,
        block: bytes,
        size: int,
        offsets: tuple[int, int, int],
        first: int,
        count: int,
    ) -> None:
        """The disclosure's rule: skip the visited, mark yourself and whom you serve, pass on."""
        core = self._core
        counters = core.counters
        if flood.window is None:
            counters.dropped_stale += count
            return
        parts = flood.window.take(first, first + count - 1)
        fresh = sum(b - a + 1 for a, b in parts)
        counters.duplicates += count - fresh
        for low, high in parts:
            part = block if high - low + 1 == count else block[(low - first) * size : (high - first + 1) * size]
            number = high - low + 1
            data: bytes | bytearray | None = None
            passage: Passage | None = None
            if core.tap is not None and core.tap.wants(topic):
                published = publish_time(rest)
                passage = Passage(stream.head.origin, stream.head.epoch, False, low, number, published, topic, size - offsets[2])
            for end in flood.links:
                if end.full:
                    counters.dropped_full += number
                    end.dropped += number
                    continue
                if data is None:
                    data = self._copy(flood, stream.head, topic, rest, others, part, size, offsets, low)
                end.sent += number
                counters.relayed += number
                core.actions.append(Send(end.id, data, False))
                if passage is not None and core.tap is not None:
                    core.tap.forwarded(passage, end.peer.number)
            self._deliver(stream, topic, rest, others, part, size, number, offsets[2], None, low)

    def _copy(
        self,
        flood: Flood,
        head: Head,
        topic: bytes,
        rest: bytes,
        others: bytes,
        block: bytes,
        size: int,
        offsets: tuple[int, int, int],
        first: int,
    ) -> bytes | bytearray:
        """The frames with more visited bits, in a wider field where they need one."""
        if flood.widened:
            width = len(flood.bits)
            fixed = encode_head(head.flags, head.origin, head.epoch, head.tree, width)
            template = Template(topic, fixed, width, rest[6:], others, size - offsets[2])
            payloads = [block[i + offsets[2] : i + size] for i in range(0, len(block), size)]
            return template.block(flood.bits, rest[:6], first, payloads)
        data = bytearray(block)
        patch(data, offsets[0], size, len(block) // size, flood.patches)
        return data
