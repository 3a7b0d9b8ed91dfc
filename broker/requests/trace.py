"""Requests to the broker over MQTT: what has it written down of a message?

As with `sessions.py`, a client publishes a request to `$mqmesh/trace`, with Response Topic and Correlation Data as MQTT 5 has it, or is
subscribed to `$mqmesh/trace/answer`; only this client gets the answer. Request and answer are one JSON object each:

    {"message": "7.1763850000000.1.42"}                             {"broker": 7, "site": "porto", "events": [...], "names": {...}}
    {"client": "sensor-17", "since": 1763850000000000, "limit": 5}  the newest messages, with all events that this broker has of them
    anything wrong                                                  {"error": "one line"}

Conditions: message, session, call, client, topic, recipient, account, value, since, until, limit (`journal/search.py`). Events have the
columns of the journal; names says what the numbers in them stand for.

Who may: viewers (`broker/auth/roles.py`) ask for all messages, everybody else for those of the own account. Searches
run in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ...mqtt.batch.batch import Batch
from ..auth.guard import TRACE_ANSWER
from ..auth.operators import DENIED, operates
from ..auth.roles import Role
from ..journal.kinds import name_id
from .reply import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...mqtt.publish import PublishProperties
    from ..auth.guard import Guard
    from ..journal.recent import Recent
    from ..journal.search import Query
    from ..ports import Connection, Context
    from ..routing.router import Router

TOPIC = "$mqmesh/trace"
WAITING = 16  # searches that may wait
RIGHT = 'send {"message": "origin.epoch.stream.sequence"}, or conditions such as {"client": "...", "limit": 5}'
NONE = "this broker writes no journal: its file has no table [journal]"
BUSY = "too many searches wait: ask again later"


class Wrong(Exception):
    """A request that cannot be carried out; its text is the answer."""


class TraceTopic:
    """Answers what clients ask on `TOPIC`. recent: the broker's own journal; None: it has none. account_of: user -> account."""

    def __init__(self, context: Context, router: Router, guard: Guard, number: int, name: str) -> None:
        self._context = context
        self._router = router
        self._guard = guard
        self._who = {"broker": number, "site": name}
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None
        self.recent: Recent | None = None
        self.account_of: Callable[[str], str] = lambda user: user
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, TRACE_ANSWER)
        if not reply.wanted():
            return False
        for payload in run.payloads:
            try:
                self._search(connection, self._asked(payload), reply.answer)
            except Wrong as wrong:
                reply.answer({"error": str(wrong)})
        return True

    def stop(self) -> None:
        """No search begins any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _asked(self, payload: bytes) -> Query:
        if self.recent is None:
            raise Wrong(NONE)
        from ..journal.search import Query  # with pyarrow, which a broker without a journal does without

        try:
            values = json.loads(payload)
            if not isinstance(values, dict) or not values:
                raise Wrong(RIGHT)
            return Query.of(values)
        except RecursionError:
            raise Wrong(RIGHT) from None
        except ValueError as error:
            raise Wrong(RIGHT if isinstance(error, json.JSONDecodeError) else str(error)) from None

    def _search(self, connection: Connection, query: Query, answer: Callable[[dict[str, Any]], None]) -> None:
        if self._waiting >= WAITING:
            raise Wrong(BUSY)
        account = None if operates(self._guard, connection, Role.VIEWER) else name_id(self.account_of(connection.user or ""))
        if account == 0:
            raise Wrong(DENIED)  # nobody knows whose messages are this client's own
        assert self.recent is not None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "trace")
        self._waiting += 1
        future = self._context.loop.run_in_executor(self._pool, self.recent.find, query, account)
        future.add_done_callback(partial(self._found, answer))

    def _found(self, answer: Callable[[dict[str, Any]], None], future: asyncio.Future[dict[str, Any]]) -> None:
        self._waiting -= 1
        if future.cancelled():
            return
        self._context.refresh()
        error = future.exception()
        if error is None:
            answer({**self._who, **future.result()})
        elif isinstance(error, OSError):
            answer({"error": f"the journal cannot be read: {error.strerror or error}"})
        else:
            raise error
        self._context.flush()
