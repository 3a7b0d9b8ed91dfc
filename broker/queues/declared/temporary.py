"""Temporary queues: a client makes one by a request, and it ends with the session of that client (docs/queues.md, "Temporary queues").

    temporary/HOME/TOKEN     HOME: the number of this broker in its mesh, so that every other one knows where it is; 0 outside a mesh

Only its maker consumes from it, and whoever has the key that its maker was told: a client that has a connection for each consumer.

Its messages are in memory (`log/memory.py`), because nothing of them is to outlive the broker.

What it does not know: who may make one, and who may put.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ....base.queues import PREFIX, TEMPORARY
from ....base.quoting import quoted
from ....mqtt.errors import UsageError
from ..committer import Then
from ..core.rules import Rules
from ..log.places.memory import MEMORY
from ..sites.homes import home_of

if TYPE_CHECKING:
    from ...session.session import Session
    from ..core.queue import Queue
    from ..shell import Queues

MOST_EACH, MOST_USER, MOST = 16, 250, 1000  # queues of one client, of all clients of a user, and of a broker
MOST_MESSAGES, MOST_BYTES = 10_000, 16 << 20  # in one queue


class Made(NamedTuple):
    """One of them. key: with which others consume from it."""

    session: Session
    key: str


class Temporary:
    """Those of one broker. number: of the broker in its mesh."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._made: dict[str, Made] = {}
        self._of: dict[Session, list[str]] = {}
        self.number = 0

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def __len__(self) -> int:
        return len(self._made)

    def new_name(self) -> str:
        """A name that nobody guesses."""
        return f"{TEMPORARY}{self.number}/{secrets.token_hex(12)}"

    def make(self, session: Session, name: str) -> dict[str, str]:
        """A client has a queue from now on: the name, and the key. Raises UsageError."""
        mine = self._of.get(session, [])
        if len(mine) >= MOST_EACH:
            raise UsageError(f"a client has at most {MOST_EACH} temporary queues: delete one")
        if len(self._made) >= MOST:
            raise UsageError(f"a broker has at most {MOST:,} temporary queues: use a queue that is declared")
        if session.user is not None and sum(len(of) for one, of in self._of.items() if one.user == session.user) >= MOST_USER:
            raise UsageError(f"the clients of a user have at most {MOST_USER} temporary queues: delete some")
        queues = self._queues
        made = self._made[name] = Made(session, secrets.token_hex(16))
        self._of.setdefault(session, []).append(name)
        rules = Rules(store=MEMORY, messages=MOST_MESSAGES, bytes=MOST_BYTES)
        queues.settings.rules[name], queues.settings.subscribers[name] = rules, []
        queues.store.begin_temporary(name, rules)
        queues.ways_changed({PREFIX + name})
        return {"queue": name, "key": made.key}

    def maker(self, name: str) -> Session | None:
        """Whose queue it is; None: it is none of these."""
        made = self._made.get(name)
        return made.session if made is not None else None

    def may_consume(self, session: Session | None, name: str, key: str) -> bool:
        """Whether a client may consume from a queue; it may from all that are not temporary. session: None: of a client of another site.
        key: what it gives. The home of a queue elsewhere looks itself.
        """
        if not name.startswith(TEMPORARY):
            return True
        made = self._made.get(name)
        if made is None:
            return bool(key) and session is not None and home_of(name) != self.number
        return made.session is session or hmac.compare_digest(made.key.encode(), key.encode())

    def ended(self, session: Session) -> None:
        """A session is over, and so are its queues."""
        for name in self._of.pop(session, ()):
            self._end(name, lambda text: None)

    def delete(self, name: str, then: Callable[[str | None], None]) -> None:
        """A queue of a client ends before the session does. then: called when nothing of it is left."""
        mine = self._of[self._made[name].session]
        mine.remove(name)
        self._end(name, then)

    def _end(self, name: str, then: Callable[[str | None], None]) -> None:
        queues = self._queues
        del self._made[name]
        del queues.settings.rules[name], queues.settings.subscribers[name]
        queues.ways_changed({PREFIX + name})
        queues.stand_all(name)
        queues.after_commit(queues.store.queues[name], Then(lambda text: self._empty(name, then)))

    def _empty(self, name: str, then: Callable[[str | None], None]) -> None:
        """What was put is there, or was refused, and nothing more comes."""
        turns, queue = self._queues.context.turns, self._queues.store.queues[name]
        turns.run(turns.broker, self._emptied(queue, then), f"queue={quoted(name)} work=queue-delete")

    def _emptied(self, queue: Queue, then: Callable[[str | None], None]) -> Iterator[None]:
        yield from queue.empty(self._queues.now())
        self._queues.after_commit(queue, Then(partial(self._forget, queue.name, then)))

    def _forget(self, name: str, then: Callable[[str | None], None], text: str | None) -> None:
        self._queues.store.end_temporary(name)
        then(text)
