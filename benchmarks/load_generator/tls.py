"""TLS for the load generator: a socket's methods over a TLS connection that is encrypted in memory.

All that the kernel has is read with one call and decrypted record by record, so that a broker that sends many small
records is not judged by the generator's system calls. What the kernel did not take waits in `unsent`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import cast

CHUNK = 1 << 18  # plain bytes of one send
ROOM = 1 << 15  # by which a chunk is larger than what is read at once: an incomplete record may have waited


class TlsSocket:
    """A client's end; the handshake is done. ca: PEM file of the authority that is trusted."""

    def __init__(self, sock: socket.socket, ca: str, host: str) -> None:
        context = ssl.create_default_context(cafile=ca)
        self.sock = sock
        self.unsent = memoryview(b"")
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._cipher = memoryview(bytearray(CHUNK - ROOM))
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(self._out.read())
                self._receive()
        self.sock.sendall(self._out.read())

    def fileno(self) -> int:
        return self.sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self.sock.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    def _receive(self) -> bool:
        """Take what the kernel has; False at the end of the stream."""
        count = self.sock.recv_into(self._cipher)
        self._in.write(self._cipher[:count])
        return count > 0

    def recv_into(self, buffer: bytearray) -> int:
        """Plain bytes, 0 at the end of the stream; BlockingIOError (or it blocks) while there are none."""
        position = 0
        with memoryview(buffer) as view:
            while True:
                if not self._in.pending and not self._receive():
                    return 0
                with contextlib.suppress(ssl.SSLWantReadError):
                    while self._in.pending:
                        position += cast(int, self._object.read(len(view) - position, view[position:]))
                if position:
                    return position

    def recv(self, size: int) -> bytes:
        """As `recv_into`; `size` is as good as any."""
        buffer = bytearray(CHUNK)
        return bytes(buffer[: self.recv_into(buffer)])

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """How many plain bytes were taken; BlockingIOError while earlier ones wait."""
        if self.unsent and not self.flush():
            raise BlockingIOError
        with memoryview(data) as view:
            size, position = min(len(view), CHUNK), 0
            while position < size:
                position += self._object.write(view[position:size])
        self.unsent = memoryview(self._out.read())
        self.flush()
        return size

    def sendall(self, data: bytes) -> None:
        """On a blocking socket."""
        with memoryview(data) as view:
            position = 0
            while position < len(view):
                position += self._object.write(view[position:])
        self.sock.sendall(self._out.read())

    def flush(self) -> bool:
        """Give the kernel what waits; True when nothing is left."""
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
        return not self.unsent

    def close(self) -> None:
        self.sock.close()


def make_certificates(folder: Path) -> None:
    """ca.crt, broker.crt and broker.key for 127.0.0.1."""
    from mqmesh.cli.authority import Authority

    authority = Authority("bench", folder / "ca.crt", folder / "ca.key", 2)
    authority.issue("broker", folder / "broker.crt", folder / "broker.key", ("127.0.0.1",), 1, server=True, renew=False)
