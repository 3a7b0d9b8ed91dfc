"""The metabroker's core: requests of clients and events of remotes go in, actions come out. No socket, clock, task or log.

A *session* is one client's use of one remote. A *remote* (`remote.py`) is one connection with one set of credentials. It is opened for the
first session that needs it and closed with the last one. A request is answered when the remote has answered, and each request is answered
once. Everything that can grow has a bound in the policy.

Invariants
- a session is in `sessions` from its connect request until its end; nobody knows its identifier before its connack;
- a session's messages come only from its own remote, and only for its own filters;
- an error in a request changes nothing except what its answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ...base.address import REMOTE, parse_address
from ...base.metabroker import ANSWERS, CONNECT, REQUEST, Code, client_name, connect_topic, response_topic
from ...mqtt.packets import Publish
from ...mqtt.properties import Properties
from ...store.records import StoredDelivery, StoredRun
from ..peers.members import account_of, key_of, own_account
from ..peers.roster import Request, Roster, number_of
from ..policy import Policy, Rule
from ..protocol import bodies
from ..protocol.bodies import BodyError
from ..protocol.events import Abilities
from .actions import AfterCommit, Close, Deliver, LogLine, Open, Resolve, Respond
from .publishing import Publishing
from .records import Changes
from .remote import Credentials, Remote
from .sessions import Durable, Session
from .state import CoreState
from .subscriptions import Subscriptions

LONGEST_SESSION = 64 + bodies.LONGEST_NAME  # characters of a session's identifier
MOVED = "the metabroker that had this session is gone: connect again"
NEWER = "this client has a newer session with this remote, begun while the metabrokers did not hear each other"
AWAY = "the metabroker that has this durable session is away; the session waits for it"
GRACE = 10.0  # seconds that a session goes on without a client that has vanished: programs such as mosquitto_rr say no DISCONNECT
AT_ONCE = 200  # sessions that end at one call of `on_timer`: what the shell does for each of them takes longer
TOLD = 32  # sessions of a remote that are told at one call how it is; where it has more, `tell_some` tells so many at each call
RETRY = 10.0  # seconds until a service that could not be resolved is looked up again


class Core:
    """The machine. new_id: gives identifiers that nobody can guess. changes, offset: see `CoreState`.

    A session's identifier begins with its client's and a slash, so that access rules that know only clients keep clients apart.

    roster: of the other metabrokers; None: there are none.
    ours: whether no other metabroker can have taken our sessions over. One that stood still does not know that at first.
    """

    def __init__(
        self, policy: Policy, new_id: Callable[[], str], changes: Changes | None = None, offset: float = 0.0, roster: Roster | None = None
    ) -> None:
        self.roster = roster or Roster()
        self._state = state = CoreState(policy, changes, offset)
        self.policy, self.counts, self.persistence = policy, state.counts, state.persistence
        self.sessions, self.remotes = state.sessions, state.remotes
        self.take, self.do, self.new_token = state.take, state.do, state.new_token
        self.subscriptions = Subscriptions(state)
        self.publishing = Publishing(state)
        self.ours: Callable[[], bool] = lambda: True
        self._new_id = new_id
        self._shared: dict[Credentials, dict[int, Remote]] = {}  # by number: sessions that come share the first
        self._clients: dict[str, int] = {}  # name of a client -> its sessions
        self.untold: dict[str, None] = {}  # sessions that are to be told how their remotes are
        self._next_look = 0.0

    # Requests

    def on_request(self, topic: str, body: bytes, now: float, properties: Properties | None = None) -> bool:
        """A message has come from the community under `metabroker/request/`. properties: of its PUBLISH. True: acknowledge it when what
        has been put is kept."""
        self.hear(1, now)
        self._state.late = False
        request = Request(topic, body, properties or {})
        if topic == CONNECT:
            self._connect(request, bodies.sender_of(request.properties), now)
        elif topic.startswith(REQUEST) and topic.endswith("/connect"):
            self._connect(request, topic.removeprefix(REQUEST).removesuffix("/connect"), now)
        else:
            self._request(request, now)
        return self._state.late

    def hear(self, requests: int, now: float) -> None:
        """So many requests have come."""
        self.counts.requests += requests
        self._state.now = now
        if self.persistence is not None:
            self.persistence.heard(now)

    def _request(self, request: Request, now: float) -> None:
        topic, body, _ = request
        state = self._state
        session_id, _, verb = topic.removeprefix(REQUEST).rpartition("/")
        if verb not in ANSWERS or not topic.startswith(REQUEST) or not 0 < len(session_id) <= LONGEST_SESSION:
            state.do(LogLine(True, f"event=request-ignored topic={topic[:80]!r} error=unknown-request", "request ignored"))
            return
        session = self.sessions.get(session_id)
        if verb == "disconnect" and session is None and number_of(session_id) is None and bodies.is_client(session_id):
            self._gone(session_id, now)
            return
        if session is None or session_id in session.remote.joining:
            if session is None and not self.roster.session(session_id, request):
                return
            if verb == "publish" and self.publishing.publish_without_session(session_id, body):
                return
            state.refuse(session_id, verb, bodies.message_in(body), Code.UNKNOWN_SESSION, "there is no such session")
            return
        session.ends = now + session.life
        if verb == "disconnect":
            self._disconnect(session, body)
            return
        if len(body) > self.policy.limits.body:
            state.refuse(session_id, verb, bodies.message_in(body), Code.TOO_LARGE, f"a body has at most {self.policy.limits.body} bytes")
            return
        message = None
        try:
            read = bodies.unpack(body)
            if verb == "ack":
                self._acknowledge(session, bodies.number_of(read, session.number))
                return
            if verb == "publish" and "message" not in read:
                self.publishing.publish_unanswered(session, read)
                return
            message = bodies.message_of(read)
            if verb == "resume":
                self._resume(session, message, bodies.number_of(read, session.number))
            elif verb == "publish":
                self.publishing.publish(session, bodies.publish_request(read))
            elif verb == "subscribe":
                self.subscriptions.subscribe(session, bodies.subscribe_request(read))
            else:
                self.subscriptions.unsubscribe(session, bodies.subscribe_request(read))
        except BodyError as error:
            if verb in ("ack", "resume") and not self.ours():
                return  # of a publication that another metabroker has sent, which has the session and answers
            state.refuse(session_id, verb, bodies.message_in(body) if message is None else message, Code.MALFORMED, str(error))

    # Connect

    def _connect(self, asked: Request, sender: str | None, now: float) -> None:
        """sender: who sent the request, by its topic or by the broker's word; None: the broker does not say."""
        found = self._read_connect(asked.body, sender)
        if found is None:
            return
        client, request, name = found
        if not self.roster.connect(asked, client, name, (request.username, request.password), bodies.site_of(asked.properties), now):
            return
        rule = self.policy.rule(client, name)
        if rule is None:
            self._no_session(client, Code.REFUSED_BY_POLICY, "the policy does not allow this remote to this client")
            return
        own = rule.username is not None or rule.credentials is not None
        account = (rule.username, rule.password) if own else (request.username, request.password)
        credentials = Credentials(name, *account, rule)
        if request.durable:
            if self.persistence is None:
                self._no_session(client, Code.NOT_SUPPORTED, "this metabroker keeps nothing: it has no folder for data")
                return
            if not request.clean and self.roster.absent(client, name, (request.username, request.password)):
                self._no_session(client, Code.REMOTE_UNREACHABLE, AWAY)
                return
            earlier = self._durable_session(client, credentials)
            if earlier is not None and not request.clean:
                self._come_back(earlier, request.durable, now)
                return
            if earlier is not None:
                self._end(earlier)
        if self._is_full(client):
            self._make_room(client, now)
        if self._is_full(client):
            self._no_session(client, Code.TOO_MANY_SESSIONS, "there are too many sessions")
        else:
            self._join(client, credentials, request.durable, request.expiry, now)

    def _read_connect(self, body: bytes, sender: str | None) -> tuple[str, bodies.ConnectRequest, str] | None:
        """Who asks for what, and the remote's address or name; None: it is refused."""
        client = sender if sender is not None and bodies.is_client(sender) else None
        most = self.policy.limits.body
        try:
            if len(body) > most:
                raise BodyError(f"a body has at most {most} bytes")
            read = bodies.unpack(body)
            client = bodies.client_of(read, sender)
            if sender != client:
                self._not_theirs(client, sender)
                return None
            request = bodies.connect_request(read)
            if "://" not in request.remote:
                return client, request, request.remote
            try:
                return client, request, str(parse_address(request.remote, REMOTE))
            except ValueError as error:
                raise BodyError(f"remote: {error}") from None
        except BodyError as error:
            if client is None:
                self._state.do(LogLine(True, f"event=request-ignored request=connect error={str(error)!r}", "connect ignored"))
            elif self.roster.speaks(client):
                self._no_session(client, Code.TOO_LARGE if len(body) > most else Code.MALFORMED, str(error))
            return None

    def _is_full(self, client: str) -> bool:
        limits = self.policy.limits
        return len(self.sessions) >= limits.sessions or self._clients.get(client_name(client), 0) >= limits.sessions_per_client

    def _not_theirs(self, client: str, sender: str | None) -> None:
        """A request whose sender is another client, which it is told, or is not known. Nothing counts for the client that it names."""
        if not self.roster.speaks(client):
            return
        code = Code.REFUSED_BY_POLICY
        if sender is None:
            self._no_session(client, code, f"this broker does not say who sent the request: publish it to {connect_topic(client)}")
            return
        text = f"event=connect-refused client={client!r} sender={sender!r} code={code.name} error='not its name'"
        self._state.do(LogLine(True, text, f"name {sender}"))
        if bodies.is_client(sender):
            self._state.answer(sender, "connack", code=code, reason=f"client: your client identifier here is {sender!r}")

    def _no_session(self, client: str, code: Code, reason: str) -> None:
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1
        self._state.do(
            LogLine(True, f"event=connect-refused client={client!r} code={code.name} error={reason!r}", f"connect {client} {code.name}")
        )
        self._state.answer(client, "connack", code=code, reason=reason)

    def _join(self, client: str, credentials: Credentials, durable: int, expiry: int, now: float) -> None:
        shared = self._shared.get(credentials)
        if shared:
            remote = next(iter(shared.values()))
        else:
            remote = self.add_remote(credentials, self.new_client_id() if self.persistence is not None else "")
            if self.persistence is not None:
                self.persistence.put_remote(remote)
            self.reach(remote)
        remote.leaves = None
        session = self.add_session(f"{client}/{self._new_id()}", client, remote, credentials.rule, durable, now, expiry)
        if remote.ready:
            self._accept(session)
        else:
            remote.joining[session.id] = now + self.policy.limits.connect
            self._next_look = 0.0

    def new_client_id(self) -> str:
        """As which client we become known at a remote."""
        return f"metabroker-{self._new_id()}"

    def add_remote(self, credentials: Credentials, client_id: str) -> Remote:
        """A remote that nobody has used yet."""
        remote = Remote(self._state.new_token(), credentials, client_id=client_id)
        self._shared.setdefault(credentials, {})[remote.number] = remote
        self.remotes[remote.number] = remote
        return remote

    def add_session(self, id_: str, client: str, remote: Remote, rule: Rule, durable: int, now: float, expiry: int = 0) -> Session:
        """A session that nobody has used yet.

        durable: seconds that it is kept without a request, 0: it is not durable; expiry: what its client asks for then, 0: nothing.
        """
        limits = self.policy.limits
        life = min(durable, limits.durable) if durable else min(expiry or limits.idle, limits.idle)
        session = Session(id_, client, remote, rule, now + life, life)
        if durable:
            session.durable = Durable(life)
        self.sessions[id_] = session
        name = client_name(client)
        self._clients[name] = self._clients.get(name, 0) + 1
        remote.sessions.add(id_)
        self.roster.begin(id_, client, key_of_remote(remote.credentials), bool(durable))
        return session

    def reach(self, remote: Remote) -> None:
        """Connect to a remote, or find its addresses first."""
        name = remote.credentials.remote
        if "://" in name:
            self._open(remote, [name])
        else:
            self._state.do(Resolve(remote.number, name))

    def _open(self, remote: Remote, addresses: list[str]) -> None:
        state = self._state
        _, username, password, rule = remote.credentials
        opened = Open(remote.number, addresses, username, password, rule)
        if self.persistence is not None:
            opened = opened._replace(client_id=remote.client_id, known=remote.ready, expiry=self.policy.limits.durable)
        if self.persistence is not None and not remote.ready:
            state.do(AfterCommit([opened]))  # so that nobody is left at the remote of whom we know nothing
        else:
            state.do(opened)
        for send in remote.let_go():
            state.do(send)

    def _accept(self, session: Session) -> None:
        remote = session.remote
        remote.joining.pop(session.id, None)
        self._state.log_session("begin", session)
        if self.persistence is not None:
            self.persistence.put_session(session)
        self._answer_session(session, None if session.durable is None else False)

    def _answer_session(self, session: Session, present: bool | None) -> None:
        """The connack: which session it is, how much it may ask, and how its remote is: no `status` reaches it before it has subscribed."""
        limits = self.policy.limits
        bounds = {"body": limits.body, "requests": limits.waiting, "quiet": True, **session.remote.status()}
        self._state.answer_after_commit(session.client, "connack", code=Code.OK, session=session.id, present=present, **bounds)
        if session.durable is not None and self.persistence is not None:
            self.roster.answered(session.id, self._state.now + self.persistence.offset)

    # Durable sessions

    def _durable_session(self, client: str, credentials: Credentials) -> Session | None:
        """The durable session of a client with a remote."""
        if client_name(client) not in self._clients:
            return None
        for remote in self.remotes.values():  # two of the same credentials, if one was taken over
            for session_id in remote.sessions if remote.credentials == credentials else ():
                session = self.sessions[session_id]
                if session.client == client and session.durable is not None:
                    return session
        return None

    def _come_back(self, session: Session, durable: int, now: float) -> None:
        """The client of a durable session connects again: it learns its session, and gets missing publications when it resumes."""
        if session.id in session.remote.joining:
            return  # the answer is still to come
        assert self.persistence is not None
        assert session.durable is not None
        session.durable.expiry = min(durable, self.policy.limits.durable)
        session.life = session.durable.expiry
        session.ends = now + session.life
        self.persistence.leave(session)
        self._answer_session(session, True)

    def _resume(self, session: Session, message: str | int, number: int) -> None:
        durable = session.durable
        if durable is None or self.persistence is None:
            self._state.answer(session.id, "resume", message=message, code=Code.OK, id=session.number)
            return
        number = max(number, durable.acked)
        waiting = session.number - number
        sent = max(durable.sent, number)
        self._state.answer_after_commit(
            session.id, "resume", message=message, code=Code.OK, id=session.number, waiting=waiting, dropped=durable.dropped, sent=sent
        )
        self.persistence.resume(session, number)

    def _acknowledge(self, session: Session, number: int) -> None:
        if session.durable is not None and self.persistence is not None:
            self.persistence.acknowledge(session, number)

    def _disconnect(self, session: Session, body: bytes) -> None:
        """A durable session that holds subscriptions outlives this, unless the client wants it clean."""
        try:
            clean = bodies.unpack(body).get("clean") is True
        except BodyError:
            clean = False
        stays = session.durable is not None and bool(session.filters or session.open) and not clean
        if stays and self.persistence is not None:
            self.persistence.leave(session)
        else:
            self._end(session)
        self._state.answer_after_commit(session.id, "disconnect", code=Code.OK, present=True if stays else None)

    def _gone(self, client: str, now: float) -> None:
        """A client has vanished: its sessions end soon unless it goes on in them, and nothing is sent in durable ones until it resumes."""
        for session in [one for one in self.sessions.values() if client in (one.client, client_name(one.client))]:
            if session.id in session.remote.joining:
                continue
            if session.durable is None:
                session.ends = min(session.ends, now + GRACE)
            elif self.persistence is not None:
                self.persistence.leave(session)

    def _make_room(self, client: str, now: float) -> None:
        """A client that comes back may have no session more: those that end soon end now."""
        for session in [one for one in self.sessions.values() if client_name(one.client) == client_name(client) and one.durable is None]:
            if session.ends <= now + GRACE and session.id not in session.remote.joining:
                self._end(session)

    def on_fetched(self, session_id: str, token: int, last: int, rows: list[tuple[StoredDelivery, StoredRun]] | None) -> None:
        """The answer to `Fetch`: rows as the store has them; None: it failed."""
        session = self.sessions.get(session_id)
        if session is not None and self.persistence is not None:
            self.persistence.on_fetched(session, token, last, rows)

    def service(self, number: int) -> str:
        """The service that a remote was asked for as; "" when it was asked for by its address, or is gone."""
        remote = self.remotes.get(number)
        return remote.credentials.remote if remote is not None and "://" not in remote.credentials.remote else ""

    def on_resolved(self, number: int, addresses: list[str], error: str, now: float) -> None:
        """The answer to `Resolve`: addresses, or none and why."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        good = []
        for text in addresses:
            try:
                good.append(str(parse_address(text, REMOTE)))
            except ValueError:
                self._state.do(LogLine(True, f"event=address-ignored service={remote.credentials.remote!r} address={text[:80]!r}"))
        if good:
            self._open(remote, good)
        elif remote.ready:  # of sessions from before this process
            remote.reason = error or "the service has no address that can be used"
            remote.retry = now + RETRY
        else:
            self._fail_joining(remote, Code.NO_SUCH_SERVICE, error or "the service has no address that can be used")

    def on_not_permitted(self, number: int, reason: str, now: float) -> None:
        """The directory does not give us the addresses of a service, or no longer: there are no sessions with it."""
        self._state.now = now
        remote = self.remotes.get(number)
        if remote is None:
            return
        self._fail_joining(remote, Code.REFUSED_BY_POLICY, reason)
        for session_id in list(remote.sessions):
            self.refuse_restored(self.sessions[session_id], reason)

    def _fail_joining(self, remote: Remote, code: Code, reason: str) -> None:
        for session_id in list(remote.joining):
            session = self.sessions[session_id]
            self._end(session)
            self._no_session(session.client, code, reason)

    # The end of a session

    def _end(self, session: Session) -> None:
        """Forget a session, and its remote with the last one."""
        remote = session.remote
        del self.sessions[session.id]
        name = client_name(session.client)
        left = self._clients[name] - 1
        if left:
            self._clients[name] = left
        else:
            del self._clients[name]
        remote.sessions.discard(session.id)
        remote.joining.pop(session.id, None)
        self._state.log_session("end", session)
        self.roster.end(session.id)
        if self.persistence is not None:
            self.persistence.forget_session(session)
        if not remote.sessions and (remote.up or not remote.ready or self.persistence is None):
            self._leave(remote)
        else:
            for filter_ in session.filters:
                self.subscriptions.release(remote, filter_, session.id)
            if not remote.sessions:  # it keeps a session of ours, which we end when it is up again
                remote.leaves = self._state.now + self.policy.limits.durable
        self.publishing.forget_session(session)
        self.subscriptions.forget_session(session.id)

    def _leave(self, remote: Remote) -> None:
        """Nobody needs a remote any more."""
        del self.remotes[remote.number]
        shared = self._shared[remote.credentials]
        del shared[remote.number]
        if not shared:
            del self._shared[remote.credentials]
        self.subscriptions.forget_remote(remote)
        if self.persistence is not None:
            self.persistence.forget_remote(remote)
        self._state.do(Close(remote.number))

    # Sessions from before

    def come_back(self, sessions: list[Session], taken: bool) -> None:
        """Sessions go on after a restart: tell the clients, and send what is pending. taken: they were another metabroker's until now."""
        tell = self._state.tell_after_commit if taken else self._state.tell_status
        for session in sessions:
            tell(session, Code.RESUMED, "the metabroker has been restarted: repeat the requests that have no answer")
            if session.durable is not None and self.persistence is not None:
                self.persistence.pump(session)
        if sessions:
            remotes = len({session.remote.number for session in sessions})
            self._state.do(LogLine(False, f"event=sessions-resumed sessions={len(sessions)} remotes={remotes}"))

    def refuse_restored(self, session: Session, reason: str = "the policy does not allow this remote to this client any more") -> None:
        """A session from before that is not allowed any more."""
        self._state.tell_status(session, Code.SESSION_ENDED, reason)
        self._end(session)

    def note(self, text: str) -> None:
        """A warning for the log."""
        self._state.do(LogLine(True, text))

    # Other metabrokers

    def on_peers(self, now: float) -> list[Request]:
        """What others said has been heard: tell clients of those that are gone. Returns requests that are to be decided now."""
        roster = self.roster
        dead, roster.dead = roster.dead, []
        again, roster.again = roster.again, []
        for member in dead:
            self._state.do(LogLine(False, f"event=metabroker-gone number={member.number:08x} sessions={len(member.sessions)}"))
            for session_id, note in roster.move(member):
                if session_id in self.sessions:
                    continue
                if note.durable:
                    self._state.answer(session_id, "status", code=Code.REMOTE_UNREACHABLE, reason=AWAY)
                else:
                    self._state.answer(session_id, "status", code=Code.SESSION_ENDED, reason=MOVED)
        if roster.outlived:
            roster.outlived = False
            for session in [one for one in self.sessions.values() if one.durable is None]:
                self._state.tell_status(session, Code.SESSION_ENDED, MOVED)
                self._end(session)
        for session in [self.sessions[one] for one in roster.outdated()] if roster.compare else ():
            if session.id not in session.remote.joining:
                self._state.tell_status(session, Code.SESSION_ENDED, NEWER)
                self._end(session)
        return again

    # What remotes say

    def on_up(self, number: int, present: bool, abilities: Abilities) -> None:
        """A connection is accepted. present: the remote has kept the subscriptions."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        returned, remote.ready, remote.up, remote.abilities = remote.ready, True, True, abilities
        self._state.do(LogLine(False, f"event=remote-up remote={remote.credentials.remote} session_present={str(present).lower()}"))
        if remote.leaves is not None:
            self._leave(remote)
            return
        if returned:
            self._tell(remote)
        for session_id in list(remote.joining):
            self._accept(self.sessions[session_id])
        self.subscriptions.on_up(remote, present)

    def on_failed(self, number: int, code: Code, reason: str) -> None:
        """A connection has ended, or every address was tried in vain; it is tried again for the sessions that exist."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        was_up, remote.up = remote.up, False
        changed = reason != remote.reason or was_up
        remote.code, remote.reason = code, reason
        if changed:
            self._state.do(LogLine(True, f"event=remote-down remote={remote.credentials.remote} code={code.name} error={reason!r}"))
        if not remote.ready:
            self._fail_joining(remote, code, reason)
        elif changed:
            self._tell(remote)

    def _tell(self, remote: Remote) -> None:
        """Tell the sessions of a remote how it is, now or in portions."""
        if len(remote.sessions) > TOLD:
            self.untold.update(dict.fromkeys(remote.sessions))
            return
        for session_id in remote.sessions:
            self._state.tell_status(self.sessions[session_id], Code.OK if remote.up else remote.code, "" if remote.up else remote.reason)

    def tell_some(self) -> bool:
        """Tell some of the sessions that do not know how their remotes are. Returns whether there are more."""
        for session_id in list(islice(self.untold, TOLD)):
            del self.untold[session_id]
            session = self.sessions.get(session_id)
            if session is not None:
                remote = session.remote
                self._state.tell_status(session, Code.OK if remote.up else remote.code, "" if remote.up else remote.reason)
        return bool(self.untold)

    def on_congested(self, number: int, congested: bool) -> None:
        """Whether a remote takes bytes more slowly than they come."""
        remote = self.remotes.get(number)
        if remote is not None:
            remote.congested = congested

    def on_message(self, number: int, publish: Publish, epoch: int) -> None:
        """A remote has sent a message: to each session that it is for."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        responses = []
        durable: list[tuple[Session, int]] = []
        self.counts.incoming += 1
        for session_id, wanted in remote.recipients(publish).items():
            session = self.sessions[session_id]
            qos = min(wanted, publish.qos)
            self.counts.delivered += 1
            if session.durable is None:
                session.number += 1
                body = bodies.publication(session.number, publish, qos, publish.retain)
            elif qos:
                durable.append((session, qos))
                continue
            elif session.durable.away:
                continue
            else:
                body = bodies.publication(0, publish, qos, publish.retain)
            responses.append(Respond(response_topic(session_id, "publish"), body, qos))
        kept = bool(durable) and self.persistence is not None and self.persistence.collect(publish, durable)
        self._state.do(Deliver(number, publish.packet_id, epoch, responses, kept))

    # Time

    def next_deadline(self) -> float:
        """When `on_timer` is to be called, at the latest."""
        return self._next_look

    def on_timer(self, now: float) -> None:
        """Answer connect requests that took too long; end sessions without a request, `AT_ONCE` of them in one call."""
        if now < self._next_look:
            return
        self._state.now = now
        left = AT_ONCE
        for session in list(self.sessions.values()):
            until = session.remote.joining.get(session.id)
            if until is not None and now >= until:
                self._end(session)
                self._no_session(session.client, Code.REMOTE_UNREACHABLE, session.remote.reason or "the remote does not answer")
                left -= 1
            elif until is None and now >= session.ends:
                self._state.tell_status(session, Code.SESSION_ENDED, f"no request for {session.life:.0f} s")
                self._end(session)
                left -= 1
            elif session.durable is not None and self.persistence is not None:
                self.persistence.on_timer(session, now)
            if not left:
                break
        for remote in list(self.remotes.values()) if left else ():
            if remote.leaves is not None and now >= remote.leaves:
                self._leave(remote)
            elif remote.retry is not None and now >= remote.retry:
                remote.retry = None
                self.reach(remote)
        self.publishing.unanswered.on_timer(now)
        self._next_look = now + 1.0 if left else now


def key_of_remote(credentials: Credentials) -> bytes:
    """What sessions have in common that share a connection, as other metabrokers know it."""
    rule = credentials.rule
    return key_of(credentials.remote, own_account(rule) or account_of(credentials.username, credentials.password))
