"""Turns what is in a `mosquitto.db` into what our store keeps: one batch, applied as a whole or not at all.

A message of QoS 2 that a client has sent and not released was received by Mosquitto and not passed on. Here a message is passed on when it
is received: so it becomes one that the broker publishes when it starts, and its identifier is one that was received.
"""

from __future__ import annotations

from typing import NamedTuple

from ...broker.persistence.codec import (
    SessionRecord,
    identifiers_value,
    pack,
    released_value,
    session_value,
    subscription_key,
    subscription_value,
)
from ...broker.persistence.stored_delivery import SENT, WAITING, Extra
from ...broker.persistence.stored_session import key_of, recipient_of
from ...mqtt.batch.run import Run
from ...mqtt.errors import MqttError
from ...mqtt.packets import Subscription
from ...mqtt.session import Delivery
from ...mqtt.topics import check_filter
from ...store.records import Batch, StoredDelivery, StoredRun
from .mosquitto_database import Client, ClientMessage, Database, Message
from .mosquitto_database import Subscription as FoundSubscription

# States of Mosquitto's (mosquitto_internal.h): what the client owes, or has yet to get.
_PUBACK, _PUBREC, _RESEND_PUBREL, _PUBCOMP = 3, 5, 6, 9


class Taken(NamedTuple):
    """How much there was. lost: subscriptions with filters that MQTT does not have."""

    sessions: int
    subscriptions: int
    messages: int
    retained: int
    lost: list[str]


def batch_of(database: Database, now: float) -> tuple[Batch, Taken]:
    """All records. now: seconds of the wall clock."""
    made = _Records(now)
    for number, client in enumerate(database.clients.values(), 1):
        made.session(number, client)
    for message in database.retained:
        if not message.topic.startswith(b"$"):
            made.batch.put_value("retained", message.topic, made.retained(message))
            made.kept += 1
    return made.batch, Taken(len(database.clients), made.subscriptions, made.messages, made.kept, made.lost)


class _Records:
    def __init__(self, now: float) -> None:
        self.batch = Batch(1)
        self.subscriptions = self.messages = self.kept = 0
        self.lost: list[str] = []
        self._now = now
        self._runs: dict[int, int] = {}  # id of a message's object -> run

    def session(self, number: int, client: Client) -> None:
        left_at = self._now
        if client.expires_at is not None and client.expiry is not None:
            left_at = min(self._now, float(client.expires_at - client.expiry))
        record = SessionRecord(number, client.expiry, left_at, client.user, None, None)
        self.batch.put_value("sessions", client.client_id.encode(), session_value(record))
        for subscription in client.subscriptions:
            self._subscription(number, client.client_id, subscription)
        inbound = {one.packet_id: one for one in client.messages if one.inbound and one.qos == 2}
        if inbound:
            self.batch.put_value("inbound", key_of(number), identifiers_value(set(inbound)))
            for packet_id, one in inbound.items():
                extra = bytes((one.message.retain,)) + one.message.topic
                self.batch.put_value("wills", key_of(number) + packet_id.to_bytes(2, "big"), self.retained(one.message, extra))
        released = [one.packet_id for one in client.messages if not one.inbound and one.state in (_RESEND_PUBREL, _PUBCOMP)]
        if released:
            self.batch.put_value("released", key_of(number), released_value([(one, 1) for one in released]))
        order = 0
        for one in client.messages:
            if not one.inbound and one.qos and one.state not in (_RESEND_PUBREL, _PUBCOMP):
                order += 1
                self._delivery(number, order, one)
        self.messages += order + len(inbound)

    def _subscription(self, number: int, client_id: str, one: FoundSubscription) -> None:
        try:
            check_filter(one.filter)
        except MqttError:
            self.lost.append(f"{client_id}: {one.filter}")
            return
        self.subscriptions += 1
        kept = Subscription(one.filter, one.qos & 3, bool(one.options & 4), bool(one.options & 8), one.options >> 4 & 3)
        self.batch.put_value("subscriptions", subscription_key(key_of(number), one.filter), subscription_value(kept, one.identifier))

    def _delivery(self, number: int, order: int, one: ClientMessage) -> None:
        message = one.message
        delivery = Delivery(Run(message.topic, message.qos, message.retain, [message.payload], message.properties), one.qos)
        until = 0 if message.expires_at is None else message.expires_at + 1
        extra = Extra(one.retain, delivery.each, int(self._now), until, one.properties, "")
        sent = one.state in (_PUBACK, _PUBREC)
        self.batch.put_delivery(
            StoredDelivery(
                recipient_of(number),
                order,
                self._run(message),
                0,
                1,
                one.qos,
                *((SENT, one.packet_id) if sent else (WAITING, 0)),
                extra.encode(),
            )
        )

    def _run(self, one: Message) -> int:
        """The run of a message, which is stored once for all its recipients."""
        number = self._runs.get(id(one))
        if number is None:
            number = self._runs[id(one)] = len(self._runs) + 1
            length, expires_at = len(one.payload), one.expires_at
            run = StoredRun(number, one.topic, one.qos, one.retain, one.properties, expires_at, self._now, length, 1, one.payload)
            self.batch.put_run(run)
        return number

    def retained(self, message: Message, extra: bytes = b"") -> bytes:
        """The value of a retained message, or of one that is to be published."""
        return pack(message.qos, message.payload, message.properties, message.expires_at, self._now, extra)
