"""The store of queues: all queues of a broker in one log, one commit for whatever they have to write.

    gather    what is new in all queues becomes a batch: blocks get positions, moves and blocks get bytes      in the loop
    write     the batch goes to the disk: one write, one fdatasync                                             in any thread
    applied   its blocks may be taken                                                                          in the loop
    failed    its blocks are refused; its moves wait for the next batch                                        in the loop

At most one batch is between `gather` and `applied` or `failed`.

Dead letters enter the queue that takes them in the batch that says why they are dead: both are on the disk, or neither.

What it does not know: who waits for a commit, threads, clocks. Times are milliseconds since 1970.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from ..core.blocks import NOBODY, Block, Place
from ..core.queue import Queue
from ..core.replay import replay, replay_carried, replay_subscriber
from ..core.rules import Rules
from ..core.stock import Dead, Move
from . import segments
from .batch import Batch
from .bodies import Bodies
from .carry import CARRY_BYTES, Carry, End
from .claims import Claims
from .dead import bury
from .format import (
    FRAME,
    Claim,
    Moves,
    Name,
    Next,
    Put,
    Record,
    Subscribed,
    claim_record,
    frame,
    moves_record,
    name_record,
    put_record,
    subscriber_record,
)
from .history import moves_of, read_history
from .locations import LOG, segments_in
from .naming import Naming
from .needed import blocks_in, count_needed
from .port import Away, Segments
from .reading import Reader
from .segments import HEADER, Frame, Said, Segment

if TYPE_CHECKING:
    from ..moving.copying import Chunk

SEGMENT_BYTES = 32 << 20
MOST_QUEUES = 65_535
LOOKS = 3  # at the history of a message, while segments go
MOST_BURIED = 1024  # dead letters with one commit
SHARE = 4  # a segment is worth carrying if it is so many times what is needed of it


class LogStore:
    """See the module. folder: of the log. durability: "fsync" or "os". say: is told of damage, one line each. kind: of the store.

    queues: by name. bodies: payloads, in memory or not. full: why nothing can be put, None: it can. parcels: those that the log brought
    when it was opened. carry: what is on its way from the oldest segment to the end. trim_soon: it is there, and the segment may go.
    may_go: asked before a segment goes, with the time when its retention was over. where: the segments; None: those of the kind.
    held: asked before messages are given to members: whether no other broker can have the store.
    claims: of queues that came from another log. chunk: what is copied from another log with the next commit. moving: queues come or go,
    and no segment goes. eager: when a segment begins, it is looked at once whether others may go.
    """

    def __init__(
        self,
        folder: Path,
        durability: str = "fsync",
        say: Said = print,
        segment_bytes: int = SEGMENT_BYTES,
        kind: str = LOG,
        where: Segments | None = None,
    ) -> None:
        self.folder = folder
        self.say = say
        self.queues: dict[str, Queue] = {}
        self.full: str | None = None
        self.parcels: set[bytes] = set()
        self.carry: Carry | None = None
        self.trim_soon = self.eager = self.moving = False
        self.where = where if where is not None else segments_in(folder, kind, durability)
        self._segment_bytes = segment_bytes
        self._numbers: dict[int, Queue] = {}
        self.touched: dict[Queue, None] = {}
        self._segments: dict[int, Segment] = {}
        self.bodies = Bodies(self.where, self._segments)
        self._current: Segment | None = None
        self._commit = 1
        self._retry_new = False
        self._appended = 0  # bytes
        self._carry_when = 0  # so many have to be appended before more is carried: the last time did not pay
        self._pending: Batch | None = None
        self._rules: Callable[[str], Rules] = lambda name: Rules()
        self._ended: dict[int, int] = {}  # when something was last said of messages of a segment; at the start
        self._ends = False  # the current segment, with the next commit
        self.may_go: Callable[[Segment, int], bool] = lambda segment, due: True
        self.held: Callable[[], bool] = lambda: True
        self.claims = Claims()
        self._naming = Naming(self.queues, self.claims)
        self.chunk: Chunk | None = None
        self._end: End | None = None

    # ---- the start

    def open(self, rules: Callable[[str], Rules], now: int) -> None:
        """Find the queues as they were; what members had is clean again. Raises OSError."""
        self._rules = rules
        found = self.where.open()
        for number in found:
            self._read_segment(number, number == found[-1])
        for number in self.claims.not_whole():
            self.release(number)
        for queue in self.queues.values():
            for member in list(queue.members.values()):
                queue.leave(member, now)
            queue.expire_all_left(now)
        self._count_at_start(now)
        for queue in self.queues.values():
            queue.handle_timer(now)
        for _ in count_needed(self._segments, self.queues, now):
            pass
        self.where.set_aside()

    def _count_at_start(self, now: int) -> None:
        """What is needed of each segment; where nothing is, the retention goes on, and does not begin anew."""
        for _ in count_needed(self._segments, self.queues, now):
            pass
        for number, segment in self._segments.items():
            if not segment.open:
                segment.last_at = min(now, self._ended.get(number, now))
        self._ended.clear()

    def _read_segment(self, number: int, last: bool) -> None:
        segment = Segment(number)
        frames = said = 0

        def say(text: str) -> None:
            nonlocal said
            said += 1
            self.say(f"{self.where.name_of(number)}: {text}")

        for one in segments.scan(self.where, number, last, say):
            frames += 1
            self._commit = max(self._commit, one.header.commit + 1)
            for record in one.records:
                self._read(segment, one, record)
        if not frames and last:
            if not said:
                say("it is empty: what it held is lost, unless the broker was killed while it began it")
            self.where.drop(number)
            return
        segment.size = self.where.size(number)
        self._segments[number] = segment
        self._end = End(number, segment.size)

    def _read(self, segment: Segment, frame: Frame, record: Record) -> None:
        if record.queue not in self._numbers and not (isinstance(record, Name) and not record.number):
            self._read_queue(record.queue, f"queue-{record.queue}")
        if isinstance(record, Name):
            if not record.number:
                self._naming.said[record.queue] = segment.number
                self._read_queue(record.queue, record.text)
                return
            queue = self._numbers[record.queue]
            queue.know(record.number, record.text)
            queue.named_in[record.number] = segment.number
            return
        queue = self._numbers[record.queue]
        if isinstance(record, Claim):
            if self.claims.read(record, segment.number):  # what the log had of it is of an earlier time
                for number in self._segments:
                    self._segments[number].forget(queue.number)
                self._add(Queue(queue.name, queue.rules, queue.number))
        elif isinstance(record, Next):
            queue.next = max(queue.next, record.position)
        elif isinstance(record, Subscribed):
            replay_subscriber(queue, queue.names[record.number], record.how)
        elif isinstance(record, Put):
            self.parcels.update(meta.parcel for meta in record.block.metas if meta.parcel)
            block = frame.block_of(record, segment.number, queue.names)
            assert block.place is not None
            segment.note(queue.number, block.first, block.first + block.count - 1)
            queue.next = max(queue.next, block.first + block.count)
            if record.runs is not None:
                segment.marks_of(queue.number).carry(block.first, block.first + block.count - 1, frame.offset)
                replay_carried(queue, block, record.runs, block.place, record.moves)
                return
            segment.marks_of(queue.number).put(block.first, block.at, frame.offset)
            queue.number_groups(block)
            queue.add(block, block.at)
        elif isinstance(record, Moves):
            segment.note_moves(queue.number, record.moves)
            for move in record.moves:
                found = replay(queue, move)
                if found is not None and found.place is not None:
                    self._ended[found.place.segment] = max(move.at, self._ended.get(found.place.segment, 0))
            queue.forget_parts()

    def _read_queue(self, number: int, name: str) -> None:
        known = self._numbers.get(number)
        if known is None:
            self._add(Queue(name, self._rules(name), number))
        elif known.name != name:  # it had no name: that record is damaged
            del self.queues[known.name]
            known.name, known.rules = name, self._rules(name)
            self.queues[name] = known

    def _add(self, queue: Queue) -> Queue:
        self.queues[queue.name] = self._numbers[queue.number] = queue
        queue.touched.pop(queue, None)  # of another log
        queue.touched = self.touched
        queue.touch()
        return queue

    def queue(self, name: str, rules: Rules, number: int = 0) -> Queue:
        """The queue with this name, with these rules from now on; a new one is written with its first change.

        number: of a new one, if that is free.
        """
        found = self.queues.get(name)
        if found is None:
            if not number or number in self._numbers:
                number = max(self._numbers, default=0) + 1
            if number > MOST_QUEUES:
                raise ValueError(f"a broker has at most {MOST_QUEUES} queues")
            found = self._add(Queue(name, rules, number))
        found.rules = rules
        return found

    # ---- a commit

    @property
    def dirty(self) -> bool:
        """Whether something is to be written. Asked several times for each commit: a generator would take longer."""
        for queue in self.touched:
            if queue.unwritten and self.queues.get(queue.name) is queue:
                return True
        return self.new

    @property
    def pressing(self) -> bool:
        """Whether something is to be written now."""
        for queue in self.touched:
            if queue.pressing and self.queues.get(queue.name) is queue:
                return True
        return self.new or self.carry is not None

    @property
    def quiet(self) -> bool:
        """Whether it is neither `dirty` nor `pressing`, without a look at queues."""
        return not (self.touched or self.carry is not None or self.new)

    @property
    def new(self) -> bool:
        """Whether there is something to be written of no queue."""
        return self._ends or self.chunk is not None or bool(self.claims.new) or bool(self._naming.left)

    def _touched(self) -> list[Queue]:
        """The queues that are written here now, and have something new."""
        return [queue for queue in self.touched if self.queues.get(queue.name) is queue]

    def forget_calm(self) -> None:
        """Look no more at queues in which nothing is new."""
        for queue in [one for one in self.touched if one.calm and one.number not in self.claims.new]:
            del self.touched[queue]

    def gather(self, now: int) -> Batch | None:
        """What is to be written, as one commit; None: nothing is. Raises Damaged, OSError: the payload of a dead letter cannot be read."""
        touched, left = self._touched(), MOST_BURIED
        for queue in touched:
            queue.release(now, left)
            left -= len(queue.dead)
        buried = [(queue, queue.dead) for queue in touched if queue.dead]
        bodies_of = [[self.bodies.payloads(one.block)[one.at] for one in dead] for _, dead in buried]  # before anything is done with them
        for (queue, dead), found in zip(buried, bodies_of, strict=True):
            queue.dead = []
            self._bury(queue, dead, found, now)
        carrying = self.carry is not None and self.carry.looked and not any(queue.dying for queue in self.touched)
        if not self.dirty and not carrying:
            return None
        batch, head = self._begin()
        self._ends = False
        batch.dead = buried
        bodies: list[bytes] = []
        crcs: list[int] = []
        body_size = 0
        for queue in self._touched():
            if not (queue.moves or queue.opened or queue.filled or queue.early or queue.changed or queue.number in self.claims.new):
                continue
            blocks = queue.seal(now)
            self._naming.name(queue, blocks, batch, head)
            for block in blocks:
                assert block.payloads is not None
                body = b"".join(block.payloads)
                crc = crc32(body)
                head.append(put_record(queue.number, block, body_size, crc, queue.members))
                body_size += block.size
                bodies.append(body)
                crcs.append(crc)
                batch.blocks.append((queue, block))
            if queue.moves:
                head.append(moves_record(queue.number, queue.moves))
                batch.moves.append((queue, queue.moves))
                queue.moves = []
            if queue.changed:
                head += [subscriber_record(queue.number, queue.members[name].number, how) for name, how in queue.changed]
                batch.changed.append((queue, queue.changed))
                queue.changed = []
        if carrying:
            self._take_along(batch, head)
        if not head and not batch.pieces and self.chunk is None:
            return None
        whole = b"".join(head)
        segment, offset = batch.segment, batch.offset + FRAME.size + len(whole)
        for (_, block), crc in zip(batch.blocks, crcs, strict=True):
            place = Place(segment, offset, block.size, crc)
            offset += block.size
            if block.key.early:  # it is where it was until the batch is on the disk
                batch.early[block] = place
            else:
                block.place = place
        batch.data = [frame(self._commit, whole, body_size), *bodies] if head else []
        batch.size = FRAME.size + len(whole) + body_size
        batch.claims = set(self.claims.new)
        if self.chunk is not None:
            self._take_in(batch, self.chunk)
        self._pending = batch
        return batch

    def _begin(self) -> tuple[Batch, list[bytes]]:
        """A batch, and what it says of queues that its segment does not name yet."""
        current = self._current
        if current is not None and current.size < self._segment_bytes and not self._retry_new:
            batch = Batch(current.number, current.size, False)
        else:
            batch = Batch(max(self._segments, default=0) + 1, HEADER.size, True)
            self._naming.begin(self.queues.values(), min(self._segments, default=batch.segment))
        head: list[bytes] = []
        self._naming.name_some(batch, head)
        return batch, head

    def _take_in(self, batch: Batch, chunk: Chunk) -> None:
        """What is copied from another log is a frame of its own. A segment says first whose it is, and that it does not count yet."""
        batch.chunk = chunk
        first: list[bytes] = []
        for one in chunk.arriving:
            if (one.to, NOBODY) not in self._naming.named:
                self._naming.named.add((one.to, NOBODY))
                first += [name_record(one.to, NOBODY, one.queue.name), claim_record(one.to, one.epoch, False)]
                first += [name_record(one.to, number, text) for (to, number), text in chunk.known.items() if to == one.to]
        chunk.behind = sum(map(len, batch.data))
        data = chunk.frame(self._commit + 1, first, batch.segment, batch.offset + chunk.behind)
        batch.data += data
        batch.size += sum(map(len, data))

    def _take_along(self, batch: Batch, head: list[bytes]) -> None:
        """Some of what is carried goes with a batch."""
        assert self.carry is not None
        batch.pieces = self.carry.choose()
        if not batch.pieces:
            self.carry = None
            return
        batch.carry = self.carry
        for piece in batch.pieces:
            self._naming.name(piece.queue, (), batch, head)

    def _bury(self, queue: Queue, dead: list[Dead], payloads: list[bytes], now: int) -> None:
        """Dead letters enter their queue, if there is one."""
        if (name := queue.rules.dead_letters) and name != queue.name:
            bury(queue, self.queues.get(name) or self.queue(name, self._rules(name)), dead, payloads, now)

    def write(self, batch: Batch) -> None:
        """Have a batch on the disk. Blocks. Raises OSError; then it is not there."""
        if batch.new:
            self.where.begin(batch.segment)
            batch.made = Segment(batch.segment)
            if batch.carry is not None:
                batch.carry.know(batch.made)
        current = batch.made or self._current
        assert current is not None
        append = self.where.append
        try:
            if batch.new:
                append(batch.segment, 0, [segments.header(batch.segment)])
            at = append(batch.segment, batch.offset, batch.data)
            if batch.carry is not None:
                data, batch.named = batch.carry.frame(batch.pieces, End(batch.segment, at), self._commit + 1, self._naming.named)
                end = append(batch.segment, at, data)
                batch.carry.written += end - at
                at = end
            self.where.commit()
        except OSError:
            self._retry_new = True  # what the disk has of it is unknown: it is cut off, and nothing follows it
            self.where.undo(batch.segment, batch.offset if not batch.new else 0)
            if batch.new:
                self.where.drop(batch.segment)
                batch.made = None
            raise
        self._appended += at - batch.offset
        current.size = at
        self._commit += 2

    def applied(self, batch: Batch, now: int) -> None:
        """A batch is on the disk."""
        self._pending = None
        if batch.made is not None:  # the loop learns of it now: until here it was the writer's
            self._segments[batch.segment] = self._current = batch.made
            self._retry_new = False
            if self.carry is not None:
                self.carry.know(batch.made)
        if self._naming.written(batch):
            self.trim_soon = self.trim_soon or self.eager
        for queue in self._touched():
            self.bodies.resident, queue.freed = self.bodies.resident - queue.freed, 0
            queue.forget_parts()
        segment = self._segments[batch.segment]
        for queue, block in batch.blocks:
            segment.note(queue.number, block.first, block.first + block.count - 1)
            segment.marks_of(queue.number).put(block.first, block.at, batch.offset)
            if block not in batch.early:
                self.bodies.keep(block)
                queue.committed(block, now)
                continue
            block.place = batch.early[block]
            if block.first in queue.blocks:
                self.bodies.keep(block)
            else:
                block.payloads = None
        for queue, moves in batch.moves:
            segment.note_moves(queue.number, moves)
        self._end = End(batch.segment, segment.size)
        self.claims.new -= batch.claims
        if batch.chunk is not None:
            batch.chunk.note_in(segment, batch.offset)
            self.chunk = None
        if self.full is not None and self.where.set_aside():
            self.full = None
        if batch.carry is not None:
            self._carried(batch, segment)

    def _carried(self, batch: Batch, segment: Segment) -> None:
        """What is written again is at its new place."""
        assert batch.carry is not None
        source = self._segments[batch.carry.number]
        for queue, number in batch.named:
            self._naming.named.add((queue.number, number))
            queue.named_in[number] = batch.segment
        for piece in batch.pieces:
            block = piece.block
            if piece.place is None:
                source.stuck = True
                self.say(f"{self.where.name_of(source.number)}: the messages of {piece.queue.name!r} at {block.first} cannot be read")
                continue
            segment.note(piece.queue.number, block.first, block.first + block.count - 1)
            segment.marks_of(piece.queue.number).carry(block.first, block.first + block.count - 1, batch.offset)
            source.open -= block.left
            if block.payloads is not None:
                self.bodies.resident -= block.size
            piece.queue.thin(block, piece.runs, piece.place)
        if not batch.carry.left:
            self.carry = None
            if 2 * batch.carry.written > source.size:
                self._carry_when = self._appended + source.size
            self.trim_soon = True

    def failed(self, batch: Batch, error: OSError) -> None:
        """A batch is not on the disk: its blocks are gone, and those that were put since. Its moves wait, and blocks that members were
        given before. Until the next one succeeds nothing can be put.
        """
        self._pending = self.carry = None
        for queue in self._touched():
            queue.give_up()
        batch.give_back()
        self._naming.fail()
        self._retry_new = self._ends = True  # what is written next says whether there is room, even if nothing waits for it
        self.full = f"the {'store' if isinstance(error, Away) else 'disk'} of the queues takes nothing: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self.where.give_up()

    def look_for_room(self) -> None:
        """Where nothing is left to be written, no commit tells that the disk has room again."""
        if self.full is not None and self._pending is None and not self.dirty:
            with suppress(OSError):
                self.full = None if self.where.set_aside() else self.full

    # ---- segments that nobody needs

    def trim(self, now: int) -> int:
        """Do `trimming` at once: how many segments are deleted."""
        before = len(self._segments)
        for _ in self.trimming(now):
            pass
        return before - len(self._segments)

    def trimming(self, now: int, before: int = 1 << 62) -> Iterator[None]:
        """Delete the oldest segments whose messages are at an end, and whose retention is over; a piece of work at a time.

        If little is needed of the oldest one, or of all together, what is needed of it is written again: then it can go too. Those
        that know all positions stay (`Naming.whole`), and so do `before` and later ones. What is put meanwhile is in the last one or in a
        later one; what is revealed again is looked for.
        """
        if self.carry is not None or self._burying or self.moving:
            return
        self.trim_soon = False
        before = min(before, self._naming.whole())
        eligible = [one for one in sorted(self._segments)[:-1] if one < before and self._segments[one] is not self._current]
        kept = [(queue, block) for queue in self.queues.values() for block in queue.kept.values()]
        yield from count_needed(self._segments, self.queues, now)
        for number in eligible:
            segment = self._segments[number]
            due = segment.last_at + int(1000 * self._retention(segment))
            if now < due or self._burying or self.moving:
                return
            if segment.open:
                if self._worth(segment):
                    yield from self._plan_carry(segment)
                return
            gone = [(queue, block) for queue, block in kept if block.place is not None and block.place.segment == number]
            if any(block.first in queue.blocks for queue, block in gone) or not self.may_go(segment, due):
                return
            self.where.drop(number)
            del self._segments[number]
            for queue, block in gone:
                if block.first in queue.kept:
                    queue.drop_kept(block.first)

    @property
    def _burying(self) -> bool:
        """Whether dead letters are on their way, whose payloads are still where they were."""
        pending = self._pending is not None and bool(self._pending.dead)
        return pending or any(queue.dead or queue.dying for queue in self._touched())

    def _retention(self, segment: Segment) -> float:
        return max((self._numbers[one].rules.retention for one in segment.spans if one in self._numbers), default=0.0)

    def _worth(self, segment: Segment) -> bool:
        """Whether what is needed of the oldest segment is to be carried."""
        if segment.stuck or self._current is None or self._appended < self._carry_when:
            return False
        if self.full is not None and segment.needed > CARRY_BYTES:
            return False  # what is set aside for states would go
        every = self._segments.values()
        return SHARE * segment.needed < segment.size or SHARE * sum(one.needed for one in every) < sum(one.size for one in every)

    def _plan_carry(self, segment: Segment) -> Iterator[None]:
        blocks = yield from blocks_in(segment.number, self.queues)
        if self._current is not None and not self.moving:
            self.carry = Carry(self.where, segment.number, blocks, self._segments, End(self._current.number, self._current.size))

    # ---- queues that come and go

    @property
    def end(self) -> End | None:
        """Where the log ends on the disk; None: it is empty."""
        return self._end

    @property
    def segments(self) -> dict[int, Segment]:
        """The segments, by number."""
        return self._segments

    def number_for(self, queue: Queue, others: Iterable[int] = ()) -> int:
        """The number that a queue of another log gets here: its own, if that is free. others: that are not free either."""
        taken = {*self._numbers, *others}
        return queue.number if queue.number not in taken else max(taken) + 1

    def begin_copy(self, epoch: int) -> int:
        """The segment that a queue of another log will begin with; the next commit begins it, so what was there before is apart.

        epoch: of the claim, which no later copy has again: if this one is given up, what it left does not count.
        """
        self.claims.highest = max(self.claims.highest, epoch)
        self.end_segment()
        return max(self._segments, default=0) + 1

    def leave(self, queue: Queue) -> None:
        """A queue is not written here for now: it goes to another log, or comes back with `come_back`."""
        del self.queues[queue.name]

    def come_back(self, queue: Queue) -> None:
        """A queue is written here again."""
        self.queues[queue.name] = queue
        queue.touch()
        self._naming.come_back(queue)

    def adopt(self, queue: Queue, number: int, epoch: int, begin: int) -> None:
        """A queue is in this log from the next commit on. All of it is copied since the segment `begin`, or it is empty."""
        for segment in [one for one in self._segments if one < begin]:
            self._segments[segment].forget(number)
        self.claims.make(number, epoch, begin)
        self._naming.named.discard((number, NOBODY))
        queue.number = number
        queue.named_in = dict.fromkeys(queue.named_in, max(self._segments, default=0))
        self._add(queue)

    def release(self, number: int) -> None:
        """What the log has of the queue with this number counts for nothing: it is in another log, or an earlier copy of it."""
        queue = self._numbers.pop(number, None)
        if queue is not None and self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
        if queue is not None:
            self.touched.pop(queue, None)
        self.claims.drop(number)
        self._naming.forget(number)
        for segment in self._segments:
            self._segments[segment].forget(number)

    # ---- what an archive needs

    @property
    def newest(self) -> Segment | None:
        """The last segment; None: there is none."""
        return self._segments[max(self._segments)] if self._segments else None

    def end_segment(self) -> None:
        """Have the next commit begin a segment, and be one."""
        self._retry_new = self._ends = True

    def after(self, segment: Segment, queue: Queue) -> list[tuple[int, int]]:
        """Later segments that tell of the same positions of a queue, in order: (number, bytes)."""
        span = segment.spans[queue.number]
        told = [
            (one.number, one.size, one.spans.get(queue.number)) for number, one in sorted(self._segments.items()) if number > segment.number
        ]
        return [(number, size) for number, size, other in told if other is not None and other.low <= span.high and span.low <= other.high]

    def told(self, segment: Segment, queue: Queue) -> bool:
        """Whether all that was said of the messages of a queue in a segment is in the log."""
        span = segment.spans[queue.number]
        written = [moves for whose, moves in (self._pending.moves if self._pending is not None else ()) if whose is queue]
        return not any(span.low <= move.first <= span.high for moves in (*written, queue.moves, queue.unsaid) for move in moves)

    # ---- history

    def reader(self, queue: Queue) -> Reader:
        """What reads a queue by position or time, messages at an end too."""
        return Reader(queue.number, queue.names, self._segments, self.where)

    def history(self, queue: Queue, position: int) -> Generator[None, None, tuple[Block | None, list[Move]]]:
        """The block of a position as it was put, and all moves of that message up to now, in order; in steps.

        What a commit writes meanwhile is not looked at in the log: its moves are known in memory. Where a segment goes meanwhile, because
        its messages are carried on or their retention is over, it begins anew.
        """
        for _ in range(LOOKS):
            pending = self._pending
            written = [moves for whose, moves in pending.moves if whose is queue] if pending is not None else []
            late = [move for moves in (*written, queue.moves, queue.unsaid) for move in moves_of(position, moves)]
            ends = {number: one.size for number, one in self._segments.items() if one.tells_of(queue.number, position)}
            if pending is not None and pending.segment in ends:
                ends[pending.segment] = pending.offset
            block, moves, whole = yield from read_history(queue, position, ends, self._segments, self.where, self.say)
            if whole:
                break
        return block, moves + late

    def close(self) -> None:
        """Close the files."""
        self.where.close()
        self._segments.clear()
        self._current = None
