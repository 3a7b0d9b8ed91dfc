"""A blocking client that speaks MQTT 5 packet by packet, for tests that kill its broker."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, TypeVar

from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Pingreq, Pingresp

from support.services import PATIENCE

P = TypeVar("P")


class RawClient:
    """One connection to a broker at 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._framer = Framer()
        self._packets: list[Any] = []

    def send(self, *what: Any) -> None:
        self._socket.sendall(b"".join([encode(packet, 5) for packet in what]))

    def until(self, kind: type) -> list[Any]:
        """What comes before a packet of this kind."""
        found: list[Any] = []
        while True:
            packet = self.expect(object)
            if isinstance(packet, kind):
                return found
            found.append(packet)

    def expect(self, kind: type[P]) -> P:
        """The next packet, which has to be of this kind."""
        while not self._packets:
            data = self._socket.recv(65536)
            assert data, "the broker closed the connection"
            self._packets += [decode(first, body, 5) for first, body in self._framer.feed(data)]
        packet = self._packets.pop(0)
        assert isinstance(packet, kind), f"{packet} came, not {kind.__name__}"
        return packet

    def nothing(self) -> None:
        """Nothing has come, and nothing is on the way."""
        self.send(Pingreq())
        self.expect(Pingresp)

    def shut(self) -> None:
        """End the connection under a thread that reads."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
