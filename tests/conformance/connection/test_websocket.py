"""MQTT over WebSocket (chapter 6 of both specifications)."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator

import pytest
from conformance import wire
from conformance.lab import Client, fresh
from conformance.statements import states

TEXT, BINARY, CONTINUED, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10


def frame(kind: int, payload: bytes, final: bool = True) -> bytes:
    """One masked frame of a client (RFC 6455, 5.2)."""
    length = len(payload)
    head = bytes(((0x80 if final else 0) | kind, 0x80 | (length if length < 126 else 126)))
    if length >= 126:
        head += length.to_bytes(2, "big")
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


class WebSocket(Client):
    """A client whose bytes travel in frames. offered: subprotocols. kinds: of the frames that came."""

    def __init__(self, address: tuple[str, int], version: int, offered: str = "mqtt") -> None:
        super().__init__(address, version)
        self.kinds: list[int] = []
        self._raw = b""
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /mqtt HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
        if offered:
            lines.append(f"Sec-WebSocket-Protocol: {offered}")
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._raw:
            data = super().bytes()
            if not data:
                break
            self._raw += data
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        self.status = int(head.split()[1]) if head else 0
        self.headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        if self.status == 101:
            digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
            assert self.headers["sec-websocket-accept"] == base64.b64encode(digest).decode().lower()

    def send(self, *data: bytes) -> None:
        self.send_frames(frame(BINARY, b"".join(data)))

    def send_frames(self, *frames: bytes) -> None:
        super().send(*frames)

    def bytes(self) -> bytes:
        """The payload of the next data frame."""
        while True:
            length = self._raw[1] & 0x7F if len(self._raw) >= 2 else -1
            start = {126: 4, 127: 10}.get(length, 2)
            if length >= 0 and len(self._raw) >= start:
                if start > 2:
                    length = int.from_bytes(self._raw[2:start], "big")
                if len(self._raw) >= start + length:
                    assert not self._raw[1] & 0x80, "a server does not mask"
                    kind, payload = self._raw[0] & 15, self._raw[start : start + length]
                    self._raw = self._raw[start + length :]
                    self.kinds.append(kind)
                    if kind == CLOSE:
                        return b""
                    if kind in (BINARY, CONTINUED):
                        return payload
                    assert kind in (PING, PONG), f"a frame of kind {kind}"
                    continue
            data = super().bytes()
            if not data:
                return b""
            self._raw += data


class Room:
    """WebSocket clients of one broker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.clients: list[WebSocket] = []

    def dial(self, version: int, offered: str = "mqtt") -> WebSocket:
        self.clients.append(WebSocket(self.address, version, offered))
        return self.clients[-1]

    def client(self, version: int) -> WebSocket:
        found = self.dial(version)
        found.send(wire.connect(fresh("c"), version))
        found.expect("CONNACK", reason=0)
        return found


@pytest.fixture
def room(websocket_address: tuple[str, int]) -> Iterator[Room]:
    found = Room(websocket_address)
    yield found
    for client in found.clients:
        client.cut()


@states(mqtt311="6.0.0-4 6.0.0-3", mqtt5="6.0.0-4 6.0.0-3")
def test_the_subprotocol_is_mqtt(room: Room, version: int) -> None:
    for offered in ("mqtt", "chat, mqtt", "mqtt, other"):
        client = room.dial(version, offered)
        assert client.status == 101
        assert client.headers["sec-websocket-protocol"] == "mqtt"


@states(mqtt311="6.0.0-3", mqtt5="6.0.0-3")
def test_a_client_that_does_not_offer_mqtt(room: Room, version: int) -> None:
    """It is turned away, or told of no subprotocol: another than mqtt is never selected."""
    for offered in ("chat", "http"):
        client = room.dial(version, offered)
        assert client.headers.get("sec-websocket-protocol") is None


@states(mqtt311="6.0.0-1", mqtt5="6.0.0-1")
def test_the_broker_s_packets_travel_in_binary_frames(room: Room, version: int) -> None:
    topic = fresh()
    client, writer = room.client(version), room.client(version)
    client.subscribe((topic, 2))
    for size in (1, 200, 70000):
        writer.send_frames(frame(BINARY, b""))  # an empty frame is nothing
        number = writer.next_id()
        data = wire.publish(topic, b"x" * size, 1, number, version=version)
        for begin in range(0, len(data), 60000):
            writer.send(data[begin : begin + 60000])
        writer.expect("PUBACK", packet_id=number)
        client.message(topic, b"x" * size)
    assert set(client.kinds + writer.kinds) <= {BINARY, CONTINUED}


@states(mqtt311="6.0.0-1", mqtt5="6.0.0-1")
def test_another_kind_of_frame_ends_the_connection(room: Room, version: int) -> None:
    for data in (wire.PINGREQ, b"hello"):
        client = room.client(version)
        client.send_frames(frame(TEXT, data))
        assert [one.kind for one in client.rest()] in ([], ["DISCONNECT"] if version == 5 else [])
    client = room.dial(version)
    client.send_frames(frame(TEXT, wire.connect(fresh(), version)))
    assert client.rest() == []


@states(mqtt311="6.0.0-2", mqtt5="6.0.0-2")
def test_packets_and_frames_need_not_agree(room: Room, version: int) -> None:
    topic = fresh()
    packets = [
        wire.connect(fresh("c"), version),
        wire.subscribe(1, (topic, 1), version=version),
        wire.publish(topic, b"a" * 300, 1, 2, version=version),
        wire.publish(topic, b"b", version=version),
        wire.PINGREQ,
    ]
    whole = b"".join(packets)
    ways = {
        "one frame": [frame(BINARY, whole)],
        "a byte a frame": [frame(BINARY, whole[index : index + 1]) for index in range(len(whole))],
        "pieces of 7": [frame(BINARY, whole[index : index + 7]) for index in range(0, len(whole), 7)],
        "one message in fragments": [
            frame(BINARY, whole[:5], False),
            frame(CONTINUED, whole[5:50], False),
            frame(PING, b"between"),
            frame(CONTINUED, whole[50:]),
        ],
    }
    for frames in ways.values():
        client = room.dial(version)
        client.send_frames(*frames)
        assert sorted(client.receive().kind for _ in range(6)) == ["CONNACK", "PINGRESP", "PUBACK", "PUBLISH", "PUBLISH", "SUBACK"]
        client.cut()
