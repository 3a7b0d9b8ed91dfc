"""A short run of the fuzzing of the broker's front door; `fuzz_broker.py` runs longer by hand."""

from __future__ import annotations

import asyncio
import random

import pytest
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.packets import Connect
from mqmesh.mqtt.properties import Property
from support.models.broker_wire import started

from .fuzz_broker import connects, conversation, converse, round_of

# Conversations that have ended badly once, and edges of CONNECT: each stays tried.
SEEDS = [
    # a refusal whose words did not fit the client's Maximum Packet Size [MQTT-3.2.2-19]
    [encode(Connect("c", 5, properties={Property.AUTHENTICATION_METHOD: "x", Property.MAXIMUM_PACKET_SIZE: 5}), 5)],
    [encode(Connect("c", 5, properties={Property.AUTHENTICATION_METHOD: "x", Property.MAXIMUM_PACKET_SIZE: 1}), 5)],
    [encode(Connect("", 5, properties={Property.MAXIMUM_PACKET_SIZE: 5}), 5)],
    # MQTT 3.1: a SUBSCRIBE with DUP, and one whose filter is refused
    [encode(Connect("c", 4, mqisdp=True), 4), b"\x8a\x06\0\1\0\1t\1", b"\x82\xd7\3\0\2\3\xd2" + b"a/" * 489 + b"\1"],
    # names, levels and lengths that are nearly right
    [b"\x10\0"],
    [b"\x10\x02\0\0"],
    [b"\x10\x0c\0\4MQTT\x06\2\0\0\0\0"],
    [b"\x10\x0e\0\6MQIsdp\4\2\0\0\0\0"],
    [b"\x10\xff\xff\xff\x7f"],
    [b"\x10\xff\xff\xff\xff\x7f"],
    [b"\x10\x0d\0\4MQTT\5\2\0\0\x80\0\0"],
]


def test_good_connects_are_let_in_or_refused_for_their_method() -> None:
    async def run() -> None:
        broker = await started()
        for data, _ in connects():
            assert converse(broker, [data]) in ("open CONNACK CONNACK", "closed CONNACK CONNACK")
        await broker.stop()

    asyncio.run(run())


@pytest.mark.parametrize("pieces", SEEDS)
def test_what_was_found_once(pieces: list[bytes]) -> None:
    async def run() -> None:
        broker = await started()
        converse(broker, pieces)
        converse(broker, [bytes((byte,)) for byte in b"".join(pieces)])
        await broker.stop()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(6))
def test_damaged_conversations(seed: int) -> None:
    outcomes = round_of(seed)
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("open CONNACK")) > 3
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("closed")) > 3


def test_the_conversations_of_a_seed_are_the_same() -> None:
    assert [conversation(random.Random(5)) for _ in range(3)] == [conversation(random.Random(5))] * 3
