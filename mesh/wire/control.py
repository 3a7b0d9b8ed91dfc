"""Control packets: what brokers tell each other beside messages, as PUBLISH packets to ``$mesh/<kind>`` with a msgpack body.

One table (`_FORMS`) says which values each kind holds; a body is checked against it to the last byte before anything is
believed, so that a peer that is authenticated but buggy gets its own link closed with a clear text and nothing else suffers.

Bodies are arrays. u16, u48 and so on are unsigned integers of so many bits.

    kind       direction  body
    summary    link       [[number, uuid, epoch, sequence, interest epoch, interest version, digest], ...]
    synced     link       nil; ends the answer to a summary
    linkstate  flood      [[number, uuid, name, epoch, sequence, [[peer, incarnation, cost], ...]], ...]
                            a link with a policy at this end: [peer, incarnation, cost, [[out, ...] | nil, [out but, ...],
                            [in, ...] | nil, [in but, ...], [[here, there], ...]]]
    interest   flood      [number, uuid, epoch, base | nil, version, digest,
                            [[filter, group | nil, weight], ...], [[filter, group | nil], ...]]
    life       flood      [[number, uuid, life, claim, born, [[epoch, sequence], ...], serial, [rival, ...], yielded,
                            [number, uuid] | nil, takes, seal | nil], ...]
    want       link       [[number, uuid], ...]
    open       down       [origin, uuid, epoch, tree, [[number, parent, incarnation], ...]]
    packed     down       the body of `open`, deflated as the link's next (packed.py); to peers that name the capability `packed`
    branch     down       deflated as the link's next: [origin, uuid, epoch, tree, [[number, incarnation, beside], ...],
                            [[number, parent, incarnation], ...]]; where all brokers of the branch take it
    receipts   up         [[origin, tree, destination, epoch, born, [epoch, sequence], [epoch, sequence], messages, bytes,
                            [[epoch, first, last, [group, filter]], ...]], ...]
    dropped    up         [[origin, tree, brokers], ...]
    noted      down       [origin, tree, destination, [epoch, sequence]]
    orders     flood      [[id, issuer, name, time, what, target, uuid, epoch, key, seal], ...]; to peers that name the capability `manage`
    retained   link       see `retained/wire.py`, which reads it

Kinds of a later version are ignored. This file knows forms, not meanings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import msgpack

from ...mqtt.errors import PeerError
from ...mqtt.length import encode_length
from ...mqtt.reasons import Reason
from .identity import LIFE_BYTES
from .keys import KEY_BYTES, SIGNATURE_BYTES, Seal
from .packed import Packer, Unpacker
from .policy import Policy, decode_policy

PREFIX = b"$mesh/"
EPOCH_BITS = 47
ALL = 2**64 - 1  # in a life's statement: all messages of this epoch are its own
TAKES_BRANCHES = 1  # in a life's statement: trees as branches
GIVES_RECEIPTS = 2  # the same: a receipt at once for a single message that asks for it
BESIDE_BYTES = 33  # a side and a digest
PORTION = 200  # filters that are looked at in one go: a site may have a million, and traffic does not wait for them
LARGE = 2**14  # bytes of an interest that is read in portions
Position = tuple[int, int]  # (epoch, sequence), compared in this order
Hanging = tuple[int, int, int]  # a broker of a tree: its number, its parent, the incarnation of the link between them
NO_POSITION: Position = (0, 0)  # before all positions

Check = Callable[[Any], Any]


class LinkEntry(NamedTuple):
    """One end of one link. incarnation: the same at both ends, different for each connection. cost: at least 1. policy: of this end."""

    peer: int
    incarnation: int
    cost: int
    policy: Policy | None = None


class LinkRecord(NamedTuple):
    """What one life of one broker says about itself; (epoch, sequence) grows."""

    number: int
    uuid: bytes
    name: str
    epoch: int
    sequence: int
    links: tuple[LinkEntry, ...]
    seal: Seal | None = None

    def said(self) -> tuple[Any, ...]:
        """What is signed."""
        return (*self[:5], [link if link.policy is not None else link[:3] for link in self.links])


class Life(NamedTuple):
    """What one life of one broker says about itself beside its links; serial grows (view/lives.py).

    claim: an operator's word that this data folder holds its identity.
    born: the epoch with which the life began.
    epochs: its own and those of the lives before it, the newest first, each with the last sequence of it that this data folder is known to
    have had (its own: `ALL`). What it has had is in custody, or at its destinations, or has expired.
    rivals: other lives of this UUID that it has heard of.
    yielded: it has given its place to one of them.
    former: the identity, (number, uuid), that the broker had before it was given this one.
    takes: what it takes of whom it has no link with, as bits (`TAKES_BRANCHES`, `GIVES_RECEIPTS`).
    """

    number: int
    uuid: bytes
    life: bytes
    claim: int
    born: int
    epochs: tuple[tuple[int, int], ...]
    serial: int
    rivals: tuple[bytes, ...]
    yielded: bool
    former: tuple[int, bytes] | None
    takes: int = 0
    seal: Seal | None = None

    @property
    def past(self) -> tuple[int, ...]:
        """Its epochs."""
        return tuple([epoch for epoch, _ in self.epochs])

    def said(self) -> tuple[Any, ...]:
        """What is signed."""
        return self[:11]


class SummaryEntry(NamedTuple):
    """What the sender knows of one broker, for the receiver to send what is newer."""

    number: int
    uuid: bytes
    epoch: int
    sequence: int
    interest_epoch: int
    version: int
    digest: int


class InterestUpdate(NamedTuple):
    """A change (base: the version it applies to) or the whole (base None) of one broker's interest."""

    number: int
    uuid: bytes
    epoch: int
    base: int | None
    version: int
    digest: int
    adds: tuple[tuple[str, str | None, int], ...]
    removes: tuple[tuple[str, str | None], ...]
    seal: Seal | None = None


class Open(NamedTuple):
    """An origin's tree; parents stand before their children, the origin itself is not listed."""

    origin: int
    uuid: bytes
    epoch: int
    tree: int
    nodes: tuple[Hanging, ...]
    seal: Seal | None = None


class Level(NamedTuple):
    """A broker on the path from an origin to a branch. incarnation: of the link that it hangs on. beside: digests of its children
    (view/branches.py) beside the one through which the path goes on, each with its side in front, joined."""

    number: int
    incarnation: int
    beside: bytes


class Branch(NamedTuple):
    """What one relay is told of an origin's tree: the path to it, the origin first, itself, and all beyond, each before those beyond it."""

    origin: int
    uuid: bytes
    epoch: int
    tree: int
    path: tuple[Level, ...]
    nodes: tuple[Hanging, ...]
    seal: Seal | None = None


class Refusal(NamedTuple):
    """The destination has no member for a shared subscription (group, filter) that these messages were picked for."""

    epoch: int
    first: int
    last: int
    share: tuple[str, str]


class Receipt(NamedTuple):
    """What one destination has of one origin. epoch: of the destination's life. born: epoch since which it remembers.
    committed: may be forgotten by the origin. seen: need not be sent again in this life. messages, bytes: credit."""

    origin: int
    tree: int
    destination: int
    epoch: int
    born: int
    committed: Position
    seen: Position
    messages: int
    bytes: int
    refusals: tuple[Refusal, ...]


class Dropped(NamedTuple):
    """A relay dropped custody frames for these brokers at a link that was full and has space again."""

    origin: int
    tree: int
    brokers: int


class Noted(NamedTuple):
    """The origin has acted on the destination's refusals up to this position."""

    origin: int
    tree: int
    destination: int
    position: Position


class Order(NamedTuple):
    """What an operator tells the whole mesh about one broker. id: 16 random bytes. issuer, name: the broker that was asked. time: ms since
    1970. what: see `mesh/node/orders.py`. target, uuid, epoch: the broker that it is about, up to this life. key: its new public key."""

    id: bytes
    issuer: int
    name: str
    time: int
    what: str
    target: int
    uuid: bytes
    epoch: int
    key: bytes
    seal: Seal | None = None


_BOUNDS: dict[Check, int] = {}  # of the checks of integers, which a record makes itself


def _integer(bits: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not int or value < 0 or value >> bits:
            raise ValueError(f"{value!r} is not an unsigned integer of {bits} bits")
        return value

    _BOUNDS[check] = 1 << bits
    return check


def _flag(value: Any) -> Any:
    if type(value) is not bool:
        raise ValueError(f"{str(value)[:40]!r} is not true or false")
    return value


def _text(longest: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not str or len(value) > longest:
            raise ValueError(f"{str(value)[:40]!r} is not a text of at most {longest} characters")
        return value

    return check


def _octets(length: int | None) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not bytes or (length is not None and len(value) != length):
            raise ValueError(f"{str(value)[:40]!r} is not {length or 'some'} bytes")
        return value

    return check


def _digests(value: Any) -> Any:
    if type(value) is not bytes or len(value) % BESIDE_BYTES or any(side > 1 for side in value[::BESIDE_BYTES]):
        raise ValueError(f"{str(value)[:40]!r} is no row of digests")
    return value


def _optional(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


def _many(inner: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError(f"{str(value)[:40]!r} is not a list")
        return tuple([inner(item) for item in value])

    return check


def _record(make: Callable[..., Any] | None, *inner: Check) -> Check:
    bounds = [_BOUNDS.get(one, 0) for one in inner]

    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(inner):
            raise ValueError(f"{str(value)[:40]!r} is not a list of {len(inner)} values")
        items = [
            item if type(item) is int and 0 <= item < bound else one(item) for one, bound, item in zip(inner, bounds, value, strict=True)
        ]
        return make(*items) if make else tuple(items)

    return check


def _numbers(make: Callable[..., Any] | None, *bits: int) -> Check:
    """The same as `_record` of integers: a link record or a tree has many of these."""
    slow = _record(make, *[_integer(each) for each in bits])
    bounds = tuple([1 << each for each in bits])
    if len(bits) == 3:
        return _three(make, slow, *bounds)

    def check(value: Any) -> Any:
        if type(value) is list and len(value) == len(bounds):
            for item, bound in zip(value, bounds, strict=True):
                if type(item) is not int or not 0 <= item < bound:
                    break
            else:
                return make(*value) if make else tuple(value)
        return slow(value)  # says what is wrong

    return check


def _three(make: Callable[..., Any] | None, slow: Check, *bounds: int) -> Check:
    one, two, three = bounds

    def check(value: Any) -> Any:
        if type(value) is list and len(value) == 3:
            a, b, c = value
            if type(a) is type(b) is type(c) is int and 0 <= a < one and 0 <= b < two and 0 <= c < three:
                return make(a, b, c) if make else (a, b, c)
        return slow(value)

    return check


def _link(value: Any) -> LinkEntry:
    if type(value) is list and len(value) == 4:
        entry: LinkEntry = _plain_link(value[:3])
        return entry._replace(policy=decode_policy(value[3]))
    plain: LinkEntry = _plain_link(value)
    return plain


def _mask(value: Any) -> int:
    return int.from_bytes(_octets(None)(value), "little")


_u16, _u32, _u48, _u63, _u64 = (_integer(bits) for bits in (16, 32, 48, 63, 64))
_epoch = _integer(EPOCH_BITS)
_uuid = _octets(16)
_life = _octets(LIFE_BYTES)
_name = _text(256)
_filter = _text(65_535)
_group = _optional(_filter)
_position = _numbers(None, 48, 64)
_plain_link = _numbers(LinkEntry, 16, 63, 32)
_hanging = _numbers(None, 16, 16, 63)
_seal = _optional(_record(Seal, _octets(KEY_BYTES), _flag, _octets(SIGNATURE_BYTES)))
_refusal = _record(Refusal, _u48, _u64, _u64, _record(None, _filter, _filter))
_interest_head = (_u16, _uuid, _epoch, _optional(_u64), _u64, _u64)
_added, _removed = _record(None, _filter, _group, _u32), _record(None, _filter, _group)

_FORMS: dict[str, Check] = {
    "summary": _many(_record(SummaryEntry, _u16, _uuid, _epoch, _u64, _epoch, _u64, _u64)),
    "synced": lambda value: 0 if value is None else _octets(0)(value),
    "linkstate": _many(_record(LinkRecord, _u16, _uuid, _name, _epoch, _u64, _many(_link), _seal)),
    "interest": _record(InterestUpdate, *_interest_head, _many(_added), _many(_removed), _seal),
    "life": _many(
        _record(
            Life,
            *(_u16, _uuid, _life, _u32, _epoch, _many(_record(None, _epoch, _u64)), _u64, _many(_life), _flag),
            _optional(_record(None, _u16, _uuid)),
            _u16,
            _seal,
        )
    ),
    "want": _many(_record(None, _u16, _uuid)),
    "open": _record(Open, _u16, _uuid, _u48, _u64, _many(_hanging), _seal),
    "branch": _record(Branch, _u16, _uuid, _u48, _u64, _many(_record(Level, _u16, _u63, _digests)), _many(_hanging), _seal),
    "receipts": _many(_record(Receipt, _u16, _u64, _u16, _u48, _u48, _position, _position, _u32, _u63, _many(_refusal))),
    "dropped": _many(_record(Dropped, _u16, _u64, _mask)),
    "orders": _many(_record(Order, _uuid, _u16, _name, _u48, _text(16), _u16, _uuid, _epoch, _octets(None), _seal)),
    "noted": _record(Noted, _u16, _u64, _u16, _position),
}


DEFLATED = {"packed": "open", "branch": "branch"}  # kinds whose bodies are parts of a link's stream -> their form


def encode(kind: str, body: Any) -> bytes:
    """The control packet of a kind. body: tuples and lists as in the table; masks as bytes, low byte first."""
    if kind == "linkstate":
        body = [(*record.said(), record.seal) for record in body]
    return encode_raw(kind, msgpack.packb(body))


def encode_raw(kind: str, payload: bytes) -> bytes:
    """The control packet of a kind whose body is written elsewhere."""
    topic = PREFIX + kind.encode()
    return b"".join((b"\x30", encode_length(3 + len(topic) + len(payload)), len(topic).to_bytes(2, "big"), topic, b"\0", payload))


def encode_interest(update: InterestUpdate, entries: Mapping[tuple[str, str | None], int]) -> Generator[None, None, bytes]:
    """What `encode` returns for an interest that adds these entries, made a portion at a time. entries: do not change meanwhile."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(len(update))
    for value in update[:6]:
        packer.pack(value)
    packer.pack_array_header(len(entries))
    for number, ((filter_, group), weight) in enumerate(entries.items(), 1):
        packer.pack((filter_, group, weight))
        if number % (10 * PORTION) == 0:
            yield
    packer.pack(update.removes)
    packer.pack(update.seal)
    return encode_raw("interest", packer.bytes())


def encode_packed(kind: str, body: Any, packer: Packer) -> bytes:
    """A `branch`, or (`packed`) an `open` for a peer that takes it deflated."""
    return encode_raw(kind, packer.pack(msgpack.packb(body)))


def decode_packed(kind: str, payload: bytes, unpacker: Unpacker) -> Any:
    """What `decode` returns for the `branch`, or `open`, in there. Raises `PeerError`."""
    try:
        body = unpacker.unpack(payload)
    except ValueError as error:
        raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/{kind}: {error}") from None
    return decode(DEFLATED[kind], body)


def encode_mask(mask: int) -> bytes:
    """A set of brokers as bytes."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def decode(kind: str, payload: bytes) -> Any:
    """The value that the table names for this kind, None for a kind that is not known. Raises `PeerError`."""
    form = _FORMS.get(kind)
    if form is None:
        return None
    try:
        return form(msgpack.unpackb(payload, raw=False, strict_map_key=True))
    except _WRONG as error:
        raise _bad_body(kind, error) from None


def interest_owner(payload: bytes) -> tuple[int, bytes]:
    """Whose interest a body is about: number, uuid. Raises `PeerError`."""
    try:
        values = _Values(payload[:_OWNER_BYTES], len(InterestUpdate._fields))
        return values.value(_u16), values.value(_uuid)
    except _WRONG as error:
        raise _bad_body("interest", error) from None


def decode_interest(payload: bytes) -> Generator[None, None, InterestUpdate]:
    """What `decode` returns for an interest, read a portion at a time. Raises `PeerError`."""
    try:
        values = _Values(payload, len(InterestUpdate._fields))
        head = [values.value(check) for check in _interest_head]
        lists = []
        for check in (_added, _removed):
            items: list[Any] = []
            count = values.count()
            while len(items) < count:
                items += [values.value(check) for _ in range(min(PORTION, count - len(items)))]
                yield
            lists.append(tuple(items))
        seal = values.value(_seal)
        values.end()
    except _WRONG as error:
        raise _bad_body("interest", error) from None
    return InterestUpdate._make((*head, *lists, seal))


_OWNER_BYTES = 64  # of an interest, in which its owner stands
_WRONG = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError, OverflowError)


class _Values:
    """The values of a body that is a list of `fields` values, one after the other."""

    def __init__(self, payload: bytes, fields: int) -> None:
        self._size = len(payload)
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=max(1, len(payload)))
        self._unpacker.feed(payload)
        if self.count() != fields:
            raise ValueError(f"it is not a list of {fields} values")

    def count(self) -> int:
        """How many values the list has that comes next."""
        count: int = self._unpacker.read_array_header()
        return count

    def value(self, check: Check) -> Any:
        """The next value."""
        return check(self._unpacker.unpack())

    def end(self) -> None:
        """Nothing comes any more. Raises ValueError."""
        if self._unpacker.tell() != self._size:
            raise ValueError("it has more than its values")


def _bad_body(kind: str, error: Exception) -> PeerError:
    return PeerError(Reason.PROTOCOL_ERROR, f"$mesh/{kind[:20]}: {str(error)[:200] or type(error).__name__}")
