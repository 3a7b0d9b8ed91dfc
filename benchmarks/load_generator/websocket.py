"""WebSocket for the load generator: a socket's methods over frames, one for each packet that is sent, as MQTT.js and paho-mqtt do.

Frames of packets of one size are made at once, as the rows of a matrix, each with a key of its own. What the kernel did not take waits
in `unsent`. What comes is taken out of its frames, whatever they are.
"""

from __future__ import annotations

import contextlib
import os
import socket

import numpy as np
from mqmesh.mqtt.websocket.frames import BINARY, Deframer, frame
from mqmesh.mqtt.websocket.opening import SWITCHING, ClientOpening

from benchmarks.load_generator import wire

CHUNK = 1 << 18  # bytes of one read
PATH = "/mqtt"


class WebSocket:
    """A client's end; the handshake is done. Raises WireError when the broker refuses it."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self.sock = sock
        self.unsent = memoryview(b"")
        self._deframer = Deframer(False, 1 << 40)
        self._raw = memoryview(bytearray(CHUNK))
        self._dice = np.random.default_rng()
        opening = ClientOpening(host, PATH, os.urandom(16))
        sock.sendall(opening.request)
        answer = None
        while answer is None:
            data = sock.recv(65536)
            answer = opening.feed(data)
            if not data or (answer is not None and answer.status != SWITCHING):
                raise wire.WireError(f"no WebSocket: {answer.text if answer else 'the broker closed the connection'}")
        self._early = self._deframer.feed(answer.rest)

    def fileno(self) -> int:
        return self.sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self.sock.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    def recv_into(self, buffer: bytearray) -> int:
        """Payload, 0 at the end of the stream; BlockingIOError (or it blocks) while there is none."""
        payload, self._early = self._early, b""
        while not payload:
            count = self.sock.recv_into(self._raw)
            if not count:
                return 0
            payload = self._deframer.feed(bytes(self._raw[:count]))
            if self._deframer.ended:
                raise wire.WireError(f"the WebSocket is closed: {self._deframer.error or self._deframer.controls}")
        buffer[: len(payload)] = payload
        return len(payload)

    def recv(self, size: int) -> bytes:
        """As `recv_into`; `size` is as good as any."""
        buffer = bytearray(CHUNK)
        return bytes(buffer[: self.recv_into(buffer)])

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Whole packets, all of which are taken; BlockingIOError while earlier ones wait."""
        if self.unsent and not self.flush():
            raise BlockingIOError
        self.unsent = memoryview(self.framed(bytes(data)))
        self.flush()
        return len(data)

    def sendall(self, data: bytes) -> None:
        """On a blocking socket."""
        self.sock.sendall(self.framed(data))

    def framed(self, data: bytes) -> bytes:
        """A frame for each packet in `data`."""
        first = wire.next_packet(data, 0)
        assert first is not None
        size = first.end
        if size < 126 and len(data) % size == 0:
            rows = np.frombuffer(data, np.uint8).reshape(-1, size)
            if (rows[:, :2] == rows[0, :2]).all():  # type and length of each
                return self._rows(rows)
        pieces, position = [], 0
        while found := wire.next_packet(data, position):
            pieces.append(frame(BINARY, data[position : found.end], os.urandom(4)))
            position = found.end
        assert position == len(data)
        return b"".join(pieces)

    def _rows(self, rows: np.ndarray) -> bytes:
        count, size = rows.shape
        made = np.empty((count, 6 + size), np.uint8)
        made[:, 0], made[:, 1] = 0x82, 0x80 | size
        keys = made[:, 2:6] = self._dice.integers(0, 256, (count, 4), np.uint8)
        made[:, 6:] = rows ^ np.tile(keys, size // 4 + 1)[:, :size]
        return made.tobytes()

    def flush(self) -> bool:
        """Give the kernel what waits; True when nothing is left."""
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
        return not self.unsent

    def close(self) -> None:
        self.sock.close()
