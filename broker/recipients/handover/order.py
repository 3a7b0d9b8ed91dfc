"""The order of one recipient's messages, while they change from a dead alternative to the next one.

The origin's broker learns in two ways that an alternative is dead: from its record, and from the messages that come back from it. Without
care, a message that is placed after the record has come would be at the next alternative before those that are on their way back.

Strategy: the origin's broker notes to which alternatives it has given a recipient's messages. Where it passes over one of them because it
is dead, it asks the alternative's broker for a *fence*, behind all that it has sent there. The answer comes behind all that comes back from
there. Until then messages of this recipient that have not been at that alternative wait in a *line*, but those that come back pass.

A fence that is not answered within `FENCE` seconds, because a broker is away, is given up: then messages go on, and those that were there
come later.

What it does not know: sessions, posts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..machine import State
from .parcels import Parcel
from .records import Step

FENCE = 2.0  # seconds
DEAD = (State.FAULT.value, State.DEFUNCT.value)


@dataclass(slots=True)
class Held:
    """Messages that wait. awaited: alternatives whose fences must come first. key: under which the broker's store has them."""

    parcel: Parcel
    key: bytes
    awaited: set[str] = field(default_factory=set)


class Order:
    """What one broker notes as the origin's: where messages are, which fences are under way, and which messages wait for them."""

    def __init__(self) -> None:
        self._given: dict[str, set[str]] = {}  # recipient -> alternatives that may have messages of it
        self._fences: dict[tuple[str, str], tuple[int, float]] = {}  # (recipient, alternative) -> token, since when
        self._lines: dict[str, list[Held]] = {}  # recipient -> what waits
        self._token = 0

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return sum([held.parcel.count for line in self._lines.values() for held in line])

    def given(self, recipient: str, alternative: str) -> None:
        """Messages of a recipient were given to an alternative."""
        self._given.setdefault(recipient, set()).add(alternative)

    def awaited(self, parcel: Parcel, steps: Iterable[Step]) -> set[str]:
        """Dead alternatives that may have earlier messages. steps: who was looked at for these messages."""
        known = self._given.get(parcel.tried[0])
        if not known:
            return set()
        return {step.recipient for step in steps if step.recipient in known and step.state in DEAD and step.recipient not in parcel.tried}

    def place(self, parcel: Parcel, awaited: set[str]) -> int | None:
        """Where in the line messages belong; None: nothing is to be waited for."""
        line = self._lines.get(parcel.tried[0])
        if not line:
            return 0 if awaited else None
        at = next((number for number, held in enumerate(line) if not held.awaited.isdisjoint(parcel.tried)), len(line))
        return at if at or awaited else None

    def hold(self, held: Held, at: int) -> None:
        """Have messages wait."""
        self._lines.setdefault(held.parcel.tried[0], []).insert(at, held)

    def first(self, recipient: str) -> Held | None:
        """What is at the head of a recipient's line, and waits for nothing more; it leaves the line."""
        line = self._lines.get(recipient)
        if not line or line[0].awaited:
            return None
        held = line.pop(0)
        if not line:
            del self._lines[recipient]
        return held

    # Fences

    def begin(self, recipient: str, alternative: str, now: float) -> int | None:
        """A fence is needed: its token; None: it is under way."""
        if (recipient, alternative) in self._fences:
            return None
        self._token += 1
        self._fences[recipient, alternative] = self._token, now
        return self._token

    def answered(self, recipient: str, alternative: str, token: int) -> bool:
        """The answer to a fence has come: whether something may go on."""
        known = self._fences.get((recipient, alternative))
        if known is None or known[0] != token:
            return False
        self.end(recipient, alternative)
        return True

    def end(self, recipient: str, alternative: str) -> None:
        """Nothing is to be waited for any more."""
        self._fences.pop((recipient, alternative), None)
        known = self._given.get(recipient)
        if known is not None:
            known.discard(alternative)
            if not known:
                del self._given[recipient]
        for held in self._lines.get(recipient, ()):
            held.awaited.discard(alternative)

    def late(self, now: float) -> list[tuple[str, str]]:
        """Fences that have waited for too long: (recipient, alternative)."""
        return [pair for pair, (_, since) in self._fences.items() if now - since >= FENCE]
