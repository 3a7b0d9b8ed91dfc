"""What brokers say to each other about queues: posts (`broker/mesh/peer_message.py`), in custody as QoS 2 messages are.

    post            from -> to              body
    queues/homes    home -> everybody       [life, {name: full}, {name: term}]: all that a broker is the home of; answered with the like
    queues/put      publisher's -> home     [parcel, name, publisher, user, properties, expiry | nil, payloads, topic]
    queues/join     member's -> home        [life, name, client, token, most, pulls, selector, key, ends, reorders]: it takes messages,
                                            at most so many at once
    queues/alert    home -> member's        [name, client, token, waiting]: something is available to a member that pulls
    queues/all      member's -> home        [name, term]: of a queue with several homes: these JOINs were those of all clients here
    queues/leave    member's -> home        [name, client, token, for good]: it takes no more; what it has goes back
    queues/give     home -> member's        [name, client, token, entries]
    queues/said     member's -> home        [name, client, token, what, [[first position, count], ...]]

Requests: see `asking.py`.

A token stands for one time that a client sits at a queue: what is said under an earlier one does not count. A parcel has a number of its
own, so that it is put once.

What it does not know: who says what when.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

KINDS = ("homes", "put", "join", "all", "leave", "give", "alert", "said")
HOMES, PUT, JOIN, ALL, LEAVE, GIVE, ALERT, SAID = [f"queues/{kind}" for kind in KINDS]


class What(IntEnum):
    """What becomes of messages that a member had."""

    ACKNOWLEDGED = 1
    UNUSABLE = 2
    RETURNED = 3
    EXPIRED = 4  # before they could be sent


class HomesPost(NamedTuple):
    """All queues of a broker, with whether they are full. life: of the broker. terms: of queues with several homes, which take turns: the
    highest one is the latest."""

    life: int
    queues: dict[str, bool]
    terms: dict[str, int]


class PutPost(NamedTuple):
    """Messages for a queue. parcel: their number, unique. user: name that the publisher proved. expiry: seconds left, None: for ever.

    topic: to which they were published; b"": the queue's. brought: other sites published them,
    and nobody can be told that the queue is full.
    """

    parcel: bytes
    name: str
    publisher: str
    user: str
    properties: bytes
    expiry: int | None
    payloads: list[bytes]
    topic: bytes = b""
    brought: bool = False


class AllPost(NamedTuple):
    """The home of a queue by this term was told of all clients that a site has."""

    name: str
    term: int


class JoinPost(NamedTuple):
    """A client takes messages, at most `most` at once. life: of its broker. pulls: only those that it asks for. selector: only those that
    fit. key: of a temporary queue. ends: its session ends with its connection. reorders: see `Sitting`."""

    life: int
    name: str
    client: str
    token: bytes
    most: int
    pulls: bool = False
    selector: str = ""
    key: str = ""
    ends: bool = False
    reorders: bool = False


class LeavePost(NamedTuple):
    """A client takes no more. for_good: it is no subscriber of the queue any more."""

    name: str
    client: str
    token: bytes
    for_good: bool


class Entry(NamedTuple):
    """Messages that are alike. first: position of the first one; the others follow."""

    first: int
    topic: bytes
    properties: bytes
    expiry: int | None
    payloads: list[bytes]


class GivePost(NamedTuple):
    """Messages for a member."""

    name: str
    client: str
    token: bytes
    entries: list[Entry]


class AlertPost(NamedTuple):
    """A member that pulls may get something. waiting: how many messages, now or later."""

    name: str
    client: str
    token: bytes
    waiting: int


class SaidPost(NamedTuple):
    """What becomes of messages that a member had, by position."""

    name: str
    client: str
    token: bytes
    what: What
    ranges: list[tuple[int, int]]


def encode(post: tuple[Any, ...]) -> bytes:
    """Pack a post."""
    packed: bytes = msgpack.packb(post)
    return packed


def fields(body: bytes, *kinds: type, left_out: tuple[Any, ...] = ()) -> list[Any]:
    """The fields of a post. kinds: of each; object: any. left_out: the last ones, where an earlier version does not say them.

    Raises ValueError.
    """
    try:
        found = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        raise ValueError("a post that cannot be read: is another version of mqmesh running there?") from None
    if isinstance(found, list) and len(found) < len(kinds):
        found += left_out[len(left_out) - len(kinds) + len(found) :]
    if not isinstance(found, list) or len(found) < len(kinds):
        raise ValueError("a post of another form: is another version of mqmesh running there?")
    for value, kind in zip(found, kinds, strict=False):
        if kind is not object and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise ValueError(f"a post with {type(value).__name__} in the place of {kind.__name__}")
    return found[: len(kinds)]


def _expiry(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError("a post with a wrong expiry")
    return value


def _payloads(values: list[Any]) -> list[bytes]:
    if not values or not all(isinstance(one, bytes) for one in values):
        raise ValueError("a post with payloads that are none")
    return values


def decode_homes(body: bytes) -> HomesPost:
    """Raises ValueError, as all of these."""
    life, queues = fields(body, int, dict)
    if not all(isinstance(name, str) and isinstance(full, bool) for name, full in queues.items()):
        raise ValueError("a post with queues that are none")
    terms = (msgpack.unpackb(body)[2:3] or [{}])[0]  # an earlier version says none
    if not isinstance(terms, dict) or not all(isinstance(name, str) and isinstance(term, int) for name, term in terms.items()):
        raise ValueError("a post with terms that are none")
    return HomesPost(life, queues, terms)


def decode_put(body: bytes) -> PutPost:
    parcel, name, publisher, user, properties, expiry, payloads, topic, brought = fields(
        body, bytes, str, str, str, bytes, object, list, bytes, bool, left_out=(b"", False)
    )
    return PutPost(parcel, name, publisher, user, properties, _expiry(expiry), _payloads(payloads), topic, brought)


def decode_join(body: bytes) -> JoinPost:
    return JoinPost(*fields(body, int, str, str, bytes, int, bool, str, str, bool, bool, left_out=(False, "", "", False, False)))


def decode_alert(body: bytes) -> AlertPost:
    return AlertPost(*fields(body, str, str, bytes, int))


def decode_all(body: bytes) -> AllPost:
    return AllPost(*fields(body, str, int))


def decode_leave(body: bytes) -> LeavePost:
    return LeavePost(*fields(body, str, str, bytes, bool))


def decode_give(body: bytes) -> GivePost:
    name, client, token, entries = fields(body, str, str, bytes, list)
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != len(Entry._fields):
            raise ValueError("a post with entries that are none")
        first, topic, properties, expiry, payloads = entry
        if not (isinstance(first, int) and isinstance(topic, bytes) and isinstance(properties, bytes) and isinstance(payloads, list)):
            raise ValueError("a post with entries that are none")
        found.append(Entry(first, topic, properties, _expiry(expiry), _payloads(payloads)))
    return GivePost(name, client, token, found)


def decode_said(body: bytes) -> SaidPost:
    name, client, token, what, ranges = fields(body, str, str, bytes, int, list)
    found = []
    for one in ranges:
        if not isinstance(one, list) or len(one) != 2 or not all(isinstance(value, int) and value >= 0 for value in one):
            raise ValueError("a post with positions that are none")
        found.append((one[0], one[1]))
    return SaidPost(name, client, token, What(what), found)
