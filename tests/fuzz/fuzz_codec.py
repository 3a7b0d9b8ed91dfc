"""Fuzzing of everything that reads bytes of a peer: each input ends in "accepted" or in a documented `PeerError`.

By hand:  python -m tests.fuzz.fuzz_codec --for 300          seeded mutations of real packets; prints the seed
          python -m tests.fuzz.fuzz_codec --seed 7 --runs 1  one round again
          python -m tests.fuzz.fuzz_codec --atheris [CORPUS] coverage-guided, with atheris installed

`check` is the whole contract. What is accepted must also survive: it encodes again, and decodes to the same packet.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mqmesh.mqtt import packets as p
from mqmesh.mqtt.codec import decode, encode
from mqmesh.mqtt.errors import PeerError
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.properties import PROPERTIES, PacketKind, Property, PropertyType, encode_properties
from mqmesh.mqtt.publish import publish_properties
from mqmesh.mqtt.reasons import Reason

from .runs import main_of

MAX_SIZE = 1 << 16
_SAMPLE_VALUES: dict[PropertyType, Any] = {
    PropertyType.BOOLEAN: 1,
    PropertyType.TWO_BYTES: 300,
    PropertyType.FOUR_BYTES: 70_000,
    PropertyType.VARINT: [1, 128, 2_097_152],
    PropertyType.BINARY: b"\0\xff",
    PropertyType.STRING: "ä/b",
    PropertyType.PAIR: [("a", "b"), ("", "")],
}


def _all_properties(kind: PacketKind) -> dict[int, Any]:
    found = {key: _SAMPLE_VALUES[rule.type] for key, rule in PROPERTIES.items() if kind in rule.packets}
    if kind == PacketKind.SUBSCRIBE:
        found[Property.SUBSCRIPTION_IDENTIFIER] = [16_384]
    return found


def samples() -> list[tuple[bytes, int]]:
    """(packet, version) of each kind, plain and with every property that it may carry."""
    filters = [p.Subscription("a/+/#", 1), p.Subscription("$share/g/a", 2, False, True, 2)]
    plain = [
        p.Pingreq(),
        p.Pingresp(),
        p.Disconnect(),
        p.Publish("a/b", b"x"),
        p.Publish("a/b", b"x" * 200, 2, True, True, 9),
        *(make(1) for make in (p.Puback, p.Pubrec, p.Pubrel, p.Pubcomp)),
        p.Unsubscribe(2, ["a", "b/#"]),
        p.Suback(1, [Reason.GRANTED_QOS_2, Reason.UNSPECIFIED_ERROR]),
        p.Connack(True),
    ]
    four = [
        *plain,
        p.Unsuback(3),
        p.Subscribe(1, filters),
        p.Connect("c", 4, True, 9, "u", b"p", p.Will("w", b"x", 1)),
        p.Connect(version=4, mqisdp=True),
    ]
    will = p.Will("w", b"x", 1, True, _all_properties(PacketKind.WILL))
    full = _all_properties
    five = [
        *plain,
        p.Connect("c", 5, False, 9, "u", b"p", will, full(PacketKind.CONNECT)),
        p.Connack(False, Reason.BANNED, full(PacketKind.CONNACK)),
        p.Publish("", b"x", 1, packet_id=1, properties=full(PacketKind.PUBLISH)),
        p.Puback(1, Reason.QUOTA_EXCEEDED, full(PacketKind.PUBACK)),
        p.Pubrec(1, Reason.QUOTA_EXCEEDED),
        p.Pubrel(1, Reason.PACKET_IDENTIFIER_NOT_FOUND, full(PacketKind.PUBREL)),
        p.Subscribe(1, filters, full(PacketKind.SUBSCRIBE)),
        p.Suback(1, [Reason.SUCCESS], full(PacketKind.SUBACK)),
        p.Unsubscribe(1, ["$share/g/+"], full(PacketKind.UNSUBSCRIBE)),
        p.Unsuback(1, [Reason.NO_SUBSCRIPTION_EXISTED], full(PacketKind.UNSUBACK)),
        p.Disconnect(Reason.SERVER_MOVED, full(PacketKind.DISCONNECT)),
        p.Auth(Reason.CONTINUE_AUTHENTICATION, full(PacketKind.AUTH)),
    ]
    return [(encode(one, 4), 4) for one in four] + [(encode(one, 5), 5) for one in five]


def check(data: bytes, version: int) -> str:
    """Read the bytes as a stream of packets; "accepted" or the clause that was broken. Any other outcome is an exception."""
    framer = Framer(MAX_SIZE)
    try:
        for first, body in framer.feed(data):
            _check_frame(first, body, version)
    except PeerError as error:
        return _documented(error, data)
    if framer.error is not None:
        return _documented(framer.error, data)
    return "accepted" if framer.unfinished() == 0 else "incomplete"


def _documented(error: PeerError, data: bytes) -> str:
    assert error.text, data.hex()
    assert error.clause, data.hex()
    assert error.reason >= 0x80, data.hex()
    return error.clause


def _check_frame(first: int, body: bytes, version: int) -> None:
    packet = decode(first, body, version)
    again = encode(packet, version)
    [(first_again, body_again)] = Framer().feed(again)
    assert decode(first_again, body_again, version) == packet, (body.hex(), packet)
    assert len(again) <= len(body) + 5, "the encoder writes the shortest form"
    if first >> 4 == PacketKind.PUBLISH and version == 5:
        _check_publish(packet, first, body)


def _check_publish(packet: Any, first: int, body: bytes) -> None:
    start = 2 + (body[0] << 8 | body[1]) + (2 if first & 6 else 0)
    read = publish_properties(body, start, len(body))
    assert body[read.end :] == packet.payload
    hidden = (Property.TOPIC_ALIAS, Property.SUBSCRIPTION_IDENTIFIER)
    travels = {key: value for key, value in packet.properties.items() if key not in hidden}
    assert len(read.block) == len(encode_properties(travels))


def mutate(data: bytes, chance: random.Random, pool: list[tuple[bytes, int]]) -> bytes:
    """A damaged copy: bits, bytes, lengths, cuts, repeats, splices; the Remaining Length is mended now and then."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(changed) + 1)
        span = chance.randrange(1, 9)
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice((0, 1, 2, 0x26, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                del changed[at : at + span]
            case 3:
                changed[at:at] = chance.randbytes(span)
            case 4:
                changed[at:at] = changed[at : at + span]
            case 5:
                other, _ = chance.choice(pool)
                cut = chance.randrange(len(other))
                changed[at : at + span] = other[cut : cut + chance.randrange(1, 20)]
            case _:
                changed += chance.choice(pool)[0]
    if chance.random() < 0.6 and len(changed) >= 2:
        _mend(changed)
    return bytes(changed)


def _mend(data: bytearray) -> None:
    """Make the first packet take all bytes (of small packets)."""
    end = 1
    while end < len(data) and data[end] & 0x80 and end < 4:
        end += 1
    rest = data[end + 1 :]
    if len(rest) < 128:
        data[1:] = bytes((len(rest),)) + rest
    else:
        data[1:] = bytes((len(rest) & 0x7F | 0x80, len(rest) >> 7 & 0x7F)) + rest


def round_of(seed: int, count: int = 1000) -> Counter[str]:
    """`count` damaged packets of one seed; how often each outcome came."""
    chance = random.Random(seed)
    pool = samples()
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        data, version = chance.choice(pool)
        outcomes[check(mutate(data, chance, pool), version if chance.random() < 0.9 else 9 - version)] += 1
    return outcomes


def _atheris(arguments: list[str]) -> None:
    import atheris

    atheris.instrument_all()

    def one(data: bytes) -> None:
        if data:
            check(data[1:], 4 + (data[0] & 1))

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


if __name__ == "__main__":
    if "--atheris" in sys.argv:
        _atheris([argument for argument in sys.argv[1:] if argument != "--atheris"])
    else:
        main_of(__doc__, round_of)
