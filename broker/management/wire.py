"""What brokers say to each other for management: a request of a client at one site, and the part of the answer of another.

A request is signed by the broker that was asked, with the key that link state knows it by: it says who its client is and which roles the
client has there. It says for which sites it is, when it was sent, and how long an answer is waited for, so that it cannot be used again
elsewhere or later. A part is bound to its request by a number that nobody else knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from ...mesh.wire.keys import Signer, verified
from ..auth.roles import Rights
from .asked import Asked, asked, told
from .errors import Refused

ASK, PART = "manage/ask", "manage/part"  # kinds of messages between brokers
CONTEXT = b"mqmesh-manage-1"
SKEW = 60.0  # seconds by which the clocks of two sites may differ
KNOWN = 10_000  # requests that are remembered, so that none counts twice


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks: as the journal and the log name it. rights: of its user, where it asked."""

    client_id: str
    user: str | None
    address: str
    rights: Rights


@dataclass(frozen=True, slots=True)
class Question:
    """A request of a client at another site. number: for its part. sent: wall clock there, in seconds."""

    origin: int
    number: bytes
    sites: frozenset[int]
    sent: float
    asker: Asker
    asked: Asked


def encode_question(question: Question, signer: Signer) -> bytes:
    """Sign and pack it. Raises Refused for values that do not travel: numbers beyond 64 bits, texts that are not UTF-8, deep nests."""
    asker = question.asker
    who = [asker.client_id, asker.user, asker.address, asker.rights.told()]
    try:
        said: bytes = msgpack.packb([question.origin, question.number, sorted(question.sites), question.sent, who, told(question.asked)])
    except (ValueError, OverflowError) as error:
        raise Refused(f"the request cannot be sent to other sites: {error}") from None
    packed: bytes = msgpack.packb([said, signer.sign(CONTEXT + said)])
    return packed


class Doorkeeper:
    """Which questions of other brokers count at this one. number: of this broker. key_of: the public key that a broker is known by."""

    def __init__(self, number: int, key_of: Callable[[int], bytes | None]) -> None:
        self._number = number
        self._key_of = key_of
        self._seen: OrderedDict[tuple[int, bytes], float] = OrderedDict()

    def read(self, origin: int, body: bytes, wall: float) -> Question:
        """The question in a message of a broker. wall: seconds since 1970. Raises Refused: it is not genuine, late, or was there."""
        question, said, signature = _decode(body)
        key = self._key_of(origin)
        if question.origin != origin or key is None or not verified(key, CONTEXT + said, signature):
            raise Refused("the request is not signed by the broker that it came from")
        if self._number not in question.sites:
            raise Refused("the request is for other sites")
        if abs(wall - question.sent) > question.asked.within + SKEW:
            raise Refused(f"the request was sent {wall - question.sent:.0f} s ago by the clock here: is a clock wrong?")
        if (origin, question.number) in self._seen:
            raise Refused("the request was there already")
        self._seen[origin, question.number] = wall
        while len(self._seen) > KNOWN:
            self._seen.popitem(last=False)
        return question


def _decode(body: bytes) -> tuple[Question, bytes, bytes]:
    try:
        said, signature = msgpack.unpackb(body)
        origin, number, sites, sent, (client_id, user, address, roles), table = msgpack.unpackb(said)
        if not (isinstance(number, bytes) and isinstance(client_id, str) and isinstance(user, str | None) and isinstance(address, str)):
            raise ValueError
        asker = Asker(client_id, user, address, Rights.heard(roles))
        return Question(int(origin), number, frozenset(sites), float(sent), asker, asked(table)), bytes(said), bytes(signature)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Refused("the request cannot be read: is another version of mqmesh running there?") from None


def encode_part(number: bytes, part: dict[str, Any]) -> bytes:
    """The answer of a site. number: of the request."""
    packed: bytes = msgpack.packb([number, part])
    return packed


def decode_part(body: bytes) -> tuple[bytes, dict[str, Any]]:
    """(number of the request, part). Raises Refused."""
    try:
        number, part = msgpack.unpackb(body, use_list=False, strict_map_key=False)
        if not isinstance(number, bytes) or not isinstance(part, dict):
            raise ValueError
        if "error" not in part and not {"rows", "total", "more", "order", "ms"} <= part.keys() and "said" not in part:
            raise ValueError
    except (ValueError, TypeError, msgpack.UnpackException):
        raise Refused("the answer cannot be read: is another version of mqmesh running there?") from None
    return number, part
