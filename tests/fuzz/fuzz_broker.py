"""Fuzzing of the broker's front door: damaged CONNECTs, and damaged packets behind good ones, in any pieces.

By hand:  python -m tests.fuzz.fuzz_broker --for 600          seeded conversations; prints the seed
          python -m tests.fuzz.fuzz_broker --seed 7 --runs 1  one round again

`converse` is the contract for one client: nothing breaks inside the broker, all that it says is lawful (the strict reader of the
conformance suite looks at it), CONNACK comes first, no more is held than came, and nothing is said after the end.
`round_of` is the contract for many: one broker serves them all, another client notices nothing, and when they are gone nothing of
them is left.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conformance import wire
from conformance.wire import Unlawful
from mqmesh.broker.client import connection as connection_module
from mqmesh.broker.ledger import QUEUED
from mqmesh.mqtt import packets as p
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.properties import Property
from support.models.broker_wire import Wire, started

from .fuzz_codec import mutate, samples
from .runs import main_of

TALKS = 100  # conversations of a round, all with one broker


def connects() -> list[tuple[bytes, int]]:
    """(CONNECT, version) of many kinds, all of them good."""
    will = p.Will("w/t", b"gone", 1, True)
    will_5 = p.Will("w/t", b"gone", 2, False, {Property.WILL_DELAY_INTERVAL: 1, Property.USER_PROPERTY: [("a", "b")]})
    wishes = {
        Property.SESSION_EXPIRY_INTERVAL: 5,
        Property.RECEIVE_MAXIMUM: 2,
        Property.MAXIMUM_PACKET_SIZE: 60,
        Property.TOPIC_ALIAS_MAXIMUM: 3,
        Property.REQUEST_RESPONSE_INFORMATION: 1,
        Property.REQUEST_PROBLEM_INFORMATION: 0,
        Property.USER_PROPERTY: [("a", "b"), ("a", "b")],
    }
    method = {Property.AUTHENTICATION_METHOD: "mqmesh-1", Property.AUTHENTICATION_DATA: b"\0\1"}
    found = [
        p.Connect("c", 4, True, 9),
        p.Connect("c", 4, False, 0, "u", b"p", will),
        p.Connect("", 4, True),
        p.Connect("c", 4, True, mqisdp=True),
        p.Connect("c", 5),
        p.Connect("", 5, False, 1, "u", b"p", will_5, wishes),
        p.Connect("c", 5, False, 0, None, b"p", will),
        p.Connect("c", 5, properties=method),
    ]
    return [(encode(one, one.version), one.version) for one in found]


def conversation(chance: random.Random) -> tuple[list[bytes], int]:
    """What one client says, in pieces, and the version that it means."""
    first, version = chance.choice(connects())
    pool = [one for one in samples() if one[1] == version]
    if chance.random() < 0.6:
        first = mutate(first, chance, samples() + connects())
    said = [first]
    for _ in range(chance.randrange(6)):
        packet = chance.choice(pool)[0]
        said.append(mutate(packet, chance, pool) if chance.random() < 0.3 else packet)
    whole = b"".join(said)
    match chance.randrange(4):
        case 0:
            return [whole], version
        case 1:
            return [whole[index : index + 1] for index in range(len(whole))], version
        case 2:
            return said, version
    cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(3))
    return [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)], version


def read(said: bytes, client: Wire) -> list[wire.Packet]:
    """What the broker said, read strictly. Raises Unlawful."""
    connection = client.connection
    versions = [3 if connection.mqisdp else connection.version]
    if connection.session is None:
        versions = [5, 4]  # a refusal may go to one whose version was never known
    for version in versions:
        try:
            return list(wire.packets_in(said, version))
        except Unlawful:
            if version == versions[-1]:
                raise
    raise AssertionError("no version")


def converse(broker: Any, pieces: list[bytes]) -> str:
    """One client. How it ended: by the kinds of packets that the broker said last."""
    client = Wire(broker, 5)
    given = 0
    for piece in pieces:
        client.give(piece)
        given += len(piece)
        if client.transport.closed:
            break
        assert client.connection.unread <= given
    said = client.take()
    assert wire.split(said) is not None or not said, said.hex()
    found = read(said, client)
    assert sum(one.size for one in found) == len(said), "no half packets"
    kinds = [one.kind for one in found]
    assert "CONNACK" not in kinds[1:]
    if kinds:
        assert kinds[0] == "CONNACK", kinds
        assert "DISCONNECT" not in kinds[:-1], kinds
    most = client.connection.max_packet
    assert not most or all(one.size <= most for one in found), (most, found)
    closed = client.transport.closed
    client.give(wire.PINGREQ)
    assert not closed or not client.take(), "something is said after the end"
    client.connection.connection_lost(None)
    return f"{'closed' if closed else 'open'} {kinds[0] if kinds else '-'} {kinds[-1] if kinds else '-'}"


async def _round(seed: int, outcomes: Counter[str]) -> None:
    chance = random.Random(seed)
    broker = await started(max_packet_size=100_000)
    other = Wire(broker, 5).connect("bystander")
    with mock.patch.object(connection_module.log, "exception", side_effect=AssertionError("an internal error")):
        for _ in range(TALKS):
            pieces, _ = conversation(chance)
            outcomes[converse(broker, pieces)] += 1
    other.send(p.Pingreq())
    assert [type(one).__name__ for one in other.packets()] == ["Pingresp"]
    for session in list(broker.site.sessions):
        if session.client_id != "bystander":
            assert session.connection is None
            broker.site.sessions.end(session)
    assert len(broker.site.sessions) == 1
    assert broker.context.ledger.held[QUEUED] == 0
    assert not broker.context.touched
    other.connection.connection_lost(None)
    await broker.stop()


def round_of(seed: int) -> Counter[str]:
    """`TALKS` conversations of one seed with one broker; how often each outcome came."""
    outcomes: Counter[str] = Counter()
    asyncio.run(_round(seed, outcomes))
    return outcomes


if __name__ == "__main__":
    main_of(__doc__, round_of)
