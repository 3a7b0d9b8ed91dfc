"""PUBLISH to `$queue/NAME`: admission, then into the queue; the acknowledgement follows the commit of the queues (docs/queues.md).

It waits in the connection's tracker, so that acknowledgements leave in the order of the PUBLISH packets [MQTT-4.6.0-2].
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...mqtt import packets
from ...mqtt.codec import encode
from ...mqtt.properties import Property
from ...mqtt.reasons import Reason
from ...mqtt.session import PUBACKS, PUBRECS
from ..mesh.receipts import Item, Tracker, tracker_of
from ..queues.refused import Refused
from .acknowledge import answers, refuse

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..queues.committer import Gate
    from ..routing.publication import Numbers, Publication
    from ..session.session import Session
    from ..site import ClientConnection
    from .find_puts import Puts


class Waiting:
    """Acknowledgements that wait at a gate, of messages of one run or of several that came one after the other."""

    __slots__ = ("item", "numbers", "qos", "tracker")

    def __init__(self, tracker: Tracker, item: Item, qos: int, numbers: Numbers) -> None:
        self.tracker = tracker
        self.item = item
        self.qos = qos
        self.numbers = numbers

    def more(self, numbers: Numbers) -> None:
        """Those of the run that came next."""
        if isinstance(self.numbers, range):
            self.numbers = list(self.numbers)
        self.numbers += numbers

    def refused(self, text: str) -> None:
        """The commit has failed: nothing was put."""
        connection: Any = self.tracker.connection
        if connection.version != 5:  # it has no word for it: the publisher comes again, with its messages
            connection.disconnect(Reason.QUOTA_EXCEEDED, text)
        else:
            self.item.data = answers(0x40 if self.qos == 1 else 0x50, self.numbers, bytes((Reason.QUOTA_EXCEEDED,)))

    def go(self) -> None:
        """The gate is open: the first one of a connection takes the others along."""
        if self.item.sent:
            return
        self.tracker.pump(self.qos)


def put(publication: Publication, session: Session, run: Batch, name: str, topic: bytes = b"") -> None:
    """Put a run that its publisher may publish into a queue, and acknowledge it after the commit; what fails its checks is refused.

    topic: where it is to be published when it is due; b"": nowhere.
    """
    connection: ClientConnection | None = publication.connection
    assert connection is not None
    site, numbers = connection.site, publication.numbers
    assert site.queues is not None
    found = site.queues.publishers.check(name, connection.client_id, connection.user, run, publication.properties)
    if not found:
        _put(connection, session, run, numbers, publication.properties, name, topic)
        return
    for failure, group in groupby(range(run.count), lambda at: found[at]):
        indexes = list(group)
        piece, some = run.chosen(indexes), [numbers[at] for at in indexes] if run.qos else numbers
        if failure is None:
            _put(connection, session, piece, some, publication.properties, name, topic)
        else:
            _refuse(connection, session, piece, some, failure)
        if connection.closing:
            return


def put_each(connection: ClientConnection, puts: Puts) -> bool:
    """Put messages that their publisher may publish into their queue, as `put` does one by one. False: nothing was done."""
    site = connection.site
    assert site.queues is not None
    if site.persistence is not None:
        site.persistence.begin()
    gate = site.queues.publishers.put_each(puts.queue, connection.client_id, puts.payloads, puts.ways)
    if gate is None:
        return False
    if puts.qos:
        _acknowledge(connection, puts.qos, puts.numbers, gate, "")
    return True


def _put(
    connection: ClientConnection,
    session: Session,
    run: Batch,
    numbers: Numbers,
    properties: PublishProperties | None,
    name: str,
    topic: bytes,
) -> None:
    site = connection.site
    assert site.queues is not None
    persistence = site.persistence
    if persistence is not None:
        persistence.begin()
        if run.qos == 2 and session.stored:
            persistence.received(session)
    fresh: Batch | None = run
    if run.qos == 2:
        new = session.inbound.new(numbers)
        if new is not None:
            fresh = run.chosen(new) if new else None
    gate, repeated = None, ""
    if fresh is not None:
        try:
            by_store = run.qos == 2 and session.stored and persistence is not None
            gate, repeated = site.queues.publishers.put(name, connection.client_id, connection.user, fresh, properties, by_store, topic)
        except Refused as error:
            _refuse(connection, session, run, numbers, error)
            return
    if run.qos:
        _acknowledge(connection, run.qos, numbers, gate, repeated)


def _refuse(connection: ClientConnection, session: Session, run: Batch, numbers: Numbers, error: Refused) -> None:
    connection.context.counters.dropped += run.count
    if not run.qos:
        return
    if connection.version != 5:
        connection.disconnect(error.reason, error.text)
    else:
        refuse(connection, session, run, numbers, error.reason, error.text)


def _acknowledge(connection: ClientConnection, qos: int, numbers: Numbers, gate: Gate | None, repeated: str) -> None:
    connection.context.counters.packets_sent += len(numbers)
    mesh = connection.site.mesh
    assert connection.site.queues is not None
    tracker = tracker_of(connection, mesh.receipts if mesh is not None else connection.site.queues.answers)
    data: bytes | bytearray
    if repeated and connection.version == 5 and connection.request_problem:
        kind = packets.Puback if qos == 1 else packets.Pubrec
        pairs = [("mqmesh-id", repeated), ("mqmesh-repeat", "1")]
        data = encode(kind(numbers[0], Reason.SUCCESS, {Property.USER_PROPERTY: pairs}), 5)
    else:
        table = PUBACKS if qos == 1 else PUBRECS
        if isinstance(numbers, range):
            data = table[4 * numbers.start : 4 * numbers.stop]
        else:
            data = b"".join([table[4 * number : 4 * number + 4] for number in numbers])
    if gate is None:
        tracker.behind(qos, data, len(numbers))
        return
    last = gate.waiting[-1] if gate.waiting else None
    joins = last if isinstance(last, Waiting) and last.tracker is tracker and last.qos == qos else None
    item = tracker.behind_gate(qos, data, len(numbers), gate, joins.item if joins is not None else None)
    if joins is not None and joins.item is item:
        joins.more(numbers)
    else:
        gate.waiting.append(Waiting(tracker, item, qos, numbers))
        gate.answers += 1
