"""How one message stands now: its publisher's state and each subscriber's, as the tables have them (rows Q1 to Q3, Q24).

A part keeps one byte for its whole group: the state of who has the message. The rest follows: for the others of the group the message is
EXPIRED, by selection, and CLEAN again when it is returned; and what has an outcome is JOURNALLED (IMPLIED) as soon as all groups have one.

What it does not know: when that was (`timeline.py`).
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice
from typing import NamedTuple

from .blocks import CLEAN_BYTES, NOBODY, Block, Part
from .states import OUTCOMES, Publisher, Subscriber
from .stock import Stock


class Standing(NamedTuple):
    """publisher: the publisher's state. subscribers: each one's, by name. needed: who may still get the message."""

    publisher: Publisher
    subscribers: dict[str, Subscriber]
    needed: list[str]


def standing(queue: Stock, block: Block, index: int, most: int | None = None) -> Standing:
    """How a message stands. index: in its block. most: of a pool no more members than so many, with the one that has it."""
    publisher = publisher_of(queue, block, index)
    found: dict[str, Subscriber] = {}
    for part in block.parts:
        for name in sorted(part.lane.group) or _pool(queue, part.takers[index], found, most):
            state = _of(part, index, queue.members[name].number)
            if state in OUTCOMES and publisher is Publisher.JOURNALLED:
                state = Subscriber.JOURNALLED_IMPLIED
            found[name] = state
    return Standing(publisher, found, [name for name, state in found.items() if state is Subscriber.CLEAN])


def _pool(queue: Stock, taker: int, others: Container[str], most: int | None) -> list[str]:
    names = list(islice((name for name in queue.members if name not in others), most))
    if taker and (who := queue.names[taker]) not in others and who not in names:
        names.append(who)
    return names


def publisher_of(queue: Stock, block: Block, index: int) -> Publisher:
    """The publisher's state of a message."""
    if block.withdrawn is not None and index in block.withdrawn:
        return Publisher.UNAVAILABLE
    if block.hidden is not None and index in block.hidden:
        return Publisher.PUT
    return Publisher.JOURNALLED if all(_ended(queue, part, index) for part in block.parts) else Publisher.REVEALED


def _ended(queue: Stock, part: Part, index: int) -> bool:
    state = part.states[index]
    if state == Subscriber.JOURNALLED:
        return True
    if state not in OUTCOMES:
        return False
    return not queue.rules.explicit or part.takers[index] == NOBODY or part.implied(index)


def _of(part: Part, index: int, number: int) -> Subscriber:
    state, taker = part.states[index], part.takers[index]
    if taker in (NOBODY, number):
        return Subscriber.CLEAN if state in CLEAN_BYTES else Subscriber(state)
    return Subscriber.EXPIRED
