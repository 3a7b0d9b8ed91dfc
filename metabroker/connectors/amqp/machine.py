"""An AMQP 0-9-1 client as a machine: bytes and times in, bytes and events out. The face is that of `wire.Wire`.

Four channels, because a mistake closes the whole channel that it was made on: bindings, the queue, messages with confirmations, messages
without (`consumer.py`, `publisher.py`). Connecting is a sequence of the remote's questions and our answers; what follows on the channels is
sent ahead of the answers.

A message that has come is acknowledged to the remote when the owner says so, and not before. One whose routing key is no topic is dropped.
What it does not know: sockets, addresses, sessions of the metabroker.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field

from ....mqtt.errors import PeerError
from ....mqtt.packets import Publish
from ....mqtt.reasons import Reason
from ...wire import PATIENCE, Abilities, Event, Message, Refused, State, Trouble, Up
from . import codec, mapping
from .consumer import CONTROL, QUEUE, Consumer
from .publisher import CONFIRMED, PLAIN, Publisher

HEARTBEAT = 30  # seconds
LARGEST_MESSAGE = 134_217_728  # bytes that RabbitMQ takes, unless it is configured otherwise
LARGEST_INCOMING = 16_777_216
CAPABILITIES = ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify", "publisher_confirms")


@dataclass(frozen=True, slots=True)
class Login:
    """As whom and how. name: of our queue, and what messages' identifiers begin with. expiry, length: of the queue, seconds, messages."""

    name: str
    username: str | None = None
    password: bytes | None = None
    vhost: str = ""
    exchange: str = "amq.topic"
    expiry: int = 3600
    length: int = 100_000


@dataclass(slots=True)
class _Content:
    """A message of which parts have come. method: with which it began."""

    method: codec.Key
    values: list[codec.Argument]
    size: int = -1
    properties: bytes = b""
    parts: list[bytes] = field(default_factory=list)
    come: int = 0


class Machine:
    """See `connectors.connector.Machine`."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.state = State.DOWN
        self.reading = True
        self.epoch = 0  # counts connections
        self._out: list[bytes] = []
        self._framer = codec.Framer()
        self._publisher = Publisher(login.exchange, mapping.OURS.decode() + login.name, self._out.append)
        self._consumer = Consumer(login.exchange, login.name, login.expiry, login.length, self._out.append)
        self._contents: dict[int, _Content] = {}
        self._heartbeat = float(HEARTBEAT)
        self._heard_at = self._beat_at = 0.0

    @property
    def bytes(self) -> int:
        """Payloads that the remote has not confirmed."""
        return self._publisher.bytes

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._publisher.bytes = value

    def take(self) -> builtins.bytes:
        """See `Machine`, as all of these."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    # Connections

    def begin(self, now: float) -> None:
        self.epoch += 1
        self.state = State.CONNECTING
        self._framer = codec.Framer()
        self._contents.clear()
        self._heard_at = self._beat_at = now
        self._out[:] = [codec.GREETING]

    def lost(self) -> None:
        self.state = State.DOWN
        self._consumer.lost()
        self._publisher.lost()
        self._out.clear()

    def end(self, now: float, forget: bool = True) -> bool:
        if self.state is not State.UP:
            return False
        if forget:
            self._consumer.leave()
        self._out.append(codec.method(0, codec.CLOSE, 200, "", 0, 0))
        return True

    # Requests

    def publish(self, publish: Publish, token: int, now: float) -> None:
        self._publisher.publish(publish, token)

    def subscribe(self, filter_: str, qos: int, identifier: int, token: int, now: float) -> None:
        self._consumer.subscribe(filter_, qos, token)

    def unsubscribe(self, filter_: str, token: int, now: float) -> None:
        self._consumer.unsubscribe(filter_)

    def acknowledge(self, packet_id: int, epoch: int, now: float) -> None:
        if epoch == self.epoch and self.state is State.UP:
            self._out.append(codec.method(QUEUE, codec.ACK, packet_id, 0))

    # Time

    def on_timer(self, now: float) -> None:
        if self.state is State.DOWN:
            return
        if not self.reading:
            self._heard_at = now
        patience = PATIENCE if self.state is State.CONNECTING else 2 * self._heartbeat
        if now - self._heard_at > patience:
            raise PeerError(Reason.KEEP_ALIVE_TIMEOUT, "the server does not answer", "")
        if self.state is State.UP:
            self._consumer.settle(now)
            if now - self._beat_at >= self._heartbeat / 2:
                self._beat_at = now
                self._out.append(codec.BEAT)

    # What comes

    def receive(self, data: builtins.bytes, now: float) -> list[Event]:
        self._heard_at = now
        events: list[Event] = []
        for kind, channel, payload in self._framer.feed(data):
            if kind == codec.METHOD:
                key, values = codec.read_method(payload)
                if channel == 0:
                    self._connection(key, values, events, now)
                else:
                    self._method(channel, key, values, events)
            elif kind != codec.HEARTBEAT:
                self._content(kind, channel, payload, events)
            if events and isinstance(events[-1], Refused):
                break
        return events

    def _connection(self, key: codec.Key, values: list[codec.Argument], events: list[Event], now: float) -> None:
        if key == codec.START:
            self._start(values, events)
        elif key == codec.TUNE:
            channels, largest, heartbeat = (codec.number(value) for value in values)
            self._framer.largest = self._publisher.largest_frame = min(largest or codec.LARGEST_FRAME, codec.LARGEST_FRAME)
            beat = min(heartbeat or HEARTBEAT, HEARTBEAT)
            self._heartbeat = float(beat)
            self._out.append(codec.method(0, codec.TUNE_OK, channels, self._framer.largest, beat))
            self._out.append(codec.method(0, codec.OPEN, self.login.vhost or "/", "", 0))
        elif key == codec.OPEN_OK:
            self._consumer.open(now)
            self._publisher.open()
        elif key == codec.CLOSE_OK:
            raise PeerError(Reason.NORMAL_DISCONNECTION, "left", "")
        elif key == codec.CLOSE:
            self._closed(codec.number(values[0]), codec.text(values[1]), events)
        elif key == codec.BLOCKED:
            events.append(Trouble(f"the remote takes no messages for now: {codec.text(values[0])}"))
        elif key == codec.UNBLOCKED:
            events.append(Trouble("the remote takes messages again"))

    def _start(self, values: list[codec.Argument], events: list[Event]) -> None:
        if b"PLAIN" not in codec.text(values[3]).encode().split():
            events.append(Refused(False, "it does not offer PLAIN, the only way to log in that is known here"))
            return
        # without a user name as the guest that RabbitMQ lets in from its own machine
        user, password = (self.login.username or "guest").encode(), self.login.password
        if self.login.username is None:
            password = b"guest"
        response = b"\0" + user + b"\0" + (password or b"")
        capabilities: codec.Table = [(name.encode(), True) for name in CAPABILITIES]
        client: codec.Table = [
            (b"product", b"mqmesh"),
            (b"capabilities", codec.Nested(capabilities)),
            (b"connection_name", self.login.name.encode()),
        ]
        self._out.append(codec.method(0, codec.START_OK, client, "PLAIN", response, "en_US"))

    def _closed(self, code: int, text: str, events: list[Event]) -> None:
        if self.state is State.UP:
            raise PeerError(Reason.UNSPECIFIED_ERROR, f"the server ends the connection: {text}", "")
        events.append(Refused(code == 403, text))

    def _method(self, channel: int, key: codec.Key, values: list[codec.Argument], events: list[Event]) -> None:
        if key in (codec.DELIVER, codec.RETURN):
            self._contents[channel] = _Content(key, values)
        elif channel == QUEUE:
            self._consumer.queue(key, values, events)
        elif channel in (CONFIRMED, PLAIN):
            self._publisher.receive(channel, key, values, events)
        elif channel == CONTROL:
            if key == codec.CHANNEL_CLOSE and self.state is State.CONNECTING:
                events.append(Refused(False, codec.text(values[1])))
                return
            self._consumer.control(key, values, events)
        if self.state is State.CONNECTING and self._consumer.ready and self._publisher.ready and self._publisher.plain_ready:
            self.state = State.UP
            events.append(Up(False, self._abilities()))

    def _abilities(self) -> Abilities:
        return Abilities(False, LARGEST_MESSAGE, 2, False, self._publisher.cannot)

    # Messages

    def _content(self, kind: int, channel: int, payload: builtins.bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or (kind == codec.HEADER) is not (content.size < 0):
            raise PeerError(Reason.PROTOCOL_ERROR, "a message without its beginning", "")
        if kind == codec.HEADER:
            content.size, content.properties = codec.read_header(payload)
        else:
            content.come += len(payload)
            if content.size <= LARGEST_INCOMING:
                content.parts.append(payload)
        if content.come >= content.size:
            del self._contents[channel]
            self._whole(content, events)

    def _whole(self, content: _Content, events: list[Event]) -> None:
        if content.method == codec.RETURN:
            self._publisher.returned(mapping.message_id_of(content.properties))
            return
        _, tag, redelivered, _, key = content.values
        topic = mapping.topic_of(key) if isinstance(key, bytes) else None
        if topic is None or content.size > LARGEST_INCOMING:
            why = "its routing key is no topic" if topic is None else f"it has {content.size} bytes"
            events.append(Trouble(f"a message is dropped: {why}: {codec.text(key)[:80]!r}"))
            self.acknowledge(codec.number(tag), self.epoch, 0.0)
            return
        publish = mapping.from_amqp(topic, b"".join(content.parts), content.properties, bool(redelivered))
        if publish.qos:
            publish.packet_id = codec.number(tag)
        else:
            self.acknowledge(codec.number(tag), self.epoch, 0.0)
        events.append(Message(publish, self.epoch))
