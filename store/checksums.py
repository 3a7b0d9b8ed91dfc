"""Checksums of rows: CRC-32 over everything that a row says, its key included.

So a row that was changed on the disk, or stands under another key than its own, is known when it is read. Rows that are gone are known by
the counts that each batch carries (`Counts`).

A row with fields of another type or size than any row has is damaged too: `struct.error` and `TypeError` say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any
from zlib import crc32

from .records import StoredDelivery, StoredRun

_pack_run = Struct(">QBBIIddI").pack
_pack_delivery = Struct(">QQIIBHH").pack
NEVER = -1.0  # stands for no expiry


def run_checksum(run: StoredRun) -> int:
    """Of a run."""
    id, topic, qos, retain, properties, expires, published, length, count, payloads = run
    head = _pack_run(id, qos, retain, len(topic), length, NEVER if expires is None else expires, published, count)
    return crc32(payloads, crc32(head + topic + properties))


def recipient_checksum(recipient: str) -> int:
    """What the checksums of a recipient's deliveries begin with."""
    return crc32(recipient.encode())


def delivery_checksum(delivery: StoredDelivery, recipient: int) -> int:
    """Of a delivery. recipient: `recipient_checksum` of its recipient."""
    _, order, run, start, count, qos, state, packet_id, extra = delivery
    return crc32(extra, crc32(_pack_delivery(order, run, start, count, qos, state, packet_id), recipient))


def with_checksums(recipient: str, deliveries: Iterable[StoredDelivery]) -> list[tuple[Any, ...]]:
    """Deliveries of one recipient, each with its checksum behind it."""
    seed = crc32(recipient.encode())
    return [(*d, crc32(_pack_delivery(*d[1:8]) + d[8], seed)) for d in deliveries]


def value_checksum(table: str, key: bytes, value: bytes) -> int:
    """Of a value."""
    return crc32(value, crc32(b"%s %d %s" % (table.encode(), len(key), key)))
