"""One MQTT client's side of a connection, version 3.1.1 or 5, as a machine: bytes and times in, bytes and events out.

It serves both sides of the metabroker. Strategy: what is asked for while there is no connection waits in `_waiting`; what is sent at
QoS 1 and 2 stays in `_flight` until it is acknowledged, and is sent again, in order, on the next connection. With MQTT 5 the session is
kept at the server over lost connections (Session Expiry Interval), so that what is subscribed at QoS 1 and 2 collects there; with
3.1.1 each connection begins anew and the owner subscribes again.

A message at QoS 1 or 2 is acknowledged to the server when its owner says so (`acknowledge`), and not before: who passes it on
loses nothing. At most RECEIVE_MAXIMUM of them are open with MQTT 5.

Invariants: a packet identifier is free or belongs to one entry of `_flight`, `_asked`; at most the server's Receive Maximum of
publications are in flight [MQTT-3.3.4-9]. What it does not know: sockets, addresses, sessions of the metabroker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..mqtt.codec import decode, encode
from ..mqtt.errors import PeerError, UsageError, protocol_error
from ..mqtt.framing import Framer
from ..mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from ..mqtt.properties import Properties, Property, encode_properties
from ..mqtt.reasons import ConnectReturn, Reason

RECEIVE_MAXIMUM = 1000
PATIENCE = 15.0  # seconds for a CONNACK and for a PINGRESP
_CREDENTIALS = frozenset((Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BAD_AUTHENTICATION_METHOD))
_CREDENTIALS_V4 = frozenset((ConnectReturn.BAD_USER_NAME_OR_PASSWORD, ConnectReturn.NOT_AUTHORIZED))


class State(Enum):
    """Of the connection."""

    DOWN = "down"
    CONNECTING = "CONNECT sent"
    UP = "up"


class Abilities(NamedTuple):
    """What the server takes. identifiers: Subscription Identifiers. largest: bytes of a packet; 0: any. qos: the highest. retain: any.

    carries: why the server cannot have a message as it is; None, as the answer or altogether: it can.
    """

    identifiers: bool = True
    largest: int = 0
    qos: int = 2
    retain: bool = True
    carries: Callable[[Publish], str | None] | None = None


class Up(NamedTuple):
    """The server accepted. present: it has kept our session, subscriptions included."""

    present: bool
    abilities: Abilities


class Refused(NamedTuple):
    """The server does not accept us."""

    credentials: bool
    text: str


class Message(NamedTuple):
    """A publication; at QoS 1 and 2 `acknowledge` it with its packet identifier and `epoch`."""

    publish: Publish
    epoch: int


class Published(NamedTuple):
    """What was published under a token is acknowledged, or refused (reason 0x80 and above)."""

    token: int
    reason: int


class Subscribed(NamedTuple):
    """The answer to `subscribe`: the granted QoS, or a refusal (0x80 and above)."""

    token: int
    reason: int


class Unsubscribed(NamedTuple):
    """The answer to `unsubscribe`."""

    token: int
    reason: int


class Trouble(NamedTuple):
    """Something for the log, the remote's fault."""

    text: str


Event = Up | Refused | Message | Published | Subscribed | Unsubscribed | Trouble


@dataclass(frozen=True, slots=True)
class Login:
    """As whom. keep_alive, expiry: seconds; expiry: how long an MQTT 5 server keeps the session of a lost connection.

    known: the server may have a session of ours from before this process. durable: a server of 3.1.1 is to keep one, too.
    """

    client_id: str
    version: int = 5
    username: str | None = None
    password: bytes | None = None
    keep_alive: int = 30
    expiry: int = 3600
    max_packet: int = 16_777_216
    known: bool = False
    durable: bool = False


@dataclass(slots=True)
class _Sent:
    """One publication in flight. released: PUBREC has come, PUBREL is sent."""

    publish: Publish
    token: int
    released: bool = False


class Wire:
    """The machine. The owner takes what is to be written from `take`, and calls `lost` when a connection has ended."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.state = State.DOWN
        self.epoch = 0  # counts connections
        self.reading = True  # False while the owner reads nothing: no answer can come then
        self.bytes = 0  # payloads that wait for a connection, for room, or for an acknowledgement
        self._framer = Framer(login.max_packet)
        self._out: list[bytes] = []
        self._waiting: deque[tuple[Publish, int]] = deque()
        self._flight: dict[int, _Sent] = {}
        self._asked: dict[int, tuple[int, bool]] = {}  # SUBSCRIBE, UNSUBSCRIBE: (token, whether it subscribes)
        self._received: set[int] = set()  # QoS 2 messages until PUBREL
        self._open: set[int] = set()  # QoS 1 and 2 messages that the owner has not acknowledged
        self._next = 1
        self._limit = 65_535
        self._largest = 0  # bytes of a packet that the server takes; 0: any
        self._fresh = not login.known  # no server has a session of ours
        self._keep_alive = float(login.keep_alive)
        self._sent_at = self._heard_at = 0.0
        self._pinged = False

    @property
    def waiting(self) -> int:
        """How many publications are not acknowledged, or not sent."""
        return len(self._waiting) + len(self._flight)

    def take(self) -> bytes:
        """What is to be written now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    # Connections

    def begin(self, now: float) -> None:
        """A transport is open: say CONNECT."""
        login = self.login
        self.epoch += 1
        self.state = State.CONNECTING
        self._framer = Framer(login.max_packet)
        self._out.clear()
        properties: Properties = {}
        if login.version == 5:
            properties = {
                Property.SESSION_EXPIRY_INTERVAL: login.expiry,
                Property.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM,
                Property.MAXIMUM_PACKET_SIZE: login.max_packet,
            }
        clean = self._fresh if login.version == 5 else not login.durable
        connect = Connect(login.client_id, login.version, clean, login.keep_alive, login.username, login.password, None, properties)
        self._pinged = False
        self._heard_at = now
        self._send(connect, now)

    def lost(self) -> None:
        """The connection has ended. Subscriptions that were asked for are forgotten; the owner asks again after `Up`."""
        self.state = State.DOWN
        self._out.clear()
        self._asked.clear()
        self._open.clear()

    def end(self, now: float, forget: bool = True) -> bool:
        """Say DISCONNECT. forget: an MQTT 5 server is to forget our session. False: it says nothing to that."""
        if self.state is State.UP:
            properties: Properties = {Property.SESSION_EXPIRY_INTERVAL: 0} if self.login.version == 5 and forget else {}
            self._send(Disconnect(Reason.NORMAL_DISCONNECTION, properties), now)
        return False

    # Requests

    def publish(self, publish: Publish, token: int, now: float) -> None:
        """Send a message, or keep it until it can be sent. The token comes back in `Published`, for QoS 0 never."""
        if self.state is State.UP and not self._waiting and (publish.qos == 0 or len(self._flight) < self._limit):
            self._start(publish, token, now)
        else:
            self._waiting.append((publish, token))
            self.bytes += len(publish.payload)

    def fits(self, publish: Publish) -> bool:
        """Whether the server takes a packet of this size."""
        return fits(publish, self._largest)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        """Subscribe, while up. identifier: Subscription Identifier, 0: none."""
        properties: Properties = {Property.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        packet_id = self._free()
        self._asked[packet_id] = (token, True)
        self._send(Subscribe(packet_id, [Subscription(filter_, qos)], properties), now)

    def unsubscribe(self, filter_: str, token: int, now: float) -> None:
        """Unsubscribe, while up."""
        packet_id = self._free()
        self._asked[packet_id] = (token, False)
        self._send(Unsubscribe(packet_id, [filter_]), now)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        """A message of QoS 1 or 2 is in safe hands. One of an earlier connection is left: the server sends it again."""
        if epoch != self.epoch or packet_id not in self._open or self.state is not State.UP:
            return
        self._open.discard(packet_id)
        if packet_id in self._received:
            self._send(Pubrec(packet_id), now)
        else:
            self._send(Puback(packet_id), now)

    # Time

    def next_deadline(self) -> float | None:
        """When `on_timer` is to be called; None: never."""
        if self.state is State.CONNECTING:
            return self._heard_at + PATIENCE
        if self.state is State.DOWN or not self._keep_alive:
            return None
        return self._sent_at + (PATIENCE if self._pinged else self._keep_alive)

    def on_timer(self, now: float) -> None:
        """Ping. Raises PeerError when the server has been silent for too long."""
        due = self.next_deadline()
        if due is None or now < due or (self._pinged and not self.reading):
            return
        if self._pinged or self.state is State.CONNECTING:
            raise PeerError(Reason.KEEP_ALIVE_TIMEOUT, "the server does not answer", "")
        self._send(Pingreq(), now)
        self._pinged = True

    # What comes

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take bytes. Raises PeerError when the server breaks a rule or ends the connection; the owner closes then."""
        self._heard_at = now
        events: list[Event] = []
        for first, body in self._framer.feed(data):
            if self.state is State.CONNECTING and first == 0x20 and self.login.version == 5 and len(body) == 2 and body[1]:
                # a server of 3.1.1 alone says so in the form of 3.1.1
                events.append(Refused(False, f"it does not speak MQTT 5 (return code {body[1]})"))
                return events
            self._packet(decode(first, body, self.login.version), events, now)
        return events

    def _packet(self, packet: Packet, events: list[Event], now: float) -> None:
        if self.state is State.CONNECTING:
            if not isinstance(packet, Connack):
                raise protocol_error(f"{type(packet).__name__} before CONNACK", "MQTT-3.2.0-1")
            self._connack(packet, events, now)
        elif isinstance(packet, Publish):
            self._message(packet, events, now)
        elif isinstance(packet, Puback | Pubcomp | Pubrec):
            self._acknowledged(packet, events, now)
        elif isinstance(packet, Pubrel):
            self._received.discard(packet.packet_id)
            self._send(Pubcomp(packet.packet_id), now)
        elif isinstance(packet, Suback | Unsuback):
            token, subscribes = self._asked.pop(packet.packet_id, (0, False))
            if token and subscribes is isinstance(packet, Suback):
                reason = int(packet.reasons[0]) if packet.reasons else 0
                events.append(Subscribed(token, reason) if subscribes else Unsubscribed(token, reason))
        elif isinstance(packet, Pingresp):
            self._pinged = False
        elif isinstance(packet, Disconnect):
            text = packet.properties.get(Property.REASON_STRING, "")
            raise PeerError(packet.reason, f"the server ends the connection: {packet.reason.name} {text}".rstrip(), "")
        else:
            raise protocol_error(f"a server must not send {type(packet).__name__}")

    def _connack(self, packet: Connack, events: list[Event], now: float) -> None:
        if packet.reason:
            v4 = isinstance(packet.reason, ConnectReturn)
            word = packet.reason.name if isinstance(packet.reason, ConnectReturn | Reason) else str(packet.reason)
            events.append(Refused(packet.reason in (_CREDENTIALS_V4 if v4 else _CREDENTIALS), word.lower().replace("_", " ")))
            return
        self.state = State.UP
        self._limit = packet.properties.get(Property.RECEIVE_MAXIMUM, 65_535)
        self._largest = packet.properties.get(Property.MAXIMUM_PACKET_SIZE, 0)
        self._keep_alive = float(packet.properties.get(Property.SERVER_KEEP_ALIVE, self.login.keep_alive))
        present = packet.session_present and not self._fresh
        self._fresh = False
        if not present:
            self._received.clear()
        events.append(Up(present, self._abilities(packet.properties)))
        self._resume(present, events, now)

    def _abilities(self, properties: Properties) -> Abilities:
        return Abilities(
            self.login.version == 5 and bool(properties.get(Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE, 1)),
            self._largest,
            properties.get(Property.MAXIMUM_QOS, 2),
            bool(properties.get(Property.RETAIN_AVAILABLE, 1)),
        )

    def _resume(self, present: bool, events: list[Event], now: float) -> None:
        """Send again what is in flight, in order. Without a session: released messages are done, the rest begins anew."""
        for packet_id, sent in list(self._flight.items()):
            if sent.released and present:
                self._send(Pubrel(packet_id), now)
            elif sent.released:
                del self._flight[packet_id]
                self.bytes -= len(sent.publish.payload)
                events.append(Published(sent.token, 0))
            else:
                sent.publish.dup = present
                self._send(sent.publish, now)
        self._more(now)

    def _message(self, publish: Publish, events: list[Event], now: float) -> None:
        if publish.qos:
            if publish.qos == 2 and publish.packet_id in self._received:
                if publish.packet_id not in self._open:
                    # taken before; when that was on an earlier connection PUBREC may not have been said
                    self._send(Pubrec(publish.packet_id), now)
                return
            self._open.add(publish.packet_id)
            if publish.qos == 2:
                self._received.add(publish.packet_id)
        events.append(Message(publish, self.epoch))

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp, events: list[Event], now: float) -> None:
        sent = self._flight.get(packet.packet_id)
        if isinstance(packet, Pubrec) and packet.reason < 0x80:
            if sent is not None and sent.publish.qos == 2:
                sent.released = True
                self._send(Pubrel(packet.packet_id), now)
            else:
                reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if self.login.version == 5 else Reason.SUCCESS
                self._send(Pubrel(packet.packet_id, reason), now)
            return
        expected = sent is not None and (
            sent.publish.qos == 1 if isinstance(packet, Puback) else sent.released is isinstance(packet, Pubcomp) and sent.publish.qos == 2
        )
        if sent is None or not expected:
            return
        del self._flight[packet.packet_id]
        self.bytes -= len(sent.publish.payload)
        events.append(Published(sent.token, int(packet.reason) if not isinstance(packet, Pubcomp) else 0))
        self._more(now)

    # What leaves

    def _more(self, now: float) -> None:
        """Send what has waited, as far as there is room."""
        while self._waiting and (self._waiting[0][0].qos == 0 or len(self._flight) < self._limit):
            publish, token = self._waiting.popleft()
            self.bytes -= len(publish.payload)
            self._start(publish, token, now)

    def _start(self, publish: Publish, token: int, now: float) -> None:
        if publish.qos:
            publish.packet_id = self._free()
            self._flight[publish.packet_id] = _Sent(publish, token)
            self.bytes += len(publish.payload)
        self._send(publish, now)

    def _send(self, packet: Packet, now: float) -> None:
        try:
            self._out.append(encode(packet, self.login.version))
        except UsageError as error:  # checked where it came from, so a defect here; the connection is of no use then
            raise PeerError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"cannot say {type(packet).__name__}: {error}") from error
        if not self._pinged:
            self._sent_at = now

    def _free(self) -> int:
        packet_id = self._next
        while packet_id in self._flight or packet_id in self._asked:
            packet_id = packet_id % 65_535 + 1
        self._next = packet_id % 65_535 + 1
        return packet_id


def fits(publish: Publish, largest: int) -> bool:
    """Whether a publication is no larger than this, properties included."""
    if not largest:
        return True
    properties = len(encode_properties(publish.properties))
    return len(publish.payload) + len(publish.topic.encode()) + properties + 16 <= largest  # 16: header, lengths, identifier
