"""A batch for many recipients: it is given to some of them in each turn of its publisher, so that nobody holds the event loop.

A client's publication is delivered within one piece of work, which ends with the acknowledgement. With `WIDE` recipients that takes some
milliseconds. A publication for more of them is taken as always (it is relayed, retained and journalled at once), and delivered in steps
of `STEP` recipients. Its publisher's connection waits for its turns meanwhile (`turns.py`), so that

- what the publisher sends behind it comes later at every recipient;
- it is acknowledged when the last recipient has it, and after the commit of what was stored for any of them.

Recipients that subscribe meanwhile get what is retained; sessions that end meanwhile get nothing.

At once, whatever their number, are served: QoS 2, whose identifiers belong into one commit with the deliveries; publications that wait for
receipts or have a handle; QoS 1 where sessions move between sites or fail over; wills, messages of the broker, and what the mesh brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...mqtt.reasons import Reason
from ..routing.route import PartOfTargets
from .acknowledge import receipts_of

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..routing.publication import Publication
    from ..routing.route import Recipients, Route, Target
    from ..site import ClientConnection

WIDE = 2_000  # recipients; more are served in turns
STEP = 128


def in_turns(connection: ClientConnection, batch: Batch, to: Route | Recipients, publication: Publication) -> bool:
    """Whether a batch for more than `WIDE` recipients may be delivered in turns."""
    site = connection.site
    if connection.inside or connection.steps is not None or batch.qos == 2 or publication.handled is not None:
        return False
    if not batch.qos:
        return True
    roams = site.mesh is not None and site.mesh.roaming is not None
    return not roams and site.router.addressed is None and receipts_of(publication, to) is None


def fan_out(connection: ClientConnection, batch: Batch, to: Route | Recipients, publication: Publication) -> Iterator[None]:
    """Deliver a batch, a step at a time. At the end `publication` says what found no room, as after any delivery."""
    site = connection.site
    router, persistence = site.router, site.persistence
    if router.journal is not None:
        router.count(batch, to)
    refused = publication.refused
    for start in range(0, len(to.targets), STEP):
        targets = to.targets[start : start + STEP]
        if batch.qos:
            targets = [target for target in targets if _lives(target)]
        if persistence is not None:
            persistence.begin()
        router.deliver(batch, PartOfTargets(to, targets), publication, counted=True)
        refused = max(refused, publication.refused)
        yield
    for group in to.shares:
        left = router.deliver_shared(group, batch, publication)
        router.counters.dropped += left
        if batch.qos:
            refused = max(refused, left)
        yield
    publication.refused = refused
    if persistence is not None:
        persistence.begin()
        if batch.qos:
            persistence.need_commit()  # other messages were taken meanwhile: what is stored for this one is no longer told apart
    if refused:
        publication.reason = Reason.QUOTA_EXCEEDED
        if site.context.hooks is not None:
            site.context.hooks.dropped(connection.client_id, batch, refused, "no room at a recipient")
    elif batch.qos and not connection.closing:
        site.backpressure.press(connection, to.targets)


def _lives(target: Target) -> bool:
    """Whether its session has not ended since the route was made."""
    return target.session.main.face is target.session


def wait_for(connection: ClientConnection, steps: Iterator[None]) -> None:
    """Take these steps in the turns of the publisher, which is not read until they are done."""
    connection.steps = steps
    connection.wait_for_turn()
