"""What roaming makes of the events of a mesh, and who hears the events of a site meanwhile."""

from __future__ import annotations

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.roaming.shell import Roaming
from mqmesh.mesh.node.actions import Event
from mqmesh.mesh.roaming.places import Cut
from support.broker_site import Site, until
from support.management import EVERYBODY

FOREVER = 0xFFFFFFFF
KEY = "0123456789abcdef"


async def test_a_broker_that_is_down_again_when_its_event_is_carried_out() -> None:
    settings = MeshSettings("m", KEY, start_wait=0.0, clients="roam")
    async with Site(mesh=(1, settings)) as site:
        mesh = site.broker.site.mesh
        assert mesh is not None
        assert mesh.roaming is not None
        for name in ("member_up", "member_down"):
            mesh.roaming.event(Event(name, {"number": 2}))
        assert await (await site.client("gauge")).publish("up", b"1", 1) == 0x10


async def test_clients_come_and_go_while_a_session_leaves_that_hears_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the link goes down meanwhile: the other site has not said that it has the session, nor where messages for it go."""
    monkeypatch.setattr(Roaming, "forget", lambda *_: None)
    monkeypatch.setattr(Cut, "marker", lambda *_: False)
    async with Site(mesh=(1, MeshSettings("m", KEY, clients="roam")), management=EVERYBODY) as home:
        there = MeshSettings("m", KEY, peers=[PeerSettings(home.broker.addresses[0])], clients="roam")
        async with Site(mesh=(2, there), management=EVERYBODY) as other:
            await until(lambda: home.broker.site.mesh.node.live() and other.broker.site.mesh.node.live())
            watcher = await home.client("watcher", clean=False, expiry=FOREVER)
            await watcher.subscribe("$mqmesh/events/clients", qos=1)
            watcher = await other.client("watcher", clean=False, expiry=FOREVER)
            for version in (5, 4):
                client = await home.client("client", version=version)
                assert (await client.subscribe("plant/#")).reasons == [0]
                await client.leave()
                await home.gone("client")
