"""Requests to the broker over MQTT: who has a message?

A client publishes a message's identifier to `$mqmesh/receipts`, with Response Topic and Correlation Data as MQTT 5 has it for any
request [MQTT 5: 4.10]; the answer is one JSON object. Without a Response Topic (MQTT 3.1.1) it goes to `$mqmesh/receipts/answer`. Either
way only the client that asked gets it, and only if it is subscribed there: nobody can have the broker write elsewhere.

    payload                     which message
    origin:epoch:sequence       the one whose acknowledgement said `mqmesh-id`
    packet:N                    the client's latest one with the packet identifier N

It answers for messages that this client published here with receipts, as long as they are remembered. It does not know how it is
known who has them (`receipts.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...mesh.wire.visited import numbers as brokers_of
from ...mqtt.batch.batch import Batch
from .reply import Reply

if TYPE_CHECKING:
    from ...mqtt.publish import PublishProperties
    from ..mesh.receipts import Asked, Receipts
    from ..ports import Connection
    from ..routing.router import Router

TOPIC = "$mqmesh/receipts"
ANSWER = "$mqmesh/receipts/answer"
IDENTIFIER = re.compile(r"(\d{1,5}):(\d{1,15}):(\d{1,20})")
PACKET = re.compile(r"packet:(\d{1,5})")
RIGHT = "send origin:epoch:sequence as mqmesh-id says it, or packet:N with the packet identifier of your PUBLISH"
UNKNOWN = "no message of yours that was published here with receipts and is still remembered"


class RequestTopic:
    """Answers what clients ask on `TOPIC`."""

    def __init__(self, receipts: Receipts, router: Router) -> None:
        self._receipts = receipts
        self._router = router
        router.services[TOPIC] = self.serve

    def serve(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> bool:
        """Answer requests: whether the client takes the answers."""
        reply = Reply(self._router, connection, properties, ANSWER)
        for payload in run.payloads:
            reply.answer(self.answer(connection.client_id, payload))
        return reply.wanted()

    def answer(self, client: str, payload: bytes) -> dict[str, object]:
        """What is known of the message that a client's request names."""
        text = payload.decode("utf-8", "replace").strip()
        named, packet = IDENTIFIER.fullmatch(text), PACKET.fullmatch(text)
        ledger, node = self._receipts.ledger, self._receipts.node
        if named is not None:
            origin, epoch, sequence = (int(group) for group in named.groups())
            if origin != node.identity.number:
                where = f"broker {origin} ({node.name(origin)})" if node.name(origin) != str(origin) else f"broker {origin}"
                return {"id": text, "state": "elsewhere", "text": f"it was published at {where}: ask there"}
            found = ledger.by_position(client, epoch, sequence)
        elif packet is not None:
            found = ledger.by_packet(client, int(packet[1]))
        else:
            return {"id": text[:100], "state": "error", "text": RIGHT}
        return {"id": text, "state": "unknown", "text": UNKNOWN} if found is None else self._standing(*found)

    def _standing(self, asked: Asked, index: int) -> dict[str, object]:
        node = self._receipts.node
        stands = node.standing(asked.watch, index)
        state = "open" if stands.awaited else "lost" if stands.lost and not stands.received else "done"
        return {
            "id": self._receipts.identifier(asked.watch, index),
            "state": state,
            "topic": asked.topic.decode(),
            "published": asked.watch.time,
            "received": [{"number": number, "name": node.name(number)} for number in brokers_of(stands.received)],
            "awaited": [
                {"number": number, "name": node.name(number), "reachable": node.reachable(number)} for number in brokers_of(stands.awaited)
            ],
            "lost": [{"number": number, "name": node.name(number), "reason": reason} for number, reason in sorted(stands.lost.items())],
        }
