"""A single message or acknowledgement has the same effect on the direct lane as on the general one."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.client import connection
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Puback, Publish, Subscription
from mqmesh.mqtt.properties import Property
from support.examples import examples
from support.models.broker_wire import Wire, run, started

TOPICS = ("one/a", "one/b", "two/a", "nobody")
NAMES = ("same", "other", "narrow", "publisher")


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[tuple[Any, ...]], int]:
    version = draw(st.sampled_from([4, 5]))
    blocks: list[dict[int, Any]] = [{}, {}, {}, {Property.CONTENT_TYPE: "x"}] if version == 5 else [{}]
    publish = st.tuples(
        st.just("publish"),
        st.builds(
            Publish,
            st.sampled_from(TOPICS),
            st.sampled_from([b"", b"x", b"y" * 100, b"z" * 130]),
            st.sampled_from([1, 1, 1, 1, 0, 2]),
            st.sampled_from([False, False, False, True]),
            packet_id=st.integers(1, 20),
            properties=st.sampled_from(blocks),
        ),
    )
    answer = st.tuples(st.just("answer"), st.sampled_from(NAMES[:3]), st.integers(1, 8))
    away = st.tuples(st.just("away"), st.sampled_from(NAMES[:3]))
    return version, draw(st.lists(st.one_of(publish, publish, publish, answer, answer, away), max_size=40)), draw(st.integers(0, 3))


async def play(version: int, steps: list[tuple[Any, ...]], deaf: int = 0) -> list[Any]:
    """What everybody got, and what the broker counted. deaf: 1: "same" has No Local; 2: the publisher does too, 3: in one of its two."""
    broker = await started()
    other = 9 - version
    filters = {"same": ("one/#", version, 0), "other": ("two/#", other, 0), "narrow": ("one/b", version, 2)}
    clients = {}
    for name, (topic_filter, level, most) in filters.items():
        properties = {"receive_maximum": most} if most and level == 5 else {}
        no_local = deaf > 0 and name == "same" and level == 5
        clients[name] = Wire(broker, level).connect(name, Subscription(topic_filter, 1, no_local), **properties)
    own = [Subscription("one/#", 1, True)] if deaf > 1 and version == 5 else []
    own += [Subscription("+/b", 0)] if deaf > 2 else []
    publisher = Wire(broker, version).connect("publisher", *own)
    if not deaf:
        for topic in TOPICS:
            broker.site.router.route(topic.encode())
    found: list[Any] = []
    for step in steps:
        if step[0] == "publish":
            packet = step[1]
            packet.packet_id = packet.packet_id if packet.qos else 0
            publisher.give(encode(packet, version))
        elif step[0] == "answer":
            clients[step[1]].send(Puback(step[2]))
        else:
            name = step[1]
            found.append((name, clients[name].take()))
            clients[name].connection.connection_lost(None)
            clients[name] = Wire(broker, filters[name][1])
            clients[name].send(Connect(name, filters[name][1], True))
    found += [(name, client.take()) for name, client in [*clients.items(), ("publisher", publisher)]]
    sessions = [
        (name, s.outbound.in_flight, s.outbound.bytes, s.queued) for name in NAMES if (s := broker.site.sessions.get(name)) is not None
    ]
    counters = broker.context.counters
    totals = (counters.publish_bytes_received, counters.publish_bytes_sent, counters.packets_sent, counters.packets_received)
    return [found, sessions, totals, publisher.connection.received, [client.connection.sent for client in clients.values()]]


@settings(max_examples=examples(300), deadline=None)
@given(cases())
def test_same_effect_as_the_general_path(case):
    short = run(play(*case))
    with mock.patch.object(connection, "LARGEST", -1):
        general = run(play(*case))
    assert short == general


def test_it_is_used():
    """Else the comparison would say nothing."""
    taken: list[bool] = []
    real = connection.take_single

    def counting(*arguments: Any) -> bool:
        taken.append(real(*arguments))
        return taken[-1]

    steps = [("publish", Publish("one/a", b"x", 1, packet_id=7)), ("answer", "same", 1)]
    with mock.patch.object(connection, "take_single", counting):
        run(play(5, steps))
        run(play(4, steps))
    assert taken.count(True) == 4


def test_what_only_has_to_be_written_is_written_without_a_flush():
    async def story() -> None:
        broker = await started()
        subscriber = Wire(broker, 4).connect("s", Subscription("t", 1))
        publisher = Wire(broker, 4).connect("p")
        publisher.give(encode(Publish("t", b"first", 1, packet_id=1), 4))  # by the general way
        subscriber.send(Puback(1))
        with mock.patch.object(broker.context, "flush") as flush:
            publisher.give(encode(Publish("t", b"x", 1, packet_id=7), 4))
            publisher.give(encode(Publish("t", b"y"), 4))
            assert [packet.payload for packet in subscriber.packets()[1:]] == [b"x", b"y"]
            assert [packet.packet_id for packet in publisher.packets()] == [1, 7]
            subscriber.send(Puback(2))
        assert not flush.called
        assert broker.site.sessions.get("s").outbound.in_flight == 0

    run(story())


def test_an_acknowledgement_that_an_observer_hears_ends_in_a_flush():
    """Queues are told of it, and give their members more at the end of the piece of work."""

    async def story() -> None:
        broker = await started()
        subscriber = Wire(broker, 4).connect("s", Subscription("t", 1))
        publisher = Wire(broker, 4).connect("p")
        publisher.give(encode(Publish("t", b"x", 1, packet_id=1), 4))
        broker.site.sessions.get("s").outbound.observer = mock.Mock()
        with mock.patch.object(broker.context, "flush") as flush:
            subscriber.send(Puback(1))
        assert flush.called

    run(story())
