"""What operators ask a broker about its sessions, and who is an operator."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth import operators, passwords
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import parse
from mqmesh.broker.requests.sessions import ANSWER, TOPIC
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.store.base import Kind
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

FOREVER = 0xFFFFFFFF


@pytest.fixture
def home(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


async def operator(site: Site, **more: Any) -> Client:
    client = await site.client("operator", **more)
    await client.subscribe(ANSWER, qos=1)
    return client


async def ask(client: Client, request: object) -> Any:
    """The answer to a request."""
    payload = request if isinstance(request, bytes) else json.dumps(request).encode()
    number = client.next_id()
    client.send(Publish(TOPIC, payload, 1, packet_id=number))
    found: list[Any] = [await client.receive(), await client.receive()]
    (answer,) = [one for one in found if isinstance(one, Publish)]
    assert [one.packet_id for one in found if isinstance(one, Puback)] == [number]
    client.send(Puback(answer.packet_id))
    assert answer.topic == ANSWER
    return json.loads(answer.payload)


async def away(site: Site, name: str, messages: int, size: int = 100, expiry: int = FOREVER) -> None:
    client = await site.client(name, clean=False, expiry=expiry)
    await client.subscribe(f"to/{name}", qos=1)
    await client.leave()
    await site.gone(name)
    publisher = await site.client()
    for _ in range(messages):
        await publisher.publish(f"to/{name}", bytes(size), 1)
    await publisher.leave()


async def test_sessions_in_the_order_asked_for(home: str) -> None:
    async with Site(home, store=MemoryStore()) as site:
        await away(site, "few large", 2, 5000)
        await site.later(100)
        await away(site, "many", 9, expiry=1000)
        here = await site.client("here", clean=False, expiry=60)
        await here.subscribe("a", "b")
        await site.client("not kept")
        client = await operator(site)
        answer = await ask(client, {"do": "list"})
        assert [one["client"] for one in answer["sessions"]] == ["few large", "many", "here"]
        assert answer["total"] == 3
        assert answer["bytes"] == site.broker.site.persistence.quota.stored
        large, many, connected = answer["sessions"]
        assert (large["messages"], large["connected"], large["subscriptions"], large["expires"]) == (2, False, 1, None)
        assert large["bytes"] > 10000
        assert 900 < many["expires"] <= 1000
        assert (connected["away"], connected["connected"], connected["messages"], connected["age"]) == (None, True, 0, None)
        assert large["age"] >= 0
        for by, first in (("messages", "many"), ("away", "few large")):
            answer = await ask(client, {"do": "list", "by": by, "limit": 1})
            assert [one["client"] for one in answer["sessions"]] == [first]
        assert [one["client"] for one in (await ask(client, {"do": "list", "client": "here"}))["sessions"]] == ["here"]


async def test_what_is_in_flight_is_counted(home: str) -> None:
    async with Site(home, store=MemoryStore()) as site:
        slow = await site.client("slow", clean=False, expiry=FOREVER, receive_maximum=2)
        await slow.subscribe("t", qos=1)
        publisher = await site.client()
        for _ in range(5):
            await publisher.publish("t", bytes(1000), 1)
        (found,) = (await ask(await operator(site), {"do": "list"}))["sessions"]
        assert found["messages"] == 5
        assert found["bytes"] > 5000


@pytest.mark.parametrize("connected", [False, True])
async def test_a_session_is_ended(home: str, connected: bool) -> None:
    kept = MemoryStore()
    async with Site(home, store=kept) as site:
        await away(site, "old", 3)
        old = await site.client("old", clean=False, expiry=FOREVER) if connected else None
        if old is not None:
            await old.messages(3, acknowledge=False)
        client = await operator(site)
        answer = await ask(client, {"do": "end", "client": "old"})
        assert (answer["ended"]["client"], answer["ended"]["messages"]) == ("old", 3)
        if old is not None:
            await old.closed(0x98)
        assert site.broker.site.sessions.get("old") is None
        assert site.broker.site.persistence.quota.sessions == 0
        assert not list(kept.deliveries())  # the answer followed the commit
        assert not list(kept.values("sessions"))
        assert "no session" in (await ask(client, {"do": "end", "client": "old"}))["error"]
        again = await site.client("old", clean=False, expiry=FOREVER)
        assert again.connack is not None
        assert not again.connack.session_present


async def test_the_answer_says_what_is_kept(home: str) -> None:
    store = FailingStore(MemoryStore())
    async with Site(home, store=store) as site:
        await away(site, "old", 1)
        client = await operator(site)
        store.hold()
        client.send(Publish(TOPIC, b'{"do": "end", "client": "old"}', 1, packet_id=1))
        await until(store.entered.is_set)
        assert client.waiting() <= 1
        store.release()
        packets = [await client.receive(), await client.receive()]
        assert {type(one) for one in packets} == {Puback, Publish}
        store.fail_queries = Kind.UNREACHABLE
        await away(site, "other", 0)
        client.send(Publish(TOPIC, b'{"do": "list"}', 1, packet_id=2))
        packets = [await client.receive(), await client.receive()]
        (answer,) = [json.loads(one.payload) for one in packets if isinstance(one, Publish)]
        assert "failing on command" in answer["error"]


WRONG = [
    *(b"", b"[]", b"{", b"5", b"\xff"),
    *({"do": "list", **more} for more in ({"by": "age"}, {"by": []}, {"limit": 0}, {"limit": 1001}, {"limit": "5"})),
    *({"do": "end"}, {"do": "end", "client": 5}, {"do": "forget", "client": "x"}),
]


@pytest.mark.parametrize("request_", WRONG, ids=str)
async def test_requests_that_are_none(home: str, request_: object) -> None:
    async with Site(home, store=MemoryStore()) as site:
        client = await operator(site)
        assert "send {" in (await ask(client, request_))["error"]


async def test_who_may_and_who_may_not(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(store=MemoryStore()) as site:
        stranger = await operator(site)
        assert "not permitted" in (await ask(stranger, {"do": "list"}))["error"]
        assert "not permitted" in (await ask(stranger, {"do": "end", "client": "x"}))["error"]
    async with Site(home, store=MemoryStore()) as site:
        client = await operator(site)
        assert operators.peer(site.broker.site.sessions.get("operator").connection.transport.get_extra_info("socket")) == os.getuid()
        assert "sessions" in await ask(client, {"do": "list"})
        monkeypatch.setattr(operators, "peer", lambda _: os.getuid() + 1)
        assert "not permitted" in (await ask(client, {"do": "list"}))["error"]


async def test_users_that_are_named(tmp_path: Path) -> None:
    """Whatever the rules say of topics; a name that is only claimed is none."""
    for name in ("ops", "alice"):
        passwords.change(tmp_path / "users", name, b"pw")
    rule = {"allow": ["publish", "subscribe"], "topics": ["elsewhere/#"]}
    access = parse({"access": {"users": "users", "operators": ["ops"], "rule": [rule]}}, "F", tmp_path).access
    async with Site(store=MemoryStore(), access=access) as site:
        for name, permitted in (("ops", True), ("alice", False)):
            client = await site.client(name, password=b"pw")
            await client.subscribe(ANSWER, qos=1)
            assert ("sessions" in await ask(client, {"do": "list"})) is permitted
            await client.leave()
    async with Site(store=MemoryStore(), access=AccessSettings(operators=frozenset({"ops"}))) as site:
        client = await site.client("ops", password=b"claimed")
        await client.subscribe(ANSWER, qos=1)
        assert "not permitted" in (await ask(client, {"do": "list"}))["error"]


async def test_only_who_asked_hears_the_answer(home: str) -> None:
    async with Site(home, store=MemoryStore()) as site:
        eavesdropper = await site.client("other")
        await eavesdropper.subscribe(ANSWER, "mine", "#", "$mqmesh/#", qos=1)
        client = await operator(site)
        await client.subscribe("mine", qos=1)
        client.send(
            Publish(TOPIC, b'{"do": "list"}', 1, packet_id=9, properties={Property.RESPONSE_TOPIC: "mine", Property.CORRELATION_DATA: b"7"})
        )
        packets = [await client.receive(), await client.receive()]
        (answer,) = [one for one in packets if isinstance(one, Publish)]
        assert answer.topic == "mine"
        assert answer.properties[Property.CORRELATION_DATA] == b"7"
        await eavesdropper.nothing()


def test_operators_are_users_with_proven_names() -> None:
    with pytest.raises(ConfigError, match=r"access\.operators = .*no name is proven"):
        parse({"access": {"operators": ["ops"]}})
    assert AccessSettings().operators == frozenset()
