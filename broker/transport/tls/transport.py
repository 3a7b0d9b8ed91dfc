"""The TLS layer of one connection: encrypted bytes on one side, a protocol of ours on the other.

    socket <-> transport of the loop <-> TlsTransport <-> Connection or LinkProtocol

To the loop's transport it is a protocol, to what stands above it a transport. OpenSSL works on memory (`ssl.MemoryBIO`),
so that it runs alike on uvloop and on asyncio, and so that a chunk stays a chunk: all that the socket had is decrypted and
handed on with one call, all that is given to `write` is encrypted at once and goes to the loop in one piece.

Nothing waits in here but what the handshake holds up. So unsent bytes are those of the loop's transport: `pause_writing`,
`get_write_buffer_size` and the bounds on them mean what they mean without TLS.

Invariants
- the protocol's `connection_made` is called when the handshake is done, never for a connection whose handshake fails;
- a handshake ends within `patience` seconds, whatever the peer sends;
- a peer that is refused gets the alert that says why: the socket is read on for a moment, because closing it with unread
  bytes would destroy the alert on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from ..layer import Layer
from .certificate import for_servers, names
from .openssl_errors import explain

RECORD = 16384  # plain bytes of the largest record
PIECE = 256 * 2**10  # encrypted bytes that are given to the loop at once
ALERT = b"\x15\3\1\0\2\2\x46"  # fatal, protocol version: for a peer that does not speak TLS, to which OpenSSL says nothing
LINGER = 1.0  # seconds for a refused peer to take its alert

Established = Callable[["TlsTransport"], None]
Failed = Callable[["TlsTransport", str], None]


class TlsTransport(Layer, asyncio.BufferedProtocol):
    """One end of one TLS connection.

    established: called when the handshake is done; it has to call `begin`. failed: called once with a clause about the peer when
    the handshake fails or the connection ends in it. address: of the peer. buffer: into which the loop reads; one for all
    connections of a loop, because its content is used up before the call returns.
    """

    NAME = "tls"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        buffer: memoryview,
        patience: float,
        established: Established,
        failed: Failed,
        server: bool = True,
        host: str | None = None,
    ) -> None:
        super().__init__()
        self.loop = loop
        self.address = "?"
        self.done = False  # the handshake is
        self._buffer = buffer
        self._patience = patience
        self._established = established
        self._failed: Failed | None = failed
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=host)
        self._lost = False
        self._refused = False
        self._first: int | None = None
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._under = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        self._timer = self.loop.call_later(self._patience, self._expired)
        self._shake()  # a client speaks first

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing or self._refused:
            return
        self._incoming.write(self._buffer[:nbytes])
        if self.done:
            if self._protocol is not None:
                self._read()
            return
        if self._first is None:
            self._first = self._buffer[0]
        self._shake()

    def eof_received(self) -> bool:
        if self.done and not self._closing:
            self._end_of_stream()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._closing = self._lost = True
        self._error = self._error or error
        protocol, self._protocol = self._protocol, None  # which knows this transport: the two would be freed late
        if protocol is not None:
            protocol.connection_lost(self._error)
        elif not self.done:
            self._fail("it closed the connection in the TLS handshake")

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The handshake

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._refuse(explain(error, self._first))
            return
        self._flush()
        self._stop_timer()
        self.done = True
        self._failed = None
        self._established(self)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection is this protocol's from now on; what came behind the handshake has waited for it."""
        self._protocol = protocol
        protocol.connection_made(self)
        if self._lost or not self._closing:
            self._read()
        if self._lost:
            self.loop.call_soon(protocol.connection_lost, self._error)

    def _refuse(self, text: str) -> None:
        """The handshake is over and failed: let the alert out, then close."""
        self._refused = True
        self._stop_timer()
        self._under.write(self._outgoing.read() or ALERT)
        self._fail(text)
        if self._under.is_closing():
            return
        if self._under.can_write_eof():
            self._under.write_eof()
        self._timer = self.loop.call_later(LINGER, self._under.abort)

    def _fail(self, text: str) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(self, text)

    def _expired(self) -> None:
        self._timer = None
        self._fail(f"it did not finish the TLS handshake within {self._patience:g} s")
        self._closing = True
        self._under.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # In

    def _read(self) -> None:
        """Decrypt all that has come and hand it on with one call."""
        read, incoming = self._object.read, self._incoming
        pieces: list[bytes] = []
        ended = False
        error: ssl.SSLError | None = None
        try:
            while True:
                piece = read(RECORD)
                if not piece:  # close_notify
                    ended = True
                    break
                pieces.append(piece)
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as problem:
            error = problem
        if self._outgoing.pending:  # an answer of TLS itself, such as to a key update
            self._flush()
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if error is not None:
            self._broken(error)
        elif ended and not self._closing:
            self._end_of_stream()

    def _end_of_stream(self) -> None:
        protocol = self._protocol
        if protocol is not None:
            protocol.eof_received()
        self.close()

    def _broken(self, error: ssl.SSLError) -> None:
        """Bytes that are not the peer's, or an alert: nothing that follows can be read."""
        self._error = ConnectionError(explain(error))
        self.abort()

    # Out: what stands above calls these

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        write, outgoing = self._object.write, self._outgoing
        try:
            size = len(data)
            position = write(data)  # one record of it
            if position < size:
                with memoryview(data) as view:
                    while position < size:
                        position += write(view[position : position + RECORD])
                        if outgoing.pending >= PIECE:
                            self._under.write(outgoing.read())
        except ssl.SSLError as error:
            self._broken(error)
            return
        self._under.write(outgoing.read())

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._under.is_closing():
            self._under.write(data)

    def close(self) -> None:
        """Close once what is unsent has gone, with close_notify behind it; the peer's is not waited for."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError):
            self._object.unwrap()
        self._flush()
        self._under.close()

    def abort(self) -> None:
        self._closing = True
        self._under.abort()

    # What the handshake proved

    @property
    def names(self) -> frozenset[str]:
        """The names in the peer's verified certificate; none when it showed none."""
        return names(self._object.getpeercert())

    @property
    def common_name(self) -> str | None:
        """The common name in the peer's verified certificate; None when it showed none, or one without exactly one such name."""
        subject: Any = (self._object.getpeercert() or {}).get("subject", ())
        found = [value for part in subject for key, value in part if key == "commonName"]
        return found[0] if len(found) == 1 else None

    @property
    def valid_until(self) -> float | None:
        """When the peer's verified certificate ends (seconds since 1970); None when it showed none."""
        ends: Any = (self._object.getpeercert() or {}).get("notAfter")
        return None if ends is None else float(ssl.cert_time_to_seconds(ends))

    @property
    def serves(self) -> bool:
        """Whether the peer's certificate says that it is for servers: a client's, of the same authority, is no broker's."""
        return for_servers(self._object.getpeercert(binary_form=True) or b"")

    @property
    def binding(self) -> bytes:
        """Bytes that only the two ends of this connection know: the client's Finished message (RFC 5929, 3)."""
        return self._object.get_channel_binding("tls-unique") or b""  # RFC 9266, 4.2: no name for it in TLS 1.3, the message is there

    @property
    def version(self) -> str:
        """Such as "TLSv1.3"."""
        return self._object.version() or "?"
