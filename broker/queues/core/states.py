"""The states of a message in a queue: one table for its publisher, one for each of its subscribers (US 6,970,945; rows Q1 to Q5).

    publisher    PUT -> REVEALED -> JOURNALLED -> DELETED            UNAVAILABLE: withdrawn
    subscriber   CLEAN -> GET -> FETCHED [-> IN PROCESS] -> DONE     -> JOURNALLED
                                                         -> UNUSABLE -> JOURNALLED [-> CLEAN: revealed again to it alone]
                 CLEAN, GET, FETCHED, IN PROCESS -> EXPIRED          -> JOURNALLED

The source has no state before GET. Its recovery steps name one, "Clean": nothing is done yet, or what was begun does not count. Here it
is the state in which each subscriber begins. JOURNALLED (IMPLIED) is JOURNALLED for a subscriber that did not say it itself.

In a pool the first free member takes a message. It is EXPIRED for the others, by selection, and CLEAN for them again when the taker
returns it: the publisher's state is REVEALED all the time.

`PUBLISHER` and `SUBSCRIBER` are the whole machine; `reveal` and the like are inputs. A pair that is in no table is refused.

What it does not know: messages, members, times.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar


class Publisher(IntEnum):
    """Where a message stands for its publisher."""

    PUT = 1
    REVEALED = 2
    UNAVAILABLE = 3
    JOURNALLED = 4
    DELETED = 5


class Subscriber(IntEnum):
    """Where a message stands for one subscriber."""

    CLEAN = 0
    GET = 11
    FETCHED = 12
    IN_PROCESS = 13
    UNUSABLE = 14
    DONE = 15
    EXPIRED = 16
    JOURNALLED = 17
    JOURNALLED_IMPLIED = 18


class Act(IntEnum):
    """What the publisher, the clock or an administrator does to a message."""

    REVEAL = 1
    WITHDRAW = 2
    JOURNAL = 3
    REVEAL_AGAIN = 4
    DELETE = 5


class Step(IntEnum):
    """What happens to a message at one subscriber."""

    GET = 1
    FETCH = 2
    PROCESS = 3
    DONE = 4
    FAIL = 5
    RETURN = 6
    EXPIRE = 7
    SELECT = 8
    RELEASE = 9
    JOURNAL = 10
    IMPLY = 11
    REVEAL_AGAIN = 12


_P, _S = Publisher, Subscriber

PUBLISHER: dict[tuple[Publisher, Act], Publisher] = {
    (_P.PUT, Act.REVEAL): _P.REVEALED,
    (_P.PUT, Act.WITHDRAW): _P.UNAVAILABLE,
    (_P.PUT, Act.JOURNAL): _P.JOURNALLED,  # it expired before it was revealed
    (_P.PUT, Act.DELETE): _P.DELETED,
    (_P.REVEALED, Act.WITHDRAW): _P.UNAVAILABLE,
    (_P.REVEALED, Act.JOURNAL): _P.JOURNALLED,
    (_P.REVEALED, Act.REVEAL_AGAIN): _P.REVEALED,
    (_P.UNAVAILABLE, Act.DELETE): _P.DELETED,
    (_P.JOURNALLED, Act.REVEAL_AGAIN): _P.REVEALED,
    (_P.JOURNALLED, Act.DELETE): _P.DELETED,
}

SUBSCRIBER: dict[tuple[Subscriber, Step], Subscriber] = {
    (_S.CLEAN, Step.GET): _S.GET,
    (_S.GET, Step.FETCH): _S.FETCHED,
    (_S.FETCHED, Step.PROCESS): _S.IN_PROCESS,
    (_S.FETCHED, Step.DONE): _S.DONE,
    (_S.IN_PROCESS, Step.DONE): _S.DONE,
    (_S.GET, Step.FAIL): _S.UNUSABLE,
    (_S.FETCHED, Step.FAIL): _S.UNUSABLE,
    (_S.IN_PROCESS, Step.FAIL): _S.UNUSABLE,
    (_S.GET, Step.RETURN): _S.CLEAN,
    (_S.FETCHED, Step.RETURN): _S.CLEAN,
    (_S.IN_PROCESS, Step.RETURN): _S.CLEAN,
    (_S.CLEAN, Step.EXPIRE): _S.EXPIRED,
    (_S.GET, Step.EXPIRE): _S.EXPIRED,
    (_S.FETCHED, Step.EXPIRE): _S.EXPIRED,
    (_S.IN_PROCESS, Step.EXPIRE): _S.EXPIRED,
    (_S.CLEAN, Step.SELECT): _S.EXPIRED,
    (_S.EXPIRED, Step.RELEASE): _S.CLEAN,
    (_S.UNUSABLE, Step.JOURNAL): _S.JOURNALLED,
    (_S.DONE, Step.JOURNAL): _S.JOURNALLED,
    (_S.EXPIRED, Step.JOURNAL): _S.JOURNALLED,
    (_S.UNUSABLE, Step.IMPLY): _S.JOURNALLED_IMPLIED,
    (_S.DONE, Step.IMPLY): _S.JOURNALLED_IMPLIED,
    (_S.EXPIRED, Step.IMPLY): _S.JOURNALLED_IMPLIED,
    (_S.UNUSABLE, Step.REVEAL_AGAIN): _S.CLEAN,
    (_S.JOURNALLED, Step.REVEAL_AGAIN): _S.CLEAN,
    (_S.JOURNALLED_IMPLIED, Step.REVEAL_AGAIN): _S.CLEAN,
}

HELD = frozenset((_S.GET, _S.FETCHED, _S.IN_PROCESS))  # a member has the message
OUTCOMES = frozenset((_S.DONE, _S.UNUSABLE, _S.EXPIRED))  # what a subscriber's part ends with
JOURNALLED = frozenset((_S.JOURNALLED, _S.JOURNALLED_IMPLIED))
FINAL = frozenset((_P.UNAVAILABLE, _P.JOURNALLED, _P.DELETED))  # no member gets it any more

State = TypeVar("State", Publisher, Subscriber)


class IllegalMove(ValueError):
    """A state does not allow what was asked for; one line says which, and what it allows."""


def name_of(state: Publisher | Subscriber) -> str:
    """The state as the source writes it: IN PROCESS, JOURNALLED (IMPLIED)."""
    return "JOURNALLED (IMPLIED)" if state is Subscriber.JOURNALLED_IMPLIED else state.name.replace("_", " ")


def act(state: Publisher, what: Act) -> Publisher:
    """The publisher's next state. Raises IllegalMove."""
    after = PUBLISHER.get((state, what))
    if after is None:
        raise IllegalMove(_refusal("message", state, what, [one.name for before, one in PUBLISHER if before is state]))
    return after


def step(state: Subscriber, what: Step) -> Subscriber:
    """One subscriber's next state. Raises IllegalMove."""
    after = SUBSCRIBER.get((state, what))
    if after is None:
        raise IllegalMove(_refusal("subscriber's message", state, what, [one.name for before, one in SUBSCRIBER if before is state]))
    return after


def _refusal(whose: str, state: Publisher | Subscriber, what: Act | Step, allowed: list[str]) -> str:
    may = ", ".join(allowed) if allowed else "nothing"
    return f"{what.name}: a {whose} that is {name_of(state)} allows {may}"
