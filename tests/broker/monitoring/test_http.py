"""The HTTP face: numbers that a Prometheus client reads, and when a broker says that it is ready."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.server import StartError
from mqmesh.mqtt.packets import Publish
from mqmesh.store.base import Kind
from mqmesh.store.memory import MemoryStore
from prometheus_client.parser import text_string_to_metric_families
from support.broker_site import Site, until
from support.services import PATIENCE, free_port
from support.steps import one_step_a_round
from support.storage.failing_store import FailingStore

ANY = ("127.0.0.1", 0)
FOREVER = 0xFFFFFFFF
KEY = "a key of sixteen bytes"


async def get(site: Site, path: str) -> tuple[int, str]:
    """Status and body."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{site.broker.http.url}{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def metrics(site: Site) -> dict[tuple[str, ...], float]:
    """name and label values -> value, as Prometheus's own parser reads them."""
    status, text = await get(site, "/metrics")
    assert status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_counters_grow_with_what_happens():
    async with Site(http=ANY) as site:
        before = await metrics(site)
        subscriber, publisher = await site.client("s"), await site.client("p")
        await subscriber.subscribe("t", "u/+", qos=1)
        for _ in range(3):
            await publisher.publish("t", b"12345", 1)
        await publisher.publish("kept", b"x", retain=True)
        await subscriber.messages(3)
        after = await metrics(site)

    def grown(name: str) -> float:
        return after[name,] - before[name,]

    assert grown("mqmesh_publish_received_total") == 4
    assert grown("mqmesh_publish_sent_total") == 3
    assert grown("mqmesh_connects_total") == grown("mqmesh_clients_connected") == 2
    assert grown("mqmesh_subscriptions") == 2
    assert grown("mqmesh_retained_messages") == 1
    assert grown("mqmesh_received_bytes_total") > 3 * 12
    assert after["process_resident_memory_bytes",] > 2**20


async def test_every_family_has_a_help_and_a_type():
    async with Site(http=ANY) as site:
        _, text = await get(site, "/metrics")
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families)


async def test_the_numbers_of_very_many_queues_are_gathered_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rules = {f"q{number}": Rules() for number in range(50)}
    async with Site(http=ANY, queues=QueueSettings(rules, folder=tmp_path / "queues", durability="os")) as site:
        queues, turns = site.broker.site.queues, site.broker.context.turns
        for name in ("q0", "q7"):
            await (await site.client()).publish(f"$queue/{name}", b"x", 1)
        looks: list[int] = []
        rounds, count, here = turns._round, itertools.count(), queues.queue_here

        def one_round() -> None:
            next(count)
            rounds()

        def look(name: str) -> Any:
            if name == "q20":
                queues.end("q40")
            if name != "q40":
                looks.append(next(count))
            return here(name)

        monkeypatch.setattr(turns, "_round", one_round)
        one_step_a_round(turns, monkeypatch)
        monkeypatch.setattr(queues, "queue_here", look)
        seen = await metrics(site)
        assert len(looks) == 49
        assert all(after - before >= 2 for before, after in pairwise(looks)), "one queue in each round"
    names = {key[1] for key in seen if key[0] == "mqmesh_queue_waiting"}
    assert names == rules.keys() - {"q40"}, "a queue that has gone meanwhile is none"
    assert {name: seen["mqmesh_queue_put_total", name] for name in ("q0", "q1", "q7")} == {"q0": 1, "q1": 0, "q7": 1}
    assert (seen["mqmesh_queue_waiting", "q7"], seen["mqmesh_queue_paused", "q7"]) == (1, 0)
    assert seen["mqmesh_queue_oldest_seconds", "q1"] == 0


async def test_links_and_members_of_the_mesh():
    one = (1, MeshSettings("m", KEY))
    async with Site(mesh=one, http=ANY) as first:
        two = (2, MeshSettings("m", KEY, peers=[PeerSettings(first.broker.addresses[0], 1, 1)]))
        async with Site(mesh=two, http=ANY) as second:
            await until(lambda: second.broker.site.mesh.node.informed)
            seen = await metrics(second)
            assert seen["mqmesh_mesh_member_reachable", "site1", "1"] == 1
            assert seen["mqmesh_mesh_link_up", first.broker.addresses[0], "site1"] == 1
            assert (await get(second, "/ready"))[0] == 200


async def test_a_broker_without_its_neighbour_is_healthy_but_not_ready():
    lonely = (2, MeshSettings("m", KEY, peers=[PeerSettings("mqtt://127.0.0.1:9", 1, 1)]))
    async with Site(mesh=lonely, http=ANY) as site:
        assert (await get(site, "/health"))[0] == 200
        status, body = await get(site, "/ready")
        assert status == 503
        assert json.loads(body)["reasons"] == ["no neighbour has said yet what other sites want"]


async def test_a_store_that_refuses_is_a_reason():
    store = FailingStore(MemoryStore())
    async with Site(store=store, http=ANY) as site:
        away = await site.client("away", clean=False, expiry=FOREVER)
        await away.subscribe("t", qos=1)
        await away.leave()
        assert (await get(site, "/ready"))[0] == 200
        store.fail_next(Kind.FULL, times=1000)
        publisher = await site.client()
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await until(lambda: site.broker.site.persistence.error is not None)
        status, body = await get(site, "/ready")
        assert status == 503
        assert "the store refuses" in json.loads(body)["reasons"][0]
        assert (await metrics(site))["mqmesh_store_ok",] == 0
        store.recover()


async def test_a_broker_that_stops_says_so():
    async with Site(http=("127.0.0.1", free_port())) as site:
        site.broker.context.draining = True
        text = '{"ready":false,"reasons":["the broker is drained: mqmesh mesh resume ends that"]}'
        assert await get(site, "/ready") == (503, text)
        site.broker.context.draining = False
        site.broker.context.stopping = True
        assert await get(site, "/ready") == (503, '{"ready":false,"reasons":["the broker is stopping"]}')
    with pytest.raises(urllib.error.URLError):
        await get(site, "/health")


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/metrics/../x", 404), ("/metrics?name=x", 200)])
async def test_other_paths(path: str, status: int):
    async with Site(http=ANY) as site:
        assert (await get(site, path))[0] == status


async def test_a_port_that_is_taken():
    async with Site(http=ANY) as site:
        port = int(site.broker.http.url.rpartition(":")[2])
        with pytest.raises(StartError, match=f"cannot listen on http://127.0.0.1:{port}: the address is taken"):
            await Site(http=("127.0.0.1", port)).broker.start()
