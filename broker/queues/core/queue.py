"""One queue: what waits, who has what, what comes next. Without effects: it takes the time, and says what to write down.

    put      -> messages gather in open blocks                    (seal: they get positions; the log commits them)
    reveal   -> committed blocks may be taken                     (`committed`)
    take     -> a member gets slices of blocks                    GET
    advance  -> FETCHED, IN PROCESS
    settle   -> DONE, UNUSABLE, EXPIRED                           and JOURNALLED
    give_back-> CLEAN again, or dead after too many deliveries

A message that was returned and may be given once more before it is dead is given alone: to a member that has nothing else, and that gets
nothing more until it has answered it. So who dies with a message is not blamed on its neighbours. Whoever has something and would get it
next waits until it has nothing: the message keeps its place.

Each change is a `Move` in `moves`: a timed range. The caller writes these, and the blocks of `seal`, in one commit.

Invariants: a message is held by at most one member of each group; a member has it once; what is at an end comes again only if the publisher
reveals it again. `tests/broker/queues/test_queue.py` holds all that against a plain reference.

What it does not know: clients, connections, files, clocks. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate, chain, islice
from typing import NamedTuple

from .blocks import APART, CLEAN_BYTES, DEFAULT_PRIORITY, FREE, META_WEIGHT, NOBODY, Block, Key, Lane, Meta, Part, bucket_of, spans
from .plan import Plan
from .rules import DROP_OLDEST, REFUSE
from .selection import Fits, Found, Selection
from .states import OUTCOMES, IllegalMove, Publisher, Step, Subscriber, name_of, step
from .stock import MIXED, MOST_LANES, OFF, PRIORITY, Dying, Member, Move, Stock, expires_at

BLOCK_MAX = 8192  # messages that gather in one block
BLOCK_BYTES = 4 << 20  # of payloads, from which on no more gather in it
MOST_NAMES = 10_000  # of members, from which on plans of publishers bring no others
MOST_DROPPED = 8192  # messages that make room at one commit
LEAVE = 512  # ranges of messages that those who leave give back before everybody else has a turn
EVERYTHING = 2**62
HIGHEST = 9  # of priorities


class Slice(NamedTuple):
    """Messages that a member gets. tries: how often each was given to somebody before."""

    part: Part
    start: int
    length: int
    tries: int


class Queue(Stock):
    """See the module. rules: may be replaced. blocks: those that are not at an end, by the position of their first message.

    subscribers: names that a plan "all" gives each message to. changed: those that came or went, to be written. moves: to be written.
    dead: to be put into the queue of dead letters, in the same commit. waiting, held: messages,
    counted for each group. size: bytes of payloads in blocks that are not at an end. mixed: priorities are in use: until so many messages
    come without.
    """

    # ---- members

    def join(self, name: str) -> Member:
        """A member takes messages from now on."""
        member = self.member(name)
        if not member.active:
            member.active = True
            self._active[member] = None
        return member

    def leave(self, member: Member, now: int, most: int = EVERYTHING) -> None:
        """It takes no more: what it has is given back. most: of what may be very much, what is given back now (`let_leave`)."""
        was_first = self.rules.single and member is self.first_active
        if member.active:
            member.active = False
            del self._active[member]
        heir = self.first_active
        if was_first and heir is not None:
            self.touch()
            self.eased[heir] = None  # its turn has come
        self._look_no_more(member)
        self.leaving[member] = None
        self.let_leave(now, most)

    def let_leave(self, now: int, most: int = EVERYTHING) -> int:
        """Who has left gives back what it has: how many ranges, at most so many. Until it has nothing more nobody takes anything."""
        left = most
        for member in list(self.leaving):
            for part in list(islice(member.held_in, left)):
                for start, count in islice(part.held_by(member.number), left):
                    self.give_back(member, part, start, count, now)
                    left -= 1
                if left <= 0:
                    break
            if member.held_in and left <= 0:
                break
            del self.leaving[member]
            self._has_left(member)
        return most - left

    def all_leave(self, now: int) -> Iterator[None]:
        """The same in steps."""
        while self.leaving:
            self.let_leave(now, LEAVE)
            yield

    def _has_left(self, member: Member) -> None:
        """What was for a member, or for its message groups, is for others."""
        self.touch()
        for lane in member.lanes:
            self.fresh[lane] = None
            for bucket in [one for one, owner in lane.owners.items() if owner == member.number]:
                del lane.owners[bucket]
            for selection in lane.selections.values() if lane.grouped else ():
                selection.start()

    def choose(self, member: Member, selector: str, fits: Fits) -> None:
        """A member wants these messages only. selector: what stands for `fits`; "": it wants any."""
        self._look_no_more(member)
        member.selector, member.fits = selector, fits

    def unsubscribe(self, name: str, now: int) -> Iterator[None]:
        """A plan "all" has it no more; what waits for it alone expires, in the steps that are returned."""
        if name not in self.subscribers:
            return iter(())
        del self.subscribers[name]
        self.touch()
        self.changed.append((name, OFF))
        self.filled += self.opened.values()  # what is put from now on has positions of its own
        self.opened.clear()
        for block in self.filled:
            block.departed = (block.departed or set()) | {name}
        if self.gathering:
            self.left[name] = self.next
        return chain(self.all_leave(now), self.expire_left(name, self.next, now))

    # ---- put

    def refusal(self, count: int, size: int) -> str | None:
        """Why messages find no room; None: they do, or room is made for them."""
        text = self.lacks_room(count, size)
        if text is not None:
            self.counts["refused"] += count
        return text

    def lacks_room(self, count: int, size: int) -> str | None:
        """The same of messages that may be put another way: they are not counted."""
        rules = self.rules
        if rules.when_full != REFUSE or not (rules.messages or rules.bytes):
            return None
        messages, held = self.contents
        if rules.messages and messages + count > rules.messages:
            return f"the queue holds {messages:,} of {rules.messages:,} messages"
        if rules.bytes and held + size > rules.bytes:
            return f"the queue holds {held:,} of {rules.bytes:,} bytes"
        return None

    def room(self, payloads: list[bytes]) -> int:
        """How many of these messages, the first ones, find room. The last of them may pass the bound of bytes."""
        rules, count = self.rules, len(payloads)
        if rules.when_full != REFUSE or not (rules.messages or rules.bytes):
            return count
        messages, held = self.contents
        if rules.messages:
            count = min(count, max(rules.messages - messages, 0))
        if rules.bytes:
            count = sum(before < rules.bytes for before in list(accumulate(map(len, payloads), initial=held))[:count])
        return count

    @property
    def full(self) -> bool:
        """Whether it has room for nothing more."""
        return bool(self.rules.messages or self.rules.bytes) and not self.room([b""])

    @property
    def contents(self) -> tuple[int, int]:
        """How many messages, and bytes, there are with those that are not committed yet."""
        return self.waiting + self.held + self.gathering, self.size + self.gathering_size

    def unknown(self, plan: Plan) -> str | None:
        """Why a plan that a publisher gives cannot be followed; None: it can, and its groups are known from now on."""
        groups = [group for group in plan.groups or () if group not in self.lanes]
        if not groups:
            return None
        if len(self.lanes) + len(groups) > MOST_LANES + len(self.subscribers):
            self._drop_lanes()
        if len(self.lanes) + len(groups) > MOST_LANES + len(self.subscribers):
            return f"the queue has messages for {len(self.lanes):,} different groups: wait until they are worked"
        names = sum(name not in self.members for group in groups for name in group)
        if names and len(self.names) + names > MOST_NAMES:
            return f"the queue knows {len(self.names):,} members: a plan cannot bring more"
        for group in groups:
            self._lane(group)
        return None

    def put(
        self,
        payloads: list[bytes],
        meta: Meta,
        now: int,
        topic: bytes = b"",
        priority: int = DEFAULT_PRIORITY,
        delay: int = -1,
        life: int = 0,
        plan: Plan | None = None,
        revealed: bool | None = None,
        early: bool = False,
    ) -> tuple[Block, int]:
        """Messages of one publisher: the block that they are in, and the index of the first.

        delay, life: milliseconds until they may be taken (-1: the queue's), and until they expire (0: never).
        """
        return self.put_each(self.key(now, topic, priority, delay, life, plan, revealed, early), payloads, [meta], now)

    def key(
        self,
        now: int,
        topic: bytes = b"",
        priority: int = DEFAULT_PRIORITY,
        delay: int = -1,
        life: int = 0,
        plan: Plan | None = None,
        revealed: bool | None = None,
        early: bool = False,
    ) -> Key:
        """What messages that are put so have in common with the others of their block."""
        rules = self.rules
        plan = plan or rules.plan_for(self.waiting)
        if delay < 0:
            delay = int(1000 * rules.delay)
        if rules.age:
            life = min(life, int(1000 * rules.age)) if life else int(1000 * rules.age)
        return Key(
            plan.resolve(self.subscribers),
            plan.ordered,
            rules.reveal if revealed is None else revealed,
            priority,
            now + delay if delay else 0,
            expires_at(now, life),
            topic,
            early,
        )

    def put_each(self, key: Key, payloads: list[bytes], metas: list[Meta], now: int) -> tuple[Block, int]:
        """The same where their publisher said different things of them: `metas`, one for each message; one: for all."""
        self.touch()
        line = key.line
        block = self.opened.get(line)
        if block is not None and (
            block.key.expires != key.expires or block.count + len(payloads) > BLOCK_MAX or block.size > BLOCK_BYTES
        ):  # what is put in turn with different expiries stays in order
            self.filled.append(block)
            block = None
        if block is None:
            block = self.opened[line] = Block(key, now)
        before, told = block.size, len(block.metas)
        index = block.add(payloads, metas)
        self.gathering += len(payloads)
        self.gathering_size += block.size - before
        weight = sum([len(one.properties) + META_WEIGHT for one in block.metas[told:]])
        block.weight += weight
        self.gathering_memory += weight
        return block, index

    def seal(self, now: int) -> list[Block]:
        """End the open blocks: they have positions, and are to be committed."""
        self.give_early(now)
        sealed, self.early = [*self.early, *self.filled, *self.opened.values()], []
        for block in (*self.filled, *self.opened.values()):
            self.close_block(block, now)
        self.filled, self.opened = [], {}
        return sealed

    def give_early(self, now: int) -> None:
        """Messages that are kept elsewhere until the log has them may be taken from now on."""
        early = [one for one in (*self.filled, *self.opened.values()) if one.key.early]
        for block in early:
            self.close_block(block, now)
            self.committed(block, now)
            self.early.append(block)
        if early:
            self.drop_open(early=True)

    def committed(self, block: Block, now: int) -> None:
        """A block is kept: its messages may be taken, when they are revealed and due."""
        self.gathered(block)
        self.add(block, now)
        self.counts["put"] += block.count
        if self.left or block.departed:
            self.expire_gathered(block, now)
        if self.rules.when_full == DROP_OLDEST:
            self._make_room(now, MOST_DROPPED)
        elif self.rules.when_full != REFUSE:
            self.over = True

    def _make_room(self, now: int, left: int) -> None:
        """Beyond the bounds the oldest go: they are withdrawn, or dead. left: so many now."""
        rules, self.over = self.rules, False
        over = max(0, self.waiting + self.held - rules.messages) if rules.messages else 0
        if not over and not (rules.bytes and self.size > rules.bytes):
            return
        block = self.block_from(0)
        while block is not None and left > 0:
            most = min(block.count if rules.bytes and self.size > rules.bytes else over, left)
            if most <= 0:
                return
            for start, count in spans(block.clean[:most]):
                over, left = over - count, left - count
                if rules.when_full != DROP_OLDEST:
                    self._bury(block, start, count, "the queue is full")
                self.withdraw(block, start, count, now)
            block = self.block_from(block.first + block.count)
        self.over = left <= 0 and rules.when_full != DROP_OLDEST

    # ---- take

    def _next_lane(self, member: Member, passed: list[Lane]) -> Lane | None:
        """The lane whose next message is the first for a member. passed: lanes that are not asked."""
        best, first = None, None
        for lane in member.lanes:
            lane.prune()
            found = lane.next if lane not in passed else None
            if found is not None and (first is None or found < first):
                best, first = lane, found
        return best

    def take(self, member: Member, most: int, now: int) -> list[Slice]:
        """What a member gets now, at most so many messages."""
        found: list[Slice] = []
        member.behind = None
        if member.alone or self.leaving or (self.rules.single and member is not self.first_active):
            return found
        while most > 0 and (reserved := member.next_reserved()) is not None:
            most = self._give_one(member, *reserved, most, now, found)
        if member.selector:
            self._take_chosen(member, most, now, found)
            return found
        passed: list[Lane] = []
        while most > 0:
            lane = self._next_lane(member, passed)
            if lane is None:
                break
            if lane.grouped:
                if self._take_grouped(member, lane, most, now, found) or member.behind is not None:
                    break
                passed.append(lane)  # the groups in it are with other members
                continue
            if lane.apart_first:
                most = self._give_one(member, *lane.apart[0][2:], most, now, found)
                continue
            part = lane.ready[0][2]
            start, count = part.free_run(most)
            most -= self.give(member, part, start, count, now, found)
        return found

    def _give_one(self, member: Member, part: Part, index: int, most: int, now: int, found: list[Slice]) -> int:
        """Give a message that may be taken, alone if it is its last try: how many more the member may get now."""
        last = self.at_last_try(part, index)
        if last and member.held:
            member.behind = part, index
            return 0
        self.free_again(part, index)
        self.give(member, part, index, 1, now, found)
        if last:
            member.alone = True
            part.lane.asked.clear()
            self.fresh[part.lane] = None  # for those that were behind it
        return 0 if last else most - 1

    def _take_chosen(self, member: Member, most: int, now: int, found: list[Slice]) -> None:
        """What a member with a selector gets."""
        while most > 0 and (chosen := self._chosen(member)) is not None:
            _, part, at = chosen
            lane, group = part.lane, part.block.meta(at).group
            most = self._give_one(member, part, at, most, now, found)
            if group and member.behind is None:
                lane.owners[bucket_of(group)] = member.number

    def _chosen(self, member: Member) -> Found | None:
        """The first message that fits a member's selector; None: there is none, or nothing is left of `looks`."""
        best: Found | None = None
        for lane in member.lanes:
            selection = lane.selections.get(member.selector)
            if selection is None:
                selection = lane.selections[member.selector] = Selection(lane, member.selector, member.fits)
            selection.users.add(member.number)
            found = selection.next(self.looks, partial(_may_have, lane, member))
            if found is not None and (best is None or found.key < best.key):
                best = found
        if self.looks.left <= 0:
            self.looking[member] = None
        return best

    def give(self, member: Member, part: Part, start: int, count: int, now: int, found: list[Slice]) -> int:
        part.give(start, count, member.number)
        part.lane.waiting -= count
        self.waiting -= count
        self.held += count
        member.held += count
        member.held_in[part] = member.held_in.get(part, 0) + count
        self.touch()
        self.moves.append(Move(part.block.first + start, count, part.index, member.number, Subscriber.GET, now))
        returns = part.returns
        if returns is None or returns.keys().isdisjoint(range(start, start + count)):
            found.append(Slice(part, start, count, 0))
        else:
            found += [Slice(part, at, 1, part.tries(at)) for at in range(start, start + count)]
        return count

    def _take_grouped(self, member: Member, lane: Lane, most: int, now: int, found: list[Slice]) -> int:
        """Some messages have a group, whose messages go to one member: look at each."""
        left = most
        for part, at, group in self._of_groups(member, lane):
            cursor = part.cursor
            left = self._give_one(member, part, at, left, now, found)
            part.cursor = cursor
            if group and member.behind is None:
                lane.owners[bucket_of(group)] = member.number
            if not left:
                break
        return most - left

    def _of_groups(self, member: Member, lane: Lane) -> Iterator[tuple[Part, int, str]]:
        """What a member may take, as (part, index, message group), where some messages have a group. It is looked for while it is taken."""
        for part, at in lane.in_order():
            group = part.block.meta(at).group
            if not group or lane.owners.get(bucket_of(group), member.number) == member.number:
                yield part, at, group

    def available(self, member: Member) -> bool:
        """Whether `take` has something for a member."""
        if member.alone or (self.rules.single and member is not self.first_active):
            return False
        first = self._first(member)
        return first is not None and not (member.held and self.at_last_try(*first))

    def _first(self, member: Member) -> tuple[Part, int] | None:
        """The first message that is for a member."""
        if (reserved := member.next_reserved()) is not None:
            return reserved
        if member.selector:
            chosen = self._chosen(member)
            return chosen[1:] if chosen is not None else None
        passed: list[Lane] = []
        while (lane := self._next_lane(member, passed)) is not None:
            for part, at, _ in self._of_groups(member, lane):
                return part, at
            passed.append(lane)
        return None

    def waiting_for(self, member: Member) -> int:
        """How many messages wait that a member may get, now or later."""
        return sum(lane.waiting for lane in member.lanes)

    # ---- what becomes of it

    def advance(self, member: Member, part: Part, start: int, count: int, what: Step, now: int) -> None:
        """FETCH or PROCESS. Raises IllegalMove."""
        self._check(member, part, start, count)
        after = {step(Subscriber(state), what) for state in set(part.states[start : start + count])}.pop()
        part.mark(start, count, after)
        self.touch()
        self.moves.append(Move(part.block.first + start, count, part.index, member.number, after, now))

    def _check(self, member: Member, part: Part, start: int, count: int) -> None:
        if not part.has(start, count, member.number):
            states = {name_of(Subscriber(FREE if one in CLEAN_BYTES else one)) for one in set(part.states[start : start + count])}
            text = " and ".join(sorted(states)) or "not of this queue"
            raise IllegalMove(
                f"{member.name} does not have messages {part.block.first + start} to {part.block.first + start + count - 1}: {text}"
            )

    def settle(self, member: Member, part: Part, start: int, count: int, outcome: Subscriber, now: int) -> None:
        """DONE, UNUSABLE or EXPIRED for messages that a member has. What it has not said before is implied. Raises IllegalMove."""
        assert outcome in OUTCOMES, "an outcome"
        self._check(member, part, start, count)
        part.mark(start, count, outcome)
        self.let_go(member, part, count)
        self.touch()
        self.moves.append(Move(part.block.first + start, count, part.index, member.number, outcome, now))
        if outcome is Subscriber.DONE:
            self.counts["done"] += count
        elif outcome is Subscriber.UNUSABLE:
            self.counts["unusable"] += count
            part.note_unusable(start, count)
        else:
            self.counts["expired"] += count
        self.ended(part, start, count)

    def journal(self, name: str, part: Part, start: int, count: int, now: int) -> None:
        """A subscriber says JOURNALLED of messages that it had. Raises IllegalMove."""
        number = self.member(name).number
        if any(taker != number for taker in part.takers[start : start + count]):
            raise IllegalMove(
                f"JOURNAL: {name} did not have all of messages {part.block.first + start} to {part.block.first + start + count - 1}"
            )
        for state in set(part.states[start : start + count]):
            step(Subscriber(state), Step.JOURNAL)
        self.release(now)  # what was said before stands before it
        part.mark(start, count, Subscriber.JOURNALLED)
        self.touch()
        self.moves.append(Move(part.block.first + start, count, part.index, number, Subscriber.JOURNALLED, now))
        if self.rules.explicit:
            self._close(part, count)

    def give_back(self, member: Member, part: Part, start: int, count: int, now: int) -> None:
        """A member returns messages: they are CLEAN, and somebody gets them again, now or after the back-off; or they are dead."""
        self._check(member, part, start, count)
        rules, block = self.rules, part.block
        self.let_go(member, part, count)
        self.counts["returned"] += count
        expired = 0 < block.key.expires <= now
        for at, length, tries in part.note_return(start, count, member.number, now):
            if rules.deliveries and tries >= rules.deliveries:
                self._die(member, part, at, length, tries, now)
                continue
            self.clean(member, part, at, length, rules.backoff_of(tries), now)
            gone = [one for one in range(at, at + length) if one in block.withdrawn] if block.withdrawn is not None else []
            for first, some in [(at, length)] if expired else spans(gone):
                self.expire_part(part, first, some, now)

    def untake(self, member: Member, part: Part, start: int, count: int, now: int) -> None:
        """What a member has got cannot be sent to it now: it is CLEAN, and nobody has returned it."""
        self.let_go(member, part, count)
        self.clean(member, part, start, count, 0, now)

    def _die(self, member: Member, part: Part, at: int, count: int, tries: int, now: int) -> None:
        part.mark(at, count, Subscriber.UNUSABLE)
        self.touch()
        move = Move(part.block.first + at, count, part.index, member.number, Subscriber.UNUSABLE, now)
        self.dying.append(Dying(move, part.block, f"given to members {tries} times"))
        self.counts["dead"] += count
        part.note_unusable(at, count)
        part.note_dead(at, count)
        self.ended(part, at, count, implied=True)

    def release(self, now: int, most: int = EVERYTHING) -> None:
        """Have it said of messages that they are dead, in one commit with their dead letters: of at most so many in all (`dead`)."""
        if self.over and len(self.dead) < most:
            self._make_room(now, most - len(self.dead))
        self.say_dying(most)

    # ---- expiry, and what publishers and administrators do

    def expire(self, block: Block, start: int, count: int, now: int) -> int:
        """What nobody has of these messages expires for everybody: how many, counted for each group."""
        return sum([self.expire_part(part, start, count, now) for part in block.parts])

    def expire_at_once(self, block: Block, index: int, now: int) -> None:
        """The publisher has a message expire that somebody is still to get (row Q5). Raises IllegalMove."""
        self._check_waits(block, index, "EXPIRE")
        self.expire(block, index, 1, now)

    def _check_waits(self, block: Block, index: int, what: str) -> None:
        if all(part.states[index] not in CLEAN_BYTES for part in block.parts):
            raise IllegalMove(f"{what}: nobody is still to get message {block.first + index}")

    def expire_alone(self, member: Member, part: Part, index: int, now: int) -> None:
        """A message expires for a subscriber that has it, or that alone is to get it (row Q5). Raises IllegalMove."""
        block = part.block
        if part.states[index] not in CLEAN_BYTES:
            self.settle(member, part, index, 1, Subscriber.EXPIRED, now)
        elif block.hidden is not None and index in block.hidden:
            raise IllegalMove(f"EXPIRE: message {block.first + index} is not revealed")
        elif block.key.due > now:
            raise IllegalMove(f"EXPIRE: message {block.first + index} is not due yet")
        else:
            self.expire_part(part, index, 1, now)

    def prioritize(self, block: Block, index: int, priority: int, now: int) -> None:
        """A message that somebody is still to get has another priority from now on (row Q14). Raises IllegalMove."""
        self._check_waits(block, index, "PRIORITY")
        self.set_priority(block, index, priority)
        self.touch()
        self.moves.append(Move(block.first + index, 1, 0, NOBODY, PRIORITY + priority, now))

    def set_priority(self, block: Block, index: int, priority: int) -> None:
        """A message has another priority, wherever it stands."""
        if block.priorities is None:
            block.priorities = {}
        block.priorities[index] = priority
        if priority == block.key.priority:
            del block.priorities[index]
        if priority != DEFAULT_PRIORITY:
            self.mixed = MIXED
        for part in block.parts:
            if part.states[index] == APART:
                self.free_again(part, index)
                part.cursor = min(part.cursor, index)
            if part.states[index] == FREE:
                self._set_apart(part, index, 1)
                self._select(part, index, 1)
                self._queue(part)

    def withdraw(self, block: Block, start: int, count: int, now: int) -> None:
        """UNAVAILABLE: nobody gets these messages any more. Who has one may finish."""
        if block.withdrawn is None:
            block.withdrawn = set()
        for at, length in spans([one for one in range(start, start + count) if one not in block.withdrawn]):
            fresh = range(at, at + length)
            block.withdrawn.update(fresh)
            self.touch()
            self.moves.append(Move(block.first + at, length, 0, NOBODY, Publisher.UNAVAILABLE, now))
            if block.hidden is not None:
                block.hidden.difference_update(fresh)
            self.counts["withdrawn"] += length
            for part in block.parts:
                self.expire_part(part, at, length, now)

    def empty(self, now: int) -> Iterator[None]:
        """Everything is withdrawn, and nobody is a subscriber any more; in steps. Nothing is put meanwhile."""
        yield from self.all_leave(now)
        for block in list(self.blocks.values()):
            self.withdraw(block, 0, block.count, now)
            yield
        for subscriber in list(self.subscribers):
            yield from self.unsubscribe(subscriber, now)

    def delete(self, block: Block, at: int, now: int) -> None:
        """A message that was only PUT is DELETED: it does not count. Raises IllegalMove."""
        if block.hidden is None or at not in block.hidden:
            raise IllegalMove(f"DELETE: message {block.first + at} is not PUT and unrevealed")
        block.hidden.discard(at)
        block.withdrawn = {*(block.withdrawn or ()), at}
        self.touch()
        self.moves.append(Move(block.first + at, 1, 0, NOBODY, Publisher.DELETED, now))
        for part in block.parts:
            self.expire_part(part, at, 1, now)

    def reveal(self, block: Block, start: int, count: int, now: int) -> None:
        """The publisher makes messages available that were only PUT. Raises IllegalMove."""
        hidden = block.hidden or set()
        if not hidden.issuperset(range(start, start + count)):
            raise IllegalMove(f"REVEAL: messages {block.first + start} to {block.first + start + count - 1} are not PUT and unrevealed")
        hidden.difference_update(range(start, start + count))
        self.touch()
        self.moves.append(Move(block.first + start, count, 0, NOBODY, Publisher.REVEALED, now))
        if block.key.due <= now:
            self._wake(block, start, count)

    def _wake(self, block: Block, start: int, count: int) -> None:
        for part in block.parts[:1] if block.key.ordered else block.parts:
            if not block.hidden:
                self._free(part, start, count)
            else:
                for at in range(start, start + count):
                    if at not in block.hidden:
                        self._free(part, at, 1)

    def reveal_again(self, block: Block, index: int, name: str, now: int) -> None:
        """A message that a subscriber could not use is revealed again to it alone (row Q4). Raises IllegalMove."""
        member = self.members.get(name)
        taken = [one for one in block.parts if member is not None and one.takers[index] == member.number]
        part = taken[0] if taken else None
        if part is None or member is None or block.unusable is None or (part.index, index) not in block.unusable:
            raise IllegalMove(f"REVEAL AGAIN: message {block.first + index} is not UNUSABLE for {name!r}")
        if 0 < block.key.expires <= now:
            raise IllegalMove(f"REVEAL AGAIN: the time of message {block.first + index} is over")
        step(Subscriber(part.states[index]), Step.REVEAL_AGAIN)
        self.release(now)  # what was said before stands before it
        self.open_again(block, part, index, member)
        self.touch()
        self.moves.append(Move(block.first + index, 1, part.index, NOBODY, Publisher.REVEALED, now))
        self.moves.append(Move(block.first + index, 1, part.index, member.number, FREE, now))

    # ---- time

    @property
    def deadline(self) -> int:
        """When `handle_timer` is to be called; 0: never."""
        return self._timers.next

    def handle_timer(self, now: int, most: int = EVERYTHING) -> bool:
        """Delays that are over, and lives: whether something was due. most: how much of it is looked at now."""
        any_due = False
        while most > 0 and 0 < self._timers.next <= now:
            any_due = True
            self.touch()
            when, item = self._timers.pop()
            most -= 1
            if isinstance(item, tuple):
                if item[0].block.first in self.blocks:
                    self._free(*item)
                continue
            most -= item.count // 8
            if item.key.due == when:
                self._wake(item, 0, item.count)
            if 0 < item.key.expires <= now:
                self.expire(item, 0, item.count, now)
        return any_due


def _may_have(lane: Lane, member: Member, meta: Meta) -> bool:
    """Whether the message group of a message is nobody else's."""
    return not meta.group or lane.owners.get(bucket_of(meta.group), member.number) == member.number
