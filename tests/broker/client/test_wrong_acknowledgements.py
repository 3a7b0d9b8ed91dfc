"""An acknowledgement of the wrong kind is a protocol error: ignored, it would block a part of Receive Maximum for ever."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscription
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Client, Site


async def receiver(site: Site, version: int, qos: int) -> tuple[Client, Client, int]:
    """A subscriber that has a message of this QoS and has not acknowledged it, its publisher, and the packet identifier."""
    client = await site.client("receiver", version=version)
    await client.subscribe("t", qos=qos)
    other = await site.client("other", version=version)
    await other.publish("t", b"x", qos)
    return client, other, (await client.expect(Publish)).packet_id


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("qos", "wrong"),
    [
        (1, Pubrec(1)),
        (1, Pubrec(1, Reason.UNSPECIFIED_ERROR)),
        (1, Pubcomp(1)),
        (2, Puback(1)),
        (2, Puback(1, Reason.UNSPECIFIED_ERROR)),
        (2, Pubcomp(1)),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.reason:x}" if hasattr(value, "reason") else f"qos{value}",
)
async def test_it_ends_the_connection(version, qos, wrong):
    if version == 4 and wrong.reason:
        pytest.skip("MQTT 3.1.1 has no reason codes")
    async with Site() as site:
        client, other, packet_id = await receiver(site, version, qos)
        wrong.packet_id = packet_id
        client.send(wrong)
        await client.closed(Reason.PROTOCOL_ERROR if version == 5 else None)
        await other.nothing()


async def test_puback_in_place_of_pubcomp_ends_the_connection():
    async with Site() as site:
        client, _, packet_id = await receiver(site, 5, 2)
        client.send(Pubrec(packet_id))
        await client.expect(Pubrel)
        client.send(Puback(packet_id))
        await client.closed(Reason.PROTOCOL_ERROR)


async def test_the_right_ones_of_a_block_count():
    async with Site() as site:
        client = await site.client("receiver", clean=False, expiry=100)
        await client.subscribe(Subscription("one", 1), Subscription("two", 2))
        other = await site.client("other")
        await other.publish("one", b"a", 1)
        await other.publish("two", b"b", 2)
        first, second = await client.expect(Publish), await client.expect(Publish)
        client.send(Puback(first.packet_id), Puback(second.packet_id))
        await client.closed(Reason.PROTOCOL_ERROR)
        await site.gone("receiver")
        again = await site.client("receiver", clean=False, expiry=100)
        assert (await again.expect(Publish)).payload == b"b"
        await again.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_repeated_and_late_ones_are_harmless(version):
    async with Site() as site:
        client, _, packet_id = await receiver(site, version, 2)
        client.send(Pubrec(packet_id), Pubrec(packet_id))
        await client.expect(Pubrel)
        await client.expect(Pubrel)
        client.send(Pubcomp(packet_id), Pubcomp(packet_id), Puback(packet_id), Puback(4711))
        await client.nothing()
