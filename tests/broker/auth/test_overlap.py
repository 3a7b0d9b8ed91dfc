"""Subscriptions that the rules allow in part: refused, or filtered at delivery (`on_overlap`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.settings import ConfigError
from mqmesh.broker.auth.guard import Guard
from mqmesh.broker.auth.permissions import Access
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import parse
from mqmesh.mqtt.packets import Publish
from mqmesh.mqtt.reasons import Reason
from mqmesh.mqtt.topics import matches
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site

from .test_rules import FILTERS, TOPICS, rules

DENIED = {"deny": ["subscribe"], "topics": ["plant/secret/#"], "clients": ["guest*"]}
ALL = {"allow": ["publish", "subscribe"], "topics": ["#"]}


def access(*tables: dict[str, Any], on_overlap: str = "filter") -> AccessSettings:
    found = parse({"access": {"on_overlap": on_overlap, "rule": list(tables)}}, "F").access
    assert found is not None
    return found


@given(st.lists(st.tuples(st.booleans(), FILTERS), min_size=1, max_size=4), FILTERS)
def test_a_part_is_what_is_allowed_topic_by_topic(given_rules: list[tuple[bool, str]], asked: str) -> None:
    found = rules(*({"allow" if allows else "deny": ["subscribe"], "topics": [topics]} for allows, topics in given_rules))
    readable = [topic for topic in TOPICS if matches(asked, topic) and found.reads(None, "c", topic)]
    assert readable == [topic for topic in TOPICS if matches(asked, topic) and found.subscribe(None, "c", topic).allowed]
    if readable:
        assert found.partly(None, "c", asked)
    if found.subscribe(None, "c", asked).allowed:
        assert readable == [topic for topic in TOPICS if matches(asked, topic)]


async def topics_of(client: Client, publisher: Client) -> list[str]:
    """The topics that a client hears of when each is published to once."""
    for topic in ("plant/open", "plant/secret/a", "plant/secret"):
        await publisher.publish(topic, b"x", 1)
    await publisher.publish("end", b"x", 1)
    found: list[str] = []
    while not found or found[-1] != "end":
        found += [one.topic for one in await client.messages(1)]
    return found[:-1]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_it_is_filtered_at_delivery(qos: int) -> None:
    async with Site(access=access(DENIED, ALL)) as site:
        guest, other = await site.client("guest"), await site.client("other")
        assert (await guest.subscribe("#", qos=qos)).reasons == [qos]
        assert await topics_of(guest, other) == ["plant/open"]


async def test_retained_messages_are_filtered_too() -> None:
    async with Site(access=access(DENIED, ALL)) as site:
        other = await site.client("other")
        for topic in ("plant/open", "plant/secret/a"):
            await other.publish(topic, b"x", 1, retain=True)
        guest = await site.client("guest")
        await guest.subscribe("plant/#")
        assert (await guest.expect(Publish)).topic == "plant/open"
        await guest.nothing()


async def test_a_filter_of_which_nothing_is_allowed_is_refused() -> None:
    async with Site(access=access(DENIED, ALL)) as site:
        guest = await site.client("guest")
        refused = await guest.subscribe("plant/secret/+", "$share/g/#")
        # "$share/g/#": members of a group would have to differ in what they may have
        assert refused.reasons == [Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED]


async def test_by_default_it_is_refused() -> None:
    async with Site(access=access(DENIED, ALL, on_overlap="refuse")) as site:
        assert (await (await site.client("guest")).subscribe("#")).reasons == [Reason.NOT_AUTHORIZED]


async def test_other_rules_count_at_once() -> None:
    async with Site(access=access(ALL)) as site:
        guest, other = await site.client("guest"), await site.client("other")
        await guest.subscribe("#", qos=1)
        assert await topics_of(guest, other) == ["plant/open", "plant/secret/a", "plant/secret"]
        assert site.broker.renew_access(access(DENIED, ALL)) == 0
        assert await topics_of(guest, other) == ["plant/open"]
        assert site.broker.renew_access(access(ALL)) == 0
        assert await topics_of(guest, other) == ["plant/open", "plant/secret/a", "plant/secret"]
        assert site.broker.renew_access(access(DENIED, ALL, on_overlap="refuse")) == 1


async def test_a_stored_session_is_filtered_after_a_restart() -> None:
    store = MemoryStore()
    settings = access(DENIED, ALL)
    async with Site(store=store, access=settings) as site:
        guest = await site.client("guest", expiry=1000)
        await guest.subscribe("#", qos=1)
    async with Site(store=store, access=settings) as site:
        guest, other = await site.client("guest", clean=False, expiry=1000), await site.client("other")
        assert await topics_of(guest, other) == ["plant/open"]


def test_the_setting_is_checked() -> None:
    with pytest.raises(ConfigError, match="on_overlap"):
        access(ALL, on_overlap="maybe")


def test_a_subscription_of_which_nothing_is_allowed_any_more_brings_nothing() -> None:
    """A session that moves to another site keeps it until it is reviewed there."""
    guard = Guard(SimpleNamespace(), Access(), access(ALL))  # type: ignore[arg-type]
    leaving = SimpleNamespace(client_id="\0leaving.1.2.meter", user=None, listener="", subscriptions={"plant/#": None})
    assert not guard.filters(leaving, "plant/#")  # type: ignore[arg-type]
    guard.renew(access({"allow": ["subscribe"], "topics": ["other"]}), [], [leaving], lambda *_: True)  # type: ignore[list-item]
    assert guard.filters(leaving, "plant/#")  # type: ignore[arg-type]
    assert not guard.reads(leaving, "plant/open")  # type: ignore[arg-type]
