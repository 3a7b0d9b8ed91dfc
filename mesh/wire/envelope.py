"""The envelope: what a broker writes into the Correlation Data of a PUBLISH before it goes over a link, and runs of such frames.

    offset  size  field                                                     same in all frames of
    ------  ----  --------------------------------------------------------  ---------------------
    0       1     version = 1; 4 or 5 in a block (block.py)                 a stream
    1       1     flags (`Flag`)                                            a stream
    2       2     origin: number of the broker where it was published       a stream
    4       6     epoch of the origin's life that numbered it, ms           a stream
    10      8     tree number; 0 in a flooded frame                         a stream
    18      2     width: bytes of visited bits; 0: for all along its tree   a stream
    20      w     visited bits (`visited.py`)                               a stream
    20+w    6     publish time, ms since 1970; the highest bit: `ASKS`      a run
            4     Message Expiry Interval, s; only with Flag.EXPIRY         a run
            2+p   shared-subscription picks, length in front                a run
            2+m   mark of a retained message, length in front; only with    a run
                  Flag.RETAIN; empty where nobody is to keep the message
            c     the application's own Correlation Data                    a run
            8     sequence, the last 8 bytes of the Correlation Data        its six high bytes: 65,536 messages

The frame is an MQTT 5 PUBLISH with QoS 0, the application's topic, this Correlation Data as *first* property, the application's
other properties behind it and the payload. What differs between two messages of a run, the low bytes of the sequence and the
payload, stands at the end. So a run on the link is recognised by one comparison a frame (prefix) and relayed with a few
strided slices, and the bits stand at an offset known from the topic's length.

Invariants
- all frames of a block have one size and one prefix up to the two low bytes of the sequence;
- the application's correlation data and other properties arrive byte for byte.

It does not know trees, links, windows or who wants what.
"""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.batch.run import PID_HIGH, PID_LOW
from ...mqtt.errors import MqttError, PeerError
from ...mqtt.length import LONGEST_LENGTH, encode_length
from ...mqtt.publish import publish_properties, strip
from ...mqtt.reasons import Reason
from .visited import EVERYBODY, share_of

VERSION = 1
BLOCKS = (4, 5)  # versions of a block's envelope: that of MQTT in which its packets are
FIXED = 20  # bytes in front of the visited bits
CORRELATION_DATA = 0x09
ASKS = 0x80  # in the first byte of the publish time: a single message of QoS 1 whose origin waits for the receipt
TIME = 2**47 - 1  # the bits of the publish time
WIDEST = 8192  # bytes of visited bits: 65,536 brokers
ROOM = 512  # bytes of visited bits for which room is kept in each envelope: 4,096 brokers
MARK_ROOM = 6_500  # bytes of a mark without its set of brokers, at the most
EASY_PROPERTIES = 50_000  # bytes of properties, and of a payload, that fit any envelope without picks
EASY_PAYLOAD = 268_000_000

PEER_TOPICS = b"$mqmesh/"  # begins the topic of what one broker posts to another: no client's message does

Share = tuple[str, str]  # a shared subscription: group, filter
Picks = tuple[tuple[Share, int], ...]  # which broker serves which


class Flag:
    """Second byte of the envelope. The two lowest bits are the message's own QoS. Plain integers: an enum costs more than a frame."""

    QOS = 3
    RETAIN = 4
    FLOOD = 8
    PICKS_ONLY = 16  # ordinary subscriptions have it already
    REPEATED = 32  # a member elsewhere may have had it
    CORRELATION = 64  # the application gave Correlation Data, perhaps empty
    EXPIRY = 128


class Head(NamedTuple):
    """The constants of a stream. share: the brokers whose visited bit is not set.

    version: of MQTT, in which the packets of a block are; 0: it is no block.
    """

    flags: int
    origin: int
    epoch: int
    tree: int
    width: int
    share: int
    version: int = 0


class Rest(NamedTuple):
    """The constants of a run behind the visited bits. time: ms since 1970. mark: of `retained/record.py`, b"" without one."""

    time: int
    expiry: int | None
    picks: Picks
    correlation: bytes | None
    mark: bytes = b""


def peer_message_kind(topic: bytes) -> str | None:
    """What kind of post has this topic; None: it is a client's message."""
    return topic[len(PEER_TOPICS) :].decode() if topic.startswith(PEER_TOPICS) else None


def bad_frame(text: str) -> PeerError:
    """The peer sent a frame that is none; only its link suffers."""
    return PeerError(Reason.MALFORMED_PACKET, f"mesh frame: {text}")


def encode_head(flags: int, origin: int, epoch: int, tree: int, width: int, version: int = VERSION) -> bytes:
    """The first 20 bytes of an envelope; the visited bits follow."""
    return b"".join(
        (
            bytes((version, flags)),
            origin.to_bytes(2, "big"),
            epoch.to_bytes(6, "big"),
            tree.to_bytes(8, "big"),
            width.to_bytes(2, "big"),
        )
    )


def check_travels(topic: bytes, properties: bytes, length: int, picks: Picks, width: int, retain: bool = False) -> None:
    """Raise ValueError for a message that no frame can hold, before anything is done with it.

    properties: the application's. length: of the payload, bytes. Room is kept for an envelope that may yet grow: bits for more brokers, an
    expiry, so that what was once taken into custody can always be sent. retain: with a mark, as long as one can be.
    """
    correlation, others = split_properties(properties)
    envelope = FIXED + max(width, ROOM) + 6 + 4 + len(encode_rest(None, picks, correlation)) + 8
    if retain:
        envelope += MARK_ROOM + width
    if envelope > 65_535:
        raise ValueError(f"the envelope takes {envelope} bytes, at most 65535")
    remaining = 2 + len(topic) + 4 + 3 + envelope + len(others) + length
    if remaining > LONGEST_LENGTH:
        raise ValueError(f"a frame takes {remaining} bytes, at most {LONGEST_LENGTH}")


def decode_head(head: bytes) -> Head:
    """Read the fixed part and the bits. Raises `PeerError` for a version or QoS that does not exist."""
    version, flags = head[0], head[1]
    if version in BLOCKS:
        if flags & (Flag.RETAIN | Flag.FLOOD) or (version == 5 and flags & Flag.CORRELATION):
            raise bad_frame("a block of messages that make none")
    elif version != VERSION:
        raise bad_frame(f"envelope version {version}, this broker speaks {VERSION}")
    if flags & 3 == 3:
        raise bad_frame("QoS 3 in the envelope")
    if flags & Flag.FLOOD and flags & 3:
        raise bad_frame("a flooded frame of QoS 1 or 2")
    bits = head[FIXED:]
    share = share_of(bits) if bits else EVERYBODY
    integer = int.from_bytes
    origin, epoch, tree = integer(head[2:4], "big"), integer(head[4:10], "big"), integer(head[10:18], "big")
    return Head(flags, origin, epoch, tree, len(bits), share, version if version in BLOCKS else 0)


def encode_picks(picks: Picks) -> bytes:
    """Length (2 bytes), then for each pick broker (2), length of the text (2), ``group/filter``."""
    if not picks:
        return b"\0\0"
    parts = []
    for (group, filter_), number in picks:
        raw = f"{group}/{filter_}".encode()
        parts.append(number.to_bytes(2, "big") + len(raw).to_bytes(2, "big") + raw)
    body = b"".join(parts)
    if len(body) > 65_535:
        raise ValueError(f"the picks of one message take {len(body)} bytes, at most 65535")
    return len(body).to_bytes(2, "big") + body


def _decode_picks(data: bytes) -> Picks:
    picks = []
    position = 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position + 2 : position + 4], "big")
        if position + 4 > len(data) or end > len(data):
            raise bad_frame("a shared-subscription pick is cut off")
        try:
            group, _, filter_ = data[position + 4 : end].decode().partition("/")
        except UnicodeDecodeError:
            raise bad_frame("a shared-subscription pick is not UTF-8") from None
        picks.append(((group, filter_), int.from_bytes(data[position : position + 2], "big")))
        position = end
    return tuple(picks)


def encode_rest(expiry: int | None, picks: Picks, correlation: bytes | None, mark: bytes | None = None) -> bytes:
    """What stands between the publish time and the sequence. mark: None for a message without Flag.RETAIN."""
    kept = b"" if mark is None else len(mark).to_bytes(2, "big") + mark
    return b"".join((b"" if expiry is None else expiry.to_bytes(4, "big"), encode_picks(picks), kept, correlation or b""))


def publish_time(data: bytes, at: int = 0) -> int:
    """When a message was published, in ms since 1970. at: where that stands."""
    return int.from_bytes(data[at : at + 6], "big") & TIME


def decode_rest(flags: int, data: bytes) -> Rest:
    """Read what stands between the bits and the sequence. Raises `PeerError`."""
    time = publish_time(data)
    expiry = None
    position = 6
    if flags & Flag.EXPIRY:
        expiry = int.from_bytes(data[6:10], "big")
        position = 10
    start = position + 2
    if start > len(data):
        raise bad_frame("the envelope is cut off")
    end = start + (data[position] << 8 | data[position + 1])
    if end > len(data):
        raise bad_frame("the envelope's picks are cut off")
    picks = _decode_picks(data[start:end]) if end > start else ()
    mark = b""
    if flags & Flag.RETAIN:
        start = end + 2
        end = start + int.from_bytes(data[end:start], "big")
        if end > len(data) or start > len(data):
            raise bad_frame("the envelope's mark is cut off")
        mark = data[start:end]
    if flags & Flag.CORRELATION:
        return Rest(time, expiry, picks, data[end:], mark)
    if end != len(data):
        raise bad_frame("the envelope has bytes that nothing announces")
    return Rest(time, expiry, picks, None, mark)


def split_properties(properties: bytes) -> tuple[bytes | None, bytes]:
    """An application's property block -> its Correlation Data (None without) and the other properties, in order."""
    if not properties:
        return None, b""
    found = publish_properties(encode_length(len(properties)) + properties, 0, len(properties) + 4)
    if found.correlation is None:
        return None, properties
    return found.correlation, strip(properties, CORRELATION_DATA)


def join_properties(correlation: bytes | None, others: bytes) -> bytes:
    """The application's property block, its Correlation Data in front."""
    if correlation is None:
        return others
    return b"".join((bytes((CORRELATION_DATA,)), len(correlation).to_bytes(2, "big"), correlation, others))


def check_others(others: bytes) -> None:
    """Raise `PeerError` unless these properties may stand behind the envelope and travel to a subscriber."""
    if not others:
        return
    try:
        found = publish_properties(encode_length(len(others)) + others, 0, len(others) + 4)
    except MqttError as error:
        raise bad_frame(str(error)) from None
    if found.correlation is not None or found.topic_alias is not None or found.subscription_identifiers:
        raise bad_frame("a property behind the envelope that does not travel between brokers")


class Template:
    """Everything that is the same in all frames of one topic, stream constants but the bits, properties, picks and payload length.

    size: of a frame. bits_offset, sequence_offset: where they stand in a frame.
    """

    __slots__ = ("_before", "_middle", "_tail", "bits_offset", "sequence_offset", "size", "width")

    def __init__(self, topic: bytes, head: bytes, width: int, middle: bytes, others: bytes, length: int) -> None:
        """head: of `encode_head`. middle: of `encode_rest`. others: of `split_properties`. length: of each payload, bytes.

        Raises ValueError for what no MQTT packet can hold.
        """
        correlation = FIXED + width + 6 + len(middle) + 8
        if correlation > 65_535:
            raise ValueError(f"the envelope takes {correlation} bytes, at most 65535")
        properties = 3 + correlation + len(others)
        property_length = encode_length(properties)
        remaining = 2 + len(topic) + len(property_length) + properties + length
        self._before = b"".join(
            (
                b"\x30",
                encode_length(remaining),
                len(topic).to_bytes(2, "big"),
                topic,
                property_length,
                bytes((CORRELATION_DATA,)),
                correlation.to_bytes(2, "big"),
                head,
            )
        )
        self._middle = middle
        self._tail = others
        self.width = width
        self.bits_offset = len(self._before)
        self.sequence_offset = self.bits_offset + width + 6 + len(middle)
        self.size = self.sequence_offset + 8 + len(others) + length

    def front(self, bits: bytes) -> bytes:
        """What stands before the publish time."""
        return self._before + bits

    def block(self, bits: bytes, time: bytes, first: int, payloads: list[bytes]) -> bytes | bytearray:
        """Frames with sequences from `first` on, in a row. time: publish time, 6 bytes."""
        count = len(payloads)
        parts = (self._before, bits, time, self._middle, first.to_bytes(8, "big"), self._tail)
        if count == 1:
            return b"".join((*parts, payloads[0]))
        prefix = b"".join(parts)
        low = first & 0xFFFF
        if low + count > 65_536:
            edge = 65_536 - low
            return self.block(bits, time, first, payloads[:edge]) + self.block(bits, time, first + edge, payloads[edge:])
        data = bytearray(prefix.join([b"", *payloads]))  # to join bytes and copy them is faster than to join into a bytearray
        at, size = self.sequence_offset + 6, self.size
        data[at::size] = PID_HIGH[low : low + count]
        data[at + 1 :: size] = PID_LOW[low : low + count]
        return data


def low_sequences(block: bytes, at: int, size: int) -> list[int]:
    """The two low sequence bytes of each frame as numbers, for runs with gaps."""
    return [high << 8 | low for high, low in zip(block[at::size], block[at + 1 :: size], strict=True)]
