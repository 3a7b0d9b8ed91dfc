"""A TCP proxy in front of a listener, which can cut, silence and slow down a mesh link without touching the brokers.

It stands between the two ends of a link: the dialler gets the proxy's address. All proxies of a process share a thread with an event loop.
What a side has not read is bounded: beyond the bound the proxy stops reading from the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from enum import Enum
from typing import cast

READ_BOUND = 1 << 20  # bytes that wait for a slow side before the proxy stops reading the other side
DRIP = 0.02  # seconds between two pieces on a throttled connection


class Mode(Enum):
    """What the proxy does with bytes and connections."""

    PASS = "pass"
    CUT = "cut"
    SILENT = "silent"


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to `host`:`port`. Raises OSError if it cannot listen."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.mode = Mode.PASS
        self.rate: int | None = None  # bytes a second in each direction of each connection
        self.pairs: set[_Side] = set()
        self._loop = _loop()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    @property
    def url(self) -> str:
        """The address for the dialler of the link."""
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all connections and refuse new ones. Returns when it is done."""
        self._set(Mode.CUT)

    def silence(self) -> None:
        """Keep all connections, and hold back every byte in both directions. New connections are accepted and get no answer."""
        self._set(Mode.SILENT)

    def mend(self) -> None:
        """Let new connections through again. Silent connections are reset, and the bytes held back are lost, as on a real cable."""
        self._set(Mode.PASS)

    def resume(self) -> None:
        """End a silence without loss: the bytes held back are forwarded, on connections made meanwhile too."""

        def change() -> None:
            self.mode = Mode.PASS
            for side in list(self.pairs):
                side.release()

        if self.mode is Mode.SILENT:
            self._call(change)

    def throttle(self, rate: int | None) -> None:
        """Forward at most `rate` bytes a second in each direction of each connection; None: without limit."""
        self.rate = rate

    def close(self) -> None:
        """Stop listening and break all connections."""
        self._set(Mode.CUT)
        self._call(self._server.close)

    async def _listen(self) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self), "127.0.0.1", 0)
        return cast(int, self._server.sockets[0].getsockname()[1])

    def _set(self, mode: Mode) -> None:
        def change() -> None:
            self.mode = mode
            for side in list(self.pairs):
                if mode is Mode.SILENT:
                    side.hold()
                else:
                    side.abort()

        if mode is not self.mode:
            self._call(change)

    def _call(self, function: object) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                function()  # type: ignore[operator]
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(5)


class _Side(asyncio.Protocol):
    """One end of a proxied connection: the dialler's, or ours to the target (then `other` is given)."""

    def __init__(self, proxy: Proxy, other: _Side | None = None) -> None:
        self.proxy = proxy
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []  # bytes that came before the target was connected, or in a silence
        self.ended = False  # it sends no more
        self.end_passed = False  # the end is forwarded
        self.slow = bytearray()  # bytes that wait on a throttled connection
        self.task: asyncio.Task[None] | None = None  # connects to the target

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(READ_BOUND)
        if self.proxy.mode is Mode.CUT:
            self.abort()
            return
        self.proxy.pairs.add(self)
        if self.other is not None:
            self.other.other = self
        if self.proxy.mode is Mode.SILENT:
            self.transport.pause_reading()
        else:
            self._begin()

    def _begin(self) -> None:
        """Forward bytes: connect to the target first, then send it the bytes that have arrived meanwhile."""
        if self.other is not None:
            dialler = self if self.early else self.other
            for data in dialler.early:
                dialler._pass_on(data)
            dialler.early.clear()
            dialler._pass_end()
        elif self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._reach(), name="reach")

    async def _reach(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: _Side(self.proxy, self), *self.proxy.target)
        except OSError:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self.proxy.mode is Mode.SILENT and self.transport is not None:
            self.early.append(data)  # asyncio of Python 3.11.2 forgets a pause that connection_made asks for
            self.transport.pause_reading()
            return
        if self.proxy.mode is not Mode.PASS:
            return
        if self.slow or self.proxy.rate:
            self.slow += data
            if len(self.slow) == len(data):
                self._drip()
            return
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def _drip(self) -> None:
        """Forward one piece on a throttled connection. Read the side again when nothing waits."""
        assert self.transport is not None
        if self not in self.proxy.pairs:
            return
        if self.proxy.mode is Mode.PASS:
            rate = self.proxy.rate
            size = max(1, int(rate * DRIP)) if rate else len(self.slow)
            piece = bytes(self.slow[:size])
            del self.slow[:size]
            self._pass_on(piece)
        if self.slow:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(DRIP, self._drip)
        elif self.proxy.mode is Mode.PASS:
            self.transport.resume_reading()
            self._pass_end()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None and self.proxy.mode is not Mode.SILENT:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        """One direction has ended. The other stays open until it ends too."""
        self.ended = True
        self._pass_end()
        return True

    def _pass_end(self) -> None:
        """Forward the end of this direction after all its bytes. Close when both directions have ended."""
        if not self.ended or self.end_passed or self.early or self.slow or self.other is None or self.other.transport is None:
            return
        self.end_passed = True
        if not self.other.end_passed:
            self.other.transport.write_eof()
        else:
            self.other.transport.close()
            if self.transport is not None:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.proxy.pairs.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close() if exc is None else self.other.abort()

    def hold(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def release(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._begin()
        if not self.slow:
            self.transport.resume_reading()

    def abort(self) -> None:
        """Reset the connection. Bytes that are not sent are lost."""
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


_shared: asyncio.AbstractEventLoop | None = None
_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all proxies, in a daemon thread that starts with the first one."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = asyncio.new_event_loop()
            threading.Thread(target=_shared.run_forever, name="proxies", daemon=True).start()
        return _shared
