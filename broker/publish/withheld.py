"""Publishers that wait for room in the mesh go on to be read: what they may not publish now is withheld, with its acknowledgement.

A run that finds no room is kept here, and so is every later one of QoS 1 or 2 of the same topic, so that the order of a topic holds.
All else passes: PINGREQ is answered, other topics are published and acknowledged. When there is room, what is withheld is published
in its order.

    the mesh has no room for now          withheld; after five seconds MQTT 5 is answered 0x97; beyond the bound the socket is not read
    a site that is away is at its bound   MQTT 5 is answered 0x97 at once. MQTT 3.1.1 has no such answer: withheld; beyond the bound the
                                          client is closed. It keeps what is not acknowledged, and sends it again

What is withheld was not acknowledged: it goes with the connection. It is charged to the connection's account as received; a holder that
may have no more unfinished bytes is at its bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..ledger import RECEIVED
from ..routing.publication import WITHHELD_BYTES, WITHHELD_MESSAGES, Withheld

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..routing.publication import Numbers
    from ..site import ClientConnection

AWAY_TEXT = "no room: a site that is away has all that may wait for it (mesh.custody)"


def withhold(connection: ClientConnection, run: Batch, numbers: Numbers, properties: PublishProperties | None, away: bool) -> bool:
    """Withhold a run of QoS 1 or 2; False: there is too much already, the socket is not to be read.

    away: because of a site that is away. Raises PeerError for a client that has then more than its bound.
    """
    held = connection.withheld
    if connection.account.overdrawn:
        if not away:
            return False
        raise PeerError(Reason.QUOTA_EXCEEDED, connection.account.why, "limits.broker_bytes")
    if held is not None and not held.fits(run):
        if not away:
            return False
        text = f"more than {WITHHELD_MESSAGES} messages or {WITHHELD_BYTES >> 20} MiB wait for a site that is away, whose custody is full"
        raise PeerError(Reason.QUOTA_EXCEEDED, text, "mesh.custody")
    keep(connection, run, numbers, properties)
    connection.context.counters.withheld += run.count
    if held is None:
        assert connection.site.mesh is not None
        connection.site.mesh.hold(connection)
    return True


def keep(connection: ClientConnection, run: Batch, numbers: Numbers, properties: PublishProperties | None) -> None:
    """Withhold a run, whatever is withheld already."""
    if connection.withheld is None:
        connection.withheld = Withheld()
        connection.admitted = {}  # so that everything goes the general way, which sees what is withheld
    connection.account.charge(RECEIVED, connection.withheld.add(run, numbers, properties))


def take_back(connection: ClientConnection) -> Withheld | None:
    """Withhold nothing any more: what was withheld."""
    held, connection.withheld = connection.withheld, None
    if held is not None:
        account = connection.account
        account.settle(RECEIVED, max(0, account.held[RECEIVED] - held.bytes))  # it has nothing once the socket is gone
    return held
