"""Management at one broker: lists of real clients, sessions, subscriptions and retained messages, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.broker.auth.roles import ManagementSettings
from mqmesh.broker.management.service import TOPIC
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site
from support.management import EVERYBODY, ask, manager, role

FOREVER = 0xFFFFFFFF


def names(answer: dict[str, Any], column: str = "client") -> list[Any]:
    return [row[column] for row in answer["rows"]]


async def test_clients_sessions_and_subscriptions() -> None:
    async with Site(store=MemoryStore(), management=EVERYBODY) as site:
        away = await site.client("away", clean=False, expiry=FOREVER)
        await away.subscribe("plant/#", "$share/g/plant/1", qos=1)
        await away.leave()
        await site.gone("away")
        client = await manager(site)
        answer = await ask(client, list="clients")
        assert names(answer) == ["manager"]
        assert answer["sites"]["site0"]["total"] == answer["total"] == 1
        assert (answer["cursor"], answer["missing"], answer["refused"]) == (None, {}, {})
        assert answer["rows"][0]["version"] == 5
        assert names(await ask(client, list="sessions")) == ["away", "manager"]
        found = await ask(client, list="sessions", where={"connected": False, "subscriptions": ">=2"})
        assert names(found) == ["away"]
        assert found["rows"][0]["away"] >= 0
        found = await ask(client, list="subscriptions", where={"client": "away"}, sort="-filter")
        assert [(row["filter"], row["group"], row["qos"]) for row in found["rows"]] == [("plant/#", None, 1), ("$share/g/plant/1", "g", 1)]
        found = await ask(client, list="groups")
        assert [(row["group"], row["filter"], row["members"], row["connected"]) for row in found["rows"]] == [("g", "plant/1", 1, 0)]


async def test_pages_by_cursor() -> None:
    async with Site(store=MemoryStore(), management=EVERYBODY) as site:
        client = await manager(site)
        for number in range(25):
            await client.publish(f"plant/{number:02}/state", bytes(number), 1, retain=True)
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor:
            answer = await ask(client, list="retained", where={"topic": "plant/+/state"}, sort="-bytes", limit=10, cursor=cursor)
            found += names(answer, "bytes")
            cursor, pages = answer["cursor"], pages + 1
        assert (found, pages) == (list(range(24, 0, -1)), 3), "an empty payload retains nothing"


async def test_payloads_are_for_payload_readers() -> None:
    async with Site(management=role("administrator")) as site:
        client = await manager(site)
        await client.publish("a", b"secret", 1, retain=True)
        assert "payload-reader" in (await ask(client, list="retained", payload=True))["error"]
        assert "payload" not in (await ask(client, list="retained", where={"topic": "a"}))["rows"][0]
    async with Site(management=role("payload-reader", topics=("plant/#",))) as site:
        client = await manager(site)
        for topic, payload in (("a", b"secret"), ("plant/1", b"on"), ("plant/2", b"\xff" * 5000)):
            await client.publish(topic, payload, 1, retain=True)
        answer = await ask(client, list="retained", payload=True)
        assert names(answer, "topic") == ["plant/1", "plant/2"], "rows about other topics are not there"
        assert (answer["rows"][0]["payload"], answer["rows"][0]["payload_cut"]) == ("on", False)
        assert (list(answer["rows"][1]["payload"]), answer["rows"][1]["payload_cut"]) == (["base64"], True)
        assert "viewer" in (await ask(client, list="sessions"))["error"]


async def test_routes_say_why() -> None:
    async with Site(store=MemoryStore(), management=EVERYBODY) as site:
        for name, qos in (("kept", 1), ("unkept", 0)):
            one = await site.client(name, clean=False, expiry=FOREVER)
            await one.subscribe("plant/+", qos=qos)
            await one.leave()
            await site.gone(name)
        client = await manager(site)
        await client.subscribe("plant/1", "$share/g/#", qos=1)
        answer = await ask(client, list="routes", where={"topic": "plant/1"})
        assert [(row["to"], row["kind"], row["gets"], row["why"]) for row in answer["rows"]] == [
            ("g", "group", True, "group"),
            ("kept", "session", True, "interest"),
            ("manager", "session", True, "interest"),
            ("unkept", "session", False, "reach"),
        ]
        assert '"topic"' in (await ask(client, list="routes"))["error"]
        assert "topic" in (await ask(client, list="routes", where={"topic": "a/#"}))["error"]


async def test_the_configuration_hides_secrets() -> None:
    async with Site(management=EVERYBODY) as site:
        site.broker.config.store.url = "postgresql://user:password@host/database"
        client = await manager(site)
        found = {row["key"]: row["value"] for row in (await ask(client, list="configuration"))["rows"]}
        assert found["name"] == "site0"
        assert "password" not in str(found.get("store.url"))
        assert (await ask(client, list="configuration", where={"key": "limits.in_flight"}))["total"] == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "send"),
    ({"list": "moons"}, "there is no list 'moons'"),
    ({"list": "sessions", "do_": "x"}, "send"),
    ({"list": "sessions", "sort": "colour"}, "no column 'colour'"),
    ({"list": "groups", "sort": "clients"}, "not sorted by 'clients'"),
    ({"list": "sessions", "limit": 101}, '"limit" is a number from 1 to 100'),
    ({"list": "sessions", "limit": True}, '"limit"'),
    ({"list": "sessions", "wher": {}}, "'wher' is not known"),
    ({"list": "sessions", "where": {"bytes": "many"}}, "no condition for a number"),
    ({"list": "sessions", "where": {"bytes": ">1e999x"}}, "no condition for a number"),
    ({"list": "sessions", "where": {"client": 5}}, "no condition for a text"),
    ({"list": "sessions", "where": {"connected": "maybe"}}, "no condition for a flag"),
    ({"list": "retained", "where": {"topic": "a/#/b"}}, "topic: 'a/#/b'"),
    ({"list": "sessions", "cursor": "??"}, "no cursor"),
    ({"list": "sessions", "at": 5.5}, '"at"'),
    ({"list": "sessions", "at": "lyon"}, "in no mesh"),
    ({"list": "sessions", "payload": True}, "no payloads"),
    ({"list": "sessions", "within": 0}, '"within"'),
    ({"show": "moons"}, "there is no 'moons' to show"),
    ({"do_": "dance"}, "there is no action 'dance'"),
]


@pytest.mark.parametrize(("request_", "text"), WRONG, ids=str)
async def test_wrong_requests_say_what_is_right(request_: dict[str, Any], text: str) -> None:
    async with Site(management=EVERYBODY) as site:
        answer = await ask(await manager(site), **request_)
        assert text in answer["error"]
        assert "\n" not in answer["error"]


async def test_without_a_role_nothing_is_shown() -> None:
    async with Site(management=ManagementSettings()) as site:
        client = await manager(site)
        for request in ({"list": "sessions"}, {"show": "lists"}, {"do_": "reload"}):
            assert "not permitted" in (await ask(client, **request))["error"]


async def test_what_there_is_can_be_asked() -> None:
    async with Site(management=role("viewer", sites=("site*",))) as site:
        client = await manager(site)
        lists = {one["list"]: one for one in (await ask(client, show="lists"))["lists"]}
        assert {"clients", "sessions", "subscriptions", "retained", "routes", "groups", "configuration", "recipients"} <= lists.keys()
        assert lists["routes"]["needs"] == ["topic"]
        assert (await ask(client, show="roles"))["roles"] == [{"role": "viewer", "sites": ["site*"]}]


async def test_who_is_not_subscribed_to_answers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with Site(management=EVERYBODY) as site:
        client: Client = await site.client("deaf")
        assert await client.publish(TOPIC, b'{"list": "sessions"}', 1) == 0x10
