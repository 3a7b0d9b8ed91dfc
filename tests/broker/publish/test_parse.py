"""What the broker does with packets does not depend on how they were cut into chunks, nor on their company.

Any sequence of packets is given to three brokers: to one a packet at a time on the general path, to one a packet at a time, to the
last in any chunks. Every byte that every client gets has to be the same. A model in a few lines says what the first broker has
to deliver.
"""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect, Pingreq, Publish, Pubrel, Subscription
from mqmesh.mqtt.properties import Property
from support.examples import examples
from support.models.broker_wire import Wire, run, started

BLOCKS: list[dict[int, Any]] = [
    {},
    {},
    {Property.CONTENT_TYPE: "x"},
    {Property.CONTENT_TYPE: "y"},
    {Property.USER_PROPERTY: [("k", "v" * 130)]},
    {Property.MESSAGE_EXPIRY_INTERVAL: 60, Property.CORRELATION_DATA: b"c"},
    {Property.USER_PROPERTY: [("é", "1"), ("", "")], Property.CONTENT_TYPE: "y"},
    {Property.CORRELATION_DATA: b"\0\xff", Property.RESPONSE_TOPIC: "r/s"},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1},
    {Property.TOPIC_ALIAS: 1},
    {Property.TOPIC_ALIAS: 2, Property.RESPONSE_TOPIC: "r"},
]


TOPICS = ["a", "a/b", "a/c", "a/d", "b/" + "long" * 40, "nobody"]


@st.composite
def varied(draw: st.DrawFn, version: int, qos: int) -> list[Any]:
    """Plain frames in a row, each of another topic, size or block of properties."""
    parts = st.tuples(
        st.sampled_from(TOPICS[:4]), st.sampled_from([b"x", b"y", b"z" * 130]), st.sampled_from(BLOCKS[:5] if version == 5 else [{}])
    )
    found = draw(st.lists(parts, min_size=1, max_size=12))
    first, step = draw(st.integers(1, 12)), draw(st.sampled_from([1, 1, 1, 2]))
    return [
        Publish(topic, payload, qos, packet_id=first + n * step if qos else 0, properties=properties)
        for n, (topic, payload, properties) in enumerate(found)
    ]


@st.composite
def streams(draw: st.DrawFn, version: int) -> list[Any]:
    """PUBLISH packets, often many alike in a row, with other packets between them."""
    packets: list[Any] = []
    aliases: dict[int, str] = {}
    usual = draw(st.integers(0, 2))
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.integers(0, 14))
        if kind == 0:
            packets.append(Pingreq())
            continue
        if kind == 1:
            first = draw(st.integers(1, 12))
            packets += [Pubrel(packet_id) for packet_id in range(first, first + draw(st.integers(1, 5)))]
            continue
        if kind < 8:
            packets += draw(varied(version, usual))
            continue
        qos = draw(st.integers(0, 2))
        topic = draw(st.sampled_from(TOPICS))
        properties = draw(st.sampled_from(BLOCKS)) if version == 5 else {}
        alias = properties.get(Property.TOPIC_ALIAS)
        if alias in aliases and draw(st.booleans()):
            topic = ""
        elif alias:
            aliases[alias] = topic
        count = draw(st.sampled_from([1, 1, 1, 2, 3, 6, 25]))
        first, step = draw(st.integers(1, 12)), draw(st.sampled_from([1, 1, 1, 0, 2, -1]))
        payload = draw(st.sampled_from([b"", b"x", b"yy", b"z" * 127, b"w" * 300]))
        retain, dup = draw(st.integers(0, 4)) == 0, draw(st.integers(0, 4)) == 0 and qos > 0
        for n in range(count):
            packet_id = max(1, first + n * step) if qos else 0
            packets.append(Publish(topic, payload, qos, retain, dup, packet_id, properties))
    return packets


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[Any], list[int], bool]:
    version = draw(st.sampled_from([4, 5]))
    packets = draw(streams(version))
    size = sum(len(encode(packet, version)) for packet in packets)
    cuts = draw(st.lists(st.integers(0, size), max_size=5))
    return version, packets, sorted({0, size, *cuts}), draw(st.booleans())


async def site(plain: bool) -> tuple[Any, dict[str, Wire]]:
    """A broker and its subscribers. plain: none that keeps messages from being moved in spans."""
    broker = await started(max_packet_size=100_000, receive_maximum=200)
    clients = {
        "old": Wire(broker, 4).connect("old", Subscription("#", 2)),
        "new": Wire(broker, 5).connect("new", Subscription("#", 2)),
        "new, QoS 1": Wire(broker, 5).connect("new, QoS 1", Subscription("+", 1)),
        "QoS 0": Wire(broker, 4).connect("QoS 0", Subscription("a/#", 0)),
        "aliases": Wire(broker, 5).connect("aliases", Subscription("#", 1), topic_alias_maximum=2),
        "small packets": Wire(broker, 5).connect("small packets", Subscription("#", 1), maximum_packet_size=150),
        "narrow": Wire(broker, 5).connect("narrow", Subscription("#", 2), receive_maximum=3),
        "away": Wire(broker, 5).connect("away", Subscription("a/+", 2), session_expiry_interval=1000),
    }
    as_published = Subscription("a/#", 1, retain_as_published=True)
    clients["as published"] = Wire(broker, 5).connect("as published", as_published)
    if not plain:
        published = (Subscription("a", 1, retain_as_published=True), Subscription("a/#", 0))
        clients["identified"] = Wire(broker, 5).connect("identified", *published, identifier=7)
        clients["shares 1"] = Wire(broker, 5).connect("shares 1", Subscription("$share/g/#", 1))
        clients["shares 2"] = Wire(broker, 4).connect("shares 2", Subscription("$share/g/#", 1))
    for topic in TOPICS:
        broker.site.router.route(topic.encode())
    clients["away"].connection.connection_lost(None)
    return broker, clients


def come_back(broker: Any, clients: dict[str, Wire]) -> None:
    """The one that was away comes back, as one that limits what it takes."""
    clients["away"] = Wire(broker, 5)
    found = {Property.SESSION_EXPIRY_INTERVAL: 1000, Property.TOPIC_ALIAS_MAXIMUM: 1, Property.MAXIMUM_PACKET_SIZE: 200}
    clients["away"].send(Connect("away", 5, False, properties=found))


def expected(packets: list[Any]) -> list[tuple[str, bytes, int]]:
    """What a subscriber of everything at QoS 2 gets: each message, but QoS 2 ones only once until they are released."""
    found = []
    open_2: set[int] = set()
    aliases: dict[int, str] = {}
    for packet in packets:
        if isinstance(packet, Pubrel):
            open_2.discard(packet.packet_id)
        if not isinstance(packet, Publish):
            continue
        topic = packet.topic
        alias = packet.properties.get(Property.TOPIC_ALIAS)
        if topic and alias:
            aliases[alias] = topic
        topic = topic or aliases[alias]
        if packet.qos == 2:
            if packet.packet_id in open_2:
                continue
            open_2.add(packet.packet_id)
        found.append((topic, packet.payload, packet.qos))
    return found


def messages(packets: list[Any]) -> list[tuple[str, bytes, int]]:
    """The messages that a client got, aliases resolved."""
    aliases: dict[int, str] = {}
    found = []
    for packet in packets:
        alias = packet.properties.get(Property.TOPIC_ALIAS)
        if packet.topic and alias:
            aliases[alias] = packet.topic
        found.append((packet.topic or aliases[alias], packet.payload, packet.qos))
    return found


async def compare(version: int, packets: list[Any], cuts: list[int], spans: bool) -> None:
    plain, plain_clients = await site(spans)
    single, single_clients = await site(spans)
    chunked, chunked_clients = await site(spans)
    plain_publisher = Wire(plain, version).connect("p")
    single_publisher = Wire(single, version).connect("p")
    chunked_publisher = Wire(chunked, version).connect("p")
    for packet in packets:
        single_publisher.send(packet)
    with mock.patch("mqmesh.broker.publish.parse.PLAIN", frozenset()):
        for packet in packets:
            plain_publisher.send(packet)
    for broker, clients in ((plain, plain_clients), (single, single_clients)):
        come_back(broker, clients)
    for name, client in plain_clients.items():
        assert b"".join(client.transport.written) == b"".join(single_clients[name].transport.written), name
    stream = b"".join(encode(packet, version) for packet in packets)
    for begin, end in itertools.pairwise(cuts):
        chunked_publisher.give(stream[begin:end])
    assert chunked_publisher.connection.unread == 0
    assert chunked_publisher.take() == single_publisher.take() == plain_publisher.take()
    assert chunked_publisher.connection.received == plain_publisher.connection.received == sum(isinstance(one, Publish) for one in packets)
    come_back(chunked, chunked_clients)
    wanted = expected(packets)
    for name, client in chunked_clients.items():
        data = client.take()
        other = single_clients[name]
        if not name.startswith("shares"):
            assert data == b"".join(other.transport.written), name
        client.transport.written.append(data)
        if name == "away":
            continue
        found = messages(client.packets())
        if name in ("old", "new"):
            assert found == wanted
        if name == "aliases":
            assert found == [(topic, payload, min(qos, 1)) for topic, payload, qos in wanted]
    shared = [message for name in chunked_clients if name.startswith("shares") for message in messages(chunked_clients[name].packets())]
    assert len(shared) <= len(wanted)
    for name in ("publish_bytes_received", "publish_bytes_sent", "packets_sent"):
        assert getattr(chunked.context.counters, name) == getattr(plain.context.counters, name), name
    assert (chunked.context.counters.dropped, chunked.context.counters.expired) == (
        single.context.counters.dropped,
        single.context.counters.expired,
    )
    assert {(run.topic, run.payloads[0]) for run in chunked.site.retained.all()} == {
        (run.topic, run.payloads[0]) for run in single.site.retained.all()
    }


@settings(max_examples=examples(250), deadline=None)
@given(cases())
def test_any_chunks_of_any_packets(case):
    run(compare(*case))
