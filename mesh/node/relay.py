"""The data path: takes runs of frames that come over a link, checks that they are new, delivers them and passes them on.

Strategy. `receive` walks the bytes from run to run. It finds a run by comparing the prefix of each frame: everything up to the low bytes
of the sequence. The decision for a run is made when the constants of its envelope are first seen on that link, and is looked up from
then on (`Stream`). So a run costs some microseconds, and each message in it one comparison. A copy for a child is a copy of the bytes
in which the changed visited bits are written in strides. One frame by itself takes the direct lane (direct.py).

Invariants
- a routed frame passes only if its tree and its incoming link are this relay's current ones for its origin;
- a child gets ``share AND subtree``, never more than the copy that came, so that shares only shrink and no frame circles;
- once a custody frame for a child is dropped, none follows it there in that tree (`Child.cut`): what a destination gets has no holes;
- no frame passes a link's policy (`LinkEnd.gate`), whatever its origin believes. Origins that keep to link state send no such frame; of
  one that does, nothing more passes there in that tree if it was custody.

It does not know link state, interest or what the origin holds.
"""

from __future__ import annotations

from collections.abc import Callable

from ...base.cache import LONGEST
from ...mqtt.batch.batch import Batch
from ...mqtt.batch.cutting import alike_until, part_of_each
from ...mqtt.batch.parts import PartsBatch
from ...mqtt.batch.run import Run
from ...mqtt.errors import MqttError
from ...mqtt.length import known_length
from ...mqtt.topics import check_topic, matches
from ..custody.windows import CustodyWindow, Pending
from ..retained import Applied
from ..view.trees import Record
from ..wire.batch import PLAIN_REST, Span, Spans, alike_with, has_gaps
from ..wire.block import packets_in
from ..wire.control import NO_POSITION, Dropped, Life, Receipt
from ..wire.envelope import (
    CORRELATION_DATA,
    FIXED,
    PEER_TOPICS,
    Flag,
    Share,
    Template,
    bad_frame,
    check_others,
    decode_head,
    decode_rest,
    encode_head,
    join_properties,
    low_sequences,
    peer_message_kind,
    publish_time,
)
from ..wire.rename import Renamed, renamed
from ..wire.visited import bits_for, changes, patch
from .actions import Deliver, PeerMessage, Send
from .core import Core, LinkEnd, Passage, Stream
from .flood import Flooder
from .single.frames import DirectLane

TOPICS = 200_000  # topics known to be good
BLOCKS, LONG_BLOCK = 10_000, 1024  # property blocks known to be good, and the longest kept
STREAMS = 10_000  # kept for each link
NOTHING: tuple[dict[int, list[Receipt]], dict[int, list[Dropped]]] = {}, {}


class Relay:
    """This broker as relay and destination."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.records: dict[int, Record] = {}
        self.windows: dict[tuple[int, bytes], CustodyWindow] = {}
        self.tokens: dict[int, tuple[CustodyWindow, Pending, int]] = {}  # token -> window, delivery, origin
        self._token = 0
        self.direct = DirectLane(core)
        self._flooder = Flooder(core, self._deliver)
        self._spans = Spans()
        self._topics: set[bytes] = set()
        self._good: set[bytes] = set()  # property blocks behind the envelope
        self._owed: dict[int, None] = {}  # origins that are owed a receipt
        self._due: float | None = None  # when
        self._unsaid = 0  # messages delivered since the last receipts
        self._up: dict[tuple[int, int, int], Receipt] = {}  # (link, origin, destination) -> the newest
        self._dropped: list[tuple[int, Dropped]] = []  # (link, what)
        self.keep: Callable[[Batch, bytes, int], tuple[Applied, bytes]] | None = None  # a run, its mark, origin -> what to do, its key
        self.after_kept: Callable[[], None] = lambda: None  # the delivery of what was kept has been handed over

    # ---- frames

    def receive(self, link: LinkEnd, data: bytes, position: int, end: int) -> int:
        """Handle one run of data frames that begins at `position`; returns where it ends.

        Raises `PeerError` for what is no frame of ours, IndexError when a length points outside of the data. Hot: one call for a run.
        """
        remaining, at = data[position + 1], position + 2
        if remaining > 127:
            remaining, at = known_length(data, position + 1)
        size = at + remaining - position
        if position + size > end:
            raise bad_frame("it is cut off")
        topic_end = at + 2 + (data[at] << 8 | data[at + 1])
        envelope = topic_end + 1
        properties = data[topic_end]
        if properties > 127:
            properties, envelope = known_length(data, topic_end)
        payload = envelope + properties
        if not properties or data[envelope] != CORRELATION_DATA:
            raise bad_frame("its first property is not Correlation Data")
        envelope += 3
        rest_end = envelope + (data[envelope - 2] << 8 | data[envelope - 1]) - 8
        bits_end = envelope + FIXED + (data[envelope + 18] << 8 | data[envelope + 19])
        if bits_end + 8 > rest_end or rest_end + 8 > payload or payload > position + size:
            raise bad_frame("its lengths do not agree")
        constants = data[envelope:bits_end]
        stream = link.streams.get(constants) or self._decide(link, constants)
        topic = data[at + 2 : topic_end]
        if topic not in self._topics:
            self._check_topic(topic)
        others = data[rest_end + 8 : payload]
        if others and others not in self._good:
            self._check_others(others)
        if stream.head.version:
            places = (bits_end - position, rest_end - position, payload - position)
            self._take_block(link, stream, topic, others, data[position : position + size], places)
            return position + size
        self._core.stirred = True
        # How many frames follow that differ in the low bytes of the sequence and the payload only?
        sequence_at = rest_end + 6
        prefix = data[position:sequence_at]
        if others:
            following = alike_with(data, prefix, others, position, size, end, rest_end + 8 - position)
        else:
            following = alike_until(data, prefix, position, size, end)
        count, rest = (following - position) // size, data[bits_end:rest_end]
        if count == 1 and following < end and stream.spans and stream.record is not None and not others and rest[6:] == PLAIN_REST:
            span = self._spans.find(data, at, topic_end, sequence_at, position + size - payload, end)
            if span is not None and self._take_span(link, stream, rest, data, position, topic_end, bits_end, sequence_at, span):
                return span.stop
        if not stream.ordinary or (rest != stream.rest and not (stream.spans and rest[6:] == PLAIN_REST)):
            stream.read_rest(topic, rest)
        link.received += count
        tap = self._core.tap
        alone = size == len(data) and stream.spans and stream.record is not None and not others and rest[6:] == PLAIN_REST
        if alone and (tap is None or not tap.wants(topic)):
            self.direct.remember(link, stream, data, topic_end, bits_end)
        first = int.from_bytes(data[rest_end : rest_end + 8], "big")
        offsets = (bits_end - position - stream.head.width, sequence_at - position, payload - position)
        block = data[position:following] if count * size != len(data) else data
        if link.gate is not None:
            entered = self._enter(link, stream, topic, block, size, count)
            if entered is None:
                return following
            topic, size, block = entered.topic, entered.size, bytes(entered.block)
            offsets = (offsets[0] + entered.shift, offsets[1] + entered.shift, offsets[2] + entered.shift)
        if count > 1 and has_gaps(block, size, count, offsets[1], first & 0xFFFF):
            self._parts(stream, topic, rest, others, block, size, offsets, first)
        else:
            self._run(stream, topic, rest, others, block, size, count, offsets, first)
        return following

    def _enter(self, link: LinkEnd, stream: Stream, topic: bytes, block: bytes, size: int, count: int) -> Renamed | None:
        """Frames of one topic come in over a link with a policy: as they are called here. None: they must not."""
        assert link.gate is not None
        entered = None if stream.head.flags & Flag.FLOOD else renamed(block, size, topic, link.gate.inwards(topic))
        if entered is None:
            self._core.counters.dropped_policy += count
            if stream.record is not None and stream.custody:
                stream.record.lose(link.id)  # what follows would hide the hole
                self._core.stale()
        return entered

    def _parts(
        self, stream: Stream, topic: bytes, rest: bytes, others: bytes, block: bytes, size: int, offsets: tuple[int, int, int], first: int
    ) -> None:
        """Frames of one prefix whose sequences have gaps: each stretch without one is a run."""
        lows = low_sequences(block, offsets[1], size)
        base = first - lows[0]
        begin = 0
        for i in range(1, len(lows) + 1):
            if i == len(lows) or lows[i] != lows[i - 1] + 1:
                part = block[begin * size : i * size]
                self._run(stream, topic, rest, others, part, size, i - begin, offsets, base + lows[begin])
                begin = i

    def _run(
        self,
        stream: Stream,
        topic: bytes,
        rest: bytes,
        others: bytes,
        block: bytes,
        size: int,
        count: int,
        offsets: tuple[int, int, int],
        first: int,
    ) -> None:
        """One run with consecutive sequences from `first` on. offsets: of bits, low sequence bytes and payload in a frame."""
        core = self._core
        counters = core.counters
        head = stream.head
        record = stream.record
        if record is None:
            if stream.flood is not None:
                self._flooder.take(stream, stream.flood, topic, rest, others, block, size, offsets, first, count)
            else:
                counters.dropped_stale += count
            return
        epoch = head.epoch
        last = first + count - 1
        if not stream.custody:
            if (epoch, first) <= record.last:
                counters.duplicates += count
                return
            record.last = (epoch, last)
        if stream.forwards:
            passage: Passage | None = None
            if core.tap is not None and core.tap.wants(topic):
                published = publish_time(rest)
                passage = Passage(head.origin, epoch, stream.custody, first, count, published, topic, size - offsets[2])
            self._pass_on(stream, topic, block, size, count, offsets[0], passage)
        if not stream.deliver:
            return
        token = None
        window = stream.window
        if window is not None:
            seen = window.seen
            if (epoch, first) <= seen:
                known = count if (epoch, last) <= seen else seen[1] - first + 1
                counters.duplicates += known
                self.owe(head.origin)
                if known == count:
                    return
                block = block[known * size :]
                first += known
                count -= known
            token = self.admit(window, head.origin, epoch, first, last)
        self._deliver(stream, topic, rest, others, block, size, count, offsets[2], token, first)

    def _take_block(self, link: LinkEnd, stream: Stream, topic: bytes, others: bytes, frame: bytes, places: tuple[int, int, int]) -> None:
        """Messages under one envelope. places: in the frame, where the bits end, the first message's sequence, and the packets.

        Where they cannot be taken and passed on as they are, they are taken as frames of their own.
        """
        core, head, record, window = self._core, stream.head, stream.record, stream.window
        bits_end, sequence, payload = places
        rest, first = frame[bits_end:sequence], int.from_bytes(frame[sequence : sequence + 8], "big")
        stream.read_rest(topic, rest)
        assert stream.parsed is not None, "it is read"
        block, bits = frame[payload:], bits_end - head.width
        name = len(topic).to_bytes(2, "big") + topic
        properties = join_properties(stream.parsed.correlation, others)
        size, begin = packets_in(block, head.version, head.flags & 3, name, properties, not core.config.one_broker)
        count = len(block) // size
        position, last = (head.epoch, first), first + count - 1
        known = record is None or position <= (record.last if not stream.custody else NO_POSITION if window is None else window.seen)
        if known or not stream.whole:
            constants = encode_head(head.flags, head.origin, head.epoch, head.tree, head.width)
            template = Template(topic, constants, head.width, rest[6:], others, size - begin)
            frames = bytes(template.block(frame[bits:bits_end], rest[:6], first, part_of_each(block, begin, size - begin, size)))
            at = 0
            while at < len(frames):
                at = self.receive(link, frames, at, len(frames))
            return
        assert record is not None, "else it is known"
        link.received += count
        if not stream.custody:
            record.last = (head.epoch, last)
        if stream.forwards:
            passage: Passage | None = None
            if core.tap is not None and core.tap.wants(topic):
                passage = Passage(head.origin, head.epoch, stream.custody, first, count, stream.parsed.time, topic, size - begin)
            self._pass_on(stream, topic, frame, len(frame), count, bits, passage)
        if stream.deliver:
            token = None if window is None else self.admit(window, head.origin, head.epoch, first, last)
            self._deliver(stream, topic, rest, others, block, size, count, begin, token, first, head.version)

    def _pass_on(self, stream: Stream, topic: bytes, block: bytes, size: int, count: int, bits: int, passage: Passage | None) -> None:
        """A run to the children that have part in its share.

        bits: where the visited bits stand in a frame. passage: what is written down of it.
        """
        core = self._core
        counters = core.counters
        frames = len(block) // size
        for end, child, what in stream.forwards:
            if stream.custody:
                if child.cut or end.full:
                    child.cut = True
                    counters.cut += count
                    end.dropped += count
                    continue
            elif end.full:
                counters.dropped_full += count
                end.dropped += count
                continue
            data: bytes | bytearray = block
            if what:
                data = bytearray(block)
                patch(data, bits, size, frames, what)
            if end.gate is not None:
                left = renamed(data, size, topic, end.gate.outwards(topic))
                if left is None:
                    counters.dropped_policy += count
                    child.cut = child.cut or stream.custody
                    continue
                data = left.block
            end.sent += count
            counters.relayed += count
            core.actions.append(Send(end.id, data, False))
            if passage is not None and core.tap is not None:
                core.tap.forwarded(passage, end.peer.number)

    def _take_span(
        self,
        link: LinkEnd,
        stream: Stream,
        rest: bytes,
        data: bytes,
        position: int,
        seam_at: int,
        bits_end: int,
        low_at: int,
        span: Span,
    ) -> bool:
        """Frames of different topics and sizes, from `position` on. False: frame by frame, they are stale or were here in part."""
        core = self._core
        counters = core.counters
        record, window = stream.record, stream.window
        head = stream.head
        first = (head.epoch, span.first)
        if record is None or (window is not None and first <= window.seen) or (not stream.custody and first <= record.last):
            return False
        count = len(span.names)
        link.received += count
        if not stream.custody:
            record.last = (head.epoch, span.last)
        passage: Passage | None = None
        published = publish_time(rest)
        if core.tap is not None and stream.forwards and core.tap.wants(span.names[0][2:]):
            sizes = list(map(len, span.payloads))
            passage = Passage(head.origin, head.epoch, stream.custody, span.first, count, published, b"", sizes, span.names)
        for end, child, what in stream.forwards:
            if stream.custody:
                if child.cut or end.full:
                    child.cut = True
                    counters.cut += count
                    end.dropped += count
                    continue
            elif end.full:
                counters.dropped_full += count
                end.dropped += count
                continue
            if what:
                seam = bytearray(data[seam_at:low_at])
                patch(seam, bits_end - head.width - seam_at, len(seam), 1, what)
                block = b"".join((data[position:seam_at], seam, seam.join(span.pieces)))
            else:
                block = data[position : span.stop]
            end.sent += count
            counters.relayed += count
            core.actions.append(Send(end.id, block, False))
            if passage is not None and core.tap is not None:
                core.tap.forwarded(passage, end.peer.number)
        if stream.deliver:
            token = None
            if window is not None:
                token = self.admit(window, head.origin, head.epoch, span.first, span.last)
            run = PartsBatch(span.names, span.payloads, head.flags & 3, core.now)
            counters.delivered += count
            if core.tap is not None:
                core.tap.came(run, head.origin, head.epoch, stream.custody, span.first, published, stream.peer)
            core.actions.append(Deliver(run, head.origin, token, (), True, False, published))
        return True

    def _deliver(
        self,
        stream: Stream,
        topic: bytes,
        rest: bytes,
        others: bytes,
        block: bytes,
        size: int,
        count: int,
        payload: int,
        token: int | None,
        first: int,
        version: int = 0,
    ) -> None:
        """Hand a run to the shell. first: its first sequence. version: of MQTT, of which its frames are packets; 0: they are not."""
        core = self._core
        head = stream.head
        if rest == stream.rest and stream.parsed is not None:
            time, expiry, chosen, correlation, mark = stream.parsed
        else:
            stream.rest, stream.parsed = rest, decode_rest(head.flags, rest)
            time, expiry, chosen, correlation, mark = stream.parsed
        if correlation is not None:
            others = join_properties(correlation, others)
        flags = head.flags
        run = Run(
            topic, flags & 3, flags & Flag.RETAIN != 0, None, others, expiry, core.now, (block, payload, size, size - payload), version
        )
        core.counters.delivered += count
        if not stream.ordinary and not chosen:
            self._take_peer_message(head.origin, topic, run, token)
            return
        if core.tap is not None:
            core.tap.came(run, head.origin, head.epoch, stream.custody, first, time, stream.peer)
        picks: tuple[Share, ...] = ()
        if chosen:
            number = core.number
            picks = tuple([share for share, broker in chosen if broker == number])
            if picks and not all(matches(filter_, topic.decode()) for _, filter_ in picks):
                picks = self._fitting(picks, topic.decode(), token)
        if not mark or self.keep is None or not stream.ordinary:
            core.actions.append(Deliver(run, head.origin, token, picks, stream.ordinary, stream.repeated, time))
            return
        (stored, ordinary), key = self.keep(run, mark, head.origin)
        core.actions.append(Deliver(run, head.origin, token, picks, ordinary, stream.repeated, time, stored, key))
        self.after_kept()

    def _take_peer_message(self, origin: int, topic: bytes, run: Batch, token: int | None) -> None:
        """Hand over what another broker sent to this broker, each message by itself. The last one carries the token of all."""
        kind = peer_message_kind(topic)
        assert kind is not None, "checked when it came"
        bodies = run.payloads
        if token is not None and self.tokens[token][0].early:
            window, pending, _ = self.tokens[token]
            bodies = [body for at, body in enumerate(bodies, pending.first) if not window.came_early(pending.epoch, at)]
        actions = [PeerMessage(kind, body, origin, None, run.expiry) for body in bodies]
        if not actions:  # only its token is left to handle
            actions.append(PeerMessage("", b"", origin, None))
        actions[-1] = actions[-1]._replace(token=token)
        self._core.actions += actions

    def _fitting(self, picks: tuple[Share, ...], topic: str, token: int | None) -> tuple[Share, ...]:
        """The picks that match; the others, made when policies gave the topic another name, are refused."""
        if token is not None:
            self.tokens[token][1].refusals += [share for share in picks if not matches(share[1], topic)]
        return tuple([share for share in picks if matches(share[1], topic)])

    def _check_topic(self, topic: bytes) -> None:
        if topic.startswith(b"$") and not topic.startswith(PEER_TOPICS):
            raise bad_frame(f"the topic {topic[:80]!r} does not leave a broker")
        try:
            check_topic(topic)
        except MqttError as error:
            raise bad_frame(str(error)) from None
        if len(topic) <= LONGEST:
            if len(self._topics) >= TOPICS:
                self._topics.clear()
            self._topics.add(topic)

    def _check_others(self, others: bytes) -> None:
        check_others(others)
        if len(self._good) >= BLOCKS:
            self._good.clear()
        if len(others) <= LONG_BLOCK:
            self._good.add(others)

    def _decide(self, link: LinkEnd, constants: bytes) -> Stream:
        """What happens to frames with these envelope constants, until anything changes that it rests on."""
        head = decode_head(constants)
        stream = Stream(head, link.peer.number)
        if len(link.streams) >= STREAMS:
            link.streams.clear()
        link.streams[constants] = stream
        if head.flags & Flag.FLOOD:
            stream.flood = self._flooder.decide(link, head, constants[FIXED:])
            return stream
        record = self.records.get(head.origin)
        if record is None or record.tree != head.tree or record.upstream != link.id:
            return stream
        stream.record = record
        bits = constants[FIXED:]
        for child in record.children.values():
            share = head.share & child.mask
            if share:
                stream.forwards.append((self._core.links[child.link], child, changes(bits, bits_for(share, head.width))))
        if link.gate is not None or any(end.gate is not None for end, _, _ in stream.forwards):
            stream.spans = False  # each topic has a way of its own
        stream.whole = link.gate is None and all(end.blocks for end, _, _ in stream.forwards)
        stream.deliver = bool(head.share >> self._core.number & 1)
        if stream.deliver and stream.custody:
            stream.window = self.window(head.origin, record.uuid)
        return stream

    def window(self, origin: int, uuid: bytes) -> CustodyWindow:
        """The once-only window for one broker's messages."""
        window = self.windows.get((origin, uuid))
        if window is None:
            window = self.windows[origin, uuid] = CustodyWindow(owner=(origin, uuid))
        return window

    def resume(self, origin: int, uuid: bytes, life: Life | None) -> None:
        """A life of an origin sends from now on. Where its data folder was copied, another one may have sent before."""
        if life is None:
            return
        window = self.windows.get((origin, uuid))
        if window is not None:
            window.resume(life.past)
        elif life.former is not None and (former := self.windows.get(life.former)) is not None:
            self.windows[origin, uuid] = former.branch((origin, uuid), life.past)

    # ---- commits

    def admit(self, window: CustodyWindow, origin: int, epoch: int, first: int, last: int) -> int:
        """Let custody messages in, once and for all: the token of their delivery."""
        self._token = token = self._token + 1
        self.tokens[token] = (window, window.take(epoch, first, last), origin)
        return token

    def new_token(self) -> int:
        """A token that was never used."""
        self._token += 1
        return self._token

    def handed(self, token: int, early: bool = False) -> None:
        """The shell has carried out a delivery, perhaps before its turn; the window belongs into its batch."""
        window, pending, _ = self.tokens[token]
        (window.hand_over_early if early else window.hand_over)(pending)
        journal = self._core.journal
        if pending.heir is not None and not early:
            heir, same = pending.heir
            heir.hand_over(same)
            if journal is not None:
                journal.window(heir.owner, heir)
        if journal is not None:
            journal.window(window.owner, window)
            journal.urgent = journal.urgent or bool(pending.refusals)
        self._count(pending.last - pending.first + 1)

    def delivered(self, token: int) -> None:
        """The shell has committed a delivery; the receipt may go. Where it goes with others later, nothing else is due."""
        due = self._due if self._owed else None
        window, pending, origin = self.tokens.pop(token)
        if self._core.journal is None:
            self._count(pending.last - pending.first + 1)
        if pending.refusals or self.hurried:
            self.hurry()
        if window.commit(pending):
            self._owed[origin] = None
        if pending.heir is not None and pending.heir[0].commit(pending.heir[1]):
            self._owed[pending.heir[0].owner[0]] = None
        if not self._owed or self._due is None or self._due != due:
            self._core.stirred = True

    def delivered_one(self, window: CustodyWindow, origin: int, epoch: int, sequence: int) -> None:
        """`admit` and `delivered` for one message, where there is no store."""
        if window.pending or epoch != window.committed[0]:
            self.delivered(self.admit(window, origin, epoch, sequence, sequence))
            return
        window.seen = window.committed = (epoch, sequence)
        due = self._due if self._owed else None
        self._owed[origin] = None
        self._count(1)
        if self.hurried:
            self.hurry()
        if self._due != due:
            self._core.stirred = True

    def _count(self, messages: int) -> None:
        """A delivery is carried out: its receipt is due when `receipt_delay` is over, or later with its commit."""
        self._unsaid += messages
        if self._due is None:
            self._due = self._core.now + self._core.config.receipt_delay

    @property
    def hurried(self) -> bool:
        """Whether so much is delivered that no receipt should wait."""
        return self._unsaid >= self._core.config.credit_messages // 8

    def owe(self, origin: int) -> None:
        """Say to this origin how far this broker is (JOIN)."""
        self._owed[origin] = None
        self.hurry()

    def hurry(self) -> None:
        """What is owed goes with the next flush."""
        self._due = self._core.now

    @property
    def due(self) -> float | None:
        """When the receipts that are owed go, None without any."""
        return self._due if self._owed else None

    # ---- receipts and drops, upwards

    def receipt(self, link: int, receipt: Receipt) -> None:
        """A receipt from a child: keep the newest for the next flush if it belongs to the current tree."""
        up = self._from_child(link, receipt.origin, receipt.tree, 1 << receipt.destination)
        if up is None:
            return
        key = (up, receipt.origin, receipt.destination)
        old = self._up.get(key)
        if old is not None and old.tree == receipt.tree and old.refusals:
            kept = tuple(r for r in old.refusals if r not in receipt.refusals)
            receipt = receipt._replace(refusals=kept + receipt.refusals)
        self._up[key] = receipt

    def upstream(self, link: int, receipt: Receipt) -> int | None:
        """The link that a receipt from a child may be passed on to at once; None: it is stale, or an earlier one has not been passed on."""
        up = self._from_child(link, receipt.origin, receipt.tree, 1 << receipt.destination)
        return up if up in self._core.links and (up, receipt.origin, receipt.destination) not in self._up else None

    def dropped(self, link: int, dropped: Dropped) -> None:
        """A relay below says that it dropped."""
        up = self._from_child(link, dropped.origin, dropped.tree, 0)
        if up is not None:
            self._dropped.append((up, dropped))

    def _from_child(self, link: int, origin: int, tree: int, brokers: int) -> int | None:
        """The upstream link for what a child says in the current tree about brokers behind it; None if it is stale."""
        record = self.records.get(origin)
        if record is None or record.tree != tree:
            return None
        child = record.children.get(link)
        if child is None or brokers & ~child.mask:
            return None
        return record.upstream

    def has_space(self, link: int) -> None:
        """A link that was full has space: origins whose frames were dropped there may open a new tree."""
        for record in self.records.values():
            child = record.children.get(link)
            if child is not None and child.cut and record.upstream is not None:
                self._dropped.append((record.upstream, Dropped(record.origin, record.tree, child.mask)))

    def lose(self, link: int) -> None:
        """A link is gone."""
        for record in self.records.values():
            record.lose(link)

    def _receipts_due(self) -> list[int]:
        """The origins that get a receipt now.

        A receipt waits for `receipt_delay`, so that one serves many small runs; no loss waits for it.
        """
        now = self._core.now
        if self._due is None:
            self._due = now + self._core.config.receipt_delay
        if now < self._due:
            return []
        owed = list(self._owed)
        self._owed.clear()
        self._due = None
        self._unsaid = 0
        return owed

    def said(self, origin: int, record: Record) -> Receipt:
        """The receipt that says how far this broker is with an origin now: it is not owed any more."""
        self._owed.pop(origin, None)
        if not self._owed:
            self._due, self._unsaid = None, 0
        return self._receipt(origin, record)

    def _receipt(self, origin: int, record: Record) -> Receipt:
        core = self._core
        config, window = core.config, self.window(origin, record.uuid)
        return Receipt(
            origin,
            record.tree,
            core.number,
            core.identity.epoch,
            core.born,
            window.committed,
            window.seen,
            config.credit_messages,
            config.credit_bytes,
            tuple(window.refusals),
        )

    def flush(self) -> tuple[dict[int, list[Receipt]], dict[int, list[Dropped]]]:
        """The receipts and drops that go up now, by link."""
        due = self._receipts_due() if self._owed else ()
        if not (due or self._up or self._dropped):
            return NOTHING
        core = self._core
        for origin in due:
            record = self.records.get(origin)
            if record is None or record.upstream is None:
                continue
            self._up[record.upstream, origin, core.number] = self._receipt(origin, record)
        receipts: dict[int, list[Receipt]] = {}
        for (link, _, _), receipt in self._up.items():
            if link in core.links:
                receipts.setdefault(link, []).append(receipt)
        self._up.clear()
        drops: dict[int, list[Dropped]] = {}
        for link, dropped in self._dropped:
            if link in core.links:
                drops.setdefault(link, []).append(dropped)
        self._dropped.clear()
        return receipts, drops
