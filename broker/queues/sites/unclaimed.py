"""Subscribers whose sessions end with their connections, after a queue has come to another of its homes (docs/queues.md, "Several homes").

The log says that there are such subscribers, and not at which site: a broker that is killed takes the sessions of its clients with it, and
nobody says that they have ended. So the new home hears all sites of the mesh:

    begin     this broker is home now, by a term: the log has these subscribers
    heard     a site has said which clients it has, and that these are all
    over      all sites were heard: a subscriber that is at none of them has no session any more

A site that is away may still have its clients. It is waited for until it is back, or forgotten.

What it does not know: queues, sessions, who is connected.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....mesh.wire.visited import mask_of
from .fleeting import Who


class Unclaimed:
    """See the module."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[str, ...]] = {}
        self._terms: dict[str, int] = {}
        self._heard: dict[str, set[int]] = {}

    def begin(self, queue: str, term: int, members: Iterable[str]) -> None:
        """A queue has its home here from now on. members: subscribers whose sessions end with their connections."""
        self._members[queue], self._terms[queue], self._heard[queue] = tuple(members), term, set()

    def gone(self, queue: str) -> None:
        """A queue has its home elsewhere, or is deleted."""
        self._members.pop(queue, None)
        self._terms.pop(queue, None)
        self._heard.pop(queue, None)

    def heard(self, queue: str, term: int, site: int) -> None:
        """A site has said what clients it has. term: of the home that it has said so to; an earlier one does not count."""
        if self._terms.get(queue) == term:
            self._heard[queue].add(site)

    def over(self, others: int) -> list[Who]:
        """The subscribers that are at no site, unless they are known here. others: the other brokers of the mesh, as a set."""
        done = [queue for queue, heard in self._heard.items() if others and not others & ~mask_of(heard)]
        found = [(queue, member) for queue in done for member in self._members[queue]]
        for queue in done:
            self.gone(queue)
        return found
