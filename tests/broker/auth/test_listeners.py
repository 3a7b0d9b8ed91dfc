"""Rules of a listener: what a client may do depends on where it came in, and its session remembers that while it is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker import program
from mqmesh.broker.auth import passwords
from mqmesh.broker.config import BrokerConfig, load, parse
from mqmesh.cli.fleet.broker_file import render
from mqmesh.mqtt.packets import Connack, Connect, Will
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site
from support.command import run

HALL = {"listeners": ["hall"], "allow": ["publish", "subscribe"], "topics": ["hall/#"]}
OFFICE = {"listeners": ["office"], "allow": ["publish", "subscribe"], "topics": ["#"]}
OTHERS = {"listeners": [""], "allow": ["publish"], "topics": ["other"]}


def table(folder: Path, *rules: dict[str, Any], **access: Any) -> dict[str, Any]:
    """Of a broker with two listeners that have names."""
    listen = [{"address": "mqtt://127.0.0.1:0", "name": "hall"}, {"address": f"unix://{folder}/office", "name": "office"}]
    return {"listen": listen, "access": {"rule": list(rules), **access}}


def site(folder: Path, *rules: dict[str, Any], store: MemoryStore | None = None, **access: Any) -> Site:
    config = parse(table(folder, *rules, **access), "F", folder)
    made = Site(access=config.access, store=store)
    made.broker.config.listen, made.broker.config.listeners = config.listen, config.listeners
    return made


def at(where: Site, listener: str) -> Site:
    """The site, whose next clients come by one of its listeners."""
    where.broker.addresses.sort(key=lambda address: address.startswith("unix") != (listener == "office"))
    return where


async def topics_of(client: Client, publisher: Client) -> list[str]:
    """What of two topics a client hears of."""
    for topic in ("hall/lamp", "office/lamp", "hall/end"):
        assert await publisher.publish(topic, b"x", 1) < 0x80
    found: list[str] = []
    while not found or found[-1] != "hall/end":
        found += [one.topic for one in await client.messages(1)]
    return found[:-1]


async def test_each_listener_has_its_rules(tmp_path: Path) -> None:
    async with site(tmp_path, HALL, OFFICE) as one:
        guest = await at(one, "hall").client("guest")
        clerk = await at(one, "office").client("clerk")
        assert (await guest.subscribe("hall/quiet/#")).reasons == [0]
        assert (await guest.subscribe("office/#")).reasons == [0x87]
        assert await guest.publish("hall/a", b"x", 1) < 0x80
        assert await guest.publish("office/a", b"x", 1) == 0x87
        assert await clerk.publish("office/a", b"x", 1) < 0x80
        assert (await clerk.subscribe("#")).reasons == [0]
        assert await guest.publish("office/a", b"x", 1) == 0x87  # whoever has published there before


async def test_a_will_is_judged_by_the_listener(tmp_path: Path) -> None:
    async with site(tmp_path, HALL, OFFICE) as one:
        client = await at(one, "hall").dial()
        client.send(Connect("guest", 5, True, will=Will("office/gone", b"", 0)))
        await client.expect(Connack, reason=0x87)
        await at(one, "office").client("clerk", will=Will("office/gone", b"", 0))


async def test_a_session_that_is_away_is_judged_by_its_last_listener(tmp_path: Path) -> None:
    """What is filtered at delivery stays filtered, over a restart of the broker too."""
    store = MemoryStore()
    async with site(tmp_path, HALL, OFFICE, store=store, on_overlap="filter") as one:
        guest = await at(one, "hall").client("guest", expiry=1000)
        assert (await guest.subscribe("#", qos=1)).reasons == [1]
        await guest.cut()
        await one.gone("guest")
    async with site(tmp_path, HALL, OFFICE, store=store, on_overlap="filter") as one:
        clerk = await at(one, "office").client("clerk")
        for topic in ("hall/1", "office/1"):
            assert await clerk.publish(topic, b"x", 1) < 0x80
        guest = await at(one, "hall").client("guest", clean=False, expiry=1000)
        assert [message.topic for message in await guest.messages(1)] == ["hall/1"]
        assert await topics_of(guest, clerk) == ["hall/lamp"]


async def test_a_client_that_comes_by_another_listener_has_its_rules(tmp_path: Path) -> None:
    store = MemoryStore()
    async with site(tmp_path, HALL, OFFICE, store=store, on_overlap="filter") as one:
        publisher = await at(one, "office").client("publisher")
        roamer = await at(one, "office").client("roamer", expiry=1000)
        for topic_filter in ("#", "office/#"):
            await roamer.subscribe(topic_filter, qos=1)
        assert await topics_of(roamer, publisher) == ["hall/lamp", "office/lamp"]
        roamer = await at(one, "hall").client("roamer", clean=False, expiry=1000)
        assert set(one.broker.site.sessions.get("roamer").subscriptions) == {"#"}  # type: ignore[union-attr]
        assert await topics_of(roamer, publisher) == ["hall/lamp"]
        roamer = await at(one, "office").client("roamer", clean=False, expiry=1000)
        assert await topics_of(roamer, publisher) == ["hall/lamp", "office/lamp"]


async def test_sessions_of_earlier_releases_count_as_come_by_no_named_listener(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Site(store=store) as earlier:
        client = await earlier.client("c", expiry=1000)
        for topic_filter in ("hall/#", "other"):
            await client.subscribe(topic_filter)
    allowed = {"listeners": ["", "hall"], "allow": ["subscribe"], "topics": ["other"]}
    async with site(tmp_path, HALL, allowed, store=store) as one:
        assert set(one.broker.site.sessions.get("c").subscriptions) == {"other"}  # type: ignore[union-attr]


async def test_clients_without_a_name_come_where_they_may(tmp_path: Path) -> None:
    passwords.change(tmp_path / "users", "alice", b"wonderland")
    async with site(tmp_path, users="users", anonymous=["hall"]) as one:
        await at(one, "hall").client("guest")
        refused = await at(one, "office").dial()
        refused.send(Connect("stranger", 5, True))
        await refused.expect(Connack, reason=0x87)
        for listener in ("hall", "office"):
            await at(one, listener).client(f"alice at {listener}", user="alice", password=b"wonderland")


async def test_sighup_takes_rules_and_anonymous_over(tmp_path: Path) -> None:
    passwords.change(tmp_path / "users", "alice", b"wonderland")
    async with site(tmp_path, HALL, OFFICE, users="users", anonymous=["hall", "office"]) as one:
        guest, clerk = await at(one, "hall").client("guest"), await at(one, "office").client("clerk")
        await guest.subscribe("hall/#")
        changed = {"listeners": ["hall"], "allow": ["subscribe"], "topics": ["lobby/#"]}
        settings = parse(table(tmp_path, changed, OFFICE, users="users", anonymous=["hall"]), "F", tmp_path).access
        assert one.broker.renew_access(settings) == 1
        await clerk.closed(0x98)
        assert (await guest.subscribe("lobby/#")).reasons == [0]
        assert (await guest.subscribe("hall/#")).reasons == [0x87]


def test_names_and_rules_are_checked_together(tmp_path: Path) -> None:
    for access, error in [
        ({"rule": [{**HALL, "listeners": ["hal"]}]}, r"access.rule\[1\].listeners.*no listener has the name 'hal'"),
        ({"anonymous": ["cellar"], "certificates": True}, r"access.anonymous.*no listener has the name 'cellar'"),
        ({"anonymous": ["hall"]}, r"access.anonymous.*nobody could come in"),
        ({"rule": [{**HALL, "listeners": "hall"}]}, r"access.rule\[1\].listeners"),
    ]:
        with pytest.raises(ConfigError, match=error):
            parse({**table(tmp_path), "access": access}, "F", tmp_path)
    with pytest.raises(ConfigError, match=r"listen.*name"):
        parse({"listen": [{"address": "mqtt://127.0.0.1:1", "name": "a b"}]}, "F", tmp_path)
    parse({**table(tmp_path), "access": {"rule": [OTHERS]}}, "F", tmp_path)


def test_a_written_file_has_the_names(tmp_path: Path) -> None:
    config = BrokerConfig(listen=["mqtt://127.0.0.1:1", "mqtt://127.0.0.1:2", "mqtt://127.0.0.1:3"])
    config.listeners, config.serves = {"mqtt://127.0.0.1:2": "hall", "mqtt://127.0.0.1:3": "hall"}, {"mqtt://127.0.0.1:3": "clients"}
    (tmp_path / "b.toml").write_text(render(config, {}))
    found = load(tmp_path / "b.toml")
    assert (found.listen, found.listeners, found.serves) == (config.listen, config.listeners, config.serves)


@pytest.mark.process
def test_acl_check_asks_for_a_listener(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(
        'listen = [{ address = "mqtt://127.0.0.1:1883", name = "hall" }]\n'
        '[[access.rule]]\nlisteners = ["hall"]\nallow = ["publish"]\ntopics = ["hall/#"]\n'
    )
    for options, status in ((["--listener", "hall"], 0), ([], 1)):
        done = run("acl", "check", "", "hall/lamp", "--config", tmp_path / "b.toml", *options)
        assert done.returncode == status, done


def test_a_start_warns_of_the_listeners_that_admit_everybody(tmp_path: Path) -> None:
    """What differs in `listen` is called so when the file is read again."""
    passwords.change(tmp_path / "users", "alice", b"wonderland")
    listen = [{"address": "mqtt://10.0.0.1:1", "name": "hall"}, {"address": "mqtt://10.0.0.1:2", "name": "yard"}]
    config = parse({"listen": listen, "access": {"users": "users", "anonymous": ["hall"]}}, "F", tmp_path)
    assert [program._admits(config, address) for address in config.listen] == [True, False]
    listen[1]["name"], listen[1]["serves"] = "attic", "clients"
    changed = parse({"listen": listen, "access": {"users": "users", "anonymous": ["hall"]}}, "F", tmp_path)
    assert program._kept(config, changed, program.TAKEN) == ["listen"]
