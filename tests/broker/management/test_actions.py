"""Actions: what they do, that a dry run does nothing, who is told, and what the journal says."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker.management.errors import Refused
from mqmesh.broker.program import _asked_to_reload
from mqmesh.mqtt.packets import Publish
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site
from support.management import EVERYBODY, ask, manager, role

FOREVER = 0xFFFFFFFF


async def test_a_client_is_disconnected() -> None:
    async with Site(management=role("operator")) as site:
        client, victim = await manager(site), await site.client("victim")
        answer = await ask(client, do_="disconnect", client="victim", dry_run=True)
        assert answer["would"]["site0"].startswith("victim at 127.0.0.1:")
        await victim.nothing()
        assert "done" in await ask(client, do_="disconnect", client="victim")
        await victim.closed(0x98)
        assert "no session" in (await ask(client, do_="disconnect", client="victim"))["error"]
        assert 'needs "client"' in (await ask(client, do_="disconnect"))["error"]
        assert "has no 'colour'" in (await ask(client, do_="disconnect", client="x", colour="red"))["error"]


async def test_a_session_is_ended_once_that_is_kept() -> None:
    store = MemoryStore()
    async with Site(store=store, management=role("operator")) as site:
        away = await site.client("away", clean=False, expiry=FOREVER)
        await away.subscribe("t", qos=1)
        await away.leave()
        await site.gone("away")
        client = await manager(site)
        await client.publish("t", b"x", 1)
        assert "1 message and 1 subscription" in (await ask(client, do_="end-session", client="away", dry_run=True))["would"]["site0"]
        assert site.broker.site.sessions.get("away") is not None
        assert "done" in await ask(client, do_="end-session", client="away")
        assert site.broker.site.sessions.get("away") is None
        assert "away" not in str(list(store.values("sessions")))


async def test_a_retained_message_is_deleted() -> None:
    async with Site(management=role("administrator", topics=("plant/#",))) as site:
        client = await manager(site)
        await client.publish("plant/1", b"x", 1, retain=True)
        await client.publish("office", b"x", 1, retain=True)
        await client.subscribe("plant/1", qos=0)
        assert (await client.receive()).payload == b"x"
        assert "would" in await ask(client, do_="delete-retained", topic="plant/1", dry_run=True)
        assert site.broker.site.retained.has(b"plant/1")
        assert "administrator" in (await ask(client, do_="delete-retained", topic="office"))["error"]
        await client.unsubscribe("plant/1")
        assert "done" in await ask(client, do_="delete-retained", topic="plant/1")
        assert not site.broker.site.retained.has(b"plant/1")
        assert "nothing is retained" in (await ask(client, do_="delete-retained", topic="plant/1"))["error"]


async def test_the_log_level() -> None:
    async with Site(management=role("administrator")) as site:
        client, logger = await manager(site), logging.getLogger("mqmesh.tested")
        assert "would" in await ask(client, do_="set-log-level", level="debug", logger="mqmesh.tested", dry_run=True)
        assert logger.level == logging.NOTSET
        assert "done" in await ask(client, do_="set-log-level", level="debug", logger="mqmesh.tested")
        assert logger.level == logging.DEBUG
        logger.setLevel(logging.NOTSET)
        assert "one of debug" in (await ask(client, do_="set-log-level", level="loud"))["error"]
        assert "begins with mqmesh." in (await ask(client, do_="set-log-level", level="info", logger="asyncio"))["error"]
        assert "not started from a file" in (await ask(client, do_="reload"))["error"]


async def test_files_are_read_again() -> None:
    async with Site() as site:
        read: list[int] = []

        def reload() -> Any:
            read.append(1)
            if len(read) > 1:
                raise ConfigError("broker.toml", "limits.x", 5, "wrong")
            return site.broker.config

        assert "are right" in _asked_to_reload(site.broker, reload, None, True)
        with pytest.raises(Refused, match=r"broker\.toml: limits\.x = 5: wrong"):
            _asked_to_reload(site.broker, reload, None, False)


async def next_event(client: Client) -> dict[str, Any]:
    packet = await client.receive()
    assert isinstance(packet, Publish), packet
    assert packet.topic.startswith("$mqmesh/events/")
    return {"topic": packet.topic, **json.loads(packet.payload)}


async def test_changes_are_events_with_a_sequence() -> None:
    async with Site(store=MemoryStore(), management=EVERYBODY) as site:
        listener = await site.client("listener")
        await listener.subscribe("$mqmesh/events/#")
        one = await site.client("one", clean=False, expiry=FOREVER)
        client = await manager(site)
        events = [await next_event(listener), await next_event(listener)]
        await one.leave()
        events.append(await next_event(listener))
        await ask(client, do_="end-session", client="one")
        events += [await next_event(listener), await next_event(listener)]
        assert [(event["topic"].rpartition("/")[2], event["event"], event["client"]) for event in events] == [
            ("clients", "connected", "one"),
            ("clients", "connected", "manager"),
            ("clients", "disconnected", "one"),
            ("sessions", "ended", "one"),
            ("actions", "end-session", "manager"),
        ]
        first = events[0]["sequence"]
        assert [event["sequence"] for event in events] == list(range(first, first + 5))
        assert {(event["site"], event["life"]) for event in events} == {("site0", site.broker.context.life)}


async def test_events_are_for_viewers_only() -> None:
    async with Site() as site:
        listener = await site.client("listener")
        await listener.subscribe("$mqmesh/events/#", "$mqmesh/#")
        before = site.broker.context.events
        await site.client("other")
        await listener.nothing()
        assert site.broker.context.events == before + 1


async def test_actions_are_written_down() -> None:
    async with Site(management=role("operator")) as site:
        managed: list[Any] = []
        client = await manager(site)
        await site.client("victim")
        site.broker.context.journal = Journal(managed)  # type: ignore[assignment]
        await ask(client, do_="disconnect", client="victim", dry_run=True)
        await ask(client, do_="disconnect", client="nobody")
        assert managed == []
        await ask(client, do_="disconnect", client="victim")
        assert [(who.client_id, what, more["do"], more["values"]) for who, what, more in managed] == [
            ("manager", "manage", "disconnect", {"client": "victim"})
        ]
        site.broker.context.journal = None


class Journal:
    """Takes nothing but what operators do."""

    def __init__(self, managed: list[Any]) -> None:
        self._managed = managed

    def managed(self, who: Any, what: str, **more: Any) -> None:
        self._managed.append((who, what, more))

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_named: None
