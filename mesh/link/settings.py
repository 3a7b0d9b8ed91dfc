"""The words of one link: its settings, its states, its events, and the reason codes that it may say where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ...mqtt.properties import Properties, Property
from ...mqtt.reasons import CONNACK_REASONS, DISCONNECT_REASONS, Reason
from ..wire.identity import OLDEST, PROTOCOL, Identity
from .channel import PLAIN, Channel

LONGEST_TEXT = 1024  # characters of a Reason String, said or heard


class LinkUp(NamedTuple):
    """The peer has proved the key. incarnation: 63 bits, the same at both ends, different for each connection."""

    peer: Identity
    incarnation: int


class LinkData(NamedTuple):
    """Whole PUBLISH packets in a row, at least one."""

    data: bytes


class LinkClosed(NamedTuple):
    """The link is over: write what `take()` holds, then close the connection. text: one line for people."""

    reason: Reason
    text: str


Event = LinkUp | LinkData | LinkClosed


@dataclass(slots=True, frozen=True)
class LinkConfig:
    """silence: seconds without a byte that end the link. handshake: seconds until it must be up. largest: bytes of the
    largest packet taken. number, name: of the broker that must answer, None for any. where: the address dialled or dialled
    from, for texts. channel: what the link runs over. brokers: name -> number of all that are let in, None for any. lowest: version of
    the mesh protocol that is still spoken. form: of the dialler's hello, 2 for a peer that has refused 3."""

    silence: float = 0.8
    handshake: float = 10.0
    largest: int = 268_435_460
    number: int | None = None
    where: str = "the peer"
    name: str | None = None
    channel: Channel = PLAIN
    brokers: Mapping[str, int] | None = None
    lowest: int = OLDEST
    form: int = PROTOCOL


class State(Enum):
    """What a link waits for."""

    CHALLENGE = "the acceptor's AUTH"  # dialler, CONNECT is sent
    PROOF = "the dialler's AUTH"  # acceptor, AUTH is sent
    VERDICT = "CONNACK"  # dialler, AUTH is sent
    UP = "packets"
    CLOSED = "nothing"


# What a client may say in DISCONNECT (3.14.2.1); the other codes are a server's.
_CLIENT_REASONS = {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)}
# Somebody meant the link to end; of these a client may say the first one only.
IN_ORDER = (
    Reason.NORMAL_DISCONNECTION,
    Reason.SERVER_SHUTTING_DOWN,
    Reason.ADMINISTRATIVE_ACTION,
    Reason.SESSION_TAKEN_OVER,
    Reason.SERVER_BUSY,
)


def for_connack(reason: Reason) -> Reason:
    """A refusal that may stand in CONNACK."""
    return reason if reason in CONNACK_REASONS and reason >= 0x80 else Reason.SERVER_UNAVAILABLE


def for_disconnect(reason: Reason, client: bool) -> Reason:
    """A reason that this side may say in DISCONNECT."""
    if reason in (_CLIENT_REASONS if client else DISCONNECT_REASONS):
        return reason
    return Reason.NORMAL_DISCONNECTION if reason in IN_ORDER else Reason.IMPLEMENTATION_SPECIFIC_ERROR


def reason_string(properties: Properties) -> str:
    """The peer's Reason String, fit for a log."""
    text = str(properties.get(Property.REASON_STRING, ""))[:LONGEST_TEXT]
    return text if text.isprintable() else repr(text)


def words(reason: int) -> str:
    return f"{Reason(reason).name.lower().replace('_', ' ')} (0x{reason:02x})"
