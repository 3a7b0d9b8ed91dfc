"""How this broker's own messages become frames on the branches of its tree.

Strategy. What messages of one kind have in common is built once and kept (`Template`); a run becomes frames in a row, and those for another
branch are a copy with other visited bits. So each message costs its own bytes, whatever the number of branches. Where the neighbour knows
blocks, a run is one frame around the packets as they came (`wire/block.py`), and a message costs next to nothing.

It does not decide who is sent what: the share comes with the call, and custody is not known here.
"""

from __future__ import annotations

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.parts import PartsBatch
from ...mqtt.batch.run import Run
from ..wire.batch import PLAIN_REST, encode_span
from ..wire.block import block_of
from ..wire.envelope import EASY_PAYLOAD, VERSION, Flag, Picks, Template, encode_head, encode_rest, split_properties
from ..wire.rename import renamed, renamed_parts
from ..wire.visited import bits_for, changes, patch, width_for
from .actions import Send
from .core import Core, LinkEnd, Passage
from .own_tree import OwnTree

TEMPLATES = 4096  # kept
LONGEST_KEPT = 1024  # bytes of topic and properties, which clients choose, beyond which nothing is kept


class Framer:
    """Frames of this broker's own messages."""

    def __init__(self, core: Core, tree: OwnTree) -> None:
        self._core = core
        self._tree = tree
        self._templates: dict[tuple[object, ...], Template] = {}
        self._fronts: dict[tuple[bytes, int, int, int], list[tuple[LinkEnd, bytes]]] = {}  # (topic, QoS, share, length of the payload)
        self._generation = 0  # of what these rest on

    def stale(self) -> None:
        """Another tree: what was built for the last one is of no use."""
        self._templates.clear()

    def send(
        self,
        run: Batch,
        start: int,
        share: int,
        epoch: int,
        first: int,
        time: int,
        picks: Picks,
        flags: int,
        expiry: int | None,
        *,
        droppable: bool,
        mark: bytes = b"",
    ) -> None:
        """Frames for a share from message `start` on, for each branch of the tree: the first are built, the others are copies."""
        core = self._core
        if not isinstance(run, Run):
            self._send_parts(run.parts(), start, share, epoch, first, time, flags, droppable)
            return
        width = self._tree.width(share)
        stamp = time.to_bytes(6, "big")
        count = run.count - start
        whole: _Copies | None = None
        single: _Copies | None = None
        looked = bool(mark)  # for a block
        passage: Passage | None = None
        if core.tap is not None and core.tap.wants(run.topic):
            passage = Passage(core.number, epoch, run.qos > 0, first, count, time, run.topic, run.length)
        for link, mask in self._tree.branches:
            part = share & mask
            if not part:
                continue
            end = core.links[link]
            if droppable and end.full:
                core.counters.dropped_full += count
                end.dropped += count
                continue
            if end.blocks and not looked:
                looked = True
                block = block_of(run, start)
                if block is not None:
                    version, packets = block
                    template = self._template(run, flags, epoch, width, picks, expiry, version=version, length=len(packets))
                    whole = _Copies(template, stamp, first, [packets])
            if end.blocks and whole is not None:
                data = whole.with_bits(bits_for(part, width))
            else:
                if single is None:
                    template = self._template(run, flags, epoch, width, picks, expiry, mark=mark)
                    single = _Copies(template, stamp, first, run.payloads[start:] if start else run.payloads)
                data = single.with_bits(bits_for(part, width))
            if end.gate is not None:
                assert single is not None
                left = renamed(data, single.size, run.topic, end.gate.outwards(run.topic))
                if left is None:
                    self._not_out(count, droppable)
                    continue
                data = left.block
            end.sent += count
            core.actions.append(Send(link, data, False))
            if passage is not None and core.tap is not None:
                core.tap.forwarded(passage, end.peer.number)

    def fronts(self, topic: bytes, qos: int, share: int, length: int) -> list[tuple[LinkEnd, bytes]] | None:
        """For single messages: each link that leads to a broker of the share, and the frame up to its visited bits.

        length: of the payload. None: some broker is not reached, or a link does not take it as it is.
        """
        core = self._core
        if self._generation != core.generation:
            self._fronts.clear()
            self._generation = core.generation
        known = self._fronts.get((topic, qos, share, length))
        if known is None:
            known = self._new_fronts(topic, qos, share, length)
            if len(topic) <= LONGEST_KEPT:
                if len(self._fronts) >= TEMPLATES:
                    self._fronts.clear()
                self._fronts[topic, qos, share, length] = known
        for end, _ in known:
            if end.full:
                return None
        return known or None

    def _new_fronts(self, topic: bytes, qos: int, share: int, length: int) -> list[tuple[LinkEnd, bytes]]:
        core, tree = self._core, self._tree
        ends = [(core.links[link], share & mask) for link, mask in tree.branches if share & mask]
        if share & ~tree.reach or length > EASY_PAYLOAD or any(end.gate is not None for end, _ in ends):
            return []
        width = self._tree.width(share)
        head = encode_head(qos, core.number, core.identity.epoch, tree.number, width)
        template = Template(topic, head, width, PLAIN_REST, b"", length)
        return [(end, template.front(bits_for(part, width))) for end, part in ends]

    def _send_parts(self, run: PartsBatch, start: int, share: int, epoch: int, first: int, time: int, flags: int, droppable: bool) -> None:
        """The same for messages of different topics and sizes: for each branch one join, with its own bits between the parts."""
        core = self._core
        width = self._tree.width(share)
        head = encode_head(flags | run.qos, core.number, epoch, self._tree.number, width)
        stamp = time.to_bytes(6, "big")
        count = run.count - start
        flat: list[bytes] | None = None
        passage: Passage | None = None
        if core.tap is not None and core.tap.wants(run.names[start][2:]):
            sizes = list(map(len, run.payloads[start:]))
            passage = Passage(core.number, epoch, run.qos > 0, first, count, time, b"", sizes, run.names[start:])
        for link, mask in self._tree.branches:
            part = share & mask
            if not part:
                continue
            end = core.links[link]
            if droppable and end.full:
                core.counters.dropped_full += count
                end.dropped += count
                continue
            if end.gate is not None:
                other = renamed_parts(run, end.gate)
                if other is None:
                    self._not_out(count, droppable)
                    continue
                core.actions.append(Send(link, b"".join(encode_span(other, start, head, bits_for(part, width), stamp, first)), False))
                end.sent += count
                if passage is not None and core.tap is not None:
                    core.tap.forwarded(passage, end.peer.number)
                continue
            flat = encode_span(run, start, head, bits_for(part, width), stamp, first, flat)
            end.sent += count
            core.actions.append(Send(link, b"".join(flat), False))
            if passage is not None and core.tap is not None:
                core.tap.forwarded(passage, end.peer.number)

    def _not_out(self, count: int, droppable: bool) -> None:
        """The own link's policy forbids it, though the tree's did not: custody needs a new tree, so that there is no hole."""
        self._core.counters.dropped_policy += count
        if not droppable:
            self._tree.holed()

    def flood(self, run: Batch, picks: Picks, first: int, mark: bytes) -> int:
        """QoS 0 to every neighbour, marked as visited by this broker and all neighbours that are served now; how many those are."""
        core = self._core
        links = [end for end in core.links.values() if end.gate is None]
        targets = [end for end in links if not end.full]
        core.counters.dropped_full += run.count * (len(links) - len(targets))
        if not targets:
            return 0
        core.counters.published += run.count
        time = core.wall_ms()
        if core.tap is not None:
            core.tap.taken(run, False, core.identity.epoch, first, time, sum(1 << end.peer.number for end in targets))
        visited = 1 << core.number
        for end in targets:
            visited |= 1 << end.peer.number
        width = width_for(visited)
        template = self._template(run, Flag.FLOOD, core.identity.epoch, width, picks, run.expiry, tree=0, mark=mark)
        block = template.block(visited.to_bytes(width, "little"), time.to_bytes(6, "big"), first, run.payloads)
        passage = None
        if core.tap is not None and core.tap.wants(run.topic):
            passage = Passage(core.number, core.identity.epoch, False, first, run.count, time, run.topic, run.length)
        for end in targets:
            end.sent += run.count
            core.actions.append(Send(end.id, block, False))
            if passage is not None and core.tap is not None:
                core.tap.forwarded(passage, end.peer.number)
        return len(targets)

    def _template(
        self,
        run: Batch,
        flags: int,
        epoch: int,
        width: int,
        picks: Picks,
        expiry: int | None,
        tree: int | None = None,
        mark: bytes = b"",
        version: int = VERSION,
        length: int = 0,
    ) -> Template:
        """version, length: of a block's envelope, and bytes of its packets."""
        length = length or run.length
        key = (run.topic, run.qos, run.retain, length, run.properties, expiry, flags, epoch, width, picks, tree, version)
        template = None if mark else self._templates.get(key)  # a mark is never used again
        if template is None:
            correlation, others = split_properties(run.properties)
            flags |= run.qos | (Flag.RETAIN if run.retain else 0)
            flags |= (Flag.CORRELATION if correlation is not None else 0) | (Flag.EXPIRY if expiry is not None else 0)
            head = encode_head(flags, self._core.number, epoch, self._tree.number if tree is None else tree, width, version)
            middle = encode_rest(expiry, picks, correlation, mark if run.retain else None)
            template = Template(run.topic, head, width, middle, others, length)
            if not mark and len(run.topic) + len(run.properties) <= LONGEST_KEPT:
                if len(self._templates) >= TEMPLATES:
                    self._templates.clear()
                self._templates[key] = template
        return template


class _Copies:
    """Frames in a row with the visited bits of each branch: the first are built, the others are copies with other bits.

    size: of a frame.
    """

    __slots__ = ("_bits", "_built", "_first", "_payloads", "_stamp", "_template", "size")

    def __init__(self, template: Template, stamp: bytes, first: int, payloads: list[bytes]) -> None:
        """stamp: publish time, 6 bytes. first: sequence of the first frame."""
        self._template = template
        self._stamp = stamp
        self._first = first
        self._payloads = payloads
        self._built: bytes | bytearray | None = None
        self._bits = b""
        self.size = template.size

    def with_bits(self, bits: bytes) -> bytes | bytearray:
        """The frames for a branch."""
        if self._built is None:
            self._built, self._bits = self._template.block(bits, self._stamp, self._first, self._payloads), bits
            return self._built
        data = bytearray(self._built)
        patch(data, self._template.bits_offset, self.size, len(self._payloads), changes(self._bits, bits))
        return data
