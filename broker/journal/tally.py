"""The counters that are always on: messages and bytes by minute, kind, part of a topic, account and recipient.

Counting costs the fast path one addition for a batch. What was delivered is counted for a route as a whole (`Counted.tally`), and
multiplied by its targets when the minute is over, in turns, as there may be millions; who did not get a message is subtracted one by
one. What was published is counted for a connection and a part of a topic.

A number counts both: messages times `ONE`, plus bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ...base.cache import LONGEST
from .kinds import Kind
from .topics import OTHER

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch

ONE = 1 << 44
BYTES = ONE - 1
ROUTES = 20_000  # routes with counts; beyond, they are added up before the minute is over
PORTION = 200  # targets that are counted in one go
KEYS = 100_000  # counts of a minute; what comes beyond counts for a user as a whole
Key = tuple[int, str, str, str]  # kind, part of a topic, user, recipient


class Counted(Protocol):
    """A route, or what topics with the same recipients share: what was given to its targets since it was last added up.

    dimension: the part of its topics that is told apart.
    """

    tally: int
    dimension: str
    targets: list[Any]


class Tally:
    """The counters of one broker. run: has steps run to their end, while other work is done between two of them; else all at once."""

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self.run: Callable[[Iterator[None]], None] = _run_out
        self._routes: list[Counted] = []
        self._waiting: deque[Iterator[None]] = deque()  # what is to be added up, and given to whoever took it
        self._steps: Iterator[None] = iter(())

    def begin(self, to: Counted) -> None:
        """A route is about to have a first count: what is added to its `tally` is for each of its targets."""
        if len(self._routes) >= ROUTES:
            self._later(self._adding(self._given(), self.counts))
        self._routes.append(to)

    def add(self, kind: int, dimension: str, user: str, recipient: str, amount: int) -> None:
        """Count one by one. Users and recipients with long names are told apart no more than parts of topics with long names."""
        _add(self.counts, kind, dimension, user, recipient, amount)

    def add_messages(self, kind: int, messages: int) -> None:
        """Count messages of which nothing else is known."""
        if messages:
            self.add(kind, "", "", "", messages * ONE)

    def published(self, tallies: dict[str, int], user: str) -> None:
        """What a connection has published, by part of a topic; the connection's numbers begin anew."""
        for dimension, amount in tallies.items():
            self.add(Kind.PUBLISHED, dimension, user, "", amount)
        tallies.clear()

    def take(self, then: Callable[[dict[Key, int]], None]) -> None:
        """Give all counts since the last call to `then`, once they are added up. In the order of the calls."""
        counts, self.counts = self.counts, {}
        self._later(self._taking(self._given(), counts, then))

    def finish(self) -> None:
        """Add up at once whatever is not added up yet."""
        _run_out(self._steps)

    def _given(self) -> list[tuple[Counted, int]]:
        """What was given to routes, whose numbers begin anew."""
        routes, self._routes = self._routes, []
        given = [(to, to.tally) for to in routes]
        for to in routes:
            to.tally = 0
        return given

    def _later(self, steps: Iterator[None]) -> None:
        self._waiting.append(steps)
        if len(self._waiting) == 1:
            self._steps = self._all()
            self.run(self._steps)

    def _all(self) -> Iterator[None]:
        while self._waiting:
            yield from self._waiting[0]
            self._waiting.popleft()

    def _taking(self, given: list[tuple[Counted, int]], counts: dict[Key, int], then: Callable[[dict[Key, int]], None]) -> Iterator[None]:
        yield from self._adding(given, counts)
        then({key: amount for key, amount in counts.items() if amount})

    @staticmethod
    def _adding(given: list[tuple[Counted, int]], counts: dict[Key, int]) -> Iterator[None]:
        """Multiply what was given to routes by their targets."""
        done = 0
        for to, amount in given:
            for target in to.targets:
                session = target.session
                _add(counts, Kind.DELIVERED, to.dimension, session.main.user or "", session.client_id, amount)
                done += 1
                if done % PORTION == 0:
                    yield


def _add(counts: dict[Key, int], kind: int, dimension: str, user: str, recipient: str, amount: int) -> None:
    user, recipient = (name if len(name) <= LONGEST else OTHER for name in (user, recipient))
    key = (kind, dimension, user, recipient)
    if len(counts) >= KEYS and key not in counts:
        key = (kind, OTHER, user, OTHER) if recipient else (kind, OTHER, user, "")
    counts[key] = counts.get(key, 0) + amount


def _run_out(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def split(amount: int) -> tuple[int, int]:
    """(messages, bytes) of a count."""
    return divmod(amount, ONE) if amount >= 0 else tuple(-part for part in divmod(-amount, ONE))  # type: ignore[return-value]


def rows(
    counts: dict[Key, int], minute: int, broker: int, account: Callable[[str], str], name: Callable[[str, str], int]
) -> Iterable[tuple[int, ...]]:
    """Rows of the table of counts. name: (kind, name) -> id."""
    for (kind, dimension, user, recipient), amount in counts.items():
        messages, size = split(amount)
        ids = name("topic", dimension), name("account", account(user)), name("recipient", recipient)
        yield (minute, broker, kind, *ids, messages, size)


def amount_of(batch: Batch) -> int:
    """What a batch adds to a counter."""
    return batch.count * (ONE + batch.length) if batch.uniform else batch.count * ONE + batch.payload_bytes
