"""What the interchange tells the journal of its broker: each delivery to a service, and each call that has ended.

    posted       call, session; client: who has posted it; account: whom it is charged to; reason: what kind of message it is
    delivered    the same with hop; recipient: the service that gets it
    ended        call, session; client: who has begun it; account; reason: how it ended; detail: the call as queries show it
                 (`correlation/rows.py`)

They are events of the kind `invoked`, noted after their commit. A refused post is an event of the kind `refused`, as refused messages are.
The journal's columns hold numbers: an identifier is its first sixteen digits as one. The account is the owner of the service that sends,
as a user is for other messages: what `[access] accounts` makes of it.

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
    from ..exchange import Deliver, Verdict
    from ..message import Message
    from ..refusals import Refusal

MOST_SAID = 1000  # characters of why a post was refused


def posted(journal: Recorder, message: Message, verdict: Verdict, owner: str) -> None:
    """A post is taken. owner: of its sender."""
    size = message.size
    values: dict[str, Any] = {"client": message.header.sender, "user": owner, "topic": POST, "reason": message.header.kind.value}
    values |= {"call": identifier_number(verdict.call), "session": identifier_number(verdict.session), "value": int(Invoked.POSTED)}
    journal.event(Kind.INVOKED, **values, size=size, bytes=size, published=_begun(verdict.call))


def delivered(journal: Recorder, one: Deliver, owner: str) -> None:
    """A message goes to a service. owner: of its sender."""
    header, size = one.message.header, one.message.size
    values: dict[str, Any] = {"client": header.sender, "user": owner, "recipient": one.service, "topic": INBOX + one.service}
    values |= {"call": identifier_number(header.call), "session": identifier_number(header.session), "hop": identifier_number(header.hop)}
    values |= {"reason": header.kind.value, "published": _begun(header.call), "value": int(Invoked.DELIVERED)}
    journal.event(Kind.INVOKED, **values, size=size, bytes=size)


def ended(journal: Recorder, call: Call, packed: bytes, owner: str) -> None:
    """Nothing more happens in a call. packed: all that is known of it; it is read in the journal's thread. owner: of who began it."""
    values: dict[str, Any] = {"client": call.header.sender, "user": owner, "reason": status_of(call), "published": _begun(call.id)}
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
    return shown(unpack(packed, check=False))
