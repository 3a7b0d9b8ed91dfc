"""The events that a connection reports to its owner."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from ...mqtt.packets import Publish
from .messages import IncomingRun


class State(Enum):
    """Of a connection."""

    DOWN = "down"
    CONNECTING = "CONNECT sent"
    UP = "up"


class Abilities(NamedTuple):
    """What the server takes. identifiers: Subscription Identifiers. largest: bytes of a packet; 0: any. qos: the highest. retain: any.

    version: of MQTT that it speaks.
    keeps: what was subscribed stays at the server though `Up.present` is False, and `Dropped` tells what is given up.
    carries: returns why the server cannot represent a message, or None. The attribute is None if it can represent all.
    """

    identifiers: bool = True
    largest: int = 0
    qos: int = 2
    retain: bool = True
    carries: Callable[[Publish], str | None] | None = None
    keeps: bool = False
    version: int = 5


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


class BatchSettled(NamedTuple):
    """Of the burst published under a token, `many` messages from number `start` on are acknowledged, or refused."""

    token: int
    start: int
    many: int
    reason: int


class Subscribed(NamedTuple):
    """The answer to `subscribe`: the granted QoS, or a refusal (0x80 and above)."""

    token: int
    reason: int


class Dropped(NamedTuple):
    """The server has given a filter up: from a server that `keeps`."""

    filter: str


class Unsubscribed(NamedTuple):
    """The answer to `unsubscribe`."""

    token: int
    reason: int


class Trouble(NamedTuple):
    """Something for the log, the remote's fault."""

    text: str


Event = Up | Refused | Message | IncomingRun | Published | BatchSettled | Subscribed | Dropped | Unsubscribed | Trouble
