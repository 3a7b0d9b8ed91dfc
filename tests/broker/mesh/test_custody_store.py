"""What custody writes, and who waits for it."""

from __future__ import annotations

from mqmesh.broker.config import MeshSettings
from mqmesh.broker.mesh.custody_store import RECIPIENT
from mqmesh.mesh.custody.journal import Records
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.packets import Puback
from mqmesh.mqtt.session import PUBACKS
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until
from support.storage.failing_store import FailingStore


async def test_a_message_that_is_picked_again_is_acknowledged_after_the_commit_of_its_next_pick(monkeypatch) -> None:
    """A site refuses it while the commit with its first pick is under way."""
    store = FailingStore(MemoryStore())
    async with Site(mesh=(1, MeshSettings("m", "a key of sixteen bytes")), store=store) as site:
        client = await site.client()
        broker = site.broker.site
        custody, persistence, node = broker.mesh.custody, broker.persistence, broker.mesh.node
        assert await persistence.settle(10.0)
        given: list[Records] = []
        monkeypatch.setattr(node, "records", lambda: given.pop() if given else None)
        [connection] = broker.connections
        store.hold()
        given.append(Records(1, [(101, Run(b"t", 1, False, [b"x"]), b"")], [], [], []))
        persistence.begin()
        custody.save()
        persistence.answer(connection, PUBACKS[4:8])
        broker.context.flush()
        await until(store.entered.is_set)
        given.append(Records(2, [(102, Run(b"t", 1, False, [b"x"]), b"")], [], [101], []))
        custody.save()
        broker.context.flush()
        await client.nothing()
        store.release()
        await client.expect(Puback, packet_id=1)
        assert [row.order for row in store.deliveries(RECIPIENT)] == [102]
