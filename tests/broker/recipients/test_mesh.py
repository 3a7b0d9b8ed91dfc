"""Recipients in a mesh: the roles of the recipient's, the origin's and the alternative's broker (rows F6, F10, F13, F14, F16, F21)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings, parse
from mqmesh.broker.recipients.shell import Recipients
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Client, Site, until
from support.storage.failing_store import FailingStore

from .test_recipients import served, users

KEY = "0123456789abcdef"


async def test_a_broker_without_the_table_passes_messages_on_and_says_what_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    table = {"recipients": {"message_interval": 1, "application": [{"name": "orders", "alternatives": ["backup"]}, {"name": "backup"}]}}
    with_table = Site(mesh=(1, MeshSettings("m", KEY, silence=1000, start_wait=0.0)))
    with_table.broker.config.recipients = parse(table).recipients
    async with with_table as one:
        peers = [PeerSettings(one.broker.addresses[0])]
        async with Site(mesh=(2, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0))) as two:
            await until(lambda: not two.broker.site.router.route(b"app/orders/x").empty)
            orders, backup, shop = await served(one, "orders"), await served(one, "backup"), await two.client("shop")
            await shop.subscribe("shop/answers")
            assert await shop.publish("app/orders/new", b"1", 1, properties={Property.RESPONSE_TOPIC: "shop/answers"}) == 0
            for who in (orders, backup):
                assert [one.payload for one in await who.messages(1, acknowledge=False)] == [b"1"]
                await one.later(1.1)
            (back,) = await shop.messages(1)
            assert ("mqmesh-tried", "orders,backup") in back.properties[Property.USER_PROPERTY]
            assert await shop.publish("app/none/new", b"1", 1) == Reason.NO_MATCHING_SUBSCRIBERS
            await until(lambda: two.broker.site.mesh.peer_messages.counts["unhandled"] > 0)  # type: ignore[union-attr]
    said = [one for one in caplog.messages if "event=post-unknown" in one]
    assert len(said) == 1
    assert "[recipients] in its file" in said[0]


class Mesh:
    """Brokers site1, site2, ... in a line, with one table `[recipients]`."""

    def __init__(self, *applications: dict[str, Any], count: int = 3, stores: bool = False, **table: Any) -> None:
        table = {"message_interval": 1, "fault_interval": 3, "defunct_interval": 10, "application": list(applications), **table}
        self.settings = parse({"recipients": table}).recipients
        self.count = count
        self.stores = [FailingStore(MemoryStore()) if stores else None for _ in range(count)]
        self.sites: list[Site] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Mesh:
        for number in range(1, self.count + 1):
            peers = [PeerSettings(self.sites[-1].broker.addresses[0])] if self.sites else []
            settings = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
            site = Site(mesh=(number, settings), store=self.stores[number - 1])
            site.broker.config.recipients = self.settings
            self.sites.append(await self._stack.enter_async_context(site))
        await until(lambda: all(self.knows(site) for site in self.sites))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    def knows(self, site: Site) -> bool:
        """A broker knows everybody's recipients."""
        assert self.settings is not None
        here = of(site)
        interested = all(site.broker.site.router.route(f"app/{one.name}/x".encode()).empty is False for one in self.settings.applications)
        return interested and all(here.record(one.name) is not None for one in self.settings.applications)

    def at(self, number: int) -> Site:
        return self.sites[number - 1]


def of(site: Site) -> Recipients:
    recipients = site.broker.site.recipients
    assert recipients is not None
    return recipients


def app(name: str, home: int, *alternatives: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "broker": f"site{home}", "alternatives": list(alternatives), **more}


async def state_is(mesh: Mesh, name: str, state: str) -> None:
    """Every broker knows that a recipient is in a state."""
    await until(lambda: all((one := of(site).record(name)) is not None and one.state.value == state for site in mesh.sites))


async def hung(mesh: Mesh, sender: Client, name: str, client: Client) -> None:
    """A recipient has a message, takes nothing, and is in FAULT."""
    await sender.publish(f"app/{name}/x", b"probe", 1)
    await client.messages(1, acknowledge=False)
    await mesh.at(1).later(3.1)
    await state_is(mesh, name, "fault")


async def test_f13_f14_a_message_goes_back_to_the_origin_and_on_to_an_alternative_elsewhere() -> None:
    async with Mesh(app("orders", 2, "backup"), app("backup", 3)) as mesh:
        orders, backup = await served(mesh.at(2), "orders"), await served(mesh.at(3), "backup")
        sender = await mesh.at(1).client("shop")
        await sender.publish("app/orders/x", b"1", 1)
        await orders.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        (got,) = await backup.messages(1)
        assert (got.topic, got.payload) == ("app/orders/x", b"1")
        assert users(got) == {"mqmesh-originator": "shop", "mqmesh-site": "1", "mqmesh-failed-over": "orders", "mqmesh-repeated": "1"}
        await until(lambda: of(mesh.at(1)).failover.counts["succeeded"] == 1)  # F14: the origin's broker learns it


async def test_f6_a_dead_recipient_costs_nothing() -> None:
    """In FAULT each later message is at the alternative at once, and a dead alternative is passed over."""
    async with Mesh(app("a", 1, "b", "c"), app("b", 2), app("c", 3), message_interval=3) as mesh:
        a, b, c = [await served(mesh.at(number), name) for number, name in ((1, "a"), (2, "b"), (3, "c"))]
        sender = await mesh.at(1).client("shop")
        await sender.publish("app/b/x", b"probe", 1)
        await b.messages(1, acknowledge=False)
        await hung(mesh, sender, "a", a)
        await state_is(mesh, "b", "fault")
        for number in range(10):
            await sender.publish("app/a/x", b"%d" % number, 1)
        got = await c.messages(10)
        assert [one.payload for one in got] == [b"%d" % number for number in range(10)]
        assert {users(one)["mqmesh-failed-over"] for one in got} == {"a,b"}
        assert "mqmesh-repeated" not in users(got[0])


async def test_f6_a_message_that_goes_elsewhere_at_once_is_acknowledged_after_its_commit() -> None:
    """Else a broker that is killed in between has promised a message that is nowhere."""
    async with Mesh(app("a", 1, "b"), app("b", 2), count=2, stores=True) as mesh:
        at, store = mesh.at(1), mesh.stores[0]
        a, b = await served(at, "a"), await served(mesh.at(2), "b")
        sender = await at.client("shop")
        await hung(mesh, sender, "a", a)
        persistence = at.broker.site.persistence
        assert persistence is not None
        assert store is not None
        await until(lambda: not persistence.mark())
        store.hold()
        sender.send(Publish("app/a/x", b"1", 1, packet_id=7))
        await until(store.entered.is_set)
        await sender.nothing()
        store.release()
        await sender.expect(Puback)
        assert (await b.messages(1))[0].payload == b"1"


async def test_f16_f8_all_dead_returns_to_the_originator_at_its_own_site() -> None:
    async with Mesh(app("a", 2, "b"), app("b", 3, "a")) as mesh:
        a, b = await served(mesh.at(2), "a"), await served(mesh.at(3), "b")
        sender = await mesh.at(1).client("shop")
        await sender.subscribe("app/shop/returned", qos=1)
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        await b.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        (got,) = await sender.messages(1)
        assert users(got)["mqmesh-tried"] == "a,b"
        await sender.nothing()


async def test_f11_the_recipient_comes_back_and_is_served_again_everywhere() -> None:
    async with Mesh(app("a", 2, "b"), app("b", 3), message_interval=3) as mesh:
        a, b = await served(mesh.at(2), "a"), await served(mesh.at(3), "b")
        sender = await mesh.at(1).client("shop")
        await hung(mesh, sender, "a", a)
        await sender.publish("app/a/x", b"1", 1)
        assert (await b.messages(1))[0].payload == b"1"
        await a.cut()
        again = await served(mesh.at(2), "a")
        await state_is(mesh, "a", "operational")
        await sender.publish("app/a/x", b"2", 1)
        assert [one.payload for one in await again.messages(2)] == [b"probe", b"2"]


async def test_an_alternative_that_does_not_consent_is_not_asked() -> None:
    async with Mesh(app("a", 1, "b", "c"), app("b", 2, consents=["z"]), app("c", 3, consents=["a"])) as mesh:
        a, c = await served(mesh.at(1), "a"), await served(mesh.at(3), "c")
        sender = await mesh.at(1).client("shop")
        await sender.publish("app/a/x", b"1", 1)
        await a.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        assert users((await c.messages(1))[0])["mqmesh-failed-over"] == "a"
        of(mesh.at(1)).local["a"].declare_defunct()
        explained = of(mesh.at(2)).explain("a")
        await state_is(mesh, "a", "defunct")
        explained = of(mesh.at(2)).explain("a")
        assert explained is not None
        assert explained["goes_to"] == "c"
        assert [one["answer"] for one in explained["steps"]] == [
            "it is known to be in DEFUNCT",
            "it does not consent to messages of a",
            "takes it",
        ]


async def test_f21_an_alternative_that_has_the_message_by_its_own_subscription_gets_no_second_copy() -> None:
    async with Mesh(app("a", 1, "b", topics=["orders/#"]), app("b", 2)) as mesh:
        a, b = await mesh.at(1).client("a"), await mesh.at(2).client("b")
        await a.subscribe("orders/#", qos=1)
        await b.subscribe("orders/new", qos=1)
        sender = await mesh.at(1).client("shop")
        await until(lambda: mesh.at(1).broker.site.router.route(b"orders/new").mesh is not None)
        await sender.publish("orders/new", b"1", 1)
        assert (await b.messages(1))[0].payload == b"1"
        await a.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        await until(lambda: of(mesh.at(1)).failover.counts["succeeded"] == 1)
        await b.nothing()


async def test_f4_ordinary_subscriptions_fail_over_too() -> None:
    async with Mesh(app("a", 1, "b"), app("b", 2)) as mesh:
        a = await mesh.at(1).client("a")
        b = await served(mesh.at(2), "b")
        await a.subscribe("orders/#", qos=1)
        sender = await mesh.at(1).client("shop")
        await sender.publish("orders/new", b"1", 1)
        await a.messages(1, acknowledge=False)
        await mesh.at(1).later(1.1)
        (got,) = await b.messages(1)
        assert (got.topic, users(got)["mqmesh-failed-over"]) == ("orders/new", "a")


def test_two_deadlines_that_are_over_already() -> None:
    """uvloop has the first timer called soon, and its handle knows no time; the second deadline is earlier still."""
    uvloop = pytest.importorskip("uvloop")

    class Late:
        deadline: float | None = None

        def __init__(self, seconds: float) -> None:
            self._left, self._seconds, self.done = 1, seconds, False

        def next_deadline(self) -> float | None:
            self._left -= 1
            return asyncio.get_running_loop().time() - self._seconds if self._left >= 0 else None

        def due(self, now: float) -> None:
            self.done = True

    async def play() -> list[bool]:
        site = Site()
        site.broker.config.recipients = parse({"recipients": {}}).recipients
        async with site:
            recipients = of(site)
            late: list[Any] = [Late(1.0), Late(2.0)]
            for one in late:
                recipients.set_deadline(one)
            await until(lambda: all(one.done for one in late))
            return [one.done for one in late]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(play()) == [True, True]
