"""What rules of access say of recipients: what they get, where their messages go back to, and for whom a declared one counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from mqmesh.broker.config import parse
from mqmesh.broker.recipients.handover.parcels import site_of
from mqmesh.mqtt.packets import Connack, Connect, Publish, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site

from .test_recipients import application, served, site, state, users
from .test_restart import crashed, kept

ALL: dict[str, Any] = {"allow": ["publish", "subscribe"], "topics": ["#"]}
SECRET = b"a secret of the token's issuer, 32 bytes or more"


def denied(action: str, topic: str, client: str) -> list[dict[str, Any]]:
    """Rules that deny one client one thing, and allow everything else."""
    return [{"deny": [action], "topics": [topic], "clients": [client]}, ALL]


def guarded(*applications: dict[str, object], rules: list[dict[str, Any]], store: Any = None, **access: Any) -> Site:
    table = {"message_interval": 1, "fault_interval": 3, "defunct_interval": 10, "application": list(applications)}
    settings = parse({"access": {"rule": rules, **access}, "recipients": table})
    made = Site(access=settings.access, store=store)
    made.broker.config.recipients = settings.recipients
    return made


# What a recipient gets


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("on_overlap", "topic_filter"), [("filter", "app/a/#"), ("refuse", "app/a/open/#")])
async def test_a_recipient_gets_nothing_that_its_rules_deny(on_overlap: str, topic_filter: str, qos: int) -> None:
    """Also not what is addressed to it below another topic than it has subscribed to."""
    rules = denied("subscribe", "app/a/secret/#", "a")
    async with guarded(application("a", "b"), application("b"), rules=rules, on_overlap=on_overlap) as at:
        a, b, sender = await at.client("a"), await served(at, "b"), await at.client("shop")
        await a.subscribe(topic_filter, qos=2)
        await sender.publish("app/a/secret/x", b"1", qos)
        await sender.publish("app/a/open/x", b"2", qos)
        assert [one.payload for one in await a.messages(1)] == [b"2"]
        await a.nothing()
        if qos:
            (got,) = await b.messages(1)
            assert (got.payload, users(got)["mqmesh-failed-over"]) == (b"1", "a")
        await b.nothing()


async def test_what_waited_and_may_not_be_read_goes_elsewhere_when_somebody_comes() -> None:
    """And holds up nothing."""
    rules = denied("subscribe", "app/a/secret/#", "a")
    async with guarded(application("a", "b"), application("b"), rules=rules, on_overlap="filter") as at:
        b, sender = await served(at, "b"), await at.client("shop")
        for number, topic in enumerate(["open", "secret", "open", "secret", "open"]):
            await sender.publish(f"app/a/{topic}/x", b"%d" % number, 1)
        a = await served(at, "a")
        assert [one.payload for one in await a.messages(3)] == [b"0", b"2", b"4"]
        assert [one.payload for one in await b.messages(2)] == [b"1", b"3"]
        assert state(at, "a") == "operational"


async def test_rules_that_become_others_count_at_once() -> None:
    async with guarded(application("a", "b"), application("b"), rules=[ALL], on_overlap="filter") as at:
        a, b, sender = await served(at, "a"), await served(at, "b"), await at.client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1)
        parts = at.broker.site
        access = parse({"access": {"rule": denied("subscribe", "app/a/x", "a"), "on_overlap": "filter"}}).access
        parts.guard.renew(access, [], parts.sessions, parts.router.unsubscribe)
        parts.router.rules_changed(parts.sessions)
        for qos in (0, 1):
            await sender.publish("app/a/x", b"2", qos)
        await a.nothing()
        assert [one.payload for one in await b.messages(1)] == [b"2"]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_shared_subscription_of_a_recipients_own_brings_a_message_once(qos: int) -> None:
    async with site(application=[application("a", clients=["a1", "a2"])]) as at:
        first, second, sender = await at.client("a1"), await at.client("a2"), await at.client("shop")
        for client in (first, second):
            await client.subscribe("$share/g/app/a/#", qos=2)
        await sender.publish("app/a/x", b"1", qos)
        got = [one for client in (first, second) for one in await client.messages(client.waiting())]
        await first.nothing()
        await second.nothing()
        assert [one.payload for one in got] == [b"1"]


async def test_at_qos_0_nothing_comes_without_a_subscription() -> None:
    async with site(application=[application("a")]) as at:
        a, sender = await at.client("a"), await at.client("shop")
        await sender.publish("app/a/x", b"1", 0)
        await a.nothing()
        await a.subscribe(Subscription("app/a/y", 0))
        await sender.publish("app/a/x", b"2", 0)
        assert [one.payload for one in await a.messages(1)] == [b"2"]


# Where messages go back to


async def returned(at: Site) -> None:
    """A recipient that nobody serves has used up its intervals."""
    await at.later(1.1)


@pytest.mark.parametrize("will", [False, True])
async def test_nothing_is_returned_to_where_its_publisher_may_not_publish(will: bool) -> None:
    """The broker would do for a client what its rules deny it. It comes to the dead letters."""
    async with guarded(application("a"), rules=denied("publish", "plant/#", "evil")) as at:
        plant, dead = await at.client("plant"), await at.client("dead")
        await plant.subscribe("plant/#", qos=1)
        await dead.subscribe("dead/#", qos=1)
        properties = {Property.RESPONSE_TOPIC: "plant/valve"}
        if will:
            evil = await at.client("evil", will=Will("app/a/x", b"open", 1, False, properties))
            await evil.cut()
            await at.gone("evil")
        else:
            evil = await at.client("evil")
            assert await evil.publish("plant/valve", b"open", 1) == 0x87
            assert await evil.publish("app/a/x", b"open", 1, properties=properties) == 0
        await returned(at)
        (got,) = await dead.messages(1)
        assert (got.payload, users(got)["mqmesh-originator"]) == (b"open", "evil")
        await plant.nothing()
        good = await at.client("good")
        await good.publish("app/a/x", b"close", 1, properties=properties)
        await returned(at)
        assert [one.payload for one in await plant.messages(1)] == [b"close"]


@pytest.mark.parametrize("pair", [("mqmesh-originator", "victim"), ("mqmesh-originator", "evil")])
async def test_who_publishes_to_any_topic_sets_no_originator(pair: tuple[str, str]) -> None:
    rules = [{"deny": ["publish"], "topics": ["app/victim/#", "plant/#"]}, ALL]
    async with guarded(application("a", "b", topics=["shop/#"]), application("b", consents=["c"]), rules=rules) as at:
        a, victim, dead, evil = [await at.client(name) for name in ("a", "victim", "dead", "evil")]
        await a.subscribe("shop/#", qos=1)
        await dead.subscribe("dead/#", qos=1)
        for topic in ("app/victim/returned", "plant/valve"):
            await victim.subscribe(topic, qos=1)
        forged = {Property.USER_PROPERTY: [pair], Property.RESPONSE_TOPIC: "plant/valve"}
        await evil.publish("shop/x", b"1", 1, properties=forged)
        await a.messages(1, acknowledge=False)
        await at.later(1.1)
        assert [one.payload for one in await dead.messages(1)] == [b"1"]
        await victim.nothing()


FORGED = [("mqmesh-failed-over", "c"), ("mqmesh-repeated", "1")]


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 30, "70000", "\N{SUPERSCRIPT TWO}", "7"])
async def test_marks_that_a_client_makes_up_count_for_nothing(number: str) -> None:
    """Not who was tried, so that `b`, which consents only to c, has nothing; not a number that is none, which ended the recipient."""
    applications = [application("a", "b", topics=["shop/#"]), application("b", consents=["c"]), application("c", "b")]
    async with site(application=applications) as at:
        a, b, sender = await served(at, "a"), await served(at, "b"), await at.client("shop")
        await a.subscribe("shop/#", qos=1)
        properties = {Property.USER_PROPERTY: [*FORGED, ("mqmesh-site", number), ("own", "kept")]}
        await sender.publish("shop/x", b"1", 1, properties=properties)
        (got,) = await a.messages(1)
        assert users(got) == {"own": "kept"}
        await a.nothing()
        await sender.publish("shop/x", b"2", 1, properties=properties)
        (got,) = await a.messages(1, acknowledge=False)
        assert users(got) == {"own": "kept"}
        await at.later(1.1)
        await b.nothing()


@pytest.mark.parametrize("first", ["shop/x", "other/x"])
async def test_of_messages_that_come_together_those_fail_over_that_should(first: str) -> None:
    """Not all or none, as the first one does."""
    second = "other/x" if first == "shop/x" else "shop/x"
    async with site(application=[application("a", "b", topics=["shop/#"]), application("b")]) as at:
        a, b, sender = await served(at, "a"), await served(at, "b"), await at.client("shop")
        await a.subscribe("#", qos=1)
        for topic in (first, second):
            await sender.publish(topic, b"0", 1)
            await a.messages(1)
        sender.send(*[Publish(topic, topic.encode(), 1, packet_id=sender.next_id()) for topic in (first, second) * 2])
        await a.messages(4, acknowledge=False)
        await at.later(1.1)
        assert [one.payload for one in await b.messages(2)] == [b"shop/x"] * 2
        await b.nothing()


def test_a_number_that_is_none_is_this_brokers() -> None:
    assert [site_of({"mqmesh-site": text}, 3) for text in ("7", "", "9" * 5000, "-1", "٧", "²")] == [7, 3, 3, 3, 3, 3]


# For whom a declared recipient counts


async def come(at: Site, user: str, name: str, reason: int = 0, **more: str) -> Client:
    client = await at.dial()
    token = jwt.encode({"exp": time.time() + 600, "sub": user}, SECRET, "HS256").encode()
    pairs = [(f"mqmesh-{key}", value) for key, value in more.items()]
    client.send(Connect(name, 5, True, user_name=user, password=token, properties={Property.USER_PROPERTY: pairs}))
    client.connack = await client.expect(Connack, reason=reason)
    return client


def with_users(folder: Path, store: Any = None, **access: Any) -> Site:
    (folder / "key").write_bytes(SECRET)
    settings = parse({"access": {"tokens": {"key": "key"}, **access}, "recipients": {}}, "F", folder)
    made = Site(access=settings.access, store=store)
    made.broker.config.recipients = settings.recipients
    return made


async def test_declared_recipients_count_as_sessions_of_their_user(tmp_path: Path) -> None:
    """They stay when their clients are gone, and after a restart."""
    store = MemoryStore()
    async with with_users(tmp_path, store, sessions_per_user=3) as at:
        for number in range(3):
            client = await come(at, "evil", f"e{number}", alternatives="b")
            await client.leave()
            await at.gone(f"e{number}")
        await come(at, "evil", "e3", 0x97, alternatives="b")
        await come(at, "good", "g0", alternatives="b")
        await kept(at)
        copy = crashed(store)
    async with with_users(tmp_path, copy, sessions_per_user=3) as at:
        await come(at, "evil", "e3", 0x97)
        await come(at, "good", "g1", alternatives="b")


async def test_what_a_user_declares_is_charged_to_it(tmp_path: Path) -> None:
    """So that it has its share of limits.broker_bytes, and others find what is left."""
    async with with_users(tmp_path) as at:
        ledger = at.broker.context.ledger
        client = await come(at, "evil", "e", alternatives=",".join(f"{number:0200}" for number in range(64)))
        await client.leave()
        await at.gone("e")
        await at.until(lambda: [one[1] for one in ledger.largest(9) if one[0] == "user"] == ["evil"])
        assert next(one[2] for one in ledger.largest(9) if one[1] == "evil") > 64 * 200
