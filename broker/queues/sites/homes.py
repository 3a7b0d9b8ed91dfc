"""Which site is the home of which queue, as brokers tell each other; it survives a restart.

A queue has one home. Where two brokers declare the same name, each serves its own clients, and all others take the one with the lower
number, until an operator renames one of them.

What it does not know: what is done with a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ....base.quoting import quoted
from .keeping import Keeping

log = logging.getLogger("mqmesh.broker")


class Homes:
    """Queues of other sites. own: names of the queues that have their home here, now."""

    def __init__(self, own: Collection[str], keeping: Keeping) -> None:
        self._own = own
        self._keeping = keeping
        self._of: dict[int, dict[str, bool]] = {}
        self._home: dict[str, int] = {}

    def restore(self, found: dict[int, list[str]]) -> None:
        """What was known in an earlier life."""
        for number, names in found.items():
            self._of[number] = dict.fromkeys(names, False)
        self._find()

    def told(self, number: int, queues: dict[str, bool]) -> set[str]:
        """A broker says which queues it is the home of: those whose home is another one now."""
        before = dict(self._home)
        known = self._of.get(number, {})
        for name in sorted(queues.keys() - known.keys()):
            if name not in self._own:
                continue
            text = "two brokers are its home: rename one of the two queues"
            log.warning("event=queue-twice queue=%s number=%d text=%s", quoted(name), number, text)
        if known.keys() != queues.keys():
            self._keeping.put_homes(number, sorted(queues))
        if queues:
            self._of[number] = dict(queues)
        else:
            self._of.pop(number, None)
        self._find()
        return {name for name in before.keys() | self._home.keys() if before.get(name) != self._home.get(name)}

    def own_changed(self) -> None:
        """A queue has its home here, or not any more."""
        self._find()

    def _find(self) -> None:
        self._home = {}
        for number in sorted(self._of):
            for name in self._of[number]:
                if name not in self._own:
                    self._home.setdefault(name, number)

    def home(self, name: str) -> int | None:
        """The number of the broker that is home of a queue; None: none is known, or it is this one."""
        return self._home.get(name)

    @property
    def known(self) -> bool:
        """Whether there are queues elsewhere."""
        return bool(self._home)

    def full(self, name: str) -> bool:
        """Whether its home has said that it takes no more."""
        number = self._home.get(name)
        return number is not None and self._of[number].get(name, False)

    def at(self, number: int) -> list[str]:
        """The queues that have a home at a broker."""
        return sorted(name for name, home in self._home.items() if home == number)
