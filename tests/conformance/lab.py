"""Clients of this suite: each a plain socket that sends any bytes and reads every packet of the broker strictly.

A test waits for packets and for the end of connections, never for time. `nothing` proves an absence: behind a PINGREQ comes the PINGRESP,
and everything that the broker had for this client before it.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections import deque
from typing import Any

from conformance import wire

from .wire import Packet

TIMEOUT = 60.0  # seconds after which a test has failed

_numbers = itertools.count(1)
_run = f"{os.getpid():x}"  # a broker that lives longer than this suite knows other runs


def fresh(word: str = "t") -> str:
    """A word that nobody used before: for topics, client identifiers and groups."""
    return f"{word}x{_run}x{next(_numbers)}"


class Client:
    """One network connection. version: 3, 4 or 5. connack: what CONNECT was answered with."""

    def __init__(self, address: tuple[str, int], version: int = 5, client_id: str = "") -> None:
        self.version = version
        self.client_id = client_id
        self.connack: Packet = None  # type: ignore[assignment]
        self.socket = socket.create_connection(address, TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ended = False
        self._buffer = b""
        self._packets: deque[Packet] = deque()
        self._id = 0

    # Sending

    def send(self, *data: bytes) -> None:
        """All in one piece. A connection that is gone already is for the reading side to see."""
        try:
            self.socket.sendall(b"".join(data))
        except OSError:
            self.ended = self.ended and bool(self._packets)

    def next_id(self) -> int:
        self._id += 1
        return self._id

    # Receiving

    def receive(self) -> Packet | None:
        """The next packet, None when the broker has closed the connection."""
        while not self._packets and not self.ended:
            data = self.bytes()
            if not data:
                self.ended = True
                assert not self._buffer, f"the connection ended inside a packet: {self._buffer!r}"
            self._buffer += data
            while (whole := wire.split(self._buffer)) is not None:
                first, body, size = whole
                self._buffer = self._buffer[size:]
                self._packets.append(wire.read(first, body, size, self.version))
        return self._packets.popleft() if self._packets else None

    def bytes(self) -> bytes:
        """What comes next, empty when the connection has ended."""
        try:
            return self.socket.recv(1 << 20)
        except (ConnectionError, BrokenPipeError):
            return b""

    def expect(self, kind: str, **fields: Any) -> Packet:
        """The next packet, which has to be of this kind with these fields."""
        found = self.receive()
        assert found is not None, f"the connection ended, {kind} was due"
        assert found.kind == kind, f"{found} came, {kind} was due"
        for name, value in fields.items():
            assert getattr(found, name) == value, f"{name} of {found} is not {value!r}"
        return found

    def rest(self) -> list[Packet]:
        """Everything until the broker closes the connection."""
        return list(iter(self.receive, None))

    def refused(self, *reasons: int) -> None:
        """The broker closes the connection, at most with a DISCONNECT before it (MQTT 5), whose reason is one of these."""
        last = self.rest()
        if last:
            assert self.version == 5, f"{last} before the end"
            assert [one.kind for one in last] == ["DISCONNECT"], f"{last} before the end"
            assert last[0].reason in reasons, f"reason 0x{last[0].reason:02x}, not one of {[hex(one) for one in reasons]}"

    def nothing(self) -> None:
        """Nothing has come and nothing is on the way."""
        self.send(wire.PINGREQ)
        self.expect("PINGRESP")

    # What clients do

    def subscribe(self, *filters: str | tuple[str, int], **given: Any) -> list[int]:
        """SUBSCRIBE and its SUBACK: the reason codes. A filter alone is wanted at QoS 2."""
        wanted = [(one, 2) if isinstance(one, str) else one for one in filters]
        number = self.next_id()
        self.send(wire.subscribe(number, *wanted, version=self.version, **given))
        return self.expect("SUBACK", packet_id=number).reasons

    def unsubscribe(self, *filters: str) -> list[int]:
        number = self.next_id()
        self.send(wire.unsubscribe(number, *filters, version=self.version))
        return self.expect("UNSUBACK", packet_id=number).reasons

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, **given: Any) -> int:
        """PUBLISH and its whole handshake: the reason code. At QoS 0 a PINGREQ says that the broker has it."""
        number = self.next_id() if qos else None
        self.send(wire.publish(topic, payload, qos, number, version=self.version, **given))
        if not qos:
            self.nothing()
            return 0
        reason = self.expect("PUBACK" if qos == 1 else "PUBREC", packet_id=number).reason
        if qos == 2 and reason < 0x80:
            self.send(wire.acknowledge("PUBREL", number or 0))
            self.expect("PUBCOMP", packet_id=number)
        return reason

    def message(self, topic: str | None = None, payload: bytes | None = None, finish: bool = True, **fields: Any) -> Packet:
        """The next packet, a PUBLISH; with `finish` its handshake is done to the end."""
        wanted = {name: value for name, value in (("topic", topic), ("payload", payload)) if value is not None}
        found = self.expect("PUBLISH", **wanted, **fields)
        if finish and found.qos == 1:
            self.send(wire.acknowledge("PUBACK", found.packet_id))
        elif finish and found.qos == 2:
            self.send(wire.acknowledge("PUBREC", found.packet_id))
            self.expect("PUBREL", packet_id=found.packet_id)
            self.send(wire.acknowledge("PUBCOMP", found.packet_id))
        return found

    def payloads(self, count: int) -> list[bytes]:
        """The payloads of the next messages."""
        return [one.payload for one in self.messages(count)]

    def messages(self, count: int) -> list[Packet]:
        """The next messages with their handshakes, in whatever order these come between them."""
        found: list[Packet] = []
        open_2 = 0
        while len(found) < count or open_2:
            one = self.receive()
            assert one is not None, f"the connection ended after {len(found)} messages"
            if one.kind == "PUBREL":
                self.send(wire.acknowledge("PUBCOMP", one.packet_id))
                open_2 -= 1
                continue
            assert one.kind == "PUBLISH", f"{one} came"
            found.append(one)
            if one.qos:
                self.send(wire.acknowledge("PUBACK" if one.qos == 1 else "PUBREC", one.packet_id))
                open_2 += one.qos == 2
        return found

    # The end

    def leave(self, reason: int | None = None, **given: Any) -> None:
        """DISCONNECT, and wait until the broker has closed."""
        self.send(wire.disconnect(reason, **given))
        assert [one for one in self.rest() if one.kind != "PUBLISH"] == []

    def cut(self) -> None:
        """The connection breaks."""
        self.ended = True
        self.socket.close()

    def hang_up(self) -> None:
        """No DISCONNECT, but the broker is waited for: it has seen the end when it closes its side."""
        self.socket.shutdown(socket.SHUT_WR)
        self.rest()


class Lab:
    """Connections to one broker; all are closed at the end of the test."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.clients: list[Client] = []

    def dial(self, version: int = 5) -> Client:
        """A network connection on which nothing was said."""
        client = Client(self.address, version)
        self.clients.append(client)
        return client

    def client(self, version: int = 5, client_id: str | None = None, reason: int = 0, **given: Any) -> Client:
        """A client whose CONNECT is answered with this reason (0: it is let in). given: for `wire.connect`."""
        client = self.dial(version)
        client.client_id = fresh("c") if client_id is None else client_id
        client.send(wire.connect(client.client_id, version, **given))
        client.connack = client.expect("CONNACK", reason=reason)
        return client

    def kept(self, version: int = 5, client_id: str | None = None, clean: bool = False, **given: Any) -> Client:
        """A client whose session outlives its connection."""
        if version == 5:
            given.setdefault("session_expiry", 600)
        return self.client(version, client_id, clean=clean, **given)

    def retained(self, topic: str) -> list[Packet]:
        """What is retained for a topic filter."""
        watcher = self.client()
        watcher.subscribe((topic, 0))
        watcher.send(wire.PINGREQ)
        found = list(iter(watcher.receive, wire.Packet("PINGRESP", 2)))
        watcher.leave()
        return [one for one in found if one is not None]

    def close(self) -> None:
        for client in self.clients:
            client.cut()
