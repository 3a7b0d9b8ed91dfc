"""Which places of roaming clients are in the store, and what a killed broker makes of them in its next life."""

from __future__ import annotations

from mqmesh.broker.config import MeshSettings
from mqmesh.broker.roaming.shell import Roaming
from mqmesh.mesh.roaming.places import State, decode_place
from mqmesh.mqtt.packets import Connack, Connect
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

SOURCE = (5, 2)


def site(store: MemoryStore) -> Site:
    return Site(mesh=(1, MeshSettings("m", "0123456789abcdef", start_wait=0.0, clients="roam")), store=store)


def roaming_of(where: Site) -> Roaming:
    mesh = where.broker.site.mesh
    assert mesh is not None
    assert mesh.roaming is not None
    return mesh.roaming


def copy_of(store: MemoryStore) -> MemoryStore:
    """What a broker finds that is killed now."""
    copy = MemoryStore()
    copy._values = {table: dict(rows) for table, rows in store._values.items()}
    return copy


async def test_a_session_that_is_not_kept_leaves_a_place_while_something_may_come_for_it() -> None:
    store = MemoryStore()
    async with site(store) as first:
        client = await first.dial(5)
        client.send(Connect("c", 5, False))  # without a session expiry interval
        assert not (await client.expect(Connack)).reason
        roamer = roaming_of(first).roamer
        await until(lambda: store.value("roaming", b"pc") is None)
        roamer.places["c"].sources[SOURCE] = True
        roamer.saved("c")
        first.broker.context.flush()
        await until(lambda: store.value("roaming", b"pc") is not None)
        killed = copy_of(store)
        del roamer.places["c"].sources[SOURCE]
        roamer.saved("c")
        first.broker.context.flush()
        await until(lambda: store.value("roaming", b"pc") is None)
        forgotten = copy_of(store)
    value = killed.value("roaming", b"pc")
    assert value is not None
    assert decode_place("c", value).state is State.HERE
    async with site(killed) as second:
        place = roaming_of(second).roamer.places["c"]
        assert (place.state, place.sources) == (State.ASKING, {SOURCE: True})
    async with site(forgotten) as second:
        assert "c" not in roaming_of(second).roamer.places
