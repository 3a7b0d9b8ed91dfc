"""The state of one recipient: one table, fed with what happens and the time (US 8,078,902, rows F1 to F5, F9 to F11).

    OPERATIONAL --fault interval without a success--> FAULT --defunct interval--> DEFUNCT
         ^-------------- a success, or a new connection ---------'----------------'

Strategy: `TABLE` says for each state and input the next state and what is to be done. `Machine` keeps the times around it: since when the
recipient has failed to take anything, and when an interval is over. It returns actions as data; who feeds it carries them out.

Invariants
- FAULT begins only if nothing succeeded for the whole fault interval while there was something to deliver, or nobody who could take it, or
  while a message failed in it;
- the defunct interval begins where FAULT begins;
- times given to `feed` and `due` do not run backwards: they are the loop's clock, so that a jump of the wall clock changes nothing.

What it does not know: messages, sessions, clocks.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from .settings import DEFAULT, Intervals

HISTORY = 20  # changes that are kept


class State(Enum):
    """Whether a recipient takes messages."""

    OPERATIONAL = "operational"
    FAULT = "fault"
    DEFUNCT = "defunct"


class Input(Enum):
    """What happens to a recipient."""

    ATTEMPT = "there is a message to be delivered"
    SUCCESS = "a message was acknowledged"
    FAILED = "a message has used up its own message interval"
    CLEARED = "nothing is left to be delivered: it expired, was cancelled or taken away"
    CONNECTED = "its client has connected"
    DESERTED = "nobody serves it any more"
    FAULT_OVER = "nothing was acknowledged during the fault interval"
    DEFUNCT_OVER = "nothing was acknowledged during the defunct interval"
    DECLARED = "an operator declares it defunct"


class Action(Enum):
    """What is to be done."""

    FAIL_OVER = "take all messages but the probe away, and new ones as they come"
    CLOSE = "close the connection, take the probe away too"
    RESTORE = "deliver to it again"


_S, _I, _A = State, Input, Action
_STAY: tuple[Action, ...] = ()

# (state, input) -> (next state, actions). A pair that is not here cannot happen: `step` raises ValueError.
TABLE: dict[tuple[State, Input], tuple[State, tuple[Action, ...]]] = {
    (_S.OPERATIONAL, _I.ATTEMPT): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.SUCCESS): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.FAILED): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.CLEARED): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.CONNECTED): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.DESERTED): (_S.OPERATIONAL, _STAY),
    (_S.OPERATIONAL, _I.FAULT_OVER): (_S.FAULT, (_A.FAIL_OVER,)),
    (_S.OPERATIONAL, _I.DECLARED): (_S.DEFUNCT, (_A.CLOSE,)),
    (_S.FAULT, _I.ATTEMPT): (_S.FAULT, _STAY),
    (_S.FAULT, _I.SUCCESS): (_S.OPERATIONAL, (_A.RESTORE,)),
    (_S.FAULT, _I.FAILED): (_S.FAULT, _STAY),
    (_S.FAULT, _I.CLEARED): (_S.FAULT, _STAY),
    (_S.FAULT, _I.CONNECTED): (_S.OPERATIONAL, (_A.RESTORE,)),
    (_S.FAULT, _I.DESERTED): (_S.FAULT, _STAY),
    (_S.FAULT, _I.DEFUNCT_OVER): (_S.DEFUNCT, (_A.CLOSE,)),
    (_S.FAULT, _I.DECLARED): (_S.DEFUNCT, (_A.CLOSE,)),
    (_S.DEFUNCT, _I.ATTEMPT): (_S.DEFUNCT, _STAY),
    (_S.DEFUNCT, _I.SUCCESS): (_S.OPERATIONAL, (_A.RESTORE,)),
    (_S.DEFUNCT, _I.FAILED): (_S.DEFUNCT, _STAY),
    (_S.DEFUNCT, _I.CLEARED): (_S.DEFUNCT, _STAY),
    (_S.DEFUNCT, _I.CONNECTED): (_S.OPERATIONAL, (_A.RESTORE,)),
    (_S.DEFUNCT, _I.DESERTED): (_S.DEFUNCT, _STAY),
    (_S.DEFUNCT, _I.DECLARED): (_S.DEFUNCT, _STAY),
}


def step(state: State, event: Input) -> tuple[State, tuple[Action, ...]]:
    """One move of the table. ValueError for an input that the state does not have."""
    found = TABLE.get((state, event))
    if found is None:
        raise ValueError(f"{event.name} in {state.name}")
    return found


class Change(NamedTuple):
    """One change of state. at: on the clock of `Machine`."""

    at: float
    before: State
    after: State
    why: str


class Machine:
    """The state of one recipient and its times, in seconds of the caller's clock.

    since: when the state began. failing: since when nothing has succeeded though there is, or was, something to deliver, or since when
    nobody serves it; None: nothing fails. succeeded: the last success, None before the first. history: the last changes, oldest first.
    """

    __slots__ = ("_lost", "failing", "history", "intervals", "since", "state", "succeeded")

    def __init__(self, now: float, intervals: Intervals = DEFAULT) -> None:
        self.intervals = intervals
        self.state = State.OPERATIONAL
        self.since = now
        self.failing: float | None = None
        self.succeeded: float | None = None
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self._lost = False  # a message has failed since the last success

    def restore(self, state: State, since: float, failing: float | None) -> None:
        """Take up where an earlier life of the broker was (row F19)."""
        self.state, self.since, self.failing = state, since, failing
        self._lost = failing is not None

    def feed(self, event: Input, now: float, left: bool = False, why: str = "") -> tuple[Action, ...]:
        """What happened: what is to be done. left: something is still to be delivered. why: in words, for the history."""
        before = self.state
        self.state, actions = step(before, event)
        if self.state is not before:
            self.since = now
            self.history.append(Change(now, before, self.state, why or event.value))
        self._time(event, now, left)
        return actions

    def _time(self, event: Input, now: float, left: bool) -> None:
        if event is Input.SUCCESS:
            self.succeeded = now
        if event in (Input.SUCCESS, Input.CONNECTED) and (event is Input.SUCCESS or self.since == now):
            self.failing, self._lost = (now if left else None), False
        elif event in (Input.ATTEMPT, Input.DESERTED) and self.failing is None:
            self.failing = now
        elif event is Input.FAILED:
            self._lost = True
            if self.failing is None:
                self.failing = now
        elif event is Input.CLEARED and not self._lost:
            self.failing = None

    @property
    def deadline(self) -> float | None:
        """When `due` has something to do next."""
        if self.state is State.OPERATIONAL:
            return None if self.failing is None else self.failing + self.intervals.fault
        return self.since + self.intervals.defunct if self.state is State.FAULT else None

    def due(self, now: float) -> Input | None:
        """The interval that is over, to be fed; None: none is."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return None
        return Input.FAULT_OVER if self.state is State.OPERATIONAL else Input.DEFUNCT_OVER
