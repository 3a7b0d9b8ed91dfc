"""Queues over plain MQTT: PUBLISH puts, a subscription is a member, PUBACK is DONE (docs/queues.md, "Over MQTT")."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mqmesh.broker.queues import shell
from mqmesh.broker.queues.committer import Committer
from mqmesh.broker.queues.core.blocks import KEPT_RETURNS
from mqmesh.broker.queues.core.plan import ALL, plan_of
from mqmesh.broker.queues.core.rules import Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.turns import Steps
from mqmesh.mqtt.packets import Puback, Publish, Pubrec, Will
from mqmesh.mqtt.properties import Property
from mqmesh.store.sqlite import SqliteStore
from support.broker_site import Client, Site


def queues(folder: Path, **rules: Rules) -> QueueSettings:
    return QueueSettings({name.replace("_", "-"): one for name, one in rules.items()}, folder=folder / "queues", durability="os")


def user(**pairs: str) -> dict[int, object]:
    return {Property.USER_PROPERTY: [(f"mqmesh-{name}", value) for name, value in pairs.items()]}


def said(packet: Publish, name: str) -> list[str]:
    return [value for key, value in packet.properties.get(Property.USER_PROPERTY, []) if key == name]


async def put(client: Client, *payloads: bytes, queue: str = "orders", **more: object) -> None:
    for payload in payloads:
        assert await client.publish(f"$queue/{queue}", payload, qos=1, **more) == 0


async def test_the_first_free_member_gets_each_message_once(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a, b = await site.client("shop"), await site.client("a"), await site.client("b", version=4)
        await put(shop, b"1", b"2")  # before anybody is there
        assert [one.value for one in (await a.subscribe("$queue/orders", qos=2, identifier=7)).reasons] == [1]
        first = await a.messages(2)
        assert [(one.topic, one.payload) for one in first] == [("$queue/orders", b"1"), ("$queue/orders", b"2")]
        assert first[0].properties[Property.SUBSCRIPTION_IDENTIFIER] == [7]
        await b.subscribe("$queue/orders", qos=1)
        await put(shop, *(b"%d" % number for number in range(10)))
        await site.until(lambda: a.waiting() + b.waiting() == 10)
        found = await a.messages(a.waiting()) + await b.messages(b.waiting())
        assert sorted(one.payload for one in found) == [b"%d" % number for number in range(10)]
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        await site.until(lambda: queue.counts["done"] == 12)
        assert not queue.blocks


async def test_what_a_lost_member_had_goes_to_another_at_once(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a, b = await site.client("shop"), await site.client("a", clean=False, expiry=100), await site.client("b")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"1", b"2", b"3")
        taken = await a.messages(3, acknowledge=False)
        a.send(Puback(taken[1].packet_id))
        await a.nothing()
        await b.subscribe("$queue/orders", qos=1)
        await b.nothing()
        await a.cut()
        again = await b.messages(2)
        assert [one.payload for one in again] == [b"1", b"3"]
        assert [said(one, "mqmesh-deliveries") for one in again] == [["1"], ["1"]]
        back = await site.client("a", clean=False, expiry=100)
        assert back.connack is not None
        assert back.connack.session_present
        await back.nothing()
        await b.cut()
        await put(shop, b"4")
        assert (await back.messages(1))[0].payload == b"4"  # it is a member still


async def test_what_members_had_that_are_lost_at_once_is_given_to_none_of_them(tmp_path: Path) -> None:
    """Their ends have a turn each. Each message is given back once, and not by one lost member after the other."""
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, members = await site.client("shop"), [await site.client(f"m{number}") for number in range(20)]
        for member in members:
            await member.subscribe("$queue/orders", qos=1)
        await put(shop, *(b"%d" % number for number in range(100)))
        await site.until(lambda: sum(member.waiting() for member in members) == 100)
        connections = [site.broker.site.sessions.get(f"m{number}").connection for number in range(20)]  # type: ignore[union-attr]
        turns = site.broker.context.turns
        turns.wait(turns.ends, Steps(turns, iter(range(3)), "test"))  # so that none of them is ended at once
        for connection in connections:
            connection.connection_lost(ConnectionResetError())
        queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
        await site.until(lambda: site.broker.context.counters.clients == 1)
        assert queue.counts["returned"] == 100
        late = await site.client("late")
        await late.subscribe("$queue/orders", qos=1)
        assert len(await late.messages(100)) == 100


async def test_a_message_that_nobody_can_use_becomes_a_dead_letter(tmp_path: Path) -> None:
    rules = queues(tmp_path, orders=Rules(deliveries=2, dead_letters="dead"), dead=Rules())
    async with Site(queues=rules) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"poison", properties={Property.CONTENT_TYPE: "text/plain"})
        for _ in range(2):
            (one,) = await a.messages(1, acknowledge=False)
            a.send(Puback(one.packet_id, 0x80))
        await a.nothing()
        grave = await site.client("grave")
        await grave.subscribe("$queue/dead", qos=1)
        (dead,) = await grave.messages(1)
        assert dead.payload == b"poison"
        assert dead.properties[Property.CONTENT_TYPE] == "text/plain"
        assert said(dead, "mqmesh-dead-queue") == ["orders"]
        assert said(dead, "mqmesh-dead-position") == ["1"]
        assert said(dead, "mqmesh-dead-deliveries") == ["2"]
        assert said(dead, "mqmesh-dead-reason") == ["given to members 2 times"]
        await a.nothing()


async def test_unusable_is_a_reason_code(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"1")
        (one,) = await a.messages(1, acknowledge=False)
        a.send(Puback(one.packet_id, 0x99))
        await a.nothing()
        counts = site.broker.site.queues.store.queues["orders"].counts  # type: ignore[union-attr]
        assert (counts["unusable"], counts["done"], counts["returned"]) == (1, 0, 0)


async def test_everybody_or_a_combination(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, all=Rules(plan=ALL), some=Rules(plan=plan_of("a | b, c")))) as site:
        shop = await site.client("shop")
        clients = {name: await site.client(name) for name in "abc"}
        for client in clients.values():
            await client.subscribe("$queue/all", "$queue/some", qos=1)
        await put(shop, b"1", queue="all")
        assert [[one.payload for one in await client.messages(1)] for client in clients.values()] == [[b"1"]] * 3
        await put(shop, b"2", queue="some")
        assert (await clients["c"].messages(1))[0].payload == b"2"
        await site.until(lambda: clients["a"].waiting() + clients["b"].waiting() == 1)
        await put(shop, b"3", queue="some", properties=user(plan="c > a"))
        assert (await clients["c"].messages(1))[0].payload == b"3"


async def test_priority_delay_and_expiry(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await put(shop, b"low", properties=user(priority="1"))
        await put(shop, b"late", properties=user(delay="1h"))
        await put(shop, b"old", properties={Property.MESSAGE_EXPIRY_INTERVAL: 60})
        await put(shop, b"high", properties=user(priority="9"))
        await a.subscribe("$queue/orders", qos=1)
        found = await a.messages(3)
        assert [one.payload for one in found] == [b"high", b"old", b"low"]
        assert found[1].properties[Property.MESSAGE_EXPIRY_INTERVAL] in (59, 60)
        await a.nothing()


async def test_once_only_by_the_publishers_handle(tmp_path: Path) -> None:
    for life in range(2):
        async with Site(queues=queues(tmp_path, orders=Rules())) as site:
            shop = await site.client("shop")
            for repeat in range(2):
                shop.send(Publish("$queue/orders", b"1", 1, packet_id=9, properties=user(handle="invoice-1")))
                answer = await shop.expect(Puback, packet_id=9)
                pairs = answer.properties.get(Property.USER_PROPERTY, [])
                assert (("mqmesh-id", "orders:1") in pairs) == (("mqmesh-repeat", "1") in pairs) == bool(life or repeat)
            assert site.broker.site.queues.store.queues["orders"].waiting == 1  # type: ignore[union-attr]


async def test_qos_2_puts_once(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        for _ in range(2):
            shop.send(Publish("$queue/orders", b"1", 2, packet_id=5))
            await shop.expect(Pubrec, packet_id=5)
        await a.subscribe("$queue/orders", qos=1)
        await a.messages(1)
        await a.nothing()


@pytest.mark.parametrize("topic", ["$queue/orders", "orders/1"])
async def test_qos_2_is_put_if_its_identifier_survives(topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is killed when its store has the packet identifier, and before the log of the queues has a commit."""
    rules, data, killed = Rules(topics=("orders/#",)), tmp_path / "data", tmp_path / "killed"
    data.mkdir()
    message = Publish(topic, b"1", 2, packet_id=5)
    async with Site(queues=queues(data, orders=rules), store=SqliteStore(data / "store.db", False)) as site:
        shop = await site.client("shop", clean=False, expiry=1000)
        with monkeypatch.context() as patch:
            patch.setattr(Committer, "begin", lambda self: None)
            shop.send(message)
            queue = site.broker.site.queues.store.queues["orders"]  # type: ignore[union-attr]
            await site.until(lambda: queue.gathering > 0)
            await site.broker.site.persistence.settle(10.0)  # type: ignore[union-attr]
            shutil.copytree(data, killed)
    async with Site(queues=queues(killed, orders=rules), store=SqliteStore(killed / "store.db", False)) as site:
        shop, a = await site.client("shop", clean=False, expiry=1000), await site.client("a")
        message.dup = True
        shop.send(message)
        assert (await shop.expect(Pubrec, packet_id=5)).reason == 0
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(1)] == [b"1"]
        await a.nothing()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await put(shop, b"1", b"2", b"3")
        await a.subscribe("$queue/orders", qos=1)
        taken = await a.messages(3, acknowledge=False)
        a.send(Puback(taken[0].packet_id))
        await a.nothing()
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a = await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(2)] == [b"2", b"3"]
        await a.nothing()


async def test_what_is_refused_says_why(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(messages=1))) as site:
        shop, old = await site.client("shop"), await site.client("old", version=4)
        assert await shop.publish("$queue/others", b"1", qos=1) == 0x90
        await put(shop, b"1")
        shop.send(Publish("$queue/orders", b"2", 1, packet_id=5))
        answer = await shop.expect(Puback, packet_id=5, reason=0x97)
        assert answer.properties[Property.REASON_STRING] == "the queue holds 1 of 1 messages"
        for priority in ("10", "9" * 5000):
            shop.send(Publish("$queue/orders", b"2", 1, packet_id=6, properties=user(priority=priority)))
            answer = await shop.expect(Puback, packet_id=6, reason=0x83)
            assert answer.properties[Property.REASON_STRING] == "mqmesh-priority: give a number from 0 to 9"
        for wrong in ("$queue/others", "$queue/#", "$queue/+", "$share/g/$queue/orders"):
            assert [int(one) for one in (await shop.subscribe(wrong, qos=1)).reasons] == [0x8F], wrong
        old.send(Publish("$queue/orders", b"2", 1, packet_id=5))
        await old.closed()  # MQTT 3.1.1 has no word for it, and an acknowledgement would be a lie


async def test_acknowledgements_leave_in_order(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop = await site.client("shop")
        shop.send(*(Publish("$queue/orders" if number % 2 else "plain/topic", b"x", 1, packet_id=number) for number in range(1, 20)))
        assert [(await shop.expect(Puback)).packet_id for _ in range(1, 20)] == list(range(1, 20))


async def test_a_member_that_leaves_the_queue_gives_back_what_it_has(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a, b = await site.client("shop"), await site.client("a"), await site.client("b")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"1")
        await a.messages(1, acknowledge=False)
        await a.unsubscribe("$queue/orders")
        await b.subscribe("$queue/orders", qos=1)
        assert (await b.messages(1))[0].payload == b"1"
        assert not [place for place in site.broker.site.queues.places if place.client_id == "a"]  # type: ignore[union-attr]


async def test_topics_of_queues_are_as_any_other_without_queues() -> None:
    async with Site() as site:
        shop, a = await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        assert await shop.publish("$queue/orders", b"1", qos=1) == 0
        assert (await a.messages(1))[0].payload == b"1"


async def test_wills_and_messages_of_the_program_are_put(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        a, lost = await site.client("a"), await site.client("lost", will=Will("$queue/orders", b"will", 1))
        site.broker.publish("$queue/orders", b"own", 1)
        await lost.cut()
        await a.subscribe("$queue/orders", qos=1)
        assert [one.payload for one in await a.messages(2)] == [b"own", b"will"]
        with pytest.raises(ValueError, match="only its queues"):
            site.broker.publish("$queue/others", b"own", 1)


async def test_what_the_broker_says_to_members_cannot_be_said_by_a_publisher(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(requests=True), others=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        forged = [("mqmesh-deliveries", "9"), ("mqmesh-position", "77"), ("mqmesh-dead-queue", "orders"), ("mqmesh-dead-reason", "said so")]
        forged += [("mqmesh-id", "orders:1"), ("mqmesh-repeat", "1")]
        mine = [("colour", "red"), ("mqmesh-priority", "5"), ("colour", "blue")]
        await put(shop, b"1", properties={Property.USER_PROPERTY: [*forged, *mine, *forged], Property.CONTENT_TYPE: "text/plain"})
        await a.subscribe("$queue/orders", qos=1)
        (one,) = await a.messages(1)
        assert one.properties[Property.USER_PROPERTY] == [*mine, ("mqmesh-position", "1")]
        assert one.properties[Property.CONTENT_TYPE] == "text/plain"


async def test_a_message_that_dies_twice_tells_of_its_last_death(tmp_path: Path) -> None:
    rules = queues(tmp_path, a=Rules(deliveries=1, dead_letters="b"), b=Rules(deliveries=1, dead_letters="c"), c=Rules())
    async with Site(queues=rules) as site:
        shop, member = await site.client("shop"), await site.client("m")
        await member.subscribe("$queue/a", "$queue/b", qos=1)
        await put(shop, b"1", queue="a")
        for _ in range(2):
            (one,) = await member.messages(1, acknowledge=False)
            member.send(Puback(one.packet_id, 0x80))
        await member.subscribe("$queue/c", qos=1)
        (dead,) = await member.messages(1)
        assert said(dead, "mqmesh-dead-queue") == ["b"]
        assert len(said(dead, "mqmesh-dead-history")) == 1


async def test_long_names_do_not_hinder_a_death(tmp_path: Path) -> None:
    rules = queues(tmp_path, orders=Rules(deliveries=3, dead_letters="dead"), dead=Rules())
    async with Site(queues=rules) as site:
        shop, a = await site.client("s" * 65_535), await site.client("\u00e4" * 30_000)
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"poison")
        for _ in range(3):
            (one,) = await a.messages(1, acknowledge=False)
            a.send(Puback(one.packet_id, 0x80))
        grave = await site.client("grave")
        await grave.subscribe("$queue/dead", qos=1)
        (dead,) = await grave.messages(1)
        assert said(dead, "mqmesh-dead-deliveries") == ["3"]
        history = json.loads(said(dead, "mqmesh-dead-history")[0])
        assert [(len(who), what) for _, who, what in history] == [(256, "PUT")] + [(256, "returned")] * 3


async def test_a_message_that_is_returned_for_ever_does_not_fill_the_memory(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"1")
        for _ in range(2 * KEPT_RETURNS):
            (one,) = await a.messages(1, acknowledge=False)
            a.send(Puback(one.packet_id, 0x80))
        (one,) = await a.messages(1)
        assert said(one, "mqmesh-deliveries") == [str(2 * KEPT_RETURNS)]


@pytest.mark.parametrize("name", ["mqmesh-handle", "mqmesh-group", "JMSXGroupID"])
async def test_a_long_name_is_refused(tmp_path: Path, name: str) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop = await site.client("shop")
        shop.send(Publish("$queue/orders", b"1", 1, packet_id=9, properties={Property.USER_PROPERTY: [(name, "x" * 1025)]}))
        answer = await shop.expect(Puback, packet_id=9)
        assert answer.reason == 0x83
        assert answer.properties[Property.REASON_STRING] == f"{name}: give at most 1,024 bytes"


async def test_messages_that_are_not_alike_are_answered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        sent = [
            Publish("$queue/orders", b"%d" % at, 1, packet_id=at, properties=user(priority=f"{at % 3}", note=f"{at}"))
            for at in range(1, 31)
        ]
        shop.send(*sent)
        for one in sent:
            await shop.expect(Puback, packet_id=one.packet_id, reason=0)
        store = site.broker.site.queues.store.here["log"]  # type: ignore[union-attr]

        def fails(batch: object) -> None:
            raise OSError(28, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(store, "write", fails)
            shop.send(*sent)
            for one in sent:
                await shop.expect(Puback, packet_id=one.packet_id, reason=0x97)
        await a.subscribe("$queue/orders", qos=1)
        found = await a.messages(30)
        assert [(one.payload, said(one, "mqmesh-note")) for one in found] == [
            (b"%d" % at, [str(at)]) for rest in (2, 1, 0) for at in range(1, 31) if at % 3 == rest
        ]


async def test_what_expires_at_different_times_stays_in_order(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, member = await site.client("shop"), await site.client("member")
        lives = [{}, {Property.MESSAGE_EXPIRY_INTERVAL: 60}, {Property.MESSAGE_EXPIRY_INTERVAL: 3600}]
        sent = [
            Publish("$queue/orders", b"%d" % at, 1, packet_id=at, properties=lives[at % 3] | user(note=f"{at % 2}")) for at in range(1, 61)
        ]
        shop.send(*sent)
        for one in sent:
            await shop.expect(Puback, packet_id=one.packet_id)
        await member.subscribe("$queue/orders", qos=1)
        assert [int(one.payload) for one in await member.messages(60)] == list(range(1, 61))


async def test_members_of_two_versions_get_properties_and_what_is_left_of_a_life(tmp_path: Path) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules(plan=plan_of("a, b")))) as site:
        shop, a, b = await site.client("shop"), await site.client("a"), await site.client("b", version=4)
        for at in range(4):
            more = user(note=f"{at}") if at % 2 else {}
            await put(shop, b"x" * at, properties={Property.MESSAGE_EXPIRY_INTERVAL: 60, **more})
        await a.subscribe("$queue/orders", qos=1)
        await b.subscribe("$queue/orders", qos=1)
        found = await a.messages(4)
        assert [said(one, "mqmesh-note") for one in found] == [[], ["1"], [], ["3"]]
        assert {one.properties[Property.MESSAGE_EXPIRY_INTERVAL] for one in found} <= {59, 60}
        assert [one.payload for one in found] == [one.payload for one in await b.messages(4)] == [b"x" * at for at in range(4)]


async def test_what_comes_back_here_and_there_is_read_from_the_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a, b = await site.client("shop"), await site.client("a"), await site.client("b")
        shop.send(*[Publish("$queue/orders", b"%d" % at, 1, packet_id=at) for at in range(1, 21)])
        for at in range(1, 21):
            await shop.expect(Puback, packet_id=at)
        await a.subscribe("$queue/orders", qos=1)
        found = await a.messages(20, acknowledge=False)
        store = site.broker.site.queues.store.here["log"]  # type: ignore[union-attr]
        read, read_from_log = [], store.bodies._read
        monkeypatch.setattr(store.bodies, "_read", lambda block: read.append(block.first) or read_from_log(block))
        a.send(*[Puback(one.packet_id) for one in found[::2]])
        await a.nothing()
        await b.subscribe("$queue/orders", qos=1)
        await a.cut()
        assert [one.payload for one in await b.messages(10)] == [one.payload for one in found[1::2]]
        assert len(read) == len(set(read))


@pytest.mark.parametrize("puts", [True, False])
async def test_what_members_do_waits_for_the_next_commit_or_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puts: bool) -> None:
    monkeypatch.setattr(shell, "SOON", 100.0)
    async with Site(queues=queues(tmp_path, orders=Rules())) as site:
        shop, a = await site.client("shop"), await site.client("a")
        await a.subscribe("$queue/orders", qos=1)
        await put(shop, b"1", b"2")
        assert site.broker.site.queues is not None
        store = site.broker.site.queues.store
        await site.until(lambda: not store.busy)
        queue, commits = store.queues["orders"], sum(one.commits for one in store.committers)
        for number in (1, 2):
            await a.messages(1)
            await site.until(lambda done=number: queue.counts["done"] == done)
        assert (sum(one.commits for one in store.committers), len(queue.moves) > 1) == (commits, True)
        if puts:
            await put(shop, b"3")
        else:
            await site.later(101.0)
        await site.until(lambda: sum(one.commits for one in store.committers) == commits + 1)
        assert all(move.first == 3 for move in queue.moves)
