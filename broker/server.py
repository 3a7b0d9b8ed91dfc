"""One community broker: it owns sessions, router, retained messages, wills, listeners and the mesh's shell.

One event loop owns all state; nothing in the broker waits while it holds something half done. `run` is the blocking entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..base.address import Address, parse_address, why_not_listening
from ..base.extras import install
from ..base.interchange import clients_of
from ..base.refusals import Warnings
from ..base.settings import ConfigError
from ..mesh.topology.listeners import CLIENTS, serves_of
from ..mesh.topology.tls import encrypted
from ..mqtt.batch.run import Run
from ..mqtt.errors import PeerError
from ..mqtt.reasons import Reason
from ..store import Store, StoreError
from ..store.folder import make_folder, os_error, words
from ..store.locations import store_at
from .attach.shell import Attachments
from .auth.accounts import account_of
from .auth.guard import Guard
from .auth.permissions import Access
from .auth.service import AuthError
from .client.admission import Admission
from .client.backpressure import Backpressure
from .client.connection import Connection
from .config import BrokerConfig
from .embedded.direct import Direct
from .hooks import HookCalls, Hooks
from .journal.service import Journal
from .management.broker_lists import add_lists, add_mesh_lists, add_queue_lists
from .management.deeds import Deeds, add_mesh_deeds, add_recipient_deeds
from .management.events import Events
from .management.lists.settings import LogTail
from .management.queue_deeds import add_queue_deeds
from .management.service import Management as ManagementService
from .monitoring.sys_topics import SysTopics
from .persistence.commits import Persistence
from .persistence.recovery import recover, stored_clock
from .ports import Context
from .publish.accept import accept_own
from .requests.mesh import MeshTopic
from .requests.queues import QueueTopic
from .requests.receipts import RequestTopic
from .requests.recipients import RecipientTopic
from .requests.sessions import SessionTopic
from .requests.trace import TraceTopic
from .routing.publication import OwnPublication, Publication
from .routing.retained import Retained
from .routing.router import Route, Router
from .session.table import Sessions
from .site import Site
from .steady import JUMP, Noted, SteadyClock
from .transport.in_process import InProcessPair
from .transport.tls.service import TlsService
from .transport.websocket.service import WebSocketService
from .write_rounds import WRITE_BYTES, WRITES, WriteBacklog

if TYPE_CHECKING:
    from ..mesh.topology.settings import MeshSettings
    from .auth.settings import AccessSettings
    from .embedded.direct import Guest
    from .ledger import Account
    from .monitoring.http import HttpFace

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
        self.context = context = Context(config.limits, Warnings(log))
        context.flush, context.write = self.flush, self.write
        context.workers = config.worker.total if config.worker is not None else 1
        context.hooks = HookCalls(hooks) if hooks else None
        inside = [one.session for one in config.attach] + (clients_of(config.name) if config.interchange is not None else [])
        access = Access(config.metabroker, context.counters, frozenset(inside))
        router = Router(context.counters, access, context.ledger)
        guard = router.rules = Guard(context, access, config.access)
        self.site = site = Site(config, context, router, guard, Retained(context.ledger))
        site.sessions = Sessions(context, router, guard, self._accept_will)
        site.admission = self.admission = Admission(site)
        site.backpressure = Backpressure(site)
        self.mesh_topic = MeshTopic(router, guard)
        self.recipient_topic = RecipientTopic(router, guard)
        self.queue_topic = QueueTopic(context, router, guard)
        self.session_topic = SessionTopic(context, router, guard, site.sessions)
        self.trace_topic = TraceTopic(context, router, guard, config.number, config.name)
        guard.management, guard.site = config.management, config.name
        self.management = ManagementService(site)
        add_lists(self.management.work, site)
        add_queue_lists(self.management.work, site, lambda: self.queue_topic.overview)
        self.deeds = Deeds(site, self.publish)
        self.deeds.register(self.management.work)
        add_queue_deeds(self.management.work, self.queue_topic.order, context)
        Events(site)
        self.log_tail = LogTail()
        self.management.work.lists.add(self.log_tail.listing())
        self.http: HttpFace | None = None
        self.journal: Journal | None = None
        self.addresses: list[str] = []
        self.attachments = site.attachments = Attachments(config.attach, site, self.connect_inside)
        self.sys_topics = SysTopics(site, self.issue)
        context.say = self.sys_topics.say
        self._servers: list[asyncio.AbstractServer] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._due = 0.0  # when it fires
        self._looks = False
        self._backlog = WriteBacklog(context)
        self._sockets: list[str] = []

    # Life

    async def start(self, prepare: Callable[[], None] | None = None) -> None:
        """Listen. prepare: is called before, when sessions and queues are found. Raises StartError."""
        context = self.context
        if self.config.workers > 1 and self.config.worker is None:
            raise StartError("workers are processes that `mqmesh broker` starts: a program that has a broker inside leaves them out")
        context.loop = asyncio.get_running_loop()
        context.started = context.refresh()
        context.turns.loop, context.turns.after = context.loop, context.flush
        try:
            self.site.guard.start()
        except AuthError as error:
            raise StartError(str(error)) from error
        if self.config.tls is not None:
            try:
                listens = any(encrypted(address) for address in self.config.listen)
                named = self.config.name if self.config.mesh is not None and self.config.mesh.certified else None
                self.site.tls = TlsService(self.context, self.admission, self.config.tls, listens, named)
            except (ConfigError, OSError) as error:
                raise StartError(str(error)) from error
        if self.config.data is not None:
            try:
                make_folder(self.config.data, str(self.config.data))
            except StoreError as error:
                raise StartError(str(error)) from error
        store = self.find_store()
        if self.config.queues is not None and self.config.queues.shared:
            from .queues.sharing import common_clock

            context.common = await asyncio.to_thread(common_clock, self.config.queues)
        self._set_clock(None if store is None else stored_clock(store))
        if self.config.mesh is not None:
            self._enter_mesh(self.config.mesh)
        self._open_journal()
        self._watch_recipients()
        self._open_queues()
        self._open_store()
        if self.site.recipients is not None:
            try:
                self.site.recipients.start(self.site.persistence)
            except StoreError as error:
                raise StartError(str(error)) from error
        if prepare is not None:
            prepare()
        if any(parse_address(address).websocket for address in self.config.listen):
            self.site.websocket = WebSocketService(
                self.context, self.admission, self.config.websocket.origins, partial(Connection, self.site, serves=CLIENTS)
            )
        for address in self.config.listen:
            await self._listen(address)
        self._open_http()
        if self.site.tls is not None:
            self.site.tls.start()
        if self.site.mesh is not None:
            self.site.mesh.start()
        self.sys_topics.start()
        self.log_tail.begin()
        self.attachments.start()
        self._wait_for_tick()

    def _set_clock(self, noted: Noted | None) -> None:
        """Go on with the time of the life before this one, if there was one."""
        context = self.context
        now, wall = context.refresh(), context.reference()
        context.clock = SteadyClock(now, wall)
        if noted is not None and (back := context.clock.resume(noted, now, wall)) <= -JUMP:
            self._clock_jumped(back)

    @staticmethod
    def _clock_jumped(seconds: float) -> None:
        log.warning(
            "event=clock-jumped seconds=%+.1f text=%s",
            seconds,
            "somebody or a time service has set the clock, or the machine has slept: delays, expiries and retries go on as if it had not; "
            "compare it with the clocks of the other sites",
        )

    def _look_at_clock(self) -> None:
        context = self.context
        if self.site.queues is not None:
            self.site.queues.sharing.look_at_clock()
        now, wall = context.loop.time(), context.reference()
        if context.loop.time() - now > TICK:  # the process was stopped between the two
            return
        if jumped := context.clock.look(now, wall):
            self._clock_jumped(jumped)
            if self.site.persistence is not None:
                self.site.persistence.note_time()
        if self.site.mesh is not None:
            self.site.mesh.node.set_kept_offset(context.clock.offset(now))

    def _enter_mesh(self, settings: MeshSettings) -> None:
        """Be a broker of a mesh; links come up with its `start`. Raises StartError."""
        from .mesh.management import Management
        from .mesh.shell import MeshShell

        site, store = self.site, self.find_store()
        try:
            mesh = MeshShell(
                self.context, self.config, settings, site.router, site.retained, site.sessions, site.connections, store, self.admission
            )
        except OSError as error:  # its identity in the data folder cannot be read or written
            raise StartError(str(os_error(str(self.config.data), error))) from error
        except ValueError as error:  # it is damaged
            raise StartError(str(error)) from error
        site.mesh = site.router.mesh = mesh
        mesh.tls, mesh.registrar = site.tls, site.registrar
        self.management.join_mesh(mesh)
        add_mesh_lists(self.management.work, mesh)
        self.mesh_topic.management = Management(mesh)
        add_mesh_deeds(self.management.work, self.mesh_topic.management)
        RequestTopic(mesh.receipts, site.router)
        site.sessions.in_mesh = True
        if settings.clients == "roam":
            from .roaming.shell import Roaming

            node, deliver, wait = mesh.node, mesh.incoming.deliver, mesh.settings.roam_wait
            roaming = Roaming(self.context, site.router, site.sessions, site.guard, node, mesh.peer_messages, deliver, wait)
            site.roaming = mesh.roaming = roaming
            site.sessions.ended = roaming.ended

    def _open_journal(self) -> None:
        """Begin to write down what happens, if the configuration says where. Raises StartError."""
        config, site = self.config, self.site
        if config.journal is None:
            return
        accounts = config.access.accounts if config.access is not None else {}
        try:
            self.journal = Journal(config.journal, self.context, config.number, lambda user: account_of(accounts, user) or "")
            self.journal.start(site.mesh.identity.epoch if site.mesh is not None else int(self.context.wall() * 1000))
        except ImportError as error:
            raise StartError(f"a journal needs more packages: {install('journal')} ({error})") from error
        except ValueError as error:
            raise StartError(f"journal: {error}") from error
        except OSError as error:
            raise StartError(f"journal: {words(error, config.journal.root)}") from error
        site.router.journal, site.router.noting = self.context.journal, self.journal.noting
        self.trace_topic.recent = self.journal.recent()
        self.trace_topic.account_of = lambda user: account_of(accounts, user) or ""
        if site.mesh is not None and self.context.journal is not None and self.context.journal.topics.full:
            site.mesh.node.tapped(self.context.journal)

    def _wait_for_tick(self) -> None:
        self._due = self.context.loop.time() + TICK
        self._ticker = self.context.loop.call_at(self._due, self._tick)

    def _watch_recipients(self) -> None:
        """Be ready to watch recipients, if the configuration has a table for them."""
        settings = self.config.recipients
        if settings is None:
            return
        from .recipients.overview import Overview
        from .recipients.registered import DirectoryRecipients
        from .recipients.shell import Recipients

        site, mesh = self.site, self.site.mesh
        number = mesh.node.identity.number if mesh is not None else max(0, self.config.number)
        site.recipients = Recipients(
            self.context, settings, number, self.config.name, site.router, site.sessions, site.guard, self._accept_own, self.issue
        )
        if site.registrar is not None:
            site.recipients.directory = DirectoryRecipients(site.registrar.applications, settings, site.recipients, site.sessions)
        site.overview = self.recipient_topic.administration = Overview(site.recipients)
        add_recipient_deeds(self.management.work, site.overview)
        if mesh is not None:
            mesh.recipients = site.recipients
            site.recipients.join_mesh(mesh.node, mesh.peer_messages)

    def _open_queues(self) -> None:
        """Find the queues of an earlier life, if the configuration has a table for them. Raises StartError."""
        settings, mesh = self.config.queues, self.site.mesh
        if settings is None and mesh is None:
            return
        from .publish.bound import Bindings
        from .queues.declared.declaring import Declarations
        from .queues.overview import Overview as QueueOverview
        from .queues.settings import QueueSettings
        from .queues.shell import Queues

        settings = settings or QueueSettings()
        settings.site = self.config.name
        queues = Queues(self.context, settings, self.site.router.filters_changed)
        try:
            queues.start()
        except OSError as error:
            raise StartError(f"queues: {os_error(str(settings.folder), error)}") from error
        except (ConfigError, ImportError) as error:
            raise StartError(str(error)) from error
        self.site.queues = self.site.router.queues = queues
        queues.publish = self._publish_due
        self.queue_topic.overview, self.queue_topic.accept = QueueOverview(queues, self.config.name), self._accept_own
        self.site.sessions.parted = queues.temporary.ended
        if self.config.queues is not None:
            self.queue_topic.declarations = Declarations(queues, self.config.name)
            queues.bind = Bindings(self.site, queues).bind
            for name, rules in queues.settings.rules.items():
                queues.bind(name, rules.topics)
        if mesh is not None:
            mesh.queues = queues.sites
            self.queue_topic.elsewhere, self.queue_topic.home = queues.ask_home, queues.sites.home_name
            self.queue_topic.site_name = queues.sites.site_name
            queues.sites.asking.carry_out = self.queue_topic.carry_out
            queues.sites.join_mesh(mesh.node, mesh.peer_messages, mesh.settings.clients == "roam")
            queues.temporary.number = mesh.node.identity.number

    def _open_store(self) -> None:
        """Find the sessions, queues and retained messages of an earlier life. Raises StartError."""
        store = self.find_store()
        if store is None:
            return
        try:
            persistence = Persistence(
                self.context, self.site.router, self.site.sessions, self.site.retained, store, self.config.store.pending_bytes
            )
            persistence.mesh = self.site.mesh
            if self.site.queues is not None:
                self.site.queues.answers.persistence = persistence
            self.site.persistence = self.site.sessions.store = self.session_topic.persistence = persistence
            recover(persistence, self.site.guard, self.config.name, self.site.mesh is not None)
            if self.site.queues is not None:
                self.site.queues.sites.start(persistence, self.site.queues.store.parcels)
            self.site.handles.restore(store)
            self.site.handles.persistence = persistence
            if self.site.mesh is not None:
                self.site.mesh.recover(persistence)
        except StoreError as error:
            self.site.persistence = self.site.sessions.store = None
            store.close()  # so that it can be salvaged
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
        """Answer `/metrics`, `/health`, `/ready` and `/manage`, if the configuration says where. Raises StartError."""
        address, certificate = self.config.http, None
        if address is None:
            return
        if address.tls:
            tls = self.config.tls
            if tls is None or tls.certificate is None:
                raise StartError("http.listen: https needs the broker's certificate: give [tls]")
            if tls.key_password_file is not None:
                raise StartError("http.listen: https needs a key without a password: leave out tls.key_password_file")
            certificate = str(tls.certificate), str(tls.key)
        try:
            from .management.http import management_routes
            from .monitoring.http import HttpFace

            more = management_routes(self.site, self.management, address)
            self.http = HttpFace(self.site, self.sys_topics.broker_totals, address.host, address.port, more, certificate)
        except ImportError as error:
            raise StartError(f"http.listen needs more packages: {install('http')} ({error})") from error
        except OSError as error:
            raise StartError(f"cannot listen on {address}: {why_not_listening(error)}") from error
        self.http.start()

    async def _listen(self, address: str) -> None:
        parsed = parse_address(address)
        try:
            if parsed.scheme == "unix":
                _remove_stale_socket(parsed.path)
                server: asyncio.AbstractServer = await self.context.loop.create_unix_server(
                    self.admission.door(self._connections(address)), parsed.path
                )
                self._sockets.append(parsed.path)
                self.addresses.append(address)
            else:
                server = await self.context.loop.create_server(
                    self._factory(parsed, self._connections(address)),
                    parsed.host,
                    parsed.port,
                    backlog=1024,
                    reuse_port=True if self.config.worker is not None else None,
                )
                self.addresses.append(str(parsed._replace(port=server.sockets[0].getsockname()[1])))
        except OSError as error:
            for started in self._servers:
                started.close()
            raise StartError(f"cannot listen on {address}: {why_not_listening(error)}") from error
        self._servers.append(server)

    def _connections(self, address: str) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the connections of a listener, which know whom it serves, and its name."""
        listener = self.config.listeners.get(address, "")
        return partial(Connection, self.site, serves=serves_of(address, self.config.serves), listener=listener)

    def _factory(self, address: Address, made: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocol for each new connection of a listener: the layers between the socket and MQTT, which `made` makes."""
        if address.websocket:
            assert self.site.websocket is not None
            made = partial(self.site.websocket.accept, address.path)
        if encrypted(str(address)):
            assert self.site.tls is not None
            made = partial(self.site.tls.accept, made)
        return self.admission.door(made)

    def join(self, protocol: asyncio.Protocol, failed: Callable[[Exception], None], guest: Guest | None = None) -> InProcessPair:
        """Connect a client of this process, the metabroker, without a socket. failed: told when the client raises an exception.

        guest: takes single requests on the direct lane, if it does so.
        """
        connection = Connection(self.site, inside=True)
        pair = InProcessPair(connection, protocol, failed)
        self.site.joined(pair, connection)
        self.site.direct = Direct(self.site, pair, connection, guest) if guest is not None else None
        return pair

    def connect_inside(self, protocol: asyncio.Protocol, failed: Callable[[Exception], None]) -> InProcessPair:
        """Connect another client of this process, for an attached broker. failed: see `join`."""
        return InProcessPair(Connection(self.site, inside=True), protocol, failed)

    def connect_for(
        self,
        protocol: asyncio.Protocol,
        peer: tuple[str, int] | None,
        failed: Callable[[Exception], None],
        secure: bool = False,
        speaks: str = "",
    ) -> InProcessPair:
        """Connect a client of this process that acts for somebody else, who logs in and is bounded as any client.

        peer: where that one comes from. failed: see `join`. secure: over TLS. speaks: by which protocol.
        """
        return InProcessPair(self.admission.door(partial(Connection, self.site, serves=CLIENTS))(), protocol, failed, peer, secure, speaks)

    def renew_access(self, settings: AccessSettings | None) -> int:
        """Take over users, keys and rules: how many subscriptions they end. Raises AuthError, and changes nothing then."""
        ended = self.site.guard.renew(settings, self.site.connections, self.site.sessions, self.site.router.unsubscribe)
        self.site.router.rules_changed(self.site.sessions)
        return ended

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening, tell clients (MQTT 5: 0x8B) and neighbours, keep wills unsent; returns when all connections are gone."""
        self.context.stopping = True
        await self.attachments.stop()
        self.trace_topic.stop()
        self.management.stop()
        for server in self._servers:
            server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self.sys_topics.stop()
        self.log_tail.end()
        self.site.guard.stop()
        if self.site.tls is not None:
            self.site.tls.stop()
        if self.site.websocket is not None:
            self.site.websocket.stop()
        if self.site.mesh is not None:
            self.site.mesh.stop()
        if self.site.recipients is not None:
            self.site.recipients.stop()
        if self.site.persistence is not None:
            await self.site.persistence.settle(LAST_WORDS)
        if self.site.queues is not None:
            await self.site.queues.settled(LAST_WORDS)
        for connection in list(self.site.connections):
            connection.clean_end = True
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "the broker is shutting down")
        self.site.sessions.stop()
        for path in self._sockets:
            with contextlib.suppress(OSError):
                os.unlink(path)
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self.site.all_lost.wait()
        except TimeoutError:
            for connection in list(self.site.connections):
                connection.transport.abort()
            await self.site.all_lost.wait()
        if self.site.queues is not None:
            self.site.queues.stop()
        if self.http is not None:  # it says until the end that the broker is stopping
            await self.http.stop()
        if self.site.persistence is not None:
            self.site.persistence.close()
        if self.journal is not None:
            journal, self.journal = self.journal, None
            node = self.site.mesh.node if self.site.mesh is not None else None
            journal.finish(list(self.site.connections), node)
            await asyncio.to_thread(journal.stop)

    def _tick(self) -> None:
        try:
            self._look()
        finally:  # also after a mistake, which the loop logs
            self._wait_for_tick()

    def _look(self) -> None:
        """What is looked at from time to time."""
        now = self.context.refresh()
        self.context.turns.current = self.context.turns.broker
        self.context.turns.tick(now - self._due)
        self._look_at_clock()
        self._looks = not self._looks
        if self._looks:  # each connection is looked at once a second, in one way in a tick and in the other in the next one
            self.site.look_at_connections()
        else:
            self.site.backpressure.check(self.site.connections)
        self.site.guard.tick(now, self.site.connections)
        if self.site.retained.due(now):
            turns = self.context.turns
            turns.run(turns.broker, self.site.retained.sweep(now), "work=retained-expiry")
        self.site.sessions.publish_late_wills()
        self.site.router.look_at_groups()
        if self.site.persistence is not None:
            self.site.persistence.tick()
        if self.site.roaming is not None:
            self.site.roaming.tick()
        if self.site.recipients is not None:
            self.site.recipients.tick()
        if self.site.queues is not None:
            self.site.queues.tick()
        if self.journal is not None:
            self.journal.tick(self.site.connections, self.site.mesh.node if self.site.mesh is not None else None)
        self.flush()

    # Output

    def flush(self) -> None:
        """Write what connections were given since the last flush, each with one call, then let the store begin to commit.

        The commit comes last: its thread takes the interpreter's lock, and what is to be written would wait for it.
        """
        if self.site.mesh is not None:
            self.site.mesh.drain()
        if self.site.roaming is not None:
            self.site.roaming.settle()
        if self.site.recipients is not None:
            while self.site.recipients.settle() and self.site.mesh is not None:
                self.site.mesh.drain()
        if self.site.queues is not None:
            while self.site.queues.settle() and self.site.mesh is not None:
                self.site.mesh.drain()
        if self.site.persistence is not None:
            self.site.persistence.flush()
            while self.site.queues is not None and self.site.queues.publishers.early and self.site.queues.settle():
                pass  # what a commit let go of
        self.write()
        if self.site.persistence is not None:
            self.site.persistence.begin_commit()
        if self.site.queues is not None:
            self.site.queues.begin_commit()

    def write(self) -> None:
        """Write what connections were given and need not wait for anything."""
        context = self.context
        touched = context.touched
        if not touched:
            return
        context.touched = []
        if len(touched) > WRITES:
            self._backlog.add(touched[WRITES:])
            del touched[WRITES:]
        counters = self.context.counters
        most = counters.bytes_sent + WRITE_BYTES
        rest = iter(touched)
        for connection in rest:
            out = connection.out
            if not out or connection.closing:
                continue
            connection.out = []
            data = out[0] if len(out) == 1 else b"".join(out)
            counters.bytes_sent += len(data)
            if connection.inside:
                connection.transport.hand(data)
            else:
                connection.transport.write(data)
            if counters.bytes_sent > most and (left := list(rest)):
                self._backlog.add(left)
        if counters.bytes_sent > self.site.backpressure.check_at:
            self.site.backpressure.check(self.site.connections)

    # Messages

    def _accept_will(self, run: Run, route: Route, account: Account | None = None) -> bool:
        """Take a will. account: of its session. False: there is no room."""
        return self._take(run, route, Publication(account=account))

    def _accept_own(self, run: Run, route: Route) -> bool:
        """Take a message of the broker's own. False: there is no room for it, or for a part of it."""
        publication = OwnPublication()
        return self._take(run, route, publication) and not publication.refused

    def _take(self, run: Run, route: Route, publication: Publication) -> bool:
        if route.queue is not None:
            return self._put(run, route.queue)
        return accept_own(self.site, run, route, publication)

    def _publish_due(self, run: Run) -> bool:
        """Take a message whose delay is over. False: there is no room for it."""
        route = self.site.router.routes.get(run.topic) or self.site.router.route(run.topic)
        return self._accept_own(run, route)

    def _put(self, run: Run, name: str) -> bool:
        """Put a message that no client sends into a queue. False: there is no room. name: "": there is no such queue: it is dropped."""
        queues = self.site.queues
        if queues is None or not name:
            self.context.counters.dropped += run.count
            return True
        return queues.publishers.put_own(name, self.config.name, run)

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Publish a message of the program's own, past the rules of access; to be called in the event loop.

        ValueError for a topic with wildcards, or one that begins with `$SYS/` or `$mqmesh/` or names no queue; RuntimeError while there
        is no room for it.
        """
        context = self.context
        run = Run(topic.encode(), qos, retain, [payload], received=context.refresh())
        try:
            route = self.site.router.routes.get(run.topic) or self.site.router.route(run.topic)
        except PeerError as error:
            raise ValueError(f"{topic!r}: {error.text}") from None
        if not (route.writable or route.queue):
            raise ValueError(
                f"{topic!r}: topics that begin with $SYS/ or $mqmesh/ belong to the broker, and below $queue/ are only its queues"
            )
        if not self._take(run, route, OwnPublication()):
            raise RuntimeError(f"{topic!r}: there is no room for the message")
        context.flush()

    def issue(self, run: Run) -> None:
        """Publish a message of the broker itself: a value below `$SYS`."""
        route = self.site.router.routes.get(run.topic) or self.site.router.route(run.topic)
        self.site.router.deliver(run, route, Publication())
        if run.retain:
            self.site.retain(run)


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
