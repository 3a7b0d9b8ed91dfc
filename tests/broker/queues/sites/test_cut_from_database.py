"""A home of a queue that is cut off from the database, and not from the mesh (docs/queues.md, "Several homes")."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until
from support.peers.postgres import server

from .test_across_sites import KEY, shell

pytestmark = pytest.mark.service


async def test_it_yields_to_the_home_with_the_later_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.broker.queues.log.lease.SECONDS", 1.0)

    def cut() -> bool:
        raise OSError("the database cannot be reached")

    with server() as database:
        async with AsyncExitStack() as stack:
            sites: list[Site] = []
            for number in (1, 2):
                peers = [PeerSettings(sites[0].broker.addresses[0])] if sites else []
                rules = Rules(store=database.url, homes=("site1", "site2"))
                queues = QueueSettings(shared={"orders": rules}, folder=tmp_path / str(number), durability="os")
                mesh = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
                sites.append(await stack.enter_async_context(Site(mesh=(number, mesh), store=MemoryStore(), queues=queues)))
                await until(lambda: shell(sites[0]).queue_here("orders") is not None)
            first, second = map(shell, sites)
            await until(lambda: second.home_of("orders") == 1)
            (keeper,) = first.sharing._keepers.values()
            monkeypatch.setattr(keeper.lease, "renew", cut)
            monkeypatch.setattr(keeper.lease, "take", cut)
            await until(lambda: second.queue_here("orders") is not None)
            await until(lambda: first.queue_here("orders") is None and first.home_of("orders") == 2)
            shop, worker = await sites[0].client("shop"), await sites[1].client("worker")
            assert await shop.publish("$queue/orders", b"1", qos=1) == 0
            await worker.subscribe("$queue/orders", qos=1)
            assert [one.payload for one in await worker.messages(1)] == [b"1"]
