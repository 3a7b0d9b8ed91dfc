"""What a broker does not offer, as its limits say: told in CONNACK, and refused where a client uses it all the same."""

from __future__ import annotations

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.config import parse
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site


async def refused(site: Site, version: int, packet: Connect) -> int:
    client = await site.dial(version)
    client.send(packet)
    reason = (await client.expect(Connack)).reason
    await client.closed()
    return int(reason)


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_maximum_qos(qos: int) -> None:
    async with Site(maximum_qos=qos) as site:
        client = await site.client("c")
        assert client.connack is not None
        assert client.connack.properties[Property.MAXIMUM_QOS] == qos
        assert (await client.subscribe("a", "b/#", qos=2)).reasons == [qos, qos]
        await (await site.client("other")).publish("a", b"x", qos)
        assert (await client.messages(1))[0].qos == qos
        client.send(Publish("a", b"x", qos + 1, packet_id=1))
        await client.closed(Reason.QOS_NOT_SUPPORTED)
        assert await refused(site, 5, Connect("w", 5, will=Will("t", b"x", qos + 1))) == Reason.QOS_NOT_SUPPORTED


async def test_a_maximum_qos_counts_in_every_lane() -> None:
    """A topic that was published to is known: a single message, a run and packets of different topics go ways of their own."""
    async with Site(maximum_qos=0) as site:
        reader = await site.client("reader", version=4)
        await reader.subscribe("#")
        forms = [
            [Publish("a", b"x", 1, packet_id=1)],
            [Publish("a", b"x", 1, packet_id=number) for number in range(1, 40)],
            [Publish("ab"[number % 2], b"x" * number, 1, packet_id=number) for number in range(1, 40)],
        ]
        for number, packets in enumerate(forms):
            client = await site.client(f"c{number}", version=4)
            for topic in "ab":
                await client.publish(topic, b"first")
            client.send(*packets)
            await client.closed()
            assert [one.payload for one in await reader.messages(2)] == [b"first", b"first"]
        await reader.nothing()


async def test_no_retained_messages() -> None:
    async with Site(retain_available=False) as site:
        client = await site.client("c")
        assert client.connack is not None
        assert client.connack.properties[Property.RETAIN_AVAILABLE] == 0
        client.send(Publish("a", b"x", retain=True))
        await client.closed(Reason.RETAIN_NOT_SUPPORTED)
        old = await site.client("old", version=4)
        old.send(Publish("a", b"x", 1, True, packet_id=1))
        await old.closed()
        assert await refused(site, 5, Connect("w", 5, will=Will("t", b"x", retain=True))) == Reason.RETAIN_NOT_SUPPORTED


async def test_no_empty_identifiers() -> None:
    async with Site(empty_client_ids=False) as site:
        assert await refused(site, 5, Connect("", 5)) == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert await refused(site, 4, Connect("", 4)) == 2
        await site.client("c")


@pytest.mark.parametrize(("offered", "version", "reason"), [(("5",), 4, 1), (("3.1.1",), 5, 0x84), (("3.1", "5"), 4, 1)])
async def test_versions(offered: tuple[str, ...], version: int, reason: int) -> None:
    async with Site(versions=offered) as site:
        assert await refused(site, version, Connect("c", version)) == reason
        if "5" in offered:
            await site.client("d")


async def test_deep_filters() -> None:
    """A filter without a wildcard costs no node for each level."""
    async with Site(topic_levels=3) as site:
        client = await site.client("c")
        deep = "/".join("abcdefgh" * 40)
        assert (await client.subscribe(deep, "a/b/#", "a/b/c/#")).reasons == [0, 0, Reason.TOPIC_FILTER_INVALID]
        await (await site.client("other")).publish(deep, b"x")
        assert (await client.messages(1))[0].topic == deep


async def test_a_small_packet_limit() -> None:
    async with Site(max_packet_size=30) as site:
        client = await site.client("c")
        assert client.connack is not None
        assert client.connack.properties[Property.MAXIMUM_PACKET_SIZE] == 30
        await client.subscribe(Subscription("t", 1))
        packet = Publish("t", b"x" * 20, 1, packet_id=1)
        assert len(encode(packet, 5)) <= 30
        client.send(packet)
        await client.expect(Publish, payload=b"x" * 20)
        await client.expect(Puback)
        client.send(Publish("t", b"x" * 30, 1, packet_id=2))
        await client.closed(Reason.PACKET_TOO_LARGE)


@pytest.mark.parametrize(
    ("key", "value"),
    [("versions", ["4"]), ("versions", []), ("maximum_qos", 3), ("retain_available", 1), ("max_packet_size", 19), ("topic_levels", 0)],
)
def test_settings_are_checked(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"limits.{key} = "):
        parse({"limits": {key: value}}, "F")
