"""Two protocols in one process, joined as by a socket: what one writes the other is handed, in the same turn of the loop.

    write -> waits at the other end -> pump() -> data_received

Strategy: `write` only puts the bytes down, so a protocol may call it in the middle of anything. `pump` hands over what waits, at both
ends in turn, until nothing is left; whoever has finished its own work calls it, and where nobody does the loop does, one turn later. What
is written while it runs is handed over by the same call: nobody is called back from inside his own `write`, and however long two
protocols talk, the stack does not grow. A call ends after so many bytes or rounds and leaves the rest to the next turn, so that sockets
have theirs.

Flow control is that of a socket: an end that does not read leaves bytes waiting, and beyond a bound the one who writes is told
(`pause_writing`, `resume_writing`). What a protocol raises ends both, as it does with a socket, and `failed` is told.

Invariants: bytes arrive in order and once; `connection_lost` is called once for each end, by the loop, after all that it is to get.
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


class Joint:
    """Joins two protocols; `connection_made` is called at once, first of `one`. failed: told what `other` has raised."""

    __slots__ = ("_failed", "_loop", "_pumping", "_soon", "one", "other")

    def __init__(self, one: asyncio.Protocol, other: asyncio.Protocol, failed: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._pumping = self._soon = False
        self.one, self.other = End(self, one), End(self, other)
        self.one.peer, self.other.peer = self.other, self.one
        one.connection_made(self.one)
        other.connection_made(self.other)

    def pump(self) -> None:
        """Hand over what waits. From inside a protocol's `data_received`: nothing, because it goes on by itself."""
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
        """Call `write`, and hand over what it has written."""
        if self._pumping:
            write()
            return
        self._pumping = True
        try:
            write()
        finally:
            self._pumping = False
        self.pump()

    def pump_soon(self) -> None:
        """Hand over in the loop's next turn what nobody has handed over until then."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._soon = False
        self.pump()

    def written(self) -> None:
        """Something waits."""
        if not self._pumping:
            self.pump_soon()

    def raised(self, end: End, error: Exception) -> None:
        """A protocol has a fault: nobody knows what it did with the bytes, so this is the end for both."""
        end.lose(error)
        end.peer.lose(None)
        if end is self.other:
            self._failed(error)
        else:
            log.error("event=internal-error end=%s", type(end.protocol).__name__, exc_info=error)


class End(asyncio.Transport):
    """The transport of one protocol. waiting: bytes for it. peer: the other end."""

    __slots__ = ("_high", "_inbox", "_joint", "_lost", "_low", "_reading", "_told", "ended", "peer", "protocol", "waiting")

    peer: End

    def __init__(self, joint: Joint, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": None})
        self._joint = joint
        self.protocol = protocol
        self._inbox: deque[bytes | bytearray | memoryview] = deque()
        self.waiting = 0
        self.ended = False  # nothing more is written to this end
        self._reading = True
        self._lost = False  # `connection_lost` is called, or will be next
        self._told = False  # the protocol knows that it had better not write
        self._high, self._low = HIGH, LOW

    def take(self) -> int:
        """Hand over a chunk of what waits: how many bytes."""
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
        try:
            self.protocol.data_received(data)
            peer = self.peer
            if peer._told and self.waiting <= peer._low and not peer._lost:
                peer._told = False
                peer.protocol.resume_writing()
        except Exception as error:
            self._joint.raised(self, error)
        if self.ended and not self.waiting:
            self.lose(None)
        return len(data)

    def lose(self, error: Exception | None) -> None:
        """This end is over: what waits for it goes nowhere."""
        self._inbox.clear()
        self.waiting = 0
        if not self._lost:
            self._lost = True
            self._joint._loop.call_soon(self.protocol.connection_lost, error)

    # What a transport does

    def write(self, data: bytes | bytearray | memoryview) -> None:
        peer = self.peer
        if self._lost or peer._lost or not data:
            return
        peer._inbox.append(data)
        peer.waiting += len(data)
        self._joint.written()
        if peer.waiting > self._high and not self._told:
            self._told = True
            self.protocol.pause_writing()

    def close(self) -> None:
        """The other end gets what was written, then it is over for it too."""
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
        self._joint.written()

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
