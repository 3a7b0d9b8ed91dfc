"""The recipients of one broker: who they are, which sessions serve them, what is known of those elsewhere, and when something is due.

    post                    body
    recipients/records      records of the sender's recipients (`records.py`): all of them to a broker that comes, changes to everybody
    recipients/adopt        an application that the directory gives this broker as its home

What it does not know: states (`machine.py`), where messages go (`failover.py`).
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...base.alarm import Alarm
from ...base.quoting import quoted
from ...mqtt.batch.run import Run
from ...mqtt.packets import Subscription
from ...mqtt.reasons import Reason
from ...mqtt.session import Delivery
from ..journal.kinds import Kind
from ..ledger import SESSIONS
from ..routing.publication import Publication
from ..routing.route import Entry, Route
from . import view
from .announcing import RECORDS, Announcing, TakesApplications, TakesRecords
from .asking import ADOPT, Asking
from .clients import Clients
from .directory import RecipientDirectory
from .handover import records
from .handover.arrivals import Arrivals
from .handover.failover import FailOver, uniform_runs
from .handover.parcels import Parcel, failed_over, response_topic, stamped
from .handover.records import Record, iso
from .handover.returns import Returns
from .keeping import Keeping, restore_state
from .machine import State
from .operating import Operating
from .recipient import PAST, QUEUE, Recipient, adopt_faces
from .sampling import Sampler
from .settings import Application, RecipientSettings, weight_of
from .taking.faces import QueueFace, TopicFace
from .taking.feeding import Mover
from .taking.seizure import Seizure

if TYPE_CHECKING:
    from ...mesh.node.node import Node
    from ..auth.guard import Guard
    from ..persistence.commits import Persistence
    from ..ports import Context, Posts
    from ..routing.router import Router
    from ..routing.shared import ShareGroup
    from ..session.session import Session
    from ..session.table import Sessions

log = logging.getLogger("mqmesh.broker")

LOOKED_AT = 100  # recipients that are not operational, in a tick; what happens to one is seen at once, this finds what nobody says
DEAD = "\0recipient.dead"
EARLY = 0.001  # seconds that a timer may fire too early
EVENTS = "$mqmesh/events/recipients"
Accept = Callable[[Run, "Route"], bool]


class Recipients:
    """See the module. It is the `Port` of its recipients and the `Known` of its fail-over.

    settings: the table `[recipients]`. number, site: this broker's. accept: publishes a message past the rules. issue: one of the broker
    itself. directory: None without one. local: recipients whose home is here. remote: records of the others, by name.
    """

    def __init__(
        self,
        context: Context,
        settings: RecipientSettings,
        number: int,
        site: str,
        router: Router,
        sessions: Sessions,
        guard: Guard,
        accept: Accept,
        issue: Callable[[Run], None],
    ) -> None:
        self.context = context
        self.settings = settings
        self.number = number
        self.site = site
        self.router = router
        self.sessions = sessions
        self.guard = guard
        self.prefix = settings.prefix
        self.dead_letters = settings.dead_letters.replace("{site}", site)
        self.directory: RecipientDirectory | None = None
        self.local: dict[str, Recipient] = {}
        self.remote: dict[str, Record] = {}
        self.keeping = Keeping()
        self.node: Node | None = None
        self._accept = accept
        self.issue = issue
        self._heap: list[tuple[float, int, Recipient]] = []
        self._serials = itertools.count()
        self._alarm = Alarm(self._due)
        self._movers: dict[Session, Mover] = {}
        self._hungry: dict[Recipient, None] = {}  # queues that have messages
        self._ailing: dict[Recipient, None] = {}  # not operational, or messages are being taken away
        self.stirred = True
        self._edits = -1  # the router's, as of the last look
        self._kept: dict[bytes, Parcel] = {}  # what finds no room where it goes
        self.clients = Clients(self)
        self.asking = Asking(self)
        self.announcing = Announcing(self)
        self.operating = Operating(self)
        arrivals = Arrivals(context, guard, self.local, number, self.prefix, lambda first, count: self.failover.note(first, count))
        returns = Returns(context, self.publish, self._wanted, self._may_answer, self._bury, self._keep_parcel, self.prefix)
        self.failover = FailOver(context, self, arrivals, returns, self._store_parcel, self._forget_parcel, self._room)
        self.sampler = Sampler(sessions, lambda session: session.client_id in self.clients.serving, settings.intervals.fault)
        router.addressed = self._addressed
        sessions.keeps = self.clients.keeps
        sessions.outlives = self.clients.outlives
        sessions.stamps, sessions.enters = self._stamp_will, self._enter_will

    # ---- the start

    def join_mesh(self, node: Node, posts: Posts) -> None:
        """The broker is a member of a mesh."""
        self.node = node
        self.failover.start(posts)
        posts.register(RECORDS, TakesRecords(self))
        posts.register(ADOPT, TakesApplications(self))

    def start(self, persistence: Persistence | None) -> None:
        """Sessions are there. Raises StoreError."""
        now = self.context.refresh()
        kept = self.keeping.read(persistence) if persistence is not None else None
        if kept is not None:
            for record in kept.records:
                self.remote[record.name] = record
            self._kept = dict(sorted(kept.waiting.items()))
        for application in self.settings.applications:
            if self.is_home(application):
                self._adopt(application, False)
        for application in kept.applications if kept is not None else ():
            if application.name not in self.local:
                self._adopt(application, True)
        offset = self.context.clock.offset(now)
        for name, value in kept.states.items() if kept is not None else ():
            if name in self.local:
                restore_state(self.local[name], value, offset, now)
            else:
                self.keeping.put(b"s" + name.encode(), None)
        for session in list(self.sessions):
            self._found(session)
        for recipient in self.local.values():
            self._hungry[recipient] = self._ailing[recipient] = None
            recipient.recovered(now)
            recipient.by_client = recipient.declared and (self.directory is None or self.directory.cached(recipient.name) is None)
            recipient.look_for_sessions()
            self.set_deadline(recipient)
        if self.directory is not None:
            self.directory.resume(kept.applications if kept is not None else [])
        self.asking.read()
        self.stirred = True

    def is_home(self, application: Application) -> bool:
        return application.broker is None or application.broker == self.site

    def _found(self, session: Session) -> None:
        """A session of an earlier life."""
        name = session.client_id
        if name.startswith(PAST):
            self.clients.move_past(session, name.split(".", 3)[3])
        elif name.startswith(QUEUE) and name[len(QUEUE) :] not in self.local:
            log.warning(
                "event=recipient-unknown name=%s messages=%d text=it is not declared any more", quoted(name[len(QUEUE) :]), session.queued
            )
        elif name in self.clients.serving:
            self.clients.serve(session)

    def _adopt(self, application: Application, declared: bool) -> Recipient:
        """Be the home of an application."""
        name = application.name
        recipient = Recipient(application, self, self.prefix, declared)
        queue = self.sessions.get(QUEUE + name)
        topic_filter = f"{self.prefix}/{name}/#"
        if queue is None:
            queue, _ = self.sessions.open(QUEUE + name, False, None)
            queue.left(None)
        if topic_filter not in queue.subscriptions:
            subscription = Subscription(topic_filter, 2)
            self.router.subscribe(queue, subscription, 0)
            queue.subscribed(subscription, 0)
        queue.account.charge(SESSIONS, weight_of(application))
        adopt_faces(recipient, self.router, queue)
        self.local[name] = recipient
        self.remote.pop(name, None)
        for client in application.clients:
            self.clients.serving.setdefault(client, []).append(recipient)
        self.announcing.tell(name)
        return recipient

    def adopt(self, application: Application, session: Session | None = None) -> Recipient:
        """Take up an application: a new one, or new settings of one that is here.

        session: of the client that declares it, whose user and address it counts for; None: the directory or an operator does.
        """
        known = self.local.get(application.name)
        if known is None:
            known = self._adopt(application, True)
        else:
            for client in known.application.clients:
                if known in self.clients.serving.get(client, ()):
                    self.clients.serving[client].remove(known)
            known.queue.account.charge(SESSIONS, weight_of(application) - weight_of(known.application))
            known.application = application
            known.machine.intervals = application.intervals
            for client in application.clients:
                self.clients.serving.setdefault(client, []).append(known)
            self.announcing.tell(application.name)
        if session is not None and known.declared:
            known.by_client = True
            queue, held = known.queue, session.account
            queue.account.move(*(None if one is None else one.name for one in (held.address, held.user)))
            self.sessions.own(queue, session.user)
            queue.record()
        self.keeping.put(b"a" + application.name.encode(), records.encode_application(application))
        for client in application.clients:
            session = self.sessions.get(client)
            if session is not None:
                self.clients.serve(session)
        return known

    def drop(self, name: str) -> None:
        """An application is no recipient any more. What waits for it is returned."""
        recipient = self.local.get(name)
        if recipient is not None:
            recipient.declared = True
            recipient.declare_defunct()
            self._look_at_end(recipient)

    def _look_at_end(self, recipient: Recipient) -> None:
        """A recipient that was declared, is defunct, and has nothing left is forgotten."""
        if not recipient.declared or recipient.state is not State.DEFUNCT or recipient.sessions or recipient.waiting or recipient.busy:
            return
        name = recipient.name
        del self.local[name]
        self._hungry.pop(recipient, None)
        self._ailing.pop(recipient, None)
        for serving in self.clients.serving.values():
            if recipient in serving:
                serving.remove(recipient)
        self._stop_mover(recipient.queue)
        self.sessions.end(recipient.queue)
        self.keeping.put(b"a" + name.encode(), None)
        self.keeping.put(b"s" + name.encode(), None)
        if self.directory is not None:
            self.directory.withdraw(name)
        self.announcing.tell(name)

    # ---- sessions are moved

    def move_session(
        self, session: Session, room: Callable[[], bool], give: Callable[[Delivery, bool], None], then: Callable[[], None]
    ) -> None:
        """Give what a session has on, as there is room. then: called once when nothing is left."""

        def ended() -> None:
            self._movers.pop(session, None)
            then()

        mover = self._movers[session] = Mover(self.keeping.persistence, session, room, give, ended)
        mover.start()

    def _stop_mover(self, session: Session) -> None:
        mover = self._movers.pop(session, None)
        if mover is not None:
            mover.stop()

    # ---- messages

    def owner(self, topic: bytes) -> Recipient | None:
        """The recipient here that a topic addresses; None: there is none."""
        name = self.name_in(topic.decode())
        return None if name is None else self.local.get(name)

    def name_in(self, topic: str) -> str | None:
        """The name that a topic addresses; None: it addresses nobody."""
        prefix = f"{self.prefix}/"
        if not topic.startswith(prefix):
            return None
        return topic[len(prefix) :].partition("/")[0] or None

    def _addressed(self, topic: str, entries: dict[Any, list[Entry]], shares: list[ShareGroup]) -> Callable[..., Any] | None:
        """A route is made: those who serve the recipient get its messages from its queue only."""
        name = self.name_in(topic)
        if name is None:
            return None
        recipient = self.local.get(name)
        if recipient is not None:
            for face in list(entries):
                if isinstance(face, QueueFace):
                    if face.owner is recipient:
                        entries[face] = [Entry(TopicFace(face, topic.encode()), one.subscription, one.number) for one in entries[face]]
                elif face.main in recipient.sessions:
                    del entries[face]
            shares[:] = [
                one for one in shares if not (one.members and all(member.session.main in recipient.sessions for member in one.members))
            ]
        return self.enter

    def enter(self, publication: Publication, run: Run, route: Route) -> tuple[Run, Route] | None:
        """Messages for a recipient enter the mesh here (row F15): as they go on, and by which route; None: they are refused."""
        name = self.name_in(route.topic)
        connection = publication.connection
        assert name is not None
        assert connection is not None
        found = self.stamp(run, connection.client_id, connection.user, connection.listener)
        way = self._way(name, run, route)
        if isinstance(way, Route):
            return found, way
        if way[0] == Reason.TOPIC_NAME_INVALID:
            self.context.counters.dropped += run.count
        publication.refuse(run.count, *way)
        return None

    def _enter_will(self, run: Run, route: Route) -> Route | None:
        """The route of a will for a recipient, as `enter` has it; None: nobody takes it, which only the log can say."""
        name = self.name_in(route.topic)
        way = route if name is None else self._way(name, run, route)
        if isinstance(way, Route):
            return way
        log.warning("event=will-refused topic=%s text=%s", quoted(route.topic), way[1])
        return None

    def _way(self, name: str, run: Run, route: Route) -> Route | tuple[int, str]:
        """The route of messages for a recipient; else why they are refused: a reason code, and words."""
        if self.record(name) is not None:
            return route
        if self.directory is not None:
            waits = self.asking.ask(name)
            if self.record(name) is not None:
                return self.router.routes.get(run.topic) or self.router.route(run.topic)
            if waits:
                waiting = self.asking.wait(name, route.topic, run.count)
                return waiting or (Reason.QUOTA_EXCEEDED, "too many messages wait for an answer of the directory")
        return Reason.TOPIC_NAME_INVALID, f"no application is registered as {name}"

    def stamp(self, run: Run, client_id: str, user: str | None, listener: str) -> Run:
        """Messages for a recipient as they leave their origin. client_id, user, listener: of their publisher."""
        response = response_topic(run.properties)
        return stamped(run, client_id, self.number, response is None or self._may_publish(response, client_id, user, listener))

    def _may_publish(self, topic: str, client_id: str, user: str | None, listener: str) -> bool:
        """Whether a publisher may have what comes back published to a topic: if it could have published it there itself."""
        refused = self.router.access.will(client_id, self.router.rights(topic), False) or self.guard.will(user, client_id, listener, topic)
        return refused is None

    def _stamp_will(self, session: Session, run: Run) -> Run:
        if self.name_in(run.topic.decode()) is None:
            return run
        return self.stamp(run, session.client_id, self.guard.user_of(session), session.listener)

    def _may_answer(self, parcel: Parcel, topic: str) -> bool:
        """Whether messages may be returned on their Response Topic: by the rules for their publisher, or for nobody if it is not known."""
        return parcel.answered and (bool(parcel.originator) or self._may_publish(topic, "", None, ""))

    def own_session(self, name: str) -> Session:
        """A session of the broker's own, kept in the store if there is one."""
        session = self.sessions.get(name)
        if session is None:
            session, _ = self.sessions.open(name, False, None)
            session.left(None)
        return session

    # ---- Known

    def record(self, name: str) -> Record | None:
        """What is known of a recipient, here or elsewhere."""
        recipient = self.local.get(name)
        return self.remote.get(name) if recipient is None else self.record_of(recipient)

    def record_of(self, recipient: Recipient) -> Record:
        application, machine = recipient.application, recipient.machine
        since = machine.since + self.context.wall() - self.context.loop.time()
        return Record(
            recipient.name,
            self.number,
            self.site,
            machine.state,
            since,
            application.alternatives,
            application.consents,
            application.probe,
            recipient.held,
            recipient.waiting,
        )

    def reachable(self, broker: int) -> bool:
        return broker == self.number or (self.node is not None and bool(self.node.live() >> broker & 1))

    def alternatives(self) -> dict[str, list[str]]:
        return {}

    # ---- Port

    @property
    def next_commit(self) -> int:
        """The ticket of the commit that holds what is changed now; 0 without a store."""
        persistence = self.keeping.persistence
        return persistence.next_commit if persistence is not None else 0

    def promise(self) -> None:
        if self.keeping.persistence is not None:
            self.keeping.persistence.need_commit()

    def reads(self, session: Session, topic: str) -> bool:
        return self.guard.may_read(session, topic)

    def fail_over(self, recipient: Recipient, delivery: Delivery, sent: bool, reason: str, must: bool = False) -> bool:
        to = self.operating.moving.get(recipient.name)
        if to is not None:
            return self.operating.give(recipient, to, delivery)
        return self.failover.fail_over(recipient, delivery, sent, reason, must)

    def seize(self, recipient: Recipient, session: Session, cutoff: float | None, keep: int, done: Callable[[Seizure], None]) -> Seizure:
        self._stop_mover(session)
        self._ailing[recipient] = None
        return Seizure(session, recipient, self.keeping.persistence, cutoff, keep, done)

    def changed(self, recipient: Recipient) -> None:
        offset = self.context.clock.offset(self.context.loop.time())
        self.keeping.put_state(recipient, offset)
        self.announcing.tell(recipient.name)
        self.set_deadline(recipient)
        self.stirred = True
        self._hungry[recipient] = self._ailing[recipient] = None
        history = recipient.machine.history
        if history and history[-1] is not recipient.told:
            change = recipient.told = history[-1]
            level = logging.INFO if change.after is State.OPERATIONAL else logging.WARNING
            text = "event=recipient name=%s from=%s to=%s waiting=%d text=%s"
            log.log(level, text, quoted(recipient.name), change.before.value, change.after.value, recipient.waiting, change.why)
            event: dict[str, Any] = {
                "name": recipient.name,
                "from": change.before.value,
                "to": change.after.value,
                "why": change.why,
                "at": iso(change.at + offset),
                "site": self.site,
            }
            if self.context.journal is not None:
                detail = {key: event[key] for key in ("from", "to", "site")}
                self.context.journal.event(Kind.RECIPIENT_STATE, recipient=recipient.name, reason=change.why, detail=detail)
            self.context.events += 1
            event |= {"sequence": self.context.events, "life": self.context.life}
            self.issue(Run(EVENTS.encode(), 0, False, [json.dumps(event).encode()], received=self.context.now))

    def hungry(self, recipient: Recipient) -> None:
        self._hungry[recipient] = None

    def set_deadline(self, recipient: Recipient) -> None:
        deadline = recipient.deadline = recipient.next_deadline()
        if deadline is None:
            return
        heapq.heappush(self._heap, (deadline, next(self._serials), recipient))
        self._set_timer()

    def _set_timer(self) -> None:
        while self._heap and self._heap[0][2].deadline != self._heap[0][0]:
            heapq.heappop(self._heap)
        if self._heap:
            self._alarm.set(self.context.loop, self._heap[0][0] + EARLY)

    def _due(self, at: float) -> None:
        if self.context.stopping:
            return
        now = self.context.refresh()
        while self._heap and self._heap[0][0] <= now:
            deadline, _, recipient = heapq.heappop(self._heap)
            if recipient.deadline == deadline:
                recipient.deadline = None
                recipient.due(now)
                if recipient.deadline is None:
                    self.set_deadline(recipient)
        self._set_timer()
        self.context.flush()

    # ---- Listener of the watches

    def acknowledged(self, session: Session, delivery: Delivery, count: int) -> None:
        """A client has acknowledged messages."""
        run = delivery.run
        if run is None:
            return
        served = self.clients.serving.get(session.client_id, ())
        owner = next((one for one in served if session in one.sessions and run.uniform and one.addressed(bytes(run.topic))), None)
        if owner is None:
            owner = next((one for one in served if session in one.sessions), None)
        if owner is not None:
            owner.succeeded(count)
            if failed_over(run.properties):
                self.failover.arrivals.acknowledged(owner, delivery, count)

    # ---- what goes back

    def publish(self, run: Run) -> bool:
        """Publish messages of the broker's own. False: there is no room."""
        route = self.router.routes.get(run.topic) or self.router.route(bytes(run.topic))
        return self._accept(run, route)

    def _wanted(self, topic: str) -> bool:
        raw = topic.encode()
        try:
            route = self.router.routes.get(raw) or self.router.route(raw)
        except ValueError:
            return False
        return route.writable and not route.empty

    def _bury(self, parcel: Parcel) -> None:
        """To the dead letters: to who is subscribed there, or until somebody is."""
        run = parcel.returned(self.dead_letters, self.context.now, self.context.wall())
        if self._wanted(self.dead_letters) and not self.own_session(DEAD).queued and self.publish(run):
            return
        dead = self.own_session(DEAD)
        if dead.deliver(Delivery(run, max(1, parcel.qos))) < run.count:
            log.error("event=dead-letter-lost topic=%s messages=%d text=no room", quoted(self.dead_letters), run.count)
            self.context.counters.dropped += run.count
        self.stirred = True

    def _keep_parcel(self, parcel: Parcel) -> None:
        self._kept[self._store_parcel(parcel)] = parcel

    def _store_parcel(self, parcel: Parcel) -> bytes:
        """Have the store keep messages that are in nobody's session: the key."""
        key = b"w" + time.time_ns().to_bytes(8, "big") + next(self._serials).to_bytes(4, "big")
        self.keeping.put(key, parcel.encode())
        return key

    def _forget_parcel(self, key: bytes) -> None:
        self.keeping.put(key, None)

    # ---- time passes

    def _room(self) -> None:
        """There is room for posts again."""
        self.context.refresh()
        for recipient in list(self._ailing):
            recipient.go_on()
        self.context.flush()

    def settle(self) -> bool:
        """The end of a piece of work. True: messages for other brokers were posted."""
        for mover in list(self._movers.values()):
            mover.settle()
        if self.stirred or self._edits != self.router.edits:
            self.stirred = False
            self._edits = self.router.edits
            self._look()
        return self.failover.settle()

    def _look(self) -> None:
        """See whose queue can be fed."""
        for recipient in list(self._hungry):
            queue = recipient.queue
            if queue.queued or queue.outbound.in_flight or queue in self._movers:
                self._feed(recipient)
            else:
                del self._hungry[recipient]
        dead = self.sessions.get(DEAD)
        if dead is not None and dead.queued and dead not in self._movers and self._wanted(self.dead_letters):
            self.move_session(dead, lambda: self._wanted(self.dead_letters), self._exhume, lambda: None)

    def _feed(self, recipient: Recipient) -> None:
        mover = self._movers.get(recipient.queue)
        room = recipient.has_room() and not recipient.pasts
        if mover is not None:
            if room:
                mover.wake()
            elif not recipient.at_hand():
                self._stop_mover(recipient.queue)
        elif room and not recipient.busy:
            self.move_session(recipient.queue, recipient.has_room, lambda delivery, _: recipient.feed(delivery), lambda: None)

    def _exhume(self, delivery: Delivery, sent: bool) -> None:
        for run in uniform_runs(delivery):
            if not self.publish(run):
                self.own_session(DEAD).deliver(Delivery(run, max(1, run.qos)))

    def tick(self) -> None:
        """Twice a second."""
        self.stirred = True
        self.sampler.look(self.context.now)
        self.failover.tick()
        kept, self._kept = self._kept, {}
        for key in kept:
            self.keeping.put(key, None)
        self.failover.again(list(kept.values()))
        for recipient in list(itertools.islice(self._ailing, LOOKED_AT)):
            del self._ailing[recipient]
            self._ailing[recipient] = None  # others come first next time
            recipient.look_for_probe()
            recipient.go_on()
            self._look_at_end(recipient)
            if recipient.passing and not recipient.busy:
                self._ailing.pop(recipient, None)
        if self.directory is not None:
            self.asking.again()

    def stop(self) -> None:
        """No timer fires any more."""
        self._alarm.cancel()
        for session in list(self._movers):
            self._stop_mover(session)

    # ---- what can be seen

    def describe(self, name: str | None = None) -> list[dict[str, Any]]:
        """The recipients whose home is here, or one of them (`view.describe`)."""
        return view.describe(self, name)

    def explain(self, name: str) -> dict[str, Any] | None:
        """Where a message for a name would go now, and why (`view.explain`)."""
        return view.explain(self, name)

    @property
    def ailing(self) -> Iterable[Recipient]:
        """Those that are not operational are among them."""
        return self._ailing

    def values(self) -> dict[str, str]:
        """For `$SYS/broker/recipients/`."""
        return view.values(self)
