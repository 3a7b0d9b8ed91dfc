"""What a broker says of its links and of the metabrokers of its mesh, brokers in one loop."""

from __future__ import annotations

from typing import Any

from mqmesh.broker.config import MeshSettings, PeerSettings
from support.broker_site import Site, until

KEY = "a key of sixteen bytes"


def settings(*peers: Site, **more: Any) -> MeshSettings:
    return MeshSettings("m", KEY, peers=[PeerSettings(site.broker.addresses[0]) for site in peers], **more)


def links(site: Site) -> list[dict[str, Any]]:
    return site.broker.site.mesh.status()["links"]


async def test_a_link_is_measured_while_it_is_up_and_named_when_it_is_down():
    one = await Site(mesh=(1, settings(silence=30.0))).__aenter__()
    async with Site(mesh=(2, settings(one, silence=30.0))) as two:
        await until(lambda: bool(one.broker.site.mesh.links) and bool(two.broker.site.mesh.links))
        name, came = one.broker.site.mesh.identity.name, two.broker.context.wall()
        (link,) = links(two)
        assert (link["up"], link["number"], link["name"], link["round_trip"], link["full"]) == (True, 1, name, None, False)
        assert abs(link["since"] - came) < 60
        for site in (one, two):
            await site.later(11)  # a ping is due
        await until(lambda: all(link["round_trip"] is not None for site in (one, two) for link in links(site)))
        assert all(link["unsent"] >= 0 for link in links(two))
        await one.__aexit__(None, None, None)
        await until(lambda: any(not link["up"] and "reach" in link["error"] for link in links(two)))
        (link,) = links(two)
        assert (link["number"], link["name"], link["address"]) == (1, name, one.broker.addresses[0])
        assert link["since"] >= round(came, 1) - 60


async def test_brokers_with_a_metabroker_are_listed():
    """What subscribes as the metabroker is taken for one."""
    async with Site(mesh=(1, settings())) as one, Site(mesh=(2, settings(one))) as two:
        mesh = one.broker.site.mesh
        await until(lambda: mesh.node.reachable(2))
        assert mesh.status()["metabrokers"] == []
        two.broker.site.mesh.node.subscribe("metabroker/request/#", None, 1, two.broker.context.loop.time())
        two.broker.context.flush()
        await until(lambda: mesh.status()["metabrokers"] == [2])
        one.broker.site.mesh.node.subscribe("#", None, 1, one.broker.context.loop.time())
        assert mesh.status()["metabrokers"] == [2], "who wants everything wants none of these"
        async with Site(mesh=(3, settings(one))) as three:
            three.broker.site.mesh.node.subscribe("metabroker/request/connect", None, 1, three.broker.context.loop.time())
            three.broker.context.flush()
            await until(lambda: mesh.status()["metabrokers"] == [2, 3])
        await until(lambda: mesh.status()["metabrokers"] == [2])
