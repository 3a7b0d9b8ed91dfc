"""One end of a relay: the client's side of one MQTT connection, as far as a relay needs it. Bytes in, frames out.

It says CONNECT and notes what CONNACK grants. It cuts and makes frames, without an object for a message. It does not know the other end.
"""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.codec import decode, encode
from ...mqtt.errors import MalformedPacket, PeerError, protocol_error
from ...mqtt.framing import Framer
from ...mqtt.length import encode_length, read_length
from ...mqtt.packets import Connack, Connect, Disconnect, Packet
from ...mqtt.properties import Property
from ...mqtt.reasons import ConnectReturn, Reason

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT = (
    2,
    3,
    4,
    5,
    6,
    7,
    9,
    11,
    13,
    14,
)  # kinds of frames
WINDOW = 1000  # messages of QoS 1 and 2 that one end sends without an acknowledgement; of MQTT 3.1.1, which cannot say it, V4_WINDOW
V4_WINDOW = 20
_PINGREQ = b"\xc0\0"


class Message(NamedTuple):
    """A PUBLISH as its frame has it. first: the first byte. packet_id: 0 at QoS 0. block: properties without their length."""

    first: int
    topic: bytes
    packet_id: int
    block: bytes
    payload: bytes

    @property
    def qos(self) -> int:
        return self.first >> 1 & 3


class Refused(Exception):
    """CONNACK refuses. level: because of the version of MQTT."""

    def __init__(self, text: str, level: bool = False) -> None:
        super().__init__(text)
        self.level = level


class End:
    """A connection as a client. name: of what is there, for errors. largest: bytes of a packet that we take.

    up: CONNACK has accepted us. present: the server had our session. takes: bytes of a packet that it takes, 0: any. window: messages of
    QoS 1 and 2 that it takes without acknowledging. qos, retains, identifies: what it offers.
    """

    def __init__(self, name: str, connect: Connect, largest: int) -> None:
        self.name = name
        self.version = connect.version
        self.connect = connect
        self.up = self.present = False
        self.takes = 0
        self.window = WINDOW if connect.version == 5 else V4_WINDOW
        self.qos = 2
        self.retains = self.identifies = True
        self.out: list[bytes] = []
        self.largest = largest
        self._framer = Framer(largest)

    def begin(self) -> None:
        """Say CONNECT."""
        self.send(self.connect)

    @property
    def idle(self) -> bool:
        """Whether no packet has come in part."""
        return self._framer.error is None and not self._framer.unfinished()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that these bytes complete. Raises PeerError."""
        return self._framer.feed(data)

    def send(self, packet: Packet) -> None:
        """Say a packet."""
        self.out.append(encode(packet, self.version))

    def take(self) -> bytes:
        """What is to be written now."""
        data = b"".join(self.out)
        self.out.clear()
        return data

    def ping(self) -> None:
        self.out.append(_PINGREQ)

    def accept(self, first: int, body: bytes) -> None:
        """Take CONNACK. Raises Refused, and PeerError for anything else."""
        if first >> 4 != CONNACK:
            raise protocol_error(f"{self.name}: no CONNACK comes first", "MQTT-3.2.0-1")
        if self.version == 5 and len(body) == 2 and body[1]:  # in the form of 3.1.1: it speaks nothing else
            raise Refused(f"it does not speak MQTT 5 (return code {body[1]})")
        packet = decode(first, body, self.version)
        assert isinstance(packet, Connack)
        if packet.reason:
            word = packet.reason.name if isinstance(packet.reason, ConnectReturn | Reason) else str(packet.reason)
            raise Refused(f"it refuses us: {word.lower().replace('_', ' ')}", "PROTOCOL_VERSION" in word)
        found = packet.properties
        self.up, self.present = True, packet.session_present
        self.takes = found.get(Property.MAXIMUM_PACKET_SIZE, 0)
        self.window = min(found.get(Property.RECEIVE_MAXIMUM, self.window), self.window)
        self.qos = found.get(Property.MAXIMUM_QOS, 2)
        self.retains = bool(found.get(Property.RETAIN_AVAILABLE, 1))
        self.identifies = self.version == 5 and bool(found.get(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1))

    def farewell(self, body: bytes) -> tuple[Reason, str]:
        """What a DISCONNECT says."""
        packet = decode(DISCONNECT << 4, body, self.version)
        assert isinstance(packet, Disconnect)
        return packet.reason, packet.properties.get(Property.REASON_STRING, "")

    def message(self, first: int, body: bytes) -> Message:
        """A PUBLISH from there. Raises PeerError."""
        qos = first >> 1 & 3
        at = 2 + int.from_bytes(body[:2], "big")
        topic = body[2:at]
        packet_id = 0
        if qos:
            packet_id = int.from_bytes(body[at : at + 2], "big")
            at += 2
        block = b""
        if self.version == 5:
            length, start = read_length(body, at, len(body))
            block, at = body[start : start + length], start + length
            if length < 0:
                at = len(body) + 1
        if at > len(body) or qos == 3 or not topic or (qos and not packet_id):
            raise MalformedPacket(f"{self.name}: a PUBLISH that cannot be read", "4.13.1")
        return Message(first, topic, packet_id, block, body[at:])

    def frame(self, message: Message, topic: bytes) -> bytes:
        """A message as the packet that goes there, under another name."""
        parts = [len(topic).to_bytes(2, "big"), topic]
        if message.packet_id:
            parts.append(message.packet_id.to_bytes(2, "big"))
        if self.version == 5:
            parts += (encode_length(len(message.block)), message.block)
        parts.append(message.payload)
        body = b"".join(parts)
        first = message.first if self.retains else message.first & 0xFE
        return b"".join((bytes((first,)), encode_length(len(body)), body))

    def answer(self, kind: int, packet_id: int, reason: int = 0) -> None:
        """Say PUBACK, PUBREC, PUBREL or PUBCOMP."""
        first = kind << 4 | (2 if kind == PUBREL else 0)
        if reason and self.version == 5:
            self.out.append(bytes((first, 3, packet_id >> 8, packet_id & 255, reason)))
        else:
            self.out.append(bytes((first, 2, packet_id >> 8, packet_id & 255)))


def answered(body: bytes) -> tuple[int, int]:
    """(packet identifier, reason) of an acknowledgement. Raises PeerError."""
    if len(body) < 2:
        raise PeerError(Reason.MALFORMED_PACKET, "an acknowledgement without a packet identifier", "4.13.1")
    return body[0] << 8 | body[1], body[2] if len(body) > 2 else 0
