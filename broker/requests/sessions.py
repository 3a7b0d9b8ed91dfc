"""Requests to the broker over MQTT: which sessions does it keep, and end one.

As with `request.py`, a client publishes a request to `$mqmesh/sessions`, with Response Topic and Correlation Data as MQTT 5 has it (or
without: then the answer goes to `$mqmesh/sessions/answer`), and is subscribed where the answer goes; only this client gets it. Request and
answer are one JSON object each:

    {"do": "list", "by": "bytes", "limit": 20}    {"sessions": [...], "total": 1234, "bytes": ..., "limit": ...}
    {"do": "end", "client": "porto-17"}           {"ended": {...}}
    anything wrong                                {"error": "one line"}

by: "bytes", "messages" or "away" (longest first); client: of the list, only this one. A session is an object of "client", "user",
"connected", "messages", "bytes", "age", "away", "expires" and "subscriptions": age is of its oldest message, away since its connection
ended, expires until it ends, all in seconds, null where there is none.

Who may: viewers the list, operators the rest (`broker/auth/roles.py`). Nobody else
learns a client identifier, and nobody ends another one's session.

What it does not know: how sessions are kept.
"""

from __future__ import annotations

import heapq
import json
import logging
from functools import partial
from typing import TYPE_CHECKING

from ...base.quoting import quoted
from ...mqtt.batch.batch import Batch
from ...mqtt.reasons import Reason
from ..auth.guard import ANSWER
from ..auth.operators import DENIED, operates
from ..auth.roles import Role
from ..persistence.stored_delivery import Extra
from ..persistence.stored_session import StoredSession
from .reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...mqtt.publish import PublishProperties
    from ...store import Store, StoreError
    from ..auth.guard import Guard
    from ..persistence.commits import Persistence
    from ..ports import Connection, Context
    from ..routing.router import Router
    from ..session.table import Sessions

log = logging.getLogger("mqmesh.broker")

TOPIC = "$mqmesh/sessions"
FEW, MOST = 20, 1000  # sessions in one answer
RIGHT = 'send {"do": "list", "by": "bytes", "limit": 20} (by: bytes, messages or away) or {"do": "end", "client": "..."}'
LEAVING = "\0"  # how the names of sessions begin that are on their way to another site


class Wrong(Exception):
    """A request that cannot be carried out; its text is the answer."""


class SessionTopic:
    """Answers what operators ask on `TOPIC`."""

    def __init__(self, context: Context, router: Router, guard: Guard, sessions: Sessions) -> None:
        self._context = context
        self._router = router
        self._guard = guard
        self._sessions = sessions
        self.persistence: Persistence | None = None
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, ANSWER)
        if not reply.wanted():
            return False
        for payload in run.payloads:
            try:
                self._carry_out(connection, payload, reply.answer)
            except Wrong as wrong:
                reply.answer({"error": str(wrong)})
        return True

    def _carry_out(self, connection: Connection, payload: bytes, answer: Callable[[dict[str, object]], None]) -> None:
        if not operates(self._guard, connection, Role.VIEWER):
            raise Wrong(DENIED)
        try:
            request = json.loads(payload)
        except (ValueError, RecursionError):
            raise Wrong(RIGHT) from None
        client = request.get("client") if isinstance(request, dict) else None
        if not isinstance(request, dict) or not isinstance(client, str | None):
            raise Wrong(RIGHT)
        if request.get("do") == "end" and client is not None:
            if not operates(self._guard, connection):
                raise Wrong(DENIED)
            session = self._find(client)
            ended = describe(self._context, session, None)
            self._end(connection, session)
            persistence = session.persistence
            persistence.when(persistence.mark(), partial(answer, {"ended": ended}))  # once it is certain
        elif request.get("do") == "list":
            chosen = [self._find(client)] if client is not None else self._choose(request.get("by", "bytes"), request.get("limit", FEW))
            self._list(chosen, answer)
        else:
            raise Wrong(RIGHT)

    # The list

    def _kept(self) -> list[StoredSession]:
        return [one for one in self._sessions if isinstance(one, StoredSession) and not one.client_id.startswith(LEAVING)]

    def _find(self, client: str) -> StoredSession:
        session = self._sessions.get(client)
        if not isinstance(session, StoredSession) or client.startswith(LEAVING):
            raise Wrong(f"no session is kept for {client[:200]!r}")
        return session

    def _choose(self, by: object, limit: object) -> list[StoredSession]:
        now = self._context.steady()
        keys: dict[str, Callable[[StoredSession], float]] = {
            "bytes": lambda one: one.queued_bytes,
            "messages": lambda one: one.queued + one.outbound.in_flight,
            "away": lambda one: -1.0 if one.left_at is None else now - one.left_at,
        }
        key = keys.get(by) if isinstance(by, str) else None
        if key is None or not isinstance(limit, int) or not 0 < limit <= MOST:
            raise Wrong(f"{RIGHT}; limit: 1 to {MOST}")
        return heapq.nlargest(limit, self._kept(), key=key)

    def _list(self, chosen: list[StoredSession], answer: Callable[[dict[str, object]], None]) -> None:
        """The ages stand in the store: it is asked in a thread, and the answer follows."""
        persistence = self.persistence
        if persistence is None:
            raise Wrong("this broker keeps no sessions: it has no store")

        def take(ages: dict[str, int] | None, error: StoreError | None) -> None:
            if ages is None:
                answer({"error": str(error)})
            else:
                there = [describe(self._context, one, ages.get(one.recipient)) for one in chosen if not one.ended]
                bound = persistence.quota
                answer(
                    {"sessions": there, "total": bound.sessions, "bytes": bound.stored, "limit": bound.limit, "most": bound.session_limit}
                )
            self._context.flush()

        persistence.read(partial(_oldest, persistence.store, [one.recipient for one in chosen]), take)

    # The end

    def _end(self, connection: Connection, session: StoredSession) -> None:
        messages = session.queued + session.outbound.in_flight
        if connection.context.journal is not None:
            connection.context.journal.managed(connection, "sessions", do="end", client=session.client_id, messages=messages)
        log.warning(
            "event=session-ended client=%s by=%s user=%s address=%s messages=%d",
            *(quoted(session.client_id), quoted(connection.client_id), quoted(connection.user), connection.address, messages),
        )
        if session.connection is not None:
            session.connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "an operator ended the session")
        self._sessions.end(session)


def describe(context: Context, session: StoredSession, since: int | None) -> dict[str, object]:
    """A session as an answer has it. since: by the steady clock, when its oldest message came."""
    now = context.steady()
    return {
        "client": session.client_id,
        "user": session.user,
        "connected": session.connection is not None,
        "messages": session.queued + session.outbound.in_flight,
        "bytes": session.queued_bytes + sum([flight.count * flight.each for flight in session.flights()]),
        "age": None if since is None else max(0, round(now - since)),
        "away": None if session.left_at is None else max(0, round(now - session.left_at)),
        "expires": None if session.ends_at is None else max(0, round(session.ends_at - context.loop.time())),
        "subscriptions": len(session.subscriptions),
    }


def _oldest(store: Store, recipients: list[str]) -> dict[str, int]:
    """When, by the steady clock, the first stored message of each came; in a thread. Raises StoreError."""
    found = {}
    for recipient in recipients:
        for row in store.deliveries(recipient, limit=1):
            found[recipient] = Extra.decode(row.extra).since
    return found
