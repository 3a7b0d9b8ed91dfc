"""The in-process transport: connects two protocols of one process as a socket does, and hands bytes over in the same turn of the loop.

    write -> waits at the other end -> pump() -> data_received

Strategy: `write` only puts the bytes down, so a protocol may call it in the middle of anything. `pump` hands over the waiting
bytes, at both ends in turn, until none are left. A protocol calls it when its own work is done. If nobody calls it, the loop does one turn
later. The same call hands over what is written while it runs: no protocol is called back from inside its own `write`, and the stack does
not grow. A call ends after `BYTES` or `ROUNDS` and leaves the rest to the next turn, so that sockets are served too.

Flow control is that of a socket. An end that does not read leaves bytes waiting. Beyond a bound the writer is paused (`pause_writing`,
`resume_writing`). An exception of a protocol ends both connections, as with a socket, and `failed` is called.

Invariants: bytes arrive in order and once; the loop calls `connection_lost` once for each end, after the last bytes for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger("mqmesh.broker")

CHUNK = 256 * 2**10  # bytes that are handed over at once, as from a socket, unless one piece is larger
BYTES, ROUNDS = 2**20, 64  # of one call of `pump`
HIGH, LOW = 64 * 2**10, 16 * 2**10  # bytes: asyncio's own
NOBODY = asyncio.Protocol()  # stands for one that was told that its connection is lost


class InProcessPair:
    """Connects two protocols. Calls `connection_made` at once, first that of `one`.

    failed: called with the exception that `other` has raised. peer: host and port that `one` is told as those of the other end. secure: the
    other end stands for somebody whom it serves over TLS; `one` is told so as `secure`. speaks: the protocol that it serves them by, told
    in the same way; "": none. at_once: `other` only writes when it is given bytes, so `one` may hand them over in the middle of its work.
    """

    __slots__ = ("_failed", "_loop", "_pumping", "_soon", "at_once", "one", "other")

    def __init__(
        self,
        one: asyncio.Protocol,
        other: asyncio.Protocol,
        failed: Callable[[Exception], None],
        peer: tuple[str, int] | None = None,
        secure: bool = False,
        speaks: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._pumping = self._soon = self.at_once = False
        self.one, self.other = InProcessEnd(self, one, peer, secure, speaks), InProcessEnd(self, other)
        self.one.peer, self.other.peer = self.other, self.one
        one.connection_made(self.one)
        other.connection_made(self.other)

    def pump(self) -> None:
        """Hand over the waiting bytes. A call from inside `data_received` does nothing: the outer call goes on."""
        if self._pumping:
            return
        one, other = self.one, self.other
        if not (one.waiting or other.waiting):
            return
        self._pumping = True
        try:
            left = BYTES
            for _ in range(ROUNDS):
                handed = other.take() + one.take()
                left -= handed
                if not handed:
                    return
                if left <= 0:
                    break
            self.pump_soon()
        finally:
            self._pumping = False

    def pump_after(self, write: Callable[[], None]) -> None:
        """Call `write`, then hand over what it has written."""
        if self._pumping:
            write()
            return
        self._pumping = True
        try:
            write()
        finally:
            self._pumping = False
        self.pump()

    def hand(self, end: InProcessEnd, data: bytes | bytearray | memoryview) -> None:
        """Give an end bytes now; if it has to wait for them, they are written. What it writes meanwhile waits."""
        if self._pumping or not self.at_once or end.waiting or not end.open:
            end.peer.write(data)
            return
        self._pumping = True
        try:
            end.give(bytes(data))
        finally:
            self._pumping = False
        if end.peer.waiting or end.waiting:
            self.pump_soon()

    def pump_soon(self) -> None:
        """Call `pump` in the next turn of the loop."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._soon = False
        self.pump()

    def written(self) -> None:
        """Note that an end has written: bytes wait now."""
        if not self._pumping:
            self.pump_soon()

    def raised(self, end: InProcessEnd, error: Exception) -> None:
        """End both connections after an exception of a protocol: what it did with the bytes is unknown."""
        name = type(end.protocol).__name__
        end.lose(error)
        end.peer.lose(None)
        if end is self.other:
            self._failed(error)
        else:
            log.error("event=internal-error end=%s", name, exc_info=error)


class InProcessEnd(asyncio.Transport):
    """The transport of one protocol.

    waiting: bytes that the protocol has not been given yet.
    peer: the other end.
    ended: whether nothing more is written to this end.
    """

    __slots__ = ("_high", "_inbox", "_lost", "_low", "_pair", "_reading", "_told", "ended", "peer", "protocol", "waiting")

    peer: InProcessEnd

    def __init__(
        self,
        pair: InProcessPair,
        protocol: asyncio.Protocol,
        peer: tuple[str, int] | None = None,
        secure: bool = False,
        speaks: str = "",
    ) -> None:
        super().__init__({"peername": peer, "secure": secure, "speaks": speaks})
        self._pair = pair
        self.protocol = protocol
        self._inbox: deque[bytes | bytearray | memoryview] = deque()
        self.waiting = 0
        self.ended = False
        self._reading = True
        self._lost = False  # `connection_lost` is called, or will be next
        self._told = False  # `pause_writing` was called last, not `resume_writing`
        self._high, self._low = HIGH, LOW

    def take(self) -> int:
        """Hand over a chunk of the waiting bytes; returns its size."""
        if not self.waiting or not self._reading or self._lost:
            return 0
        inbox = self._inbox
        if self.waiting <= CHUNK or len(inbox) == 1:
            data = b"".join(inbox)
            inbox.clear()
        else:
            pieces = [inbox.popleft()]
            size = len(pieces[0])
            while size + len(inbox[0]) <= CHUNK:
                size += len(inbox[0])
                pieces.append(inbox.popleft())
            data = b"".join(pieces)
        self.waiting -= len(data)
        self.give(data)
        if self.ended and not self.waiting:
            self.lose(None)
        return len(data)

    @property
    def open(self) -> bool:
        """Whether it takes bytes now, and more may come."""
        return self._reading and not self._lost and not self.ended

    def give(self, data: bytes) -> None:
        """Hand over bytes, which wait no more."""
        try:
            self.protocol.data_received(data)
            peer = self.peer
            if peer._told and self.waiting <= peer._low and not peer._lost:
                peer._told = False
                peer.protocol.resume_writing()
        except Exception as error:
            self._pair.raised(self, error)

    def lose(self, error: Exception | None) -> None:
        """Close this end and drop the bytes that wait for it."""
        self._inbox.clear()
        self.waiting = 0
        if not self._lost:
            self._lost = True
            self._pair._loop.call_soon(self.protocol.connection_lost, error)
            self.protocol = NOBODY  # the ends know each other, so what they hold would be freed late

    # The interface of asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        peer = self.peer
        if self._lost or peer._lost or not data:
            return
        peer._inbox.append(data)
        peer.waiting += len(data)
        self._pair.written()
        if peer.waiting > self._high and not self._told:
            self._told = True
            self.protocol.pause_writing()

    def hand(self, data: bytes | bytearray | memoryview) -> None:
        """`write`, and have the other end take it now where that may be (`InProcessPair.hand`)."""
        if not self._lost and data:
            self._pair.hand(self.peer, data)

    def close(self) -> None:
        """Close this end at once, and the other one when it has been given what was written."""
        self.lose(None)
        self.peer.ended = True
        if not self.peer.waiting:
            self.peer.lose(None)

    def abort(self) -> None:
        self.lose(None)
        self.peer.lose(None)

    def is_closing(self) -> bool:
        return self._lost

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._pair.written()

    def is_reading(self) -> bool:
        return self._reading and not self._lost

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.peer.waiting

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
