"""How remotes are reached: one connector for each protocol, all with the same face to the metabroker (docs/connectors.md)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ...base.address import Address, interchangeable
from ..core.actions import Open
from ..extras import lacking
from ..mqtt.client import Event, Login, Wire
from .absent import Absent
from .connector import Connector

__all__ = ["Connector", "Owner", "make"]
log = logging.getLogger(__name__)


class Owner(NamedTuple):
    """Whom a connector tells. on_events: what has come. on_down: a connection has ended, or every address was tried in vain; whether the
    server refused our credentials (None: it did not refuse us), and one line."""

    on_events: Callable[[list[Event]], None]
    on_down: Callable[[bool | None, str], None]


def make(action: Open, addresses: list[Address], owner: Owner) -> Connector:
    """The connector for these addresses: what the first one speaks decides, others are left out."""
    from ..mqtt.connection import Connection

    rule, protocol = action.rule, addresses[0].protocol
    usable = interchangeable(addresses[0], addresses)
    for address in addresses:
        if address not in usable:
            log.warning("event=address-ignored address=%s error=it-is-of-another-kind-than-the-first", address)
    kept = bool(action.client_id)
    name = action.client_id or f"metabroker-{secrets.token_hex(6)}"
    if (text := lacking(protocol)) is not None:
        return Absent(owner, f"{addresses[0]}: the metabroker {text}")
    ca = str(rule.ca) if rule.ca is not None else None
    if protocol == "amqp":
        from .amqp import connector as amqp

        vhost = addresses[0].virtual_host
        queue = amqp.Login(name, action.username, action.password, vhost, rule.exchange, action.expiry, rule.queue_length)
        return amqp.AmqpConnector(queue, usable, ca, owner)
    if protocol == "nats":
        from .nats.connector import Login as Account
        from .nats.connector import NatsConnector

        account = Account(name, action.username, action.password, action.expiry, rule.credentials)
        return NatsConnector(usable, account, secrets.token_hex(4), ca, owner.on_events, owner.on_down)
    login = Login(name, rule.version, action.username, action.password, expiry=action.expiry, known=action.known, durable=kept)
    connection = Connection(usable, Wire(login), ca, owner.on_events, owner.on_down)
    if kept and rule.version == 4:
        connection.farewell = Wire(replace(login, durable=False))
    return connection
