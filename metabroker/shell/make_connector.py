"""Makes the connector for a remote: MQTT, AMQP or NATS."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from ...base.address import Address, interchangeable
from ..connectors.absent import Absent
from ..connectors.connector import Connector, Owner
from ..core.actions import Open
from ..libraries import missing_library
from ..mqtt.client import ClientMachine
from ..mqtt.connection import Connection
from ..mqtt.login import Login

log = logging.getLogger(__name__)


def make_connector(action: Open, addresses: list[Address], owner: Owner) -> Connector:
    """The connector for these addresses: what the first one speaks decides, others are left out."""
    rule, protocol = action.rule, addresses[0].protocol
    usable = interchangeable(addresses[0], addresses)
    for address in addresses:
        if address not in usable:
            log.warning("event=address-ignored address=%s error=it-is-of-another-kind-than-the-first", address)
    kept = bool(action.client_id)
    name = action.client_id or f"metabroker-{secrets.token_hex(6)}"
    if (text := missing_library(protocol)) is not None:
        log.error("event=library-missing address=%s error=%r", addresses[0], text)
        return Absent(owner, f"{addresses[0]}: the metabroker has no library for {protocol}")
    ca = str(rule.ca) if rule.ca is not None else None
    if protocol == "amqp":
        from ..connectors.amqp import connector as amqp

        vhost = addresses[0].virtual_host
        queue = amqp.Login(name, action.username, action.password, vhost, rule.exchange, action.expiry, rule.queue_length)
        return amqp.AmqpConnector(queue, usable, ca, owner)
    if protocol == "nats":
        from ..connectors.nats.connector import Login as Account
        from ..connectors.nats.connector import NatsConnector

        account = Account(name, action.username, action.password, action.expiry, rule.credentials)
        return NatsConnector(usable, account, secrets.token_hex(4), ca, owner.on_events, owner.on_down)
    version = 5 if rule.version is None else rule.version
    login = Login(name, version, action.username, action.password, expiry=action.expiry, known=action.known, durable=kept)
    login = replace(login, falls_back=rule.version is None)
    connection = Connection(usable, ClientMachine(login), ca, owner.on_events, owner.on_down)
    if kept and rule.version != 5:
        connection.forgetting = ClientMachine(replace(login, version=4, durable=False, falls_back=False))
    return connection
