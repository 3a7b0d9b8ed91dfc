"""Which messages a subscription brings: filters, overlaps, No Local, subscription identifiers, `$` topics."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.counters import Counters
from mqmesh.broker.ledger import ROUTES, Ledger, weight_of_route
from mqmesh.broker.routing.router import ROUTES_PART, SCANS, Router
from mqmesh.mqtt.packets import Pingreq, Pingresp, Puback, Publish, Subscription
from mqmesh.mqtt.properties import Property
from mqmesh.mqtt.reasons import Reason
from mqmesh.mqtt.topics import matches
from support.broker_site import Site


def identifiers(message: Publish) -> set[int]:
    return set(message.properties.get(Property.SUBSCRIPTION_IDENTIFIER, []))


@pytest.mark.parametrize("version", [4, 5])
async def test_overlapping_subscriptions_bring_one_copy_at_the_highest_qos(version):
    async with Site() as site:
        client = await site.client("c", version)
        await client.subscribe(Subscription("a/b", 0), Subscription("a/+", 2), Subscription("#", 1))
        publisher = await site.client("p")
        for qos in (0, 1, 2):
            await publisher.publish("a/b", b"", qos)
            (message,) = await client.messages(1)
            assert message.qos == qos
        await client.nothing()


async def test_subscription_identifiers_of_all_that_match():
    async with Site() as site:
        client = await site.client("c")
        for n, topic_filter in enumerate(("a/b", "a/+", "#", "other"), 1):
            await client.subscribe(topic_filter, qos=1, identifier=n * 100)
        await client.subscribe("a/#", qos=2)
        publisher = await site.client("p", 4)
        await publisher.publish("a/b", b"", 2)
        (message,) = await client.messages(1)
        assert (message.qos, identifiers(message)) == (2, {100, 200, 300})
        await publisher.publish("x", b"")
        assert identifiers(await client.expect(Publish)) == {300}
        await client.subscribe("#", qos=1, identifier=7)  # replaces
        await publisher.publish("x", b"")
        assert identifiers(await client.expect(Publish)) == {7}
        await client.subscribe("#", qos=1)  # and takes it away
        await publisher.publish("x", b"")
        assert identifiers(await client.expect(Publish)) == set()


async def test_identifiers_stay_with_the_session():
    async with Site() as site:
        client = await site.client("c", clean=False, expiry=100)
        await client.subscribe("t", qos=1, identifier=268_435_455)
        await client.cut()
        publisher = await site.client("p")
        await publisher.publish("t", b"", 1)
        client = await site.client("c", clean=False, expiry=100)
        assert identifiers((await client.messages(1))[0]) == {268_435_455}


@pytest.mark.parametrize("qos", [0, 1])
async def test_no_local(qos):
    async with Site() as site:
        client, other = await site.client("c"), await site.client("other")
        await client.subscribe(Subscription("t", qos, no_local=True))
        await client.publish("t", b"mine", qos)
        await other.publish("t", b"theirs", qos)
        (message,) = await client.messages(1)
        assert message.payload == b"theirs"
        await client.nothing()


@pytest.mark.parametrize("qos", [0, 1])
async def test_no_local_holds_for_each_message_of_many(qos):
    """What is remembered of a topic's recipients is that of its publisher."""
    async with Site() as site:
        deaf, half, plain = [await site.client(name) for name in ("deaf", "half", "plain")]
        await deaf.subscribe(Subscription("t/#", qos, no_local=True))
        await half.subscribe(Subscription("t/#", qos, no_local=True), Subscription("+/1", qos))
        await plain.subscribe(Subscription("t/+", qos))
        clients = [deaf, half, plain]
        for publisher in (deaf, half, plain, half, deaf):
            for number in range(6):
                publisher.send(Publish(f"t/{number % 2}", publisher.name.encode(), qos, packet_id=number + 1 if qos else 0))
            for client in (publisher, *(one for one in clients if one is not publisher)):  # when it has its answer, all others have theirs
                client.send(Pingreq())
                found: list[tuple[str, bytes]] = []
                while not isinstance(packet := await client.receive(), Pingresp):
                    if isinstance(packet, Publish):
                        found.append((packet.topic, packet.payload))
                        if packet.qos:
                            client.send(Puback(packet.packet_id))
                topics = ["t/0", "t/1"] * 3
                if client is publisher:
                    topics = {deaf: [], half: ["t/1"] * 3, plain: topics}[client]
                assert found == [(topic, publisher.name.encode()) for topic in topics]


async def test_no_local_on_one_of_two_overlapping_subscriptions():
    async with Site() as site:
        client, other = await site.client("c"), await site.client("other")
        await client.subscribe(Subscription("t", 2, no_local=True, retain_as_published=True), identifier=1)
        await client.subscribe(Subscription("#", 1), identifier=2)
        client.send(Publish("t", b"mine", 2, True, packet_id=1))
        message = await client.expect(Publish, payload=b"mine", qos=1, retain=False)
        assert identifiers(message) == {2}
        await client.receive()
        await other.publish("t", b"theirs", 2, retain=True)
        message = await client.expect(Publish, payload=b"theirs", qos=2, retain=True)
        assert identifiers(message) == {1, 2}


async def test_options_can_be_changed():
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe(Subscription("t", 1, no_local=True))
        await client.subscribe(Subscription("t", 0))
        client.send(Publish("t", b"", 1, packet_id=1))
        await client.expect(Publish, qos=0)
        assert site.broker.site.router.subscriptions == 1


async def test_unsubscribe():
    async with Site() as site:
        client = await site.client("c")
        await client.subscribe("a", "b/+", "$share/g/c")
        answer = await client.unsubscribe("a", "nothing", "b/+", "$share/g/c", "$share/other/c")
        assert answer.reasons == [0, Reason.NO_SUBSCRIPTION_EXISTED, 0, 0, Reason.NO_SUBSCRIPTION_EXISTED]
        publisher = await site.client("p")
        for topic in ("a", "b/x", "c"):
            assert await publisher.publish(topic, b"", 1) == Reason.NO_MATCHING_SUBSCRIBERS
        await client.nothing()
        router = site.broker.site.router
        assert (router.subscriptions, len(router.tree), router.groups, router.holders) == (0, 0, {}, {})
        old = await site.client("old", 4)
        await old.subscribe("a")
        assert (await old.unsubscribe("a", "b")).reasons == []


async def test_wildcards_do_not_match_dollar_topics():
    async with Site(sys_interval=1) as site:
        client = await site.client("c")
        await client.subscribe("#", "+/broker/#", "$other/#")
        publisher = await site.client("p")
        await publisher.publish("$other/x", b"1")
        await client.expect(Publish, topic="$other/x")
        await site.later(2)
        await client.nothing()
        await client.subscribe("$SYS/broker/uptime")
        await client.expect(Publish, topic="$SYS/broker/uptime", retain=True)


@pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker/uptime", "$SYS/x"])
async def test_clients_may_not_publish_to_sys(topic):
    async with Site() as site:
        watcher = await site.client("w")
        await watcher.subscribe("$SYS/#", "$SYS", qos=1)
        client, old = await site.client("c"), await site.client("old", 4)
        await client.publish(topic, b"x", 0, retain=True)
        assert await client.publish(topic, b"x", 1) == Reason.NOT_AUTHORIZED
        assert await client.publish(topic, b"x", 2) == Reason.NOT_AUTHORIZED
        for qos in (0, 1, 2):
            await old.publish(topic, b"x", qos)
        await watcher.nothing()
        assert site.broker.context.counters.dropped == 6
        assert len(site.broker.site.retained) == 0
        assert site.broker.site.sessions.get("c").inbound.open == set()
        await client.publish("$SYSTEM", b"", 1)


@pytest.mark.parametrize("version", [4, 5])
async def test_shared_subscriptions_that_are_malformed(version):
    async with Site() as site:
        client = await site.client("c", version)
        client.send(b"\x82\x0b\x00\x01" + (b"\x00" if version == 5 else b"") + b"\x00\x07$share/" + b"\x00"[: 5 - version] + b"\x00")
        with pytest.raises(AssertionError):
            await client.messages(1)


class FakeSession:
    """As much of a session as the router needs."""

    def __init__(self, name: str) -> None:
        self.client_id = name
        self.subscriptions: dict[str, Subscription] = {}
        self.connection = None
        self.face = self.main = self
        self.account = Ledger(10**9).account()


levels = st.sampled_from(["a", "b", "+", "$x"])
filter_strategy = st.tuples(st.lists(levels, min_size=1, max_size=3), st.booleans()).map(
    lambda f: "/".join([*f[0], *(["#"] if f[1] else [])])
)
topic_strategy = st.lists(st.sampled_from(["a", "b", "$x", "c"]), min_size=1, max_size=4).map("/".join)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), filter_strategy, st.booleans(), topic_strategy), max_size=40))
def test_cached_routes_are_what_the_subscriptions_say(steps):
    ledger = Ledger(2**30)
    router = Router(Counters(), ledger=ledger)
    sessions = [FakeSession(str(n)) for n in range(4)]
    for (who, topic_filter, add, topic), qos in zip(steps, itertools.cycle((0, 1, 2)), strict=False):
        session = sessions[who]
        if add:
            router.subscribe(session, Subscription(topic_filter, qos), 0)
        else:
            assert router.unsubscribe(session, topic_filter) == (topic_filter in session.subscriptions or False) or True
        for asked in (topic, "a", "a/b"):
            route = router.routes.get(asked.encode()) or router.route(asked.encode())
            expected = {}
            for one in sessions:
                found = [subscription.qos for f, subscription in one.subscriptions.items() if matches(f, asked)]
                if found:
                    expected[one] = max(found)
            assert {target.session: target.qos for target in route.targets} == expected
        assert ledger.held[ROUTES] == sum(weight_of_route(topic, len(route.targets)) for topic, route in router.routes.items())
    assert router.subscriptions == sum(len(session.subscriptions) for session in sessions)


def test_many_wildcards_beside_cached_topics_cost_no_more_than_making_the_routes_anew(monkeypatch):
    """A SUBSCRIBE with tens of thousands of filters must not compare each with each topic, of which some have thousands of levels."""
    compared = []
    monkeypatch.setattr("mqmesh.broker.routing.router.matches", lambda f, topic: compared.append(len(topic)) or matches(f, topic))
    router = Router(Counters())
    session = FakeSession("s")
    topics = [f"{n}" + "/" * 10_000 for n in range(20)]
    for topic in topics:
        router.route(topic.encode())
    for n in range(2_000):
        router.subscribe(session, Subscription(f"+/{n}", 1), 0)
        router.subscribe(session, Subscription(f"a{n}/+", 1), 0)
    assert 0 < sum(compared) <= (SCANS + 2) * sum(map(len, topics))


def test_what_is_remembered_of_topics_is_bounded_by_what_the_broker_may_hold():
    ledger = Ledger(2**24)
    router = Router(Counters(), ledger=ledger)
    for session in range(5):
        router.subscribe(FakeSession(str(session)), Subscription("#", 1), 0)
    for n in range(300):
        router.route(f"{n}".encode() + b"t" * 60_000)
        assert 0 < ledger.held[ROUTES] <= ledger.limit // ROUTES_PART
    for n in range(30_000):
        router.route(b"%d" % n)
        assert 0 < ledger.held[ROUTES] <= ledger.limit // ROUTES_PART
    assert len(router.routes) < 30_000
    router.subscribe(FakeSession("s"), Subscription("+/#", 1), 0)
    assert ledger.held[ROUTES] == ledger.total == len(router.routes) == 0


def test_very_many_bytes_of_topics_are_not_compared_with_a_changed_filter(monkeypatch):
    """Each of them is long to compare: 500 took 0.2 s of the loop."""
    compared = []
    monkeypatch.setattr("mqmesh.broker.routing.router.matches", lambda f, topic: compared.append(topic) or matches(f, topic))
    router = Router(Counters())
    for n in range(500):
        router.route(f"{n}".encode() + b"/a" * 30_000)
    router.subscribe(FakeSession("s"), Subscription("+/x", 1), 0)
    assert not compared
    assert not router.routes


@pytest.mark.parametrize(("version", "refused"), [(4, 0x80), (5, Reason.TOPIC_FILTER_INVALID)])
async def test_filters_of_more_levels_than_200_are_refused_each_by_itself(version, refused):
    async with Site() as site:
        client = await site.client("c", version)
        deep = "+/" * 200 + "#"
        answer = await client.subscribe("a/" * 199 + "#", deep, f"$share/g/{deep}", "b", qos=1)
        assert answer.reasons == [1, refused, refused, 1]
        publisher = await site.client("p")
        await publisher.publish("x/" * 200 + "y")
        await publisher.publish("b", b"1")
        (message,) = await client.messages(1)
        assert (message.topic, message.payload) == ("b", b"1")
        await client.nothing()
