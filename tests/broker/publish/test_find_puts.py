"""Messages that are put into queues together leave the queues as if each had come by itself.

Any sequence of packets is given to two brokers: to one a packet at a time on the general path, to the other in any chunks. The publisher
gets the same bytes, and the queues hold the same messages in the same order.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.auth import rules as rules_of_access
from mqmesh.broker.auth.settings import AccessSettings
from mqmesh.broker.config import BrokerConfig, Limits
from mqmesh.broker.ports import Context
from mqmesh.broker.publish import parse
from mqmesh.broker.queues.checks.checks import Checks
from mqmesh.broker.queues.committer import Committer
from mqmesh.broker.queues.core.plan import ALL
from mqmesh.broker.queues.core.rules import DEAD_LETTER, DROP_OLDEST, Rules
from mqmesh.broker.queues.settings import QueueSettings
from mqmesh.broker.server import Broker
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Pingreq, Puback, Publish
from mqmesh.mqtt.properties import Property
from support.examples import examples
from support.models.broker_wire import Wire, run

QUEUES = {
    "orders": Rules(),
    "few": Rules(messages=7),
    "small": Rules(bytes=400),
    "latest": Rules(messages=5, when_full=DROP_OLDEST),
    "dying": Rules(messages=5, when_full=DEAD_LETTER, dead_letters="dead"),
    "dead": Rules(),
    "slow": Rules(delay=5, age=30, plan=ALL, reveal=False),
    "checked": Rules(),
}
TOPICS = [*(f"$queue/{name}" for name in QUEUES), "$queue/none", "$queue/closed", "a"]
EXPIRY, PAIRS, ALIAS = Property.MESSAGE_EXPIRY_INTERVAL, Property.USER_PROPERTY, Property.TOPIC_ALIAS
BLOCKS: list[dict[int, Any]] = [
    {},
    *({EXPIRY: 3600, PAIRS: [("mqmesh-priority", str(at)), ("shop", "porto")], Property.CONTENT_TYPE: "text/plain"} for at in range(10)),
    {PAIRS: [("JMSPriority", "7")]},
    {EXPIRY: 0},
    {EXPIRY: 5, PAIRS: [("mqmesh-delay", "2s")]},
    {PAIRS: [("mqmesh-group", "g"), ("long", "x" * 130)]},
    {PAIRS: [("mqmesh-reveal", "no")]},
    {PAIRS: [("mqmesh-reveal", "yes"), ("mqmesh-deliveries", "3")]},
    {Property.CORRELATION_DATA: b"\0\xff", Property.RESPONSE_TOPIC: "r/s"},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1, PAIRS: [("mqmesh-ack", "receipts")]},
    {ALIAS: 1, EXPIRY: 60},
    {ALIAS: 2, PAIRS: [("mqmesh-priority", "2")]},
]
ODD: list[dict[int, Any]] = [
    {PAIRS: [("mqmesh-handle", "h1")]},
    {PAIRS: [("mqmesh-handle", "h2"), ("mqmesh-priority", "9")]},
    {PAIRS: [("mqmesh-plan", "a | b")]},
    {PAIRS: [("mqmesh-priority", "77")]},
    {PAIRS: [("mqmesh-checksum", "crc32:8cdc1683")]},
    {Property.PAYLOAD_FORMAT_INDICATOR: 1, EXPIRY: 9},
]


@st.composite
def streams(draw: st.DrawFn, version: int) -> list[Any]:
    """PUBLISH packets to a few topics, most of them to queues and with properties, with other packets between them."""
    packets: list[Any] = []
    aliases: dict[int, str] = {}
    number = itertools.cycle(range(1, 60000))
    for _ in range(draw(st.integers(1, 8))):
        topic = draw(st.sampled_from(TOPICS[:1] * 4 + TOPICS))
        qos = draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
        usual = draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=3))
        for said in draw(st.lists(st.sampled_from(usual * 6 + BLOCKS + ODD), min_size=1, max_size=20)):
            properties = said if version == 5 else {}
            name, alias = topic, properties.get(ALIAS)
            if alias and aliases.get(alias) == topic and draw(st.integers(0, 3)):
                name = ""
            elif alias:
                aliases[alias] = topic
            payload = draw(st.sampled_from([b"", b"x", b"y" * 20, b"z" * 140, b"\xff"] if draw(st.integers(0, 9)) == 0 else [b"x", b"yy"]))
            flags = draw(st.integers(0, 30))
            packets.append(
                Publish(name, payload, qos, flags == 1, flags == 2 and qos > 0, next(number) if qos else 0, properties),
            )
        if draw(st.booleans()):
            packets.append(Pingreq())
    return packets


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[Any], list[int]]:
    version = draw(st.sampled_from([4, 5, 5]))
    packets = draw(streams(version))
    size = sum(len(encode(packet, version)) for packet in packets)
    return version, packets, sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))})


async def site(folder: Path, receive_maximum: int = 5000, version: int = 5) -> tuple[Broker, Wire]:
    """A broker, and a client that may publish to all topics but one."""
    rules = dict(QUEUES, closed=Rules())
    queues = QueueSettings(rules, {"slow": ["a", "b"]}, checks={"checked": Checks(largest=100, checksum="optional")}, folder=folder)
    queues.durability = "os"
    limits = replace(Limits(), sys_interval=0, receive_maximum=receive_maximum)
    may = rules_of_access.Rule(1, True, frozenset(("publish", "subscribe")), ("a", *TOPICS[:-2]))
    access = AccessSettings(rules=rules_of_access.Rules((may,)))
    broker = Broker(BrokerConfig(listen=[], limits=limits, queues=queues, access=access))
    broker.context.turns.clock = lambda: 0.0
    await broker.start()
    return broker, Wire(broker, version).connect("p", **({"topic_alias_maximum": 5} if version == 5 else {}))


async def left(broker: Broker) -> dict[str, Any]:
    """What the queues hold when all is committed."""
    queues = broker.site.queues
    assert queues is not None
    await queues.settled(60)
    found = {}
    for name, queue in queues.store.queues.items():
        queue.check()
        assert not queue.gathering + queue.gathering_size + queue.gathering_memory
        held = [
            (block.first + at, block.key, payload, block.meta(at), [part.states[at] for part in block.parts])
            for block in queue.blocks.values()
            for at, payload in enumerate(queues.store.payloads(queue, block))
        ]
        found[name] = held, dict(queue.counts), queue.waiting, queue.size
    queues.stop()
    return found


async def compare(version: int, packets: list[Any], cuts: list[int], folder: Path) -> None:
    single, alone = await site(folder / "single", version=version)
    chunked, publisher = await site(folder / "chunked", version=version)
    with mock.patch.object(Committer, "begin"):  # all is one commit
        with mock.patch.object(parse, "PLAIN", frozenset()):
            for packet in packets:
                alone.send(packet)
        stream = b"".join(encode(packet, version) for packet in packets)
        # what has no room is refused by the run or the batch of frames: here each frame is a run, and there are no other batches
        single_frames = mock.patch.object(parse, "_run_end", lambda data, position, topic_end, payload, stop, qos: stop)
        with single_frames, mock.patch.object(parse, "find_packets", return_value=None):
            for begin, end in itertools.pairwise(cuts):
                publisher.give(stream[begin:end])
    assert await left(chunked) == await left(single)
    assert publisher.take() == alone.take()
    assert publisher.transport.closed == alone.transport.closed
    if not alone.transport.closed:
        assert publisher.connection.received == alone.connection.received
        assert publisher.connection.unread == 0
    for name in ("publish_bytes_received", "packets_sent", "dropped"):
        assert getattr(chunked.context.counters, name) == getattr(single.context.counters, name), name


@settings(max_examples=examples(200), deadline=None)
@given(cases())
def test_together_or_one_by_one(case):
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Context, "steady", return_value=1e9):
        run(compare(*case, Path(folder)))


async def send_in_one_piece(folder: Path, queue: str, count: int) -> None:
    broker, publisher = await site(folder, receive_maximum=15)
    publisher.send(*[Publish(f"$queue/{queue}", b"x", 1, False, False, 1 + at, BLOCKS[1 + at % 5]) for at in range(count)])
    assert publisher.transport.closed == (count > 15)
    await left(broker)
    if count <= 15:
        assert publisher.take() == b"".join(encode(Puback(1 + at), 5) for at in range(count))


@pytest.mark.parametrize("count", [15, 16])
@pytest.mark.parametrize("queue", ["orders", "checked"])  # together, and each by itself
def test_a_message_counts_once_against_the_receive_maximum(tmp_path: Path, queue: str, count: int) -> None:
    run(send_in_one_piece(tmp_path, queue, count))


TURNS = ["$queue/orders", "$queue/closed", "$queue/checked", "$queue/orders"]  # as long as the first one, and one byte longer


@pytest.mark.parametrize("topics", [TURNS, TURNS[::-1]])
def test_messages_of_queues_in_turn_are_told_apart(tmp_path: Path, topics: list[str]) -> None:
    """Their frames have fixed headers of two bytes and of three, and one size or several."""
    packets = [Publish(topic, b"x" * size, 1, False, False, 1) for size in (99, 99, 100, 140) for topic in [*topics, "$queue/orders"] * 2]
    packets = [replace(packet, packet_id=1 + at) for at, packet in enumerate(packets)]
    with mock.patch.object(Context, "steady", return_value=1e9):
        run(compare(4, packets, [0, sum(len(encode(one, 4)) for one in packets)], tmp_path))
