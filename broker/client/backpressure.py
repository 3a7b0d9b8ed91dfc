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
- A user or a source address may hold `ledger.SHARE` times of what is free of `Limits.broker_bytes`. Beyond, its sessions, its subscriptions
  and its retained messages take no more, and its connections count as congested earlier.
- A packet in part that finds no room closes its connection. Near the bound what is unfinished goes, of those first who have most of it;
  then the connections that take nothing of what was sent to them. What was acknowledged stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ...mqtt.reasons import Reason
from ..empty import EMPTY_SET
from ..ledger import CUSTODY, HELD, JOURNAL, LINKS, LOGINS, RECEIVED, SCARCE, STORE, UNSENT

if TYPE_CHECKING:
    from ..ports import Subscriber
    from ..routing.route import Entry, Target
    from ..site import ClientConnection, Site

log = logging.getLogger("mqmesh.broker")

STALLED = 5.0  # seconds without progress after which a queue no longer slows publishers
SHARE_MIN = 64 * 1024  # unsent bytes that a connection may always have
PIECE = 256 * 2**10  # bytes that one read of a socket brings at most: whole packets that wait for their turn, not unfinished ones
STEP = 1_000  # connections that are visited in one step


class Backpressure:
    """The backpressure of one broker."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pressed: set[Subscriber] = set()
        self._squeezed: set[ClientConnection] = set()
        self._round: list[ClientConnection] = []  # those that a look has still to visit
        self._visited = 0
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
        if (session.pressing or session.account.tight) and self._site.context.now - session.moved < STALLED:
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
        """Read what is unsent and in flight; enforce the bound; let go of publishers whose subscriber is stuck.

        Many connections are visited in several steps, so that nobody waits for all of them.
        """
        site = self._site
        self.check_at = site.context.counters.bytes_sent + site.context.ledger.limit // SCARCE
        for session in list(self._pressed):
            if not session.paused or session.connection is None or site.context.now - session.moved >= STALLED:
                self.relax(session)
        if not self._round:
            self._round = list(connections)
            self._visited = 0
            self._visit()

    def _visit(self) -> None:
        """Look at the next connections of a round."""
        found, ledger = self._round, self._site.context.ledger
        end = min(len(found), self._visited + STEP)
        share = max(SHARE_MIN, ledger.limit // (2 * len(found))) if found else 0
        for index in range(self._visited, end):
            connection = found[index]
            connection.settle()
            if connection.account.full:
                self._squeeze(connection, share)
        self._visited = end
        if end < len(found):
            self._site.context.loop.call_soon(self._visit)
            return
        self._round = []
        self._read_totals()
        for connection in [one for one in self._squeezed if not one.account.tight]:
            self._release(connection)
        if ledger.scarce:
            self._relieve(found)

    def _read_totals(self) -> None:
        """What is held for nobody in particular: for other brokers, and until the store or the journal has it."""
        site, own = self._site, self._site.context.ledger.own
        if site.mesh is not None:
            node = site.mesh.node
            own.settle(CUSTODY, node.custody()[1] + HELD * node.custody_in_memory()[2])
            own.settle(LINKS, sum([link.unsent for link in site.mesh.links.values()]) + node.unread)
        if site.persistence is not None:
            own.settle(STORE, site.persistence.writer.bytes_pending)
        if site.context.journal is not None:
            own.settle(JOURNAL, site.context.journal.held)

    def _squeeze(self, connection: ClientConnection, share: int) -> None:
        session = connection.session
        held = connection.unsent + (session.outbound.bytes if session is not None else 0)
        if held <= share or connection in self._squeezed:
            return
        self._say("squeezed", connection, f" held={held}")
        self._squeezed.add(connection)
        connection.bound_unsent(share)
        if session is not None:
            session.bound_window(share)

    def _release(self, connection: ClientConnection) -> None:
        self._squeezed.discard(connection)
        connection.bound_unsent(connection.limits.unsent_bytes)
        if connection.session is not None:
            connection.session.bound_window(None)

    def _relieve(self, connections: list[ClientConnection]) -> None:
        """Close what holds most that was not acknowledged to anybody, until an eighth of the bound is free."""
        ledger = self._site.context.ledger
        enough = ledger.limit - 2 * ledger.limit // SCARCE
        stuck = [one for one in connections if one.congested and self._site.context.now - one.stuck_since >= STALLED]
        for kind_of, among, least in ((_unfinished, connections, PIECE), (_unsent, stuck, SHARE_MIN)):
            found = [(kind_of(connection), connection) for connection in among if not connection.closing]
            candidates = [one for one in found if one[0][1] > least]
            candidates.sort(key=lambda one: one[0], reverse=True)
            for _, connection in candidates:
                if ledger.total <= enough:
                    return
                self.evict(connection)

    def evict(self, connection: ClientConnection) -> None:
        """Close a connection because its holder has more than its share."""
        if connection.inside:
            return
        self._site.context.counters.evicted += 1
        text = connection.account.why
        self._say("evicted", connection, "", text)
        connection.disconnect(Reason.QUOTA_EXCEEDED, text)
        if connection.account.held[UNSENT] > SHARE_MIN:
            connection.transport.abort()  # it would wait for a peer that takes nothing
            connection.account.settle(UNSENT, 0)

    def _say(self, event: str, connection: ClientConnection, fields: str, text: str = "") -> None:
        """One warning a minute for an event and a source."""
        context = self._site.context
        fields += f" client={quoted(connection.client_id)} user={quoted(connection.user)}"
        context.warnings.say(event, context.loop.time(), connection.address, text or connection.account.why, fields, what="")

    def forget(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        self._squeezed.discard(connection)


def _unfinished(connection: ClientConnection) -> tuple[int, int]:
    """(bytes that its address has unfinished, the same of its own)."""
    account = connection.account
    return account.address.unfinished if account.address is not None else 0, account.held[LOGINS] + account.held[RECEIVED]


def _unsent(connection: ClientConnection) -> tuple[int, int]:
    """(bytes that its address has, its own that are unsent)."""
    account = connection.account
    return account.address.total if account.address is not None else 0, account.held[UNSENT]
