"""The interface between the client and a network: links that publish, subscribe, receive and reconnect by themselves.

`Connection` and `Session` know the network only through this interface. `PahoTransport` (client/paho) reaches a broker by MQTT 5,
`MetabrokerTransport` (client/metabroker) reaches one through a metabroker. A *link* is one MQTT session. A connection has one link to
publish. Its consumers that are not durable have one link together (`shared_link.py`), the others one each.

Threads: any thread may call any method. No method blocks, and each calls back later (at once after the link is closed). All callbacks of
one transport come from one thread, one after another. They must be quick, and must not wait for something that another callback brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

NEVER = 0xFFFFFFFF  # seconds of session expiry: never [MQTT-3.1.2.11.2]


@dataclass(frozen=True, slots=True)
class Properties:
    """The MQTT 5 properties of a publication that the client uses (3.3.2.3)."""

    text: bool | None = None  # Payload Format Indicator; None: absent
    expiry: int | None = None  # Message Expiry Interval, seconds
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    user: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to publish."""

    topic: str
    payload: bytes
    qos: int
    properties: Properties = field(default_factory=Properties)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A received message.

    duplicate: the DUP flag.
    subscriptions: Subscription Identifiers.
    token: for `Link.acknowledge`; None for QoS 0.
    packet: packet identifier, the same when a resumed session sends the message again; 0 for QoS 0.
    """

    topic: str
    payload: bytes
    qos: int
    duplicate: bool
    properties: Properties
    subscriptions: tuple[int, ...] = ()
    token: object = None
    packet: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended.

    code: an MQTT 5 reason code. 0x80 and above: the request failed.
    text: an explanation.
    word: the `error_code`, for networks other than MQTT, whose errors have no reason code.
    """

    code: int = 0
    text: str = ""
    word: str = ""

    @property
    def failed(self) -> bool:
        return self.code >= 0x80


Done = Callable[[Outcome], None]  # receives the outcome of a request


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """How to open a link.

    client_id: MQTT client identifier.
    expiry: seconds that the broker keeps the session without a connection.
    resume: the first connection resumes a session that the broker has.
    prefetch: Receive Maximum, messages sent to us and not acknowledged.
    sends: the link has no subscriptions.
    user: User Properties of CONNECT.
    exclusive: do not take the client identifier over from a connection that has it. mqmesh brokers refuse the link then.
    """

    client_id: str
    expiry: int
    resume: bool = False
    prefetch: int = 256
    sends: bool = False
    user: tuple[tuple[str, str], ...] = ()
    exclusive: bool = False


class LinkHandler(Protocol):
    """The user of a link."""

    def received(self, incoming: Incoming) -> None:
        """A message has arrived. Acknowledge it later. The broker repeats it until then when the session is resumed."""

    def connected(self, resumed: bool) -> None:
        """The link is connected, for the first time or again. resumed: the broker still has the session. If not, the link has renewed its
        subscriptions, and the messages that the broker held are lost."""

    def disconnected(self, text: str, word: str = "") -> None:
        """An attempt to connect failed, or the connection is lost. The link tries again. word: see `Outcome`."""

    def notified(self, text: str, word: str) -> None:
        """The user should know this. The link continues. word: see `Outcome`."""

    def failed(self, outcome: Outcome) -> None:
        """The link has ended: the broker refuses it for good, or another client has taken the client identifier over."""


class Link(Protocol):
    """One MQTT session."""

    def publish(self, publication: Publication, done: Done) -> None:
        """Publish a message. done: called when the broker has acknowledged or refused it (PUBACK, PUBCOMP), for QoS 0 when it is written.

        Messages of QoS 1 and 2 survive any number of reconnections, in order. QoS 0 fails at once without a connection.
        """

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...] = ()) -> None:
        """Subscribe, without retained messages. identifier: Subscription Identifier, 0 for none. said: User Properties of SUBSCRIBE."""

    def unsubscribe(self, filter_: str, done: Done) -> None: ...

    @property
    def has_queues(self) -> bool:
        """Whether the broker said, when the link was connected last, that it has queues."""

    @property
    def has_delays(self) -> bool:
        """Whether it said that it holds messages to topics until they are due."""

    def acknowledge(self, token: object, reason: int = 0) -> None:
        """Acknowledge a message. Without effect when the connection that brought it is lost: the broker sends the message again.

        reason: an MQTT 5 reason code. With 0x80 and above, which is for messages of queues, the broker takes the message back.
        """

    def close(self, forget: bool, done: Done) -> None:
        """Disconnect after all earlier requests. forget: the broker drops the session."""


class Transport(Protocol):
    """A network, with any number of links."""

    @property
    def declares(self) -> bool:
        """Whether the User Properties of CONNECT reach the broker that links talk to."""

    def open(self, spec: LinkSpec, handler: LinkHandler) -> Link:
        """Start to connect a link. Its events go to the handler."""

    def call(self, command: Callable[[], None]) -> None:
        """Have the thread of the callbacks run a command, once a link is open. Commands run in the order of the calls."""

    def close(self) -> None:
        """End every link and the thread. Open requests get the outcome 0x8B."""
