"""A route that concerns very many subscriptions is made in turns of the publisher, and is the same as one that is made at once."""

from __future__ import annotations

from itertools import count, takewhile
from typing import Any

import pytest
from mqmesh.broker.routing import router as room
from mqmesh.broker.routing.route import Route
from mqmesh.broker.server import Broker
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Subscription, Unsubscribe
from support.models.broker_wire import Wire, run, started

END = object()
FILTERS = ("a/b", "a/+", "#", "+/b", "$share/g/a/b", "a/b/c", "c")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any subscription is many, and nothing is done at once."""
    monkeypatch.setattr(room, "WIDE", 0)
    monkeypatch.setattr(room, "STEP", 2)
    monkeypatch.setattr(room, "FREE_STEPS", 1)


async def crowd() -> tuple[Broker, list[Wire]]:
    broker = await started()
    wanted = [Subscription(one, number % 3) for number, one in enumerate(FILTERS * 3)]
    return broker, [Wire(broker, 5).connect(f"s{number}", *wanted[number : number + 2], identifier=number % 2) for number in range(19)]


def shown(route: Route) -> list[Any]:
    targets = sorted((one.session.client_id, one.qos, one.suffix, one.plain) for one in route.targets)
    return [targets, sorted(group.filter for group in route.shares), route.plain, route.recipients is not None, route.writable]


def made(broker: Broker, topic: bytes) -> Route:
    begun = broker.site.router.begin_route(topic)
    if isinstance(begun, Route):
        return begun
    for _ in begun:
        pass
    assert not broker.site.router._making
    return broker.site.router.routes[topic]


def test_the_same_route() -> None:
    async def story() -> None:
        broker, _ = await crowd()
        for topic in (b"a/b", b"c", b"$SYS/x", b"nobody/here/now"):
            in_steps = shown(made(broker, topic))
            broker.site.router._clear()
            assert in_steps == shown(broker.site.router.route(topic))

    run(story())


@pytest.mark.parametrize("change", ["+/+", "a/b", "c", "$share/new/#"])
def test_subscriptions_that_change_meanwhile(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any of its steps sessions come, go and change. The route is corrected in steps: it is not made anew at once."""

    async def story(number: int) -> bool:
        broker, wires = await crowd()
        router = broker.site.router
        steps = router.begin_route(b"a/b")
        assert not isinstance(steps, Route)
        done = all(next(steps, END) is not END for _ in range(number))
        late = Wire(broker, 5).connect("late", Subscription(change, 1))
        wires[1].send(Unsubscribe(7, [wires[1].connection.session.subscriptions.copy().popitem()[0]]))  # type: ignore[union-attr]
        wires[2].send(Subscribe(7, [Subscription("a/#", 2)]))
        wires[3].send(Disconnect())
        for member in (4, 10, 11, 17, 18):  # the last members of a group
            wires[member].send(Unsubscribe(8, ["$share/g/a/b"]))
        made_at_once = router.route
        with monkeypatch.context() as patch:
            patch.setattr(router, "route", None)
            for _ in steps:
                pass
        found = shown(router.routes[b"a/b"] if done else made_at_once(b"a/b"))
        router._clear()
        assert found == shown(made_at_once(b"a/b"))
        assert ("late" in [name for name, *_ in found[0]]) == (change in ("+/+", "a/b"))
        assert late.connection.session is not None
        return done

    assert sum(1 for _ in takewhile(lambda number: run(story(number)), count())) > 10


def test_what_is_published_waits_for_its_route_and_keeps_its_order() -> None:
    async def story() -> None:
        broker, wires = await crowd()
        publisher = Wire(broker, 5).connect("publisher")
        packets = [Publish(topic, b"%d" % n, 1, packet_id=n) for n, topic in enumerate(["a/b", "c", "a/b", "a/x", "c"], 1)]
        publisher.give(b"".join(encode(packet, 5) for packet in packets))
        assert publisher.packets() == []
        await broker.context.loop.run_in_executor(None, lambda: None)
        while len(broker.site.router.routes) < 3 or publisher.connection.waits:
            await broker.context.loop.run_in_executor(None, lambda: None)
        assert [(type(one), one.packet_id) for one in publisher.packets()] == [(Puback, n) for n in range(1, 6)]
        heard = {wire.connection.client_id: [int(one.payload) for one in wire.packets() if isinstance(one, Publish)] for wire in wires}
        assert all(numbers == sorted(numbers) for numbers in heard.values())
        assert max(map(len, heard.values())) == 5

    run(story())


def test_a_bad_topic_is_said_at_once() -> None:
    async def story() -> None:
        broker, _ = await crowd()
        with pytest.raises(PeerError):
            broker.site.router.begin_route(b"a/+/b")
        assert not broker.site.router._making

    run(story())
