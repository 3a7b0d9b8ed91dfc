"""What roaming makes of the events of a mesh."""

from __future__ import annotations

from mqmesh.broker.config import MeshSettings
from mqmesh.mesh.node.actions import Event
from support.broker_site import Site


async def test_a_broker_that_is_down_again_when_its_event_is_carried_out() -> None:
    settings = MeshSettings("m", "0123456789abcdef", start_wait=0.0, clients="roam")
    async with Site(mesh=(1, settings)) as site:
        mesh = site.broker.site.mesh
        assert mesh is not None
        assert mesh.roaming is not None
        for name in ("member_up", "member_down"):
            mesh.roaming.event(Event(name, {"number": 2}))
        assert await (await site.client("gauge")).publish("up", b"1", 1) == 0x10
