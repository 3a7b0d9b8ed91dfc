"""A packet that asks for more work than a packet may is refused before that work is done, and its sender is told why."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Publish, Subscribe, Subscription, Unsubscribe
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site

MANY = {Property.USER_PROPERTY: [("", "")] * 100_000}


async def test_a_stranger_with_many_properties() -> None:
    async with Site() as site:
        client = await site.dial()
        client.send(Connect("c", properties=MANY))
        assert (await client.expect(Connack)).reason == Reason.QUOTA_EXCEEDED
        await client.closed()


@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", b"", properties=MANY),
        Subscribe(1, [Subscription("t")], MANY),
        Subscribe(1, [Subscription(f"t{number}") for number in range(4001)]),
        Unsubscribe(1, ["t"] * 4001),
        Disconnect(properties=MANY),
    ],
    ids=["publish", "subscribe", "filters", "unsubscribe", "disconnect"],
)
async def test_a_client_is_told(packet: object) -> None:
    async with Site() as site:
        client = await site.client("c")
        client.send(packet)
        assert (await client.expect(Disconnect)).reason == Reason.QUOTA_EXCEEDED
        await client.closed()


async def test_mqtt_3_is_disconnected() -> None:
    async with Site() as site:
        client = await site.client("c", version=4)
        client.send(encode(Subscribe(1, [Subscription("t")] * 4001), 4))
        await client.closed()
