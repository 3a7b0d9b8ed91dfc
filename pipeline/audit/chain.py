"""A chain of records: each one carries the hash of the one before, so that nobody changes, removes or inserts one unnoticed.

The records are JSON lines. A record's hash is the SHA-256 of the hash before it and the record without its hash, in a fixed form (keys
sorted, no spaces). The first one follows `START`. Who keeps the last hash somewhere else, the *head*, also notices that the end is cut off.

    {"number": 1, "time": "2026-11-22T10:00:00.000000Z", ..., "before": "0000...", "hash": "9f2c..."}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

START = "0" * 64


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain. number: of records."""

    number: int = 0
    hash: str = START

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """From `NUMBER:HASH`. Raises ValueError, one line."""
        number, _, digest = text.strip().partition(":")
        if not number.isdigit() or len(digest) != len(START) or set(digest) - set("0123456789abcdef"):
            raise ValueError(f'"{text[:80]}" is no head of a chain: write NUMBER:HASH, as `mqmesh audit verify` prints it')
        return cls(int(number), digest)


class Broken(Exception):
    """A chain that somebody has changed: one line that says where and how."""


def digest(before: str, record: Mapping[str, Any]) -> str:
    """The hash of a record. before: the hash of the record before it."""
    fixed = json.dumps(
        {key: value for key, value in record.items() if key not in ("hash", "before")}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(f"{before}\n{fixed}".encode()).hexdigest()


def chained(records: Iterable[Mapping[str, Any]], head: Head | None = None) -> Iterator[dict[str, Any]]:
    """Number and chain records. head: where the chain goes on; None: it begins."""
    number, before = (head.number, head.hash) if head is not None else (0, START)
    for record in records:
        number += 1
        made = {"number": number, **record}
        made["before"], made["hash"] = before, digest(before, made)
        before = made["hash"]
        yield made


def line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON."""
    return json.dumps(record, ensure_ascii=False) + "\n"


def verify(lines: Iterable[str], expected: Head | None = None, start: Head | None = None) -> Head:
    """Check a chain and return its end. expected: a head that was noted earlier, which the chain has to contain.

    start: where it goes on; None: it begins. Raises Broken.
    """
    head = start or Head()
    seen = expected is None or (expected.number, expected.hash) == (head.number, head.hash)
    for place, text in enumerate(lines, 1):
        if not text.strip():
            raise Broken(f"line {place} is empty")
        head = _next(head, text, place)
        if expected is not None and head.number == expected.number:
            if head.hash != expected.hash:
                raise Broken(f"record {head.number} is not the one that was noted: its hash is {head.hash}, it was {expected.hash}")
            seen = True
    if not seen and expected is not None:
        raise Broken(f"the chain ends with record {head.number}; record {expected.number} was noted, so that the end is cut off")
    return head


def _next(head: Head, text: str, place: int) -> Head:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise Broken(f"line {place} is no JSON") from None
    if not isinstance(record, dict):
        raise Broken(f"line {place} is no record")
    number = record.get("number")
    if number != head.number + 1 or isinstance(number, bool):
        raise Broken(f"line {place} has record {number!r}, and {head.number + 1} should follow: a record is missing, repeated or moved")
    if record.get("before") != head.hash:
        raise Broken(f"record {number} does not follow the one before it: its `before` is {record.get('before')!r}")
    if record.get("hash") != digest(head.hash, record):
        raise Broken(f"record {number} was changed: its hash does not fit its content")
    return Head(number, record["hash"])
