"""One message at a time over a link: the direct lane gives subscribers what the general way gives them."""

from __future__ import annotations

from unittest import mock

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.mesh import direct, link
from mqmesh.broker.write_rounds import SMALL, TOGETHER
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Publish
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

KEY = "a key of sixteen bytes"
PAYLOADS = [b"1", b"", b"22", b"x" * 100, b"y" * 300, b"z" * 20_000, b"3"]


def settings(*peers: Site, clients: str = "stay") -> MeshSettings:
    return MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers], clients=clients)


@pytest.mark.parametrize("clients", ["stay", "roam"])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("versions", [(4, 4), (4, 5), (5, 4)])
async def test_single_messages_arrive_once_and_in_order(clients, stored, qos, granted, versions):
    taken = []
    receive_one = direct.receive_one

    def counted(*given):
        taken.append(receive_one(*given))
        return taken[-1]

    def store():
        return MemoryStore() if stored else None

    with mock.patch.object(link, "receive_one", counted):
        async with (
            Site(mesh=(1, settings(clients=clients)), store=store()) as one,
            Site(mesh=(2, settings(one, clients=clients)), store=store()) as two,
        ):
            publisher, subscriber = await one.client(version=versions[0]), await two.client(version=versions[1])
            await subscriber.subscribe("t/+", qos=granted)
            await until(lambda: one.broker.site.mesh.node.route(b"t/a") is not None)
            for index, payload in enumerate(PAYLOADS * 2):
                await publisher.publish(f"t/{'ab'[index % 2]}", payload, qos)
                [message] = await subscriber.messages(1)
                assert (message.topic, message.payload, message.qos) == (f"t/{'ab'[index % 2]}", payload, min(qos, granted))
            await subscriber.nothing()
            if qos:
                await until(lambda: not one.broker.site.mesh.node.custody()[0])
    assert taken.count(True) >= len(PAYLOADS)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("stored", [True, False])
async def test_single_messages_that_come_in_one_round_are_written_to_the_link_together(qos, stored):
    """The first one at once as long as the round before had no others; a large one is not waited for; what waits is bounded."""

    def store():
        return MemoryStore() if stored else None

    def packet(payload: bytes) -> bytes:
        return encode(Publish("t/a", payload, qos, packet_id=qos), 4)

    async with (
        Site(mesh=(1, settings()), store=store()) as one,
        Site(mesh=(2, settings(one)), store=store()) as two,
    ):
        publishers, subscriber = [await one.client(f"p{number}", version=4) for number in range(5)], await two.client(version=4)
        await subscriber.subscribe("t/+", qos=1)
        await until(lambda: one.broker.site.mesh.node.route(b"t/a") is not None)
        for publisher in publishers:
            await publisher.publish("t/a", b"first", qos)
            await subscriber.messages(1)
        [wire] = one.broker.site.mesh.links.values()
        wire.transport = written = mock.Mock(wraps=wire.transport)
        connections = sorted(one.broker.site.connections, key=lambda one: one.session.client_id)  # the last one has sent last
        assert len(connections) == len(publishers)
        for turn in range(3):
            written.reset_mock()
            for number, connection in enumerate(connections):
                connection.data_received(packet(b"%d of %d" % (number, turn)))
            assert written.write.call_count == (1 if turn == 0 else 0)
            messages = await subscriber.messages(len(connections))
            assert [message.payload for message in messages] == [b"%d of %d" % (number, turn) for number in range(len(connections))]
        for connection in connections * 2:
            connection.data_received(packet(bytes(SMALL)))
        assert written.write.call_count >= 2 * len(connections)
        await subscriber.messages(2 * len(connections))
        for _ in range(TOGETHER):
            for connection in connections[:2]:
                connection.data_received(packet(b""))
        assert written.write.call_count >= 2 * len(connections) + 2
        await subscriber.messages(2 * TOGETHER)
        await subscriber.nothing()
