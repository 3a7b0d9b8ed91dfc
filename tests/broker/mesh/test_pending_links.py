"""Links in their handshake: strangers without the key have a bound and a time of their own, and a neighbour gets in beside them."""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.server import StartError
from mqmesh.mesh.link.link import Link, LinkConfig
from mqmesh.mesh.wire.identity import Identity
from mqmesh.mqtt.packets import Auth, Connack
from support.broker_site import Client, Site

KEY = "a key of sixteen bytes"


def member(number: int = 1, *peers: str) -> tuple[int, MeshSettings]:
    return number, MeshSettings("sites", KEY, peers=[PeerSettings(one) for one in peers], start_wait=0)


async def stranger(site: Site, name: str = "stranger") -> Client:
    """Somebody who repeats a hello that was seen on a network, and then says nothing."""
    client = await site.dial()
    identity = Identity("sites", name, 9, UUID(int=9), 1000)
    client.send(Link.dial(identity, KEY.encode(), LinkConfig(), 0.0).take())
    return client


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    return [one for one in found if f"event={event}" in one]


async def test_silent_links_have_a_bound_and_a_neighbour_gets_in(caplog: pytest.LogCaptureFixture) -> None:
    async with Site(mesh=member(), link_handshakes=3) as site:
        admission = site.broker.admission
        silent = [await stranger(site) for _ in range(10)]
        for client in silent[:7]:
            await client.expect(Auth)
            await client.expect(Connack, reason=0x89)  # the oldest ones, in the order in which they came
            await client.closed()
        await site.until(lambda: admission._pending == 3)
        assert admission.total == 3
        assert len(admission._strangers) == 3, "they count towards the bound of their address"
        assert site.broker.context.counters.refused_connections == 7
        async with Site(mesh=member(2, site.broker.addresses[0])) as neighbour:
            assert neighbour.broker.site.mesh is not None
            mesh = neighbour.broker.site.mesh
            await neighbour.until(lambda: mesh.links)
            assert admission._pending == 2, "the neighbour took the place of a stranger, and has proved the key"
            (line,) = lines(caplog, "link-refused")
            assert "limits.link_handshakes" in line
            await site.client("beside")
        for client in silent:
            await client.cut()
        await site.until(lambda: not admission._pending and not admission._strangers and not admission._links and not admission._hosts)


async def test_links_count_towards_the_connections_of_their_address() -> None:
    async with Site(mesh=member(), connecting_per_address=2) as site:
        held = [await stranger(site) for _ in range(2)]
        for client in held:
            await client.expect(Auth)
        await (await site.dial()).closed()
        await held[0].cut()
        await site.until(lambda: site.broker.admission._pending == 1)
        await site.client("a")


async def test_a_link_that_does_not_go_on_is_closed_in_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    """However many there are, and whatever they call themselves: one line."""
    async with Site(mesh=member(), link_timeout=2.0, connect_timeout=3600.0) as site:
        held = [await stranger(site, f"stranger-{number}") for number in range(5)]
        for client in held:
            await client.expect(Auth)
        await site.later(2.1)
        for client in held:
            await client.expect(Connack, reason=0x87)
            await client.closed()
        await site.until(lambda: not site.broker.admission._strangers)
        assert len(lines(caplog, "link-refused")) == 1


@pytest.mark.parametrize("serves", ["clients", "links", "both"])
async def test_a_listener_serves_whom_it_says(serves: str, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(mesh=member())
    site.broker.config.serves = {site.broker.config.listen[0]: serves}
    async with site:
        link = await stranger(site)
        if serves == "clients":
            await link.expect(Connack, reason=0x8C)
            await link.closed()
            assert "serves clients only" in lines(caplog, "connect-refused")[0]
        else:
            await link.expect(Auth)
        client = await site.dial(4)
        client.send(bytes.fromhex("100d00044d5154540402000000016b"))
        await client.expect(Connack, reason=5 if serves == "links" else 0)
        if serves == "links":
            await client.closed()


async def test_a_listener_of_websocket_serves_no_links() -> None:
    async with Site("ws://127.0.0.1:0", mesh=member()) as site:
        await (await stranger(site)).expect(Connack, reason=0x8C)


async def test_a_port_in_use_is_still_an_error() -> None:
    async with Site() as site:
        with pytest.raises(StartError):
            await Site(site.broker.addresses[0]).broker.start()
