"""A non-blocking MQTT connection of the load generator: the socket, the handshake and what could not be sent yet.

`left` holds bytes that the socket did not take; while there are any, nothing else is sent, so that packets never mix.
What comes in goes to `read`, which publishers and subscribers fill in.
"""

from __future__ import annotations

import contextlib
import select
import socket

from benchmarks.load_generator import wire
from benchmarks.load_generator.tls import TlsSocket
from benchmarks.load_generator.websocket import WebSocket

Buffer = bytes | bytearray | memoryview
CHUNK = 1 << 18  # bytes of one recv or send


class Connection:
    """One client. `address` is (host, port); the constructor returns when CONNACK has come (10 s at most).

    ca: the PEM file of the authority to trust where the broker speaks TLS. persistent: its session outlives the connection.
    web: over WebSocket.    present: the broker had a session of this client.
    """

    def __init__(
        self, address: tuple[str, int], client_id: str, version: int, ca: str = "", persistent: bool = False, web: bool = False
    ) -> None:
        self.version = version
        sock = socket.create_connection(address, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.layer = WebSocket(sock, address[0]) if web else TlsSocket(sock, ca, address[0]) if ca else None
        self.sock: socket.socket | TlsSocket | WebSocket = self.layer or sock
        self.fd = self.sock.fileno()
        self.left = bytearray()
        self.kept = bytearray()  # an incomplete packet that the slow path waits to see whole
        self.epoll: select.epoll | None = None
        self.slow_packets = 0  # that went through the exact decoder
        self.sock.sendall(wire.connect(client_id, version, persistent))
        answer = self.expect(wire.CONNACK)
        self.receive_maximum = wire.check_connack(answer, version)
        self.present = bool(answer[0] & 1)

    def expect(self, kind: int) -> bytes:
        """Wait for one packet of that type, still blocking, and return its body."""
        while (found := wire.next_packet(self.kept, 0)) is None:
            data = self.sock.recv(65536)
            if not data:
                raise wire.WireError("the broker closed the connection in the handshake")
            self.kept += data
        del self.kept[: found.end]
        if found.first >> 4 != kind:
            raise wire.WireError(f"packet type {found.first >> 4} came where {kind} was expected")
        return found.body

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        """Subscribe and wait for SUBACK; WireError unless the QoS is granted."""
        self.sock.sendall(wire.subscribe(1, topic_filter, qos, self.version))
        granted = self.expect(wire.SUBACK)[-1]
        if granted != qos:
            raise wire.WireError(f"SUBACK grants 0x{granted:02x} where QoS {qos} was asked for")

    def register(self, epoll: select.epoll) -> None:
        """From now on the connection is non-blocking and `epoll` calls it."""
        self.sock.setblocking(False)
        self.epoll = epoll
        epoll.register(self.fd, select.EPOLLIN)

    def push(self, data: Buffer) -> None:
        """Send whole packets, or keep what the socket does not take."""
        if self.left:
            self.left += data
            return
        sent = self.try_send(data)
        rest = memoryview(data)[sent:]
        if rest:
            self.keep(rest)

    def keep(self, rest: Buffer) -> None:
        """Send `rest` when the socket is writable again."""
        self.left += rest
        assert self.epoll
        self.epoll.modify(self.fd, select.EPOLLIN | select.EPOLLOUT)

    def try_send(self, data: Buffer) -> int:
        """How many bytes the socket took."""
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            return 0
        if self.layer is not None and self.layer.unsent:
            self.keep(b"")
        return sent

    def writable(self) -> None:
        """The socket takes bytes again."""
        if self.layer is not None and not self.layer.flush():
            return
        if self.left:
            with memoryview(self.left) as view:
                sent = self.try_send(view)
            del self.left[:sent]
        if not self.left and not (self.layer is not None and self.layer.unsent):
            assert self.epoll
            self.epoll.modify(self.fd, select.EPOLLIN)

    def readable(self) -> None:
        """Bytes have come: take them from the socket and judge them."""
        try:
            count = self.sock.recv_into(BUFFER)
        except BlockingIOError:
            return
        if not count:
            raise wire.WireError("the broker closed the connection")
        self.read(VIEW[:count])

    def read(self, data: memoryview) -> None:
        """What has come; the memory is reused, so nothing may keep `data`."""
        raise NotImplementedError

    def slow(self, data: Buffer) -> None:
        """Take packets one by one from what was kept and `data`; what is incomplete is kept."""
        self.kept += data
        whole, position = bytes(self.kept), 0
        while found := wire.next_packet(whole, position):
            position = found.end
            self.packet(found.first, found.body)
        del self.kept[:position]

    def packet(self, first: int, body: bytes) -> None:
        """One packet on the slow path."""
        raise NotImplementedError

    def close(self) -> None:
        """Say DISCONNECT where the socket still takes it, and close."""
        with contextlib.suppress(OSError):
            self.sock.send(b"\xe0\0")
        self.sock.close()


BUFFER = bytearray(CHUNK)
VIEW = memoryview(BUFFER)
