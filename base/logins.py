"""Which login is looked at next: fair between those who ask, one after the other for each name, slower after failures. No clock, no thread.

Comparing a password is made expensive on purpose, so who may have it done is decided here:

- **By address.** The addresses that wait take turns. One that nobody knows has one comparison at a time, so that a flood of logins from
  there leaves room for others.
- **By name.** There is one comparison at a time for a name, whoever asks (but for known ones, below), and after a wrong password none
  until its pause is over: guesses that are made at once are not more than guesses one after the other. The pause doubles with each failure
  in a row.
- **Failures of an address.** One that fails with many names has a bucket of BURST failures, into which one comes back each second.
- **Known ones first.** An address from which a name was right before goes first, and has a pause of its own: guesses from elsewhere do not
  keep its user out.

What waits is bounded: at the bound whoever waits last of the address that has most waiting makes room.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from .cache import Cache

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds
FORGOTTEN = 300.0  # seconds without a failure after which it starts again
BURST, REFILL = 10.0, 1.0  # failures of an address at once; failures a second
REMEMBERED = 50_000  # names, addresses and pairs of them
LONGEST_NAME = 256  # characters of a name that count

T = TypeVar("T", bound=Hashable)


def hash_of_nobody(memory: int, passes: int, lanes: int) -> str:
    """A hash of argon2id (RFC 9106, as a PHC string) of which nobody knows the password. memory: KiB.

    To compare with it takes as long as with any other hash of these costs. To make it takes nothing: a program starts no later for it.
    """
    salt, digest = "A" * 22, "A" * 43  # 16 and 32 bytes of zeros in base64
    return f"$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${digest}"


class Login(NamedTuple):
    """One that waits or is looked at. ticket: the caller's."""

    ticket: Any
    source: str
    name: str
    known: bool

    @property
    def paused_as(self) -> tuple[str, str]:
        """Whose pause and turn it has: that of its name, or of an address where the name was right before."""
        return self.name, self.source if self.known else ""


class Failures(NamedTuple):
    """In a row. number: how many. last: when the last one was. until: when the pause ends."""

    number: int
    last: float
    until: float


class Logins(Generic[T]):
    """Those of one program. most: how many may wait. together: how many are looked at at one time."""

    def __init__(self, most: int, together: int) -> None:
        self._most = most
        self._together = together
        self._waiting: OrderedDict[str, OrderedDict[str, deque[Login]]] = OrderedDict()  # source -> name -> logins; the next ones first
        self.waiting = 0  # how many wait
        self._count: dict[str, int] = {}  # source -> how many wait
        self._of: dict[T, Login] = {}  # those that wait
        self._under_way: dict[T, Login] = {}
        self._known: Cache[tuple[str, str], None] = Cache(REMEMBERED)
        self._failures: Cache[tuple[str, str], Failures] = Cache(REMEMBERED)
        self._buckets: Cache[str, tuple[float, float]] = Cache(REMEMBERED)  # source -> failures that it has left, when that was so

    def ask(self, ticket: T, source: str, name: str) -> T | None:
        """Let one wait. Returns who has to go because too many wait: it, another one, or nobody."""
        name = name[:LONGEST_NAME]
        login = Login(ticket, source, name, (name, source) in self._known)
        self._waiting.setdefault(source, OrderedDict()).setdefault(name, deque()).append(login)
        self._count[source] = self._count.get(source, 0) + 1
        self.waiting += 1
        self._of[ticket] = login
        if self.waiting <= self._most:
            return None
        most = max(self._count, key=lambda one: (self._count[one], one == source))
        names = self._waiting[most]
        last = names[max(names, key=lambda one: len(names[one]))][-1]
        self._remove(last)
        return last.ticket  # type: ignore[no-any-return]

    def take(self, now: float) -> T | None:
        """The next one to be looked at; None: nobody's turn is now. `done` has to follow."""
        if len(self._under_way) >= self._together:
            return None
        for known in (True, False):
            for source, names in self._waiting.items():
                if not known and self._strangers_at(source, now) > now:
                    continue
                for waiting in names.values():
                    login = waiting[0]
                    if login.known is known and self._when(login, now) <= now:
                        self._begin(login)
                        return login.ticket  # type: ignore[no-any-return]
        return None

    def next_time(self, now: float) -> float | None:
        """From when on `take` may have somebody without anything else happening; None: not before `done` or `ask`."""
        if len(self._under_way) >= self._together:
            return None
        times = []
        for source, names in self._waiting.items():
            at = self._strangers_at(source, now)
            heads = [waiting[0] for waiting in names.values()]
            times += [self._when(login, now) for login in heads if login.known or at <= now]
            if at > now and not all(login.known for login in heads):
                times.append(at)
        return min((one for one in times if one != _LATER), default=None)

    def pause(self, source: str, name: str, now: float) -> float:
        """Seconds until a login could be looked at, as far as failures go."""
        name = name[:LONGEST_NAME]
        return max(0.0, self._allowed(Login(None, source, name, (name, source) in self._known), now) - now)

    def done(self, ticket: T, good: bool, now: float) -> float:
        """One was looked at. Returns seconds that its answer is put off: 0 for one that was right."""
        login = self._under_way.pop(ticket)
        if good:
            self._known.keep((login.name, login.source), None)
            self._failures.pop(login.paused_as, None)
            return 0.0
        left, since = self._bucket(login.source, now)
        if not login.known:
            self._buckets.keep(login.source, (left - 1.0, since))
        return self._failed(login.paused_as, now)

    def drop(self, ticket: T) -> None:
        """One that was taken is not looked at after all."""
        self._under_way.pop(ticket)

    def failed_unseen(self, source: str, now: float) -> float:
        """Somebody showed something wrong that costs nothing to look at, and no name that could be his. Returns seconds that the answer
        is put off: until the pauses of the address are over, which make one more.
        """
        key = "", source
        failures = self._failures.get(key)
        left = 0.0 if failures is None else max(0.0, failures.until - now)
        return left + self._failed(key, now)

    def _failed(self, key: tuple[str, str], now: float) -> float:
        """Count a failure: seconds of the pause that begins."""
        count, last, _ = self._failures.get(key, Failures(0, now, now))
        count = 1 if now - last > FORGOTTEN else count + 1
        pause = min(FIRST_PAUSE * 2.0 ** min(count - 1, 10), LONGEST_PAUSE)
        self._failures.keep(key, Failures(count, now, now + pause))
        return pause

    def withdraw(self, ticket: T) -> None:
        """Let one wait no more; harmless for one that does not."""
        login = self._of.get(ticket)
        if login is not None:
            self._remove(login)

    def all_of(self, name: str) -> list[T]:
        """Those that wait under a name."""
        name = name[:LONGEST_NAME]
        return [login.ticket for names in self._waiting.values() for login in names.get(name, ())]

    def _begin(self, login: Login) -> None:
        """Take one out; its address and name come last from now on."""
        self._remove(login)
        self._under_way[login.ticket] = login
        if login.source in self._waiting:
            self._waiting.move_to_end(login.source)
            if login.name in self._waiting[login.source]:
                self._waiting[login.source].move_to_end(login.name)

    def _remove(self, login: Login) -> None:
        names = self._waiting[login.source]
        names[login.name].remove(login)
        if not names[login.name]:
            del names[login.name]
        if not names:
            del self._waiting[login.source]
        self.waiting -= 1
        del self._of[login.ticket]
        self._count[login.source] -= 1
        if not self._count[login.source]:
            del self._count[login.source]

    def _strangers_at(self, source: str, now: float) -> float:
        """The earliest time for logins of an address that is not known for their names: the same for all of them, so it is asked once."""
        if any(other.source == source and not other.known for other in self._under_way.values()):
            return _LATER
        left, _ = self._bucket(source, now)
        return now if left >= 1.0 else now + (1.0 - left) / REFILL

    def _when(self, login: Login, now: float) -> float:
        """When one may be looked at; _LATER: not before another one is done."""
        for other in self._under_way.values():
            if other.paused_as == login.paused_as or (other.source == login.source and not login.known and not other.known):
                return _LATER
        return self._allowed(login, now)

    def _allowed(self, login: Login, now: float) -> float:
        """When failures let one be looked at."""
        failures = self._failures.get(login.paused_as)
        at = now if failures is None else failures.until
        left, _ = self._bucket(login.source, now)
        return at if login.known or left >= 1.0 else max(at, now + (1.0 - left) / REFILL)

    def _bucket(self, source: str, now: float) -> tuple[float, float]:
        """The failures that an address has left, now."""
        left, since = self._buckets.get(source, (BURST, now))
        return min(BURST, left + REFILL * (now - since)), now


_LATER = float("inf")
