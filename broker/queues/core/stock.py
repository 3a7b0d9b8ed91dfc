"""The stock of a queue: blocks, lanes, members, counters, timers, and the small steps that `queue.py` is made of.

Each step keeps the counters right and notes a `Move`. None of them asks whether it is allowed: that is `queue.py`.

What it does not know: who may do what. Times are milliseconds since 1970.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from .blocks import APART, CLEAN_BYTES, DEFAULT_PRIORITY, ENDED_BYTES, FREE, NOBODY, OPEN_BYTES, WAITS, Block, Key, Lane, Part, Place
from .order import Order
from .plan import ANYBODY, Group
from .rules import Rules
from .selection import Fits, Looks
from .states import Subscriber
from .timers import Timers

_IS_OPEN = bytes(state in OPEN_BYTES for state in range(256))
KEPT_UNUSABLE = 10_000  # blocks that stay in memory because somebody could not use a message of them
MIXED = 10_000  # messages without a priority in a row, after which a queue is taken for one without priorities
MOST_LANES = 1024  # groups that plans of publishers may make, beside those of subscribers
NEVER = 2**62  # times
SECOND, SOON = 1000, 10_000  # milliseconds
OFF, ON, ENDS = 0, 1, 3  # how somebody is a subscriber; ENDS: until the connection does
PRIORITY = 20  # and more: the state of a move that gives messages another priority


class Move(NamedTuple):
    """A timed range: messages first to first + length - 1 are in a state since `at`, for a member of a part, or for their publisher.

    member: 0: nobody, or the publisher. state: a value of `Publisher` or of `Subscriber`; none in both; `PRIORITY` and more: a priority.
    """

    first: int
    length: int
    part: int
    member: int
    state: int
    at: int


class Dead(NamedTuple):
    """A message that nobody can use. at: its index in the block. why: for its history."""

    block: Block
    at: int
    why: str


class Dying(NamedTuple):
    """Messages that nobody can use, of which nothing is said yet. move: what is to be said. block: theirs. why: for their history."""

    move: Move
    block: Block
    why: str


class Member:
    """Who takes messages.

    lanes: those that it belongs to. held, held_in: how many messages it has, and where. reserved: what is revealed again to it alone.
    selector, fits: which messages it wants, "": any; and whether one is such. alone: it has one message, at its last try, and gets no other
    one. behind: the message at its last try that it could have if it had no others; None: it was not held up.
    """

    __slots__ = ("active", "alone", "behind", "fits", "held", "held_in", "lanes", "name", "number", "reserved", "selector")

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.lanes: list[Lane] = []
        self.held = 0
        self.held_in: dict[Part, int] = {}
        self.reserved: list[tuple[Part, int]] = []
        self.active = False
        self.alone = False
        self.behind: tuple[Part, int] | None = None
        self.selector = ""
        self.fits: Fits = lambda meta, priority: True

    def next_reserved(self) -> tuple[Part, int] | None:
        """The next message that is revealed again to it alone."""
        while self.reserved:
            part, index = self.reserved[-1]
            if part.states[index] == WAITS:
                return part, index
            self.reserved.pop()
        return None


class Stock:
    """What a queue has. See `Queue`. names: of members, by number. named_in: the last segment of the log that says so.

    subscribers: with whether they are none any more when their connections end. left: those that are none any more, and the position before
    which messages expire that were put for them alone and whose commit is awaited; what has no position yet says so itself (`departed`).

    For whoever gives messages to members, who takes them out. fresh: lanes in which something may be taken that could not before. eased:
    members that have less than before, or for whom alone there is something. looks: how many messages are looked at for those with
    selectors before everybody else has a turn. looking: members for which more is to be looked at then.
    leaving: those that take no more, and are to give back what they have (`Queue.let_leave`).

    dying: is said little by little (`Queue.release`), however many die at one moment. over: more is in it than the rules allow, and the
    oldest messages are to be dead letters.

    touched: whoever has many queues looks only at those that are in it: a queue puts itself there whenever there is something new in it.
    """

    def __init__(self, name: str, rules: Rules, number: int = 1) -> None:
        self.name = name
        self.number = number
        self.rules = rules
        self.next = 1
        self.blocks: dict[int, Block] = {}
        self.lanes: dict[Group, Lane] = {}
        self.members: dict[str, Member] = {}
        self.names: dict[int, str] = {NOBODY: ""}
        self.named_in: dict[int, int] = {}
        self.subscribers: dict[str, bool] = {}
        self.left: dict[str, int] = {}
        self.touched: dict[Any, None] = {}
        self.moves: list[Move] = []
        self.dead: list[Dead] = []
        self.dying: deque[Dying] = deque()
        self.over = False
        self.opened: dict[Key, Block] = {}  # by `Key.line`
        self.filled: list[Block] = []
        self.early: list[Block] = []  # given to members, and not gathered for the log yet
        self.changed: list[tuple[str, int]] = []
        self.fresh: dict[Lane, None] = {}
        self.eased: dict[Member, None] = {}
        self.looks = Looks()
        self.looking: dict[Member, None] = {}
        self.leaving: dict[Member, None] = {}
        self.waiting = self.held = self.size = 0
        self.freed = 0  # bytes of payloads that left memory with blocks that came to an end
        self.memory = self.gathering_memory = 0  # bytes that blocks stand for, without payloads
        self.gathering = self.gathering_size = 0  # of what is put and not committed
        self.counts = dict.fromkeys(("put", "done", "unusable", "expired", "returned", "dead", "refused", "withdrawn"), 0)
        self.kept: dict[int, Block] = {}  # settled, with messages that somebody could not use
        self.finished: list[Block] = []  # settled, and a dead letter may still ask who had its messages
        self._firsts = Order()
        self._kept_firsts = Order()
        self._timers: Timers[Block | tuple[Part, int, int]] = Timers()
        self.mixed = 0
        self._highest = NOBODY  # number of a member
        self._active: dict[Member, None] = {}  # in the order in which they came

    def touch(self) -> None:
        """There is something new in it."""
        self.touched[self] = None

    @property
    def calm(self) -> bool:
        """Whether nothing is new in it."""
        return not (self.unwritten or self.freed or self.fresh or self.eased)

    @property
    def unwritten(self) -> bool:
        """Whether something is to be written."""
        return bool(self.moves or self.opened or self.filled or self.early or self.dead or self.dying or self.over or self.changed)

    @property
    def pressing(self) -> bool:
        """Whether something is to be written now: moves alone wait a moment for more."""
        return bool(self.opened or self.filled or self.dead or self.dying or self.over or self.changed)

    @property
    def unsaid(self) -> list[Move]:
        """Moves that have been made, and wait until they may be said (`dying`)."""
        return [one.move for one in self.dying]

    # ---- members

    def member(self, name: str) -> Member:
        """The member with this name, known from now on."""
        found = self.members.get(name)
        if found is None:
            found = self.know(self._highest + 1, name)
        return found

    def know(self, number: int, name: str) -> Member:
        """A number stands for the member with this name."""
        self.names[number] = name
        self._highest = max(self._highest, number)
        found = self.members.get(name)
        if found is None:
            self.touch()
            found = self.members[name] = Member(number, name)
            found.lanes = [self.lanes[ANYBODY]] if ANYBODY in self.lanes else []  # who is in another group is known since it was made
        return found

    @property
    def first_active(self) -> Member | None:
        """The member that has been here for longest."""
        return next(iter(self._active), None)

    def _look_no_more(self, member: Member) -> None:
        """What fits a member's selector is not looked for any more, unless others have the same."""
        for lane in member.lanes:
            selection = lane.selections.get(member.selector)
            if selection is not None:
                selection.users.discard(member.number)
                if not selection.users:
                    del lane.selections[member.selector]

    def subscribe(self, name: str, ends: bool = False) -> bool:
        """A plan "all" has this subscriber from now on: whether that is new. ends: its session ends with its connection."""
        self.member(name)
        before = self.subscribers.get(name)
        if before is not ends:
            self.subscribers[name] = ends
            self.touch()
            self.changed.append((name, ENDS if ends else ON))
        return before is None

    def forget_members(self, oldest: int) -> None:
        """Let go of members that no segment from this one on names, unless they are here, or subscribers."""
        self.touch()
        self._drop_lanes()
        told = {move.member for move in (*self.moves, *self.unsaid)} | {self.members[name].number for name, _ in self.changed}
        grouped = {name for group in self.lanes for name in group}
        for member in list(self.members.values()):
            name, number = member.name, member.number
            here = member.active or member.held or member.reserved
            needed = here or name in self.subscribers or name in grouped or number in told
            if needed or self.named_in.get(number, 0) >= oldest:
                continue
            del self.members[name], self.names[member.number]
            self.named_in.pop(number, None)

    def _lane(self, group: Group) -> Lane:
        lane = self.lanes.get(group)
        if lane is None:
            members = [self.member(name) for name in sorted(group)] if group else list(self.members.values())
            lane = self.lanes[group] = Lane(group)
            for member in members:
                member.lanes.append(lane)
        return lane

    def _drop_lanes(self) -> None:
        """Forget groups that no message is for."""
        used = {group for block in (*self.filled, *self.opened.values()) for group in block.key.groups}
        for group, lane in list(self.lanes.items()):
            if group and not lane.blocks and group not in used:
                del self.lanes[group]
                for name in group:
                    self.members[name].lanes.remove(lane)

    # ---- blocks

    def close_block(self, block: Block, now: int) -> None:
        """A block gets no more messages: they have their positions."""
        block.at = now
        block.close(self.next)
        self.next += block.count
        self.number_groups(block)

    def drop_open(self, early: bool) -> None:
        """The open blocks that are early, or are not, are open no more."""
        self.filled = [one for one in self.filled if one.key.early is not early]
        self.opened = {key: one for key, one in self.opened.items() if key.early is not early}

    def number_groups(self, block: Block) -> None:
        """A block gets its parts."""
        block.parts = [Part(block, index, self._lane(group)) for index, group in enumerate(block.key.groups)]
        for part in block.parts:
            part.lane.blocks += 1

    def gone(self, block: Block) -> None:
        """The commit of a block has failed: it was never put, or it is in the next one."""
        if block.key.early:
            self.early.insert(0, block)
            self.touch()
            return
        for part in block.parts:
            part.lane.blocks -= 1
        self.gathered(block)

    def give_up(self) -> None:
        """What was put and is in no commit yet was never put: what was put before it is not kept, and they have an order."""
        for block in [one for one in (*self.filled, *self.opened.values()) if not one.key.early]:
            self.gathered(block)
        self.drop_open(early=False)

    def gathered(self, block: Block) -> None:
        """A block is gathered no more: it is kept, or gone."""
        self.touch()
        self.gathering -= block.count
        self.gathering_size -= block.size
        self.gathering_memory -= block.weight

    def add(self, block: Block, now: int) -> None:
        """Have a block, as it is at its PUT."""
        self.touch()
        key = block.key
        if not block.key.revealed:
            block.hidden = set(range(block.count))
        due = key.due > now
        for part in block.parts:
            first = not (key.ordered and part.index)
            part.begin(block.count, FREE if key.revealed and not due and first else WAITS)
            part.lane.waiting += block.count
            part.lane.grouped += block.grouped
            self._queue(part)
            self._select(part, 0, block.count)
        block.left = block.count * len(block.parts)
        self.waiting += block.left
        self.size += block.size
        self.memory += block.weigh()
        self.mixed = MIXED if key.priority != DEFAULT_PRIORITY else max(0, self.mixed - block.count)
        self.blocks[block.first] = block
        self._firsts.add(block.first)
        if due:
            self._timers.add(key.due, block)
        if key.expires:
            self._timers.add(block.key.expires, block)
        if not block.left:
            self._settled(block)

    def _settled(self, block: Block) -> None:
        """All subscribers are through: JOURNALLED."""
        self.touch()
        del self.blocks[block.first]
        self._firsts.remove(block.first)
        self.size -= block.size
        if block.payloads is not None and block.place is not None:  # whoever still looks at it reads the log
            self.freed += block.size
            block.payloads = None
        self._timers.remove(block.key.due, block)
        self._timers.remove(block.key.expires, block)
        for part in block.parts:
            part.lane.grouped -= block.grouped
            part.lane.blocks -= 1
            part.lane.prune()
        if block.unusable:
            self.kept[block.first] = block
            self._kept_firsts.add(block.first)
            if len(self.kept) > KEPT_UNUSABLE:
                self.drop_kept(next(iter(self.kept)))
        else:
            self.memory -= block.weight
            self.finished.append(block)

    def drop_kept(self, first: int) -> None:
        """Forget a block that is kept for messages that somebody could not use."""
        self.touch()
        block = self.kept.pop(first)
        self.memory -= block.weight
        self.finished.append(block)
        self._kept_firsts.remove(first)

    def forget_parts(self) -> None:
        """Blocks that are at an end and their parts hold each other no more: such circles stay in memory (`base/process/collector.py`)."""
        if not (self.dead or self.dying):
            for block in self.finished:
                block.parts = []
            self.finished.clear()

    def _bury(self, block: Block, start: int, count: int, why: str) -> None:
        self.touch()
        self.counts["dead"] += count
        self.dead += [Dead(block, index, why) for index in range(start, start + count)]

    def _queue(self, part: Part) -> None:
        if not part.free:
            return
        self.touch()
        self.fresh[part.lane] = None
        if not part.queued:
            part.queued = True
            heapq.heappush(part.lane.ready, (-part.block.key.priority, part.block.first, part))

    def say_dying(self, most: int) -> None:
        """Have it said of messages that die: of so many that at most this many are `dead`."""
        while self.dying and (left := most - len(self.dead)) > 0:
            self.touch()
            move, block, why = self.dying.popleft()
            if move.length > left:
                rest = move._replace(first=move.first + left, length=move.length - left)
                self.dying.appendleft(Dying(rest, block, why))
                move = move._replace(length=left)
            self.moves.append(move)
            at = move.first - block.first
            self.dead += [Dead(block, index, why) for index in range(at, at + move.length)]

    def open_marks(self, part: Part) -> bytearray:
        """One byte a message: 1: it is not at an end for this part."""
        marks = part.states.translate(_IS_OPEN)
        if self.rules.explicit:
            for at in [one for one, state in enumerate(part.states) if state in ENDED_BYTES]:
                marks[at] = part.takers[at] != NOBODY and not part.implied(at)
        return marks

    def open_runs(self, block: Block) -> list[tuple[int, int]]:
        """The messages of a block that are not at an end: (index, count) in order."""
        marks = [self.open_marks(part) for part in block.parts]
        merged = bytes(map(max, *marks)) if len(marks) > 1 else bytes(marks[0]) if marks else b""
        found = []
        at = merged.find(1)
        while at >= 0:
            end = merged.find(0, at)
            end = len(merged) if end < 0 else end
            found.append((at, end - at))
            at = merged.find(1, end)
        return found

    def thin(self, block: Block, runs: list[tuple[int, int]], place: Place) -> None:
        """The log has these messages of a block only, at another place. The others are at an end, and gone."""
        for start, count in gaps(runs, block.count):
            block.lengths[start : start + count] = array("I", bytes(4 * count))
        self.drop_unusable(block, runs)
        if block.first in self.blocks:
            self.size += place.size - block.size
        block.size, block.place, block.payloads = place.size, place, None

    def drop_unusable(self, block: Block, runs: list[tuple[int, int]]) -> None:
        """Of a block these messages are kept: others that somebody could not use cannot be revealed again."""
        if block.unusable is not None:
            gone = {at for start, count in gaps(runs, block.count) for at in range(start, start + count)}
            block.unusable = {one for one in block.unusable if one[1] not in gone} or None

    # ---- steps of messages

    def let_go(self, member: Member, part: Part, count: int) -> None:
        self.touch()
        self.held -= count
        member.held -= count
        if not member.held:
            member.alone = False
        self.eased[member] = None
        left = member.held_in[part] - count
        if left:
            member.held_in[part] = left
        else:
            del member.held_in[part]

    def ended(self, part: Part, start: int, count: int, implied: bool = False) -> None:
        """Messages of a part have an outcome. implied: they are journalled with it, whatever the rules."""
        block = part.block
        if block.key.ordered:
            self._next_turn(block, start, count)
        if implied or not self.rules.explicit:
            self._close(part, count)

    def _next_turn(self, block: Block, start: int, count: int) -> None:
        """The first group that is not through with a message may take it."""
        for at in range(start, start + count):
            part = next((one for one in block.parts if one.states[at] in OPEN_BYTES), None)
            if part is not None and not (block.hidden and at in block.hidden):
                self._free(part, at, 1)

    def _close(self, part: Part, count: int) -> None:
        part.open -= count
        part.block.left -= count
        if not part.block.left:
            self._settled(part.block)

    def clean(self, member: Member, part: Part, at: int, count: int, backoff: int, now: int) -> None:
        self.touch()
        part.takers[at : at + count] = array("I", bytes(4 * count))
        part.mark(at, count, WAITS)
        part.lane.waiting += count
        self.waiting += count
        last = self.moves[-1] if self.moves else None
        first = part.block.first + at
        if last is not None and last[2:] == (part.index, member.number, FREE, now) and part.block.first < first == last.first + last.length:
            self.moves[-1] = last._replace(length=last.length + count)
        else:
            self.moves.append(Move(first, count, part.index, member.number, FREE, now))
        if backoff:
            self._timers.add(now + backoff, (part, at, count))
        else:
            self._free(part, at, count)

    def _free(self, part: Part, start: int, count: int) -> None:
        """Messages that wait may be taken."""
        for at, length, _ in runs_within(part, start, count, WAITS):
            if not any(part.takers[at : at + length]):  # else it is reserved for a member
                part.mark(at, length, FREE)
                part.free += length
                part.cursor = min(part.cursor, at)
                self._set_apart(part, at, length)
                self._select(part, at, length)
        self._queue(part)

    def at_last_try(self, part: Part, at: int) -> bool:
        """Whether a message that was returned is dead if it is returned once more."""
        most = self.rules.deliveries
        return most > 1 and part.tries(at) >= most - 1

    def _select(self, part: Part, start: int, count: int) -> None:
        """Those with selectors look at messages that may be taken."""
        for selection in part.lane.selections.values() if part.free or part.lane.apart else ():
            selection.add(part, start, count)

    def _set_apart(self, part: Part, start: int, count: int) -> None:
        """Of these messages, which are free, those with a priority of their own, or at their last try, stand by themselves."""
        priorities = part.block.priorities or ()
        if not priorities and not part.tried:
            return
        self.touch()
        most, tried = self.rules.deliveries, part.tried or {}
        last = most - 1 if most > 1 else NEVER
        for at in [one for one in range(start, start + count) if one in priorities or tried.get(one, 0) >= last]:
            part.mark(at, 1, APART)
            part.free -= 1
            part.lane.set_apart(part, at)
            self.fresh[part.lane] = None

    def free_again(self, part: Part, index: int) -> None:
        """A message that may be taken stands with the others of its block."""
        if part.states[index] in (APART, WAITS):
            part.takers[index] = NOBODY
            part.mark(index, 1, FREE)
            part.free += 1

    def open_again(self, block: Block, part: Part, index: int, member: Member) -> None:
        """A message that a member could not use is for it alone again."""
        assert block.unusable is not None
        self.touch()
        ended = not self.rules.explicit or part.states[index] == Subscriber.JOURNALLED
        block.unusable.discard((part.index, index))
        if block.first not in self.blocks:
            self.drop_kept(block.first)
            self.blocks[block.first] = block
            self._firsts.add(block.first)
            self.size += block.size
            self.memory += block.weight
            for one in block.parts:
                one.lane = self._lane(one.lane.group)  # it may have been forgotten
                one.lane.grouped += block.grouped
                one.lane.blocks += 1
        if block.key.expires:
            self._timers.add(block.key.expires, block)
        part.mark(index, 1, WAITS)
        part.open += ended
        block.left += ended
        part.lane.waiting += 1
        self.waiting += 1
        member.reserved.append((part, index))
        self.eased[member] = None

    def expire_part(self, part: Part, start: int, count: int, now: int) -> int:
        """What nobody has of these messages expires."""
        self.touch()
        gone = 0
        for at, length, state in runs_within(part, start, count, *CLEAN_BYTES):
            part.mark(at, length, Subscriber.EXPIRED)
            if state == FREE:
                part.free -= length
            elif state == APART:
                self.fresh[part.lane] = None  # for those that were behind it
            part.lane.waiting -= length
            self.waiting -= length
            gone += length
            self.moves.append(Move(part.block.first + at, length, part.index, NOBODY, Subscriber.EXPIRED, now))
            self.ended(part, at, length, implied=True)
        self.counts["expired"] += gone
        block = part.block
        if block.hidden:  # a message that nobody is to get any more is JOURNALLED, revealed or not
            over = [at for at in range(start, start + count) if all(one.states[at] not in CLEAN_BYTES for one in block.parts)]
            block.hidden.difference_update(over)
        return gone

    def expire_left(self, name: str, end: int, now: int) -> Iterator[None]:
        """What waits for this subscriber alone expires, of messages before the position `end`; in steps."""
        lane = self.lanes.get(frozenset((name,)))
        return self._expire_lane(lane, end, now) if lane is not None else iter(())

    def expire_gathered(self, block: Block, now: int) -> None:
        """A block is kept: who was a subscriber at its PUT may have left since."""
        left = {name for name, end in self.left.items() if block.first < end} | (block.departed or set())
        if not block.key.early:  # these are committed in the order of their positions
            self.left = {name: end for name, end in self.left.items() if block.first < end}
        block.departed = None
        for part in block.parts:
            if any(part.lane.group == {name} for name in left):
                self.expire_part(part, 0, block.count, now)

    def expire_all_left(self, now: int) -> None:
        """The same of all who are none any more."""
        left, self.left = self.left, {}
        for name, end in left.items():
            for _ in self.expire_left(name, end, now):
                pass

    def _expire_lane(self, lane: Lane, end: int, now: int) -> Iterator[None]:
        """What waits in a lane expires, of messages before the position `end`."""
        block = self.block_from(0)
        while block is not None and block.first < end:
            after = block.first + block.count
            for part in block.parts:
                if part.lane is lane:
                    self.expire_part(part, 0, block.count, now)
            yield
            block = self.block_from(after)

    # ---- looking

    def find(self, position: int) -> Block | None:
        """The block of a position, if it is in memory."""
        for firsts, blocks in ((self._firsts, self.blocks), (self._kept_firsts, self.kept)):
            first = firsts.floor(position)
            if first is not None and blocks[first].holds(position):
                return blocks[first]
        return None

    def block_from(self, position: int) -> Block | None:
        """The first block that is not at an end with a message at this position or above it; None: there is none."""
        first = self._firsts.floor(position)
        if first is None or not self.blocks[first].holds(position):
            first = self._firsts.above(position)
        return self.blocks[first] if first is not None else None

    @property
    def oldest(self) -> int:
        """When the oldest message that is not at an end was put; 0: there is none."""
        return self.blocks[self._firsts.first].at if self._firsts else 0

    def check(self) -> None:
        """Assert what the counters say; for tests."""
        waiting = held = 0
        for block in self.blocks.values():
            assert block.left == sum(part.open for part in block.parts) > 0
            for part in block.parts:
                clean = sum(map(part.states.count, CLEAN_BYTES))
                apart = {at for _, _, one, at in part.lane.apart if one is part}
                assert all(at in apart for at, state in enumerate(part.states) if state == APART)
                waiting, held = waiting + clean, held + part.held
                assert part.free == part.states.count(FREE)
                if not self.rules.explicit:
                    assert part.open == sum(map(part.states.count, OPEN_BYTES))
                assert part.queued or not part.free
                assert FREE not in part.states[: part.cursor]
        assert (waiting, held) == (self.waiting, self.held)
        assert self.memory == sum(block.weight for block in (*self.blocks.values(), *self.kept.values()))
        assert held == sum(member.held for member in self.members.values())
        assert list(self._firsts) == sorted(self.blocks)
        assert list(self._kept_firsts) == sorted(self.kept)
        for lane in self.lanes.values():
            assert lane.blocks == sum(part.lane is lane for block in self.blocks.values() for part in block.parts)


def expires_at(now: int, life: int) -> int:
    """When a message expires that is put now; 0: never. A long life ends at a whole second: so many have one block, one time."""
    if life < SOON:
        return now + life if life else 0
    return -(-(now + life) // SECOND) * SECOND


def gaps(runs: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """What lies between runs of messages 0 to count - 1: (index, count)."""
    found, at = [], 0
    for start, length in [*runs, (count, 0)]:
        if start > at:
            found.append((at, start - at))
        at = start + length
    return found


def runs_within(part: Part, start: int, count: int, *wanted: int) -> list[tuple[int, int, int]]:
    """Messages start to start + count - 1 that are in these states: (index, count, state)."""
    found = []
    for state in wanted:
        at = part.states.find(state, start, start + count)
        while at >= 0:
            end = at + 1
            while end < start + count and part.states[end] == state:
                end += 1
            found.append((at, end - at, state))
            at = part.states.find(state, end, start + count)
    return found
