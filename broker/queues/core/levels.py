"""When a queue gets full, when it has room again, and when dead letters come in: told once, and not with each message.

    full           it holds as many messages or bytes as it may          until it holds nine tenths at most
    room           it holds nine tenths of both at most                  until it is full
    dead-letters   a queue of dead letters that was empty has some       until it is empty

What it does not know: who listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....base.queues import TEMPORARY

if TYPE_CHECKING:
    from .queue import Queue

ROOM = 0.9  # of what a queue may hold: below that a full one has room again


class Levels:
    """See the module. say: told of an event. full: names of queues; dead: of those with dead letters; as was told."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._full: set[str] = set()
        self._dead: set[str] = set()

    def look(self, queue: Queue, buries: bool) -> None:
        """Something in a queue may have changed. buries: it takes dead letters of others."""
        rules, name = queue.rules, queue.name
        if (rules.messages or rules.bytes) and not name.startswith(TEMPORARY):
            messages, size = queue.contents
            level = max(messages / rules.messages if rules.messages else 0.0, size / rules.bytes if rules.bytes else 0.0)
            if level >= 1.0 and name not in self._full:
                self._full.add(name)
                self._say({"event": "full", "queue": name, "messages": messages, "bytes": size})
            elif level <= ROOM and name in self._full:
                self._full.discard(name)
                self._say({"event": "room", "queue": name, "messages": messages, "bytes": size})
        if buries and (letters := queue.waiting + queue.held) and name not in self._dead:
            self._dead.add(name)
            self._say({"event": "dead-letters", "queue": name, "messages": letters})
        elif name in self._dead and not queue.waiting + queue.held:
            self._dead.discard(name)

    def gone(self, name: str) -> None:
        """A queue is not here any more."""
        self._full.discard(name)
        self._dead.discard(name)
