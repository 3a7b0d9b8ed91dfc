"""Which site is the home of which queue, as brokers tell each other; it survives a restart.

A queue has one home. Of several brokers that take turns as its home, the one with the highest term is. Where two brokers declare the same
name otherwise, each serves its own clients, and all others take the one with the lower number, until an operator renames one of them.

What it does not know: what is done with a queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from ....base.queues import TEMPORARY
from ....base.quoting import quoted
from .keeping import Keeping

log = logging.getLogger("mqmesh.broker")


class Homes:
    """Queues of other sites. own: names of the queues that have their home here, now. maker: says where a temporary queue is elsewhere."""

    def __init__(self, own: Collection[str], keeping: Keeping) -> None:
        self._own = own
        self._keeping = keeping
        self.maker: Callable[[str], int | None] = lambda name: None
        self._of: dict[int, dict[str, bool]] = {}
        self._terms: dict[int, dict[str, int]] = {}
        self._home: dict[str, int] = {}

    def restore(self, found: dict[int, dict[str, int]]) -> None:
        """What was known in an earlier life: names, and terms or 0."""
        for number, names in found.items():
            self._of[number] = dict.fromkeys(names, False)
            self._terms[number] = names
        self._find()

    def told(self, number: int, queues: dict[str, bool], terms: dict[str, int]) -> set[str]:
        """A broker says which queues it is the home of: those whose home is another one now.

        A queue with several homes that it has left stays a queue, which takes nothing until another broker says that it is its home.
        """
        before = dict(self._home)
        left = {name: term for name, term in self._terms.get(number, {}).items() if term and name not in queues}
        queues, terms = queues | dict.fromkeys(left, True), terms | left
        known = self._of.get(number, {})
        for name in sorted(queues.keys() - known.keys()):
            if name not in self._own or name in terms:
                continue
            text = "two brokers are its home: rename one of the two queues"
            log.warning("event=queue-twice queue=%s number=%d text=%s", quoted(name), number, text)
        if known.keys() != queues.keys() or self._terms.get(number, {}) != terms:
            self._keeping.put_homes(number, {name: terms.get(name, 0) for name in sorted(queues)})
        self._terms[number] = dict(terms)
        if queues:
            self._of[number] = dict(queues)
        else:
            self._of.pop(number, None)
        self._find()
        return {name for name in before.keys() | self._home.keys() if before.get(name) != self._home.get(name)}

    def forgotten(self, number: int) -> set[str]:
        """A broker is forgotten: the queues that have another home now, or none."""
        self._terms.pop(number, None)
        return self.told(number, {}, {})

    def own_changed(self) -> None:
        """A queue has its home here, or not any more."""
        self._find()

    def _find(self) -> None:
        self._home = {}
        for number in sorted(self._of):
            for name in self._of[number]:
                known = self._home.get(name)
                if name not in self._own and (known is None or self._term(known, name) < self._term(number, name)):
                    self._home[name] = number

    def _term(self, number: int, name: str) -> int:
        return self._terms.get(number, {}).get(name, 0)

    def shared(self, name: str) -> bool:
        """Whether another broker becomes its home, if this one is away."""
        return self.term(name) > 0

    def term(self, name: str) -> int:
        """By which term its home elsewhere is that; 0: it has one home only, or none that is known."""
        home = self._home.get(name)
        return self._term(home, name) if home is not None else 0

    def home(self, name: str) -> int | None:
        """The number of the broker that is home of a queue; None: none is known, or it is this one."""
        found = self._home.get(name)
        return self.maker(name) if found is None and name.startswith(TEMPORARY) else found

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


def home_of(name: str) -> int | None:
    """The number of the broker that has made a temporary queue; None: that is no such name."""
    parts = name.split("/")
    number = parts[1] if len(parts) == 3 and name.startswith(TEMPORARY) else ""
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None
