"""One MQTT session over paho: its connections, its subscriptions, and its publications that wait or are under way.

The network thread runs everything except the five requests of `transport.Link`.

- Publications wait here until the link is connected and the broker's Receive Maximum has room. paho keeps and repeats those under way.
- Subscriptions are kept, and renewed when the broker has no session of ours.
- A token is (connection, packet identifier): a message is acknowledged only on the connection that brought it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY, Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...base.backoff import Backoff
from ...base.clients import EXCLUSIVE
from ...base.queues import HAS_DELAYS, HAS_QUEUES
from ...mqtt.codec import encode
from ...mqtt.errors import MqttError
from ...mqtt.length import LARGEST_PACKET, LONGEST_LENGTH, encode_length
from ...mqtt.packets import Puback
from ...mqtt.properties import Property, encode_properties
from ...mqtt.reasons import Reason
from ..core.transport import Done, Incoming, LinkHandler, LinkSpec, Outcome, Properties, Publication

if TYPE_CHECKING:
    from .transport import PahoTransport

log = logging.getLogger("mqmesh.client")

ENDED = Outcome(Reason.SERVER_SHUTTING_DOWN, "the connection is closed")
FINAL = {  # CONNACK and DISCONNECT reasons after which the link does not connect again: it would be refused, or fight another client
    Reason.MALFORMED_PACKET,
    Reason.PROTOCOL_ERROR,
    Reason.UNSUPPORTED_PROTOCOL_VERSION,
    Reason.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.BAD_USER_NAME_OR_PASSWORD,
    Reason.NOT_AUTHORIZED,
    Reason.BANNED,
    Reason.BAD_AUTHENTICATION_METHOD,
    Reason.SESSION_TAKEN_OVER,
    Reason.PACKET_TOO_LARGE,
}
IN_FLIGHT = 1000  # publications under way at most, even if the broker allows more
STABLE = 1.0  # seconds after which a connection counts as good. After a shorter one the next pause is longer
CLOSING_FILTER = "jms/closing"  # never subscribed to. Every broker answers an UNSUBSCRIBE of it
# A broker with Nagle's algorithm (Mosquitto) delays a second small packet until our kernel acknowledges the first. The kernel delays that
# by up to 40 ms. This option of Linux turns the kernel's delay off.
QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
CLOSE_TIMEOUT = 3.0  # seconds for an orderly close


class _Token(NamedTuple):
    """Acknowledges a message. connection: number of the connection that brought it."""

    connection: int
    packet: int
    qos: int


class _Wanted(NamedTuple):
    """A subscription. done: until it is answered. said: User Properties of SUBSCRIBE."""

    qos: int
    identifier: int
    done: Done | None
    said: tuple[tuple[str, str], ...]


@dataclass(eq=False, slots=True)
class _Sending:
    """A publication that waits or is under way. connection: number of the connection that sent it first."""

    publication: Publication
    packed: _Packed
    done: Done
    connection: int = 0

    @property
    def size(self) -> int:
        """Bytes of the packet."""
        publication = self.publication
        body = 2 + len(publication.topic.encode()) + (2 if publication.qos else 0) + len(self.packed.block) + len(publication.payload)
        return 5 + body if body > LONGEST_LENGTH else 1 + len(encode_length(body)) + body


class PahoLink:
    """See `transport.Link`."""

    def __init__(self, transport: PahoTransport, spec: LinkSpec, handler: LinkHandler) -> None:
        self._transport, self.spec, self._handler = transport, spec, handler
        self.retry_at: float | None = None
        self._backoff = Backoff(transport.network.retry_first, transport.network.retry_last)
        self._up = self._ended = False
        self._connection = 0  # number of the current one
        self._up_since = 0.0
        self._events = 0  # of the socket that the selector watches
        self._window = 0  # the broker's Receive Maximum
        self._largest = LARGEST_PACKET  # the broker's Maximum Packet Size
        self.has_queues = self.has_delays = False
        self._waiting: deque[_Sending] = deque()
        self._under_way: dict[int, _Sending] = {}  # by packet identifier, in the order of sending
        self._subscriptions: dict[str, _Wanted] = {}  # by filter
        self._renewing: set[str] = set()  # filters asked for again, until the broker has answered
        self._unsubscriptions: dict[str, Done] = {}
        self._asked: dict[int, str] = {}  # packet identifier of SUBSCRIBE or UNSUBSCRIBE -> filter
        self._refusal: Outcome | None = None
        self._closing: tuple[float, Done] | None = None  # until when, and whom to tell
        self._said: PahoProperties  # of CONNECT; paho sends them with each
        self._client = self._make()

    # requests, from any thread

    def publish(self, publication: Publication, done: Done) -> None:
        try:
            packed = to_paho(publication.properties)
        except MqttError as error:
            refused = Outcome(Reason.PAYLOAD_FORMAT_INVALID, str(error))
            self._transport.call(lambda: done(refused))
            return
        self._transport.call(lambda: self._publish(publication, packed, done))

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...] = ()) -> None:
        self._transport.call(lambda: self._subscribe(filter_, qos, identifier, done, said))

    def unsubscribe(self, filter_: str, done: Done) -> None:
        self._transport.call(lambda: self._unsubscribe(filter_, done))

    def acknowledge(self, token: object, reason: int = 0) -> None:
        self._transport.call(lambda: self._acknowledge(token, reason))

    def close(self, forget: bool, done: Done) -> None:
        self._transport.call(lambda: self._close(forget, done))

    # the same, on the network thread

    def _publish(self, publication: Publication, packed: _Packed, done: Done) -> None:
        if self._ended or self._closing is not None:
            done(self._refusal or ENDED)
        elif publication.qos == 0 and not self._up:
            done(Outcome(Reason.SERVER_UNAVAILABLE, "no connection"))
        else:
            self._waiting.append(_Sending(publication, packed, done))

    def _subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...]) -> None:
        if self._ended or self._closing is not None:
            done(self._refusal or ENDED)
            return
        superseded = self._unsubscriptions.pop(filter_, None)
        self._subscriptions[filter_] = _Wanted(qos, identifier, done, said)
        if self._up:
            self._send_subscribe(filter_)
        if superseded is not None:
            superseded(Outcome())

    def _unsubscribe(self, filter_: str, done: Done) -> None:
        if self._ended:
            done(self._refusal or ENDED)
            return
        self._subscriptions.pop(filter_, None)
        self._unsubscriptions[filter_] = done
        if self._up:
            self._send_unsubscribe(filter_)

    def _acknowledge(self, token: object, reason: int) -> None:
        if not isinstance(token, _Token) or token.connection != self._connection or not self._up:
            return
        if not reason:
            self._client.ack(token.packet, token.qos)
        else:  # paho sends no reason codes
            puback = encode(Puback(token.packet, Reason(reason)), 5)
            self._client._packet_queue(puback[0], puback, token.packet, token.qos)

    def _close(self, forget: bool, done: Done) -> None:
        if self._ended or not self._up:
            self._end(ENDED)
            done(Outcome())
            return
        self._drain()
        self._closing = (time.monotonic() + CLOSE_TIMEOUT, done)
        if forget:
            self._disconnect(Outcome(), forget)
            return

        self._unsubscribe(CLOSING_FILTER, lambda outcome: self._disconnect(outcome, forget))

    def _disconnect(self, answer: Outcome, forget: bool) -> None:
        if answer.failed:
            return  # the connection is gone
        properties = _properties(PacketTypes.DISCONNECT)
        if forget:
            properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)

    # life, on the network thread

    def start(self) -> None:
        self._transport.add_link(self)
        self._connect()

    def abandon(self) -> None:
        """End at once, because the transport closes."""
        self._end(ENDED)

    def tick(self) -> None:
        """Keep the connection alive. End a close that takes too long."""
        self._guard(self._client.loop_misc)
        if self._closing is not None and time.monotonic() > self._closing[0]:
            self._end(ENDED)

    def work(self, now: float) -> None:
        """Do what is due: connect, send publications, write what paho has queued."""
        if self.retry_at is not None and now >= self.retry_at:
            self.retry_at = None
            self._connect()
        if self._up and self._waiting:
            self._drain()
        if self._client.want_write():
            self._guard(self._client.loop_write)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._client.want_write() else 0)
        sock = self._client.socket()
        if events != self._events and sock is not None and not self._ended:
            self._events = events
            self._transport.watch(self, sock, events)

    def ready(self, events: int) -> None:
        """Read the socket. `work` writes it."""
        if events & selectors.EVENT_READ:
            self._guard(self._read)

    def _read(self) -> None:
        self._client.loop_read()
        sock: Any = self._client.socket()
        if sock is not None and QUICK_ACK is not None:
            _tune(sock, QUICK_ACK)  # it holds once, so set it after every read
        while (
            sock is not None and hasattr(sock, "pending") and sock.pending()
        ):  # TLS has read these bytes ahead: there is no event for them
            self._client.loop_read()
            sock = self._client.socket()

    def _guard(self, step: Any) -> None:
        """Drop the connection on a packet that paho cannot read."""
        try:
            step()
        except Exception as error:
            log.warning("event=connection_broken client=%s error=%r", self.spec.client_id, error)
            self._drop(f"unreadable packet: {error!r}")

    def _make(self) -> Client:
        network = self._transport.network
        client = Client(
            CallbackAPIVersion.VERSION2,
            self.spec.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
            transport="websockets" if network.address.websocket else "tcp",
        )
        if network.address.websocket:
            client.ws_set_options(network.address.path)
        client.max_inflight_messages_set(0)  # this class keeps the window
        if network.address.user is not None:
            client.username_pw_set(network.address.user, network.address.password)
        if network.tls is not None:
            client.tls_set_context(network.tls)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_socket_open = self._on_socket_open
        client.on_socket_close = lambda _c, _u, sock: self._transport.watch(self, sock, 0)
        client.on_socket_register_write = lambda _c, _u, _sock: None  # so that paho writes only when `work` says so
        return client

    def _connect(self) -> None:
        address = self._transport.network.address
        try:
            if self._connection == 0:
                properties = _properties(PacketTypes.CONNECT)
                properties.SessionExpiryInterval = self.spec.expiry
                properties.ReceiveMaximum = self.spec.prefetch
                said = [*self.spec.user, *([EXCLUSIVE] if self.spec.exclusive else [])]
                if said:
                    properties.UserProperty = said
                self._said = properties
                self._connection = 1
                self._client.connect(
                    address.host,
                    address.port,
                    self._transport.network.keep_alive,
                    clean_start=False if self.spec.resume else MQTT_CLEAN_START_FIRST_ONLY,
                    properties=properties,
                )
            else:
                self._connection += 1
                self._client.reconnect()
        except socket.gaierror as error:
            self._lost(f"cannot connect to {address}: the host name {address.host!r} is not known ({error.strerror})", "no_such_host")
        except ConnectionRefusedError:
            self._lost(f"cannot connect to {address}: connection refused, does a broker listen there?")
        except (OSError, ValueError) as error:
            self._lost(f"cannot connect to {address}: {error}")

    def _drop(self, text: str) -> None:
        """Close the socket without DISCONNECT. paho does not call `on_disconnect` then."""
        sock = self._client.socket()
        if sock is not None:
            self._transport.watch(self, sock, 0)
            sock.close()
        self._lost(text)

    def _lost(self, text: str, word: str = "") -> None:
        """The connection is lost. Connect again later, unless the link ends. word: see `LinkHandler.disconnected`."""
        if self._up and time.monotonic() > self._up_since + STABLE:
            self._backoff.reset()
        self._up = False
        for packet, sending in list(self._under_way.items()):
            if sending.publication.qos == 0:
                del self._under_way[packet]
                sending.done(Outcome())  # it may be written: QoS 0 is at most once
        self._asked.clear()
        if self._closing is not None:
            self._end(ENDED)
        elif self._refusal is not None:
            refusal = self._refusal
            self._end(refusal)
            self._handler.failed(refusal)
        elif not self._ended:
            self.retry_at = time.monotonic() + self._backoff.next()
            self._handler.disconnected(text, word)

    def _end(self, outcome: Outcome) -> None:
        if self._ended:
            return
        self._ended, self._up, self.retry_at = True, False, None
        self._transport.remove_link(self)
        self._client.on_disconnect = None
        sock = self._client.socket()
        if sock is not None:
            self._transport.watch(self, sock, 0)
            sock.close()
        open_requests = [sending.done for sending in (*self._waiting, *self._under_way.values())]
        open_requests += [one.done for one in self._subscriptions.values() if one.done is not None] + list(self._unsubscriptions.values())
        for done in open_requests:
            done(outcome)
        if self._closing is not None:
            self._closing[1](Outcome())

    # sending

    def _drain(self) -> None:
        while self._waiting and self._up and len(self._under_way) < self._window:
            sending = self._waiting.popleft()
            publication = sending.publication
            if sending.size > self._largest:  # [MQTT-3.2.2-15]
                text = f"a packet of {sending.size} bytes; {self._transport.network.address} takes {self._largest} at most"
                sending.done(Outcome(Reason.PACKET_TOO_LARGE, text))
                continue
            try:
                info = self._client.publish(publication.topic, publication.payload, publication.qos, False, sending.packed)
            except ValueError as error:
                sending.done(Outcome(Reason.TOPIC_NAME_INVALID, str(error)))
                continue
            sending.connection = self._connection
            self._under_way[info.mid] = sending

    def _send_again(self) -> None:
        """The broker has lost the session: publish everything under way anew. Without this, paho would continue with PUBREL."""
        self._client.drop_out_messages()
        self._waiting.extendleft(reversed(self._under_way.values()))
        self._under_way.clear()

    def _send_subscribe(self, filter_: str) -> None:
        wanted = self._subscriptions[filter_]
        properties = _properties(PacketTypes.SUBSCRIBE) if wanted.identifier or wanted.said else None
        if properties is not None and wanted.identifier:
            properties.SubscriptionIdentifier = wanted.identifier
        if properties is not None and wanted.said:
            properties.UserProperty = list(wanted.said)
        options = SubscribeOptions(wanted.qos, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        _, packet = self._client.subscribe(filter_, options=options, properties=properties)
        if packet is not None:
            self._asked[packet] = filter_

    def _send_unsubscribe(self, filter_: str) -> None:
        _, packet = self._client.unsubscribe(filter_)
        if packet is not None:
            self._asked[packet] = filter_

    # paho's callbacks, on the network thread

    def _on_socket_open(self, _client: Client, _data: Any, sock: Any) -> None:
        self._events = selectors.EVENT_READ
        self._transport.watch(self, sock, self._events)
        _tune(sock, socket.TCP_NODELAY)

    def _on_connect(self, _client: Client, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.value >= 0x80:
            if reason.value in FINAL:
                said = getattr(properties, "ReasonString", "")
                self._refusal = Outcome(reason.value, f"{self._transport.network.address} refuses the connection{said and ': '}{said}")
            return  # paho closes the socket and calls `_on_disconnect`
        self._up, self._up_since = True, time.monotonic()
        if self.spec.exclusive and hasattr(self._said, "UserProperty"):
            # from now on the identifier is ours: take it over from a connection of ours that the broker has not seen the end of
            del self._said.UserProperty
            if self.spec.user:
                self._said.UserProperty = list(self.spec.user)
        self._window = min(getattr(properties, "ReceiveMaximum", 65535), IN_FLIGHT)
        self._largest = getattr(properties, "MaximumPacketSize", LARGEST_PACKET)
        said = getattr(properties, "UserProperty", ())
        self.has_queues, self.has_delays = HAS_QUEUES in said, HAS_DELAYS in said
        if not flags.session_present:
            self._send_again()
        for filter_, wanted in list(self._subscriptions.items()):
            if not flags.session_present or wanted.done is not None:
                self._send_subscribe(filter_)
        for filter_ in list(self._unsubscriptions):
            self._send_unsubscribe(filter_)
        self._renewing = {filter_ for filter_, one in self._subscriptions.items() if one.done is None and not flags.session_present}
        if not self._renewing:
            self._handler.connected(flags.session_present)

    def _on_disconnect(self, _client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if flags.is_disconnect_packet_from_server and reason.value in FINAL:
            self._refusal = Outcome(reason.value, f"{self._transport.network.address} ends the connection")
        self._lost(f"connection to {self._transport.network.address} lost: {str(reason).lower()}")

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            self._client.ack(message.mid, message.qos)
            return
        properties = message.properties
        self._handler.received(
            Incoming(
                topic,
                bytes(message.payload),
                message.qos,
                message.dup,
                from_paho(properties),
                tuple(getattr(properties, "SubscriptionIdentifier", ())),
                _Token(self._connection, message.mid, message.qos) if message.qos else None,
                message.mid if message.qos else 0,
            )
        )

    def _on_publish(self, _client: Client, _data: Any, packet: int, reason: Any, properties: Any) -> None:
        """PUBACK or PUBCOMP.

        A repeated PUBREL in a resumed session is answered with PACKET_IDENTIFIER_NOT_FOUND when the first had arrived: the broker has the
        message (4.3.3). On the same connection this answer means that PUBREC refused the message, which paho does not report.
        """
        sending = self._under_way.pop(packet, None)
        if sending is None:
            return
        again = (
            sending.publication.qos == 2 and sending.connection < self._connection and reason.value == Reason.PACKET_IDENTIFIER_NOT_FOUND
        )
        sending.done(Outcome() if again else Outcome(reason.value, getattr(properties, "ReasonString", "")))

    def _on_subscribe(self, _client: Client, _data: Any, packet: int, reasons: Any, properties: Any) -> None:
        filter_ = self._asked.pop(packet, None)
        if filter_ is None or filter_ not in self._subscriptions:
            return
        wanted = self._subscriptions[filter_]
        done = wanted.done
        outcome = Outcome(reasons[0].value, getattr(properties, "ReasonString", ""))
        if outcome.failed:
            del self._subscriptions[filter_]
        else:
            self._subscriptions[filter_] = wanted._replace(done=None)
        if done is not None:
            done(outcome)
        elif outcome.failed:
            self._renewing.clear()
            self._handler.failed(Outcome(outcome.code, f"the broker does not renew the subscription to {filter_!r}"))
        elif filter_ in self._renewing:
            self._renewing.discard(filter_)
            if not self._renewing:
                self._handler.connected(False)

    def _on_unsubscribe(self, _client: Client, _data: Any, packet: int, _reasons: Any, _properties: Any) -> None:
        done = self._unsubscriptions.pop(self._asked.pop(packet, ""), None)
        if done is not None:
            done(Outcome())


def _tune(sock: Any, option: int) -> None:
    """Turn an option of TCP on. paho wraps the socket of a WebSocket."""
    with contextlib.suppress(OSError):
        getattr(sock, "_socket", sock).setsockopt(socket.IPPROTO_TCP, option, 1)


def _properties(packet: int) -> PahoProperties:
    return PahoProperties(packet)  # type: ignore[no-untyped-call]


class _Packed(PahoProperties):
    """Encoded properties. paho's own encoder takes longer than the rest of a message."""

    def __init__(self, block: bytes) -> None:
        object.__setattr__(self, "block", encode_length(len(block)) + block)

    block: bytes

    def pack(self) -> bytes:
        return self.block


def to_paho(properties: Properties) -> _Packed:
    """The properties of a PUBLISH for paho. Raises `MqttError` for values that MQTT cannot carry."""
    found: dict[int, int | str | bytes | list[int] | list[tuple[str, str]]] = {}
    if properties.text is not None:
        found[Property.PAYLOAD_FORMAT_INDICATOR] = int(properties.text)
    if properties.expiry is not None:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = properties.expiry
    if properties.content_type is not None:
        found[Property.CONTENT_TYPE] = properties.content_type
    if properties.response_topic is not None:
        found[Property.RESPONSE_TOPIC] = properties.response_topic
    if properties.correlation is not None:
        found[Property.CORRELATION_DATA] = properties.correlation
    if properties.user:
        found[Property.USER_PROPERTY] = list(properties.user)
    return _Packed(encode_properties(found))


def from_paho(properties: Any) -> Properties:
    """The properties of a received PUBLISH."""
    text = getattr(properties, "PayloadFormatIndicator", None)
    return Properties(
        None if text is None else bool(text),
        getattr(properties, "MessageExpiryInterval", None),
        getattr(properties, "ContentType", None),
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        tuple((key, value) for key, value in getattr(properties, "UserProperty", ())),
    )
