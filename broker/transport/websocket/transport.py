"""The WebSocket layer of a connection, at either end: frames on one side, a protocol of ours on the other.

    socket <-> transport of the loop <-> (TlsTransport) <-> WebSocketTransport <-> Connection

To what is under it it is a protocol, to what stands above it a transport, like the layer of TLS. All payload of a chunk is handed on
with one call, whatever the frames that it came in, and what is given to `write` leaves at once: so runs of messages stay runs, unsent
bytes are those of the loop's transport, and a connection without WebSocket has nothing of this in its way.

Invariants
- the protocol's `connection_made` is called when the handshake is done, never for a connection whose handshake fails;
- a handshake ends within `patience` seconds, whatever the peer sends;
- whoever closes says so with a close frame, and the end that said it first reads on for a moment: closing a socket with unread bytes
  would destroy what is on its way to the peer, such as a DISCONNECT with its reason or the answer that refuses it;
- a peer that does not read gets no pongs, so that its pings do not fill our memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

from ....mqtt.websocket.frames import CLOSE, NORMAL, PING, PONG, Deframer, FrameError, close_code, close_frame, frame, frames
from ....mqtt.websocket.opening import SWITCHING, Answer, ClientOpening, ServerOpening
from ..layer import Layer

LINGER = 1.0  # seconds for a peer to take our last words and to answer them

Established = Callable[["WebSocketTransport"], None]
Failed = Callable[["WebSocketTransport", Answer], None]
Broken = Callable[["WebSocketTransport", FrameError], None]


def new_key() -> bytes:
    """What a client masks one frame with: nobody may guess it (RFC 6455, 10.3)."""
    return os.urandom(4)


def _ignore(*_: object) -> None:
    pass


class WebSocketTransport(Layer, asyncio.Protocol):
    """One end of one WebSocket.

    opening: the handshake of this end. limit: bytes of the largest message taken. patience: seconds for the handshake. established: called
    when it is done; it has to call `begin`. failed: called once when it fails. broken: called once when the peer breaks a rule behind it.
    gone: called when the connection is no more.
    """

    NAME = "websocket"

    __slots__ = (
        "_broken",
        "_code",
        "_congested",
        "_deframer",
        "_error",
        "_established",
        "_failed",
        "_gone",
        "_key",
        "_opening",
        "_patience",
        "_timer",
        "address",
        "loop",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        opening: ServerOpening | ClientOpening,
        limit: int,
        patience: float,
        established: Established,
        failed: Failed,
        broken: Broken = _ignore,
        gone: Established = _ignore,
    ) -> None:
        super().__init__()
        client = isinstance(opening, ClientOpening)
        self.loop = loop
        self.address = "?"
        self._opening: ServerOpening | ClientOpening | None = opening
        self._patience = patience
        self._established, self._failed, self._broken, self._gone = established, failed, broken, gone
        self._deframer = Deframer(not client, limit)
        self._key = new_key if client else None
        self._congested = False
        self._code = NORMAL  # to close with; the peer's own when it closes first
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the transport under it calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._under = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        self._timer = self.loop.call_later(self._patience, self._late)
        assert self._opening is not None
        if self._opening.request:
            self._under.write(self._opening.request)

    def data_received(self, data: bytes) -> None:
        deframer = self._deframer
        if self._opening is not None:
            answer = None if self._closing else self._opening.feed(data)
            if answer is not None:
                self._opened(answer)
            return
        payload = deframer.feed(data)
        if payload and not self._closing:
            self._protocol.data_received(payload)
        if deframer.controls:
            self._control()
        if deframer.error is not None and not self._closing:
            self._break(deframer.error)
        elif self._closing and deframer.ended and self._error is None:
            self._close_under()  # both ends have said what they had to say

    def eof_received(self) -> bool:
        if self._protocol is not None and not self._closing:
            self._protocol.eof_received()
        self._closing = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._closing = True
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(self._error or error)
        else:
            self._fail(Answer(0, b"", b"", "it closed the connection in the WebSocket handshake"))
        self._gone(self)

    def pause_writing(self) -> None:
        self._congested = True
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._congested = False
        if self._protocol is not None:
            self._protocol.resume_writing()

    # The handshake

    def _opened(self, answer: Answer) -> None:
        if answer.status != SWITCHING:
            self._refuse(answer)
            return
        self._stop_timer()
        self._opening = None
        if answer.reply:
            self._under.write(answer.reply)
        self._failed = _ignore
        self._established(self)
        if answer.rest:
            self.data_received(answer.rest)

    def begin(self, protocol: asyncio.Protocol) -> None:
        """The connection is this protocol's from now on."""
        self._protocol = protocol
        protocol.connection_made(self)

    def _late(self) -> None:
        assert self._opening is not None
        self._refuse(self._opening.late(self._patience))

    def _refuse(self, answer: Answer) -> None:
        """The handshake is over and failed: say so, wait until it has been read, close."""
        self._closing = True
        self._stop_timer()
        if answer.reply:
            self._under.write(answer.reply)
        self._fail(answer)
        if self._under.is_closing():
            return
        if self._under.can_write_eof():
            self._under.write_eof()
        self._timer = self.loop.call_later(LINGER, self._under.abort)

    def _fail(self, answer: Answer) -> None:
        failed, self._failed = self._failed, _ignore
        failed(self, answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # In

    def _control(self) -> None:
        """Answer pings, and the peer's close."""
        controls, self._deframer.controls = self._deframer.controls, []
        pings = [payload for opcode, payload in controls if opcode == PING]
        if pings and not self._closing and not self._congested:
            self._under.write(self._frame(PONG, pings[-1]))  # one answer to all that have come at once (5.5.3)
        opcode, payload = controls[-1]
        if opcode == CLOSE and not self._closing:
            self._code = close_code(payload)
            assert self._protocol is not None
            self._protocol.eof_received()
            self.close()

    def _break(self, error: FrameError) -> None:
        """The peer broke a rule: tell it which, and let nobody wait until it has understood."""
        self._error = ConnectionError(f"WebSocket: {error.text}")
        self._broken(self, error)
        self._say_goodbye(error.code, error.text)
        protocol, self._protocol = self._protocol, None
        self._failed = _ignore
        if protocol is not None:
            protocol.connection_lost(self._error)

    def _frame(self, opcode: int, payload: bytes) -> bytes:
        return frame(opcode, payload, self._key() if self._key else b"")

    # Out: what stands above calls these

    def write(self, data: Any) -> None:
        if data and not self._closing:
            self._under.write(frames(data, self._key))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close once what is unsent has gone, with a close frame behind it."""
        self._say_goodbye(self._code)

    def _say_goodbye(self, code: int, text: str = "") -> None:
        """Our close frame; then the peer has a moment to answer, unless it has spoken its last word already."""
        if self._closing:
            return
        self._closing = True
        self._under.write(close_frame(code, text, self._key() if self._key else b""))
        if self._under.is_closing():
            return
        if self._deframer.ended and self._error is None:
            self._close_under()
            return
        if not self._under.is_reading():
            self._under.resume_reading()
        if self._error is not None and self._under.can_write_eof():
            self._under.write_eof()  # nothing that it says can be understood any more
        self._timer = self.loop.call_later(LINGER, self._close_under)

    def _close_under(self) -> None:
        """Close the transport below once: up to Python 3.11.3, asyncio's TLS transport cannot be aborted after a second close."""
        if not self._under.is_closing():
            self._under.close()

    def abort(self) -> None:
        self._closing = True
        self._failed = _ignore
        self._under.abort()
