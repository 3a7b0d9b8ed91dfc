"""Sessions: what a client finds again, for how long, and in which order it is repeated."""

from __future__ import annotations

import pytest
from mqmesh.broker.ledger import QUEUED, ROUTES, Account
from mqmesh.mqtt.packets import Connack, Connect, Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.store.memory import MemoryStore
from support.broker_site import Site, until

FOREVER = 0xFFFFFFFF


@pytest.mark.any_loop
@pytest.mark.parametrize("version", [4, 5])
async def test_a_persistent_session_keeps_subscriptions_and_messages(version):
    async with Site() as site:
        client = await site.client("c", version, clean=False, expiry=FOREVER)
        assert not client.connack.session_present
        await client.subscribe("t", qos=2)
        await client.leave()
        publisher = await site.client("p")
        for qos in (0, 1, 2):
            await publisher.publish("t", b"%d" % qos, qos)
        client = await site.client("c", version, clean=False, expiry=FOREVER)
        assert client.connack.session_present
        assert [(message.payload, message.qos, message.dup) for message in await client.messages(2)] == [(b"1", 1, False), (b"2", 2, False)]
        await publisher.publish("t", b"3", 1)
        await client.messages(1)
        await client.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_clean_start_forgets_everything(version):
    async with Site() as site:
        client = await site.client("c", version, clean=False, expiry=FOREVER)
        await client.subscribe("t", "$share/g/u", qos=1)
        await client.cut()
        publisher = await site.client("p")
        assert await publisher.publish("t", b"", 1) == 0
        client = await site.client("c", version, clean=True)
        assert not client.connack.session_present
        assert await publisher.publish("t", b"", 1) == Reason.NO_MATCHING_SUBSCRIBERS
        await client.nothing()
        assert site.broker.context.ledger.held[QUEUED] == 0
        assert site.broker.site.router.subscriptions == 0
        await client.cut()
        await site.gone("c")
        assert site.broker.site.sessions.get("c") is None
        assert not (await site.client("c", version, clean=False)).connack.session_present


async def test_a_session_ends_when_its_expiry_is_over():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=10)
        await client.subscribe("t", qos=1)
        await client.cut()
        await site.gone("c")
        await site.later(9)
        assert site.broker.site.sessions.get("c") is not None
        await site.later(2)
        assert site.broker.site.sessions.get("c") is None
        assert site.broker.context.counters.clients_expired == 1
        assert site.broker.site.router.subscriptions == 0


async def test_a_client_that_comes_back_stops_the_expiry():
    async with Site() as site:
        for _ in range(5):
            client = await site.client("c", clean=False, expiry=10)
            await client.cut()
            await site.gone("c")
            await site.later(6)
        assert (await site.client("c", clean=False, expiry=10)).connack.session_present


async def test_the_server_may_grant_less():
    async with Site(session_expiry_maximum=60) as site:
        for asked, said in ((30, None), (60, None), (61, 60), (FOREVER, 60)):
            client = await site.client(f"c{asked}", clean=False, expiry=asked)
            assert client.connack.properties.get(Property.SESSION_EXPIRY_INTERVAL) == said
        old = await site.client("old", 4, clean=False)
        await old.cut()
        await site.gone("old")
        await site.later(61)
        assert site.broker.site.sessions.get("old") is None


async def test_disconnect_may_change_the_expiry():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100)
        await client.leave(properties={Property.SESSION_EXPIRY_INTERVAL: 0})
        assert site.broker.site.sessions.get("c") is None
        client = await site.client("c", clean=False, expiry=1)
        await client.leave(properties={Property.SESSION_EXPIRY_INTERVAL: 1000})
        await site.later(900)
        assert site.broker.site.sessions.get("c") is not None
        await site.later(200)
        assert site.broker.site.sessions.get("c") is None


async def test_disconnect_must_not_raise_the_expiry_from_0():
    async with Site() as site:
        client = await site.client("c")
        client.send(Disconnect(properties={Property.SESSION_EXPIRY_INTERVAL: 5}))
        await client.closed(Reason.PROTOCOL_ERROR)
        assert site.broker.site.sessions.get("c") is None


@pytest.mark.any_loop
@pytest.mark.parametrize("second", [4, 5])
@pytest.mark.parametrize("first", [4, 5])
async def test_a_second_connection_takes_the_session_over(first, second):
    async with Site() as site:
        old = await site.client("c", first, clean=False, expiry=FOREVER)
        await old.subscribe("t", qos=1)
        new = await site.client("c", second, clean=False, expiry=FOREVER)
        assert new.connack.session_present
        await old.closed(Reason.SESSION_TAKEN_OVER if first == 5 else None)
        await (await site.client("p")).publish("t", b"x", 1)
        await new.messages(1)
        await new.cut()
        await site.gone("c")
        assert site.broker.site.sessions.get("c") is not None


async def test_a_clean_takeover_ends_the_old_session():
    async with Site() as site:
        old = await site.client("c", clean=False, expiry=FOREVER)
        await old.subscribe("t", qos=1)
        new = await site.client("c", clean=True)
        assert not new.connack.session_present
        await old.closed(Reason.SESSION_TAKEN_OVER)
        await (await site.client("p")).publish("t", b"x", 1)
        await new.nothing()


@pytest.mark.parametrize("again", [4, 5])
@pytest.mark.parametrize("version", [4, 5])
async def test_what_is_unacknowledged_is_sent_again_in_order_with_its_identifiers(version, again):
    async with Site() as site:
        client = await site.client("c", version, clean=False, expiry=FOREVER)
        await client.subscribe("t", qos=2)
        publisher = await site.client("p")
        for n in range(6):
            publisher.send(Publish("t", b"%d" % n, 1 + n % 2, packet_id=n + 1))
        sent = await client.messages(6, acknowledge=False)
        ids = {message.payload: message.packet_id for message in sent}
        client.send(Puback(ids[b"2"]), Pubrec(ids[b"3"]), Pubrec(ids[b"1"]))
        await client.expect(Pubrel, packet_id=ids[b"3"])
        await client.expect(Pubrel, packet_id=ids[b"1"])
        await client.cut()
        await site.gone("c")
        publisher.send(Publish("t", b"later", 1, packet_id=99))
        await site.until(lambda: site.broker.site.sessions.get("c").queued == 1)
        client = await site.client("c", again, clean=False, expiry=FOREVER)
        await client.expect(Pubrel, packet_id=ids[b"3"])  # in the order of the PUBRECs
        await client.expect(Pubrel, packet_id=ids[b"1"])
        for payload in (b"0", b"4", b"5"):
            await client.expect(Publish, payload=payload, packet_id=ids[payload], dup=True, qos=1 + int(payload) % 2)
        late = await client.expect(Publish, payload=b"later", dup=False)
        assert late.packet_id not in ids.values() or ids[b"2"] == late.packet_id
        client.send(Pubcomp(ids[b"3"]), Pubcomp(ids[b"1"]), Puback(ids[b"0"]), Puback(ids[b"4"]), Pubrec(ids[b"5"]), Puback(late.packet_id))
        await client.expect(Pubrel, packet_id=ids[b"5"])
        client.send(Pubcomp(ids[b"5"]))
        await client.nothing()
        session = site.broker.site.sessions.get("c")
        assert (session.outbound.in_flight, session.outbound.bytes, site.broker.context.ledger.held[QUEUED]) == (0, 0, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
async def test_the_clients_receive_maximum_holds_also_on_resume(limit):
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=FOREVER)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(20)])
        await client.messages(20, acknowledge=False)
        await client.cut()
        await site.gone("c")
        publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(20, 30)])
        await publisher.expect(Puback)
        client = await site.client("c", clean=False, expiry=FOREVER, receive_maximum=limit)
        taken = []
        while len(taken) < 30:
            batch = [await client.expect(Publish) for _ in range(min(limit, 30 - len(taken)))]
            await client.nothing()
            taken += [message.payload for message in batch]
            assert all(message.dup == (int(message.payload) < 20) for message in batch)
            client.send(*[Puback(message.packet_id) for message in batch])
        assert taken == [b"%d" % n for n in range(30)]
        await client.nothing()
        assert site.broker.site.sessions.get("c").outbound.in_flight == 0


async def test_receive_maximum_counts_qos_2_until_its_end():
    async with Site() as site:
        client = await site.client("c", receive_maximum=2)
        await client.subscribe("t", qos=2)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 2, packet_id=n + 1) for n in range(4)])
        first, second = await client.messages(2, acknowledge=False)
        client.send(Pubrec(first.packet_id))
        await client.expect(Pubrel)
        await client.nothing()
        client.send(Pubcomp(first.packet_id))
        await client.expect(Publish, payload=b"2")
        client.send(Pubrec(second.packet_id, Reason.UNSPECIFIED_ERROR))
        await client.expect(Publish, payload=b"3")


async def test_an_acknowledgement_of_what_is_still_to_be_sent_again():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=FOREVER)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        publisher.send(*[Publish("t", b"%d" % n, 1, packet_id=n + 1) for n in range(5)])
        ids = [message.packet_id for message in await client.messages(5, acknowledge=False)]
        await client.cut()
        await site.gone("c")
        client = await site.client("c", clean=False, expiry=FOREVER, receive_maximum=1)
        await client.expect(Publish, packet_id=ids[0])
        client.send(Puback(ids[2]), Puback(ids[0]))
        for n in (1, 3, 4):
            await client.expect(Publish, packet_id=ids[n], payload=b"%d" % n, dup=True)
            client.send(Puback(ids[n]))
        await client.nothing()
        assert site.broker.site.sessions.get("c").outbound.in_flight == 0


async def test_a_qos_2_publisher_finds_its_handshake_again():
    async with Site() as site:
        subscriber = await site.client("s")
        await subscriber.subscribe("t", qos=2)
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        publisher.send(Publish("t", b"once", 2, packet_id=7))
        await publisher.expect(Pubrec)
        await publisher.cut()
        publisher = await site.client("p", clean=False, expiry=FOREVER)
        publisher.send(Publish("t", b"once", 2, dup=True, packet_id=7))
        await publisher.expect(Pubrec, packet_id=7, reason=0)
        publisher.send(Pubrel(7))
        await publisher.expect(Pubcomp, reason=0)
        await subscriber.messages(1)
        await subscriber.nothing()


async def test_many_messages_wait_and_come_in_order():
    async with Site(in_flight=50) as site:
        client = await site.client("c", 4, clean=False)
        await client.subscribe("t/#", qos=2)
        await client.leave()
        publisher = await site.client("p")
        for n in range(1000):
            publisher.send(Publish(f"t/{n % 3}", b"%d" % n, 1 + n % 2, packet_id=n + 1))
        await site.until(lambda: site.broker.site.sessions.get("c").queued == 1000)
        client = await site.client("c", 4, clean=False)
        assert [message.payload for message in await client.messages(1000)] == [b"%d" % n for n in range(1000)]
        session = site.broker.site.sessions.get("c")
        await client.nothing()
        assert (session.queued, session.queued_bytes, session.outbound.bytes, site.broker.context.ledger.held[QUEUED]) == (0, 0, 0, 0)


async def test_subscriptions_change_while_messages_wait():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=FOREVER, receive_maximum=1)
        await client.subscribe("t", qos=1)
        publisher = await site.client("p")
        publisher.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2))
        await client.messages(1, acknowledge=False)
        await client.unsubscribe("t")
        client.send(Puback(1))
        await client.expect(Publish, payload=b"2")  # was on its way
        await publisher.expect(Puback, packet_id=1)
        await publisher.expect(Puback, packet_id=2)
        assert await publisher.publish("t", b"3", 1) == Reason.NO_MATCHING_SUBSCRIBERS


async def test_connect_without_identifier():
    async with Site() as site:
        one, two = await site.client(), await site.client(clean=False, expiry=100)
        names = [client.connack.properties[Property.ASSIGNED_CLIENT_IDENTIFIER] for client in (one, two)]
        assert names[0] != names[1]
        await two.subscribe("t")
        await two.cut()
        await site.gone(names[1])
        assert (await site.client(names[1], clean=False, expiry=100)).connack.session_present
        old = await site.client("", 4)
        await old.subscribe("t")
        refused = await site.dial(4)
        refused.send(Connect("", 4, False))
        await refused.expect(Connack, reason=2)
        await refused.closed()


@pytest.mark.any_loop
async def test_a_session_with_many_subscriptions_ends_in_turns_and_gets_nothing_more():
    """Its subscriptions go in slices, while others are served; the next session of that name has only its own."""
    async with Site() as site:
        router = site.broker.site.router
        before = router.subscriptions
        client = await site.client("c", expiry=100)
        names = [f"many/{number}" for number in range(3000)]
        client.send(Subscribe(1, [Subscription(name, 1) for name in names]))
        await client.expect(Suback)
        assert router.subscriptions == before + 3000
        again = await site.client("c")
        await again.subscribe("many/2999", qos=1)
        publisher = await site.client("p")
        for name in (names[0], names[-1]):
            await publisher.publish(name, b"x", 1)
        assert [message.topic for message in await again.messages(1)] == ["many/2999"]
        await until(lambda: router.subscriptions == before + 1)
        assert site.broker.site.sessions.get("c").queued == 0
        assert set(router.holders) & set(names) == {"many/2999"}


@pytest.mark.parametrize("stored", [False, True])
async def test_what_a_session_with_many_subscriptions_held_is_given_back_once(stored, monkeypatch):
    """Its subscriptions are held for its account until each is removed; the ledger has then what it had before."""
    charge, lowest = Account.charge, [0]

    def charged(account, kind, size):
        charge(account, kind, size)
        lowest.append(account.held[kind])

    monkeypatch.setattr(Account, "charge", charged)
    async with Site(store=MemoryStore() if stored else None) as site:
        ledger = site.broker.context.ledger
        before = ledger.total, ledger.held[:ROUTES]
        assert not len(ledger)
        for _ in range(2):
            client = await site.client("c", clean=not stored, expiry=1 if stored else 0)
            shared = [Subscription(f"$share/g/shared/{number}", 1) for number in range(3)]
            client.send(Subscribe(1, [Subscription(f"many/{number}", 1) for number in range(300)] + shared))
            await client.expect(Suback)
            await client.cut()
            await site.gone("c")
            if stored:
                site.broker.site.sessions.end(site.broker.site.sessions.get("c"))
            await until(lambda: not site.broker.site.router.subscriptions and not len(ledger))
            assert (ledger.total - ledger.held[ROUTES], ledger.held[:ROUTES]) == before
    assert min(lowest) == 0
