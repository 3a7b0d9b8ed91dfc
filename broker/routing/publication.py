"""`Publication`: what travels with a batch on its way through the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..ledger import Account
    from ..ports import Recipient

Numbers = range | list[int]  # packet identifiers


class Publication:
    """Who publishes a batch, and what has become of it so far.

    connection: the publisher's. None for a will, a message of the broker itself, or one that the mesh brings.
    account: of the session whose will it is; None: it is no will, or a late one.
    session: the publisher's, as routes know it, for No Local (MQTT-3.8.3-3); None: of nobody here.
    numbers: packet identifiers of the messages, one each at QoS 1 and 2.
    properties: what the publisher said of the messages; None: nothing, or only what travels to subscribers unread.
    commit: the ticket of the commit that deliveries of QoS 2 wait for, because the batch may come again until then; 0: none.
    refused: how many messages at the end of the batch were not taken.
    reason: for the acknowledgement: below 0x80 of what was taken, from 0x80 on of what was refused.
    text: why messages were refused, in words; None: the usual ones of the reason.
    wants_store: the batch was not taken because the store takes nothing; otherwise because the mesh has no room.
    """

    __slots__ = ("account", "commit", "connection", "numbers", "properties", "reason", "refused", "session", "text", "wants_store")

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
        self.session = session
        self.numbers = numbers
        self.properties = properties
        self.commit = commit
        self.refused = 0
        self.reason = 0
        self.text: str | None = None
        self.wants_store = False

    @property
    def payer(self) -> Account | None:
        """Who is charged for what is retained of it; None: no client of this broker."""
        return self.account if self.connection is None else self.connection.account

    def refuse(self, count: int, reason: int, text: str | None = None) -> None:
        """The last `count` messages are not taken."""
        self.refused = count
        self.reason = reason
        self.text = text
