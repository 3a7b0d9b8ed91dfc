"""What may wait for each site that is away, for how long, and what happens at the bound.

Rules stand in the order of the file; for each question the first one counts that names the site (and the topic) and says something.
A rule that says nothing of a question leaves it to the next, and in the end to the defaults.

It does not know what is held; `custody.py` asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...mqtt.topics import matches

GIB = 2**30
FORGET = 10_000  # answers that are remembered


class AtBound(Enum):
    """What happens at the bound of a site that is away."""

    REFUSE = "refuse"  # the message is taken for nobody
    DROP_OLDEST = "drop-oldest"  # the oldest messages that wait there go; the new one is taken
    EXPIRE = "expire"  # the new message is taken for all but this site; what is too old goes


@dataclass(slots=True, frozen=True)
class CustodyRule:
    """What is different for a site or for topics.

    site: its name or number; None: each. topics: filters; (): all topics. at_bound, bytes, age: None: the next rule says it.
    """

    site: int | str | None = None
    topics: tuple[str, ...] = ()
    at_bound: AtBound | None = None
    bytes: int | None = None
    age: float | None = None

    def speaks_of(self, number: int, name: str) -> bool:
        """Whether it is for a site."""
        return self.site is None or self.site in (number, name)


@dataclass(slots=True, frozen=True)
class CustodyBounds:
    """The bounds of custody for sites that are away.

    bytes: for each site. total: for all of them; 0: none but that of the store. age: seconds; 0: none. at_bound: where no rule says more.
    rules: exceptions, see above.
    """

    bytes: int = 4 * GIB
    total: int = 0
    age: float = 0.0
    at_bound: AtBound = AtBound.REFUSE
    rules: tuple[CustodyRule, ...] = ()


@dataclass(slots=True)
class Policy:
    """Answers questions about one set of bounds, and remembers the answers."""

    bounds: CustodyBounds
    aged: bool = field(init=False)  # something may be too old
    strict: bool = field(init=False)  # every message is refused at every bound
    _of_topic: dict[tuple[int, str, bytes], AtBound] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules = self.bounds.rules
        self.aged = bool(self.bounds.age) or any(rule.age for rule in rules)
        self.strict = all(what in (None, AtBound.REFUSE) for what in (self.bounds.at_bound, *(rule.at_bound for rule in rules)))

    def bytes_of(self, number: int, name: str) -> int:
        """How many bytes may wait for a site."""
        found = (rule.bytes for rule in self.bounds.rules if rule.bytes is not None and rule.speaks_of(number, name))
        return next(found, self.bounds.bytes)

    def age_of(self, number: int, name: str) -> float:
        """How many seconds a message may wait for a site; 0: for ever."""
        return next((rule.age for rule in self.bounds.rules if rule.age is not None and rule.speaks_of(number, name)), self.bounds.age)

    def at_bound(self, number: int, name: str, topic: bytes) -> AtBound:
        """What happens to messages of a topic at the bound of a site. Those of brokers are refused always.

        topic: b"" for several topics: what a rule says of all topics counts.
        """
        if topic.startswith(b"$"):
            return AtBound.REFUSE
        if not self.bounds.rules:
            return self.bounds.at_bound
        key = (number, name, topic)
        found = self._of_topic.get(key)
        if found is None:
            if len(self._of_topic) >= FORGET:
                self._of_topic.clear()
            found = self._of_topic[key] = self._look(number, name, topic)
        return found

    def _look(self, number: int, name: str, topic: bytes) -> AtBound:
        text = topic.decode()
        for rule in self.bounds.rules:
            if rule.at_bound is None or not rule.speaks_of(number, name):
                continue
            if not rule.topics or (topic and any(matches(one, text) for one in rule.topics)):
                return rule.at_bound
        return self.bounds.at_bound
