"""Reads Mosquitto's persistence file `mosquitto.db`, in the format of Mosquitto 2.0 (version 6).

    header        15 bytes, checksum (not used), version
    each chunk    kind, length of what follows; both 32 bits
    CFG           last identifier, shutdown, bytes of an identifier
    MSG_STORE     identifier, expires at, payload length, source's packet identifier, lengths of source, user and topic, port,
                  QoS, retain; then source, user, topic, payload, properties (left out if there are none)
    CLIENT        session expires at, expiry interval, last packet identifier, lengths of client identifier and user, port;
                  then client identifier, user
    CLIENT_MSG    message's identifier, packet identifier, length of client identifier, QoS, state, retain and dup, direction;
                  then client identifier, properties
    SUB           subscription identifier, lengths of client identifier and filter, QoS, options; then the two
    RETAIN        message's identifier

Numbers are big-endian, but identifiers and times are as the machine had them: identifiers are only compared here, times taken as
little-endian. Properties begin with their length, as in a packet.

Mosquitto 2.0 writes, for a client without a user, the user of the client before it, and every other time with a wrong length. Where that
may be so the user is None.

It does not know what our store looks like.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

MAGIC = b"\x00\xb5\x00mosquitto db"
VERSION = 6
CFG, MSG_STORE, CLIENT_MSG, RETAIN, SUB, CLIENT = range(1, 7)
NEVER = 0xFFFFFFFF  # a session that does not expire

_HEADER = Struct(">II")
_CFG = Struct(">8sBB")
_MSG_STORE = Struct(">8s8sIHHHHHBB")
_CLIENT = Struct(">8sIHHHH4x")
_CLIENT_MSG = Struct(">8sHHBBBB")
_SUB = Struct(">IHHBB2x")


class DatabaseError(Exception):
    """A file that cannot be read; one line."""


class Message(NamedTuple):
    """A message. properties: of MQTT, encoded, without their length and without the expiry. expires_at: seconds of the wall clock."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    expires_at: int | None
    source: str


class ClientMessage(NamedTuple):
    """A message on its way to a client, or from it. state: Mosquitto's. properties: the subscription identifiers that come with it."""

    message: Message
    packet_id: int
    qos: int
    state: int
    retain: bool
    inbound: bool
    properties: bytes


class Subscription(NamedTuple):
    """options: as in SUBSCRIBE, without the QoS. identifier: 0 without."""

    filter: str
    qos: int
    options: int
    identifier: int


@dataclass(slots=True)
class Client:
    """A session. expires_at: None while it had a connection, or for ever. expiry: seconds; None: never. messages: in their order."""

    client_id: str
    user: str | None
    expires_at: int | None
    expiry: int | None
    messages: list[ClientMessage] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)


@dataclass(slots=True)
class Database:
    clients: dict[str, Client] = field(default_factory=dict)
    retained: list[Message] = field(default_factory=list)


class _Cursor:
    """Takes bytes from a chunk, one part after the other."""

    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._at = start

    def take(self, length: int) -> bytes:
        found = bytes(self._data[self._at : self._at + length])
        if len(found) < length:
            raise ValueError("a chunk is too short")
        self._at += length
        return found

    def text(self, length: int) -> str:
        return self.take(length).decode()

    def properties(self) -> bytes:
        """What is left: properties behind their length, or nothing."""
        rest = bytes(self._data[self._at :])
        if not rest:
            return b""
        length = shift = used = 0
        for byte in rest[:4]:
            length |= (byte & 0x7F) << shift
            shift, used = shift + 7, used + 1
            if byte < 0x80:
                break
        if used + length > len(rest):
            raise ValueError("properties are too short")
        return rest[used : used + length]


def read(data: bytes) -> Database:
    """Raises DatabaseError."""
    if not data.startswith(MAGIC):
        raise DatabaseError("this is no mosquitto.db")
    try:
        _, version = _HEADER.unpack_from(data, len(MAGIC))
        if version != VERSION:
            raise DatabaseError(
                f"this is format {version}, and {VERSION} is read here: start Mosquitto 2.0 with it once and stop it, it writes {VERSION}"
            )
        return _Reader().read(memoryview(data), len(MAGIC) + _HEADER.size)
    except (ValueError, StructError) as error:
        raise DatabaseError(f"it is damaged: {error}") from None


class _Reader:
    def __init__(self) -> None:
        self._messages: dict[bytes, Message] = {}
        self._found = Database()
        self._last_user: str | None = None  # of the client before
        self._in_doubt = False  # whether that one may not have had it

    def read(self, data: memoryview, start: int) -> Database:
        kinds = {
            MSG_STORE: self._message,
            CLIENT: self._client,
            CLIENT_MSG: self._client_message,
            SUB: self._subscription,
            RETAIN: self._retained,
        }
        while start < len(data):
            kind, length = _HEADER.unpack_from(data, start)
            start += _HEADER.size
            chunk = data[start : start + length]
            if len(chunk) < length:
                raise ValueError("it ends within a chunk")
            if kind in kinds:
                kinds[kind](chunk)
            elif kind == CFG:
                *_, size = _CFG.unpack_from(chunk)
                if size != 8:
                    raise ValueError(f"identifiers have {size} bytes, 8 are right")
            start += length
        return self._found

    def _message(self, chunk: memoryview) -> None:
        number, expires, length, _, source, user, topic, _, qos, retain = _MSG_STORE.unpack_from(chunk)
        cursor = _Cursor(chunk, _MSG_STORE.size)
        source_id = cursor.text(source)
        cursor.take(user)
        name, payload = cursor.take(topic), cursor.take(length)
        self._messages[number] = Message(name, payload, qos, bool(retain), cursor.properties(), _time(expires), source_id)

    def _client(self, chunk: memoryview) -> None:
        expires, expiry, _, identifier, _, length = _CLIENT.unpack_from(chunk)
        cursor = _Cursor(chunk, _CLIENT.size)
        client_id = cursor.text(identifier)
        user = self._user(cursor.take(length))
        self._found.clients[client_id] = Client(client_id, user, _time(expires), None if expiry == NEVER else expiry)

    def _user(self, raw: bytes) -> str | None:
        """A client's user, if it is sure to be its own."""
        wrong = b"\0" in raw
        name = raw.partition(b"\0")[0].decode() or None
        doubt = wrong or (self._in_doubt and name == self._last_user)
        self._last_user, self._in_doubt = name, doubt
        return None if doubt else name

    def _client_message(self, chunk: memoryview) -> None:
        number, packet_id, identifier, qos, state, flags, direction = _CLIENT_MSG.unpack_from(chunk)
        cursor = _Cursor(chunk, _CLIENT_MSG.size)
        client_id = cursor.text(identifier)
        properties = cursor.properties()
        message = self._messages.get(number)
        if message is not None and client_id in self._found.clients:
            found = ClientMessage(message, packet_id, qos, state, bool(flags >> 4), direction == 0, properties)
            self._found.clients[client_id].messages.append(found)

    def _subscription(self, chunk: memoryview) -> None:
        number, identifier, length, qos, options = _SUB.unpack_from(chunk)
        cursor = _Cursor(chunk, _SUB.size)
        client_id = cursor.text(identifier)
        topic_filter = cursor.text(length)
        if client_id in self._found.clients:
            self._found.clients[client_id].subscriptions.append(Subscription(topic_filter, qos, options, number))

    def _retained(self, chunk: memoryview) -> None:
        message = self._messages.get(bytes(chunk[:8]))
        if message is not None:
            self._found.retained.append(message)


def _time(raw: bytes) -> int | None:
    return int.from_bytes(raw, "little", signed=True) or None
