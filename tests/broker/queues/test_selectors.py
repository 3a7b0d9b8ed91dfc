"""What members of queues say in user properties of SUBSCRIBE (docs/queues.md).

That they want some messages only (`mqmesh-selector`), and that they order what they have by priority (`mqmesh-reorders`).
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mqmesh.base.selector import values
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues import feeding, seats, shell
from mqmesh.broker.queues.core.blocks import Meta
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.seats import fits
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.roaming.session_codec import SessionState, decode_state, encode_state
from mqmesh.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Properties, Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until

KEY = "0123456789abcdef"
TOPIC = "$queue/orders"
ANSWER = "$mqmesh/queues/answer"


def settings(folder: Path, **rules: Any) -> QueueSettings:
    return QueueSettings({"orders": Rules(**rules)}, folder=folder / "queues", durability="os")


def held(site: Site) -> shell.Queues:
    assert site.broker.site.queues is not None
    return site.broker.site.queues


async def select(client: Client, selector: str, topic: str = TOPIC) -> Suback:
    packet_id = client.next_id()
    client.send(Subscribe(packet_id, [Subscription(topic, 1)], {Property.USER_PROPERTY: [("mqmesh-selector", selector)]}))
    return await client.expect_among(Suback, packet_id=packet_id)


async def put(client: Client, payload: bytes, **said: str) -> None:
    user = [(name.replace("_", "-"), value) for name, value in said.items()]
    assert await client.publish(TOPIC, payload, qos=1, properties={Property.USER_PROPERTY: user}) == 0


async def payloads(client: Client, count: int, acknowledge: bool = True) -> list[bytes]:
    return [one.payload for one in await client.messages(count, acknowledge)]


async def both(stack: AsyncExitStack, folder: Path, elsewhere: bool) -> tuple[Site, Site]:
    """The home of the queue, and where its members are."""
    if not elsewhere:
        site = await stack.enter_async_context(Site(queues=settings(folder)))
        return site, site
    home = Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)), store=MemoryStore(), queues=settings(folder))
    await stack.enter_async_context(home)
    peers = [PeerSettings(home.broker.addresses[0])]
    away = Site(mesh=(2, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)), store=MemoryStore())
    await stack.enter_async_context(away)
    await until(lambda: held(away).name_of(TOPIC) is not None)
    return home, away


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_each_message_goes_to_somebody_whom_it_fits(tmp_path: Path, elsewhere: bool) -> None:
    async with AsyncExitStack() as stack:
        home, site = await both(stack, tmp_path, elsewhere)
        shop, red, heavy = await home.client("shop"), await site.client("red"), await site.client("heavy")
        assert (await select(red, "color = 'red'")).reasons == [1]
        assert (await select(heavy, "weight > 2.5 AND JMSPriority = 4")).reasons == [1]
        await until(lambda: sum(one.active for one in held(home).store.queues["orders"].members.values()) == 2)
        await put(shop, b"1", color="blue")
        await put(shop, b"2", color="red")
        await put(shop, b"3", weight="3", JMSTypes="weight=double")
        await put(shop, b"4", weight="3")  # a string
        await put(shop, b"5", weight="3", JMSTypes="weight=int", mqmesh_priority="5")
        await put(shop, b"6", color="red")
        assert await payloads(red, 2) == [b"2", b"6"]
        assert await payloads(heavy, 1) == [b"3"]
        await red.nothing()
        await heavy.nothing()
        other = await site.client("other")
        await other.subscribe(TOPIC, qos=1)
        assert sorted(await payloads(other, 3)) == [b"1", b"4", b"5"]


async def test_what_is_returned_goes_to_another_one_whom_it_fits(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, first = await site.client("shop"), await site.client("first")
        await select(first, "n = 'x'")
        await put(shop, b"1", n="x")
        await payloads(first, 1, acknowledge=False)
        second, third = await site.client("second"), await site.client("third")
        await select(second, "n = 'x'")
        await select(third, "n = 'y'")
        await first.cut()
        assert await payloads(second, 1) == [b"1"]
        await third.nothing()


@pytest.mark.parametrize("selector", ["n =", "n > 'x'", "JMSReplyTo = 'x'"])
async def test_what_is_no_selector_is_refused(tmp_path: Path, selector: str) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        client = await site.client("a")
        answer = await select(client, selector)
        assert answer.reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
        assert "at character" in answer.properties[Property.REASON_STRING]
        assert (await select(client, selector, "news")).reasons == [1], "it is for queues"


async def test_a_queue_has_so_many_different_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MOST_SELECTORS", 2)
    async with Site(queues=settings(tmp_path)) as site:
        clients = [await site.client(name) for name in "abcd"]
        for client, number in zip(clients, (1, 2, 2), strict=False):
            assert (await select(client, f"n = {number}")).reasons == [1]
        assert (await select(clients[3], "n = 3")).reasons == [Reason.QUOTA_EXCEEDED]
        await clients[0].unsubscribe(TOPIC)
        assert (await select(clients[3], "n = 3")).reasons == [1]


async def test_another_selector_takes_the_place_of_the_first_one(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, client = await site.client("shop"), await site.client("a")
        await put(shop, b"1", n="x")
        await put(shop, b"2", n="y")
        await select(client, "n = 'y'")
        assert await payloads(client, 1) == [b"2"]
        await select(client, "n = 'x'")
        assert await payloads(client, 1) == [b"1"]
        await client.subscribe(TOPIC, qos=1)
        await put(shop, b"3")
        assert await payloads(client, 1) == [b"3"]


async def test_a_session_keeps_its_selector_over_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Site(queues=settings(tmp_path), store=store) as site:
        client = await site.client("a", clean=False, expiry=1000)
        await select(client, "n = 'y'")
        shop = await site.client("shop")
        await client.cut()
        await put(shop, b"1", n="x")
        await put(shop, b"2", n="y")
    async with Site(queues=settings(tmp_path), store=store) as site:
        client = await site.client("a", clean=False, expiry=1000)
        assert await payloads(client, 1) == [b"2"]
        await client.nothing()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_who_asks_for_messages_gets_those_that_fit(tmp_path: Path, elsewhere: bool) -> None:
    async with AsyncExitStack() as stack:
        home, site = await both(stack, tmp_path, elsewhere)
        shop, client = await home.client("shop"), await site.client("a")
        await client.subscribe(ANSWER)
        await select(client, "n = 'y'", TOPIC + "/alerts")
        await until(lambda: any(one.active for one in held(home).store.queues["orders"].members.values()))
        await put(shop, b"1", n="x")
        await client.nothing()
        await put(shop, b"2", n="y")
        assert (await client.messages(1))[0].topic == TOPIC + "/alerts"
        client.send(Publish("$mqmesh/queues", b'{"do": "get", "name": "orders", "most": 9}', 0))
        assert await payloads(client, 1) == [b"2"]
        answer = json.loads((await client.messages(1))[0].payload)
        assert answer["given"] == 1


async def test_many_messages_are_looked_at_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "LOOKS", 10)
    async with Site(queues=settings(tmp_path)) as site:
        shop, client = await site.client("shop"), await site.client("a")
        for number in range(200):
            await put(shop, b"%d" % number, n="y" if number == 199 else "x")
        queue = held(site).store.queues["orders"]
        await select(client, "n = 'y'")
        assert await payloads(client, 1) == [b"199"]
        assert not queue.looking


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_look_at_messages_that_fit(tmp_path: Path, elsewhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.broker.queues.overview.MOST_LOOKED", 2)
    async with AsyncExitStack() as stack:
        home, site = await both(stack, tmp_path, elsewhere)
        shop, client = await home.client("shop"), await site.client("a")
        await client.subscribe(ANSWER)
        for number in range(5):
            await put(shop, b"%d" % number, n=str(number))
        found, begin = [], 0
        while begin is not None:
            asked = {"do": "peek", "name": "orders", "selector": "n IN ('1', '4')", "from": begin}
            client.send(Publish("$mqmesh/queues", json.dumps(asked).encode(), 0))
            answer = json.loads((await client.messages(1))[0].payload)
            found += [one["position"] for one in answer["messages"]]
            begin = answer["more"]
        assert found == [2, 5]
        client.send(Publish("$mqmesh/queues", b'{"do": "peek", "name": "orders", "selector": "n ="}', 0))
        assert "at character" in json.loads((await client.messages(1))[0].payload)["error"]


async def test_a_message_group_stays_with_its_member(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, a, b = await site.client("shop"), await site.client("a"), await site.client("b")
        await select(a, "n = 'x'")
        await put(shop, b"1", n="x", mqmesh_group="g")
        (first,) = await a.messages(1, acknowledge=False)
        await select(b, "n = 'y'")
        await put(shop, b"2", n="y", mqmesh_group="g")
        await b.nothing()
        a.send(Puback(first.packet_id))
        await a.nothing()
        await b.nothing()
        await a.cut()
        assert await payloads(b, 1) == [b"2"]


async def test_a_long_selector_is_refused(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        client = await site.client("a")
        assert (await select(client, "n = '" + 4090 * "x" + "'")).reasons == [1]
        answer = await select(client, "n LIKE '" + 4090 * "_" + "'")
        assert answer.reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
        assert "4,099 characters of 4,096" in answer.properties[Property.REASON_STRING]


async def test_a_message_with_very_large_properties_fits_no_selector(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        shop, choosy, other = [await site.client(name) for name in ("shop", "choosy", "other")]
        await select(choosy, "n = 'y'")
        await put(shop, b"large", n="y", more=9000 * "x")
        await put(shop, b"small", n="y", more=900 * "x")
        assert await payloads(choosy, 1) == [b"small"]
        await other.subscribe(TOPIC, qos=1)
        assert await payloads(other, 1) == [b"large"]


def test_properties_that_cannot_be_read_fit_no_selector() -> None:
    """Another broker of the mesh is not asked whether they can."""
    for block in (b"\x26", b"\x26\0\1n", b"\x26\0\1\xff\0\1y", b"\xff\xff\xff\xff", b"\x7f"):
        assert not fits("n = 'y'")(Meta(properties=block), 4)


async def test_costly_looks_count_for_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, feed, read = [0], feeding.Row.feed, seats.properties_in

    def counted(row: feeding.Row, most: int, now: float) -> tuple[int, bool]:
        looked.append(0)
        return feed(row, most, now)

    def judged(block: bytes) -> Properties:
        looked[-1] += 1
        return read(block)

    monkeypatch.setattr(feeding.Row, "feed", counted)
    monkeypatch.setattr(seats, "properties_in", judged)
    async with Site(queues=settings(tmp_path)) as site:
        shop, client = await site.client("shop"), await site.client("a")
        for number in range(20):
            await put(shop, b"%d" % number, n=7000 * "a" + ("b" if number == 19 else ""))
        await select(client, "n LIKE '%" + 3500 * "a" + "b%'")
        assert await payloads(client, 1) == [b"19"]
        assert max(looked) < 4


def test_the_kinds_of_properties_are_read_once_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(values, "kinds_in", lambda types: asked.append(types) or {"n": "int", "m": "int"})
    found = values.lookup([("n", "1"), ("m", "2"), ("JMSTypes", "n=int m=int")], None, 4)
    assert (found("n"), found("m")) == (1, 2)
    assert asked == ["n=int m=int"]


def test_a_number_of_very_many_characters_is_none() -> None:
    assert values.value_of("int", 390 * "0" + "7") == 7
    with pytest.raises(ValueError, match="4000 characters"):
        values.value_of("int", 3999 * "0" + "7")


# ---- who reorders

MANY = 40  # messages, of two priorities


async def join(client: Client, reorders: str) -> None:
    packet_id = client.next_id()
    client.send(Subscribe(packet_id, [Subscription(TOPIC, 1)], {Property.USER_PROPERTY: [("mqmesh-reorders", reorders)]}))
    assert (await client.expect(Suback, packet_id=packet_id)).reasons == [1]


async def fill(shop: Client) -> None:
    for number in range(MANY):
        await put(shop, b"%d" % number, mqmesh_priority=str(number % 2))


async def given(client: Client, count: int) -> None:
    """Without an answer a client has so many messages, and gets no more."""
    assert len(await client.messages(count, acknowledge=False)) == count
    await client.nothing()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("reorders", "count"), [("1", MANY), ("0", 16)])
async def test_who_reorders_has_more_of_a_queue_with_priorities(tmp_path: Path, elsewhere: bool, reorders: str, count: int) -> None:
    async with AsyncExitStack() as stack:
        home, site = await both(stack, tmp_path, elsewhere)
        await fill(await home.client("shop"))
        client = await site.client("a")
        await join(client, reorders)
        await given(client, count)


async def test_another_word_counts_from_then_on(tmp_path: Path) -> None:
    async with Site(queues=settings(tmp_path)) as site:
        await fill(await site.client("shop"))
        client = await site.client("a")
        await join(client, "1")
        await given(client, MANY)
        await join(client, "")
        await given(client, 16)


async def test_a_session_keeps_it_over_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Site(queues=settings(tmp_path), store=store) as site:
        client = await site.client("a", clean=False, expiry=1000)
        await join(client, "1")
        await client.cut()
        await fill(await site.client("shop"))
    async with Site(queues=settings(tmp_path), store=store) as site:
        await given(await site.client("a", clean=False, expiry=1000), MANY)


@pytest.mark.parametrize("said", [{}, {"selector": "n = 'y'"}, {"key": "k"}, {"reorders": True}, {"key": "k", "reorders": True}])
def test_a_session_takes_along_what_it_has_said(said: dict[str, object]) -> None:
    state = SessionState(None, None, [(Subscription(TOPIC, 1, **said), 0)], [], [])  # type: ignore[arg-type]
    assert decode_state(encode_state(state)).subscriptions == state.subscriptions


async def test_what_is_in_the_members_hands_is_worked_first(tmp_path: Path) -> None:
    """A later message of a higher priority comes as soon as there is room, before all that wait."""
    async with Site(queues=settings(tmp_path, prefetch=20)) as site:
        shop, client = await site.client("shop"), await site.client("a")
        await fill(shop)
        await join(client, "1")
        got = await client.messages(20, acknowledge=False)
        await put(shop, b"late", mqmesh_priority="9")
        await until(lambda: held(site).store.queues["orders"].waiting == MANY - 20 + 1)
        client.send(*[Puback(one.packet_id) for one in got])
        assert (await client.messages(1))[0].payload == b"late"
