"""One MQTT client's side of a connection, version 3.1.1 or 5, as a machine: bytes and times in, bytes and events out.

It serves both sides of the metabroker. Messages of QoS 0 and 1 may leave and come many at a time (`batches.py`), with the same promises;
what is unusual goes packet by packet. Strategy: what is asked for while there is no connection waits in `_waiting`; what is sent at
QoS 1 and 2 stays in `_flight` until it is acknowledged, and is sent again, in order, on the next connection. With MQTT 5 the session is
kept at the server over lost connections (Session Expiry Interval), so that what is subscribed at QoS 1 and 2 collects there; with
3.1.1 each connection begins anew and the owner subscribes again.

A message at QoS 1 or 2 is acknowledged to the server when its owner says so (`acknowledge`), and not before: who passes it on
loses nothing. At most `receive_maximum` of them are open with MQTT 5.

Invariants: a packet identifier is free or belongs to one entry of `_flight`, `_batches`, `_asked`; at most the server's Receive Maximum of
publications are in flight [MQTT-3.3.4-9]; `_busy` says which identifiers are not free.
What it does not know: sockets, addresses, sessions of the metabroker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from ...base.clients import EXCLUSIVE, MAY_BE_EXCLUSIVE
from ...mqtt.codec import decode, encode
from ...mqtt.errors import MalformedPacket, PeerError, UsageError, protocol_error
from ...mqtt.framing import Framer
from ...mqtt.length import read_length
from ...mqtt.packets import (
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
from ...mqtt.properties import Properties, Property
from ...mqtt.reasons import ConnectReturn, Reason
from ...mqtt.session import PUBACKS
from ..protocol.events import (
    Abilities,
    BatchSettled,
    Event,
    Message,
    Published,
    Refused,
    State,
    Subscribed,
    Unsubscribed,
    Up,
)
from ..protocol.messages import Outgoing, fits, weight
from .batches import OutgoingBatch, RunScanner
from .login import Login

IN_FLIGHT = 65_000  # publications at most, so that there are identifiers for SUBSCRIBE
PATIENCE = 15.0  # seconds for a CONNACK and for a PINGRESP
ASKING = 5.0  # seconds for a CONNACK from a server that may not understand the version
_CREDENTIALS = frozenset((Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BAD_AUTHENTICATION_METHOD))
_CREDENTIALS_V4 = frozenset((ConnectReturn.BAD_USER_NAME_OR_PASSWORD, ConnectReturn.NOT_AUTHORIZED))


@dataclass(slots=True)
class _Sent:
    """One publication in flight. serial: place in the order of sending. released: PUBREC has come, PUBREL is sent."""

    publish: Publish
    token: int
    serial: int
    released: bool = False


class ClientMachine:
    """The machine. The owner takes what is to be written from `take`, and calls `lost` when a connection has ended."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.state = State.DOWN
        self.epoch = 0  # counts connections
        self.packets = 0  # that have come
        self.reading = True  # False while the owner reads nothing: no answer can come then
        self.bytes = 0  # messages, by their weight, that wait for a connection, for room, or for an acknowledgement
        self._framer = Framer(login.max_packet)
        self._out: list[bytes] = []
        self._kept = bytearray()  # the beginning of a packet
        self._need = 0  # that packet's size, 0 while unknown
        self._scanner = RunScanner(login.version)
        self.understood = not login.falls_back  # a server has answered in this version
        self._waiting: deque[tuple[Publish, int] | OutgoingBatch] = deque()
        self._flight: dict[int, _Sent] = {}
        self._batches: dict[int, OutgoingBatch] = {}  # by the identifier of the first message that is not acknowledged
        self._in_flight = 0  # messages of both
        self._serial = 0
        self._busy = bytearray((1,)) + bytes(65_535)  # by packet identifier; 0 does not exist
        self._asked: dict[int, tuple[int, bool]] = {}  # SUBSCRIBE, UNSUBSCRIBE: (token, whether it subscribes)
        self._received: set[int] = set()  # QoS 2 messages until PUBREL
        self._open: set[int] = set()  # those of them that the owner has not acknowledged
        self._next = 1
        self._limit = IN_FLIGHT
        self._largest = 0  # bytes of a packet that the server takes; 0: any
        self._fresh = not login.known  # no server has a session of ours
        self.exclusive = False  # the next connection is not to end another client's
        self.tells = False  # the server can tell whether another client has our identifier
        self._keep_alive = float(login.keep_alive)
        self._sent_at = self._heard_at = 0.0
        self._pinged = False

    @property
    def waiting(self) -> int:
        """How many publications are not acknowledged, or not sent."""
        return self._in_flight + sum(len(one.messages) if isinstance(one, OutgoingBatch) else 1 for one in self._waiting)

    def take(self) -> bytes:
        """What is to be written now."""
        if not self._out:
            return b""
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
        self._kept.clear()
        self._need = 0
        self._out.clear()
        properties: Properties = {}
        if login.version == 5:
            properties = {
                Property.SESSION_EXPIRY_INTERVAL: login.expiry,
                Property.RECEIVE_MAXIMUM: login.receive_maximum,
                Property.MAXIMUM_PACKET_SIZE: login.max_packet,
            }
            if login.yields:
                properties[Property.USER_PROPERTY] = [EXCLUSIVE if self.exclusive else MAY_BE_EXCLUSIVE]
        clean = self._fresh if login.version == 5 else not login.durable
        connect = Connect(login.client_id, login.version, clean, login.keep_alive, login.username, login.password, login.will, properties)
        self._pinged = False
        self._heard_at = now
        self._send(connect, now)

    def speak(self, version: int) -> None:
        """Speak another version of MQTT on the next connection. No server has understood us so far, so nothing is in flight."""
        self.login = replace(self.login, version=version)
        self._scanner = RunScanner(version)
        for one in self._waiting:
            if isinstance(one, OutgoingBatch):
                heads = {id(head): head.speaking(version) for head, _ in one.messages}
                one.messages = [(heads[id(head)], payload) for head, payload in one.messages]

    def lost(self) -> None:
        """The connection has ended. Subscriptions that were asked for are forgotten; the owner asks again after `Up`."""
        self.state = State.DOWN
        self._out.clear()
        for packet_id in self._asked:
            self._busy[packet_id] = 0
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
        if self.state is State.UP and not self._waiting and (publish.qos == 0 or self._in_flight < self._limit):
            self._start(publish, token, now)
        else:
            self._waiting.append((publish, token))
            self.bytes += weight(publish)

    def publish_batch(self, messages: list[Outgoing], qos: int, token: int, now: float) -> None:
        """Send messages of one QoS, 0 or 1, or keep them until they can be sent. At QoS 1 a token above 0 comes back in `BatchSettled`."""
        batch: OutgoingBatch | None = OutgoingBatch(messages, qos, token)
        if self.state is State.UP and not self._waiting:
            batch = self._start_batch(batch, now)  # type: ignore[arg-type]
        if batch is not None:
            self._waiting.append(batch)
            self.bytes += batch.size

    def may_write_directly(self, now: float) -> bool:
        """Whether a PUBLISH of QoS 0 may be written without this machine: nothing is pending before it. If so it counts as sent."""
        if self.state is not State.UP or self._waiting or self._out:
            return False
        if not self._pinged:
            self._sent_at = now
        return True

    def takes_directly(self) -> bool:
        """Whether a packet may bypass this machine: no partial packet is buffered. If so it counts as received."""
        if self.state is not State.UP or self._kept or self._framer.error is not None:
            return False
        self.packets += 1
        return True

    def topic_of(self, name: bytes) -> tuple[str, tuple[int, ...]] | None:
        """Topic and Subscription Identifiers of a PUBLISH whose topic and properties were found right before; None: they were not."""
        return self._scanner.known(name)

    def takes(self, size: int) -> bool:
        """Whether the server takes a packet of so many bytes."""
        return not self._largest or size <= self._largest

    def fits(self, publish: Publish) -> bool:
        """Whether the server takes a packet of this size."""
        return fits(publish, self._largest)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        """Subscribe, while up. identifier: Subscription Identifier, 0: none."""
        properties: Properties = {Property.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
        packet_id = self._reserve(1)[0]
        self._asked[packet_id] = (token, True)
        self._send(Subscribe(packet_id, [Subscription(filter_, qos)], properties), now)

    def unsubscribe(self, filter_: str, token: int, now: float) -> None:
        """Unsubscribe, while up."""
        packet_id = self._reserve(1)[0]
        self._asked[packet_id] = (token, False)
        self._send(Unsubscribe(packet_id, [filter_]), now)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        """Acknowledge a message of QoS 1 or 2. One of an earlier connection is skipped: the server sends it again."""
        if epoch != self.epoch or self.state is not State.UP:
            return
        if packet_id not in self._received:
            self._send(Puback(packet_id), now)
        elif packet_id in self._open:
            self._open.discard(packet_id)
            self._send(Pubrec(packet_id), now)

    def acknowledge_run(self, acks: bytes, epoch: int, now: float) -> None:
        """Acknowledge messages of a run of QoS 1: `acks` of `IncomingRun`, or a part of it."""
        if epoch == self.epoch and self.state is State.UP and acks:
            self._out.append(acks)
            if not self._pinged:
                self._sent_at = now

    # Time

    def next_deadline(self) -> float | None:
        """When `on_timer` is to be called; None: never."""
        if self.state is State.CONNECTING:
            return self._heard_at + (PATIENCE if self.understood else ASKING)
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
        if self._framer.error is not None:
            raise self._framer.error
        if self._kept:
            self._kept += data
            if len(self._kept) < self._need:
                return events
            data = bytes(self._kept)
            self._kept.clear()
        self._need = position = 0
        end = len(data)
        while position < end:
            if self.state is State.UP:
                after = self._many(data, position, end, events, now)
                if after > position:
                    position = after
                    continue
            try:
                header = self._framer.header(data, position)
            except PeerError as error:
                if not events:
                    raise
                self._framer.error = error  # what stands before it counts
                return events
            if header is None or header[1] > end:
                self._need = header[1] - position if header is not None else 0
                break
            start, stop = header
            first, body = data[position], data[start:stop]
            position = stop
            if self.state is State.CONNECTING and first == 0x20 and self.login.version == 5 and len(body) == 2 and body[1]:
                # a server that speaks only 3.1.1 says so in the form of 3.1.1
                events.append(Refused(False, f"it does not speak MQTT 5 (return code {body[1]})"))
                return events
            self._packet(decode(first, body, self.login.version), events, now)
        self._kept += data[position:]
        return events

    def _many(self, data: bytes, position: int, end: int, events: list[Event], now: float) -> int:
        """Take a run of PUBLISH or PUBACK without a packet for each; where it ends, `position` if there is none."""
        first = data[position]
        if first == 0x40 and data.startswith(b"\x40\x02", position) and position + 4 <= end:
            packet_id = data[position + 2] << 8 | data[position + 3]
            count, most = 1, min((end - position) // 4, 65_536 - packet_id)
            while count < most and data.startswith(PUBACKS[4 * (packet_id + count) : 4 * (packet_id + count) + 4], position + 4 * count):
                count += 1
            if not packet_id:
                return position
            self.packets += count
            self._pubacks(packet_id, count, events, now)
            return position + 4 * count
        if first == 0x32 or first == 0x30:
            try:
                length, at = read_length(data, position + 1, end)
            except MalformedPacket:
                return position  # the framer says what is wrong
            if length < 0 or at + length > end or at + length - position > self.login.max_packet:
                return position
            found = self._scanner.run(data, position, at, at + length, self.epoch)
            if found is not None:
                self.packets += len(found[0].payloads)
                events.append(found[0])
                return found[1]
        return position

    def _pubacks(self, first: int, count: int, events: list[Event], now: float, reason: int = 0) -> None:
        """PUBACKs for a block of identifiers."""
        while count:
            batch = self._batches.pop(first, None)
            if batch is None and first not in self._flight and self._busy[first]:
                batch = self._out_of_turn(first)
            if batch is None:
                if first in self._flight:
                    self._acknowledged(Puback(first, Reason.SUCCESS), events, now)
                first += 1
                count -= 1
                continue
            taken = min(count, len(batch.messages) - batch.done)
            if batch.token:
                events.append(BatchSettled(batch.token, batch.start + batch.done, taken, reason))
            batch.done += taken
            self._busy[first : first + taken] = bytes(taken)
            self._in_flight -= taken
            first += taken
            count -= taken
            if batch.done < len(batch.messages):
                self._batches[first] = batch
            else:
                self.bytes -= batch.size
        if self._waiting:
            self._more(now)

    def _out_of_turn(self, packet_id: int) -> OutgoingBatch | None:
        """The batch that begins with a message in the middle of one: what stands before it stays in flight by itself."""
        for batch in self._batches.values():
            if batch.first + batch.done < packet_id < batch.first + len(batch.messages):
                return batch.cut(packet_id - batch.first)
        return None

    def _packet(self, packet: Packet, events: list[Event], now: float) -> None:
        self.packets += 1
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
            token, subscribes = self._asked.pop(packet.packet_id, (-1, False))
            if token >= 0:
                self._busy[packet.packet_id] = 0
            if token > 0 and subscribes is isinstance(packet, Suback):
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
        self.understood = True
        if packet.reason:
            v4 = isinstance(packet.reason, ConnectReturn)
            word = packet.reason.name if isinstance(packet.reason, ConnectReturn | Reason) else str(packet.reason)
            events.append(Refused(packet.reason in (_CREDENTIALS_V4 if v4 else _CREDENTIALS), word.lower().replace("_", " ")))
            return
        self.state = State.UP
        self.tells = EXCLUSIVE in packet.properties.get(Property.USER_PROPERTY, ())
        self._limit = min(packet.properties.get(Property.RECEIVE_MAXIMUM, 65_535), IN_FLIGHT)
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
            version=self.login.version,
        )

    def _resume(self, present: bool, events: list[Event], now: float) -> None:
        """Send again what is in flight, in order. Without a session: released messages are done, the rest begins anew."""
        entries: list[tuple[int, int, _Sent | OutgoingBatch]] = [(sent.serial, packet_id, sent) for packet_id, sent in self._flight.items()]
        entries += [(batch.serial, first, batch) for first, batch in self._batches.items()]
        for _, packet_id, one in sorted(entries, key=lambda entry: entry[:2]):
            if isinstance(one, OutgoingBatch):
                one.encode(self._out, self.login.version, dup=present)
            elif one.released and present:
                self._send(Pubrel(packet_id), now)
            elif one.released:
                self._done(packet_id, one)
                events.append(Published(one.token, 0))
            else:
                one.publish.dup = present
                self._send(one.publish, now)
        self._more(now)

    def _done(self, packet_id: int, sent: _Sent) -> None:
        """A publication is in flight no longer."""
        del self._flight[packet_id]
        self._busy[packet_id] = 0
        self._in_flight -= 1
        self.bytes -= weight(sent.publish)

    def _message(self, publish: Publish, events: list[Event], now: float) -> None:
        if publish.qos == 2:
            if publish.packet_id in self._received:
                if publish.packet_id not in self._open:
                    # taken before; when that was on an earlier connection PUBREC may not have been said
                    self._send(Pubrec(publish.packet_id), now)
                return
            self._open.add(publish.packet_id)
            self._received.add(publish.packet_id)
        events.append(Message(publish, self.epoch))

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp, events: list[Event], now: float) -> None:
        """Raises PeerError for an acknowledgement of the wrong kind, which would keep its identifier busy for ever if it was ignored."""
        sent = self._flight.get(packet.packet_id)
        batched = sent is None and self._busy[packet.packet_id] and packet.packet_id not in self._asked
        if (sent is not None and not _fits(sent, packet)) or (batched and not isinstance(packet, Puback)):
            raise protocol_error(
                f"{type(packet).__name__.upper()} for packet identifier {packet.packet_id}, which awaits another one", "4.3"
            )
        if isinstance(packet, Pubrec) and packet.reason < 0x80:
            if sent is not None and sent.publish.qos == 2:
                sent.released = True
                self._send(Pubrel(packet.packet_id), now)
            else:
                reason = Reason.PACKET_IDENTIFIER_NOT_FOUND if self.login.version == 5 else Reason.SUCCESS
                self._send(Pubrel(packet.packet_id, reason), now)
            return
        if isinstance(packet, Puback) and sent is None:
            self._pubacks(packet.packet_id, 1, events, now, int(packet.reason))
            return
        if sent is None or (sent.released and isinstance(packet, Pubrec)):
            return
        self._done(packet.packet_id, sent)
        events.append(Published(sent.token, int(packet.reason) if not isinstance(packet, Pubcomp) else 0))
        self._more(now)

    # What leaves

    def _more(self, now: float) -> None:
        """Send what has waited, as far as there is room."""
        while self._waiting:
            one = self._waiting[0]
            qos = one.qos if isinstance(one, OutgoingBatch) else one[0].qos
            if qos and self._in_flight >= self._limit:
                return
            self._waiting.popleft()
            if isinstance(one, OutgoingBatch):
                self.bytes -= one.size
                rest = self._start_batch(one, now)
                if rest is not None:
                    self._waiting.appendleft(rest)
                    self.bytes += rest.size
            else:
                self.bytes -= weight(one[0])
                self._start(*one, now)

    def _start(self, publish: Publish, token: int, now: float) -> None:
        if publish.qos:
            publish.packet_id = self._reserve(1)[0]
            self._serial += 1
            self._flight[publish.packet_id] = _Sent(publish, token, self._serial)
            self._in_flight += 1
            self.bytes += weight(publish)
        self._send(publish, now)

    def _start_batch(self, batch: OutgoingBatch, now: float) -> OutgoingBatch | None:
        """Send a batch as far as there is room; what has to wait."""
        rest: OutgoingBatch | None = batch
        while rest is not None:
            batch, rest = rest, None
            if batch.qos:
                room = self._limit - self._in_flight
                if room <= 0:
                    return batch
                batch.first, count = self._reserve(min(room, len(batch.messages)))
                if count < len(batch.messages):
                    first, batch.first = batch.first, 0
                    rest = batch.cut(count)
                    batch.first = first
                self._serial += 1
                batch.serial = self._serial
                self._batches[batch.first] = batch
                self._in_flight += count
                self.bytes += batch.size
            batch.encode(self._out, self.login.version)
        if not self._pinged:
            self._sent_at = now
        return None

    def _send(self, packet: Packet, now: float) -> None:
        try:
            self._out.append(encode(packet, self.login.version))
        except UsageError as error:  # checked where it came from, so a defect here; the connection is of no use then
            raise PeerError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"cannot say {type(packet).__name__}: {error}") from error
        if not self._pinged:
            self._sent_at = now

    def _reserve(self, wanted: int) -> tuple[int, int]:
        """A block of free packet identifiers, busy from now on: (first, how many)."""
        busy = self._busy
        first = self._next
        if first > 65_535 or busy[first]:
            first = busy.find(0, first)
            if first < 0:
                first = busy.find(0)
        assert first > 0, "no packet identifier is free"
        ahead = busy[first : first + wanted]
        count = len(ahead) - len(ahead.lstrip(b"\0"))
        busy[first : first + count] = b"\1" * count
        self._next = first + count
        return first, count


def _fits(sent: _Sent, packet: Puback | Pubrec | Pubcomp) -> bool:
    """Whether this acknowledgement may come for a publication in flight."""
    if sent.publish.qos == 1:
        return isinstance(packet, Puback)
    return isinstance(packet, Pubrec) or (isinstance(packet, Pubcomp) and sent.released)
