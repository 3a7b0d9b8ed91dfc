"""What the logs of all queues say, read from the disks as it is written: the plain reference that queues are held against.

Each frame that is on a disk is read once, by its bytes. Of each message there is one entry, by queue and position, with the states that it
had for each of its parts. Asserted with each frame:
- a position is used once, and a parcel of another site is put once;
- a state follows another one only as the tables allow (`NEXT`), and what one member has no other one takes;
- a dead letter is put in the frame that says why it is dead.
And whenever a queue gives a message to a member (`given`):
- the message is on the disk, and nobody is through with it: so what is DONE is never offered again;
- a message at its last try is given to a member that has nothing else, and gets nothing else;
- messages of one group are with one member, and come to it in order; a queue with a single active member gives to one only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mqmesh.broker.queues.core.blocks import Place
from mqmesh.broker.queues.core.states import HELD, Publisher, Subscriber
from mqmesh.broker.queues.core.stock import PRIORITY
from mqmesh.broker.queues.log import segments
from mqmesh.broker.queues.log.dead import origin_of, position_of
from mqmesh.broker.queues.log.format import Moves, Name, Put

if TYPE_CHECKING:
    from mqmesh.broker.queues.core.blocks import Part
    from mqmesh.broker.queues.core.queue import Queue
    from mqmesh.broker.queues.core.stock import Member, Move

    from .disk import Disk

CLEAN, GET, FETCHED, IN_PROCESS = Subscriber.CLEAN, Subscriber.GET, Subscriber.FETCHED, Subscriber.IN_PROCESS
DONE, UNUSABLE, EXPIRED = Subscriber.DONE, Subscriber.UNUSABLE, Subscriber.EXPIRED
OUTCOMES = frozenset((DONE, UNUSABLE, EXPIRED))
BACK = OUTCOMES | {CLEAN}
# what the log may say next; what a member has not said before its outcome is implied
NEXT = {
    CLEAN: frozenset((GET, EXPIRED)),
    GET: frozenset((FETCHED, IN_PROCESS)) | BACK,
    FETCHED: frozenset((IN_PROCESS,)) | BACK,
    IN_PROCESS: BACK,
    UNUSABLE: frozenset((CLEAN, Subscriber.JOURNALLED)),
    DONE: frozenset((Subscriber.JOURNALLED,)),
    EXPIRED: frozenset((Subscriber.JOURNALLED,)),
    Subscriber.JOURNALLED: frozenset((CLEAN,)),
}

Key = tuple[str, int]  # queue, position


@dataclass(slots=True)
class Standing:
    """Where a message stands for one of its parts. group: whom it is for; none: everybody. member: who has it, or had it
    last. tries: how often it came back.
    """

    group: list[str]
    state: Subscriber = CLEAN
    member: int = 0
    tries: int = 0


@dataclass(slots=True)
class Entry:
    """A message. life: of its home, when it was put. ended: the same, when it was at an end; 0: it is not."""

    payload: bytes = field(repr=False)
    publisher: str
    handle: str
    group: str
    parcel: bytes
    plain: bool  # neither priority nor delay
    expires: int
    due: int
    life: int
    parts: list[Standing]
    hidden: bool = False
    withdrawn: bool = False
    ended: int = 0
    origin: Key | None = None  # of a dead letter
    segment: tuple[int, int] = (0, 0)  # its log, and where that has it
    gone: bool = False  # the segment is deleted: members were through, and the disk took nothing that said so
    frame: int = 0  # of the log, by which it was put
    history: list[tuple[int, int, int, str]] = field(default_factory=list)  # frame, part, member, state; for people

    @property
    def number(self) -> int:
        """The number that its payload begins with."""
        return int(self.payload.split()[0])


@dataclass
class Log:
    """One log of one home, as far as it was read. names: of its queues, by number. read: bytes of each segment.

    life: of its home, that writes it. fresh: it has written nothing yet. ends: the life that a message ends in now.
    """

    disk: Disk
    life: int = 0
    fresh: bool = True
    ends: int = 0
    names: dict[int, str] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)


def _body(disk: Disk, number: int, frame: segments.Frame, put: Put) -> bytes:
    at = frame.bodies + put.offset
    return segments.read_body(disk, Place(number, at, put.block.size, put.crc))


class Ledger:
    """See the module. entries: by queue and position. dead: of dead letters, by the message that they were.

    expired: numbers of messages whose time was over in the custody of their publisher's site.
    """

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.dead: dict[Key, list[Key]] = defaultdict(list)
        self.numbers: dict[int, list[Key]] = defaultdict(list)
        self.expired: set[int] = set()
        self.members: dict[tuple[str, int], str] = {}  # their names, by queue and number
        self.counts: dict[str, int] = defaultdict(int)
        self._parcels: dict[tuple[bytes, bytes], Key] = {}
        self._frames = 0
        self._died: dict[Key, int] = {}  # the frame in which it became UNUSABLE last
        self._latest: dict[
            tuple[str, frozenset[str], str], int
        ] = {}  # queue, members, message group -> the latest position that was given first

    # ---- what is written

    def read(self, log: Log) -> None:
        """Read what is new on a disk."""
        for number in [one for one in log.read if one not in log.disk.segments]:
            del log.read[number]
            for entry in self.entries.values():
                entry.gone = entry.gone or (entry.segment == (id(log), number) and not entry.ended)
        for number in sorted(log.disk.segments):
            begin = log.read.get(number, segments.HEADER.size)
            if log.disk.size(number) <= begin:
                continue
            for frame in segments.scan(log.disk, number, False, lambda text: None, begin=begin):
                self._frame(log, number, frame)
            log.read[number] = log.disk.size(number)

    def _frame(self, log: Log, number: int, frame: segments.Frame) -> None:
        self._frames += 1
        log.ends, log.fresh = max(1, log.life - log.fresh), False  # what ends with the first commit of a life ended at its start
        buried: list[tuple[Key, Entry]] = []
        moves = []
        for record in frame.records:
            if isinstance(record, Name) and not record.number:
                log.names[record.queue] = record.text
            elif isinstance(record, Name):
                self.members[log.names[record.queue], record.number] = record.text
            elif isinstance(record, Put):
                buried += self._put(log, number, record, _body(log.disk, number, frame, record))
            elif isinstance(record, Moves):
                moves += [(log.names[record.queue], move) for move in record.moves]
        for queue, move in moves:
            for position in range(move.first, move.first + move.length):
                self._move(log, (queue, position), move)
        for key, entry in buried:
            assert entry.origin is not None
            died = self._frames if self.entries[entry.origin].withdrawn else self._died.get(entry.origin)
            assert died == self._frames, f"{key} is the dead letter of {entry.origin}, which did not die in the same commit"
            self.dead[entry.origin].append(key)

    def _put(self, log: Log, number: int, put: Put, body: bytes) -> list[tuple[Key, Entry]]:
        block, queue, buried = put.block, log.names[put.queue], []
        payloads = block.payloads_in(body)
        for at in range(block.count):
            key = queue, block.first + at
            if put.runs is not None:
                if put.has(key[1]):
                    assert self.entries[key].payload == payloads[at], f"{key} is carried with another payload"
                    self.entries[key].segment = id(log), number
                continue
            assert key not in self.entries, f"position {key} is used twice"
            meta, key_of = block.meta(at), block.key
            entry = Entry(
                payloads[at],
                meta.publisher,
                meta.handle,
                meta.group,
                meta.parcel,
                key_of.priority == 4 and not key_of.due,
                key_of.expires,
                key_of.due,
                log.life,
                [Standing([self.members[queue, one] for one in group]) for group in put.groups],
                not key_of.revealed,
                segment=(id(log), number),
                frame=self._frames,
            )
            if meta.parcel:
                parcel = meta.parcel, entry.payload
                assert parcel not in self._parcels, (
                    f"a parcel is put as {self._parcels[parcel]} and as {key}: {entry}, {self.entries[self._parcels[parcel]]}"
                )
                self._parcels[parcel] = key
            self.entries[key] = entry
            self.numbers[entry.number].append(key)
            origin = origin_of(meta.properties)[0]
            if origin is not None:
                entry.origin = origin, position_of(meta.properties)
                buried.append((key, entry))
            if not entry.parts:
                entry.ended = log.ends
        return buried

    def _move(self, log: Log, key: Key, move: Move) -> None:
        entry = self.entries[key]
        if move.state >= PRIORITY:
            entry.plain = False
            return
        if move.state in (Publisher.REVEALED, Publisher.UNAVAILABLE, Publisher.DELETED):
            entry.hidden = False
            entry.withdrawn = entry.withdrawn or move.state != Publisher.REVEALED
            return
        standing, state = entry.parts[move.part], Subscriber(move.state)
        said = f"{key}: {standing.state.name} of {standing.member} -> {state.name} of {move.member}"
        assert state in NEXT[standing.state], said
        if standing.state in HELD:
            assert standing.member == move.member, said
            standing.tries += state is CLEAN
        elif standing.state is CLEAN:
            assert (move.member == 0) == (state is EXPIRED), said
        standing.state, standing.member = state, move.member
        entry.history.append((self._frames, move.part, move.member, state.name))
        if state is UNUSABLE:
            self._died[key] = self._frames
        entry.ended = log.ends if all(one.state in OUTCOMES for one in entry.parts) else 0

    # ---- what is given

    def died(self, queues: set[str]) -> None:
        """A home is dead: what was given and not written was not given."""
        for key in [one for one in self._latest if one[0] in queues]:
            del self._latest[key]

    def given(self, queue: Queue, member: Member, part: Part, start: int, count: int) -> None:
        """A member gets messages."""
        last = [at for at in range(start, start + count) if queue.at_last_try(part, at)]
        assert not last or member.held == 1, f"{part.block.first + last[0]} is at its last try, {member.name} has {member.held} messages"
        for at in range(start, start + count):
            key = queue.name, part.block.first + at
            entry = self.entries.get(key)
            if entry is None and part.block.key.early:  # it is in the store of the broker
                continue
            assert entry is not None, f"{key} is given before it is on the disk"
            assert not entry.gone, f"{key} is given, and its segment is deleted"
            standing = entry.parts[part.index]
            assert standing.state not in OUTCOMES, f"{key} is {standing.state.name} on the disk, and given to {member.name}"
            if entry.group:
                self._grouped(queue, member, part, at, entry)
        if queue.rules.single:
            others = [one.name for one in queue.members.values() if one is not member and one.held]
            assert not others, f"{queue.name} has a single active member, gives to {member.name}, and {others} have something"

    def _grouped(self, queue: Queue, member: Member, part: Part, at: int, entry: Entry) -> None:
        position = part.block.first + at
        for other in queue.members.values():
            for held in other.held_in if other is not member else ():
                for first, count in held.held_by(other.number) if held.lane is part.lane else ():
                    groups = {held.block.meta(one).group for one in range(first, first + count)}
                    assert entry.group not in groups, f"group {entry.group} is with {other.name}, and {position} is given to {member.name}"
        if entry.plain and not part.tries(at) and not (part.block.key.ordered and part.index):
            line = queue.name, part.lane.group, entry.group
            latest = self._latest.get(line, 0)
            assert position > latest, f"{position} is given after {latest}, group {line}"
            self._latest[line] = position
