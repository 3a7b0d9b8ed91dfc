"""`max_packet_size` bounds what clients send. Messages of neighbours and of the store go out whatever their size."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

KEY = "a key of sixteen bytes"
LARGE = bytes(range(256)) * 1200  # bytes: some links send it in several pieces


def mesh(number: int, *peers: Site) -> Any:
    return number, MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers])


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_of_another_site_is_larger_than_this_site_takes(qos: int) -> None:
    async with Site(mesh=mesh(1)) as porto, Site(mesh=mesh(2, porto), max_packet_size=1000) as lyon:
        subscriber, publisher = await lyon.client("s"), await porto.client("p")
        await subscriber.subscribe("t/#", qos=2)
        await until(lambda: porto.broker.site.mesh.route(b"t/x") is not None)
        await publisher.publish("t/x", LARGE, qos)
        await publisher.publish("t/kept", LARGE, qos, retain=True)
        assert [message.payload for message in await subscriber.messages(2)] == [LARGE, LARGE]
        late = await lyon.client("late")
        await late.subscribe("t/#", qos=2)
        assert [(message.topic, message.payload) for message in await late.messages(1)] == [("t/kept", LARGE)]
        subscriber.send(Publish("t/x", LARGE))
        await subscriber.closed(Reason.PACKET_TOO_LARGE)


@pytest.mark.parametrize("qos", [1, 2])
async def test_stored_messages_go_out_after_a_restart_with_a_smaller_limit(qos: int) -> None:
    store = MemoryStore()
    async with Site(store=store) as before:
        subscriber = await before.client("s", clean=False, expiry=1000)
        await subscriber.subscribe("t/#", qos=2)
        await subscriber.leave()
        await before.gone("s")
        publisher = await before.client("p")
        for topic in ("t/1", "t/2"):
            await publisher.publish(topic, LARGE, qos)
        await publisher.publish("t/kept", LARGE, qos, retain=True)
    async with Site(store=store, max_packet_size=1000) as after:
        subscriber = await after.client("s", clean=False, expiry=1000)
        assert [(message.topic, message.payload) for message in await subscriber.messages(3)] == [
            (topic, LARGE) for topic in ("t/1", "t/2", "t/kept")
        ]
        late = await after.client("late")
        await late.subscribe("t/#", qos=2)
        assert [message.payload for message in await late.messages(1)] == [LARGE]


async def test_a_connack_that_is_too_large_for_the_client_goes_without_topic_aliases() -> None:
    async with Site() as site:
        client = await site.client("c", maximum_packet_size=10)
        assert list(client.connack.properties.values()) == [2**20]
