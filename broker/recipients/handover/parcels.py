"""Messages on their way between recipients: what their user properties say, and the form in which brokers hand them to each other.

Brokers hand over *parcels*: messages of one topic and one property block, as msgpack:

    [form, topic, QoS, retain, properties, expiry left | nil, payloads, site, originator, tried, repeated, reason, final, mark]

A message in a session carries the same in user properties (`stamped`), so that whoever has it knows where it came from and who was tried,
also after a restart. `Parcel.of` reads them.

What it does not know: where a parcel goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgpack

from ....mqtt.batch.run import Run
from ....mqtt.fields import read_string
from ....mqtt.length import encode_length
from ....mqtt.properties import Property, encode_properties
from ....mqtt.publish import publish_properties
from ...journal.mark import part_of, unpacked
from .records import iso

FORM = 1
ORIGINATOR, SITE = "mqmesh-originator", "mqmesh-site"
FAILED_OVER, REPEATED = "mqmesh-failed-over", "mqmesh-repeated"
UNANSWERED = "mqmesh-unanswered"  # its publisher may not publish to its Response Topic, so that it is not returned there
RETURNED, RETURNED_AT, TRIED, TOPIC = "mqmesh-returned", "mqmesh-returned-at", "mqmesh-tried", "mqmesh-topic"
OURS = frozenset((ORIGINATOR, SITE, FAILED_OVER, REPEATED, RETURNED, RETURNED_AT, TRIED, TOPIC))
_FAILED = FAILED_OVER.encode()
_SHORT = 1024  # bytes of a property block that is remembered: many messages have the same
_PIECE = 256 * 1024  # bytes of messages in one parcel, about


@dataclass(slots=True)
class Parcel:
    """Messages of one topic that are handed over together.

    site: number of the broker where they were published. originator: client identifier of the publisher; "": unknown. tried: recipients
    that did not take them, the first one is whose messages they are. repeated: one of those may have them. reason: why the last one has
    not. expiry: seconds left, None: for ever. mark: which messages these are, to the journal (`Mark.packed`); b"" without one.
    """

    topic: bytes
    qos: int
    retain: bool
    properties: bytes
    expiry: int | None
    payloads: list[bytes]
    site: int
    originator: str = ""
    tried: list[str] = field(default_factory=list)
    repeated: bool = False
    reason: str = ""
    final: bool = False
    mark: bytes = b""

    @classmethod
    def of(cls, run: Run, qos: int, here: int, now: float) -> Parcel:
        """The messages of a run in a session. here: number of this broker, the origin's of what says nothing else."""
        marks, plain = split_marks(run.properties)
        if RETURNED in marks:
            plain = run.properties
        left = None if run.expiry is None else max(0, round(run.expiry - (now - run.received)))
        tried = [name for name in marks.get(FAILED_OVER, "").split(",") if name]
        payloads = [bytes(payload) for payload in run.payloads]
        return cls(
            bytes(run.topic),
            qos,
            run.retain,
            plain,
            left,
            payloads,
            site_of(marks, here),
            marks.get(ORIGINATOR, ""),
            tried,
            REPEATED in marks,
            final=RETURNED in marks,
            mark=b"" if run.mark is None else run.mark.packed(),
        )

    def failed(self, name: str, reason: str, repeated: bool) -> Parcel:
        """The same after one more recipient did not take it."""
        tried = self.tried if name in self.tried else [*self.tried, name]
        return replace(self, tried=tried, reason=reason, repeated=self.repeated or repeated)

    def alike(self, other: Parcel) -> bool:
        """Whether both differ in nothing but their payloads, of one length: a run has them all."""
        return (
            len(self.payloads[0]) == len(other.payloads[0])
            and self.tried == other.tried
            and self.properties == other.properties
            and self.topic == other.topic
            and (self.qos, self.retain, self.expiry, self.site) == (other.qos, other.retain, other.expiry, other.site)
            and (self.originator, self.repeated, self.reason, self.final) == (other.originator, other.repeated, other.reason, other.final)
            and not (self.mark or other.mark)
        )

    @property
    def count(self) -> int:
        return len(self.payloads)

    def encode(self) -> bytes:
        """As it travels, and as it is kept."""
        packed: bytes = msgpack.packb(
            [
                FORM,
                self.topic,
                self.qos,
                self.retain,
                self.properties,
                self.expiry,
                self.payloads,
                self.site,
                self.originator,
                self.tried,
                self.repeated,
                self.reason,
                self.final,
                *([self.mark] if self.mark else []),
            ]
        )
        return packed

    def run(self, now: float) -> Run:
        """The messages for an alternative, with what they carry."""
        pairs = [(ORIGINATOR, self.originator)] if self.originator else []
        pairs += [(SITE, str(self.site)), (FAILED_OVER, ",".join(self.tried))]
        if self.repeated:
            pairs.append((REPEATED, "1"))
        run = Run(self.topic, self.qos, False, self.payloads, self.properties + user_properties(pairs), self.expiry, now)
        if self.mark:
            run.mark = unpacked(self.mark, self.topic, self.qos, self.properties)
        return run

    def returned(self, topic: str, now: float, wall: float) -> Run:
        """The messages for their originator. topic: where it takes them. wall: seconds since 1970."""
        pairs = [(RETURNED, self.reason), (RETURNED_AT, iso(wall)), (TRIED, ",".join(self.tried)), (TOPIC, self.topic.decode())]
        if self.originator:
            pairs.append((ORIGINATOR, self.originator))
        if self.repeated:
            pairs.append((REPEATED, "1"))
        return Run(topic.encode(), self.qos, False, self.payloads, self.properties + user_properties(pairs), None, now)

    @property
    def response_topic(self) -> str | None:
        """Where the publisher wants answers."""
        return response_topic(self.properties)

    @property
    def answered(self) -> bool:
        """Whether its publisher may publish there."""
        return UNANSWERED.encode() not in self.properties

    def pieces(self) -> list[Parcel]:
        """The same in parcels of a bounded size."""
        each = 64 + len(self.topic) + len(self.properties) + (len(self.payloads[0]) if self.payloads else 0)
        step = max(1, _PIECE // each)
        if step >= self.count:
            return [self]
        return [self.part(start, start + step) for start in range(0, self.count, step)]

    def part(self, start: int, stop: int) -> Parcel:
        """Some of the messages."""
        mark = part_of(self.mark, start, stop) if stop - start < self.count else self.mark
        return replace(self, payloads=self.payloads[start:stop], mark=mark)


def decode(body: bytes) -> Parcel:
    """A parcel as it travelled. Raises ValueError."""
    try:
        form, *fields = msgpack.unpackb(body)
        if form != FORM:
            raise ValueError(f"form {form}, this version reads {FORM}")
        parcel = Parcel(*fields)
        right = isinstance(parcel.topic, bytes) and isinstance(parcel.properties, bytes) and isinstance(parcel.site, int)
        if not right or not parcel.payloads or not all(isinstance(one, bytes) for one in parcel.payloads):
            raise ValueError("a field is of the wrong kind")
        return parcel
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"a parcel of messages: {error}") from None


def response_topic(block: bytes) -> str | None:
    """The Response Topic in a validated block of PUBLISH properties."""
    if Property.RESPONSE_TOPIC not in block:
        return None
    return publish_properties(encode_length(len(block)) + block, 0, len(block) + 4).response_topic


def user_properties(pairs: list[tuple[str, str]]) -> bytes:
    """User properties as bytes of a property block."""
    return encode_properties({Property.USER_PROPERTY: pairs}) if pairs else b""


def split_marks(block: bytes) -> tuple[dict[str, str], bytes]:
    """(what a validated block of PUBLISH properties says in our user properties, the block without them)."""
    if b"mqmesh-" not in block:
        return {}, block
    return _short_split(block) if len(block) <= _SHORT else _split(block)


@lru_cache(256)
def _short_split(block: bytes) -> tuple[dict[str, str], bytes]:
    return _split(block)


def _split(block: bytes) -> tuple[dict[str, str], bytes]:
    marks: dict[str, str] = {}
    kept = []
    position = 0
    while position < len(block):
        begin = position
        position = _after(block, position)
        if block[begin] == Property.USER_PROPERTY:
            name, at = read_string(block, begin + 1, "User Property")
            if name in OURS:
                marks[name] = read_string(block, at, "User Property")[0]
                continue
        kept.append(block[begin:position])
    return marks, b"".join(kept)


def site_of(marks: dict[str, str], here: int) -> int:
    """The number of the broker where messages with these marks were published. here: of those that do not say it, or no number."""
    site = marks.get(SITE, "")
    return int(site) if len(site) <= 5 and site.isascii() and site.isdecimal() else here


def stamped(run: Run, originator: str, site: int, answered: bool = True) -> Run:
    """Messages as they leave their origin: who published them, and where. What the client wrote there is removed.

    answered: whether they may be returned on their Response Topic.
    """
    pairs = [(ORIGINATOR, originator), (SITE, str(site)), *([] if answered else [(UNANSWERED, "1")])]
    return _with(run, split_marks(run.properties)[1] + user_properties(pairs))


def unmarked(run: Run) -> Run:
    """Messages that a client published to a topic that addresses nobody: what it wrote where only brokers write is removed.

    A message that was returned keeps what that says: it goes nowhere else.
    """
    marks, plain = split_marks(run.properties)
    if not marks:
        return run
    if RETURNED in marks:
        plain += user_properties([(name, marks[name]) for name in marks if name not in (FAILED_OVER, SITE)])
    return _with(run, plain)


def _with(run: Run, block: bytes) -> Run:
    made = Run(run.topic, run.qos, run.retain, run.payloads, block, run.expiry, run.received)
    made.mark = run.mark
    return made


def repeated(run: Run) -> Run:
    """Messages that a client may have already, for a new session of it: what was in flight when the old one ended."""
    if REPEATED in split_marks(run.properties)[0]:
        return run
    return _with(run, run.properties + user_properties([(REPEATED, "1")]))


def failed_over(properties: bytes) -> bool:
    """Whether messages with these properties came from another recipient."""
    return _FAILED in properties


def _after(block: bytes, position: int) -> int:
    """The position behind the property that begins here."""
    identifier = block[position]
    position += 1
    if identifier == Property.PAYLOAD_FORMAT_INDICATOR:
        return position + 1
    if identifier == Property.MESSAGE_EXPIRY_INTERVAL:
        return position + 4
    if identifier == Property.TOPIC_ALIAS:
        return position + 2
    if identifier == Property.SUBSCRIPTION_IDENTIFIER:
        while block[position] & 0x80:
            position += 1
        return position + 1
    position += 2 + int.from_bytes(block[position : position + 2], "big")
    if identifier == Property.USER_PROPERTY:
        position += 2 + int.from_bytes(block[position : position + 2], "big")
    return position


def fields_of(properties: dict[int, Any]) -> dict[str, list[str]]:
    """User properties of a packet by name."""
    found: dict[str, list[str]] = {}
    for name, value in properties.get(Property.USER_PROPERTY, ()):
        found.setdefault(name, []).append(value)
    return found
