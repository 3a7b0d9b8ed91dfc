"""A batch for many recipients: it is given to some of them in each turn of its publisher, so that nobody holds the event loop.

A publication is delivered within one piece of work, which ends with the acknowledgement. With as many recipients as `WIDE` says that takes
some milliseconds, most of them where a store keeps it. A publication for more of them is taken as always (it is relayed, retained and
journalled at once), and delivered in steps (`routing/spread.py`). Its publisher's connection waits for its turns meanwhile (`turns.py`),
so that

- what the publisher sends behind it, its will too, comes later at every recipient;
- it is acknowledged when the last recipient has it, and after the commit of what was stored for any of them.

What lets a publication in once, at QoS 2 or with a handle, belongs into one commit with its deliveries, and so does the end of a will.
Where a store keeps it, nothing is committed until the last recipient is served; a second one of that kind waits for that
(`Persistence.whole`). What the mesh brings goes in turns in the same way (`mesh/incoming.py`).

At once, whatever their number, are served: QoS 1 and 2 where sessions move between sites, because whether a message is for a session here
depends on the moment; topics whose recipients are addressed; the metabroker inside this process; messages of the broker's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...mqtt.reasons import Reason
from ..routing.route import Route
from ..routing.spread import Spread

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..ledger import Account
    from ..routing.publication import Publication
    from ..routing.route import Recipients
    from ..site import ClientConnection, Site

WIDE = (2_000, 500, 500)  # recipients, by the QoS of the batch; more are served in turns
GROUPS = 100  # shared subscriptions that match; more are served in turns


def in_turns(site: Site, batch: Batch, to: Route | Recipients, publication: Publication) -> bool:
    """Whether a batch for very many recipients may be delivered in turns."""
    connection = publication.connection
    if publication.at_once or (connection is not None and (connection.inside or connection.steps is not None)):
        return False
    if not batch.qos:
        return True
    roams = site.mesh is not None and site.mesh.roaming is not None
    return not roams and not (isinstance(to, Route) and to.addressed is not None)


def in_one_commit(batch: Batch, publication: Publication) -> bool:
    """Whether the deliveries belong into one commit with what lets the batch in once."""
    return bool(batch.qos) and (publication.commit > 0 or publication.connection is None)


def has_to_wait(site: Site, batch: Batch, publication: Publication) -> bool:
    """Whether a batch for very many recipients cannot be taken now: it would come before what it has to come after."""
    account, persistence = publication.account, site.persistence
    if account is not None and any(one.account is account for one in site.router.spreads):
        return True  # a will, behind what its client has published
    return persistence is not None and in_one_commit(batch, publication) and persistence.busy()


def fan_out(site: Site, batch: Batch, to: Route | Recipients, publication: Publication) -> Iterator[None]:
    """The steps that deliver a batch. At the end `publication` says what found no room, as after any delivery."""
    connection: ClientConnection | None = publication.connection
    session = connection.session if connection is not None else None
    account = session.account if session is not None else publication.account
    return _steps(site, Spread(site.router, site.persistence, batch, to, publication, account), batch, publication)


def _steps(site: Site, spread: Spread, batch: Batch, publication: Publication) -> Iterator[None]:
    connection: ClientConnection | None = publication.connection
    persistence = site.persistence
    for _ in spread.steps():
        if batch.qos and connection is not None and not connection.closing:
            site.backpressure.press(connection, spread.targets)
        yield
        site.context.refresh()
    if persistence is not None:
        persistence.begin()
        if batch.qos:
            persistence.need_commit()  # other messages were taken meanwhile: what is stored for this one is no longer told apart
    if publication.refused:
        publication.reason = Reason.QUOTA_EXCEEDED
        if site.context.hooks is not None:
            publisher = connection.client_id if connection is not None else None
            site.context.hooks.dropped(publisher, batch, publication.refused, "no room at a recipient")


def wait_for(connection: ClientConnection, steps: Iterator[None]) -> None:
    """Take these steps in the turns of a connection, which is not read until they are done."""
    connection.steps = steps
    connection.wait_for_turn()


def carry_on(site: Site, steps: Iterator[None], account: Account | None) -> None:
    """Take the steps of a message that no connection publishes. account: of the session that it comes from."""
    turns = site.context.turns
    turns.run(turns.current, steps, "work=will" if account is not None else "work=publish")
