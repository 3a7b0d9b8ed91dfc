"""A batch for very many sessions, delivered a step at a time: `publish/fan_out.py` and `mesh/incoming.py` take the steps in turns.

While it is under way its router knows it, so that a session which gets another face, because it serves a recipient now, has its messages
before (`serve`). A session that ends meanwhile gets nothing. One that subscribes meanwhile is no target: it gets what is retained.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .route import PartOfTargets

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..counters import Counters
    from ..ledger import Account
    from ..ports import Recipient
    from .publication import Publication
    from .route import Recipients, Route, Target
    from .shared import ShareGroup

STEP = 64  # sessions that are served in one step


class Delivering(Protocol):
    """The router, as a spread uses it."""

    counters: Counters
    spreads: list[Any]

    def count(self, batch: Batch, to: Route | Recipients) -> None:
        """Have the journal's counters count a batch for all targets."""

    def deliver(self, batch: Batch, to: PartOfTargets, publication: Publication, shares: bool, told: Container[str], counted: bool) -> None:
        """Hand a batch to the sessions."""

    def deliver_shared(self, group: ShareGroup, batch: Batch, publication: Publication) -> int:
        """The copy of a shared subscription: how many messages found no member."""


class Keeping(Protocol):
    """What keeps deliveries, as a spread uses it."""

    def begin(self) -> None:
        """Some more is delivered."""

    def stored_as(self, run: Batch) -> int:
        """The id of a run that was stored just now; 0: it was not."""

    def store_again(self, run: Batch, number: int) -> None:
        """More recipients of a run follow."""


class Spread:
    """One batch on its way.

    targets: those that its step or `serve` has just served.
    account: of the session that it comes from; None: it comes from no session here.
    refused: how many messages at its end some session had no room for.
    """

    def __init__(
        self,
        router: Delivering,
        persistence: Keeping | None,
        batch: Batch,
        to: Route | Recipients,
        publication: Publication,
        account: Account | None = None,
        told: Container[str] = (),
        shares: bool = True,
    ) -> None:
        """told: client identifiers of those who have it. shares: whether shared subscriptions get it."""
        self.account = account
        self.refused = publication.refused
        self.targets: list[Target] = []
        self._router = router
        self._persistence = persistence
        self._batch = batch
        self._to = to
        self._publication = publication
        self._told = told
        self._groups = to.shares if shares else ()
        self._at = 0  # targets before this one are served
        self._early: set[Recipient] = set()  # those that were served before their turn
        self._stored = 0  # the batch in the store
        router.count(batch, to)
        router.spreads.append(self)

    def steps(self) -> Iterator[None]:
        """Serve them, and then shared subscriptions. At the end `publication.refused` says what found no room."""
        targets = self._to.targets
        try:
            while self._at < len(targets):
                part = targets[self._at : self._at + STEP]
                self._at += STEP
                self._give(part)
                yield
            for group in self._groups:
                left = self._router.deliver_shared(group, self._batch, self._publication)
                self._router.counters.dropped += left
                if self._batch.qos:
                    self.refused = max(self.refused, left)
                yield
        finally:
            self._router.spreads.remove(self)
        self._publication.refused = self.refused

    def serve(self, session: Recipient) -> None:
        """Serve a session now, if it has still to be served. session: the face that it is known by."""
        found = [target for target in self._to.targets[self._at :] if target.session is session]
        if found and session not in self._early:
            self._give(found)
            self._early.add(session)

    def _give(self, targets: list[Target]) -> None:
        if self._batch.qos or self._early:
            targets = [one for one in targets if one.session.known and one.session not in self._early]
        persistence = self._persistence
        if persistence is not None:
            persistence.begin()
            persistence.store_again(self._batch, self._stored)
        self._router.deliver(self._batch, PartOfTargets(self._to, targets), self._publication, False, self._told, True)
        if persistence is not None:
            self._stored = persistence.stored_as(self._batch)
        self.refused = max(self.refused, self._publication.refused)
        self.targets = targets
