"""What brokers post to each other about roaming clients, as arrays of msgpack.

    kind           from        to              body
    roam/claim     new broker  all others      [[client, key, clean], ...]
    roam/answer    other       new broker      [client, key, `Said`, key known there | nil, settled, more, leaving]
    roam/session   holder      new broker      [client, key, source, more, passing, state]
    roam/piece     holder      new broker      [client, key, source, flights, items]
    roam/ready     holder      new broker      [client, key, source]     all that was in flight is sent
    roam/fence     new broker  all others      [client, key, epoch, version, holders]
    roam/marker    all         new broker and holders  [client, key]
    roam/end       holder      new broker      [client, key, source]     all that was before the markers is sent
    roam/left      holder      new broker      [client, key, source]     nothing more will come

A key is [n, broker]: the claim of a broker at a time; the higher one is the newer. holders is a set of brokers, low byte first.
source is the key under which a session was at its holder: it names the session, also when another broker passes on what the
holder sent. A roam/left that comes to the holder itself says that nobody wants the session any more. more are sources of which
something may still come, by way of the holder; passing: so may others, and it will answer the claim then. What state and items hold is the
shell's. client is a name (`names.py`). An answer that there is no session (`Said.NONE`), and that knows a key, says that another owner has
the client identifier.

This file knows forms, not meanings.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

LONGEST = 2 * 65_535 + 1  # characters of a name: client identifier, NUL, owner
Key = tuple[int, int]  # (time in ms, at least as high as any seen; broker)

CLAIM, ANSWER, SESSION, PIECE, READY, FENCE, MARKER, END, LEFT = KINDS = (
    *("roam/claim", "roam/answer", "roam/session", "roam/piece"),
    *("roam/ready", "roam/fence", "roam/marker", "roam/end", "roam/left"),
)


class Said(IntEnum):
    """How a claim is answered."""

    NONE = 0  # no session here (any more)
    NEWER = 1  # a newer claim is known here
    COMING = 2  # a session is on its way to here, and will be passed on


class Claim(NamedTuple):
    """A client has come to the broker of the key. clean: what others have of it is to be discarded."""

    client: str
    key: Key
    clean: bool


class Answer(NamedTuple):
    """To a claim. known: the newer key, or (`Said.NONE`) that of another owner's claim. settled: its broker has the session, so that it
    is older in fact. more: something may still come by way of the one that answers, which will answer again. leaving: a session on its
    way from there to an older claim still takes messages."""

    client: str
    key: Key
    said: Said
    known: Key | None
    settled: bool
    more: bool
    leaving: bool


class Fence(NamedTuple):
    """Say to the key's broker and the holders from where on messages go to the former: once its interest of (epoch, version) is known."""

    client: str
    key: Key
    version: tuple[int, int]
    holders: int


class Move(NamedTuple):
    """Anything else. rest: what the kind holds beside client and key; but for a marker, the source comes first."""

    client: str
    key: Key
    rest: tuple[Any, ...]


_REST: dict[str, tuple[type, ...]] = {
    SESSION: (list, tuple, bool, bytes),
    PIECE: (list, bool, bytes),
    READY: (list,),
    MARKER: (),
    END: (list,),
    LEFT: (list,),
}


def encode(client: str, key: Key, *rest: Any) -> bytes:
    """A body of any other kind."""
    packed: bytes = msgpack.packb([client, key, *rest])
    return packed


def encode_claims(claims: list[Claim]) -> bytes:
    """The body of a `roam/claim`."""
    packed: bytes = msgpack.packb([list(claim) for claim in claims])
    return packed


def encode_fence(fence: Fence) -> bytes:
    """The body of a `roam/fence`."""
    packed: bytes = msgpack.packb([fence.client, fence.key, *fence.version, octets(fence.holders)])
    return packed


def encode_answer(answer: Answer) -> bytes:
    """The body of a `roam/answer`."""
    packed: bytes = msgpack.packb(list(answer))
    return packed


def octets(mask: int) -> bytes:
    """A set of brokers as bytes."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def decode(kind: str, body: bytes) -> list[Claim] | Answer | Fence | Move:
    """The reverse, for a kind of `KINDS`. Raises ValueError with one line that says what is wrong."""
    try:
        found = msgpack.unpackb(body)
        if kind == CLAIM:
            return [Claim(_text(client), _key(key), _of(bool, clean)) for client, key, clean in found]
        client, key = _text(found[0]), _key(found[1])
        rest = found[2:]
        if kind == ANSWER:
            said, known, *flags = rest
            settled, more, leaving = [_of(bool, flag) for flag in flags]
            return Answer(client, key, Said(said), None if known is None else _key(known), settled, more, leaving)
        if kind == FENCE:
            epoch, version, holders = rest
            return Fence(client, key, (_number(epoch), _number(version)), _mask(holders))
        forms = _REST[kind]
        if len(rest) != len(forms):
            raise ValueError(f"{len(rest)} values behind the key, {len(forms)} are right")
        return Move(client, key, tuple([_checked(form, value) for form, value in zip(forms, rest, strict=True)]))
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException) as error:
        raise ValueError(f"{kind}: {str(error)[:200] or type(error).__name__}") from None


def _of(form: type, value: Any) -> Any:
    if type(value) is not form:
        raise ValueError(f"{value!r:.40} is not {form.__name__}")
    return value


def _mask(value: Any) -> int:
    return int.from_bytes(_of(bytes, value), "little")


def _checked(form: type, value: Any) -> Any:
    """list: a key, tuple: keys, else a value of this type."""
    if form is tuple:
        return tuple([_key(key) for key in value])
    return _key(value) if form is list else _of(form, value)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0 or value >> 64:
        raise ValueError(f"{value!r:.40} is not an unsigned integer of 64 bits")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or not value or len(value) > LONGEST:
        raise ValueError(f"{value!r:.40} is no client's name")
    return value


def _key(value: Any) -> Key:
    time, broker = value
    if _number(time) >> 63 or _number(broker) >> 16:
        raise ValueError(f"{value!r:.40} is no claim's key")
    return time, broker
