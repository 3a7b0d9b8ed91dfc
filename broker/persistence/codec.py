"""Runs, sessions, subscriptions and retained messages as a store keeps them.

Values are msgpack lists whose first item is the version of their form; what is behind the items that are known here is kept
for those who know more, and ignored. Times are seconds of the steady clock (`steady.py`).

    table          key                           value
    sessions       client identifier             [1, number, expiry or nil, left at or nil, user or nil, will or nil, will due at or nil,
                                                    listener's name, left out without]
    subscriptions  number, digest of the filter  [1, filter, QoS, No Local, Retain As Published, Retain Handling, identifier]
    inbound        number                        QoS 2 identifiers received and not released, two bytes each
    released       number                        QoS 2 identifiers whose PUBCOMP is awaited: first and count, two bytes each
    retained       topic                         [1, QoS, payload, properties, expires at or nil, published at, extra]; not in a mesh
    wills          any                           the same of a will that is due; extra: one byte, whether it is retained, and its topic
    broker         "alive"                       [1, steady clock, by how much the wall clock is ahead of it]

A will is [topic, payload, QoS, retain, properties, expiry or nil, delay].
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, NamedTuple

import msgpack

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import Run
from ...mqtt.packets import Subscription
from ...store.base import Kind, StoreError
from ...store.records import StoredRun
from ..journal.mark import unpacked
from ..session.will import Will

VERSION = 1
_BLOCK = Struct(">HH")
_IDENTIFIER = Struct("<H")


class SessionRecord(NamedTuple):
    """What is known of a session beside its messages and subscriptions."""

    number: int
    expiry: float | None
    left_at: float | None
    user: str | None
    will: Will | None
    will_at: float | None
    listener: str = ""


class RetainedRecord(NamedTuple):
    """A retained message. extra: whatever whoever replicates it keeps with it."""

    qos: int
    payload: bytes
    properties: bytes
    expires_at: float | None
    published_at: float
    extra: bytes


def pack(*items: Any) -> bytes:
    """A value of the current version."""
    return bytes(msgpack.packb([VERSION, *items]))


def unpack(table: str, key: bytes, value: bytes, least: int) -> list[Any]:
    """The items of a value, at least so many. Raises StoreError for what cannot be read."""
    try:
        items = msgpack.unpackb(value)
        if items[0] != VERSION:
            raise StoreError(
                Kind.SCHEMA, table, f"{key[:60]!r} has form {items[0]}, this mqmesh reads form {VERSION}: run the mqmesh that wrote it"
            )
        if len(items) <= least:
            raise ValueError("items are missing")
    except (ValueError, TypeError, IndexError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise StoreError(
            Kind.CORRUPT, table, f"{key[:60]!r} cannot be read ({error}): restore a copy, or move the store away and start empty"
        ) from None
    return list(items[1:])


# Sessions


def session_value(session: SessionRecord) -> bytes:
    """A session's record."""
    will = session.will
    packed = None
    if will is not None:
        packed = [will.topic, will.payload, will.qos, will.retain, will.properties, will.expiry, will.delay]
    items = (session.number, session.expiry, session.left_at, session.user, packed, session.will_at)
    return pack(*items, session.listener) if session.listener else pack(*items)


def session_of(key: bytes, value: bytes) -> SessionRecord:
    """What `session_value` gave."""
    number, expiry, left_at, user, will, will_at, *more = unpack("sessions", key, value, 6)
    return SessionRecord(number, expiry, left_at, user, Will(*will) if will is not None else None, will_at, more[0] if more else "")


def identifiers_value(identifiers: set[int]) -> bytes:
    """The QoS 2 identifiers that were received and are not released."""
    return b"".join([number.to_bytes(2, "little") for number in sorted(identifiers)])


def identifiers_of(value: bytes) -> list[int]:
    """What `identifiers_value` gave."""
    return [number for (number,) in _IDENTIFIER.iter_unpack(value)]


def released_value(blocks: list[tuple[int, int]]) -> bytes:
    """Blocks (first, count) of identifiers whose PUBCOMP is awaited, in the order of their PUBRECs."""
    return b"".join([_BLOCK.pack(*block) for block in blocks])


def released_of(value: bytes) -> list[tuple[int, int]]:
    """What `released_value` gave."""
    return [(first, count) for first, count in _BLOCK.iter_unpack(value)]


def subscription_key(session_key: bytes, topic_filter: str) -> bytes:
    """The key of one subscription of a session."""
    return session_key + blake2b(topic_filter.encode(), digest_size=16).digest()


def subscription_value(subscription: Subscription, identifier: int) -> bytes:
    """A subscription with its options."""
    return pack(
        subscription.filter,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.retain_handling,
        identifier,
        *subscription.said,
    )


def subscription_of(key: bytes, value: bytes) -> tuple[int, Subscription, int]:
    """(number of the session, subscription, its identifier)."""
    topic_filter, qos, no_local, as_published, handling, identifier, *more = unpack("subscriptions", key, value, 6)
    return int.from_bytes(key[:8], "big"), Subscription(topic_filter, qos, no_local, as_published, handling, *more[:3]), identifier


# Retained messages


def retained_value(run: Batch, offset: float, extra: bytes = b"") -> bytes:
    """A run of one retained message. offset: from the clock of `Run.received` to the wall clock."""
    published_at = run.received + offset
    expires_at = None if run.expiry is None else published_at + run.expiry
    return pack(run.qos, run.payloads[-1], run.properties, expires_at, published_at, extra)


def retained_of(key: bytes, value: bytes, table: str = "retained") -> RetainedRecord:
    """What `retained_value` gave."""
    return RetainedRecord(*unpack(table, key, value, 6)[:6])


def kept_run(topic: bytes, retain: bool, record: RetainedRecord, offset: float) -> Run:
    """A record as a run."""
    expiry = None if record.expires_at is None else max(0, round(record.expires_at - record.published_at))
    return Run(topic, record.qos, retain, [record.payload], record.properties, expiry, record.published_at - offset)


def will_value(run: Batch, offset: float) -> bytes:
    """A will that is due."""
    return retained_value(run, offset, bytes((run.retain,)) + run.topic)


def will_of_value(key: bytes, value: bytes, offset: float) -> Run:
    """What `will_value` gave."""
    record = retained_of(key, value, "wills")
    return kept_run(record.extra[1:], bool(record.extra[:1] == b"\1"), record, offset)


# Runs. A `PacketBatch` run has no topic of its own: its record has an empty one, its payloads are the block of frames, and its
# properties one byte, the version of MQTT that the frames are written in. Where there is a journal, what it has to know of the messages
# (`Mark`) follows that byte, or stands before the properties of a run, behind a byte that begins no property.

MARKED = b"\0"


def stored_run(number: int, run: Batch, offset: float) -> StoredRun:
    """A run's record. offset: from the clock of `Run.received` to the wall clock."""
    published_at = run.received + offset
    mark = b"" if run.mark is None else run.mark.packed()
    if not run.uniform:
        block, version = run.written()
        return StoredRun(number, b"", run.qos, False, bytes((version,)) + mark, None, published_at, run.length, run.count, block)
    expires_at = None if run.expiry is None else published_at + run.expiry
    payloads = run.payloads
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    properties = run.properties if not mark else MARKED + len(mark).to_bytes(4, "big") + mark + run.properties
    return StoredRun(number, run.topic, run.qos, run.retain, properties, expires_at, published_at, run.length, run.count, bytes(joined))


def run_of(stored: StoredRun, offset: float) -> Batch:
    """The run of a record."""
    received = stored.published_at - offset
    if not stored.topic:
        batch = PacketBatch(stored.payloads, stored.properties[0], stored.qos, stored.count, received)
        if len(stored.properties) > 1:
            batch.mark = unpacked(stored.properties[1:], batch.topics, stored.qos, b"")
        return batch
    properties, mark = stored.properties, b""
    if properties.startswith(MARKED):
        end = 5 + int.from_bytes(properties[1:5], "big")
        mark, properties = properties[5:end], properties[end:]
    run = _uniform(stored, properties, received)
    if mark:
        run.mark = unpacked(mark, stored.topic, stored.qos, properties)
    return run


def _uniform(stored: StoredRun, properties: bytes, received: float) -> Run:
    expiry = None if stored.expires_at is None else max(0, round(stored.expires_at - stored.published_at))
    length = stored.length
    if stored.count == 1 or not length:
        payloads = [stored.payloads] * stored.count
        return Run(stored.topic, stored.qos, stored.retain, payloads, properties, expiry, received)
    raw = (stored.payloads, 0, length, length)
    return Run(stored.topic, stored.qos, stored.retain, None, properties, expiry, received, raw)
