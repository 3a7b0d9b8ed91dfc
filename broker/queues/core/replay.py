"""Do again what the log says, so that a queue is as it was (docs/queues.md, "After a crash").

A move that was written was allowed when it was made. So nothing is asked here, the rules of today do not matter, and nothing is written.
What the move is about may be gone: then it is at an end, and nobody needs it.

What it does not know: files.
"""

from __future__ import annotations

from collections.abc import Iterable

from .blocks import APART, FREE, HELD_BYTES, NOBODY, WAITS, Block, Part, Place
from .queue import Queue
from .states import OUTCOMES, Publisher, Subscriber
from .stock import ENDS, PRIORITY, Member, Move, gaps, runs_within

_HELD = frozenset(HELD_BYTES)
_OUTCOMES = frozenset(map(int, OUTCOMES))


def replay(queue: Queue, move: Move) -> Block | None:
    """Apply one move of the log: the block that it is about; None: that is gone."""
    block = queue.find(move.first)
    if block is None:
        return None
    start = move.first - block.first
    if move.state in (Publisher.UNAVAILABLE, Publisher.DELETED, Publisher.REVEALED):
        _publisher(queue, block, start, move)
        queue.moves.clear()
        return block
    if move.state >= PRIORITY:
        for at in range(start, start + move.length):
            queue.set_priority(block, at, move.state - PRIORITY)
        return block
    part = block.parts[move.part]
    if move.state == FREE:
        _returned(queue, part, start, move)
    elif move.member == NOBODY:
        queue.expire_part(part, start, move.length, move.at)
    else:
        _member(queue, part, start, move)
    queue.moves.clear()
    return block


def replay_subscriber(queue: Queue, name: str, how: int) -> None:
    """Somebody is a subscriber, or none any more: what was put for it by then expires when all is read."""
    if how:
        queue.subscribe(name, how == ENDS)
    else:
        queue.subscribers.pop(name, None)
        queue.left[name] = queue.next
    queue.changed.clear()


def replay_carried(queue: Queue, block: Block, runs: list[tuple[int, int]], place: Place, moves: Iterable[Move]) -> None:
    """A block is written again: these messages of it are left. What is known of it already stands; else the moves say it."""
    known = queue.blocks.get(block.first)
    if known is None:
        queue.number_groups(block)
        queue.add(block, block.at)
        _close_others(queue, block, runs)
        block.place = place
        for move in moves:
            replay(queue, move)
        return
    _close_others(queue, known, runs)
    queue.thin(known, runs, place)


def _close_others(queue: Queue, block: Block, runs: list[tuple[int, int]]) -> None:
    """All but these messages of a block are at an end, whatever the rules of today say of them."""
    others = gaps(runs, block.count)
    for part in block.parts:
        marks = queue.open_marks(part)
        for start, count in others:
            states = part.states[start : start + count]
            for at, length, _ in runs_within(part, start, count, *_HELD):
                for one in range(at, at + length):
                    queue.let_go(_who(queue, part.takers[one]), part, 1)
            free, waits, opened = states.count(FREE), states.count(WAITS) + states.count(APART), sum(marks[start : start + count])
            part.mark(start, count, Subscriber.JOURNALLED)
            part.free -= free
            part.lane.waiting -= free + waits
            queue.waiting -= free + waits
            part.open -= opened
            block.left -= opened
    if block.hidden is not None:
        for start, count in others:
            block.hidden.difference_update(range(start, start + count))


def _who(queue: Queue, number: int) -> Member:
    """The member of a number. If the record of its name is damaged, the number is its name."""
    name = queue.names.get(number)
    return queue.members[name] if name is not None and name in queue.members else queue.know(number, name or f"member {number}")


def _publisher(queue: Queue, block: Block, start: int, move: Move) -> None:
    indexes = range(start, start + move.length)
    if move.state in (Publisher.UNAVAILABLE, Publisher.DELETED):
        block.withdrawn = (block.withdrawn or set()).union(indexes)
        if block.hidden is not None:
            block.hidden.difference_update(indexes)
    elif block.hidden is not None and block.hidden.issuperset(indexes):
        queue.reveal(block, start, move.length, move.at)
    # else it is revealed again to one subscriber: the next move says to whom


def _member(queue: Queue, part: Part, start: int, move: Move) -> None:
    member = _who(queue, move.member)
    if move.state == Subscriber.GET:
        for at in range(start, start + move.length):
            queue.free_again(part, at)
        queue.give(member, part, start, move.length, move.at, [])
    elif move.state in _HELD:
        part.mark(start, move.length, move.state)
    elif move.state in _OUTCOMES:
        held = part.has(start, move.length, member.number)
        part.mark(start, move.length, move.state)
        if held:
            queue.let_go(member, part, move.length)
        if move.state == Subscriber.UNUSABLE:
            part.note_unusable(start, move.length)
        queue.ended(part, start, move.length)
    else:
        for at in range(start, start + move.length):
            if part.takers[at] == member.number:  # else it is gone
                queue.journal(member.name, part, at, 1, move.at)


def _returned(queue: Queue, part: Part, start: int, move: Move) -> None:
    member = _who(queue, move.member)
    for at in range(start, start + move.length):
        if part.states[at] in _HELD:
            queue.let_go(member, part, 1)
            part.note_return(at, 1, member.number, move.at)
            queue.clean(member, part, at, 1, 0, move.at)
        elif part.block.unusable is not None and (part.index, at) in part.block.unusable:
            queue.open_again(part.block, part, at, member)
