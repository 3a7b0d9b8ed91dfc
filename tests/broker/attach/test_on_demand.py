"""Topics that come in on demand, between brokers of this process: what the session at the other broker is subscribed to, and what comes."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.base.address import parse_address
from mqmesh.broker.attach import interest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.settings.attach import AttachSettings
from mqmesh.mesh.wire.policy import Policy
from mqmesh.mqtt.packets import Subscription
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

THERE = "mqmesh-plant"
ALWAYS, WANTED = "s/#", "raw/#"


def attached(other: Site, wanted: tuple[str, ...] = (WANTED,), **more: Any) -> list[AttachSettings]:
    """The table of an attachment to another broker."""
    policy = Policy(into=(ALWAYS, *wanted))
    return [AttachSettings("plant", parse_address(other.broker.addresses[0]), policy, wanted, client_id=THERE, **more)]


def asked(other: Site) -> set[str]:
    """What our session is subscribed to at the other broker."""
    session = other.broker.site.sessions.get(THERE)
    return set(session.subscriptions) if session is not None else set()


async def subscribed(other: Site, *filters: str) -> None:
    """Return once it is subscribed to these, beside what always comes in."""
    try:
        await until(lambda: asked(other) == {ALWAYS, *filters})
    except TimeoutError:
        raise AssertionError(f"{asked(other)} instead of {filters}") from None


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody wants is given up at once, and two filters take a turn of the loop."""
    monkeypatch.setattr(interest, "LINGER", 0.0)
    monkeypatch.setattr(interest, "PIECE", 2)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_topic_comes_in_while_somebody_subscribes(version: int) -> None:
    async with Site() as other, Site(attach=attached(other, version=version)) as ours:
        await subscribed(other)
        its, client = await other.client("its"), await ours.client("client")
        await its.publish("raw/1", b"for nobody", 1)
        await its.publish("s/1", b"always", 1)
        await client.subscribe("raw/1", "s/1", qos=1)
        await subscribed(other, "raw/1")
        await its.publish("raw/2", b"for nobody", 1)
        await its.publish("raw/1", b"wanted", 1)
        assert [one.payload for one in await client.messages(1)] == [b"wanted"]
        await client.unsubscribe("raw/1")
        await subscribed(other)
        await its.publish("raw/1", b"for nobody", 1)
        await its.publish("s/1", b"always", 1)
        assert [one.payload for one in await client.messages(1)] == [b"always"]
        assert ours.broker.attachments.all[0].counts.into == 3, "one of a topic that is wanted, two of one that always comes in"


async def test_no_message_comes_twice_while_filters_come_and_go() -> None:
    async with Site() as other, Site(attach=attached(other)) as ours:
        await subscribed(other)
        its, one, two = await other.client("its"), await ours.client("one"), await ours.client("two")
        await one.subscribe("raw/1/x", qos=1)
        await subscribed(other, "raw/1/x")
        await two.subscribe("raw/+/x", qos=1)
        await subscribed(other, "raw/+/x")
        await one.subscribe("raw/1/+", qos=1)
        await subscribed(other, WANTED)  # they overlap
        await its.publish("raw/1/x", b"1", 1)
        await its.publish("raw/2/x", b"2", 1)
        assert [message.payload for message in await two.messages(2)] == [b"1", b"2"]
        await two.nothing()
        assert [message.payload for message in await one.messages(1)] == [b"1"]
        await one.nothing()
        await one.leave()
        await subscribed(other, "raw/+/x")


async def test_retained_messages_do_not_come_in_and_are_not_kept() -> None:
    async with Site() as other, Site(attach=attached(other)) as ours:
        its, client = await other.client("its"), await ours.client("client")
        await its.publish("raw/1", b"old", 1, retain=True)
        await client.subscribe(Subscription("raw/#", 1, retain_as_published=True))
        await subscribed(other, WANTED)
        await its.publish("raw/1", b"new", 1, retain=True)
        (message,) = await client.messages(1)
        assert (message.payload, message.retain) == (b"new", False)
        assert not ours.broker.site.retained.has(b"raw/1"), "it would be out of date when nobody listens any more"


async def test_shared_subscriptions_and_sessions_that_are_away_want_messages_too() -> None:
    async with Site() as other, Site(attach=attached(other), store=MemoryStore()) as ours:
        client = await ours.client("client", expiry=60)
        await client.subscribe("$share/g/raw/1", "raw/2", qos=1)
        await subscribed(other, "raw/1", "raw/2")
        await client.leave()
        its = await other.client("its")
        await its.publish("raw/2", b"meanwhile", 1)
        client = await ours.client("client", clean=False, expiry=60)
        assert [one.payload for one in await client.messages(1)] == [b"meanwhile"]
        await client.unsubscribe("$share/g/raw/1")
        await subscribed(other, "raw/2")


async def test_what_other_sites_of_the_mesh_want_comes_in() -> None:
    def mesh(*peers: Site) -> MeshSettings:
        return MeshSettings("m", "a key of sixteen bytes", peers=[PeerSettings(site.broker.addresses[0]) for site in peers])

    async with (
        Site() as other,
        Site(mesh=(1, mesh()), attach=attached(other)) as ours,
        Site(mesh=(2, mesh(ours))) as far,
    ):
        client = await far.client("client")
        await client.subscribe("raw/1", "$share/g/raw/2", qos=1)
        await subscribed(other, "raw/1", "raw/2")
        its = await other.client("its")
        await its.publish("raw/1", b"far", 1)
        assert [one.payload for one in await client.messages(1)] == [b"far"]
        await client.leave()
        await subscribed(other)


async def test_what_goes_out_is_not_what_is_wanted() -> None:
    """The session here takes everything that goes there: that does not make it a subscriber of what comes in."""
    async with Site() as other, Site(attach=attached(other)) as ours:
        await subscribed(other)
        await until(lambda: "#" in ours.broker.site.sessions.get("attach-plant").subscriptions)
        client = await ours.client("client")
        await client.subscribe("raw/1")
        await subscribed(other, "raw/1")
        await client.subscribe("#")
        await subscribed(other, WANTED)
        await client.unsubscribe("#")
        await subscribed(other, "raw/1")


async def test_a_filter_of_an_earlier_life_is_given_up_when_something_comes_by_it() -> None:
    async with Site(store=MemoryStore()) as other:
        async with Site(attach=attached(other)) as ours:
            client = await ours.client("client")
            await client.subscribe("raw/+/x")
            await subscribed(other, "raw/+/x")
        assert asked(other) == {ALWAYS, "raw/+/x"}, "the session there stays"
        async with Site(attach=attached(other)) as ours:
            client = await ours.client("client")
            await client.subscribe("raw/1/y")
            await subscribed(other, "raw/+/x", "raw/1/y")
            its = await other.client("its")
            await its.publish("raw/1/x", b"for nobody", 1)
            await subscribed(other, "raw/1/y")


async def test_a_connection_that_is_lost_begins_with_what_is_wanted_by_then() -> None:
    async with Site() as other, Site(attach=attached(other)) as ours:
        client = await ours.client("client")
        await client.subscribe("raw/1", "raw/2")
        await subscribed(other, "raw/1", "raw/2")
        attachment = ours.broker.attachments.all[0]
        attachment.ended("a test")
        await until(lambda: attachment.state == "down")
        await client.unsubscribe("raw/1")
        await client.subscribe("raw/3")
        await subscribed(other, "raw/2", "raw/3")


async def test_the_number_of_subscriptions_is_shown() -> None:
    async with Site() as other, Site(attach=attached(other), sys_interval=1) as ours:
        client = await ours.client("client")
        await client.subscribe("raw/1", "raw/2")
        await subscribed(other, "raw/1", "raw/2")
        await client.subscribe("$SYS/broker/attach/plant/subscriptions/wanted")
        while (await client.messages(1))[0].payload != b"2":
            pass
