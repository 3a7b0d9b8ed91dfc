"""What the interchange tells the journal of its broker: each delivery to a service, and each call that has ended.

    delivered    call, session, hop; client: who has posted it; recipient: the service that gets it; reason: what kind of message it is
    ended        the same without hop; reason: how it ended; detail: the call as queries show it (`correlation/rows.py`)

Both are events of the kind `invoked`, noted after their commit. A refused post is an event of the kind `refused`, as refused messages are.
The journal's columns hold numbers: an identifier is its first sixteen digits as one.

Source: US 9,037,726, message, call and session tables (rows M1, M2, M3, M10, M11).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.interchange import INBOX, POST
from ...broker.journal.kinds import Invoked, Kind, identifier_number
from ...broker.journal.recorder import way_of
from ..calls import Call, unpack
from ..correlation.rows import shown, status_of
from ..identifiers import time_of

if TYPE_CHECKING:
    from ...broker.journal.recorder import Recorder
    from ...broker.ports import Connection
    from ..exchange import Deliver
    from ..refusals import Refusal

MOST_SAID = 1000  # characters of why a post was refused


def delivered(journal: Recorder, one: Deliver) -> None:
    """A message goes to a service."""
    header, message = one.message.header, one.message
    size = len(message.body.data) + sum(len(part.data) for part in message.attachments)
    values: dict[str, Any] = {"client": header.sender, "recipient": one.service, "topic": INBOX + one.service, "reason": header.kind.value}
    values |= {"call": identifier_number(header.call), "session": identifier_number(header.session), "hop": identifier_number(header.hop)}
    journal.event(Kind.INVOKED, **values, size=size, bytes=size, published=_begun(header.call), value=int(Invoked.DELIVERED))


def ended(journal: Recorder, call: Call, packed: bytes) -> None:
    """Nothing more happens in a call. packed: all that is known of it; it is read in the journal's thread."""
    values: dict[str, Any] = {"client": call.header.sender, "reason": status_of(call), "published": _begun(call.id)}
    values |= {"call": identifier_number(call.id), "session": identifier_number(call.session), "value": int(Invoked.ENDED)}
    journal.event(Kind.INVOKED, **values, detail=partial(_shown, packed))


def refused(journal: Recorder, connection: Connection, refusal: Refusal, size: int) -> None:
    """A post is not taken. size: of its payload."""
    values: dict[str, Any] = {"topic": POST, "client": connection.client_id, "user": connection.user or "", "reason": refusal.code.value}
    values |= {"size": size, "bytes": size, "qos": 1, "version_in": connection.version, "protocol_in": way_of(connection) >> 4}
    journal.event(Kind.REFUSED, **values, detail={"text": refusal.what[:MOST_SAID]})


def _begun(call: str) -> int:
    """When a call was begun, as its identifier says: all events of it belong to that day."""
    return 1000 * time_of(call) if call else 0


def _shown(packed: bytes) -> dict[str, Any]:
    return shown(unpack(packed))
