"""The interchange in a broker's process: posts come to `interchange/post`, inboxes are queues of the broker.

A post is handled in the turn of the loop in which it came in. What becomes of it, the record of its call and its delivery to the next
inbox, is one commit of the broker's store; PUBACK and the answer follow that commit. So a kill loses nothing that was acknowledged, and
brings nothing twice: the record and the parcel for the queue are there, or neither is.

What it does not know: what becomes of a message (`exchange.py`), the bytes of its faces (`faces/`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ...base.extras import install
from ...base.interchange import ANSWER, EXPLAIN, INBOX, POST, PUBLISHER, QUERY, clients_of
from ...base.process.tokens import Tokens
from ...base.quoting import quoted
from ...base.refusals import Refusals
from ...base.settings import MISSING, ConfigError
from ...broker.queues.core.rules import Rules
from ...broker.queues.refused import Refused
from ...broker.requests.reply import Reply
from ...broker.server import StartError
from ...directory.clients import Clients
from ...store.base import StoreError
from ..correlation.questions import read_question
from ..exchange import Deliver, Elsewhere, Exchange, Save, Verdict
from ..explain import explained
from ..faces import mqtt
from ..identifiers import Identifiers, first_count
from ..message import NEW, Header, Kind, Message
from ..quota import Quota
from ..refusals import Code, Refusal
from ..registry.directory import DirectoryRegistry
from ..registry.file import load
from ..registry.records import Registry
from ..rule_routes import RuleRoutes
from . import noting
from .correlation import Correlation
from .homes import Homes, Told
from .keeping import Keeping
from .limits import Limits
from .outbox import Outbox

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig
    from ...broker.journal.recorder import Recorder
    from ...broker.ports import Connection
    from ...broker.queues.settings import QueueSettings
    from ...broker.server import Broker
    from ...broker.session.session import Session
    from ...broker.settings.interchange import InterchangeSettings
    from ...mqtt.batch.batch import Batch
    from ...mqtt.publish import PublishProperties
    from .faces import Faces
    from .pushing import Pushing, Put

log = logging.getLogger("mqmesh.interchange")

ROOM = 80  # identifiers that a post may need
PAUSE = 5  # milliseconds that identifiers are waited for at most
RETRY = 1000  # milliseconds until a delivery that found no room is tried again
LONGEST_LIFE = 0xFFFF_FFFF  # seconds that MQTT can say
FARTHEST = 3600.0  # seconds until deadlines are looked at again


class Interchange:
    """The `EmbeddedClient` of a broker. Raises ConfigError."""

    table = "interchange"

    def __init__(self, config: BrokerConfig) -> None:
        settings = config.interchange
        assert settings is not None
        assert config.queues is not None
        self._settings = settings
        self._site = config.name
        self._clients = frozenset(clients_of(config.name))
        self._directory = _directory(config) if settings.services is None else None
        self.registry = self._directory.registry() if self._directory is not None else load(_file(settings), config.name)
        self._declare(config.queues)
        self._homes: Homes | None = None
        self._correlation: Correlation | None = None
        self.faces: Faces | None = None
        self._pushing: Pushing | None = None
        self._refusals = Refusals(log, "post-refused")
        self._full = Refusals(log)  # inboxes
        self._takers: set[str] = set()  # clients that take from inboxes
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None

    def _declare(self, queues: QueueSettings) -> None:
        """The inboxes of services of this site are queues of the broker."""
        for service in self.registry.services.values():
            if service.has_inbox_at(self._site):
                queues.rules.setdefault(INBOX + service.name, Rules(early=True))
                queues.subscribers.setdefault(INBOX + service.name, [])

    # Life

    def prepare(self, broker: Broker) -> None:
        """See `EmbeddedClient`."""
        site = broker.site
        assert site.queues is not None
        self._context, self._router, self._queues = broker.context, site.router, site.queues
        self._guard, self._sessions = site.guard, site.sessions
        self._offset = self._context.wall() - self._context.loop.time()
        self._keeping = Keeping(site.persistence)
        home = site.mesh.identity.number if site.mesh is not None else max(0, broker.config.number)
        self._outbox, self._limits = Outbox(self._keeping, self._put), Limits(self._keeping)
        try:
            kept = self._keeping.read()
            born = first_count(self.now())
            self._born, last = kept.counts or (born, born - 1)  # nothing of before its birth, which an earlier life may have issued
            digits = Tokens(8)
            ids = Identifiers(home, last, lambda: digits.next().hex())
            ended = int(1000 * self._settings.retention)
            routes = RuleRoutes(lambda: self.registry, self._has_room)
            quota = Quota(self._settings.open, self._settings.open_bytes)
            self.exchange = Exchange(ids, routes, self._born, ended, self._settings.ended, quota)
            self.exchange.restore(kept.calls)
            self._outbox.restore(kept.out)
            self._limits.restore(kept.posted)
            if site.mesh is not None:
                self._homes = Homes(self, self._keeping, site.mesh)
                self._homes.restore(kept.waiting)
        except StoreError as error:
            raise StartError(str(error)) from error
        except (ValueError, TypeError, KeyError, Refusal) as error:
            raise StartError(f"interchange: its calls in the store cannot be read: {error}") from error
        site.router.services[POST] = self._posted
        site.router.together[POST.encode()] = self._posted_together
        site.router.services[EXPLAIN] = self._explained
        self._correlate(broker.config, home, kept.calls)
        site.queues.may_take = self._may_take
        self.wait()

    def _correlate(self, config: BrokerConfig, home: int, calls: list[bytes]) -> None:
        """Keep what becomes of messages for queries; a broker without a data folder keeps nothing. Raises StartError."""
        if config.data is None:
            return
        try:
            retention = int(1000 * self._settings.kept)
            mesh = self._homes.mesh if self._homes is not None else None
            self._correlation = Correlation(config.data, home, retention, self.now, mesh, self._context.flush)
        except (OSError, sqlite3.Error) as error:
            raise StartError(f"interchange: {config.data}: its tables cannot be opened: {error}") from error
        self._correlation.note_all(calls)
        self._router.services[QUERY] = self._queried

    async def begin(self, broker: Broker) -> None:
        """See `EmbeddedClient`."""
        if self._homes is not None:
            self._homes.start()
            self._context.flush()
        if self._settings.http is not None:
            self.faces = _faces(broker, self._settings, self.now)
            self.faces.start()
        self._broker = broker
        self._push()
        if self._directory is not None:
            self._directory.begin(self._context.loop, self._take_registry)
        log.info("event=interchange-started services=%d calls=%d", len(self.registry.services), len(self.exchange.calls))

    def renew(self, config: BrokerConfig) -> None:
        """See `EmbeddedClient`. Services that are new have their inboxes at once; those that are gone get nothing more."""
        try:
            if config.interchange is None:
                raise ConfigError(self._settings.file, "interchange", "", "it is read at the start: restart the broker")
            if (config.interchange.services is None) != (self._directory is not None):
                raise ConfigError(self._settings.file, "interchange.services", "", "whether there is a file is read at the start")
            if self._directory is not None:
                return  # it tells of changes by itself
            registry = load(_file(config.interchange), self._site)
        except ConfigError as error:
            log.error("event=reload-failed text=%s", error)
            return
        self._take_registry(registry)

    def _take_registry(self, registry: Registry) -> None:
        """The services are others now."""
        self.registry = registry
        for service in registry.services.values():
            if service.has_inbox_at(self._site) and INBOX + service.name not in self._queues.settings.rules:
                self._queues.begin(INBOX + service.name, Rules(early=True), [])
        self._review_takers()
        try:
            self._push()
        except StartError as error:
            log.error("event=reload-failed text=%s", error)

    def _push(self) -> None:
        """Push to the services that are to be pushed to now. Raises StartError."""
        if self._pushing is None and any(one.push is not None for one in self.registry.services.values()):
            self._pushing = _pushing(self._broker, self._settings, self._put_as, self._keeping, self.now)
        if self._pushing is not None:
            self._pushing.renew(self.registry)

    async def end(self) -> None:
        """See `EmbeddedClient`."""
        if self.faces is not None:
            await self.faces.stop()
        if self._pushing is not None:
            await self._pushing.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._directory is not None:
            self._directory.end()
        if self._correlation is not None:
            self._correlation.close()

    def now(self) -> int:
        """See `Here`: milliseconds since 1970; in one process they do not go back."""
        seconds = max(self._context.loop.time(), time.monotonic())  # uvloop's stands still in one turn of the loop
        return int(1000 * (seconds + self._offset))

    # Posts

    def _may_take(self, session: Session, name: str) -> bool:
        """Whether a client takes messages from the inbox of a service. Who does is asked again when services change."""
        service = self.registry.services.get(name)
        if session.client_id in self._clients:
            return service is not None
        if service is None or not service.is_spoken_for_by(self._guard.user_of(session)):
            return False
        needs = service.routing.needs
        if needs and session.connection is not None and not needs <= self._has(cast("Connection", session.connection)):
            return False
        self._takers.add(session.client_id)
        return True

    def _review_takers(self) -> None:
        """Services have changed: who may not take from an inbox any more is no member of it."""
        for client_id in list(self._takers):
            session = self._sessions.get(client_id)
            if session is None or not self._queues.review(session, self._router.unsubscribe):
                self._takers.discard(client_id)

    def _posted(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> list[str | None]:
        """Take what a client posts: for each message why it is refused; None: it is not."""
        return self._posted_together(connection, run.payloads, [properties] * run.count)

    def _posted_together(self, connection: Connection, payloads: list[bytes], said: list[PublishProperties | None]) -> list[str | None]:
        """The same of messages whose properties differ."""
        refusals: list[str | None] = []
        sender, has = partial(self._sender, connection.user), self._has(connection)
        failing = self._keeping.failing  # then a refusal waits for no commit
        wanted: dict[str | None, bool] = {}  # Response Topic -> whether the client takes answers there
        for payload, properties in zip(payloads, said, strict=True):
            reply = Reply(self._router, connection, properties, ANSWER)
            if (listens := wanted.get(topic := properties.response_topic if properties is not None else None)) is None:
                listens = wanted[topic] = reply.wanted()
            told: Told = partial(self._tell, reply)
            answer: dict[str, Any] | None
            try:
                if (owes := self._guard.owes(connection.user, connection.client_id)) is not None:
                    raise Refusal(Code.SUSPENDED, owes)
                message = mqtt.read(bytes(payload), properties, connection.version, sender, self.now(), has)
                self._keeping.check_room(message.header.kind in NEW)
                answer = self._decide_somewhere(message, told, listens)
                refusals.append(None)
            except Refusal as refusal:
                answer = dict(refusal.fields())
                refusals.append(str(refusal))
                self._note(connection, refusal, len(payload))
                if failing and listens:
                    reply.answer(answer)
                    continue
            if answer is not None and listens:
                told(answer)
        if not failing or None in refusals:
            self._keeping.need_commit()
        return refusals

    def _sender(self, user: str | None, said: object) -> str:
        return self.registry.sender(user, said)

    def _has(self, connection: Connection) -> frozenset[str]:
        """What a connection has, of what services may ask for (`rules.routing.NEEDS`), and what it speaks."""
        proof = connection.proof.kind if connection.proof is not None else "nothing"
        about = connection.transport.get_extra_info
        secure = bool(connection.address == "unix" or about("tls") or about("secure"))
        return _shown(about("speaks") or ("mqtt-5" if connection.version == 5 else "mqtt-3"), secure, proof)

    def _note(self, connection: Connection, refusal: Refusal, size: int) -> None:
        if self._correlation is not None:
            self._correlation.note_refused(connection.user or "", connection.client_id, refusal)
        if self._context.journal is not None:
            noting.refused(self._context.journal, connection, refusal, size)
        who = f" code={refusal.code} client={quoted(connection.client_id)} user={quoted(connection.user)}"
        self._refusals.say(self._context.now, connection.address, quoted(refusal.what[:200]), who, refusal.code.value)

    def _decide_somewhere(self, message: Message, told: Told, listens: bool) -> dict[str, Any] | None:
        """Decide about a message, or have its home do so: what its poster is told now. Raises Refusal."""
        try:
            return self.decide(message)
        except Elsewhere as elsewhere:
            if self._homes is None:
                raise Refusal(Code.UNAVAILABLE, f"its home is broker {elsewhere.home}, and this broker is in no mesh") from None
            answer = self._homes.hand(message, elsewhere, told, listens)
            self.wait()
            return answer

    def decide(self, message: Message, vouched: bool = False) -> dict[str, Any]:
        """See `Here`."""
        now = self.now()
        if 0 < (ahead := self.exchange.ids.ahead(now, ROOM)) <= PAUSE:  # this millisecond has too few for all that come in it
            time.sleep(ahead / 1000)
            now = self.now()
        sender, limit = message.header.sender, self.registry.limit(message.header)
        if limit is not None:
            self._limits.check(sender, limit, now)
        verdict = self.exchange.post(message, now, vouched, self.registry.identified(message))
        if self._context.journal is not None:
            self._journalled(partial(noting.posted, message=message, verdict=verdict, owner=self.registry.owner(sender)))
        if limit is not None:
            self._limits.count(sender, now)
        self._carry_out()
        return _told(verdict)

    def session_for(self, service: str, session: str, call: str) -> str:
        """See `Here`."""
        try:
            return self.exchange.session_for(service, session, call)
        except Elsewhere as elsewhere:
            raise Refusal(Code.UNKNOWN_SESSION, f"its home is broker {elsewhere.home}") from None

    def undecided(self, message: Message, refusal: Refusal) -> None:
        """See `Here`."""
        header = message.header
        if header.kind is Kind.REQUEST:
            try:
                hop = self.exchange.ids.one(self.now())
            except Refusal:  # the clock was set back: an error without an identifier is better than none
                hop = ""
            error = Header(Kind.ERROR, header.sender, header.recipients, topic=header.topic, handle=header.handle, hop=hop)
            self._outbox.deliver(Deliver(header.sender, Message(replace(error, code=refusal.code.value, reason=refusal.what))))
            self.wait()

    def _tell(self, reply: Reply, answer: dict[str, Any]) -> None:
        """Tell a poster what became of a post, when that is kept; only itself, if it listens."""
        self._keeping.when_kept(partial(reply.answer, answer))

    def _explained(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> list[str | None]:
        """Say what would become of a message that a client posted so: for each why it is refused; None: it is not.

        It sees rules of services of its own organisations only; a response names in its recipients who has posted the request.
        """
        refusals: list[str | None] = []
        mine = {one.partition("/")[0] for one in self.registry.of(connection.user)}
        told = Reply(self._router, connection, properties, ANSWER).answer
        for payload in run.payloads:
            try:
                message = mqtt.read(bytes(payload), properties, connection.version, partial(self._sender, connection.user), self.now())
                message = replace(message, has=self._has(connection))
                told(explained(self.registry, message, self.now(), lambda service: service.partition("/")[0] in mine))
                refusals.append(None)
            except Refusal as refusal:
                refusals.append(str(refusal))
                told(dict(refusal.fields()))
        return refusals

    def _queried(self, connection: Connection, run: Batch, properties: PublishProperties | None) -> list[str | None]:
        """Take what a client asks about messages: for each question why it is refused; None: it is not."""
        assert self._correlation is not None
        refusals: list[str | None] = []
        told = Reply(self._router, connection, properties, ANSWER).answer
        for payload in run.payloads:
            try:
                mine = sorted({one.partition("/")[0] for one in self.registry.of(connection.user)})
                if not mine:
                    raise Refusal(Code.NOT_PERMITTED, "this user acts as no service", "ask as a user of a service")
                self._correlation.ask(mine, read_question(bytes(payload)), told)
                refusals.append(None)
            except Refusal as refusal:
                refusals.append(str(refusal))
                told(dict(refusal.fields()))
        return refusals

    # What follows

    def _carry_out(self) -> None:
        """Do what the exchange wants: in the commit that is open."""
        for action in self.exchange.take():
            if isinstance(action, Save):
                self._keeping.put_call(action.call, action.value)
                if action.value is not None:
                    self._noted(action.call, action.value)
            else:
                self._outbox.deliver(action)
                if self._context.journal is not None:
                    owner = self.registry.owner(action.message.header.sender)
                    self._journalled(partial(noting.delivered, one=action, owner=owner))
        self._keeping.put_counts(self._born, self.exchange.ids.last)
        self.wait()

    def _noted(self, id: str, value: bytes) -> None:
        """A call is so now: tell the tables of queries, and the journal if it has ended."""
        if self._correlation is not None:
            self._correlation.note(id, value)
        call = self.exchange.calls.get(id) if self._context.journal is not None else None
        if call is not None and call.ended:
            self._journalled(partial(noting.ended, call=call, packed=value, owner=self.registry.owner(call.header.sender)))

    def _journalled(self, note: Callable[[Recorder], None]) -> None:
        """Tell the broker's journal, if it has one, after the commit."""
        journal = self._context.journal
        if journal is not None:
            self._keeping.when_kept(partial(note, journal))

    def _has_room(self, service: str) -> bool:
        """Whether something new may be on its way to a service: not too much waits here for its inbox."""
        return self._outbox.size_for(service) < self._settings.waiting_bytes

    def _put(self, one: Deliver) -> bool:
        """Put a message into its inbox. False: not now."""
        service = self.registry.services.get(one.service)
        payload, block = mqtt.written(one.message, service is not None and service.as_json)
        life = None if one.expires is None else min(LONGEST_LIFE, max(1, -(-(one.expires - self.now()) // 1000)))
        return self._put_as(one.service, payload, block, life)

    def _put_as(self, service: str, payload: bytes, block: bytes, life: int | None) -> bool:
        """The same of a message in the form in which it is delivered."""
        try:
            self._queues.publishers.put_inside(INBOX + service, PUBLISHER, payload, block, life)
        except Refused as refused:
            if (more := self._full.due(self._context.now, (service, ""))) is not None:
                log.warning("event=inbox-refuses service=%s more=%d text=%s", quoted(service), more, refused.text)
            return False
        return True

    # Time

    def wait(self) -> None:
        """See `Here`: have deadlines looked at in time."""
        due = self.exchange.next_deadline()
        if self._homes is not None and (other := self._homes.deadlines.next()) is not None:
            due = other if due is None else min(due, other)
        if self._outbox:
            again = self.now() + RETRY
            due = again if due is None else min(due, again)
        if due is None or (self._timer_at is not None and self._timer_at <= due):
            return  # a look that is too early does nothing
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._context.loop.call_later(min(FARTHEST, max(0.0, (due - self.now()) / 1000)), self._look)

    def _look(self) -> None:
        self._timer = self._timer_at = None
        self._context.refresh()
        now = self.now()
        self.exchange.on_timer(now)
        if self._homes is not None:
            self._homes.on_timer(now)
        self._outbox.again(now)
        self._carry_out()
        self._context.flush()


def _faces(broker: Broker, settings: InterchangeSettings, now: Callable[[], int]) -> Faces:
    """Its listeners. Raises StartError."""
    try:
        from .faces import Faces
    except ImportError as error:
        raise StartError(f"interchange.http needs more packages: {install('http')} ({error})") from error
    return Faces(broker, settings, now)


def _directory(config: BrokerConfig) -> DirectoryRegistry:
    """The services of the directory at which the broker is registered. Raises ConfigError."""
    assert config.interchange is not None
    where, known = config.interchange, config.directory
    if known is None or not known.account or config.data is None:
        right = "give a file of services, or a [directory] with an account, and data, for those of the directory"
        raise ConfigError(where.file, "interchange.services", MISSING, right)
    return DirectoryRegistry(Clients(known.urls, account=lambda: (known.account, known.secret())), config.name, config.data)


def _file(settings: InterchangeSettings) -> Path:
    assert settings.services is not None
    return settings.services


def _pushing(broker: Broker, settings: InterchangeSettings, put: Put, keeping: Keeping, now: Callable[[], int]) -> Pushing:
    """What pushes to its services. Raises StartError."""
    try:
        from .pushing import Pushing
    except ImportError as error:
        raise StartError(f"delivery = push needs more packages: {install('http')} ({error})") from error
    try:
        return Pushing(broker, settings, put, keeping, now)
    except OSError as error:
        raise StartError(f"interchange.push_ca, push_certificate, push_key: {error}") from error


@lru_cache(64)
def _shown(speaks: str, secure: bool, proof: str) -> frozenset[str]:
    return frozenset([speaks] + ["tls"] * secure + ["password" if proof == "token" else proof] * (proof != "nothing"))


def _told(verdict: Verdict) -> dict[str, Any]:
    """A verdict as the answer says it."""
    told: dict[str, Any] = {"session": verdict.session, "call": verdict.call}
    return told if verdict.came is None else told | {"came": verdict.came}
