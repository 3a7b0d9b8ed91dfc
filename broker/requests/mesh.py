"""Requests to the broker over MQTT: change the mesh while it runs.

A client publishes a JSON object to `$mqmesh/mesh`, with Response Topic and Correlation Data as MQTT 5 has it, or is subscribed to
`$mqmesh/mesh/answer`. Only administrators get something done, operators drain and resume (`broker/auth/roles.py`), and only
the client that asked gets the answer:

    {"do": "forget", "broker": "turin"}                          a broker out of reach is gone for good, for all of the mesh
    {"do": "rekey", "broker": "turin", "key": "9f86d0..."}       its number belongs to another public key, for all of the mesh
    {"do": "leave", "force": false}                              this broker ends, and the mesh forgets it
    {"do": "add-peer", "address": "mqtt://...", "cost": 1, "number": 3}
    {"do": "remove-peer", "peer": "turin"}                       by name, number or address
    {"do": "set-cost", "peer": "turin", "cost": 5}
    {"do": "drain", "clients": false}                            take no new clients; clients: end the connections of those here
    {"do": "resume"}                                             take clients again

With "dry_run": true nothing is changed. The answer is {"done": "one line"}, {"would": "one line"} or {"error": "one line"}.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base.quoting import quoted
from ...mqtt.batch.batch import Batch
from ...mqtt.errors import UsageError
from ..auth.guard import MESH_ANSWER
from ..auth.operators import DENIED, operates
from ..auth.roles import Role
from .reply import Reply

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..auth.guard import Guard
    from ..mesh.management import Management
    from ..ports import Connection
    from ..routing.router import Router

log = logging.getLogger("mqmesh.mesh")

TOPIC = "$mqmesh/mesh"
RIGHT = 'send {"do": "forget", "broker": "turin", "dry_run": true}; do: '

GENTLE = ("drain", "resume")  # what takes no administrator

Asked = dict[str, Any]
DEEDS: dict[str, Callable[[Management, Asked, bool], str]] = {
    "forget": lambda mesh, asked, dry: mesh.forget(asked.get("broker"), dry),
    "rekey": lambda mesh, asked, dry: mesh.rekey(asked.get("broker"), asked.get("key"), dry),
    "leave": lambda mesh, asked, dry: mesh.leave(asked.get("force") is True, dry),
    "add-peer": lambda mesh, asked, dry: mesh.add_peer(asked.get("address"), asked.get("cost"), asked.get("number"), dry),
    "remove-peer": lambda mesh, asked, dry: mesh.remove_peer(asked.get("peer"), dry),
    "set-cost": lambda mesh, asked, dry: mesh.set_cost(asked.get("peer"), asked.get("cost"), dry),
    "drain": lambda mesh, asked, dry: mesh.drain(asked.get("clients") is True, dry),
    "resume": lambda mesh, asked, dry: mesh.resume(dry),
}


class MeshTopic:
    """Answers what operators ask on `TOPIC`."""

    def __init__(self, router: Router, guard: Guard) -> None:
        self._router = router
        self._guard = guard
        self.management: Management | None = None
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, MESH_ANSWER)
        if not reply.wanted():
            return False
        for payload in run.payloads:
            reply.answer(self._answer(connection, payload))
        return True

    def _answer(self, connection: Connection, payload: bytes) -> dict[str, str]:
        if not operates(self._guard, connection):
            return {"error": DENIED}
        if self.management is None:
            return {"error": "this broker is in no mesh"}
        try:
            asked = json.loads(payload)
            deed = DEEDS[asked["do"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"error": RIGHT + ", ".join(DEEDS)}
        dry = asked.get("dry_run") is True
        if asked["do"] not in GENTLE and not operates(self._guard, connection, Role.ADMINISTRATOR):
            return {"error": DENIED}
        try:
            said = deed(self.management, asked, dry)
        except UsageError as error:
            return {"error": str(error)}
        if not dry:
            who = quoted(connection.client_id), quoted(connection.user), connection.address
            if connection.context.journal is not None:
                connection.context.journal.managed(connection, "mesh", do=asked["do"], said=said)
            log.warning("event=mesh-changed do=%s client=%s user=%s address=%s text=%s", asked["do"], *who, said)
        return {"would" if dry else "done": said}
