"""One community broker: it owns sessions, router, retained messages, wills, listeners and the mesh's shell.

One event loop owns all state; nothing in the broker waits while it holds something half done. `run` is the blocking entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..base.address import Address, parse_address
from ..base.quoting import quoted
from ..base.refusals import Warnings
from ..base.settings import ConfigError
from ..mesh.topology.tls import encrypted
from ..mqtt.batch.batch import Batch
from ..mqtt.batch.run import Run
from ..mqtt.errors import PeerError
from ..mqtt.reasons import Reason
from ..store import Store, StoreError
from ..store.folder import os_error
from ..store.locations import store_at
from .auth.guard import Guard
from .auth.permissions import Access
from .auth.service import AuthError
from .client.admission import Entrance
from .client.backpressure import Pressure
from .client.connection import Connection
from .config import BrokerConfig
from .embedded.direct import Direct
from .hooks import HookCalls, Hooks
from .monitoring.sys_topics import SysTopics
from .persistence.commits import Durable
from .persistence.recovery import recover
from .ports import Context, Neighbours
from .publish.accept import accept
from .publish.publication import Publication
from .requests.receipts import RequestTopic
from .requests.sessions import SessionTopic
from .routing.retained import Retained
from .routing.router import Route, Router
from .session.table import Sessions
from .transport.in_process import Joint
from .transport.tls.service import TlsService
from .transport.websocket.service import WebSocketService

if TYPE_CHECKING:
    from .auth.settings import AccessSettings
    from .embedded.direct import Guest
    from .mesh.shell import MeshShell
    from .monitoring.http import HttpFace
    from .roaming.shell import Roaming

log = logging.getLogger("mqmesh.broker")

LAST_WORDS = 2.0  # seconds that clients have, when the broker stops, to take what is still to be sent
TICK = 0.5  # seconds between looks at keep-alives, bounds and slow connections


class StartError(Exception):
    """The broker cannot start; one line says why and what would help."""


class Broker:
    """One broker. Make it, `await start()`, later `await stop()`; or use it in an `async with` block.

    store: what keeps its sessions; None: the one that the configuration names, if any.
    hooks: extension points that it calls.
    """

    def __init__(self, config: BrokerConfig, store: Store | None = None, hooks: Sequence[Hooks] = ()) -> None:
        self.config = config
        self.store = store
        self.context = Context(config.limits, Warnings(log))
        self.context.flush = self.flush
        self.context.hooks = HookCalls(hooks) if hooks else None
        self.counters = self.context.counters
        self.account = self.context.account
        self.warnings = self.context.warnings
        access = Access(config.metabroker, self.counters)
        self.router = Router(self.counters, access)
        self.guard = Guard(self.context, access, config.access)
        self.entrance = Entrance(self)
        self.pressure = Pressure(self)
        self.retained = Retained(self.account)
        self.sessions = Sessions(self.context, self.router, self.guard, self._accept_will)
        self.session_topic = SessionTopic(self.context, self.router, self.guard, self.sessions)
        self.connections: set[Connection] = set()
        self.sent_before = 0  # by connections that are gone
        self.received_before = 0
        self.mesh: MeshShell | None = None
        self.durable: Durable | None = None
        self.tls: TlsService | None = None
        self.websocket: WebSocketService | None = None
        self.roaming: Roaming | None = None
        self.http: HttpFace | None = None
        self.registrar: Neighbours | None = None
        self.within: Connection | None = None  # of what runs inside
        self._joint: Joint | None = None
        self.direct: Direct | None = None  # takes single messages to and from what runs inside
        self.addresses: list[str] = []
        self.sys_topics = SysTopics(self)
        self.context.say = self.sys_topics.say
        self._servers: list[asyncio.AbstractServer] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._sockets: list[str] = []
        self._all_lost = asyncio.Event()
        self._all_lost.set()

    # The context's values under the broker's own name, for the rooms that still take the broker

    @property
    def now(self) -> float:
        return self.context.now

    @now.setter
    def now(self, value: float) -> None:
        self.context.now = value

    @property
    def draining(self) -> bool:
        return self.context.stopping

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.context.loop

    @property
    def started(self) -> float:
        return self.context.started

    # Life

    async def start(self) -> None:
        """Listen. Raises StartError."""
        context = self.context
        context.loop = asyncio.get_running_loop()
        context.started = context.refresh()
        try:
            self.guard.start()
        except AuthError as error:
            raise StartError(str(error)) from error
        if self.config.tls is not None:
            try:
                listens = any(encrypted(address) for address in self.config.listen)
                named = self.config.name if self.config.mesh is not None and self.config.mesh.certified else None
                self.tls = TlsService(self.context, self.entrance, self.config.tls, listens, named)
            except (ConfigError, OSError) as error:
                raise StartError(str(error)) from error
        if self.config.mesh is not None:
            from .mesh.shell import MeshShell

            try:
                self.mesh = MeshShell(self, self.config.mesh)
            except OSError as error:  # its identity in the data folder cannot be read or written
                raise StartError(str(os_error(str(self.config.data), error))) from error
            self.router.mesh = self.mesh
            RequestTopic(self.mesh.receipts, self.router)
            self.sessions.in_mesh = True
            if self.config.mesh.clients == "roam":
                from .roaming.shell import Roaming

                mesh = self.mesh
                self.roaming = mesh.roaming = Roaming(
                    self.context,
                    self.router,
                    self.sessions,
                    self.guard,
                    mesh.node,
                    mesh.post,
                    mesh.arrivals.deliver,
                    mesh.settings.roam_wait,
                )
                self.sessions.ended = self.roaming.ended
        self._open_store()
        if any(parse_address(address).websocket for address in self.config.listen):
            self.websocket = WebSocketService(self.context, self.entrance, self.config.websocket.origins, partial(Connection, self))
        for address in self.config.listen:
            await self._listen(address)
        self._open_http()
        if self.tls is not None:
            self.tls.start()
        if self.mesh is not None:
            self.mesh.start()
        self.sys_topics.start()
        self._ticker = self.loop.call_later(TICK, self._tick)

    def _open_store(self) -> None:
        """Find the sessions, queues and retained messages of an earlier life. Raises StartError."""
        store = self.find_store()
        if store is None:
            return
        try:
            offset = self.context.wall() - self.context.loop.time()
            durable = Durable(self.context, self.router, self.sessions, self.retained, store, offset, self.config.store.pending_bytes)
            durable.mesh = self.mesh
            self.durable = self.sessions.store = self.session_topic.durable = durable
            recover(durable, self.guard, self.config.name, self.mesh is not None)
            if self.mesh is not None:
                self.mesh.recover(durable)
        except StoreError as error:
            self.durable = self.sessions.store = None
            raise StartError(str(error)) from error

    def find_store(self) -> Store | None:
        """The store that keeps what must survive, as the configuration names it; None when nothing is kept. Raises StartError."""
        if self.store is None and self.config.store_address is not None:
            try:
                self.store = store_at(self.config.store_address, self.config.store.durability)  # type: ignore[arg-type]
            except StoreError as error:
                raise StartError(str(error)) from error
        return self.store

    def _open_http(self) -> None:
        """Answer `/metrics`, `/health` and `/ready`, if the configuration says where. Raises StartError."""
        if self.config.http is None:
            return
        host, port = self.config.http
        try:
            from .monitoring.http import HttpFace

            self.http = HttpFace(self, host, port)
        except ImportError as error:
            raise StartError(f"http.listen needs more packages: pip install 'mqmesh[http]' ({error})") from error
        except OSError as error:
            raise StartError(f"cannot listen on http://{host}:{port}: {_reason(error)}") from error
        self.http.start()

    async def _listen(self, address: str) -> None:
        parsed = parse_address(address)
        try:
            if parsed.scheme == "unix":
                _remove_stale_socket(parsed.path)
                server: asyncio.AbstractServer = await self.loop.create_unix_server(
                    self.entrance.door(partial(Connection, self)), parsed.path
                )
                self._sockets.append(parsed.path)
                self.addresses.append(address)
            else:
                server = await self.loop.create_server(self._factory(parsed), parsed.host, parsed.port, backlog=1024)
                self.addresses.append(str(parsed._replace(port=server.sockets[0].getsockname()[1])))
        except OSError as error:
            for started in self._servers:
                started.close()
            raise StartError(f"cannot listen on {address}: {_reason(error)}") from error
        self._servers.append(server)

    def _factory(self, address: Address) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocol for each new connection of a listener: the layers between the socket and MQTT."""
        made: Callable[[], asyncio.BaseProtocol] = partial(Connection, self)
        if address.websocket:
            assert self.websocket is not None
            made = partial(self.websocket.accept, address.path)
        if encrypted(str(address)):
            assert self.tls is not None
            made = partial(self.tls.accept, made)
        return self.entrance.door(made)

    def join(self, protocol: asyncio.Protocol, failed: Callable[[Exception], None], guest: Guest | None = None) -> Joint:
        """Connect a client of this process, the metabroker, without a socket. failed: told when the client raises an exception.

        guest: who takes lone requests the short way, if it does.
        """
        connection = Connection(self, inside=True)
        self._joint = Joint(connection, protocol, failed)
        self.within = connection
        self.direct = Direct(self, self._joint, connection, guest) if guest is not None else None
        return self._joint

    def renew_access(self, settings: AccessSettings | None) -> int:
        """Take over users, keys and rules: how many subscriptions they end. Raises AuthError, and changes nothing then."""
        return self.guard.renew(settings, self.connections, self.sessions, self.router.unsubscribe)

    def wall(self) -> float:
        """The wall clock, in seconds."""
        return time.time()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening, tell clients (MQTT 5: 0x8B) and neighbours, keep wills unsent; returns when all connections are gone."""
        self.context.stopping = True
        for server in self._servers:
            server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self.sys_topics.stop()
        self.guard.stop()
        if self.tls is not None:
            self.tls.stop()
        if self.websocket is not None:
            self.websocket.stop()
        if self.mesh is not None:
            self.mesh.stop()
        if self.durable is not None:
            await self.durable.settle(LAST_WORDS)
        for connection in list(self.connections):
            connection.clean_end = True
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "the broker is shutting down")
        self.sessions.stop()
        for path in self._sockets:
            with contextlib.suppress(OSError):
                os.unlink(path)
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._all_lost.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.transport.abort()
            await self._all_lost.wait()
        if self.http is not None:  # it says until the end that the broker is stopping
            await self.http.stop()
        if self.durable is not None:
            self.durable.close()

    def connected(self, connection: Connection) -> None:
        """A network connection was made."""
        self.counters.sockets += 1
        self.connections.add(connection)
        self.entrance.begin(connection, connection.address)
        self._all_lost.clear()

    def lost(self, connection: Connection) -> None:
        """A network connection is gone, or handed over to the mesh."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.entrance.end(connection)
        if self.durable is not None:
            self.durable.abandon(connection)
        if connection.tracker is not None:
            connection.tracker.close()
        self.sent_before += connection.sent
        self.received_before += connection.received
        self.pressure.forget(connection)
        if not self.connections:
            self._all_lost.set()

    def dismiss(self, connection: Connection, error: Exception | None) -> None:
        """A connection is closed, from this side or the other: its session goes on without it or ends."""
        session = connection.session
        if session is None:
            return
        log.info(
            "event=disconnect client=%s address=%s clean=%s error=%s",
            quoted(connection.client_id),
            connection.address,
            connection.clean_end,
            error or "-",
        )
        self.now = self.loop.time()
        if session.connection is connection:
            self.sessions.leave(session, connection.clean_end)

    def _tick(self) -> None:
        self.now = self.loop.time()
        for connection in list(self.connections):
            connection.check(self.now)
        self.pressure.check(self.connections)
        self.retained.sweep(self.now)
        self.sessions.publish_late_wills()
        self.router.look_at_groups()
        if self.durable is not None:
            self.durable.tick()
        if self.roaming is not None:
            self.roaming.tick()
        self.flush()
        self._ticker = self.loop.call_later(TICK, self._tick)

    # Output

    def flush(self) -> None:
        """Write what connections were given since the last flush, each with one call, then let the store begin to commit.

        The commit comes last: its thread takes the interpreter's lock, and what is to be written would wait for it.
        """
        if self.mesh is not None:
            self.mesh.drain()
        if self.roaming is not None:
            self.roaming.settle()
        if self.durable is not None:
            self.durable.flush()
        self.write()
        if self.durable is not None:
            self.durable.begin_commit()

    def write(self) -> None:
        """Write what connections were given and need not wait for anything."""
        context = self.context
        touched = context.touched
        if not touched:
            return
        context.touched = []
        counters = self.counters
        for connection in touched:
            out = connection.out
            if not out or connection.closing:
                continue
            connection.out = []
            data = out[0] if len(out) == 1 else b"".join(out)
            counters.bytes_sent += len(data)
            connection.transport.write(data)
        if counters.bytes_sent > self.pressure.check_at:
            self.pressure.check(self.connections)

    def hand_over(self) -> None:
        """Give what runs inside its part of what has come. Before a flush, with which its answers leave then."""
        assert self.within is not None
        assert self._joint is not None
        self._joint.pump_after(self.within.flush)

    @property
    def next_commit(self) -> int:
        """The ticket of the commit that holds what is changed now; 0 without a store."""
        return self.durable.next_commit if self.durable is not None else 0

    # Messages

    def _accept_will(self, run: Run, route: Route) -> bool:
        """Take a will. False: there is no room."""
        return accept(self, run, route, Publication())

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Publish a message of the program's own, past the rules of access; to be called in the event loop.

        ValueError for a topic with wildcards or one that begins with `$SYS/` or `$mqmesh/`, RuntimeError while there is no room for it.
        """
        context = self.context
        run = Run(topic.encode(), qos, retain, [payload], received=context.refresh())
        try:
            route = self.router.routes.get(run.topic) or self.router.route(run.topic)
        except PeerError as error:
            raise ValueError(f"{topic!r}: {error.text}") from None
        if not route.writable:
            raise ValueError(f"{topic!r}: topics that begin with $SYS/ or $mqmesh/ belong to the broker")
        if not self._accept_will(run, route):
            raise RuntimeError(f"{topic!r}: there is no room for the message")
        context.flush()

    def issue(self, run: Run) -> None:
        """Publish a message of the broker itself: a value below `$SYS`."""
        route = self.router.routes.get(run.topic) or self.router.route(run.topic)
        self.router.deliver(run, route, Publication())
        if run.retain:
            self.retain(run)

    def retain(self, run: Batch) -> bool:
        """Keep or delete a topic's retained message. False: the broker holds too much already (counted).

        What a mesh shares its shell has kept, or not, for all sites alike.
        """
        if (self.mesh is not None and not run.topic.startswith(b"$")) or self.retained.store(run):
            return True
        self.counters.dropped += 1
        return False


def _remove_stale_socket(path: str) -> None:
    """A Unix socket that nobody listens on is left over from a broker that died."""
    import socket

    if not Path(path).is_socket():
        return
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(path)
    except ConnectionRefusedError:
        os.unlink(path)
    except OSError:
        pass
    finally:
        probe.close()


def _reason(error: OSError) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return "the address is taken by another program; give another port, or port 0 for any free one"
    if error.errno == errno.EACCES:
        return "not permitted; ports below 1024 need privileges"
    return error.strerror or str(error)
