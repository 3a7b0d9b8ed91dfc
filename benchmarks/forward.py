"""Not a broker: it copies what publishers send to the subscribers of the same topic, as it comes, without looking.

    python -m benchmarks.forward PORT

What the load generator reaches against it, which no broker could surpass, shows how far the generator is from being the
bottleneck. It answers the handshakes, forwards the first packets of a publisher one by one until it knows their topic and
size, and after that only moves bytes; at QoS 1 it cuts the packet identifiers out to acknowledge them, and forwards them
unchanged. Only frames of one size can be acknowledged so.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys

from benchmarks.load_generator import wire

CHUNK = 1 << 18


class Client:
    """A connection: a subscriber once it has subscribed, a publisher once it has published."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.version = 4
        self.left = bytearray()
        self.kept = bytearray()
        self.filter = b""
        self.targets: list[Client] | None = None
        self.qos = self.size = self.offset = 0
        self.shared = False  # its subscribers have other publishers too: only whole frames may be passed on

    def push(self, data: bytes | bytearray | memoryview) -> None:
        """Send or keep."""
        sent = 0
        if not self.left:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                sent = self.sock.send(data)
        if sent < len(data):
            self.left += memoryview(data)[sent:]
            self.server.epoll.modify(self.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def writable(self) -> None:
        """Send what was kept."""
        data, self.left = self.left, bytearray()
        self.server.epoll.modify(self.sock.fileno(), select.EPOLLIN)
        self.push(data)

    def readable(self) -> bool:
        """Move what has come; False at its end."""
        try:
            data = self.sock.recv(CHUNK)
        except ConnectionError:
            return False
        if not data:
            return False
        if self.filter:
            return data != b"\xe0\0"  # nothing but acknowledgements, and DISCONNECT
        if self.targets is None:
            return self.packets(data)
        data = self.server.pass_on(self, self.whole(data) if self.shared or self.qos else data)
        for target in self.targets:
            if target.sock.fileno() >= 0:
                target.push(data)
        return True

    def whole(self, data: bytes) -> bytes:
        """The whole frames of what has come; at QoS 1, after their PUBACKs went out."""
        self.kept += data
        count = len(self.kept) // self.size
        whole = bytes(self.kept[: count * self.size])
        del self.kept[: count * self.size]
        if self.qos:
            answer = bytearray(b"\x40\x02\0\0" * count)
            answer[2::4], answer[3::4] = whole[self.offset :: self.size], whole[self.offset + 1 :: self.size]
            self.push(answer)
        return whole

    def packets(self, data: bytes) -> bool:
        """The first packets, one by one; False when the client leaves."""
        self.kept += data
        while self.targets is None and (found := wire.next_packet(self.kept, 0)):
            frame = bytes(self.kept[: found.end])
            del self.kept[: found.end]
            if found.first >> 4 == wire.DISCONNECT:
                return False
            self.packet(frame, found.first, found.body)
        return True

    def packet(self, frame: bytes, first: int, body: bytes) -> None:
        """CONNECT, SUBSCRIBE and a publisher's first PUBLISH; acknowledgements of subscribers are ignored."""
        kind = first >> 4
        if kind == wire.CONNECT:
            self.version = body[6]
            self.push(wire.packet(0x20, b"\0\0\0" if self.version == 5 else b"\0\0"))
        elif kind == wire.SUBSCRIBE:
            at = 3 if self.version == 5 else 2
            length = int.from_bytes(body[at : at + 2], "big")
            self.filter = body[at + 2 : at + 2 + length]
            self.push(wire.packet(0x90, body[:2] + (b"\0" if self.version == 5 else b"") + body[-1:]))
        elif kind == wire.PUBLISH:
            self.publish(frame, wire.decode_publish(first, body, self.version))

    def publish(self, frame: bytes, publication: wire.Publication) -> None:
        """From the second probe on, bytes are only moved."""
        root = b"/".join(publication.topic.split(b"/")[:2])
        targets = [c for c in self.server.clients.values() if c.filter and (c.filter == b"bench/#" or c.filter.startswith(root))]
        if publication.qos:
            self.push(wire.acknowledgement(wire.PUBACK, publication.pid))
        for target in targets:
            target.push(frame)
        if self.size:
            self.targets, self.qos = targets, publication.qos
            self.shared = any(target.filter == b"bench/#" for target in targets)
        self.size, self.offset = len(frame), frame.index(publication.topic) + len(publication.topic)


class Server:
    """The listener and the loop."""

    def __init__(self, port: int) -> None:
        self.epoll = select.epoll()
        self.listener = socket.create_server(("127.0.0.1", port), backlog=100)
        self.clients: dict[int, Client] = {}
        self.stopped = False
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)

    def pass_on(self, publisher: Client, data: bytes) -> bytes:
        """What subscribers get for what came from a publisher: the same. (A test that spoils it overrides this.)"""
        return data

    def accept(self) -> None:
        """A new connection."""
        sock, _ = self.listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients[sock.fileno()] = Client(self, sock)
        self.epoll.register(sock.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        """Until `stopped`."""
        while not self.stopped:
            for fd, event in self.epoll.poll(0.05):
                if fd == self.listener.fileno():
                    self.accept()
                elif client := self.clients.get(fd):
                    if event & select.EPOLLOUT:
                        client.writable()
                    if event & ~select.EPOLLOUT and not client.readable():
                        self.clients.pop(fd).sock.close()


if __name__ == "__main__":
    server = Server(int(sys.argv[1]))
    print("ready", flush=True)
    server.serve()
