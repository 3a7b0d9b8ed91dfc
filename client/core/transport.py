"""What the client needs from a network: links that publish, subscribe, deliver and come back by themselves.

`Connection` and `Session` know nothing else of the network. `PahoTransport` (paho_transport.py) is a broker reached by MQTT 5;
`MetabrokerTransport` (remote_transport.py) one reached through a metabroker. A *link* is one MQTT session: the connection has one to
publish, each consumer has its own, so that a consumer that is slow (its prefetch is full) stops nobody else.

Threads: every method may be called from any thread, never blocks and calls back only later (or at once, when it is closed). All
callbacks of one transport come from one thread of its own, one after another; they must be quick and must not wait for anything that a
callback brings.
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
    """What is published."""

    topic: str
    payload: bytes
    qos: int
    properties: Properties = field(default_factory=Properties)


@dataclass(frozen=True, slots=True)
class Incoming:
    """What came in. token: for `Link.acknowledge`, None for QoS 0. duplicate: the DUP flag. subscriptions: Subscription Identifiers."""

    topic: str
    payload: bytes
    qos: int
    duplicate: bool
    properties: Properties
    subscriptions: tuple[int, ...] = ()
    token: object = None
    packet: int = 0  # packet identifier, the same when a resumed session sends the message again; 0 for QoS 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: an MQTT 5 reason code (>= 0x80: failed) and what was said about it. word: says more than the code does, for
    networks that are not MQTT alone; it becomes the `error_code`."""

    code: int = 0
    text: str = ""
    word: str = ""

    @property
    def failed(self) -> bool:
        return self.code >= 0x80


Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """client_id: MQTT client identifier. expiry: seconds that the broker keeps the session without us. resume: whether the first
    connection takes over a session that the broker already has. prefetch: Receive Maximum, messages sent to us and not acknowledged.
    sends: nothing is subscribed to on this link."""

    client_id: str
    expiry: int
    resume: bool = False
    prefetch: int = 256
    sends: bool = False


class LinkHandler(Protocol):
    """What a link tells its user."""

    def received(self, incoming: Incoming) -> None:
        """A message; acknowledge it some time later, or never: then the broker sends it again when the session is resumed."""

    def connected(self, resumed: bool) -> None:
        """Connected, for the first time or again. resumed False: the broker has no session of ours (any more); the link has made its
        subscriptions again by itself, what the broker held for us is gone."""

    def disconnected(self, text: str, word: str = "") -> None:
        """An attempt to connect failed, or the connection broke; the link goes on trying. word: as in `Outcome`."""

    def notified(self, text: str, word: str) -> None:
        """Something that the user should know, and that the link survives. word: as in `Outcome`."""

    def failed(self, outcome: Outcome) -> None:
        """The link has given up: refused for good, or another took the client identifier over."""


class Link(Protocol):
    """One MQTT session."""

    def publish(self, publication: Publication, done: Done) -> None:
        """done: the broker has taken it (PUBACK, PUBCOMP) or refuses it; for QoS 0, it has been written. QoS 1 and 2 survive any number
        of reconnections, in order; QoS 0 fails at once when there is no connection."""

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, selector: str = "") -> None:
        """Messages retained at the broker are not asked for. identifier: Subscription Identifier, 0 for none. selector: only for
        transports that evaluate selectors, ``""`` for none."""

    def unsubscribe(self, filter_: str, done: Done) -> None: ...

    def acknowledge(self, token: object) -> None:
        """Of no effect when the connection that brought the token is gone: the broker will send the message again."""

    def close(self, forget: bool, done: Done) -> None:
        """Disconnect, behind everything asked for before. forget: the broker shall drop the session."""


class Transport(Protocol):
    """One network, as many links as are opened."""

    @property
    def evaluates_selectors(self) -> bool:
        """Whether selectors are evaluated on the far side. If not, the client evaluates them."""

    def open(self, spec: LinkSpec, handler: LinkHandler) -> Link:
        """Begin to connect; the handler hears how it goes."""

    def close(self) -> None:
        """End every link and the thread. Requests still open end with an outcome of 0x8B."""
