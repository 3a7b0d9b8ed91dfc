"""Do again what the log says, so that a queue is as it was (docs/queues.md, "After a crash").

A move that was written was allowed when it was made. So nothing is asked here, the rules of today do not matter, and nothing is written.
What the move is about may be gone: then it is at an end, and nobody needs it.

What it does not know: files.
"""

from __future__ import annotations

from .blocks import FREE, HELD_BYTES, NOBODY, WAITS, Block, Part
from .queue import Queue
from .states import OUTCOMES, Publisher, Subscriber
from .stock import Member, Move

_HELD = frozenset(HELD_BYTES)
_OUTCOMES = frozenset(map(int, OUTCOMES))


def replay(queue: Queue, move: Move) -> None:
    """Apply one move of the log."""
    block = queue.find(move.first)
    if block is None:
        return
    start = move.first - block.first
    if move.state in (Publisher.UNAVAILABLE, Publisher.REVEALED):
        _publisher(queue, block, start, move)
        queue.moves.clear()
        return
    part = block.parts[move.part]
    if move.state == FREE:
        _returned(queue, part, start, move)
    elif move.member == NOBODY:
        queue.expire_part(part, start, move.length, move.at)
    else:
        _member(queue, part, start, move)
    queue.moves.clear()


def _publisher(queue: Queue, block: Block, start: int, move: Move) -> None:
    indexes = range(start, start + move.length)
    if move.state == Publisher.UNAVAILABLE:
        block.withdrawn = (block.withdrawn or set()).union(indexes)
        if block.hidden is not None:
            block.hidden.difference_update(indexes)
    elif block.hidden is not None and block.hidden.issuperset(indexes):
        queue.reveal(block, start, move.length, move.at)
    # else it is revealed again to one subscriber: the next move says to whom


def _member(queue: Queue, part: Part, start: int, move: Move) -> None:
    member = queue.member(queue.names[move.member])
    if move.state == Subscriber.GET:
        for at in range(start, start + move.length):
            if part.states[at] == WAITS:
                part.takers[at] = NOBODY
                part.mark(at, 1, FREE)
                part.free += 1
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
        queue.journal(member.name, part, start, move.length, move.at)


def _returned(queue: Queue, part: Part, start: int, move: Move) -> None:
    member: Member = queue.member(queue.names[move.member])
    for at in range(start, start + move.length):
        if part.states[at] in _HELD:
            queue.let_go(member, part, 1)
            part.note_return(at, member.number, move.at)
            queue.clean(member, part, at, 0, move.at)
        elif part.block.unusable is not None and (part.index, at) in part.block.unusable:
            queue.open_again(part.block, part, at, member)
