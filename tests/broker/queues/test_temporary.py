"""Queues that a client makes by a request, and that end with its session (docs/queues.md, "Temporary queues")."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.broker.auth import passwords
from mqmesh.broker.auth import rules as rules_of_access
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import MeshSettings, PeerSettings, parse
from mqmesh.broker.journal.recorder import Recorder
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.program import reload_files
from mqmesh.broker.queues.declared import temporary
from mqmesh.broker.queues.log.places.memory import MEMORY, MemorySegments
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.mqtt.packets import Disconnect, Publish, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.management import EVERYBODY

KEY = "0123456789abcdef"
ANSWER = "$mqmesh/queues/answer"


def settings(folder: Path) -> QueueSettings:
    return QueueSettings({}, folder=folder / "queues", durability="os")


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


async def ask(client: Client, **asked: Any) -> dict[str, Any]:
    client.send(Publish("$mqmesh/queues", json.dumps(asked).encode(), 0))
    (answer,) = await client.messages(1)
    assert answer.topic == ANSWER
    return dict(json.loads(answer.payload))


async def maker(site: Site, name: str = "asks", **more: Any) -> tuple[Client, str, str]:
    """A client with a temporary queue: its topic, and its key."""
    client = await site.client(name, **more)
    await client.subscribe(ANSWER)
    made = await ask(client, do="temporary")
    return client, "$queue/" + made["queue"], made["key"]


async def consume(client: Client, topic: str, key: str = "") -> int:
    """The reason of SUBACK."""
    packet_id = client.next_id()
    said: Any = {Property.USER_PROPERTY: [("mqmesh-key", key)]} if key else {}
    client.send(Subscribe(packet_id, [Subscription(topic, 1)], said))
    return int((await client.receive()).reasons[0])


async def test_a_reply_comes_to_a_temporary_queue(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        asks, topic, _ = await maker(site)
        assert topic.startswith("$queue/temporary/0/")
        assert await consume(asks, topic) == 1
        answers = await site.client("answers")
        for qos in (0, 1, 2):
            assert await answers.publish(topic, b"reply", qos=qos) == 0
            assert [(one.topic, one.payload) for one in await asks.messages(1)] == [(topic, b"reply")]
        queue = shell(site).store.queues[topic.removeprefix("$queue/")]
        await until(lambda: queue.counts["done"] == 3)
        shown = await ask(asks, do="show", name=queue.name)
        assert shown["queue"]["declared"] == "by a client, until its session ends"


async def test_only_its_maker_and_who_has_the_key_consume(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        _, topic, key = await maker(site)
        other = await site.client("other")
        assert await consume(other, topic) == Reason.NOT_AUTHORIZED
        assert await consume(other, topic, "wrong") == Reason.NOT_AUTHORIZED
        assert await consume(other, topic + "/alerts") == Reason.NOT_AUTHORIZED
        assert await consume(other, topic, key) == 1
        assert await other.publish(topic, b"1", qos=1) == 0
        assert [one.payload for one in await other.messages(1)] == [b"1"]


@pytest.mark.parametrize("end", ["crash", "disconnect", "delete", "taken over"])
async def test_it_ends_with_its_maker(tmp_path: Path, end: str) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        asks, topic, key = await maker(site)
        name, queues = topic.removeprefix("$queue/"), shell(site)
        reads, other = await site.client("reads"), await site.client("other")
        assert await consume(reads, topic, key) == 1
        for payload in (b"1", b"2"):
            await other.publish(topic, payload, qos=1)
        await reads.messages(2, acknowledge=False)
        if end == "crash":
            await asks.cut()
        elif end == "disconnect":
            asks.send(Disconnect())
        elif end == "taken over":
            await site.client("asks")
        else:
            assert (await ask(asks, do="delete", name=name))["deleted"]
        await until(lambda: name not in queues.store.queues)
        assert await other.publish(topic, b"3", qos=1) == Reason.TOPIC_NAME_INVALID
        assert await consume(other, topic, key) >= 0x80
        assert not queues.store.here[MEMORY].queues
        assert not queues.settings.rules
        assert not queues.settings.subscribers
        assert reads.name not in {place.session.client_id for place in queues.places}
        await reads.nothing()


async def test_it_lives_as_long_as_the_session(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path), store=MemoryStore()) as site:
        asks, topic, _ = await maker(site, clean=False, expiry=100)
        assert await consume(asks, topic) == 1
        await asks.cut()
        other = await site.client("other")
        assert await other.publish(topic, b"reply", qos=1) == 0
        asks = await site.client("asks", clean=False, expiry=100)
        assert [one.payload for one in await asks.messages(1)] == [b"reply"]
        await asks.cut()
        session = site.broker.site.sessions.get("asks")
        await until(lambda: session is not None and session.ends_at is not None)
        await site.later(101)
        await until(lambda: not shell(site).store.here[MEMORY].queues)
        assert await other.publish(topic, b"late", qos=1) == Reason.TOPIC_NAME_INVALID


async def test_a_client_and_a_broker_have_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "MOST_EACH", 2)
    monkeypatch.setattr(temporary, "MOST", 3)
    async with Site(queues=settings(tmp_path)) as site:
        asks, topic, _ = await maker(site)
        await ask(asks, do="temporary")
        assert "at most 2" in (await ask(asks, do="temporary"))["error"]
        other, _, _ = await maker(site, "other")
        assert "at most 3" in (await ask(other, do="temporary"))["error"]
        await ask(asks, do="delete", name=topic.removeprefix("$queue/"))
        assert "queue" in await ask(other, do="temporary")


async def test_one_user_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "MOST_USER", 2)
    users = tmp_path / "users"
    for name in ("anna", "bert"):
        passwords.change(users, name, b"secret")
    async with Site(queues=settings(tmp_path), access=AccessSettings(users=users)) as site:
        clients = [(await maker(site, name, user="anna", password=b"secret"))[0] for name in ("one", "two")]
        for client in clients:
            assert "at most 2" in (await ask(client, do="temporary"))["error"]
        await maker(site, "of bert", user="bert", password=b"secret")
        await clients[0].cut()
        await until(lambda: len(shell(site).temporary) == 2)
        assert "queue" in await ask(clients[1], do="temporary")


async def test_rules_of_access_say_who_puts_and_who_makes(tmp_path: Path) -> None:
    rule = rules_of_access.Rule
    rules = (
        rule(1, True, frozenset(("publish", "subscribe")), ("$mqmesh/#",)),
        rule(2, True, frozenset(("subscribe",)), ("$queue/temporary/#",), clients=("asks",)),
        rule(3, True, frozenset(("publish",)), ("$queue/temporary/#",), clients=("answers",)),
    )
    async with Site(queues=settings(tmp_path), access=AccessSettings(rules=rules_of_access.Rules(rules))) as site:
        asks, topic, _ = await maker(site)
        answers = await site.client("answers")
        await answers.subscribe(ANSWER)
        assert await answers.publish(topic, b"1", qos=1) == 0
        assert await asks.publish(topic, b"1", qos=1) == Reason.NOT_AUTHORIZED
        assert "error" in await ask(answers, do="temporary")
        assert "error" in await ask(answers, do="delete", name=topic.removeprefix("$queue/"))


async def test_a_dry_run_deletes_nothing(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        client, topic, _ = await maker(site)
        answer = await ask(client, do="delete", name=topic.removeprefix("$queue/"), dry_run=True)
        assert answer["dry_run"] is True
        assert await client.publish(topic, b"1", qos=1) == 0, "it is still there"


async def test_operators_change_none(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path), management=EVERYBODY) as site:
        _, topic, _ = await maker(site)
        other = await site.client("other")
        await other.subscribe(ANSWER)
        for asked in ({"do": "delete", "force": True}, {"do": "store", "store": "sqlite"}):
            answer = await ask(other, name=topic.removeprefix("$queue/"), **asked)
            assert "ends with the session of the client that made it: 'asks'" in answer["error"]


async def test_after_a_restart_there_is_nothing_left(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        _, topic, _ = await maker(site)
        await (await site.client("other")).publish(topic, b"1", qos=1)
    async with Site(queues=settings(tmp_path)) as site:
        assert not shell(site).store.queues
        assert not any(b"temporary" in one.read_bytes() for one in (tmp_path / "queues").rglob("*") if one.is_file())
        other = await site.client("other")
        assert await other.publish(topic, b"1", qos=1) == Reason.TOPIC_NAME_INVALID


async def test_memory_does_not_grow_with_what_went_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.broker.queues.stores.SEGMENT_BYTES", 10_000)
    async with Site(queues=settings(tmp_path)) as site:
        asks, topic, _ = await maker(site)
        await consume(asks, topic)
        other = await site.client("other")
        for _ in range(100):
            await other.publish(topic, bytes(1000), qos=1)
            await asks.messages(1)
        memory = shell(site).store.here[MEMORY].where
        assert isinstance(memory, MemorySegments)
        await until(lambda: memory.held < 30_000)


async def test_a_queue_of_another_site(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        mesh = MeshSettings("m", KEY, silence=1000, start_wait=0.0)
        home = await stack.enter_async_context(Site(mesh=(1, mesh), store=MemoryStore(), queues=settings(tmp_path)))
        peers = [PeerSettings(home.broker.addresses[0])]
        mesh = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        away = await stack.enter_async_context(Site(mesh=(2, mesh), store=MemoryStore()))
        await until(lambda: bool(shell(away).sites._node.live() >> 1 & 1))  # type: ignore[union-attr]
        asks, topic, key = await maker(home)
        assert topic.startswith("$queue/temporary/1/")
        await consume(asks, topic)
        answers = await away.client("answers")
        await answers.subscribe(ANSWER)
        assert await answers.publish(topic, b"reply", qos=1) == 0
        assert [one.payload for one in await asks.messages(1)] == [b"reply"]
        assert await consume(answers, topic) == Reason.NOT_AUTHORIZED
        thief, friend = await away.client("thief"), await away.client("friend")
        assert await consume(thief, topic, "wrong") == 1, "its home looks"
        assert await consume(friend, topic, key) == 1
        queue = shell(home).store.queues[topic.removeprefix("$queue/")]
        await until(lambda: [one.name for one in queue.members.values() if one.active] == ["asks", "friend"])
        await asks.unsubscribe(topic)
        assert await answers.publish(topic, b"for a friend", qos=1) == 0
        assert [one.payload for one in await friend.messages(1)] == [b"for a friend"]
        assert await consume(asks, topic) == 1
        await thief.nothing()
        assert (await ask(answers, do="show", name=topic.removeprefix("$queue/")))["queue"]["members"][0]["name"] == "asks"
        await asks.cut()
        await until(lambda: not shell(home).store.here[MEMORY].queues)
        assert await answers.publish(topic, b"late", qos=1) == 0
        assert await answers.publish("$queue/temporary/1/other", b"late", qos=1) == 0
        arrivals = shell(home).sites.arrivals
        await until(lambda: arrivals._serial == 4 and not arrivals.unsettled)
        assert not arrivals.names
        assert await answers.publish("$queue/temporary/7/none", b"late", qos=1) == Reason.TOPIC_NAME_INVALID


async def test_a_full_queue_is_refused_at_other_sites_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "MOST_MESSAGES", 1)
    async with AsyncExitStack() as stack:
        mesh = MeshSettings("m", KEY, silence=1000, start_wait=0.0)
        home = await stack.enter_async_context(Site(mesh=(1, mesh), store=MemoryStore(), queues=settings(tmp_path)))
        peers = [PeerSettings(home.broker.addresses[0])]
        mesh = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        away = await stack.enter_async_context(Site(mesh=(2, mesh), store=MemoryStore()))
        await until(lambda: bool(shell(away).sites._node.live() >> 1 & 1))  # type: ignore[union-attr]
        asks, topic, _ = await maker(home)
        name = topic.removeprefix("$queue/")
        answers = await away.client("answers")
        assert await answers.publish(topic, b"1", qos=1) == 0
        queue = shell(home).store.queues[name]
        await until(lambda: queue.full)
        shell(home).tick()
        await until(lambda: shell(away).sites.homes.full(name))
        assert await answers.publish(topic, b"2", qos=1) == Reason.QUOTA_EXCEEDED
        await consume(asks, topic)
        await asks.messages(1)
        await until(lambda: not queue.full)
        shell(home).tick()
        await until(lambda: not shell(away).sites.homes.full(name))
        assert await answers.publish(topic, b"3", qos=1) == 0
        await asks.messages(1)


async def test_a_broker_of_a_mesh_without_a_table_of_queues_makes_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        mesh = MeshSettings("m", KEY, silence=1000, start_wait=0.0)
        home = await stack.enter_async_context(Site(mesh=(1, mesh), store=MemoryStore()))
        peers = [PeerSettings(home.broker.addresses[0])]
        mesh = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        away = await stack.enter_async_context(Site(mesh=(2, mesh), store=MemoryStore()))
        await until(lambda: bool(shell(away).sites._node.live() >> 1 & 1))  # type: ignore[union-attr]
        asks, topic, _ = await maker(home)
        await consume(asks, topic)
        answers = await away.client("answers")
        assert await answers.publish(topic, b"reply", qos=1) == 0
        assert [one.payload for one in await asks.messages(1)] == [b"reply"]
        assert "no queues" in (await ask(asks, do="list"))["error"]
        assert "no queues" in (await ask(asks, do="show", name="orders"))["error"]
        assert (await ask(asks, do="delete", name=topic.removeprefix("$queue/")))["deleted"]
        assert await answers.publish("$queue/other", b"as any other topic", qos=1) == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.parametrize("end", ["disconnect", "delete"])
async def test_the_journal_has_what_was_in_it_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Its last commit is noted when it is gone."""
    noted = []
    monkeypatch.setattr(Recorder, "queued", lambda self, queued: noted.append((queued.queue, len(queued.puts), bool(queued.moves))))
    async with Site(queues=settings(tmp_path), journal=JournalSettings(str(tmp_path / "journal"))) as site:
        asks, topic, _ = await maker(site)
        name, queues = topic.removeprefix("$queue/"), shell(site)
        assert await (await site.client("other")).publish(topic, b"1", qos=1) == 0
        if end == "disconnect":
            await asks.leave()
        else:
            assert (await ask(asks, do="delete", name=name))["deleted"]
        await until(lambda: name not in queues.store.queues)
    assert noted == [(name, 1, False), (name, 0, True)]


async def test_a_file_that_is_read_again_says_nothing_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        await maker(site)
        reload_files(site.broker, lambda: parse({"data": str(tmp_path), "queues": {}}))
        assert "event=not-reloaded" in caplog.text
        assert "temporary/" not in caplog.text
