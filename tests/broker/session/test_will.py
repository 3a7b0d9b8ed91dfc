"""Wills: published when a connection ends without a goodbye, not before, not after, and once."""

from __future__ import annotations

import pytest
from mqmesh.mqtt.packets import Publish, Subscription, Will
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site

DELAY = Property.WILL_DELAY_INTERVAL


async def watcher(site: Site):
    client = await site.client("watcher")
    await client.subscribe(Subscription("will/#", 2, retain_as_published=True))
    return client


@pytest.mark.any_loop
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_broken_connection_publishes_the_will(version, qos):
    async with Site() as site:
        watch = await watcher(site)
        properties = {Property.CONTENT_TYPE: "x", Property.USER_PROPERTY: [("a", "1"), ("a", "2")], Property.RESPONSE_TOPIC: "r"}
        will = Will("will/c", b"gone", qos, True, properties if version == 5 else {})
        client = await site.client("c", version, will=will)
        await client.cut()
        (message,) = await watch.messages(1)
        assert (message.topic, message.payload, message.qos, message.retain) == ("will/c", b"gone", qos, True)
        assert message.properties == will.properties
        late = await site.client("late")
        await late.subscribe("will/c")
        await late.expect(Publish, payload=b"gone", retain=True)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_goodbye_discards_it(version):
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", version, will=Will("will/c", b"gone"))
        await client.leave()
        await watch.nothing()


@pytest.mark.parametrize("reason", [Reason.DISCONNECT_WITH_WILL, Reason.UNSPECIFIED_ERROR, Reason.QUOTA_EXCEEDED])
async def test_a_goodbye_with_another_reason_does_not(reason):
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", will=Will("will/c", b"gone"))
        await client.leave(reason)
        await watch.expect(Publish, payload=b"gone")


async def test_an_error_of_the_client_publishes_it():
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", will=Will("will/c", b"gone"))
        client.send(b"\x00\x00")
        await client.closed(Reason.MALFORMED_PACKET)
        await watch.expect(Publish, payload=b"gone")


async def test_the_delay():
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", expiry=100, will=Will("will/c", b"gone", properties={DELAY: 30}))
        await client.cut()
        await site.gone("c")
        await site.later(29)
        await watch.nothing()
        await site.later(2)
        await watch.expect(Publish, payload=b"gone")
        await site.later(100)
        await watch.nothing()


async def test_the_session_may_end_first():
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", expiry=10, will=Will("will/c", b"gone", properties={DELAY: 30}))
        await client.cut()
        await site.gone("c")
        await site.later(11)
        await watch.expect(Publish, payload=b"gone")
        client = await site.client("d", will=Will("will/d", b"gone", properties={DELAY: 30}))
        await client.cut()
        await watch.expect(Publish, topic="will/d")
        await site.later(31)
        await watch.nothing()


async def test_coming_back_cancels_it():
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", clean=False, expiry=100, will=Will("will/c", b"gone", properties={DELAY: 30}))
        await client.cut()
        await site.gone("c")
        await site.later(20)
        client = await site.client("c", clean=False, expiry=100)
        await site.later(20)
        await watch.nothing()
        await client.cut()
        await site.gone("c")
        await site.later(50)
        await watch.nothing()


async def test_coming_back_with_a_clean_start_publishes_it():
    async with Site() as site:
        watch = await watcher(site)
        client = await site.client("c", expiry=100, will=Will("will/c", b"gone", properties={DELAY: 30}))
        await client.cut()
        await site.gone("c")
        await site.client("c", clean=True)
        await watch.expect(Publish, payload=b"gone")


@pytest.mark.parametrize(("clean", "delay", "published"), [(False, 0, True), (False, 30, False), (True, 0, True), (True, 30, True)])
async def test_a_takeover(clean, delay, published):
    async with Site() as site:
        watch = await watcher(site)
        old = await site.client("c", clean=False, expiry=100, will=Will("will/c", b"old", properties={DELAY: delay}))
        new = await site.client("c", clean=clean, expiry=100, will=Will("will/c", b"new"))
        await old.closed(Reason.SESSION_TAKEN_OVER)
        if published:
            await watch.expect(Publish, payload=b"old")
        await watch.nothing()
        await new.cut()
        await watch.expect(Publish, payload=b"new")


async def test_its_lifetime_begins_when_it_is_published():
    async with Site() as site:
        will = Will("will/c", b"gone", 1, True, {DELAY: 30, Property.MESSAGE_EXPIRY_INTERVAL: 10})
        client = await site.client("c", expiry=100, will=will)
        await client.cut()
        await site.gone("c")
        await site.later(31)
        await site.later(5.5)
        late = await site.client("late")
        await late.subscribe("will/c")
        message = await late.expect(Publish)
        assert message.properties == {Property.MESSAGE_EXPIRY_INTERVAL: 5}
        await site.later(6)
        await late.subscribe("will/c")
        await late.nothing()


async def test_a_silent_client():
    async with Site() as site:
        watch = await watcher(site)
        await site.client("c", keep_alive=2, will=Will("will/c", b"gone"))
        await site.later(4)
        await watch.expect(Publish, payload=b"gone")


async def test_wills_go_to_shared_subscriptions_and_queues():
    async with Site() as site:
        away = await site.client("away", clean=False, expiry=100)
        await away.subscribe("$share/g/will/#", qos=1)
        await away.cut()
        await site.gone("away")
        await (await site.client("c", will=Will("will/c", b"gone", 1))).cut()
        away = await site.client("away", clean=False, expiry=100)
        assert [m.payload for m in await away.messages(1)] == [b"gone"]


async def test_a_will_to_sys_is_not_published():
    async with Site() as site:
        watch = await site.client("watch")
        await watch.subscribe("$SYS/#")
        await (await site.client("c", will=Will("$SYS/x", b"gone"))).cut()
        await site.gone("c")
        await watch.nothing()


async def test_a_subscriber_may_get_its_own_will_when_it_comes_back():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100, will=Will("will/c", b"gone", 1))
        await client.subscribe("will/#", qos=1)
        await client.cut()
        await site.gone("c")
        client = await site.client("c", clean=False, expiry=100)
        assert [m.payload for m in await client.messages(1)] == [b"gone"]
