"""What every broker knows of every recipient, and the choice of an alternative from it.

A home broker tells all others its recipients and each change of their states, so that a dead alternative costs nothing. `choose` is pure:
`explain` shows what it does, and the fail-over does it (rows F7, F8, F12, F16).

What it does not know: sessions, brokers' links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgpack

from ..machine import State
from ..settings import EVERYBODY, Application, Intervals

FORM = 1
LONGEST_CHAIN = 256  # recipients that are tried for one message


@dataclass(slots=True)
class Record:
    """One recipient as other brokers know it.

    broker: number of its home. site: the home's name. state, since: and when it began, in seconds since 1970. held: an operator holds it.
    queue: messages that waited when this was said.
    """

    name: str
    broker: int
    site: str
    state: State = State.OPERATIONAL
    since: float = 0.0
    alternatives: list[str] = field(default_factory=list)
    consents: list[str] = field(default_factory=lambda: [EVERYBODY])
    probe: bool = False
    held: bool = False
    queue: int = 0

    def takes(self, name: str) -> bool:
        """Whether it agrees to be the alternative of another recipient."""
        return EVERYBODY in self.consents or name in self.consents

    def row(self) -> list[object]:
        """As it travels."""
        fixed = [self.name, self.broker, self.site, self.state.value, self.since]
        return [*fixed, self.alternatives, self.consents, self.probe, self.held, self.queue]


def encode(records: Iterable[Record], gone: Iterable[str] = (), whole: bool = False) -> bytes:
    """Records as they travel. gone: names that are no recipients any more. whole: these are all of the broker."""
    packed: bytes = msgpack.packb([FORM, [record.row() for record in records], list(gone), whole])
    return packed


def decode(body: bytes) -> tuple[list[Record], list[str], bool]:
    """The reverse: (records, names that are gone, whether these are all). Raises ValueError."""
    try:
        form, rows, gone, whole = msgpack.unpackb(body)
        if form != FORM:
            raise ValueError(f"form {form}, this version reads {FORM}")
        found = []
        for name, broker, site, state, since, alternatives, consents, probe, held, queue in rows:
            found.append(Record(name, broker, site, State(state), since, alternatives, consents, probe, held, queue))
        return found, gone, whole
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"records of recipients: {error}") from None


def encode_application(application: Application) -> bytes:
    """An application as its home takes it up."""
    one = application
    packed: bytes = msgpack.packb(
        [FORM, one.name, one.clients, one.topics, one.alternatives, list(one.intervals), one.probe, one.consents, one.broker]
    )
    return packed


def decode_application(body: bytes) -> Application:
    """The reverse. Raises ValueError."""
    try:
        form, name, clients, topics, alternatives, intervals, probe, consents, broker = msgpack.unpackb(body)
        if form != FORM:
            raise ValueError(f"form {form}, this version reads {FORM}")
        return Application(name, clients, topics, alternatives, Intervals(*intervals), probe, consents, broker)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"an application: {error}") from None


class Step(NamedTuple):
    """One recipient that was looked at. answer: in words. taken: the message goes there."""

    recipient: str
    site: str
    state: str
    answer: str
    taken: bool = False


def choose(
    first: str,
    tried: Sequence[str],
    find: Callable[[str], Record | None],
    reachable: Callable[[int], bool],
    alternatives: Mapping[str, list[str]] | None = None,
) -> tuple[list[Step], Record | None]:
    """The alternative for messages of `first`: (who was looked at, and why not; the one that gets them, or None).

    tried: who has not taken them, `first` among them or not. find: what is known of a name. reachable: whether a broker is.
    alternatives: of names that are no recipients here, as a directory has them. A recipient is looked at once, so that loops end.
    """
    steps: list[Step] = []
    seen = {first}
    waiting = list(dict.fromkeys([first, *tried]))  # in the order in which they were tried
    done = set(tried)
    at = 0
    while at < len(waiting) and len(seen) < LONGEST_CHAIN:
        known = find(waiting[at])
        names = known.alternatives if known is not None else (alternatives or {}).get(waiting[at], [])
        at += 1
        for name in names:
            if name in seen:
                continue
            seen.add(name)
            step, record = _look(first, name, done, find(name), reachable)
            steps.append(step)
            if step.taken:
                return steps, record
            if record is not None and name not in waiting:
                waiting.append(name)
    return steps, None


def refusal(first: str, record: Record, reachable: Callable[[int], bool]) -> str | None:
    """Why an alternative is given no messages of `first` now, in words; None: it is."""
    return None if (step := _look(first, record.name, set(), record, reachable)[0]).taken else step.answer


def _look(first: str, name: str, done: set[str], record: Record | None, reachable: Callable[[int], bool]) -> tuple[Step, Record | None]:
    if record is None:
        return Step(name, "", "unknown", "not registered"), None
    state = record.state.value
    answer = None
    if name in done:
        answer = "it was tried"
    elif record.state is not State.OPERATIONAL:
        answer = f"it is known to be in {record.state.name}"
    elif record.held:
        answer = "an operator holds it"
    elif not record.takes(first):
        answer = f"it does not consent to messages of {first}"
    elif not reachable(record.broker):
        answer = "its broker cannot be reached"
    if answer is not None:
        return Step(name, record.site, state, answer), record
    return Step(name, record.site, state, "takes it", True), record


def iso(wall: float) -> str:
    """A time of the wall clock, in seconds since 1970, in ISO 8601 with milliseconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall)) + f".{int(wall * 1000) % 1000:03d}Z"
