"""Messages that a service takes together are answered as if each had come by itself.

Any sequence of packets is given to two brokers: to one a packet at a time on the general path, to the other in any chunks. The service gets
the same messages in the same order, and the publisher the same bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.publish import parse
from mqmesh.broker.publish.posts import MOST
from mqmesh.broker.server import Broker
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Pingreq, Puback, Publish
from mqmesh.mqtt.properties import Property
from support.examples import examples
from support.models.broker_wire import Wire, run

TOPIC = "interchange/post"
TOPICS = [TOPIC, "interchange/past", "other/service", "a"]
PAIRS, CORRELATION, ALIAS = Property.USER_PROPERTY, Property.CORRELATION_DATA, Property.TOPIC_ALIAS
BLOCKS: list[dict[int, Any]] = [
    {},
    *({CORRELATION: b"%016x" % at, PAIRS: [("sender", "bank/credit")]} for at in range(10)),
    {PAIRS: [("kind", "request"), ("recipient", "x" * 130)], Property.MESSAGE_EXPIRY_INTERVAL: 5},
    {Property.RESPONSE_TOPIC: "r/s", Property.CONTENT_TYPE: "text/plain"},
    {PAIRS: [("mqmesh-handle", "h")]},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1},
    {ALIAS: 1, CORRELATION: b"1"},
]
PAYLOADS = [b"x", b"yy", b"", b"no", b"z" * 140, b"w" * 17_000, b"\xff"]
Taken = list[tuple[bytes, Any]]


def said(properties: Any) -> Any:
    return None if properties is None else (properties.block, properties.correlation, properties.user_properties, properties.expiry)


async def site(version: int = 5, receive_maximum: int = 5000, largest: int = 1 << 20) -> tuple[Broker, Wire, Taken]:
    """A broker with two services that refuse some messages, and a client. One of them takes messages together."""
    broker = Broker(
        BrokerConfig(listen=[], limits=replace(Limits(), sys_interval=0, receive_maximum=receive_maximum, max_packet_size=largest))
    )
    broker.context.turns.clock = lambda: 0.0
    await broker.start()
    taken: Taken = []

    def together(connection: Any, payloads: list[bytes], properties: list[Any]) -> list[str | None]:
        taken.extend((bytes(payload), said(one)) for payload, one in zip(payloads, properties, strict=True))
        return ["that is wrong" if payload == b"no" else None for payload in payloads]

    def service(connection: Any, batch: Any, properties: Any) -> list[str | None]:
        return together(connection, batch.payloads, [properties] * batch.count)

    broker.site.router.services |= {TOPIC: service, "other/service": service}
    broker.site.router.together[TOPIC.encode()] = together
    return broker, Wire(broker, version).connect("p", **({"topic_alias_maximum": 5} if version == 5 else {})), taken


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[Any], list[int]]:
    version = draw(st.sampled_from([4, 5, 5, 5]))
    packets: list[Any] = []
    named = False
    number = itertools.cycle(range(1, 60000))
    for _ in range(draw(st.integers(1, 6))):
        topic, qos = draw(st.sampled_from([TOPIC] * 4 + TOPICS)), draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        for block in draw(st.lists(st.sampled_from(BLOCKS[1:11] * 3 + BLOCKS), min_size=1, max_size=40)):
            name, properties = topic, block if version == 5 else {}
            if properties.get(ALIAS) and topic == TOPIC:
                name, named = "" if named and draw(st.booleans()) else topic, True
            elif properties.get(ALIAS):
                properties = {}
            payload = draw(st.sampled_from(PAYLOADS[-1:] if Property.PAYLOAD_FORMAT_INDICATOR in block else PAYLOADS[:2] * 8 + PAYLOADS))
            flags = draw(st.integers(0, 40))
            packets.append(Publish(name, payload, qos, flags == 1, flags == 2 and qos > 0, next(number) if qos else 0, properties))
        if draw(st.booleans()):
            packets.append(Pingreq())
    size = sum(len(encode(packet, version)) for packet in packets)
    return version, packets, sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})


async def compare(version: int, packets: list[Any], cuts: list[int]) -> None:
    (single, alone, one_by_one), (chunked, publisher, taken) = await site(version), await site(version)
    with mock.patch.object(parse, "PLAIN", frozenset()):
        for packet in packets:
            alone.send(packet)
    stream = b"".join(encode(packet, version) for packet in packets)
    for begin, end in itertools.pairwise(cuts):
        publisher.give(stream[begin:end])
    assert taken == one_by_one
    assert publisher.take() == alone.take()
    assert publisher.transport.closed == alone.transport.closed
    if not alone.transport.closed:
        assert publisher.connection.received == alone.connection.received
        assert publisher.connection.unread == 0
        assert chunked.context.counters.publish_bytes_received == single.context.counters.publish_bytes_received
        assert chunked.context.counters.packets_sent == single.context.counters.packets_sent


@settings(max_examples=examples(300), deadline=None)
@given(cases())
def test_together_or_one_by_one(case: Any) -> None:
    run(compare(*case))


def test_a_topic_as_long_as_theirs_is_told_apart() -> None:
    packets = [replace(one, topic=topic) for topic in (TOPIC, "interchange/past", TOPIC) for one in responses(3)]
    run(compare(5, packets, [0, sum(len(encode(one, 5)) for one in packets)]))


def responses(count: int) -> list[Publish]:
    return [Publish(TOPIC, b"x" * (1 + at % 3), 1, False, False, 1 + at, BLOCKS[1 + at % 10]) for at in range(count)]


async def calls(packets: list[Publish], receive_maximum: int = 5000) -> tuple[list[int], bytes, bool]:
    """How many messages the service gets at once, what the publisher gets, and whether its connection is closed."""
    broker, publisher, taken = await site(receive_maximum=receive_maximum)
    sizes: list[int] = []
    router = broker.site.router
    single, together = router.services[TOPIC], router.together[TOPIC.encode()]

    def counted(service: Any) -> Any:
        def call(*arguments: Any) -> Any:
            before = len(taken)
            answered = service(*arguments)
            sizes.append(len(taken) - before)
            return answered

        return call

    router.services[TOPIC], router.together[TOPIC.encode()] = counted(single), counted(together)
    publisher.send(*packets)
    return sizes, publisher.take(), publisher.transport.closed


@pytest.mark.parametrize("alike", [False, True])
def test_those_of_one_piece_are_taken_together_and_not_too_many(alike: bool) -> None:
    """Else a client could hold the loop for as long as its piece is large."""
    packets = [replace(one, payload=b"x", properties=BLOCKS[1]) if alike else one for one in responses(2 * MOST + 3)]
    sizes, answered, _ = run(calls(packets))
    assert sizes == [MOST, MOST, 3]
    assert answered == b"".join(encode(Puback(1 + at), 5) for at in range(2 * MOST + 3))


@pytest.mark.parametrize("count", [15, 16])
def test_a_message_counts_once_against_the_receive_maximum(count: int) -> None:
    _, _, closed = run(calls(responses(count), receive_maximum=15))
    assert closed == (count > 15)


async def broken(data: bytes) -> tuple[Taken, bool]:
    _, publisher, taken = await site(largest=200)
    publisher.give(b"".join(encode(one, 5) for one in responses(3)) + data)
    return taken, publisher.transport.closed


@pytest.mark.parametrize(
    "data",
    [
        b"\x32\xff\xff\xff\xff\xff\x01",  # a length of five bytes
        b"\x32\x03\x00\x01a",  # it ends before its packet identifier
        encode(responses(1)[0], 5).replace(b"\0\1", b"\0\0", 1),  # packet identifier 0, behind the topic
        encode(Publish(TOPIC, b"x" * 200, 1, packet_id=4, properties=BLOCKS[1]), 5),  # more than a packet may have
        b"\x32\x16\x00\x10interchange/post\x00\x05\x02\x7f\x00",  # a property that does not exist
    ],
)
def test_what_is_before_a_broken_packet_is_taken(data: bytes) -> None:
    taken, closed = run(broken(data))
    assert len(taken) == 3
    assert closed
