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
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from ..core.blocks import Block, Place
from ..core.queue import Queue
from ..core.replay import replay
from ..core.rules import Rules
from ..core.stock import Dead, Move
from . import segments
from .dead import dead_meta
from .format import (
    FRAME,
    Moves,
    Name,
    Next,
    Put,
    Record,
    Subscribed,
    frame,
    groups_of,
    moves_record,
    name_record,
    next_record,
    place_in,
    put_record,
    subscriber_record,
)
from .segments import HEADER, Said, path_of

SEGMENT_BYTES = 32 << 20
RESIDENT_BYTES = 64 << 20  # payloads that wait in memory; more are in the log only
RESERVE_BYTES = 4 << 20
MOST_QUEUES = 65_535


class Batch:
    """One commit. data: its bytes. segment, offset: where they go. new: the segment begins with it."""

    __slots__ = ("blocks", "changed", "data", "moves", "new", "offset", "segment", "size")

    def __init__(self, segment: int, offset: int, new: bool) -> None:
        self.segment = segment
        self.offset = offset
        self.new = new
        self.data: list[bytes] = []
        self.size = 0
        self.blocks: list[tuple[Queue, Block]] = []
        self.moves: list[tuple[Queue, list[Move]]] = []
        self.changed: list[tuple[Queue, list[tuple[str, bool]]]] = []


class Segment:
    """A segment, as it is kept in memory. open: blocks in it that are not at an end. last_at: when they all were."""

    __slots__ = ("created", "fd", "firsts", "last_at", "number", "open", "size")

    def __init__(self, number: int, fd: int) -> None:
        self.number = number
        self.fd = fd
        self.size = HEADER.size
        self.open = 0
        self.last_at = 0
        self.firsts: dict[int, int] = {}  # number of a queue -> its first position here


class LogStore:
    """See the module. folder: of the log. durability: "fsync" or "os". say: is told of damage, one line each.

    queues: by name. resident: bytes of payloads in memory. full: why nothing can be put, None: it can. parcels: those that the log brought
    when it was opened.
    """

    def __init__(self, folder: Path, durability: str = "fsync", say: Said = print, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.say = say
        self.queues: dict[str, Queue] = {}
        self.resident = 0
        self.full: str | None = None
        self.parcels: set[bytes] = set()
        self._sync = durability == "fsync"
        self._segment_bytes = segment_bytes
        self._numbers: dict[int, Queue] = {}
        self._segments: dict[int, Segment] = {}
        self._current: Segment | None = None
        self._named: set[tuple[int, int]] = set()  # names that stand in the current segment
        self._commit = 1
        self._retry_new = False
        self._pending: Batch | None = None
        self._rules: Callable[[str], Rules] = lambda name: Rules()

    # ---- the start

    def open(self, rules: Callable[[str], Rules], now: int) -> None:
        """Find the queues as they were; what members had is clean again. Raises OSError."""
        self._rules = rules
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = segments.numbers_in(self.folder)
        for number in found:
            self._read_segment(number, number == found[-1])
        for queue in self.queues.values():
            for member in list(queue.members.values()):
                queue.leave(member, now)
            queue.dead.clear()
            queue.handle_timer(now)
        self._count_segments()
        self._make_reserve()

    def _read_segment(self, number: int, last: bool) -> None:
        fd = os.open(path_of(self.folder, number), os.O_RDWR | os.O_CLOEXEC)
        segment = Segment(number, fd)

        def say(text: str) -> None:
            self.say(f"{path_of(self.folder, number)}: {text}")

        frames = 0
        for one in segments.scan(fd, last, say, self._sync):
            frames += 1
            self._commit = max(self._commit, one.header.commit + 1)
            for record in one.records:
                self._read(segment, one.bodies, record)
        if not frames and last:
            os.close(fd)
            os.unlink(path_of(self.folder, number))
            return
        segment.size = os.fstat(fd).st_size
        self._segments[number] = segment

    def _read(self, segment: Segment, bodies: int, record: Record) -> None:
        if isinstance(record, Name):
            if not record.number:
                if record.queue not in self._numbers:
                    self._add(Queue(record.text, self._rules(record.text), record.queue))
                return
            queue = self._numbers[record.queue]
            if record.number == len(queue.names):
                queue.member(record.text)
            return
        queue = self._numbers[record.queue]
        if isinstance(record, Next):
            queue.next = max(queue.next, record.position)
        elif isinstance(record, Subscribed):
            name = queue.names[record.number]
            if record.on:
                queue.subscribe(name)
            else:
                for _ in queue.unsubscribe(name, 0):
                    pass
            queue.changed.clear()
        elif isinstance(record, Put):
            self.parcels.update(meta.parcel for meta in record.block.metas if meta.parcel)
            block = record.block
            block.key = block.key._replace(groups=groups_of(record.groups, queue.names))
            block.place = place_in(segment.number, bodies, record)
            segment.firsts.setdefault(queue.number, block.first)
            queue.number_groups(block)
            queue.next = max(queue.next, block.first + block.count)
            queue.add(block, block.at)
        elif isinstance(record, Moves):
            for move in record.moves:
                replay(queue, move)

    def _add(self, queue: Queue) -> Queue:
        self.queues[queue.name] = self._numbers[queue.number] = queue
        return queue

    def queue(self, name: str, rules: Rules) -> Queue:
        """The queue with this name, with these rules from now on; a new one is written with its first change."""
        found = self.queues.get(name)
        if found is None:
            number = max(self._numbers, default=0) + 1
            if number > MOST_QUEUES:
                raise ValueError(f"a broker has at most {MOST_QUEUES} queues")
            found = self._add(Queue(name, rules, number))
        found.rules = rules
        return found

    # ---- a commit

    @property
    def dirty(self) -> bool:
        """Whether something is to be written."""
        return any(queue.moves or queue.opened or queue.dead or queue.changed for queue in self.queues.values())

    def gather(self, now: int) -> Batch | None:
        """What is to be written, as one commit; None: nothing is."""
        for queue in list(self.queues.values()):
            if queue.dead:
                dead, queue.dead = queue.dead, []
                self._bury(queue, dead, now)
        batch = self._begin()
        head: list[bytes] = []
        bodies: list[bytes] = []
        body_size = 0
        for queue in self.queues.values():
            if not (queue.moves or queue.opened or queue.changed):
                continue
            blocks = queue.seal(now)
            self._name(queue, head)
            for block in blocks:
                assert block.payloads is not None
                body = b"".join(block.payloads)
                crc = crc32(body)
                head.append(put_record(queue.number, block, body_size, crc, queue.members))
                block.place = Place(batch.segment, body_size, block.size, crc)
                body_size += block.size
                bodies.append(body)
                batch.blocks.append((queue, block))
            if queue.moves:
                head.append(moves_record(queue.number, queue.moves))
                batch.moves.append((queue, queue.moves))
                queue.moves = []
            if queue.changed:
                head += [subscriber_record(queue.number, queue.members[name].number, on) for name, on in queue.changed]
                batch.changed.append((queue, queue.changed))
                queue.changed = []
        if not head:
            return None
        whole = b"".join(head)
        bodies_at = batch.offset + FRAME.size + len(whole)
        for _, block in batch.blocks:
            assert block.place is not None
            block.place = block.place._replace(offset=bodies_at + block.place.offset)
        batch.data = [frame(self._commit, whole, body_size), *bodies]
        batch.size = FRAME.size + len(whole) + body_size
        self._pending = batch
        return batch

    def _begin(self) -> Batch:
        current = self._current
        if current is None or current.size >= self._segment_bytes or self._retry_new:
            self._named.clear()
            return Batch(max(self._segments, default=0) + 1, HEADER.size, True)
        return Batch(current.number, current.size, False)

    def _name(self, queue: Queue, head: list[bytes]) -> None:
        """A segment says itself what its numbers stand for."""
        number = queue.number
        if (number, 0) not in self._named:
            self._named.add((number, 0))
            head += [name_record(number, 0, queue.name), next_record(number, queue.next)]
            head += [name_record(number, at, name) for at, name in enumerate(queue.names) if at]
            head += [subscriber_record(number, queue.members[name].number, True) for name in queue.subscribers]
            self._named.add((number, len(queue.names)))
            return
        at = len(queue.names)
        while (number, at) not in self._named:
            at -= 1
        if at < len(queue.names):
            head += [name_record(number, one, queue.names[one]) for one in range(at, len(queue.names))]
            self._named.discard((number, at))
            self._named.add((number, len(queue.names)))

    def _bury(self, queue: Queue, dead: list[Dead], now: int) -> None:
        """Dead letters enter their queue."""
        name = queue.rules.dead_letters
        if not name or name == queue.name:
            return
        target = self.queues.get(name) or self.queue(name, self._rules(name))
        for one in dead:
            payload = self.payloads(one.block)[one.at]
            target.put([payload], dead_meta(queue, one), now, one.block.key.topic, one.block.key.priority, delay=0)

    def write(self, batch: Batch) -> None:
        """Have a batch on the disk. Blocks. Raises OSError; then it is not there."""
        if batch.new:
            fd = segments.create(self.folder, batch.segment, 0)
            self._segments[batch.segment] = self._current = Segment(batch.segment, fd)
            self._retry_new = False
        current = self._current
        assert current is not None
        data = b"".join(batch.data) if len(batch.data) > 1 else batch.data[0]
        view, at = memoryview(data), batch.offset
        try:
            while view:
                done = os.pwrite(current.fd, view, at)
                view, at = view[done:], at + done
            if self._sync:
                os.fdatasync(current.fd)
        except OSError:
            self._retry_new = True  # what the disk has of it is unknown: it is cut off, and nothing follows it
            os.ftruncate(current.fd, batch.offset)
            raise
        current.size = at
        self._commit += 1

    def applied(self, batch: Batch, now: int) -> None:
        """A batch is on the disk."""
        self._pending = None
        segment = self._segments[batch.segment]
        for queue, block in batch.blocks:
            segment.firsts.setdefault(queue.number, block.first)
            segment.open += 1
            if self.resident + block.size > RESIDENT_BYTES:
                block.payloads = None
            else:
                self.resident += block.size
            queue.committed(block, now)
        if self.full is not None and self._make_reserve():
            self.full = None

    def failed(self, batch: Batch, error: OSError) -> None:
        """A batch is not on the disk: its blocks are gone, its moves wait. Until the next one succeeds nothing can be put."""
        self._pending = None
        for queue, block in batch.blocks:
            queue.gone(block)
        for queue, moves in batch.moves:
            queue.moves[:0] = moves
        for queue, changed in batch.changed:
            queue.changed[:0] = changed
        self._named.clear()
        self._retry_new = True
        self.full = f"the disk of the queues takes nothing: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            (self.folder / "reserve").unlink(missing_ok=True)

    def _make_reserve(self) -> bool:
        """Set space aside for states, for when the disk is full: whether there is some."""
        path = self.folder / "reserve"
        if path.exists() or not self._sync:
            return True
        try:
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            return False
        return True

    # ---- bodies

    def payloads(self, block: Block) -> list[bytes]:
        """The payloads of a block, from memory or from the log. Raises Damaged, OSError."""
        if block.payloads is None:
            assert block.place is not None
            block.payloads = block.payloads_in(segments.read_body(self._segments[block.place.segment].fd, block.place))
            self.resident += block.size
        return block.payloads

    def served(self, block: Block) -> None:
        """If nobody is to get messages of a block now, its payloads leave memory."""
        if block.payloads is not None and block.place is not None and not any(part.clean for part in block.parts):
            block.payloads = None
            self.resident -= block.size

    def forget(self, block: Block) -> None:
        """Payloads that were read to be looked at leave memory."""
        if block.payloads is not None and block.place is not None:
            block.payloads = None
            self.resident -= block.size

    # ---- segments that nobody needs

    def _count_segments(self) -> None:
        for queue in self.queues.values():
            for block in queue.blocks.values():
                if block.place is not None:
                    self._segments[block.place.segment].open += 1

    def trim(self, now: int) -> int:
        """Delete the oldest segments whose messages are at an end, and whose retention is over: how many."""
        for segment in self._segments.values():
            segment.open = 0
        self._count_segments()
        gone = 0
        for segment in self._segments.values():
            segment.last_at = 0 if segment.open else segment.last_at or now
        for number in sorted(self._segments):
            segment = self._segments[number]
            if segment is self._current or segment.open:
                break
            keep = max((self._numbers[one].rules.retention for one in segment.firsts if one in self._numbers), default=0.0)
            if now < segment.last_at + 1000 * keep:
                break
            os.close(segment.fd)
            path_of(self.folder, number).unlink(missing_ok=True)
            del self._segments[number]
            for queue in self.queues.values():
                for first in [one for one, block in queue.kept.items() if block.place is not None and block.place.segment == number]:
                    queue.drop_kept(first)
            gone += 1
        return gone

    # ---- history

    def history(self, queue: Queue, position: int) -> tuple[Block | None, list[Move]]:
        """The block of a position as it was put, and all moves of that message that are in the log, in order."""
        block: Block | None = None
        moves: list[Move] = []
        pending = self._pending
        begin = max((one.number for one in self._segments.values() if one.firsts.get(queue.number, position + 1) <= position), default=None)
        for number in sorted(self._segments):
            if begin is None or number < begin:
                continue
            segment = self._segments[number]
            until = pending.offset if pending is not None and pending.segment == number else segment.size
            for one in segments.scan(segment.fd, False, self.say, until=until):
                for record in one.records:
                    if isinstance(record, Put) and record.queue == queue.number and record.block.holds(position):
                        block = record.block
                        block.key = block.key._replace(groups=groups_of(record.groups, queue.names))
                        block.place = place_in(number, one.bodies, record)
                    elif isinstance(record, Moves) and record.queue == queue.number:
                        moves += [move for move in record.moves if move.first <= position < move.first + move.length]
        for whose, written in pending.moves if pending is not None else ():
            moves += [move for move in written if whose is queue and move.first <= position < move.first + move.length]
        moves += [move for move in queue.moves if move.first <= position < move.first + move.length]
        return block, moves

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments.values():
            os.close(segment.fd)
        self._segments.clear()
        self._current = None
