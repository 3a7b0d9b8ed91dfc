"""Requests to the broker over MQTT: how are the recipients, where would a message go, and what an operator does with one.

A client publishes a JSON object to `$mqmesh/recipients`, with Response Topic and Correlation Data as MQTT 5 has it, or is subscribed to
`$mqmesh/recipients/answer`; only the client that asked gets the answer (docs/operations.md, "Recipients"):

    {"do": "list"}                                    {"recipients": [...], "others": {"fault": 3, "clients": [...]}}; others: for viewers
    {"do": "show", "name": "orders"}                  {"recipients": [{...}]}
    {"do": "explain", "name": "orders"}               {"name": ..., "steps": [{"recipient", "site", "state", "answer"}], "goes_to": ...}
    {"do": "hold", "name": "orders"}                  {"recipient": {...}}: its messages wait, and are delivered to nobody
    {"do": "resume", "name": "orders"}                the opposite
    {"do": "defunct", "name": "orders"}               it is dead: as if both intervals were over
    {"do": "move", "name": "orders", "to": "lyon"}    its messages go to another recipient now; without "to" to its alternatives
    anything wrong                                    {"error": "one line"}

Who may: viewers look, operators do the rest (`broker/auth/roles.py`). Where a broker has no rules of access,
everybody may look, since everybody may read everything there.

What it does not know: how recipients are watched.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

from ...base.quoting import quoted
from ...mqtt.batch.batch import Batch
from ...mqtt.errors import UsageError
from ..auth.guard import RECIPIENTS_ANSWER
from ..auth.operators import DENIED, operates
from ..auth.roles import Role
from .reply import Reply

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..auth.guard import Guard
    from ..ports import Connection
    from ..routing.router import Router

log = logging.getLogger("mqmesh.broker")

TOPIC = "$mqmesh/recipients"
LOOKS, DEEDS = ("list", "show", "explain"), ("hold", "resume", "defunct", "move")
RIGHT = 'send {"do": "list"} or {"do": "show", "name": "..."}; do: ' + ", ".join(LOOKS + DEEDS)
NO_RECIPIENTS = "this broker watches no recipients: its file has no table [recipients]"

Asked = dict[str, Any]


class Administration(Protocol):
    """The recipients of a broker, as operators see them. Methods with a name raise UsageError (one line) for one that is not known."""

    def describe(self) -> list[dict[str, Any]]:
        """All of them, as docs/recipients.md shows them."""

    def others(self) -> dict[str, Any]:
        """Sessions that declared nothing and take nothing: how many ("fault"), and the first client identifiers ("clients")."""

    def explain(self, name: str) -> dict[str, Any]:
        """Where a message for a name would go now, and why."""

    def hold(self, name: str) -> dict[str, Any]:
        """Its messages wait, whatever its state."""

    def resume(self, name: str) -> dict[str, Any]:
        """They are delivered again."""

    def defunct(self, name: str) -> dict[str, Any]:
        """It is dead."""

    def move(self, name: str, to: str | None) -> dict[str, Any]:
        """Its messages go elsewhere now. to: None: to its alternatives."""


class RecipientTopic:
    """Answers what operators ask on `TOPIC`. administration: None without recipients."""

    def __init__(self, router: Router, guard: Guard) -> None:
        self._router = router
        self._guard = guard
        self.administration: Administration | None = None
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, RECIPIENTS_ANSWER)
        if not reply.wanted():
            return False
        for payload in run.payloads:
            reply.answer(self._answer(connection, payload))
        return True

    def _answer(self, connection: Connection, payload: bytes) -> dict[str, Any]:
        viewer = operates(self._guard, connection, Role.VIEWER)
        if not viewer and self._guard.rules:
            return {"error": DENIED}
        try:
            asked = json.loads(payload)
        except (ValueError, RecursionError):
            return {"error": RIGHT}
        do = asked.get("do") if isinstance(asked, dict) else None
        if do not in LOOKS + DEEDS or not isinstance(asked.get("name"), str | None) or (do != "list" and not asked.get("name")):
            return {"error": RIGHT}
        if do in DEEDS and not operates(self._guard, connection):
            return {"error": DENIED}
        if self.administration is None:
            return {"error": NO_RECIPIENTS}
        try:
            return _look(self.administration, do, asked, viewer) if do in LOOKS else self._act(self.administration, do, asked, connection)
        except UsageError as error:
            return {"error": str(error)}

    def _act(self, recipients: Administration, do: str, asked: Asked, connection: Connection) -> dict[str, Any]:
        name, to = asked["name"], asked.get("to")
        if not isinstance(to, str | None) or (to is not None and do != "move"):
            return {"error": 'give "to" with "move" only: the name of a recipient'}
        record = recipients.move(name, to) if do == "move" else getattr(recipients, do)(name)
        who = quoted(connection.client_id), quoted(connection.user), connection.address
        if connection.context.journal is not None:
            connection.context.journal.managed(connection, "recipients", do=do, name=name, to=to)
        log.warning("event=recipient-changed do=%s name=%s to=%s client=%s user=%s address=%s", do, quoted(name), quoted(to or "-"), *who)
        return {"recipient": record}


def _look(recipients: Administration, do: str, asked: Asked, viewer: bool) -> dict[str, Any]:
    if do == "explain":
        return recipients.explain(asked["name"])
    shown = recipients.describe()
    if do == "show":
        shown = [one for one in shown if one["name"] == asked["name"]]
        if not shown:
            raise UsageError(f"there is no recipient {asked['name'][:200]!r}")
        return {"recipients": shown}
    return {"recipients": shown, **({"others": recipients.others()} if viewer else {})}
