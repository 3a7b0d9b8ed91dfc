"""The metabroker as a process: the community's connection, a connection for each remote, and the core between them.

All of it runs in one event loop. What the core wants is carried out after each chunk of bytes, then every connection that has something
to say writes once. When the community takes messages more slowly than the remotes send them, the remotes are read no longer until it
has caught up; when a remote does, requests to publish there are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from ...base.address import REMOTE, parse_address
from ...base.metabroker import PEER, REQUEST, Code
from ...base.quoting import quoted
from ...base.refusals import Refusals
from ...mqtt.packets import Publish
from ...store.base import Kind, StoreError
from ..connectors.connector import Connector, Owner
from ..core.actions import (
    Action,
    AfterCommit,
    Close,
    Deliver,
    DeliverMany,
    LogLine,
    Open,
    ReadPage,
    Resolve,
    Respond,
    RespondMany,
    Send,
    SendMany,
    Subscribe,
    Unsubscribe,
)
from ..core.batch_path import BatchPath
from ..core.core import Core
from ..core.restore import adopt, restore
from ..mqtt.connection import Connection
from ..peers.members import reaches_of
from ..peers.roster import BEAT, RANDOM, Roster
from ..policy import Policy
from ..protocol.events import BatchSettled, Dropped, Event, Message, Published, State, Subscribed, Trouble, Up
from ..protocol.messages import IncomingRun
from ..sealing import SealError
from . import status
from .community import Community
from .deliveries import PendingDelivery, PendingRun
from .direct import Singles
from .make_connector import make_connector
from .resolver import Resolver
from .service_addresses import ServiceAddresses
from .session_store import Later, SessionStore
from .status import Reporter

if TYPE_CHECKING:
    from .homes import Homes, TakenHome

log = logging.getLogger(__name__)
TICK = 0.5  # seconds
LOOK = 2.0  # seconds between two looks for sessions of metabrokers that are gone
LEAVING = 2.0  # seconds for connections to be left
AT_ONCE = 32  # remotes that are lost whose sessions are told in one turn of the loop, or that are left in one
FAULT_PAUSE = 5.0  # seconds after a fault of a connector
UNHEARD = "other metabrokers beside this broker are not noticed: let this client publish and subscribe there, or run one"
NAMES = "give each a --id of its own"
STRANGER = "it does not take this client for the metabroker: see its access rules and this client's identifier and password"
TOPIC, PEERS = 65_535, 65_534  # tokens of the community subscriptions


P = ParamSpec("P")


def _guarded(method: Callable[Concatenate[Server, P], None]) -> Callable[Concatenate[Server, P], None]:
    """For what is called from outside: after an exception nobody knows what state the metabroker is in, so it ends."""

    @wraps(method)
    def call(self: Server, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.failed.done():
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.fail(error)

    return call


class Server:
    """One metabroker; `open` makes it.

    on_ready: is called when it has subscribed at the community broker for the first time.
    store: of its sessions; None: they are not stored.
    """

    def __init__(
        self, community: Community, policy: Policy, resolver: Resolver, on_ready: Callable[[], None], store: SessionStore | None = None
    ) -> None:
        self._now = asyncio.get_running_loop().time
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store = store
        changes = self._store.writer if self._store is not None else None
        number = self._store.number if self._store is not None else None
        self.roster = Roster(number or secrets.randbits(32), reaches_of(policy), community.place, community.inside or "", joining=True)
        self.roster.patient = community.patient
        self._homes = self._store.homes if self._store is not None else None
        self._looking = False
        self._next_look = 0.0
        self._unseen = self._unheard = False  # homes, other metabrokers: what the log says
        self.core = Core(policy, self._new_id, changes, time.time() - self._now(), self.roster)
        if self._homes is not None:
            self.roster.share()
            self.core.ours = self._homes.holds
        if self._store is not None and self.core.persistence is not None:
            self.core.persistence.sealer = self._store.sealer
        self._limits = policy.limits
        self._beside = community
        self._warned = Refusals(log)
        self._on_ready: Callable[[], None] | None = on_ready
        self.community = community.connection(self._on_community, self._community_down, self.fail)
        self.remotes: dict[int, Connector] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._down: dict[int, tuple[bool | None, str]] = {}  # remotes that are lost, which the core does not know yet: refused, text
        self._others: set[asyncio.Task[None]] = set()  # lookups, and connections that are being left
        self._groups: dict[int, PendingDelivery] = {}
        self._runs: dict[int, PendingRun] = {}
        self.batch_path = BatchPath(self.core, community.login.version)
        self.direct: Singles | None = None
        if self.community.inside:
            self.direct = self.community.guest = Singles(self)
        self._dirty: set[int] = set()  # remotes with something to write
        self._token = TOPIC
        self._paused = False
        self._services = ServiceAddresses(resolver, self.core, self.remotes, self._limits.connect, self._spawn, self._carry_out)
        self._inside = community.inside
        self._reporter = Reporter(community.status, self.community)
        self._later: Later = []  # once what has been put is kept
        self.community.forget = self._store is None
        if self._store is not None:
            self._store.on_committed = self._on_committed

    @classmethod
    async def open(
        cls,
        community: Community,
        policy: Policy,
        resolver: Resolver,
        on_ready: Callable[[], None],
        data: Path | str | None = None,
        key_file: Path | None = None,
    ) -> Server:
        """A metabroker as it was when it ended. data: the folder where it keeps its sessions, or the URL of a database that others take
        them over from; None: nowhere. key_file: see `SessionStore`. Raises StoreError."""
        if data is None:
            return cls(community, policy, resolver, on_ready)
        store = await asyncio.to_thread(SessionStore, data, asyncio.get_running_loop(), key_file)
        try:
            server = cls(community, policy, resolver, on_ready, store)
            await asyncio.to_thread(restore, server.core, store.database, server._now())
        except SealError as error:
            store.close()
            raise StoreError(Kind.OTHER, store.database.name, str(error)) from None
        except BaseException:
            store.close()
            raise
        store.keep(server._outdone)
        return server

    def _outdone(self) -> None:
        """Another metabroker has our sessions, and their connections to remotes."""
        self.fail(StoreError(Kind.BUSY, "metabroker.data", "another metabroker has taken the sessions over"))

    def _new_id(self) -> str:
        return self.roster.new_session(secrets.token_bytes(RANDOM))

    def fail(self, error: Exception) -> None:
        """A fault of ours: `run` ends with it, and until then nothing is done any more."""
        if not self.failed.done():
            self.failed.set_exception(error)
            with contextlib.suppress(Exception):
                self.leave()

    async def run(self) -> None:
        """Until it is cancelled, or has a fault. Every connection is left in order; with a folder for data sessions stay, here and at the
        remotes. Raises the fault."""
        try:
            self._carry_out()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.community.run(), name="community")
                group.create_task(self._tick(), name="tick")
                group.create_task(self._beat(), name="beat")
                group.create_task(self._watch(), name="watch")
        except Exception as error:
            self.fail(error)
            raise
        finally:
            if self.failed.done():
                self.failed.exception()  # it has been seen
            await self._end()

    async def _watch(self) -> None:
        await asyncio.shield(self.failed)  # what comes while everything is left in order is still taken

    async def _end(self) -> None:
        """Leave the remotes, and keep what is to be kept."""
        try:
            for remote in self.remotes.values():
                remote.forget = self._store is None
            tasks = [*self._tasks.values(), *self._others]
            for number, task in enumerate(tasks):
                task.cancel()
                if number % AT_ONCE == AT_ONCE - 1:
                    await asyncio.sleep(0)  # they leave, and then everybody else has a turn
            if tasks:
                await asyncio.wait(tasks, timeout=LEAVING)
        finally:
            self._services.end()
            if self._store is not None:
                await self._store.settle()
                self._store.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._on_tick()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self._on_beat()

    @_guarded
    def _on_beat(self) -> None:
        now = self._now()
        self.roster.tick(now)
        self._say_heard()
        taken = self.community.taken and self._store is None  # with a store it may be a copy of ours: that has to stand by
        if (self.roster.twin or taken) and not self.community.inside and not self.community.machine.tells:
            self._make_room()
        if self._homes is not None and not self._looking and (self.roster.seeks or now >= self._next_look):
            self._looking, self._next_look = True, now + LOOK
            self._spawn(self._look_for_homes(self._homes))
        self._carry_out()

    async def _look_for_homes(self, homes: Homes) -> None:
        """Take the homes of metabrokers that are gone."""
        try:
            for number in self.roster.found(await asyncio.to_thread(homes.others)):
                found = await asyncio.to_thread(homes.take, number)
                if found is not None:
                    self._take_over(found)
            if self._unseen:
                self._unseen = False
                log.warning("event=homes-seen text='sessions of metabrokers that are gone are looked for again'")
        except StoreError as error:
            self._unseen = True
            self._warn(f"event=homes-unseen error={str(error)!r}", "homes")
        finally:
            self._looking = False
        self._carry_out()

    @_guarded
    def _take_over(self, found: TakenHome) -> None:
        """The sessions of another metabroker are ours."""
        try:
            adopt(self.core, found, found.number, self._now())
        except SealError as error:
            found.lease.close()
            self._warn(f"event=sessions-not-taken-over number={found.number:08x} error={str(error)!r}", "sealed")
            return
        log.warning("event=sessions-taken-over number=%08x", found.number)
        self.roster.take_home(found.number)
        self._later.append(partial(self._taken_over, found))
        self._carry_out()

    def _taken_over(self, found: TakenHome) -> None:
        found.lease.close()
        self.roster.took_home(found.number)

    @_guarded
    def _on_tick(self) -> None:
        now = self._now()
        self.core.on_timer(now)
        self._services.tick()
        self._report(now)
        for connection in (self.community, *self.remotes.values()):
            connection.tick()
        for number in self.remotes:
            self._congestion(number, now)
        self._carry_out()

    def _report(self, now: float) -> None:
        if self._reporter.due(now):
            backlogs = {number: remote.backlog for number, remote in self.remotes.items()}
            store = self._store.writer.bytes_pending if self._store is not None else 0
            self._reporter.say(status.report(self.core, self.community.backlog, store, backlogs, self._inside), now)

    def leave(self) -> None:
        """Say that the metabroker ends in order; to be called before `run` is cancelled."""
        self._reporter.gone(self._now())
        self.roster.leave()
        self._say(self._now())
        self.community.flush()

    # The community

    @_guarded
    def _on_community(self, events: list[Event]) -> None:
        now = self._now()
        for event in events:
            match event:
                case IncomingRun():
                    acknowledge = partial(self.community.machine.acknowledge_run, event.acks, event.epoch, now)
                    if event.topic.startswith(PEER):
                        for body in event.payloads:
                            self.roster.hear(event.topic, body, now)
                        acknowledge()
                    elif self.batch_path.on_requests(event, now):
                        self._later.append(acknowledge)
                    else:
                        acknowledge()
                case BatchSettled(token, start, many, reason):
                    self._settled(token, start, many, reason, now)
                case Message(publish, epoch) if publish.topic.startswith(PEER):
                    self.roster.hear(publish.topic, publish.payload, now)
                    if publish.qos:
                        self.community.machine.acknowledge(publish.packet_id, epoch, now)
                case Message(publish, epoch):
                    late = self.core.on_request(publish.topic, publish.payload, now, publish.properties)
                    if publish.qos and late:
                        self._later.append(partial(self.community.machine.acknowledge, publish.packet_id, epoch, now))
                    elif publish.qos:
                        self.community.machine.acknowledge(publish.packet_id, epoch, now)
                case Published(token, reason):
                    self._delivered(token, reason, now)
                case Up(present, _):
                    log.info("event=community-up session_present=%s", str(present).lower())
                    self._reporter.again()
                    self.community.machine.subscribe(PEER + "#", 1, 0, PEERS, now)  # again, too: for who else says that it is here
                    if not present or self._on_ready is not None:
                        self.community.machine.subscribe(REQUEST + "#", 2, 0, TOPIC, now)
                case Subscribed(token, reason) if token == PEERS:
                    self.roster.connected(now)
                    if reason >= 0x80:
                        self.roster.refused()
                        self._say_heard(reason)
                case Subscribed(_, reason):
                    self._subscribed(reason)
        self._carry_out()

    def _say_heard(self, reason: int = 0) -> None:
        """Log that other metabrokers are not heard, and when they are. reason: of the broker that refuses it; 0: it takes no words."""
        if self.roster.deaf != self._unheard:
            self._unheard = self.roster.deaf
            if self._unheard:
                log.warning("event=metabrokers-unheard topic=%s# reason=0x%02x text=%r", PEER, reason, UNHEARD)
            else:
                log.warning("event=metabrokers-heard topic=%s#", PEER)

    def _make_room(self) -> None:
        """Another metabroker has our client identifier, and this broker gives it to whoever comes last."""
        name = self._beside.login.client_id
        self._beside = self._beside.renamed(self.roster.me.number)
        login = self._beside.login
        text = f"another metabroker connects as {name!r}: this one is {login.client_id!r} now; {NAMES}"
        log.warning("event=identifier-in-use text=%r", text)
        self._reporter.topic = self._beside.status
        self.roster.move_to(self._beside.place)
        self.community.machine.login = login
        self.community.taken = False
        self.community.connect_anew()

    def _subscribed(self, reason: int) -> None:
        if reason >= 0x80:
            log.error("event=community-refuses topic=%s# reason=0x%02x text=%r", REQUEST, reason, STRANGER)
        elif self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()

    def _delivered(self, token: int, reason: int, now: float) -> None:
        """The community has acknowledged a publication of a remote's message; after the last one the remote is acknowledged."""
        if reason >= 0x80:
            log.warning("event=response-refused reason=0x%02x", reason)
        group = self._groups.pop(token, None)
        if group is not None:
            self._part_done(group, now)

    def _part_done(self, group: PendingDelivery, now: float) -> None:
        group.left -= 1
        remote = self.remotes.get(group.remote)
        if not group.left and remote is not None:
            remote.acknowledge(group.packet_id, group.epoch, now)
            self._dirty.add(group.remote)

    def _settled(self, token: int, start: int, count: int, reason: int, now: float) -> None:
        """The community has acknowledged messages of a run for one session; the remote is acknowledged for those that all sessions have."""
        if reason >= 0x80:
            log.warning("event=response-refused reason=0x%02x", reason)
        run = self._runs.get(token)
        if run is None:
            return
        run.open[token] -= count
        if not run.open[token]:
            del self._runs[token]
        remote = self.remotes.get(run.remote)
        if isinstance(remote, Connection) and (acks := run.settled(start, count)):
            remote.machine.acknowledge_run(acks, run.epoch, now)
            self._dirty.add(run.remote)

    def _community_down(self, refused: bool | None, text: str) -> None:
        self.roster.disconnected()
        address = self._beside.address
        if refused:
            text = f"{text}: {STRANGER}"
        log.warning("event=community-down address=%s refused=%s error=%r", address, str(refused is not None).lower(), text)

    # Remotes

    @_guarded
    def _on_remote(self, number: int, events: list[Event]) -> None:
        now = self._now()
        if self._down:
            self._fail(number)
        for event in events:
            match event:
                case IncomingRun():
                    self.batch_path.on_messages(number, event)
                case BatchSettled(token, start, many, reason):
                    self.batch_path.on_batch_settled(number, token, start, many, reason)
                case Message(publish, epoch):
                    self.core.on_message(number, publish, epoch)
                case Published(token, reason):
                    self.core.publishing.on_published(token, reason)
                case Subscribed(token, reason):
                    self.core.subscriptions.on_subscribed(number, token, reason)
                case Dropped(filter_):
                    self.core.subscriptions.on_dropped(number, filter_)
                case Up(present, abilities):
                    self.core.on_up(number, present, abilities)
                case Trouble(text):
                    known = self.core.remotes.get(number)
                    remote = known.credentials.remote if known else str(number)
                    kind = text.split(": ")[:2]  # without the topic and other people's words behind it
                    self._warn(f"event=remote-trouble remote={remote} error={text!r}", f"remote {remote} {kind}")
            if isinstance(event, Up):
                self._carry_out()  # what is subscribed anew goes before what comes next
                if self.core.untold:
                    asyncio.get_running_loop().call_soon(self._take_down)
        self._congestion(number, now)
        self._carry_out()

    def _warn(self, text: str, what: str) -> None:
        """A warning that may come again and again: once a minute."""
        more = self._warned.due(self._now(), ("", what))
        log.log(logging.DEBUG if more is None else logging.WARNING, "%s%s", text, f" more={more}" if more else "")

    def _remote_down(self, number: int, refused: bool | None, text: str) -> None:
        """A connection is lost, or was not made. Thousands may be lost at one moment: some of them are taken in a turn of the loop."""
        self._down[number] = refused, text
        if len(self._down) == 1:
            asyncio.get_running_loop().call_soon(self._take_down)

    @_guarded
    def _take_down(self) -> None:
        for number in list(islice(self._down, AT_ONCE)):
            self._fail(number)
        more = self.core.tell_some()
        self._carry_out()
        if self._down or more:
            asyncio.get_running_loop().call_soon(self._take_down)

    def _fail(self, number: int) -> None:
        """Tell the core that a remote is down, unless it knows."""
        down = self._down.pop(number, None)
        if down is None:
            return
        refused, text = down
        code = Code.REMOTE_UNREACHABLE
        if refused is not None:
            code = Code.REMOTE_REFUSED_CREDENTIALS if refused else Code.REMOTE_REFUSED
        self.core.on_failed(number, code, text)
        self._services.find_again(number)

    def _congestion(self, number: int, now: float) -> None:
        remote = self.remotes.get(number)
        if remote is not None:
            self.core.on_congested(number, remote.backlog > self._limits.buffer)

    # What the core wants

    def _say(self, now: float) -> None:
        """Words for other metabrokers."""
        machine = self.community.machine
        for topic, body, qos, retain in self.roster.take():
            if machine.state is State.UP:
                machine.publish(Publish(topic, body, qos, retain=retain), 0, now)

    def _heed(self, now: float) -> None:
        """Words of other metabrokers may have changed whom requests are for."""
        for request in self.core.on_peers(now):
            self.core.on_request(request.topic, request.body, now, request.properties)

    def _carry_out(self) -> None:
        now = self._now()
        if self.roster.changed:
            self._heed(now)
        self._say(now)
        while actions := self.core.take():
            for action in actions:
                # those that come for messages first; the others cost what they cost
                if type(action) is SendMany:
                    self.remotes[action.remote].machine.publish_batch(action.messages, action.qos, action.token, now)  # type: ignore[attr-defined]
                    self._congestion(action.remote, now)
                    self._dirty.add(action.remote)
                elif type(action) is RespondMany:
                    self.community.machine.publish_batch(action.messages, 1, 0, now)
                elif type(action) is DeliverMany:
                    self._deliver_many(action, now)
                else:
                    self._do(action, now)
        self._flush_remotes()
        if self._store is not None:
            waiting, self._later = self._later, []
            self._store.after(waiting)
        self.community.flush()
        self._pressure()

    def _do(self, action: Action, now: float) -> None:
        match action:
            case Respond(topic, body, qos):
                self._respond(Publish(topic, body, qos), 0, now)
            case Deliver():
                self._deliver(action, now)
            case Send(number, token, publish):
                self.remotes[number].publish(publish, token, now)
                self._congestion(number, now)
            case Subscribe(number, token, filter_, qos, identifier):
                self.remotes[number].subscribe(filter_, qos, identifier, token, now)
            case Unsubscribe(number, filter_):
                self.remotes[number].unsubscribe(filter_, now)
            case AfterCommit(later):
                self._later += later
            case ReadPage():
                self._spawn(self._fetch(action))
            case Open():
                self._open(action)
            case Close(number):
                self._close(number)
            case Resolve(number, name):
                self._services.find(number, name)
            case LogLine(warning, text, what):
                self._beside.note(text)
                if what:
                    self._warn(text, what)
                else:
                    log.log(logging.WARNING if warning else logging.INFO, "%s", text)
        if isinstance(action, Send | Subscribe | Unsubscribe | Deliver):
            self._dirty.add(action.remote)

    def _flush_remotes(self) -> None:
        if self._dirty:
            dirty, self._dirty = self._dirty, set()
            for number in dirty:
                if number in self.remotes:
                    self.remotes[number].flush()

    @_guarded
    def _on_committed(self, actions: Later) -> None:
        """What these waited for is kept."""
        now = self._now()
        for action in actions:
            match action:
                case Respond(topic, body, qos):
                    self._respond(Publish(topic, body, qos), 0, now)
                case ReadPage():
                    self._spawn(self._fetch(action))
                case Open():
                    self._open(action)
                case _ if callable(action):
                    action()
        self._flush_remotes()
        self.community.flush()

    async def _fetch(self, action: ReadPage) -> None:
        assert self._store is not None
        self.core.on_fetched(action.session, action.token, action.last, await self._store.read(action))
        self._carry_out()

    def _respond(self, publish: Publish, token: int, now: float) -> bool:
        if not self.community.machine.fits(publish):
            _say_dropped(publish.topic, len(publish.payload), 1)
            return False
        self.community.machine.publish(publish, token, now)
        return True

    def _deliver(self, action: Deliver, now: float) -> None:
        group = PendingDelivery(action, 0)
        for topic, body, qos in action.responses:
            token = 0
            if action.packet_id and qos:
                self._token = token = self._token + 1
            if self._respond(Publish(topic, body, qos), token, now) and token:
                self._groups[token] = group
                group.left += 1
        if action.kept:
            group.left += 1
            self._later.append(partial(self._part_done, group, now))
        if action.packet_id and not group.left:
            self.remotes[action.remote].acknowledge(action.packet_id, action.epoch, now)

    def _deliver_many(self, action: DeliverMany, now: float) -> None:
        machine = self.community.machine
        run = PendingRun(action)
        for qos, messages in action.batches:
            head, body = messages[0]  # all have this size
            if not machine.fits(Publish(head.topic, body, qos)):
                _say_dropped(head.topic, len(body), len(messages))
                continue
            token = 0
            if action.acks and qos:
                self._token = token = self._token + 1
                self._runs[token] = run
                run.open[token] = len(messages)
                run.recipients += 1
            machine.publish_batch(messages, qos, token, now)
        if action.acks and not run.recipients:
            self.remotes[action.remote].machine.acknowledge_run(action.acks, action.epoch, now)  # type: ignore[attr-defined]
            self._dirty.add(action.remote)

    def _open(self, action: Open) -> None:
        number = action.remote
        if number not in self.core.remotes:
            return  # it waited to be kept, and is not wanted any more
        addresses = [parse_address(text, REMOTE) for text in action.addresses]
        connection = make_connector(action, addresses, Owner(partial(self._on_remote, number), partial(self._remote_down, number)))
        connection.pause(self._paused)
        self.remotes[number] = connection
        if isinstance(connection, Connection):
            connection.still_ours = self._homes.holds if self._homes is not None else None
            self.batch_path.enable(number)
            if self.direct is not None:
                connection.direct_lane = partial(self.direct.message, number, connection.machine)
        self._tasks[number] = asyncio.get_running_loop().create_task(self._stay(number, connection), name=f"remote-{number}")

    async def _stay(self, number: int, connection: Connector) -> None:
        """Stay connected to a remote, also over faults of its connector."""
        while True:
            try:
                await connection.run()
                return
            except Exception as error:
                log.exception("event=connector-failed remote=%d pause=%g", number, FAULT_PAUSE)
                self._remote_down(number, None, f"internal error: {type(error).__name__}")
                await asyncio.sleep(FAULT_PAUSE)

    def _close(self, number: int) -> None:
        self.remotes.pop(number, None)
        self.batch_path.forget(number)
        if (task := self._tasks.pop(number, None)) is not None:
            self._keep(task)
            task.cancel()

    def _spawn(self, work: object) -> None:
        self._keep(asyncio.get_running_loop().create_task(work))  # type: ignore[arg-type]

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._others.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._others.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fail(error)

    def _pressure(self) -> None:
        """Read the remotes while the community keeps up."""
        backlog = self.community.backlog
        if self._store is not None and self.core.persistence is not None:
            backlog += self._store.writer.bytes_pending
            self.core.persistence.congested = self._store.writer.bytes_pending > self._limits.buffer
        paused = backlog > (self._limits.buffer // 2 if self._paused else self._limits.buffer)
        if paused != self._paused:
            self._paused = paused
            log.info("event=remotes-%s backlog=%d", "paused" if paused else "resumed", backlog)
            for remote in self.remotes.values():
                remote.pause(paused)


def _say_dropped(topic: str, size: int, messages: int) -> None:
    text = "event=response-dropped topic=%s bytes=%d messages=%d error=too-large-for-the-community-broker"
    log.warning(text, quoted(topic), size, messages)
