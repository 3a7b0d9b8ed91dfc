"""The parents' side: whether a child counts, and what becomes of its parents then (steps 2 and 3 of the source's recovery).

A child counts if one of its parents is DONE, or its publisher has one. Then all parents become DONE that the publisher has, or that nobody
has. If it does not count, its parents stay CLEAN: somebody else works them, and makes another child.

What it does not know: children, other sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from typing import TYPE_CHECKING

from ..core.blocks import FREE, Part
from ..core.queue import Queue
from ..core.states import Subscriber

if TYPE_CHECKING:
    from ..core.stock import Move
    from .lineage import Parent

History = Callable[[Queue, int], "Generator[None, None, list[Move]]"]
_DONE = (Subscriber.DONE, Subscriber.JOURNALLED, Subscriber.JOURNALLED_IMPLIED)


def part_held(queue: Queue, position: int, names: Collection[str]) -> tuple[Part, int] | None:
    """The part of a message that one of these members has, with its index; None: they have not."""
    block = queue.find(position)
    numbers = {queue.members[name].number for name in names if name in queue.members}
    for part in block.parts if block is not None else ():
        at = position - part.block.first
        if part.takers[at] in numbers and part.has(at, 1, part.takers[at]):
            return part, at
    return None


def is_done(queue: Queue, position: int, history: History) -> Generator[None, None, bool]:
    """Whether somebody has worked a message; also if it is at an end, as long as the log has it. In steps."""
    block = queue.find(position)
    if block is not None:
        return any(part.states[position - block.first] == Subscriber.DONE for part in block.parts)
    if position >= queue.next:
        return False
    moves = yield from history(queue, position)
    return any(move.state in _DONE for move in moves)


def counts(queue: Queue, position: int, names: Collection[str], history: History) -> Generator[None, None, bool]:
    """Whether a child counts by what this parent is. names: under which its publisher may be a member. In steps."""
    if part_held(queue, position, names) is not None:
        return True
    found = yield from is_done(queue, position, history)
    return found


def settle(queue_of: Callable[[str], Queue | None], parents: Iterable[Parent], names: Collection[str], now: int) -> None:
    """The child counts: its parents are DONE, but those that others have."""
    for name, position in parents:
        queue = queue_of(name)
        if queue is None:
            continue
        held = part_held(queue, position, names)
        if held is None:
            held = _take(queue, position, names, now)
        if held is not None:
            part, at = held
            member = queue.members[queue.names[part.takers[at]]]
            queue.settle(member, part, at, 1, Subscriber.DONE, now)


def _take(queue: Queue, position: int, names: Collection[str], now: int) -> tuple[Part, int] | None:
    """Have the publisher take a message that nobody has."""
    block = queue.find(position)
    name = next((one for one in names if one in queue.members), None)
    if block is None or name is None:
        return None
    at = position - block.first
    for part in block.parts:
        if part.states[at] == FREE and (not part.lane.group or name in part.lane.group):
            queue.give(queue.members[name], part, at, 1, now, [])
            return part, at
    return None
