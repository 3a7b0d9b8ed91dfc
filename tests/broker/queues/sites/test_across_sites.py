"""Queues for clients of all sites: one home, PUT from everywhere, members everywhere (docs/queues.md, "Across sites")."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from mqmesh.broker.config import MeshSettings, PeerSettings
from mqmesh.broker.queues.checks.checks import Checks
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.queue import Queue
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.queues.shell import Queues
from mqmesh.broker.queues.sites import sites
from mqmesh.broker.queues.sites.wire import PutPost, What, encode
from mqmesh.client import AckMode, ConnectionFactory
from mqmesh.mqtt.errors import UsageError
from mqmesh.mqtt.packets import Puback, Publish
from mqmesh.mqtt.properties import Property, encode_properties
from mqmesh.store.memory import MemoryStore
from mqmesh.store.records import Batch
from support.broker_site import Client, Site, until

KEY = "0123456789abcdef"


class Mesh:
    """Brokers site1, site2, ... in a line. home: the site of the queues; the last one may be started anew."""

    def __init__(self, folder: Path, count: int = 2, home: int = 1, **rules: Rules) -> None:
        self.home = home
        self.settings = QueueSettings(dict(rules), folder=folder / "queues", durability="os")
        self.count = count
        self.stores = [MemoryStore() for _ in range(count)]
        self.sites: list[Site] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Mesh:
        for number in range(1, self.count + 1):
            await self.start(number)
        await self.ready()
        return self

    async def start(self, number: int) -> Site:
        """Start a broker, or start it anew with the store of its earlier life."""
        peers = [PeerSettings(self.sites[number - 2].broker.addresses[0])] if number > 1 else []
        settings = MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        queues = self.settings if number == self.home else None
        site = Site(mesh=(number, settings), store=self.stores[number - 1], queues=queues)
        await self._stack.enter_async_context(site)
        self.sites[number - 1 : number] = [site]
        return site

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)

    def at(self, number: int) -> Site:
        return self.sites[number - 1]

    def queue(self, name: str = "orders") -> Queue:
        return shell(self.at(self.home)).store.queues[name]

    async def ready(self) -> None:
        """Every broker knows the homes."""
        await until(lambda: all(shell(site).name_of(f"$queue/{name}") for site in self.sites for name in self.settings.rules))


def shell(site: Site) -> Queues:
    queues = site.broker.site.queues
    assert queues is not None
    return queues


def said(packet: Publish, name: str) -> list[str]:
    return [value for key, value in packet.properties.get(Property.USER_PROPERTY, []) if key == name]


async def put(client: Client, *payloads: bytes, queue: str = "orders", **more: object) -> None:
    for payload in payloads:
        assert await client.publish(f"$queue/{queue}", payload, qos=1, **more) == 0


async def test_a_message_from_another_site_is_put_once_and_in_order(tmp_path: Path) -> None:
    async with Mesh(tmp_path, 3, orders=Rules()) as mesh:
        shop, worker = await mesh.at(3).client("shop"), await mesh.at(1).client("worker")
        await put(shop, *(b"%d" % number for number in range(20)), properties={Property.CONTENT_TYPE: "text/plain"})
        await worker.subscribe("$queue/orders", qos=1)
        got = await worker.messages(20)
        assert [(one.topic, one.payload) for one in got] == [("$queue/orders", b"%d" % number) for number in range(20)]
        assert got[0].properties[Property.CONTENT_TYPE] == "text/plain"
        await until(lambda: mesh.queue().counts["done"] == 20)
        await until(lambda: not list(mesh.stores[0].values("queues")))  # no parcel is kept for longer than it takes


async def test_a_member_at_another_site_works_like_one_at_home(tmp_path: Path) -> None:
    async with Mesh(tmp_path, 3, orders=Rules(deliveries=2, dead_letters="dead"), dead=Rules()) as mesh:
        shop, far = await mesh.at(2).client("shop"), await mesh.at(3).client("far")
        await far.subscribe("$queue/orders", qos=2, identifier=7)
        await put(shop, b"1", b"22", b"poison")
        got = await far.messages(3, acknowledge=False)
        assert [one.payload for one in got] == [b"1", b"22", b"poison"]
        assert got[0].properties[Property.SUBSCRIPTION_IDENTIFIER] == [7]
        assert got[0].qos == 1
        far.send(Puback(got[0].packet_id))
        far.send(Puback(got[1].packet_id, 0x99))
        far.send(Puback(got[2].packet_id, 0x80))
        (again,) = await far.messages(1, acknowledge=False)
        assert (again.payload, said(again, "mqmesh-deliveries")) == (b"poison", ["1"])
        far.send(Puback(again.packet_id, 0x80))
        await far.subscribe("$queue/dead", qos=1)
        (dead,) = await far.messages(1)
        assert (dead.payload, said(dead, "mqmesh-dead-queue")) == (b"poison", ["orders"])
        counts = mesh.queue().counts
        assert (counts["done"], counts["unusable"], counts["returned"]) == (1, 1, 2)


async def test_a_message_that_expires_while_it_waits_for_room_at_the_member_is_expired(tmp_path: Path) -> None:
    async with Mesh(tmp_path, 2, orders=Rules(), others=Rules()) as mesh:
        shop, far = await mesh.at(1).client("shop"), await mesh.at(2).client("far", receive_maximum=1)
        await far.subscribe("$queue/others", qos=1)
        await far.subscribe("$queue/orders", qos=1)
        await put(shop, b"first", queue="others")
        (first,) = await far.messages(1, acknowledge=False)
        await put(shop, b"short", properties={Property.MESSAGE_EXPIRY_INTERVAL: 60})
        seat = shell(mesh.at(2)).sites._seats["orders"]["far"]
        await until(lambda: bool(seat._waiting))
        seat._waiting[0].run.received -= 61
        far.send(Puback(first.packet_id))
        await until(lambda: not mesh.queue().held)
        assert [mesh.queue().counts[one] for one in ("expired", "unusable", "done")] == [1, 0, 0]


async def test_time_in_custody_counts(tmp_path: Path) -> None:
    """[MQTT-3.3.2-6]: what has expired there never comes, and the others live for what is left."""
    async with Mesh(tmp_path, home=2, orders=Rules()) as mesh:
        shop = await mesh.at(1).client("shop")
        await mesh.at(2).broker.stop()
        for seconds in (20, 100):
            await put(shop, b"%d" % seconds, properties={Property.MESSAGE_EXPIRY_INTERVAL: seconds})
        await mesh.at(1).later(50)
        home = await mesh.start(2)
        worker = await home.client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        (got,) = await worker.messages(1)
        assert got.payload == b"100"
        assert 40 <= got.properties[Property.MESSAGE_EXPIRY_INTERVAL] <= 50
        await until(lambda: mesh.queue().counts["done"] == 1)
        assert mesh.queue().counts["put"] == 1


async def test_members_of_two_sites_share_and_what_a_lost_one_had_goes_to_the_other_site(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        shop, near, far = await mesh.at(1).client("shop"), await mesh.at(1).client("near"), await mesh.at(2).client("far")
        for one in (near, far):
            await one.subscribe("$queue/orders", qos=1)
        await until(lambda: len(mesh.queue().members) == 2)
        await put(shop, *(b"%d" % number for number in range(10)))
        await until(lambda: near.waiting() + far.waiting() == 10)
        assert near.waiting()
        assert far.waiting()
        had = [one.payload for one in await far.messages(far.waiting(), acknowledge=False)]
        await near.messages(near.waiting())
        await far.cut()
        again = await near.messages(len(had))
        assert [one.payload for one in again] == had
        assert {*said(again[0], "mqmesh-deliveries")} == {"1"}


async def test_a_plan_for_everybody_counts_members_of_all_sites(tmp_path: Path) -> None:
    async with Mesh(tmp_path, 3, news=Rules(plan=ALL)) as mesh:
        shop = await mesh.at(2).client("shop")
        clients = [await mesh.at(number).client(f"at{number}") for number in (1, 2, 3)]
        for one in clients:
            await one.subscribe("$queue/news", qos=1)
        await until(lambda: set(mesh.queue("news").subscribers) == {"at1", "at2", "at3"})
        await put(shop, b"1", queue="news")
        assert [[one.payload for one in await client.messages(1)] for client in clients] == [[b"1"]] * 3
        await clients[2].unsubscribe("$queue/news")
        await until(lambda: set(mesh.queue("news").subscribers) == {"at1", "at2"})


async def test_two_clients_of_the_same_name_are_two_members(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules(prefetch=1)) as mesh:
        shop, one, two = await mesh.at(1).client("shop"), await mesh.at(1).client("same"), await mesh.at(2).client("same")
        await one.subscribe("$queue/orders", qos=1)
        await two.subscribe("$queue/orders", qos=1)
        await until(lambda: set(mesh.queue().members) == {"same", "same@2"})
        await put(shop, b"1", b"2")
        assert {(await client.messages(1))[0].payload for client in (one, two)} == {b"1", b"2"}


async def test_a_full_queue_refuses_at_other_sites_and_what_was_taken_waits(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules(messages=2)) as mesh:
        shop, worker = await mesh.at(2).client("shop"), await mesh.at(1).client("worker")
        await put(shop, b"1", b"2", b"3")  # which its site takes: it does not know yet
        await until(lambda: shell(mesh.at(1)).sites.arrivals.waits("orders"))
        await mesh.at(1).later(1)
        await until(lambda: shell(mesh.at(2)).sites.homes.full("orders"))
        assert await shop.publish("$queue/orders", b"4", qos=1) == 0x97
        await worker.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await worker.messages(2)] == [b"1", b"2"]
        await mesh.at(1).later(1)
        assert [one.payload for one in await worker.messages(1)] == [b"3"]
        await mesh.at(1).later(1)
        await until(lambda: not shell(mesh.at(2)).sites.homes.full("orders"))
        await put(shop, b"4")


async def test_a_topic_of_no_queue_is_refused_or_is_any_other(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        near, far = await mesh.at(1).client("near"), await mesh.at(2).client("far")
        assert await near.publish("$queue/none", b"1", qos=1) == 0x90
        assert [one.value for one in (await near.subscribe("$queue/none", qos=1)).reasons] == [0x8F]
        assert [one.value for one in (await far.subscribe("$queue/none", qos=2)).reasons] == [2]
        other = await mesh.at(2).client("other")
        assert await other.publish("$queue/none", b"1", qos=1) == 0
        assert (await far.messages(1))[0].payload == b"1"
        assert [one.value for one in (await far.subscribe("$share/g/$queue/orders", qos=1)).reasons] == [0x8F]
        await far.subscribe("$mqmesh/queues/answer")
        far.send(Publish("$mqmesh/queues", b'{"do": "show", "name": "orders"}', 0))
        assert json.loads((await far.messages(1))[0].payload)["queue"]["site"] == "site1"


async def test_the_home_starts_anew_and_members_elsewhere_go_on(tmp_path: Path) -> None:
    async with Mesh(tmp_path, home=2, orders=Rules()) as mesh:
        shop, far = await mesh.at(1).client("shop"), await mesh.at(1).client("far")
        await far.subscribe("$queue/orders", qos=1)
        await put(shop, b"1", b"2")
        first, _ = await far.messages(2, acknowledge=False)
        far.send(Puback(first.packet_id))
        await until(lambda: mesh.queue().counts["done"] == 1)
        await mesh.at(2).broker.stop()
        await until(lambda: not mesh.at(1).broker.site.mesh.node.live())  # type: ignore[union-attr]
        await put(shop, b"3")  # it waits in custody
        await mesh.start(2)
        got = await far.messages(2)
        assert sorted(one.payload for one in got) == [b"2", b"3"]
        await until(lambda: not mesh.queue().blocks)


async def test_a_site_that_starts_anew_has_no_members_until_they_come(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        shop, far = await mesh.at(1).client("shop"), await mesh.at(2).client("far", clean=False, expiry=1000)
        await far.subscribe("$queue/orders", qos=1)
        await put(shop, b"1")
        await far.messages(1, acknowledge=False)
        await mesh.at(2).broker.stop()
        near = await mesh.at(1).client("near")
        await near.subscribe("$queue/orders", qos=1)
        assert (await near.messages(1))[0].payload == b"1"
        await near.unsubscribe("$queue/orders")
        site = await mesh.start(2)
        await mesh.ready()
        await put(shop, b"2")
        again = await site.client("far", clean=False, expiry=1000)
        assert again.connack is not None
        assert again.connack.session_present
        assert (await again.messages(1))[0].payload == b"2"


async def test_what_the_store_has_and_the_log_lacks_is_put_after_a_crash(tmp_path: Path) -> None:
    """The home was killed after the commit of its store, and before or after that of the queues' log."""
    lost = PutPost(b"L" * 12, "orders", "shop", "", b"", None, [b"lost"])
    had = PutPost(b"H" * 12, "orders", "shop", "", b"", None, [b"had"])
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        shell(mesh.at(1)).sites.arrivals.arrive(encode(had))
        mesh.at(1).broker.context.flush()
        await until(lambda: mesh.queue().counts["put"] == 1)
    store = mesh.stores[0]
    kept = Batch(1)
    kept.values["queues"] = {b"p" + number.to_bytes(8, "big"): encode(post) for number, post in enumerate((lost, had), 1)}
    store.open()
    store.commit(kept)
    store.close()
    mesh = Mesh(tmp_path, orders=Rules())
    mesh.stores[0] = store
    async with mesh:
        worker = await mesh.at(1).client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        assert sorted(one.payload for one in await worker.messages(2)) == [b"had", b"lost"]
        await until(lambda: not list(store.values("queues")))


async def test_messages_of_a_home_that_is_forgotten_wait_for_another(tmp_path: Path) -> None:
    async with Mesh(tmp_path, home=2, orders=Rules()) as mesh:
        shop = await mesh.at(1).client("shop")
        await mesh.at(2).broker.stop()
        node = mesh.at(1).broker.site.mesh.node  # type: ignore[union-attr]
        await until(lambda: not node.live())
        await put(shop, b"1", b"2")
        node.forget(2, mesh.at(1).broker.context.refresh())
        mesh.at(1).broker.flush()
        await until(lambda: len([key for key, _ in mesh.stores[0].values("queues") if key[:1] == b"r"]) == 2)
        mesh.stores[1] = MemoryStore()
        await mesh.start(2)
        worker = await mesh.at(2).client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        assert sorted(one.payload for one in await worker.messages(2)) == [b"1", b"2"]
        await until(lambda: not [key for key, _ in mesh.stores[0].values("queues") if key[:1] == b"r"])


async def test_what_a_member_elsewhere_says_by_request_is_confirmed_by_the_home(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules(requests=True)) as mesh:
        shop, far, other = await mesh.at(2).client("shop"), await mesh.at(2).client("far"), await mesh.at(1).client("far")
        await far.subscribe("$mqmesh/queues/answer")
        await other.subscribe("$queue/orders", qos=1)
        await far.subscribe("$queue/orders", qos=1)
        await put(shop, b"1", b"2", b"3")
        await until(lambda: far.waiting() + other.waiting() == 3)
        got = await far.messages(far.waiting())
        first = int(said(got[0], "mqmesh-position")[0])

        async def ask(client: Client, **asked: object) -> dict[str, object]:
            await client.publish("$mqmesh/queues", json.dumps({"name": "orders", **asked}).encode())
            found: dict[str, object] = json.loads((await client.messages(1))[0].payload)
            return found

        assert await ask(far, do="done", position=first) == {"queue": "orders", "first": first, "last": first, "state": "done"}
        assert mesh.queue().counts["done"] == 1
        assert "does not have message" in str((await ask(far, do="done", position=first))["error"])
        await shop.subscribe("$mqmesh/queues/answer")
        assert "not yours" in str((await ask(far, do="withdraw", position=2 if first != 2 else 3))["error"])
        found = await ask(shop, do="withdraw", position=2 if first != 2 else 3)
        assert "message" in found


async def test_q11_a_message_of_another_site_that_fails_is_a_dead_letter(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, orders=Rules(dead_letters="dead"), dead=Rules())
    mesh.settings.checks["orders"] = Checks(largest=3, publishers=("shop",))
    async with mesh:
        shop, mallory = await mesh.at(2).client("shop"), await mesh.at(2).client("mallory")
        worker = await mesh.at(1).client("worker")
        await worker.subscribe("$queue/orders", "$queue/dead", qos=1)
        shop.send(*[Publish("$queue/orders", b"x" * size, 1, packet_id=size) for size in (2, 4, 3)])  # its site takes them into custody
        assert [(await shop.expect(Puback)).reason for _ in range(3)] == [0, 0, 0]
        got = await worker.messages(3)
        assert sorted((one.topic, one.payload) for one in got) == [
            ("$queue/dead", b"xxxx"),
            ("$queue/orders", b"xx"),
            ("$queue/orders", b"xxx"),
        ]
        await put(mallory, b"1")
        (dead,) = await worker.messages(1)
        assert (dead.topic, dead.payload) == ("$queue/dead", b"1")
        assert said(dead, "mqmesh-dead-reason") == ["mallory may not put messages into this queue"]
        await until(lambda: not list(mesh.stores[0].values("queues")))
        assert (mesh.queue().counts["refused"], mesh.queue().counts["dead"]) == (2, 2)
        assert not shell(mesh.at(1)).store.queues["orders"].blocks


async def test_the_api_at_another_site_rolls_back_and_confirms(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules(requests=True)) as mesh:
        factory = ConnectionFactory(str(mesh.at(2).broker.addresses[0]), client_id="clerk")

        def program() -> list[tuple[str, int]]:
            found = []
            with factory.create_context(AckMode.SESSION_TRANSACTED) as context:
                orders = context.create_queue("orders")
                for word in ("1", "2"):
                    context.create_producer().send(orders, word)
                context.commit()
                consumer = context.create_consumer(orders)
                for end in (context.rollback, context.commit):
                    for _ in range(2):
                        message = consumer.receive()
                        assert message is not None
                        found.append((message.body, message.delivery_count))
                    end()
                with context.create_browser(orders) as browser:
                    assert not list(browser)
            return found

        found = await asyncio.to_thread(program)
        assert sorted(found) == [("1", 1), ("1", 2), ("2", 1), ("2", 2)]
        assert mesh.queue().counts["done"] == 2, "when commit returned"


async def two_homes(folder: Path, stack: AsyncExitStack) -> list[Site]:
    """Site 1 is the home of inbound, site 2 of outbound; they are in one mesh."""
    sites: list[Site] = []
    for number, name in ((1, "inbound"), (2, "outbound")):
        peers = [PeerSettings(sites[0].broker.addresses[0])] if sites else []
        mesh = number, MeshSettings("m", KEY, peers=peers, silence=1000, start_wait=0.0)
        queues = QueueSettings({name: Rules()}, folder=folder / f"queues-{number}", durability="os")
        sites.append(await stack.enter_async_context(Site(mesh=mesh, store=MemoryStore(), queues=queues)))
    await until(lambda: all(shell(site).name_of(f"$queue/{name}") for site in sites for name in ("inbound", "outbound")))
    return sites


async def test_a_child_at_another_site_is_revealed_when_its_parents_are_done(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = await two_homes(tmp_path, stack)
        shop, worker, credit = await first.client("shop"), await first.client("worker"), await second.client("credit")
        await put(shop, b"1", b"2", queue="inbound")
        await worker.subscribe("$queue/inbound", qos=1)
        await worker.messages(2, acknowledge=False)
        of = {Property.USER_PROPERTY: [("mqmesh-parents", "inbound:1,inbound:2")]}
        assert await worker.publish("$queue/outbound", b"child", qos=1, properties=of) == 0
        await credit.subscribe("$queue/outbound", qos=1)
        (child,) = await credit.messages(1)
        assert (child.payload, said(child, "mqmesh-lineage")) == (b"child", ["inbound:1,inbound:2"])
        assert shell(first).store.queues["inbound"].counts["done"] == 2


async def test_a_child_of_somebody_who_has_lost_the_parent_is_deleted_at_the_other_site(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = await two_homes(tmp_path, stack)
        shop, worker, forger = await first.client("shop"), await first.client("worker"), await second.client("forger")
        await put(shop, b"1", queue="inbound")
        await worker.subscribe("$queue/inbound", qos=1)
        await worker.messages(1, acknowledge=False)
        of = {Property.USER_PROPERTY: [("mqmesh-parents", "inbound:1")]}
        assert await forger.publish("$queue/outbound", b"child", qos=1, properties=of) == 0
        await until(lambda: shell(second).workflow.counts["deleted"] == 1)
        assert not shell(second).store.queues["outbound"].blocks
        assert shell(first).store.queues["inbound"].held == 1  # the worker has it still


async def test_a_parcel_that_fits_nowhere_does_not_hold_those_after_it(tmp_path: Path) -> None:
    """Three messages in one for a queue of two, a plan with too many groups, parents that nobody has: each could wait for ever."""
    async with Mesh(tmp_path, orders=Rules(messages=2)) as mesh:
        arrivals = shell(mesh.at(1)).sites.arrivals
        worker = await mesh.at(1).client("worker")
        await worker.subscribe("$queue/orders", qos=1)

        def arrive(number: int, *payloads: bytes, **pairs: str) -> None:
            block = (
                encode_properties({Property.USER_PROPERTY: [(f"mqmesh-{key}", value) for key, value in pairs.items()]}) if pairs else b""
            )
            arrivals.arrive(encode(PutPost(b"%012d" % number, "orders", "shop", "", block, None, list(payloads))))
            mesh.at(1).broker.context.flush()

        arrive(1, b"1", b"2", b"3")
        assert [one.payload for one in await worker.messages(3)] == [b"1", b"2", b"3"]
        mesh.queue().unknown = lambda plan: "too many groups"  # type: ignore[method-assign]
        arrive(2, b"4", plan="a | b")
        arrive(3, b"child", parents="orders:99")
        arrive(4, b"5")
        assert [one.payload for one in await worker.messages(2)] == [b"4", b"5"]
        assert not arrivals.waits("orders")
        await until(lambda: not arrivals.unsettled)


async def test_parcels_keep_their_order_over_a_restart(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules(messages=1)) as mesh:
        for number in range(300):
            body = encode(PutPost(b"%012d" % (977 * number % 1000), "orders", "shop", "", b"", None, [b"%d" % number]))
            shell(mesh.at(1)).sites.arrivals.arrive(body)
        mesh.at(1).broker.context.flush()
        await until(lambda: mesh.queue().waiting == 1)
        await until(lambda: not shell(mesh.at(1)).sites.arrivals.unsettled)  # what waits for room does not keep segments
    again = Mesh(tmp_path, orders=Rules())
    again.stores[0] = mesh.stores[0]
    async with again:
        worker = await again.at(1).client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await worker.messages(300)] == [b"%d" % number for number in range(300)]


async def test_what_a_site_says_of_messages_is_bounded_by_what_its_member_has(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        shop, far = await mesh.at(1).client("shop"), await mesh.at(2).client("far")
        await far.subscribe("$queue/orders", qos=1)
        await put(shop, b"1", b"2")
        await far.messages(2, acknowledge=False)
        (guest,) = shell(mesh.at(1)).sites._guests.values()
        guest.said(What.ACKNOWLEDGED, 0, 2**60, 1)  # at once: it does not count from one to the other
        assert mesh.queue().counts["done"] == 2


async def test_requests_of_one_client_to_other_sites_are_bounded(tmp_path: Path) -> None:
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        asking = shell(mesh.at(2)).sites.asking
        for _ in range(16):
            asking.ask(1, "far", b"{}", lambda words: None)
        with pytest.raises(UsageError, match="16 requests of yours"):
            asking.ask(1, "far", b"{}", lambda words: None)
        asking.ask(1, "other", b"{}", lambda words: None)
        mesh.at(2).broker.context.flush()
        await until(lambda: not asking._each)


async def test_parcels_go_on_to_the_home_that_the_queue_has_now_and_are_put_once(tmp_path: Path) -> None:
    async with Mesh(tmp_path, 2, home=2, orders=Rules()) as mesh:
        known = PutPost(b"k" * 12, "orders", "shop", "", b"", None, [b"known"])
        fresh = PutPost(b"f" * 12, "orders", "shop", "", b"", None, [b"fresh"])
        log = shell(mesh.at(2)).store.of(mesh.queue())
        log.parcels.add(known.parcel)  # an earlier home has put it
        was_home = shell(mesh.at(1)).sites
        for post in (known, fresh):
            was_home.arrivals.arrive(encode(post))
        mesh.at(1).broker.context.flush()
        await until(lambda: was_home.arrivals.names == ["orders"])
        was_home.tick()
        mesh.at(1).broker.context.flush()
        worker = await mesh.at(1).client("worker")
        await worker.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await worker.messages(1)] == [b"fresh"]
        await until(lambda: mesh.queue().counts["done"] == 1)
        assert mesh.queue().counts["put"] == 1
        await until(lambda: not [key for store in mesh.stores for key, _ in store.values("queues") if key[:1] == b"p"])


async def test_very_many_members_of_a_site_that_is_gone_go_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "AT_ONCE", 3)
    async with Mesh(tmp_path, orders=Rules()) as mesh:
        clients = [await mesh.at(2).client(f"far{number}") for number in range(10)]
        for client in clients:
            await client.subscribe("$queue/orders", qos=1)
        at_home = shell(mesh.at(1)).sites
        await until(lambda: len(at_home._guests) == 10)
        await put(await mesh.at(1).client("shop"), *[b"x"] * 10)
        for client in clients:
            await client.messages(1, acknowledge=False)
        at_home._drop(2)
        assert len(at_home._guests) == 7
        await until(lambda: not at_home._guests)
        assert mesh.queue().held == 0
        assert mesh.queue().waiting == 10
