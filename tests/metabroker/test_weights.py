"""What waits for a remote, or for a client, counts with all that its sender can make large: a payload may be empty, and the rest not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mqmesh.base.address import REMOTE, parse_address
from mqmesh.metabroker.connectors import amqp, nats
from mqmesh.metabroker.connectors.amqp.connector import AmqpConnector
from mqmesh.metabroker.connectors.connector import Owner
from mqmesh.metabroker.connectors.nats.connector import NatsConnector
from mqmesh.metabroker.mqtt.client import ClientMachine
from mqmesh.metabroker.mqtt.connection import Connection
from mqmesh.metabroker.mqtt.login import Login
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.properties import Properties, Property
from support.models.durable_world import DurableWorld

LONG = "l" * 60_000
OWNER = Owner(lambda events: None, lambda refused, text: None)


def over_mqtt() -> Any:
    return Connection([parse_address("mqtt://localhost:1", REMOTE)], ClientMachine(Login("m")), None, *OWNER)


def over_amqp() -> Any:
    return AmqpConnector(amqp.connector.Login("m"), [parse_address("amqp://localhost:1", REMOTE)], None, OWNER)


def over_nats() -> Any:
    return NatsConnector([parse_address("nats://localhost:1", REMOTE)], nats.connector.Login("m"), "x", None, *OWNER)


LARGE: list[tuple[str, Properties]] = [
    (LONG, {}),
    ("t", {Property.USER_PROPERTY: [("a", LONG)]}),
    ("t", {Property.USER_PROPERTY: [(LONG, "a")]}),
    ("t", {Property.USER_PROPERTY: [("", "")] * 1000}),  # a few bytes on the wire, an object each here
    ("t", {Property.CORRELATION_DATA: LONG.encode()}),
    ("t", {Property.CONTENT_TYPE: LONG}),
]


@pytest.mark.parametrize("make", [over_mqtt, over_amqp, over_nats])
@pytest.mark.parametrize(("topic", "properties"), LARGE)
def test_what_waits_for_a_remote_has_a_weight(make: Callable[[], Any], topic: str, properties: Properties) -> None:
    async def backlog() -> int:
        connector = make()
        connector.publish(Publish(topic, b"", 1, properties=properties), 1, 0.0)
        found: int = connector.backlog
        return found

    assert asyncio.run(backlog()) >= len(LONG)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nothing_is_left_of_a_message_that_has_gone(qos: int) -> None:
    """What was added is taken off again."""
    machine = ClientMachine(Login("m"))
    for token, (topic, properties) in enumerate(LARGE, 1):
        machine.publish(Publish(topic, b"p", qos, properties=properties), token, 0.0)
    machine.begin(0.0)
    machine.receive(b"\x20\x03\x00\x00\x00", 0.0)
    for first in {0: b"", 1: b"\x40", 2: b"\x50\x70"}[qos]:
        for number in range(1, len(LARGE) + 1):
            machine.receive(bytes((first, 2, 0, number)), 0.0)
    assert machine.bytes == 0


@pytest.mark.parametrize("properties", [properties for _, properties in LARGE[1:]])
def test_what_waits_for_a_client_has_a_weight(properties: Properties) -> None:
    world = DurableWorld(stored_bytes=len(LONG))
    client = world.client("c")
    client.ask("subscribe", topics=["down/#"], qos=1, durable=True)
    world.commit()
    client.there = False
    packet_id = world.far.collect("down/x", b"")
    world.core.on_message(world.number, Publish("down/x", b"", 1, packet_id=packet_id, properties=properties), world.epoch)
    assert [session.durable.dropped for session in world.core.sessions.values() if session.durable is not None] == [1]
