"""`Publication`: what travels with a batch on its way through the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from ..ledger import Account
    from ..ports import Recipient

Numbers = range | list[int]  # packet identifiers


WITHHELD_MESSAGES = 1000  # of one client, see publish/withheld.py
WITHHELD_BYTES = 2**20


class Publication:
    """Who publishes a batch, and what has become of it so far.

    connection: the publisher's. None for a will, a message of the broker itself, or one that the mesh brings.
    account: of the session whose will it is; None: it is no will, or a late one.
    session: the publisher's, as routes know it, for No Local (MQTT-3.8.3-3); None: of nobody here.
    handled: its handle, if its publisher gave it one (`publish/handles.py`); such a batch is one message.
    numbers: packet identifiers of the messages, one each at QoS 1 and 2.
    properties: what the publisher said of the messages; None: nothing, or only what travels to subscribers unread.
    commit: the ticket of the commit that deliveries of QoS 2 wait for, because the batch may come again until then; 0: none.
    refused: how many messages at the end of the batch were not taken.
    reason: for the acknowledgement: below 0x80 of what was taken, from 0x80 on of what was refused.
    text: why messages were refused, in words; None: the usual ones of the reason.
    rest: what of its delivery is still to be done, step by step (`publish/fan_out.py`); None: nothing.
    away: the batch was not taken because a site that is away has all that may wait for it.
    wants_store: the batch was not taken because the store takes nothing; otherwise because the mesh has no room.
    at_once: it is delivered in one piece, whatever the number of its recipients.
    """

    at_once = False

    __slots__ = (
        "account",
        "away",
        "commit",
        "connection",
        "handled",
        "numbers",
        "properties",
        "reason",
        "refused",
        "rest",
        "session",
        "text",
        "wants_store",
    )

    def __init__(
        self,
        connection: Any = None,
        session: Recipient | None = None,
        numbers: Numbers = (),  # type: ignore[assignment]
        properties: PublishProperties | None = None,
        commit: int = 0,
        account: Account | None = None,
    ) -> None:
        self.account = account
        self.connection = connection
        self.handled: Any = None
        self.session = session
        self.numbers = numbers
        self.properties = properties
        self.commit = commit
        self.refused = 0
        self.reason = 0
        self.text: str | None = None
        self.rest: Iterator[None] | None = None
        self.away = self.wants_store = False

    @property
    def payer(self) -> Account | None:
        """Who is charged for what is retained of it; None: no client of this broker."""
        return self.account if self.connection is None else self.connection.account

    def refuse(self, count: int, reason: int, text: str | None = None) -> None:
        """The last `count` messages are not taken."""
        self.refused = count
        self.reason = reason
        self.text = text


class OwnPublication(Publication):
    """A message of the broker's own, for which somebody waits to know whether it was taken."""

    __slots__ = ()

    at_once = True


class Withheld:
    """What one client may not publish now.

    runs: in order, with their packet identifiers and properties. bytes: of their payloads, topics and properties.
    """

    __slots__ = ("bytes", "messages", "runs", "topics")

    def __init__(self) -> None:
        self.runs: deque[tuple[Batch, Numbers, PublishProperties | None]] = deque()
        self.topics: set[bytes] = set()
        self.messages = 0
        self.bytes = 0

    def fits(self, run: Batch) -> bool:
        """Whether one more run may be withheld."""
        return self.messages + run.count <= WITHHELD_MESSAGES and self.bytes + _weight(run) <= WITHHELD_BYTES

    def add(self, run: Batch, numbers: Numbers, properties: PublishProperties | None) -> int:
        """Withhold a run. Returns the bytes that it stands for."""
        self.runs.append((run, numbers, properties))
        self.topics.add(run.topic)
        self.messages += run.count
        weight = _weight(run)
        self.bytes += weight
        return weight


def _weight(run: Batch) -> int:
    return run.count * (run.length + len(run.topic) + len(run.properties))
