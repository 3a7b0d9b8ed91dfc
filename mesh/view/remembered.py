"""What a broker remembers of the others beyond its own life: who they are, and which filters they hold.

Without it a broker that restarts would acknowledge what it cannot route: until its first link is up it would know of nobody. With
it, messages for known brokers wait in custody at once.

Strategy. A part of the journal (`records.py`): what changed is marked and encoded once, when records are taken. One small value for
each filter of each broker, so that a change costs what has changed; one *header* a broker, which says at which version the filters
are and what their digest is. Changes wait up to `LINGER` seconds for company, but go with whatever else is written.

    value   key in the store                                     holds
    member  b"m" number (2)                                      uuid, name, epoch of the broker that has this number; behind a policy
    header  b"i" number (2) uuid (16)                            epoch, version, digest, seal; nil: its filters are not there, or not all
    filter  b"f" number (2) uuid (16) hash of the entry (16)     filter, group, weight
    pin     b"k" number (2)                                      key, whether it lasts

Invariants
- what a commit holds of one broker's filters is what that broker had at the version of the header, or nothing;
- the filters in the store are at most `bound`; a broker whose set does not fit is left out whole.

Links are not kept: a restored member is known and out of reach until link state says otherwise. It does not know when that is, nor stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import msgpack

from ..wire.keys import Pin, Seal
from .interest import Entry, InterestSet

MEMBER = b"m"
PIN = b"k"
HEADER = b"i"
FILTER = b"f"
LINGER = 0.2  # seconds
WRITTEN = 1000  # filters of one commit
Owner = tuple[int, bytes]  # number, uuid


class Known(NamedTuple):
    """The broker that has a number. behind: a policy is in between, so that what it wants depends on the path."""

    uuid: bytes
    name: str
    epoch: int
    behind: bool


class Recall(NamedTuple):
    """What a store says. members: by number. sets: complete ones. left_out: members whose filters are not known. useless: keys
    of values that belong to nothing. pins: the keys under which numbers are known."""

    members: dict[int, Known]
    sets: dict[Owner, InterestSet]
    left_out: set[Owner]
    useless: list[bytes]
    pins: dict[int, Pin]


class Remembered:
    """What changed since it was written last. left_out: brokers whose filters had no room. due: when it is to be written; None:
    nobody said."""

    def __init__(self, bound: int) -> None:
        """bound: filters, of all brokers together."""
        self.left_out: set[Owner] = set()
        self.due: float | None = None
        self.partly = False  # what `take` gave last was only a part
        self._bound = bound
        self._sizes: dict[Owner, int] = {}  # filters that the store will hold
        self._total = 0
        self._sets: dict[Owner, tuple[InterestSet | None, dict[Entry, object]]] = {}  # None: nothing is to be kept
        self._members: dict[int, Known | None] = {}
        self._stored: dict[int, Known] = {}
        self._useless: list[bytes] = []
        self._pins: dict[int, Pin | None] = {}

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        return bool(self._sets or self._members or self._useless or self._pins)

    def interest(self, owner: Owner, now: InterestSet, entries: Mapping[Entry, object]) -> None:
        """A broker's set is this now; these of its entries came, went or changed."""
        had = self._sizes.get(owner)
        size = len(now.entries)
        if self._total - (had or 0) + size > self._bound:
            self._drop(owner, {**now.entries, **entries} if had is not None else {})
            self.left_out.add(owner)
            return
        self._total += size - (had or 0)
        self._sizes[owner] = size
        self.left_out.discard(owner)
        self._mark(owner, now, entries if had is not None else {**now.entries, **entries})

    def forget(self, owner: Owner, entries: Mapping[Entry, object]) -> None:
        """A broker is no more; these are its entries."""
        if owner in self._sizes or owner in self.left_out:
            self._drop(owner, entries)
            self.left_out.discard(owner)

    def _drop(self, owner: Owner, entries: Mapping[Entry, object]) -> None:
        self._total -= self._sizes.pop(owner, 0)
        self._mark(owner, None, entries)

    def _mark(self, owner: Owner, now: InterestSet | None, entries: Mapping[Entry, object]) -> None:
        marked = self._sets.get(owner)
        touched: dict[Entry, object] = marked[1] if marked is not None else {}
        touched.update(entries)
        self._sets[owner] = now, touched

    def member(self, number: int, known: Known | None) -> None:
        """Who has a number; None: nobody that is to be remembered."""
        if known is None:
            if self._stored.pop(number, None) is not None:
                self._members[number] = None
        elif self._stored.get(number) != known:
            self._stored[number] = self._members[number] = known

    def pin(self, number: int, pin: Pin | None) -> None:
        """The key under which a number is known; None: any."""
        self._pins[number] = pin

    def restored(self, recall: Recall) -> None:
        """All this is in the store."""
        self._stored.update(recall.members)
        self._sizes = {owner: len(known.entries) for owner, known in recall.sets.items()}
        self._total = sum(self._sizes.values())
        self.left_out = set(recall.left_out)
        self._useless = recall.useless

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """What is to be written, None for what is to be deleted, or (`partly`) the first part of it."""
        values: list[tuple[bytes, bytes | None]] = [(key, None) for key in self._useless]
        for number, known in self._members.items():
            values.append((member_key(number), None if known is None else msgpack.packb(known)))
        room = WRITTEN
        for owner, (now, entries) in list(self._sets.items()):
            held = now.entries if now is not None else {}
            part = list(islice(entries, room))
            for entry in part:
                weight = held.get(entry)
                values.append((filter_key(owner, entry), None if weight is None else msgpack.packb([*entry, weight])))
            room -= len(part)
            for entry in part:
                del entries[entry]
            if entries:  # until all is written nothing is known
                values.append((header_key(owner), msgpack.packb(None)))
                break
            del self._sets[owner]
            if now is not None:
                values.append((header_key(owner), msgpack.packb([now.epoch, now.version, now.digest, now.seal])))
            else:
                values.append((header_key(owner), msgpack.packb(None) if owner in self.left_out else None))
        values += [(pin_key(number), None if pin is None else msgpack.packb(pin)) for number, pin in self._pins.items()]
        self._useless = []
        self._pins.clear()
        self._members.clear()
        self.partly = bool(self._sets)
        self.due = 0.0 if self.partly else None
        return values


def member_key(number: int) -> bytes:
    """Where the broker with a number stands."""
    return MEMBER + number.to_bytes(2, "big")


def pin_key(number: int) -> bytes:
    """Where the key of a number stands."""
    return PIN + number.to_bytes(2, "big")


def header_key(owner: Owner) -> bytes:
    """Where the header of a broker's filters stands."""
    return HEADER + owner[0].to_bytes(2, "big") + owner[1]


def filter_key(owner: Owner, entry: Entry) -> bytes:
    """Where one of a broker's filters stands: filters are longer than keys may be, so by 128 bits of its hash."""
    filter_, group = entry
    raw = f"{'' if group is None else '+' + group}\0{filter_}".encode()
    return FILTER + owner[0].to_bytes(2, "big") + owner[1] + blake2b(raw, digest_size=16).digest()


def recall(values: dict[bytes, bytes]) -> Recall:
    """What all values of a store say of others; what does not fit together is not believed. Raises ValueError, TypeError, IndexError or
    `msgpack.UnpackException` for what is no value of this version."""
    members: dict[int, Known] = {}
    heads: dict[Owner, tuple[int, int, int, Seal | None] | None] = {}
    pins: dict[int, Pin] = {}
    sets: dict[Owner, InterestSet] = {}
    keys: dict[Owner, list[bytes]] = {}
    for key, value in values.items():
        kind, owner = key[:1], (int.from_bytes(key[1:3], "big"), key[3:19])
        if kind == MEMBER:
            members[owner[0]] = Known(*msgpack.unpackb(value))
        elif kind == HEADER:
            head = msgpack.unpackb(value)
            heads[owner] = None if head is None else (head[0], head[1], head[2], _seal_of(head[3:]))
        elif kind == PIN:
            pins[owner[0]] = Pin(*msgpack.unpackb(value))
        elif kind == FILTER:
            filter_, group, weight = msgpack.unpackb(value)
            sets.setdefault(owner, InterestSet(0)).put((filter_, group), weight)
            keys.setdefault(owner, []).append(key)
    found = Recall(members, {}, {owner for owner, head in heads.items() if head is None}, [], pins)
    for owner, known in sets.items():
        head = heads.get(owner)
        if head is None or known.digest != head[2]:
            found.useless.extend(keys[owner])
    for owner, head in heads.items():
        known = sets.get(owner) or InterestSet(0)
        if head is not None and known.digest == head[2]:
            known.epoch, known.version, known.seal = head[0], head[1], head[3]
            found.sets[owner] = known
        elif head is not None:
            found.left_out.add(owner)
    return found


def _seal_of(rest: list[Any]) -> Seal | None:
    return Seal(*rest[0]) if rest and rest[0] is not None else None


__all__ = ["LINGER", "Known", "Recall", "Remembered", "recall"]
