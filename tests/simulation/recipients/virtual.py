"""An event loop with virtual time, and a network in memory: real brokers run in it, nothing waits, and a seed repeats a run.

Time moves only when nothing is left to do at the moment; then it jumps to the next timer. What is scheduled carries the *life* that it
belongs to, in a context variable. When a life ends (`Life.end`, a kill -9), none of its callbacks run any more, and its connections
break: nothing is said, written or committed that was not at that moment.

The network carries bytes in order, after a delay; what is written while earlier bytes are about to arrive may arrive with them, in one
piece (`Network.grain`). A place is a name: a broker's, or a client's. `Network.cut` breaks all connections between two places and refuses
new ones until `mend`. A receiver that does not read (`pause_reading`) leaves bytes in its socket; beyond
`SOCKET` they stay with the sender, whose protocol is paused as asyncio does it. When the other end closes, what has arrived is read first,
even if that is much later, as a process does that was stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import selectors
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

SOCKET = 64 * 1024  # bytes that a socket holds for a receiver that does not read
HIGH, LOW = 64 * 1024, 16 * 1024  # asyncio's own
STEP = 1e-6  # seconds between two arrivals: timers of one moment have no order
STILL = 100_000  # rounds of the loop at one moment, with which something is wrong
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Life:
    """One life of a broker, from its start to its end. place: its name in the network."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.alive = True
        self.ends: dict[End, None] = {}
        self.tasks: list[asyncio.Task[Any]] = []

    def end(self) -> None:
        """Stop at once, as a process that is killed."""
        self.alive = False
        for end in list(self.ends):
            end.broken()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]


def _alive(life: Life, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    if life.alive:
        callback(*args)


class _Nobody(selectors.DefaultSelector):
    """No socket is ever ready; waiting moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._still = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to do, ever: somebody waits for what cannot come")
        self._still = 0 if timeout else self._still + 1
        if self._still > STILL:
            raise RuntimeError("time stands still: somebody is called again and again, and changes nothing")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See above. errors: exceptions that no callback caught."""

    def __init__(self) -> None:
        self._virtual = _Nobody()
        super().__init__(self._virtual)
        self.network = Network(self)
        self._dialled: WeakKeyDictionary[socket.socket, str] = WeakKeyDictionary()
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.set_task_factory(self._task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._virtual.now

    def _write_to_self(self) -> None:
        """Nobody else wakes this loop."""

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context)
        life = LIFE.get()
        if life is not None:
            life.tasks.append(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(_alive, life, callback, args, context=context)

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.TimerHandle:
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, _alive, life, callback, args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """What a thread would do, done a moment later."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(0.001, work)
        return future

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.network.listen(factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """A place has one address, its name."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """The socket stands for its place until `create_connection` takes it."""
        self._dialled[sock] = address[0]

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        life = LIFE.get()
        assert life is not None
        sock = options.get("sock")
        if sock is not None:
            host = self._dialled.pop(sock)
            sock.close()
        return await self.network.connect(factory, host, life)


class Server:
    """A listener of a place."""

    def __init__(self, network: Network, place: str, port: int, factory: Callable[[], Any], life: Life) -> None:
        self.network, self.place, self.factory, self.life = network, place, factory, life
        self.context = contextvars.copy_context()
        self.sockets = [self]
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        """As a socket's."""
        return self.place, self._port

    def close(self) -> None:
        """Listen no more."""
        if self.network.servers.get(self.place) is self:
            del self.network.servers[self.place]


class Network:
    """Who listens, and which paths are cut. delay(): seconds that bytes take. grain: seconds between two arrivals of one connection; what
    would arrive sooner after what is on its way arrives with it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.servers: dict[str, Server] = {}
        self.apart: set[frozenset[str]] = set()
        self.delay: Callable[[], float] = lambda: 0.001
        self.grain = STEP
        self._addresses = itertools.count(1)

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Server:
        """A listener at a place, for the life that asks."""
        life = LIFE.get()
        assert life is not None
        server = self.servers[host] = Server(self, host, port, factory, life)
        return server

    async def connect(self, factory: Callable[[], Any], host: str, life: Life) -> tuple[End, Any]:
        """A connection from a life to a place. ConnectionRefusedError if nobody is there, or the path is cut."""
        await asyncio.sleep(self.delay())
        server = self.servers.get(host)
        if server is None or not server.life.alive or frozenset((life.place, host)) in self.apart:
            raise ConnectionRefusedError(111, "Connection refused")
        address = f"10.0.0.{next(self._addresses) % 250 + 1}", 1883
        near, far = End(self, life, contextvars.copy_context(), address), End(self, server.life, server.context, address)
        near.peer, far.peer = far, near
        protocol = near.protocol = factory()
        protocol.connection_made(near)
        far.run(far.accept, server.factory)
        return near, protocol

    def cut(self, one: str, other: str) -> None:
        """Break all connections between two places, and let none be made."""
        self.apart.add(frozenset((one, other)))
        server_lives = dict.fromkeys([server.life for server in self.servers.values()])
        for life in server_lives:
            for end in list(life.ends):
                if {end.life.place, end.peer.life.place} == {one, other}:
                    end.broken()

    def mend(self, one: str, other: str) -> None:
        """Let connections be made again."""
        self.apart.discard(frozenset((one, other)))


class End(asyncio.Transport):
    """One end of a connection: the transport of its protocol. What it sends arrives at `peer`."""

    peer: End

    def __init__(self, network: Network, life: Life, context: contextvars.Context, address: tuple[str, int]) -> None:
        super().__init__({"peername": address, "sockname": (life.place, 1883), "socket": None})
        self.network, self.life, self.context = network, life, context
        self.protocol: Any = None
        life.ends[self] = None
        self._high, self._low = HIGH, LOW
        self._inbox: deque[bytes] = deque()  # has arrived, and was not read
        self._held = 0  # bytes written to this end, and not read
        self._reading, self._closing, self._gone, self._lost, self._told = True, False, False, False, False
        self._last = 0.0  # when the last bytes arrive: they stay in order
        self._coming: list[bytes] = []  # what arrives then, in one piece

    def run(self, what: Callable[..., object], *args: Any) -> None:
        """Call something of this end soon, in its life."""
        self.network.loop.call_soon(what, *args, context=self.context.copy())

    def accept(self, factory: Callable[[], Any]) -> None:
        """The listener's side."""
        self.protocol = factory()
        self.protocol.connection_made(self)

    # The protocol's side

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not data:
            return
        if self._gone:  # as the kernel says at the second write to a peer that is gone
            self.run(self._lose, ConnectionResetError(104, "Connection reset by peer"))
            return
        peer, network = self.peer, self.network
        peer._held += len(data)
        arrives = network.loop.time() + network.delay()
        if peer._coming and arrives < peer._last + network.grain:
            peer._coming.append(bytes(data))
        else:
            peer._last = max(arrives, peer._last + STEP)
            peer._coming = [bytes(data)]
            network.loop.call_at(peer._last, peer._arrive, peer._coming, context=peer.context.copy())
        self._flow()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._finish(None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        peer = self.peer
        peer._last = max(self.network.loop.time() + self.network.delay(), peer._last + STEP)
        self.network.loop.call_at(peer._last, peer.broken, context=peer.context.copy())
        self.run(self._lose, error)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.run(self._read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low
        self._flow()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return 0 if self._lost else max(0, self.peer._held - SOCKET)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        found: asyncio.BaseProtocol = self.protocol
        return found

    # The network's side

    def _arrive(self, pieces: list[bytes]) -> None:
        if pieces is self._coming:
            self._coming = []
        if self._lost:
            return
        self._inbox.append(b"".join(pieces))
        self._read()

    def _read(self) -> None:
        while self._inbox and self._reading and not self._lost and not self._closing:
            data = self._inbox.popleft()
            self._held -= len(data)
            self.peer._flow()
            self.protocol.data_received(data)
        if self._gone and not self._inbox:
            self.run(self._lose, None)

    def _flow(self) -> None:
        """Pause or resume the protocol that writes at this end."""
        if self._lost or self._closing or self.protocol is None or not self.life.alive:
            return
        size = self.get_write_buffer_size()
        if size > self._high and not self._told:
            self._told = True
            self.run(self._tell, True)
        elif size <= self._low and self._told:
            self._told = False
            self.run(self._tell, False)

    def _tell(self, pause: bool) -> None:
        if not self._lost:
            (self.protocol.pause_writing if pause else self.protocol.resume_writing)()

    def broken(self) -> None:
        """The peer has closed the connection, or is gone, or the path broke. What has arrived is read first, even if that is later."""
        if self._lost or self._gone:
            return
        self._gone = True
        if not self.life.alive:
            self._lost = True
            self.life.ends.pop(self, None)
        elif self._closing or not self._inbox:
            self.run(self._lose, None)
        peer = self.peer
        if not peer._lost and not peer._gone:
            self.network.loop.call_later(self.network.delay(), peer.broken, context=peer.context.copy())

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self.life.ends.pop(self, None)
            if self.protocol is not None:
                self.protocol.connection_lost(error)
