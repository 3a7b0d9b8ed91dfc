"""Lists of queues: what they have, who may see it, at the site that is asked and at another one."""

from __future__ import annotations

from pathlib import Path

from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.core.plan import plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.overview import MOST_PEEKED
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.mqtt.packets import Puback
from support.broker_site import Site, until
from support.management import BELIEVING, EVERYBODY, ask, manager, role

KEY = "a key of sixteen bytes"


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings(dict(rules), folder=folder / "queues", durability="os")


async def test_queues_and_members(tmp_path: Path) -> None:
    rules = {
        "orders": Rules(deliveries=3, dead_letters="dead", messages=10, topics=("orders/#",)),
        "dead": Rules(),
        "other": Rules(plan=plan_of("a, b")),
    }
    async with Site(queues=queues(tmp_path, **rules), management=EVERYBODY) as site:
        shop, a, client = await site.client("shop"), await site.client("a"), await manager(site)
        for payload in (b"1", b"22", b"333"):
            await shop.publish("$queue/orders", payload, qos=1)
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(3, acknowledge=False)
        await shop.publish("$queue/other", b"x", qos=1)
        answer = await ask(client, list="queues", sort="-put")
        assert [(row["name"], row["plan"], row["waiting"], row["in_flight"], row["members"], row["put"]) for row in answer["rows"]] == [
            ("orders", "pool", 0, 3, 1, 3),
            ("other", "a, b", 2, 0, 0, 1),
            ("dead", "pool", 0, 0, 0, 0),
        ]
        orders = answer["rows"][0]
        assert (orders["bytes"], orders["dead_letters"], orders["done"], orders["refused"]) == (6, "dead", 0, 0)
        assert orders["bounds"] == {"messages": 10, "when_full": "refuse", "deliveries": 3, "prefetch": 1000}
        assert orders["oldest"] >= 0
        assert (orders["store"], orders["declared"], orders["topics"]) == ("log", "in the file", ["orders/#"])
        assert [row["name"] for row in (await ask(client, list="queues", where={"name": "o*", "waiting": ">0"}))["rows"]] == ["other"]
        found = (await ask(client, list="queue-members", where={"queue": "orders"}))["rows"]
        assert [(row["member"], row["active"], row["in_flight"], row["subscriber"]) for row in found] == [("a", True, 3, True)]


async def test_a_row_of_a_large_pool_has_some_of_its_members(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules()), management=EVERYBODY) as site:
        shop, client = await site.client("shop"), await manager(site)
        await shop.publish("$queue/orders", b"1", qos=1)
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        for number in range(2 * MOST_PEEKED):
            queue.member(f"m{number}")
        (row,) = (await ask(client, list="queue-messages", where={"queue": "orders", "state": "REVEALED"}))["rows"]
        assert row["subscribers"] == {f"m{number}": "CLEAN" for number in range(MOST_PEEKED)}


async def test_messages_and_their_states(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(), other=Rules()), management=EVERYBODY) as site:
        shop, a, client = await site.client("shop"), await site.client("a"), await manager(site)
        for number in range(5):
            await shop.publish("$queue/orders", b"%d" % number, qos=1)
        await a.subscribe("$queue/orders", qos=1)
        taken = await a.messages(5, acknowledge=False)
        a.send(Puback(taken[0].packet_id))
        await a.nothing()
        asked = {"list": "queue-messages", "where": {"queue": "orders"}, "limit": 2}
        first = await ask(client, **asked)
        assert [row["position"] for row in first["rows"]] == [2, 3]
        assert first["total"] == 4
        assert {"state": "REVEALED", "publisher": "shop", "bytes": 1, "priority": 4, "deliveries": 0}.items() <= first["rows"][0].items()
        assert first["rows"][0]["subscribers"] == {"a": "GET"}
        assert "payload" not in first["rows"][0]
        rest = await ask(client, **asked, cursor=first["cursor"], payload=True)
        assert [(row["position"], row["payload"]) for row in rest["rows"]] == [(4, "3"), (5, "4")]
        assert (await ask(client, list="queue-messages", where={"queue": "none"}))["rows"] == []
        states = (await ask(client, list="queue-states", where={"queue": "orders", "position": 1}))["rows"]
        assert [(row["who"], row["role"], row["state"]) for row in states] == [
            *(("shop", "publisher", state) for state in ("PUT", "REVEALED", "JOURNALLED")),
            *(("a", "subscriber", state) for state in ("GET", "FETCHED", "DONE", "JOURNALLED (IMPLIED)")),
        ]
        assert "never was" in (await ask(client, list="queue-states", where={"queue": "orders", "position": "9"}))["error"]
        assert "position" in (await ask(client, list="queue-states", where={"queue": "orders", "position": "x"}))["error"]


async def test_roles_for_some_queues(tmp_path: Path) -> None:
    management = role("payload-reader", queues=("orders",))
    async with Site(queues=queues(tmp_path, orders=Rules(), other=Rules()), management=management) as site:
        shop, client = await site.client("shop"), await manager(site)
        for name in ("orders", "other"):
            await shop.publish(f"$queue/{name}", b"secret", qos=1)
        assert [row["name"] for row in (await ask(client, list="queues"))["rows"]] == ["orders"]
        for name, shown in (("orders", ["secret"]), ("other", [])):
            where = {"queue": name}
            assert [row["payload"] for row in (await ask(client, list="queue-messages", where=where, payload=True))["rows"]] == shown
            assert len((await ask(client, list="queue-states", where={**where, "position": 1}))["rows"]) == 2 * len(shown)


async def test_queues_of_other_sites(tmp_path: Path) -> None:
    settings = MeshSettings("m", KEY)
    async with Site(mesh=(1, settings), management=EVERYBODY) as one:
        peers = [PeerSettings(one.broker.addresses[0])]
        there = queues(tmp_path, orders=Rules())
        async with Site(mesh=(2, MeshSettings("m", KEY, peers=peers)), management=BELIEVING, queues=there) as two:
            await until(lambda: all(sum(m.live for m in site.broker.site.mesh.node.members()) == 2 for site in (one, two)))
            shop, client = await two.client("shop"), await manager(one)
            await shop.publish("$queue/orders", b"1", qos=1)
            answer = await ask(client, list="queues", at="*")
            assert [(row["site"], row["name"], row["waiting"]) for row in answer["rows"]] == [("site2", "orders", 1)]
            assert (answer["missing"], answer["refused"]) == ({}, {}), "a site without queues has no rows"
            where = {"queue": "orders"}
            answer = await ask(client, list="queue-messages", where=where, at="site2", payload=True)
            assert [row["payload"] for row in answer["rows"]] == ["1"]
            answer = await ask(client, list="queue-states", where={**where, "position": 1}, at="site2")
            assert [row["state"] for row in answer["rows"]] == ["PUT", "REVEALED"]
