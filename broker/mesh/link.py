"""One connection to a neighbour: bytes to and from its `mesh.link.Link` machine, in a transport's terms.

What waits for the neighbour stands in two queues, urgent packets ahead of the others; the shell is told when too much waits and
when it no longer does. A link with a rate passes what is not urgent as its `RateLimiter` allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from typing import TYPE_CHECKING

from ...base.alarm import Alarm
from ...mesh.link.link import Link, State
from ...mesh.link.settings import LinkClosed, LinkData, LinkUp
from ...mesh.node.single.frames import LARGEST
from ...mesh.topology.rules import UNRULED
from ...mesh.wire.identity import Identity
from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from .direct import receive_one
from .rate import RateLimiter
from .tcp_info import tcp_bytes

if TYPE_CHECKING:
    from .shell import MeshShell

log = logging.getLogger("mqmesh.mesh")

SOCKET_UNSENT = 512 * 2**10  # bytes given to the transport ahead of what the peer reads: urgent packets wait behind these only
PIECE = 256 * 2**10  # bytes joined into one write
SHOWN = 1.0, 4  # the round trip that is shown changes with this many ms and this part of it: a status that changes is published


class LinkProtocol(asyncio.Protocol):
    """One connection to a neighbour: bytes to and from its `Link` machine."""

    def __init__(self, shell: MeshShell, machine: Link, number: int, cost: int, address: str) -> None:
        self.shell = shell
        self.machine = machine
        self.id = number
        self.cost = cost
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.up = False
        self.broke = False  # it was used, and the connection ended without a word of either side
        self.closed = asyncio.Event()
        self.error = ""
        self.rules = UNRULED
        self.since = 0.0  # when it came up, in seconds since 1970
        self.urgent: list[bytes | bytearray] = []
        self.bulk: deque[bytes | bytearray] = deque()
        self.waiting = 0  # bytes in bulk
        self.limiter: RateLimiter | None = None  # in which messages wait instead, where the link has a rate
        self._pace_timer: asyncio.TimerHandle | None = None
        self._blocked = False  # the transport holds enough
        self._full = False  # the node was told so
        self._alarm = Alarm(self._handle_timer)
        self._shown: float | None = None  # of the round trip

    @property
    def peer(self) -> Identity | None:
        return self.machine.peer

    @property
    def tls(self) -> str | None:
        """The version of TLS that it runs over, None without."""
        layer = self.transport.get_extra_info("tls") if self.transport is not None else None
        return layer.version if layer is not None else None

    @property
    def unsent(self) -> int:
        """Bytes that the connection has not taken yet."""
        waiting = self.waiting if self.limiter is None else self.limiter.waiting
        return waiting + (self.transport.get_write_buffer_size() if self.transport is not None else 0)

    @property
    def full(self) -> bool:
        """Whether more is unsent than may be, so that the node sends no more."""
        return self._full

    @property
    def round_trip(self) -> float | None:
        """Milliseconds from a ping to its answer, None before the first one. Small changes are not shown."""
        now = self.machine.round_trip
        if now is not None:
            now = max(round(1000 * now, 2), 0.01)
            if self._shown is None or abs(now - self._shown) > max(SHOWN[0], self._shown / SHOWN[1]):
                self._shown = now
        return self._shown

    def traffic(self) -> dict[str, int | None]:
        """What has passed over the connection, for people: the system counts bytes (None where it does not), the node messages."""
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        out, come = tcp_bytes(sock)
        return {"bytes_out": out, "bytes_in": come, **self.shell.node.traffic(self.id)}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # of a connection that has ended already: macOS says so here
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            elif sock is not None and sock.family == socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_UNSENT)  # else large blocks are written in parts
        self.transport.set_write_buffer_limits(high=SOCKET_UNSENT, low=SOCKET_UNSENT // 4)  # type: ignore[union-attr]
        self._after([])

    def data_received(self, data: bytes) -> None:
        context = self.shell.context
        now = context.now = context.loop.time()
        context.turns.current = context.turns.broker
        if len(data) <= LARGEST and self.up and self.machine.bypass(now) and receive_one(self.shell, self.id, data, now):
            return
        if len(data) > LARGEST and self.up and self.machine.is_one(data, now):  # a block
            self._receive(data)
        else:
            self._after(self.machine.receive(data, now))
        context.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.shell.admission.end_link(self)
        self.broke = self.machine.state is State.UP and self.peer is not None and bool(self.shell.node.live() >> self.peer.number & 1)
        self._after(self.machine.connection_lost(str(error) if error else ""))
        self._end("connection lost")
        self.shell.context.flush()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self.flush()
        self.shell.context.flush()

    def send(self, data: bytes | bytearray, urgent: bool) -> None:
        """Queue whole packets; `flush` writes them, urgent ones first."""
        if urgent:
            self.urgent.append(data)
        elif self.limiter is not None:
            self.limiter.put(data)
        else:
            self.bulk.append(data)
            self.waiting += len(data)

    def send_now(self, data: bytes | bytearray, urgent: bool = False) -> None:
        """Write one packet, after what waits unless it is urgent."""
        if self.bulk or self.urgent or self._blocked or self.limiter is not None or self.transport is None or self.transport.is_closing():
            self.send(data, urgent)
            self.flush()
        else:
            self.transport.write(data)

    def flush(self) -> None:
        """Write as much as the transport takes; tell the node when too much waits and when it no longer does."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.limiter is not None:
            self._flush_paced(transport, self.limiter)
            return
        bulk = self.bulk
        while (bulk or self.urgent) and not self._blocked:
            piece, self.urgent = self.urgent, []
            size = 0
            while bulk and size < PIECE:
                data = bulk.popleft()
                size += len(data)
                piece.append(data)
            self.waiting -= size
            transport.write(piece[0] if len(piece) == 1 else b"".join(piece))
        bound = self.shell.config.limits.link_unsent_bytes
        self._say_full(self.waiting > (bound // 4 if self._full else bound))

    def _flush_paced(self, transport: asyncio.Transport, limiter: RateLimiter) -> None:
        """The same over a link with a rate: messages leave as its buckets fill, urgent packets at once."""
        while not self._blocked:
            piece, self.urgent = self.urgent, []
            data = limiter.take(self.shell.now(), PIECE)
            if data:
                piece.append(data)
            if not piece:
                break
            transport.write(b"".join(piece))
        self._say_full(limiter.full(self._full))
        wait = limiter.wait()
        if wait is not None and not self._blocked and self._pace_timer is None:
            self._pace_timer = self.shell.context.loop.call_later(wait, self._pace)

    def _pace(self) -> None:
        self._pace_timer = None
        self.flush()
        self.shell.context.flush()

    def _say_full(self, full: bool) -> None:
        if full != self._full and self.up:
            self._full = full
            self.shell.node.link_full(self.id, full, self.shell.now())

    def _after(self, events: list[LinkUp | LinkData | LinkClosed]) -> None:
        """Carry out what the machine says, write what it wants written, set its timer."""
        for event in events:
            if isinstance(event, LinkData):
                if self.up:
                    self._receive(event.data)
            elif isinstance(event, LinkUp):
                self.shell.link_up(self, event.peer, event.incarnation)
            else:
                self.error = event.text
                if not self.up and not self.machine.dialled:
                    self.shell.refused(self, event.reason, event.text)
                self.shell.link_closed(self, event.reason, event.text)
                self._write_machine()
                self._end(event.text)
                return
        self._write_machine()
        self._set_timer()

    def _receive(self, data: bytes) -> None:
        try:
            self.shell.node.receive(self.id, data, self.shell.context.now)
        except PeerError as error:
            self.close(error.reason, error.text)
        except Exception:
            log.exception("event=internal-error link=%d peer=%s", self.id, self.peer)
            self.close(Reason.UNSPECIFIED_ERROR, "internal error")

    def _write_machine(self) -> None:
        data = self.machine.take()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def _set_timer(self) -> None:
        """Wake up at the machine's deadline at the latest; a call before it is harmless."""
        deadline = self.machine.next_deadline()
        if deadline is not None:
            self._alarm.set(self.shell.context.loop, deadline)

    def _handle_timer(self, at: float) -> None:
        self._after(self.machine.handle_timer(self.shell.now()))
        self.shell.context.flush()

    def close(self, reason: Reason, text: str) -> None:
        """End the link from this side."""
        self.error = text
        self.machine.goodbye(reason, text)
        self.shell.link_closed(self, reason, text)
        self._write_machine()
        self._end(text)

    def _end(self, text: str) -> None:
        self._alarm.end()
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._pace_timer = None
        self.shell.link_closed(self, Reason.UNSPECIFIED_ERROR, self.error or text)
        self.bulk.clear()
        if self.limiter is not None:
            self.limiter.clear()
        self.urgent.clear()
        self.waiting = 0
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            # a silent peer takes nothing: what waits for it must not keep the connection for ever
            self.shell.context.loop.call_later(self.shell.config.limits.connect_timeout, self.transport.abort)
        self.closed.set()
