"""Queues that are bound to topic filters: what is published to a matching topic is put into them as well (docs/queues.md).

A bound queue stands among the shared subscriptions of a route, as one that always takes its copy. So a topic without a bound queue knows
nothing of all this. The acknowledgement of a message of QoS 1 or 2 waits for the commit of the queues, and of everything else that it
waits for anyway: something without bytes is put before it into the connection's tracker, which opens with the queues' gate.

To other sites it is a subscription. What they bring stands in the store's commit that says that it has come, and is put after that.

What it does not know: how a queue works.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...mqtt.reasons import Reason
from ..mesh.receipts import Item, Tracker, tracker_of
from ..queues.putting import properties_of
from ..queues.refused import Refused
from ..routing.shared import ShareGroup

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..queues.shell import Queues
    from ..routing.publication import Publication
    from ..routing.router import Router
    from ..site import Site


class BoundQueue(ShareGroup):
    """A queue among those who want a topic, once, whichever of its filters match. name: `$queue/NAME`."""

    __slots__ = ("_queue", "_queues", "_site")

    def __init__(self, queue: str, topic_filter: str, site: Site, queues: Queues) -> None:
        super().__init__(f"$queue/{queue}", topic_filter, set())
        self._queue = queue
        self._queues = queues
        self._site = site

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundQueue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def no_room(self) -> str:
        """See `ShareGroup`."""
        return f"{self.name} has no room"

    def take(self, batch: Batch, publication: Publication) -> int:
        """Put a batch: how many messages found no room."""
        site, connection = self._site, publication.connection
        who = connection.client_id if connection is not None else site.config.name
        properties = publication.properties
        if properties is None and batch.uniform and batch.properties:  # of a will
            properties = properties_of(batch.properties)
        session: Any = connection.session if connection is not None else None
        by_store = batch.qos == 2 and session is not None and session.stored and site.persistence is not None
        try:
            gate = self._queues.publishers.put_published(
                self._queue, who, (connection.user if connection is not None else None) or "", batch, properties, by_store
            )
        except Refused as error:
            publication.text = error.text
            if batch.qos and connection is not None and connection.version != 5:  # it has no word for it
                connection.disconnect(error.reason, error.text)
            return batch.count
        if gate is None:
            return 0
        if batch.qos and connection is not None:
            mesh = site.mesh
            tracker = tracker_of(connection, mesh.receipts if mesh is not None else self._queues.answers)
            gate.waiting.append(_Held(tracker, tracker.behind_gate(batch.qos, b"", 0, gate), batch.qos))
        if site.context.journal is not None and batch.mark is not None:
            gate.waiting.append(_Noted(site.context.journal, batch.mark, self.name))
        return 0

    @property
    def keeps(self) -> bool:
        """See `ShareGroup`."""
        return True

    def come(self, batch: Batch, origin: int) -> int:
        """See `ShareGroup`. It is put after the commit that says that it has come; at QoS 0 at once."""
        journal, publishers = self._site.context.journal, self._queues.publishers
        noted = _Noted(journal, batch.mark, self.name) if journal is not None and batch.mark is not None else None
        try:
            publishers.put_brought(self._queue, self._queues.sites.site_name(origin), batch, noted)
        except Refused as error:
            if noted is not None:
                noted.refused(error.text)
            return batch.count
        return 0


class _Held:
    """What stands before the acknowledgement of a message until the commit."""

    def __init__(self, tracker: Tracker, item: Item, qos: int) -> None:
        self._tracker = tracker
        self._item = item
        self._qos = qos

    def refused(self, text: str) -> None:
        """The commit has failed: the publisher comes again, with what was not acknowledged."""
        connection: Any = self._tracker.connection
        connection.disconnect(Reason.QUOTA_EXCEEDED, text)

    def go(self) -> None:
        """See `Waiting`."""
        if not self._item.sent:
            self._tracker.pump(self._qos)


class _Noted:
    """Tells the journal that the queue has a message."""

    def __init__(self, journal: Any, mark: Any, name: str) -> None:
        self._journal = journal
        self._mark = mark
        self._name = name
        self._kept = True

    def refused(self, text: str) -> None:
        """See `Waiting`."""
        self._kept = False
        self._journal.dropped(self._name, self._mark, text)

    def go(self) -> None:
        """See `Waiting`."""
        if self._kept:
            self._journal.queued_as_well(self._mark, self._name)


class Bindings:
    """Which queues of a broker are bound to what."""

    def __init__(self, site: Site, queues: Queues) -> None:
        self._site = site
        self._queues = queues
        self._router: Router = site.router
        self._bound: dict[str, list[BoundQueue]] = {}

    def bind(self, queue: str, filters: Iterable[str]) -> None:
        """From now on a queue is bound to these topic filters, and to no others."""
        for one in self._bound.pop(queue, ()):
            self._router.unbind(one)
        made = [BoundQueue(queue, topic_filter, self._site, self._queues) for topic_filter in dict.fromkeys(filters)]
        for one in made:
            self._router.bind(one)
        if made:
            self._bound[queue] = made
