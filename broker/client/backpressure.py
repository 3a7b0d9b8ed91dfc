"""Backpressure: who is slowed, for whom, for how long; and the bound on what the broker as a whole holds.

The rules
- What a connection has not taken from its transport is bounded (`Limits.unsent_bytes`): beyond, it is *congested*; QoS 0 for it is
  dropped and counted, QoS 1 and 2 wait in its session, whose queue is bounded too.
- A publisher whose QoS 1 or 2 message joins a queue that is half full is not read until the queue is down to a quarter, as long as
  that queue moves. One that has not moved for `STALLED` seconds slows nobody; when it is full, messages for it are refused.
- A session that is away slows nobody: its queue fills, then refuses (MQTT 5 publishers are told 0x97).
- A connection that is itself not read slows nobody: its acknowledgements would not be seen, and two clients that publish to each
  other would wait for each other.
- A client that sends requests and does not take the answers is not read until it does.
- When all messages together reach `Limits.broker_bytes`, queues and retained messages take no more, and the connections with most
  unsent bytes count as congested earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ..empty import EMPTY_SET

if TYPE_CHECKING:
    from ..ports import Subscriber
    from ..routing.route import Entry, Target
    from ..site import ClientConnection, Site

log = logging.getLogger("mqmesh.broker")

STALLED = 5.0  # seconds without progress after which a queue no longer slows publishers
SHARE_MIN = 64 * 1024  # unsent bytes that a connection may always have


class Backpressure:
    """The backpressure of one broker."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pressed: set[Subscriber] = set()
        self._squeezed: set[ClientConnection] = set()
        self.check_at = 0  # when so many bytes have been sent, look at the bound before the next tick

    # Publishers

    def press(self, publisher: ClientConnection, recipients: Iterable[Target] | Iterable[Entry]) -> None:
        """`publisher` has just given messages of QoS 1 or 2 to the sessions of these recipients."""
        for recipient in recipients:
            if recipient.session.queued:
                self._press(publisher, recipient.session.main)

    def _press(self, publisher: ClientConnection, session: Subscriber) -> None:
        connection = session.connection
        if connection is None or connection is publisher or connection.pauses:
            return
        if (session.pressing or self._site.context.account.tight) and self._site.context.now - session.moved < STALLED:
            publisher.pause_reading_for(session)
            if session.paused is EMPTY_SET:
                session.paused = set()
            session.paused.add(publisher)
            self._pressed.add(session)

    def relax(self, session: Subscriber) -> None:
        """Read again from the publishers that were slowed for this session."""
        self._pressed.discard(session)
        session.relax()

    # The broker as a whole

    def check(self, connections: Iterable[ClientConnection]) -> None:
        """Measure what is unsent, in flight and half received; enforce the bound; let go of publishers whose subscriber is stuck."""
        site = self._site
        account = site.context.account
        held = 0
        count = 0
        for connection in connections:
            count += 1
            held += connection.unsent + connection.unread
            if connection.session is not None:
                held += connection.session.outbound.bytes
        account.measured = held
        if account.full:
            self._squeeze(connections, max(SHARE_MIN, account.limit // (2 * max(1, count))))
        elif self._squeezed and not account.tight:
            for connection in self._squeezed:
                connection.bound_unsent(connection.limits.unsent_bytes)
            self._squeezed.clear()
        self.check_at = site.context.counters.bytes_sent + account.limit // 16
        for session in list(self._pressed):
            if not session.paused or session.connection is None or site.context.now - session.moved >= STALLED:
                self.relax(session)

    def _squeeze(self, connections: Iterable[ClientConnection], share: int) -> None:
        for connection in connections:
            if connection.unsent > share and connection not in self._squeezed:
                log.warning(
                    "event=squeezed client=%s address=%s unsent=%d", quoted(connection.client_id), connection.address, connection.unsent
                )
                self._squeezed.add(connection)
                connection.bound_unsent(share)

    def forget(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._squeezed.discard(connection)
