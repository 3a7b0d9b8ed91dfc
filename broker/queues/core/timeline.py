"""The history of one message: every state of its publisher and of each subscriber, with its time (rows Q1 to Q3; figure 5 of the source).

The log has what was said: ranges of moves. What follows from it is put in here: FETCHED before a DONE that came without it; EXPIRED for
the others of a pool while one member has the message, CLEAN when that one returns it; JOURNALLED (IMPLIED), and the publisher's JOURNALLED,
as soon as every group is through. Each step is a move of the tables: a log that says anything else raises `IllegalMove`.

What it does not know: the log, the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .blocks import NOBODY, Block
from .states import HELD, OUTCOMES, Act, Publisher, Step, Subscriber, act, step
from .stock import PRIORITY, Move

_STEPS = {
    Subscriber.GET: Step.GET,
    Subscriber.FETCHED: Step.FETCH,
    Subscriber.IN_PROCESS: Step.PROCESS,
    Subscriber.DONE: Step.DONE,
    Subscriber.UNUSABLE: Step.FAIL,
    Subscriber.EXPIRED: Step.EXPIRE,
    Subscriber.JOURNALLED: Step.JOURNAL,
}


class Timeline:
    """publisher: (state, since when), in order. subscribers: the same of each, by name.

    priorities: (priority, since when) that it was given later. Times in milliseconds since 1970.
    """

    def __init__(self, block: Block, groups: Iterable[Iterable[str]], explicit: bool) -> None:
        self.publisher: list[tuple[Publisher, int]] = [(Publisher.PUT, block.at)]
        if block.key.revealed:
            self.publisher.append((act(Publisher.PUT, Act.REVEAL), block.at))
        self.groups = [set(group) for group in groups]
        self.subscribers: dict[str, list[tuple[Subscriber, int]]] = {
            name: [(Subscriber.CLEAN, block.at)] for group in self.groups for name in sorted(group)
        }
        self.priorities: list[tuple[int, int]] = []
        self._explicit = explicit
        self._again = False

    def state(self, name: str) -> Subscriber:
        """A subscriber's state now."""
        return self.subscribers[name][-1][0]

    def _move(self, name: str, what: Step, at: int) -> None:
        self.subscribers[name].append((step(self.state(name), what), at))

    def apply(self, move: Move, name: str) -> None:
        """One move of the log. name: of its member; "" for nobody. Raises IllegalMove."""
        at = move.at
        if move.state >= PRIORITY:
            self.priorities.append((move.state - PRIORITY, at))
            return
        if move.member == NOBODY and move.state in Publisher.__members__.values():
            self._publisher(Publisher(move.state), at)
            return
        state = Subscriber(move.state)
        group = self.groups[move.part]
        if move.member == NOBODY:
            for one in sorted(group):
                if self.state(one) is Subscriber.CLEAN:
                    self._move(one, Step.EXPIRE, at)
        elif state is Subscriber.CLEAN:
            self._clean(name, group, at)
        else:
            if state in (Subscriber.DONE, Subscriber.IN_PROCESS) and self.state(name) is Subscriber.GET:
                self._move(name, Step.FETCH, at)
            self._move(name, _STEPS[state], at)
            if state is Subscriber.GET:
                for other in sorted(group - {name}):
                    if self.state(other) is Subscriber.CLEAN:
                        self._move(other, Step.SELECT, at)
        self._look(at)

    def _publisher(self, state: Publisher, at: int) -> None:
        last = self.publisher[-1][0]
        if state is Publisher.UNAVAILABLE:
            self.publisher.append((act(last, Act.WITHDRAW), at))
        elif state is Publisher.DELETED:
            self.publisher.append((act(last, Act.DELETE), at))
        elif last is Publisher.PUT:
            self.publisher.append((act(last, Act.REVEAL), at))
        else:
            self.publisher.append((act(last, Act.REVEAL_AGAIN), at))
            self._again = True

    def _clean(self, name: str, group: set[str], at: int) -> None:
        if self._again:
            self._again = False
            self._move(name, Step.REVEAL_AGAIN, at)
            return
        self._move(name, Step.RETURN, at)
        for other in sorted(group - {name}):
            if self.state(other) is Subscriber.EXPIRED:
                self._move(other, Step.RELEASE, at)

    def _look(self, at: int) -> None:
        """Whether everybody is through."""
        last = self.publisher[-1][0]
        if last not in (Publisher.REVEALED, Publisher.PUT):
            return
        for group in self.groups:
            states = [self.state(name) for name in group]
            if any(state in HELD or state is Subscriber.CLEAN for state in states):
                return
            said = any(state is Subscriber.JOURNALLED for state in states)
            worked = any(state in (Subscriber.DONE, Subscriber.UNUSABLE) for state in states)
            if self._explicit and worked and not said:
                return
        self.publisher.append((act(last, Act.JOURNAL), at))
        for name in self.subscribers:
            if self.state(name) in OUTCOMES:
                self._move(name, Step.IMPLY, at)


def timeline(block: Block, moves: Iterable[Move], names: Mapping[int, str], members: Iterable[str], explicit: bool = False) -> Timeline:
    """The history of a message. Raises IllegalMove.

    moves: of it, in order. names: of members, by number. members: who belongs to a pool of everybody.
    """
    moves = list(moves)
    here = {names[move.member] for move in moves if move.member != NOBODY}
    named = {name for group in block.key.groups for name in group}
    groups = [group or (set(members) | here) - named for group in block.key.groups]
    found = Timeline(block, groups, explicit)
    for move in moves:
        found.apply(move, names[move.member])
    return found
