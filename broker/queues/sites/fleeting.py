"""Subscribers whose sessions end with their connections, at the home of their queues.

A session like that is nowhere when its site was killed. So its site cannot say that it has ended: the home finds it out when it hears of
another life of the site, or that the site is forgotten. A site that is only away may still have its clients.

    JOIN      the session ends with its connection: (queue, member) -> (site, life); another one: it is forgotten here
    LEAVE     for good, of this site: forgotten
    life      of a site, another one than noted: these have ended
    forget    of a site: these have ended

Of a member that moves the latest site counts. The broker's store keeps all of it. Subscribers of this kind that are noted nowhere were
clients of the home itself: the log of the queue says of which kind a subscriber is, and when the home starts, these have ended too.

What it does not know: queues, sessions, who is connected.
"""

from __future__ import annotations

from collections.abc import Callable

Who = tuple[str, str]  # queue, member
Where = tuple[int, int]  # site, life of its broker


class Fleeting:
    """See the module. keep: keeps where a subscriber is; None: it need not be known any more."""

    def __init__(self, keep: Callable[[Who, Where | None], None]) -> None:
        self._keep = keep
        self._where: dict[Who, Where] = {}

    def restore(self, found: dict[Who, Where]) -> None:
        """What an earlier life has kept."""
        self._where |= found

    def __contains__(self, who: Who) -> bool:
        return who in self._where

    def joined(self, who: Who, where: Where, ends: bool) -> None:
        """A subscriber has come to a site. ends: with its connection."""
        if not ends:
            self._forget(who)
        elif self._where.get(who) != where:
            self._where[who] = where
            self._keep(who, where)

    def left(self, who: Who, site: int) -> None:
        """Its session at this site has ended."""
        if self._where.get(who, (-1, 0))[0] == site:
            self._forget(who)

    def gone(self, queue: str) -> None:
        """A queue has its home elsewhere, or is deleted."""
        for who in [one for one in self._where if one[0] == queue]:
            self._forget(who)

    def ended(self, site: int, life: int | None) -> list[Who]:
        """The subscribers that a site has no more, because it lives this life; None: it is forgotten."""
        found = [who for who, (at, lived) in self._where.items() if at == site and lived != life]
        for who in found:
            self._forget(who)
        return found

    def _forget(self, who: Who) -> None:
        if self._where.pop(who, None) is not None:
            self._keep(who, None)
