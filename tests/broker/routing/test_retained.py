"""Retained messages: kept, replaced, deleted, sent to new subscriptions as these want them."""

from __future__ import annotations

import tracemalloc

import pytest
from mqmesh.broker.client import packets as handlers
from mqmesh.broker.ledger import RETAINED, Ledger
from mqmesh.broker.routing.retained import OVERHEAD, SPARE, Retained
from mqmesh.broker.session.session import REPLAY_STEPS, Session
from mqmesh.mqtt.batch.run import Run
from mqmesh.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from support.broker_site import Site, until


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_new_subscription_gets_the_last_message(version, qos, granted):
    async with Site() as site:
        publisher = await site.client("p")
        content = {Property.CONTENT_TYPE: "x", Property.USER_PROPERTY: [("a", "b")]}
        await publisher.publish("a/b", b"first", qos, retain=True)
        await publisher.publish("a/b", b"second", qos, retain=True, properties=content)
        await publisher.publish("a/b", b"third", qos)
        client = await site.client("c", version)
        await client.subscribe("a/+", qos=granted)
        (message,) = await client.messages(1)
        assert (message.payload, message.qos, message.retain) == (b"second", min(qos, granted), True)
        assert message.properties == (content if version == 5 else {})
        await client.nothing()
        await publisher.publish("a/b", b"fourth", qos, retain=True)
        (message,) = await client.messages(1)
        assert (message.payload, message.retain) == (b"fourth", False)


async def test_the_suback_comes_first_and_identifiers_come_along():
    async with Site() as site:
        publisher = await site.client("p")
        await publisher.publish("t", b"x", 1, retain=True)
        client = await site.client("c")
        client.send(Subscribe(9, [Subscription("t", 1), Subscription("#", 0)], {Property.SUBSCRIPTION_IDENTIFIER: [5]}))
        await client.expect(Suback, packet_id=9)
        for _ in range(2):
            message = await client.expect(Publish, payload=b"x", retain=True)
            assert message.properties == {Property.SUBSCRIPTION_IDENTIFIER: [5]}


async def test_an_empty_payload_deletes():
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe(Subscription("t", 1, retain_as_published=True))
        publisher = await site.client("p")
        await publisher.publish("t", b"x", 1, retain=True)
        await publisher.publish("t", b"", 1, retain=True)
        await publisher.publish("never/there", b"", 1, retain=True)
        assert [(m.payload, m.retain) for m in await client.messages(2)] == [(b"x", True), (b"", True)]
        assert (len(site.broker.site.retained), site.broker.context.ledger.held[RETAINED]) == (0, 0)
        other = await site.client("other")
        await other.subscribe("#")
        await other.nothing()


async def test_of_several_in_one_run_the_last_is_kept():
    async with Site() as site:
        publisher = await site.client("p", 4)
        publisher.send(*[Publish("t", b"%d" % n, 1, True, packet_id=n + 1) for n in range(5)])
        for _ in range(5):
            await publisher.expect(Puback)
        client = await site.client("c")
        await client.subscribe("t")
        await client.expect(Publish, payload=b"4", retain=True)


@pytest.mark.parametrize(("handling", "expected"), [(0, [1, 1, 1]), (1, [1, 0, 1]), (2, [0, 0, 0])])
async def test_retain_handling(handling, expected):
    async with Site() as site:
        await (await site.client("p")).publish("t", b"x", retain=True)
        client = await site.client("c")
        wanted = Subscription("t", retain_handling=handling)
        for step, count in enumerate(expected):
            if step == 2:
                await client.unsubscribe("t")
            await client.subscribe(wanted)
            for _ in range(count):
                await client.expect(Publish, payload=b"x", retain=True)
            await client.nothing()


async def test_retain_handling_1_on_a_resumed_session():
    async with Site() as site:
        await (await site.client("p")).publish("t", b"x", retain=True)
        client = await site.client("c", clean=False, expiry=100)
        await client.subscribe(Subscription("t", retain_handling=1))
        await client.expect(Publish)
        await client.cut()
        client = await site.client("c", clean=False, expiry=100)
        await client.subscribe(Subscription("t", retain_handling=1))
        await client.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_retain_as_published(version):
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe(Subscription("t", 2, retain_as_published=True))
        publisher = await site.client("p", version)
        for qos in (0, 1, 2):
            for retain in (True, False):
                await publisher.publish("t", b"x", qos, retain=retain)
                (message,) = await client.messages(1)
                assert message.retain == retain


async def test_shared_subscriptions_get_none():
    async with Site() as site:
        await (await site.client("p")).publish("t", b"x", 1, retain=True)
        client = await site.client("c")
        await client.subscribe("$share/g/t", qos=1)
        await client.nothing()


async def test_wildcards_do_not_find_dollar_topics():
    async with Site() as site:
        publisher = await site.client("p")
        await publisher.publish("$x/y", b"1", retain=True)
        client = await site.client("c")
        await client.subscribe("#", "+/y")
        await client.nothing()
        await client.subscribe("$x/#")
        await client.expect(Publish, payload=b"1")


async def test_expiry():
    async with Site() as site:
        publisher = await site.client("p")
        for topic, seconds in (("short", 10), ("long", 100)):
            await publisher.publish(topic, b"x", 1, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: seconds})
        await publisher.publish("ever", b"x", 1, retain=True)
        await site.later(5.5)
        client = await site.client("c")
        await client.subscribe("#", qos=1)
        left = {m.topic: m.properties.get(Property.MESSAGE_EXPIRY_INTERVAL) for m in await client.messages(3)}
        assert left == {"short": 5, "long": 95, "ever": None}
        await site.later(5)
        await client.subscribe("#", qos=1)
        assert {m.topic for m in await client.messages(2)} == {"long", "ever"}
        assert len(site.broker.site.retained) == 2  # swept
        await client.nothing()


async def test_expiry_follows_the_replacement():
    async with Site() as site:
        publisher = await site.client("p")
        await publisher.publish("t", b"x", 1, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: 10})
        await site.later(8)
        await publisher.publish("t", b"y", 1, retain=True, properties={Property.MESSAGE_EXPIRY_INTERVAL: 10})
        await site.later(8)
        client = await site.client("c")
        await client.subscribe("t")
        await client.expect(Publish, payload=b"y")


@pytest.mark.any_loop
@pytest.mark.parametrize("qos", [0, 1])
async def test_more_retained_messages_than_fit_at_once(qos):
    async with Site(unsent_bytes=65_536, in_flight=20, session_queue_messages=10) as site:
        publisher = await site.client("p", 4)
        for n in range(2000):
            publisher.send(Publish(f"t/{n}", bytes(1000), 1, True, packet_id=n + 1))
        for _ in range(2000):
            await publisher.expect(Puback)
        client = await site.client("c")
        client.transport.pause_reading()
        client.send(Subscribe(1, [Subscription("t/#", qos)]))
        await publisher.publish("other", b"", 1)
        client.transport.resume_reading()
        await client.expect(Suback)
        assert {message.topic for message in await client.messages(2000)} == {f"t/{n}" for n in range(2000)}
        await client.nothing()
        assert site.broker.context.counters.dropped == 0


async def test_what_was_replaced_meanwhile_is_not_sent_late():
    async with Site() as site:
        publisher = await site.client("p")
        for n in range(3):
            await publisher.publish(f"t/{n}", b"old", 1, retain=True)
        client = await site.client("c", receive_maximum=1)
        await client.subscribe("t/#", qos=1)
        first = await client.expect(Publish, payload=b"old")
        others = {f"t/{n}" for n in range(3)} - {first.topic}
        for topic in others:
            await publisher.publish(topic, b"new", 1, retain=True)
        client.send(Puback(first.packet_id))
        assert {(m.topic, m.payload, m.retain) for m in await client.messages(2)} == {(topic, b"new", False) for topic in others}
        await client.nothing()


async def test_a_client_that_takes_no_retained_messages_cannot_ask_for_ever_more(monkeypatch: pytest.MonkeyPatch):
    """For one filter a single replay waits, however often it is asked for, and other filters are bounded."""
    monkeypatch.setattr(handlers, "REPLAYS", 2)
    async with Site() as site:
        publisher = await site.client("p")
        for n in range(20):
            await publisher.publish(f"t/{n}", b"x", 1, retain=True)
        client = await site.client("c", receive_maximum=1)
        session = site.broker.site.sessions.get("c")
        for _ in range(3):
            client.send(Subscribe(8, [Subscription("t/#", 1)] * 30))
            await client.expect(Suback, reasons=[1] * 30)
            if not client.waiting():
                await until(lambda: not session.replay_due)
            assert len(session.replays) == 1
            while client.waiting():
                await client.expect(Publish)
        for name, reason in (("t/+", 1), ("+/#", 1), ("+/+", Reason.QUOTA_EXCEEDED)):
            client.send(Subscribe(9, [Subscription(name, 1)]))
            packets = [await client.receive()]
            if isinstance(packets[0], Publish):
                packets.append(await client.receive())
            assert packets[-1].reasons == [reason]


async def test_thirty_times_the_same_filter_over_many_messages_is_one_replay_in_slices(monkeypatch: pytest.MonkeyPatch):
    turns: list[int] = []
    original = Session.replay_on
    monkeypatch.setattr(Session, "replay_on", lambda session, connection: (turns.append(1), original(session, connection))[1])
    async with Site() as site:
        topics = [f"t/{n % 7}/{n}" for n in range(2000)]
        publisher = await site.client("p")
        publisher.send(*(Publish(topic, b"x", retain=True) for topic in topics))
        await publisher.nothing()
        client = await site.client("c")
        client.send(Subscribe(1, [Subscription("t/#")] * 30))
        await client.expect(Suback, reasons=[0] * 30)
        messages = await client.messages(2000)
        await client.nothing()
        assert sorted(message.topic for message in messages) == sorted(topics)
        assert len(turns) >= len(topics) // REPLAY_STEPS


async def test_a_full_broker_takes_no_more():
    async with Site(broker_bytes=2**22) as site:
        publisher, old = await site.client("p"), await site.client("old", 4)
        for n in range(1, 8):  # one address gets four fifths
            assert await publisher.publish(f"t/1{n % 7 or ''}", bytes(500_000), 1, retain=True) == Reason.NO_MATCHING_SUBSCRIBERS
        assert await publisher.publish("t/2", b"x", 1, retain=True) == Reason.QUOTA_EXCEEDED
        assert await old.publish("t/2", b"x", 1, retain=True) == 0
        assert site.broker.context.counters.dropped == 2
        assert await publisher.publish("t/1", b"smaller", 1, retain=True) == Reason.NO_MATCHING_SUBSCRIBERS
        assert await publisher.publish("t/2", b"x", 1, retain=True) == Reason.NO_MATCHING_SUBSCRIBERS


def test_the_account_is_exact():
    ledger = Ledger(10**9)
    retained = Retained(ledger)

    def run(topic: bytes, payload: bytes, expiry: int | None = None) -> Run:
        return Run(topic, 0, True, [payload], b"", expiry, 0.0)

    retained.store(run(b"a", b"12345"))
    assert ledger.held[RETAINED] == OVERHEAD + 6
    retained.store(run(b"a", b"1", 10))
    retained.store(run(b"b", b"1"))
    assert ledger.held[RETAINED] == 2 * OVERHEAD + 4
    assert list(retained.sweep(11)) == [None]
    retained.store(run(b"b", b""))
    assert (ledger.total, len(retained)) == (0, 0)


def test_replacing_over_and_over_does_not_pile_up():
    retained = Retained(Ledger(10**9))
    for n in range(10_000):
        retained.store(Run(b"t", 0, True, [b"x"], b"", 60, float(n)))
    assert len(retained._ends) < 2000
    for _ in retained.sweep(10_000 + 61):
        pass
    assert len(retained) == 0


def test_what_expires_at_one_moment_goes_one_by_one():
    retained = Retained(Ledger(10**9))
    for number in range(100):
        retained.store(Run(b"t/%d" % number, 0, True, [b"x"], b"", 60, 0.0))
    assert not retained.due(60)
    assert retained.due(61)
    steps = retained.sweep(61)
    assert [len(retained) for _ in range(3) if next(steps) is None] == [99, 98, 97]
    retained.store(Run(b"t/50", 0, True, [b"y"], b"", 60, 60.0))
    assert sum(1 for _ in steps) == 97
    assert [run.topic for run in retained.all()] == [b"t/50"]
    assert not retained.due(61)


def test_topics_that_are_gone_leave_nothing_behind_while_a_replay_is_under_way():
    """A client that reads nothing keeps its replay for ever, and another one retains and deletes topics of 60 kB, with an expiry."""
    retained = Retained(Ledger(2**30))
    retained.store(Run(b"first", 0, True, [b"x"]))
    replay = retained.replay("#", "c")
    next(replay)
    tracemalloc.start()
    try:
        memory = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            topic = b"%d" % number + b"t" * 60_000
            retained.store(Run(topic, 0, True, [b"x"], expiry=1000))
            retained.store(Run(topic, 0, True, [b""]))
        assert tracemalloc.get_traced_memory()[0] - memory < (SPARE + 10) * 60_000
    finally:
        tracemalloc.stop()
    retained.store(Run(b"later", 0, True, [b"x"]))
    assert not any(replay), "what is retained from then on comes as a message"
