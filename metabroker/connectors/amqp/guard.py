"""Between the socket and the AMQP library: what comes from a server is looked at frame by frame before the library reads it.

The library (aio-pika on aiormq and pamqp) reads as fast as bytes come, makes a task of each message, and ends the connection when it cannot
read one. The message would come again on the next connection, and the next. So here
- frames larger than was agreed on end the connection, before they are in memory;
- a message whose properties the library cannot read, or not in a short time, goes on without them; one whose routing key is no text goes on
  with an empty one, which is no topic;
- a message that is too large goes on without its body, which is thrown away as it comes, and is named in `too_large`;
- a channel that the server closes is given up at once, and nothing of it is written any more: the library would write what was on its way
  behind the answer, and leave the answer out when its queue is full; either ends the connection;
- while the gate is closed no message goes on. The socket is read no further then, so that TCP holds the server back, and the library hears
  heartbeats from here, so that it does not take the server for dead.

What it does not know: channels, queues, answers; whatever it does not name passes unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import pamqp.frame
from aiormq.connection import TransportFactory

from ....base.address import Address
from ....base.process.happy_eyeballs import connect

READ_AHEAD = 131_072  # bytes; twice as many are taken from the socket before it is read no further
LARGEST_FRAME = 131_072
LARGEST_INCOMING = 16_777_216
MOST_VALUES = 1000  # in a message's headers: the library's time for each grows with the length of all
SMALL = 4096  # bytes of properties that cannot take long
BEAT = 10.0  # seconds
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
OVERHEAD = 8  # bytes of a frame beside its payload
END = b"\xce"
TUNE, CLOSE, BLOCKED, UNBLOCKED = (b"\0\x0a\0" + bytes((method,)) for method in (30, 50, 60, 61))  # class and method
CHANNEL_OPEN, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = (b"\0\x14\0" + bytes((method,)) for method in (10, 40, 41))
DELIVER = b"\0\x3c\0\x3c"
NO_PROPERTIES = b"\0\0"
TLS_ALERT = b"\x15\x03"  # what a listener with TLS answers to who speaks without
HEARTBEAT_FRAME = struct.pack(">BHI", HEARTBEAT, 0, 0) + END
# Letters of values of a fixed size, as pamqp reads them.
_BY_SIZE = {0: b"\0V", 1: b"tbB", 2: b"su", 4: b"Iif", 5: b"D", 8: b"lLdT"}
_SIZES = {letter: size for size, letters in _BY_SIZE.items() for letter in letters}


class Guard(asyncio.StreamReader):
    """What the library reads from. on_blocked: told why the server takes no messages, and None when it takes them again."""

    def __init__(self, on_blocked: Callable[[str | None], None]) -> None:
        super().__init__(limit=READ_AHEAD, loop=asyncio.get_running_loop())
        self.error = ""  # why the connection is ended from here
        self.wants_tls = False
        self.closed: tuple[int, str] | None = None  # the server's code and words, when it ends the connection
        self.too_large: dict[int, int] = {}  # delivery tag -> bytes
        self.answer: Callable[[bytes], None] = lambda _: None  # writes to the server
        self._closed: set[int] = set()  # channels, by the server
        self._on_blocked = on_blocked
        self._open = asyncio.Event()
        self._open.set()
        self._frame = b""
        self._waiting = b""  # the frame after that, while the gate is closed
        self._at = 0
        self._delivery = 0, 0  # channel and tag of the last message
        self._skip: dict[int, int] = {}  # channel -> bytes of a body that are still to be thrown away
        self._known = b""  # properties that could be read

    def pause(self, paused: bool) -> None:
        """Close the gate, or open it."""
        if paused:
            self._open.clear()
        else:
            self._open.set()

    def passes(self, data: bytes) -> bool:
        """Whether frames of one channel may be written."""
        channel = int.from_bytes(data[1:3], "big")
        if channel in self._closed:
            if data[7:11] != CHANNEL_OPEN:
                return False
            self._closed.discard(channel)
        return True

    async def readexactly(self, n: int) -> bytes:
        """See `StreamReader`. Raises ConnectionError after a frame that no server may send; `error` says more."""
        while len(self._frame) - self._at < n:
            self._frame, self._at = self._frame[self._at :] + await self._next(), 0
        data = self._frame[self._at : self._at + n]
        self._at += n
        return data

    def at_eof(self) -> bool:
        """See `StreamReader`."""
        return self._at == len(self._frame) and super().at_eof()

    async def _next(self) -> bytes:
        """The next frame that the library is to see."""
        if not self._waiting:
            self._waiting = await self._read()
        if not self._open.is_set() and self._waiting[7:11] == DELIVER and self._waiting[0] == METHOD:
            try:
                async with asyncio.timeout(BEAT):
                    await self._open.wait()
            except TimeoutError:
                return HEARTBEAT_FRAME
        frame, self._waiting = self._waiting, b""
        return frame

    async def _read(self) -> bytes:
        while True:
            start = await super().readexactly(7)
            kind, channel, size = struct.unpack(">BHI", start)
            if start.startswith(TLS_ALERT):
                self.wants_tls = True
                self._fail("it wants TLS: write amqps://host:port")
            if start.startswith(b"AMQP") or kind not in (METHOD, HEADER, BODY, HEARTBEAT) or size + OVERHEAD > LARGEST_FRAME:
                self._fail("the server does not speak AMQP 0-9-1, or its frames are too large")
            rest = await super().readexactly(size + 1)
            if not rest.endswith(END):
                self._fail("a frame does not end where it should")
            if kind == METHOD:
                return self._method(channel, start + rest)
            if kind == HEADER:
                return self._header(channel, rest[:-1])
            if kind == HEARTBEAT:
                return HEARTBEAT_FRAME
            if channel in self._skip:
                self._skip[channel] -= size
                if self._skip[channel] <= 0:
                    del self._skip[channel]
            elif size:
                return start + rest

    def _fail(self, text: str) -> NoReturn:
        self.error = text
        raise ConnectionError(text)

    def _method(self, channel: int, frame: bytes) -> bytes:
        """A frame with a method, as the library is to see it."""
        method = frame[7:11]
        if method == DELIVER:
            return self._deliver(channel, frame)
        if method == TUNE and len(frame) == 20:
            largest = min(int.from_bytes(frame[13:17], "big") or LARGEST_FRAME, LARGEST_FRAME)
            return frame[:13] + largest.to_bytes(4, "big") + frame[17:]
        if method == CLOSE and len(frame) > 13:
            self.closed = int.from_bytes(frame[11:13], "big"), frame[14 : 14 + frame[13]].decode("utf-8", "replace")
        elif method == CHANNEL_CLOSE:
            self._closed.add(channel)
            self.answer(_frame(METHOD, channel, CHANNEL_CLOSE_OK))
        elif method == BLOCKED:
            self._on_blocked(frame[12:-1].decode("utf-8", "replace"))
        elif method == UNBLOCKED:
            self._on_blocked(None)
        return frame

    def _deliver(self, channel: int, frame: bytes) -> bytes:
        """A consumer's tag, a delivery's, whether it comes again, the exchange, the routing key."""
        try:
            tag = 12 + frame[11]
            exchange = tag + 9
            key = exchange + 1 + frame[exchange]
            names = frame[exchange + 1 : key], frame[key + 1 : -1]
        except IndexError:
            self._fail("a method cannot be read")
        self._delivery = channel, int.from_bytes(frame[tag : tag + 8], "big")
        try:
            for name in names:
                name.decode()
        except UnicodeDecodeError:
            return _frame(METHOD, channel, frame[7:exchange] + b"\0\0")
        return frame

    def _header(self, channel: int, payload: bytes) -> bytes:
        """How long a message is, and its properties."""
        if len(payload) < 14:
            self._fail("the header of a message is cut off")
        size = int.from_bytes(payload[4:12], "big")
        if payload[12:] != self._known:
            if readable(channel, payload):
                self._known = payload[12:]
            else:
                payload = payload[:12] + NO_PROPERTIES
        if size > LARGEST_INCOMING:
            self._skip[channel] = size
            if channel == self._delivery[0]:  # else it is one of ours that comes back
                self.too_large[self._delivery[1]] = size
            payload = payload[:4] + bytes(8) + payload[12:]
        return _frame(HEADER, channel, payload)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def readable(channel: int, payload: bytes) -> bool:
    """Whether the library can read the header of a message, and before long."""
    try:
        if len(payload) > SMALL and values_in(payload) > MOST_VALUES:
            return False
        pamqp.frame.unmarshal(_frame(HEADER, channel, payload))
    except Exception:  # the library raises all kinds: ValueError, OverflowError, RecursionError...
        return False
    return True


def values_in(payload: bytes) -> int:
    """How many values the headers of a message have, tables and lists in them included, as far as MOST_VALUES. Raises IndexError and others
    when they cannot be read."""
    flags, at = int.from_bytes(payload[12:14], "big"), 14
    for flag in (0x8000, 0x4000):  # content type and encoding stand before the headers
        if flags & flag:
            at += 1 + payload[at]
    if not flags & 0x2000:
        return 0
    count = 0
    open_ = [(at + 4, at + 4 + int.from_bytes(payload[at : at + 4], "big"), True)]  # tables and lists: from, to, whether it has names
    while open_ and count <= MOST_VALUES:
        at, end, named = open_.pop()
        while at < end and count <= MOST_VALUES:
            count += 1
            if named:
                at += 1 + payload[at]
            letter = payload[at]
            at += 1
            if letter in _SIZES:
                at += _SIZES[letter]
                continue
            length = int.from_bytes(payload[at : at + 4], "big")
            at += 4
            if letter in b"AF":
                open_.append((at, at + length, letter == ord("F")))
            at += length
    return count


class _Writer(asyncio.StreamWriter):
    """What the library writes to: frames of one channel with each call."""

    guard: Guard

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.guard.passes(bytes(data[:11])):
            super().write(data)


class Transport(TransportFactory):
    """Makes the library's connection: to `address`, through a `Guard`. context: of TLS."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, guard: Guard) -> None:
        self.guard = guard
        self._address = address
        self._context = context
        self._transport: asyncio.Transport | None = None

    async def create(self, *_: Any, **_options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """See `TransportFactory`. Raises OSError."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(self.guard, loop=loop)
        address = self._address
        transport, __ = await connect(lambda: protocol, address.host, address.port, self._context)
        self._transport = transport
        self.guard.answer = transport.write
        writer = _Writer(transport, protocol, self.guard, loop)
        writer.guard = self.guard
        return self.guard, writer

    @property
    def waiting(self) -> int:
        """Bytes that the socket has not taken."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            with contextlib.suppress(AttributeError):  # up to Python 3.11.3: a TLS transport that the library has closed twice
                self._transport.abort()
