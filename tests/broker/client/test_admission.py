"""Bounds on connections, subscriptions and rates, in this loop."""

from __future__ import annotations

import asyncio
import logging

import pytest
from mqmesh.base.address import parse_address
from mqmesh.mqtt.packets import Connack, Connect, Publish
from support.broker_site import Client, Site


@pytest.mark.parametrize(("version", "code"), [(4, 3), (5, 0x97)])
async def test_more_clients_than_there_is_room_for(version: int, code: int) -> None:
    async with Site(connections=2) as site:
        first = await site.client("a")
        await site.client("b")
        late = await site.dial(version)
        late.send(Connect("c", version, True))
        await late.expect(Connack, reason=code)
        await late.closed()
        again = await site.client("a")  # in the place of its own
        await first.closed(0x8E)
        await site.until(lambda: len(site.broker.site.connections) == 2)
        assert site.broker.context.counters.refused_connections == 1
        await again.cut()
        await site.gone("a")
        await site.client("c")


@pytest.mark.parametrize("listen", ["mqtt://127.0.0.1:0", "ws://127.0.0.1:0"])
async def test_silent_ones_of_one_address(listen: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Site(listen, connecting_per_address=3) as site:
        for name in "abcd":  # these are no strangers any more
            await site.client(name)
        silent = [await site.dial() for _ in range(3)]
        await site.until(lambda: len(site.broker.site.connections) == 7)
        for _ in range(5):
            if listen.startswith("ws"):
                with pytest.raises((OSError, EOFError)):
                    await site.dial()
            else:
                await (await site.dial()).closed()
        assert site.broker.context.counters.refused_connections == 5
        await silent[0].cut()
        await site.until(lambda: len(site.broker.site.connections) == 6)
        await site.client("e")
        silent[1].send(Connect("f", 5, True))
        await silent[1].expect(Connack, reason=0)
        await silent[2].cut()
        admission = site.broker.site.admission
        await site.until(lambda: not admission._strangers and not admission._hosts)
        warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        lines = [one for one in warnings if "event=connection-refused" in one]
        assert len(lines) == 1
        assert "limits.connecting_per_address" in lines[0]


async def test_a_flood_beyond_what_can_be_told_so() -> None:
    async with Site(connections=3) as site:
        for name in "abc":
            await site.client(name)
        silent = await site.dial()
        await site.until(lambda: len(site.broker.site.connections) == 4)
        await (await site.dial()).closed()
        assert site.broker.context.counters.refused_connections == 1
        silent.send(Connect("d", 5, True))
        await silent.expect(Connack, reason=0x97)


async def test_strangers_of_one_address_do_not_keep_others_out(caplog: pytest.LogCaptureFixture) -> None:
    """They have taken all the room that there is, without reaching the bound of their address."""
    async with Site(connections=10) as site:
        silent = [await site.dial() for _ in range(12)]
        await site.until(lambda: site.broker.admission.total == 12)
        more = await site.dial()  # from there too
        await silent[0].closed()
        more.send(Connect("more", 5, True))
        await more.expect(Connack, reason=0)
        loop = asyncio.get_running_loop()
        port = parse_address(site.broker.addresses[0]).port
        others = [(await loop.create_connection(Client, "127.0.0.1", port, local_addr=("127.0.0.2", 0)))[1] for _ in range(3)]
        for number, client in enumerate(others):
            client.send(Connect(f"o{number}", 5, True))
            await client.expect(Connack, reason=0)
        for client in silent[1:3]:  # the oldest ones
            await client.closed()
        warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert len([one for one in warnings if "event=connection-refused address=127.0.0.1:" in one]) == 1
        for client in others:
            client.transport.abort()


@pytest.mark.parametrize(("version", "code"), [(4, 0x80), (5, 0x97)])
async def test_subscriptions_of_a_session(version: int, code: int) -> None:
    async with Site(subscriptions=2) as site:
        client = await site.client("c", version)
        assert (await client.subscribe("a", "b", "c", "a")).reasons == [0, 0, code, 0]
        await client.unsubscribe("a")
        assert (await client.subscribe("c", "d")).reasons == [0, code]
        assert site.broker.context.counters.refused_subscriptions == 2


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_client_that_sends_too_fast_is_read_more_slowly(qos: int) -> None:
    async with Site(message_rate=100) as site:
        listener = await site.client("l")
        await listener.subscribe("t")
        sender, other = await site.client("s"), await site.client("o")
        sender.send(*[Publish("t", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(500)])
        got = await listener.messages(500)
        assert [one.payload for one in got] == [b"%d" % n for n in range(500)]
        connection = site.broker.site.sessions.get("s").connection
        assert "rate" in connection.pauses
        assert site.broker.context.counters.slowed == 1
        await other.nothing()
        await site.later(10)
        await site.until(lambda: not connection.pauses)
        sender.send(Publish("t", b"last"))
        assert [one.payload for one in await listener.messages(1)] == [b"last"]
