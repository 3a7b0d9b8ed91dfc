"""A retained message as the sites keep it: topic, key, content; and its three written forms.

The *key* says which of two records of one topic counts: the higher one, everywhere, whatever came first. A record whose message was
deleted or has expired is *buried*: it stays for a while without content, so that an older message of its topic cannot come back.

Written forms (msgpack, checked to the last byte when read)
- record, between sites: [topic, time, origin, born, kind, qos, properties, payload, ms since published, expiry | nil, mask, over]
- row, in a store: the record without its topic, with `published` by the clock of what is stored, the running time at which it was
  buried, the keys announced early, silent
- mark, which travels with the live message: [time, origin, born, mask, over]

Invariants
- a key names one content: whoever has the key has the same message, though one of them may have buried it already;
- a record does not change; `told`, `early` and `buried_at` are this site's own notes.

It does not know who has what.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgpack

from ...mqtt.batch.run import Run
from ...mqtt.errors import MqttError, PeerError
from ...mqtt.length import encode_length
from ...mqtt.publish import publish_properties
from ...mqtt.reasons import Reason
from ...mqtt.topics import check_topic

HIGHEST_TIME = 2**48 - 1
ID_SIZE = 12
KEY_SIZE = 14
T = TypeVar("T")

OVER_MAX = 256  # how many keys of other origins a record may name


class Key(NamedTuple):
    """Which of two records of a topic counts: compared from left to right.

    time: ms since 1970 by the origin's clock, but above the record that it replaced there. origin: number of the broker where it was
    published. born: epoch since which that broker remembers, so that a life without memory repeats no key.
    """

    time: int
    origin: int
    born: int

    def pack(self) -> bytes:
        """14 bytes that compare like the key."""
        return (self.time << 64 | self.origin << 48 | self.born).to_bytes(KEY_SIZE, "big")


def unpack_key(raw: bytes) -> Key:
    """The reverse of `Key.pack`."""
    value = int.from_bytes(raw, "big")
    return Key(value >> 64, value >> 48 & 0xFFFF, value & 0xFFFF_FFFF_FFFF)


class Kind(IntEnum):
    """What a record stands for."""

    VALUE = 0
    DELETED = 1
    EXPIRED = 2


class Record:
    """One topic's record.

    qos, properties, payload: as published; properties without a Message Expiry Interval. published: ms since 1970 by this site's clock.
    expiry: Message Expiry Interval in seconds, counted from `published`, or None. mask: the brokers for which the origin took the message
    into custody (bit n: broker n), so that they get it as a message. over: the keys that it replaced, where the site could not say that
    all before them had been heard; see `Replica`. told: the highest key that reconciliation has announced to this site's
    subscribers. early: keys that it announced though they may come as messages too. buried_at: this site's running time, in
    seconds, when it was buried. silent: a deletion that no subscriber here was told of, because nothing was retained here when it came.
    """

    __slots__ = (
        "buried_at",
        "early",
        "expiry",
        "key",
        "kind",
        "mask",
        "over",
        "payload",
        "properties",
        "published",
        "qos",
        "silent",
        "told",
        "topic",
    )

    def __init__(
        self,
        topic: bytes,
        key: Key,
        kind: Kind,
        qos: int,
        properties: bytes,
        payload: bytes,
        published: int,
        expiry: int | None,
        mask: int = 0,
        over: tuple[Key, ...] = (),
    ) -> None:
        self.topic = topic
        self.key = key
        self.kind = kind
        self.qos = qos
        self.properties = properties
        self.payload = payload
        self.published = published
        self.expiry = expiry
        self.mask = mask
        self.over = over
        self.told: Key | None = None
        self.early: tuple[Key, ...] = ()
        self.buried_at = 0.0
        self.silent = False

    @property
    def ends(self) -> int | None:
        """When it expires, ms since 1970."""
        return None if self.expiry is None else self.published + self.expiry * 1000

    @property
    def content(self) -> tuple[Kind, int, bytes, bytes, int, int | None, int, tuple[Key, ...]]:
        """All but topic and key, as `Record` takes it."""
        return self.kind, self.qos, self.properties, self.payload, self.published, self.expiry, self.mask, self.over

    def buried(self, kind: Kind) -> Record:
        """The same key without content."""
        record = Record(self.topic, self.key, kind, self.qos, b"", b"", self.published, self.expiry, self.mask, self.over)
        record.told, record.early, record.silent = self.told, self.early, self.silent
        return record

    def run(self, wall_offset: float, now: float) -> Run:
        """As a message: of one payload, empty for a deletion. now, and `received` of the result: the caller's clock."""
        received = min(now, self.published / 1000 - wall_offset)
        return Run(self.topic, self.qos, True, [self.payload], self.properties, self.expiry, received)


def topic_id(topic: bytes) -> bytes:
    """12 bytes that stand for a topic; the first two are its bucket."""
    return blake2b(topic, digest_size=ID_SIZE).digest()


def record_hash(identifier: bytes, key: Key) -> int:
    """64 bits for a topic with this key."""
    return int.from_bytes(blake2b(identifier + key.pack(), digest_size=8).digest(), "big")


# Written forms


def pack_record(record: Record) -> bytes:
    """For another site."""
    return msgpack.packb([record.topic, *_fields(record, record.published)])  # type: ignore[no-any-return]


def pack_row(record: Record, ahead: int = 0) -> bytes:
    """For a store, under the topic as key. ahead: ms by which the clock of what is stored is ahead of that of `published`."""
    fields = _fields(record, min(max(0, record.published + ahead), HIGHEST_TIME))
    return msgpack.packb([*fields, record.buried_at, record.early, record.silent])  # type: ignore[no-any-return]


def pack_mark(record: Record) -> bytes:
    """What travels with the live message."""
    return msgpack.packb([*record.key, _octets(record.mask), record.over])  # type: ignore[no-any-return]


def _fields(record: Record, published: int) -> list[Any]:
    key = record.key
    content = [record.qos, record.properties, record.payload, published, record.expiry]
    return [key.time, key.origin, key.born, int(record.kind), *content, _octets(record.mask), record.over]


def _octets(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def read_record(value: Any) -> Record:
    """A record from another site. Raises `PeerError`."""
    return refusing(lambda: _record(_listed(value, 12)))


def read_row(topic: bytes, row: bytes, ahead: int = 0) -> Record:
    """A record from a store. ahead: as for `pack_row`, of the life that reads. Raises ValueError."""
    try:
        *fields, buried_at, early, silent = _listed(msgpack.unpackb(row), 14)
        record = _record([topic, *fields])
        if type(buried_at) is not float:
            raise ValueError("the time of burial is no number")
        record.published -= ahead
        record.buried_at, record.early, record.silent = buried_at, _keys(early), silent is True
    except (ValueError, TypeError, MqttError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"the retained message of {topic[:80]!r} cannot be read: {error}") from None
    return record


def read_mark(raw: bytes) -> tuple[Key, int, tuple[Key, ...]]:
    """Key, mask and the keys that it replaced. Raises `PeerError`."""

    def read() -> tuple[Key, int, tuple[Key, ...]]:
        time, origin, born, mask, over = _listed(msgpack.unpackb(raw), 5)
        return read_key([time, origin, born]), int.from_bytes(octets(mask, 8192), "little"), _keys(over)

    return refusing(read)


def refusing(read: Callable[[], T]) -> T:
    """What a peer's bytes say, or a `PeerError` that says why they cannot be read."""
    try:
        return read()
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/retained: {str(error)[:200] or type(error).__name__}") from None


def _record(value: list[Any]) -> Record:
    topic, time, origin, born, kind, qos, properties, payload, published, expiry, mask, over = value
    octets(topic, 65_535)
    check_topic(topic)
    if topic.startswith(b"$"):
        raise ValueError(f"topic {topic[:80]!r} stays at its broker")
    key = read_key([time, origin, born])
    kind = Kind(integer(kind, 8))
    if integer(qos, 2) == 3:
        raise ValueError("QoS 3")
    _check_properties(octets(properties))
    octets(payload)
    if (kind is Kind.VALUE) != bool(payload):
        raise ValueError("a payload without a message, or a message without a payload")
    if expiry is not None:
        integer(expiry, 32)
    bits = int.from_bytes(octets(mask, 8192), "little")
    return Record(topic, key, kind, qos, properties, payload, integer(published, 48), expiry, bits, _keys(over))


def _check_properties(block: bytes) -> None:
    """Subscribers get these bytes as they are."""
    if block:
        whole = encode_length(len(block)) + block
        found = publish_properties(whole, 0, len(whole))
        if found.without_expiry != block or found.end != len(whole):
            raise ValueError("properties that do not travel")


def _keys(value: Any) -> tuple[Key, ...]:
    if type(value) is not list or len(value) > OVER_MAX:
        raise ValueError("the keys are no short list")
    return tuple([read_key(item) for item in value])


def read_key(value: Any) -> Key:
    """A key from [time, origin, born]. Raises ValueError."""
    time, origin, born = _listed(value, 3)
    return Key(integer(time, 48), integer(origin, 16), integer(born, 48))


def _listed(value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise ValueError(f"{str(value)[:40]!r} is not a list of {length} values")
    return value


def integer(value: Any, bits: int) -> int:
    """An unsigned integer of so many bits. Raises ValueError."""
    if type(value) is not int or value < 0 or value >> bits:
        raise ValueError(f"{str(value)[:40]!r} is not an unsigned integer of {bits} bits")
    return value


def octets(value: Any, longest: int | None = None) -> bytes:
    """Bytes. Raises ValueError."""
    if type(value) is not bytes or (longest is not None and len(value) > longest):
        raise ValueError(f"{str(value)[:40]!r} is not {'' if longest is None else f'at most {longest} '}bytes")
    return value
