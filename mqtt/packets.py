"""The control packets as slotted dataclasses: what `codec.decode` returns and `codec.encode` takes.

One class serves both versions and both directions. What MQTT 3.1.1 does not have (properties, most reason codes, the
subscription options beyond QoS) keeps its default when decoded and is left out when encoded. The hot path does not build
these: a PUBLISH in bulk travels as a run (`run.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .properties import Properties
from .reasons import Reason

BRIDGE = 0x80  # in the level of a CONNECT of MQTT 3.1 or 3.1.1


@dataclass(slots=True)
class Will:
    """The will of a CONNECT (3.1.2.5): what the server publishes when the connection is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Connect:
    """CONNECT (3.1).

    version: 4 or 5. clean_start: Clean Session in 3.1.1. keep_alive: seconds, 0 is none. user_name, password: None when
    absent. mqisdp: the client speaks MQTT 3.1 (protocol name MQIsdp, level 3), which is served as version 4. bridge: the client is a bridge
    of a broker, as Mosquitto's bridges say by the highest bit of the level (0x83, 0x84): it gets nothing of its own back, and retained
    messages as they were published.
    """

    client_id: str = ""
    version: int = 5
    clean_start: bool = True
    keep_alive: int = 0
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=dict)
    mqisdp: bool = False
    bridge: bool = False


@dataclass(slots=True)
class Connack:
    """CONNACK (3.2).

    reason: a `Reason`; from a 3.1.1 server a `ConnectReturn`. When encoded for 3.1.1 either will do: a `Reason` is turned
    into the return code that `V3_FROM_V5` has for it.
    """

    session_present: bool = False
    reason: int = Reason.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Publish:
    """PUBLISH (3.3). topic: empty if a Topic Alias stands for it. packet_id: 0 at QoS 0."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Acknowledgement:
    """What PUBACK, PUBREC, PUBREL and PUBCOMP have in common."""

    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Puback(Acknowledgement):
    """PUBACK (3.4): the answer to a PUBLISH of QoS 1."""


@dataclass(slots=True)
class Pubrec(Acknowledgement):
    """PUBREC (3.5): the first answer to a PUBLISH of QoS 2."""


@dataclass(slots=True)
class Pubrel(Acknowledgement):
    """PUBREL (3.6): the answer to PUBREC."""


@dataclass(slots=True)
class Pubcomp(Acknowledgement):
    """PUBCOMP (3.7): the answer to PUBREL, the end of QoS 2."""


@dataclass(slots=True)
class Subscription:
    """A topic filter with its Subscription Options (3.8.3.1).

    filter: as sent, ``$share/group/...`` included. retain_handling: 0 send retained messages, 1 only for a new
    subscription, 2 do not send. selector, key, reorders: which messages of a queue are wanted, what a temporary queue asks for, and
    whether the client orders what it has by priority, as user properties say; they are no options of MQTT.
    """

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    selector: str = ""
    key: str = ""
    reorders: bool = False

    @property
    def said(self) -> list[str | bool]:
        """What user properties said, to be kept behind the options; nothing where they said nothing."""
        said: list[str | bool] = [self.selector, self.key, self.reorders]
        return said if self.reorders else said[:2] if self.selector or self.key else []


@dataclass(slots=True)
class Subscribe:
    """SUBSCRIBE (3.8), with at least one subscription."""

    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Suback:
    """SUBACK (3.9): one reason for each subscription, in order; 3.1.1 knows 0, 1, 2 and 0x80."""

    packet_id: int
    reasons: list[Reason]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsubscribe:
    """UNSUBSCRIBE (3.10), with at least one topic filter."""

    packet_id: int
    filters: list[str]
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Unsuback:
    """UNSUBACK (3.11): one reason for each filter, in order; empty in 3.1.1."""

    packet_id: int
    reasons: list[Reason] = field(default_factory=list)
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Pingreq:
    """PINGREQ (3.12)."""


@dataclass(slots=True)
class Pingresp:
    """PINGRESP (3.13)."""


@dataclass(slots=True)
class Disconnect:
    """DISCONNECT (3.14). In 3.1.1 only a client sends it, without a reason."""

    reason: Reason = Reason.NORMAL_DISCONNECTION
    properties: Properties = field(default_factory=dict)


@dataclass(slots=True)
class Auth:
    """AUTH (3.15), MQTT 5.0 only."""

    reason: Reason = Reason.SUCCESS
    properties: Properties = field(default_factory=dict)


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
