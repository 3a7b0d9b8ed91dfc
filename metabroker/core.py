"""The metabroker's machine: requests of clients and what remotes say in, actions out. No socket, clock, task or log.

Strategy: a *session* is one client's use of one remote; a *remote* (`remote.py`) is one connection with one set of credentials, made for
the first session that needs it and left with the last one. A request is answered when the remote has answered, and each request is
answered once; the core remembers the last identifiers of a session's requests to publish, so that one that comes again is not published
again. Everything that can grow has a bound in the policy.

Invariants
- a session is in `sessions` from its connect request until its end; its identifier is known to nobody before its connack;
- a session's messages come from its own remote, for its own filters;
- an error in a request changes nothing but what its answer says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..mqtt.packets import Publish
from ..mqtt.reasons import Reason
from . import bodies
from .actions import Action, Ask, Close, Deliver, Drop, Note, Open, Resolve, Respond, Send
from .address import parse_address
from .bodies import BodyError
from .codes import Code
from .policy import Policy, Rule
from .remote import Credentials, Held, Remote, Waiter
from .wire import Abilities, fits

REQUEST = "metabroker/request/"
RESPONSE = "metabroker/response/"
ANSWERS = {"publish": "puback", "subscribe": "suback", "unsubscribe": "unsuback", "disconnect": "discack"}
LONGEST_SESSION = 64  # characters of a session's identifier


@dataclass(slots=True)
class Session:
    """One client's use of one remote. filters: what it holds or waits for. done: message identifier -> code, None while under way."""

    id: str
    client: str
    remote: Remote
    rule: Rule
    ends: float
    filters: set[str] = field(default_factory=set)
    done: OrderedDict[str | int, Code | None] = field(default_factory=OrderedDict)
    open: int = 0  # publish and subscribe requests without an answer
    number: int = 0  # of its last incoming publication


@dataclass(slots=True)
class _Subscribe:
    """A subscribe request under way: how many filters have no answer, and the codes of the others."""

    session: str
    message: str | int
    codes: list[int]
    left: int


class Core:
    """new_id: gives identifiers that nobody can guess."""

    def __init__(self, policy: Policy, new_id: Callable[[], str]) -> None:
        self.policy = policy
        self.sessions: dict[str, Session] = {}
        self.remotes: dict[int, Remote] = {}
        self._new_id = new_id
        self._shared: dict[Credentials, Remote] = {}
        self._clients: dict[str, int] = {}  # client -> its sessions
        self._published: dict[int, tuple[str, str | int]] = {}  # token -> session, message
        self._subscribing: dict[int, _Subscribe] = {}  # request -> what is known
        self._places: dict[int, dict[str, list[int]]] = {}  # request -> filter -> places in the answer
        self._askings: dict[int, Held] = {}  # token -> filter
        self._last = 0  # token, request and remote
        self._actions: list[Action] = []
        self._next_look = 0.0

    def take(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _token(self) -> int:
        self._last += 1
        return self._last

    # Requests

    def on_request(self, topic: str, body: bytes, now: float) -> None:
        """A message has come from the community under `metabroker/request/`."""
        if topic == REQUEST + "connect":
            self._connect(body, now)
            return
        session_id, _, verb = topic.removeprefix(REQUEST).partition("/")
        if verb not in ANSWERS or not topic.startswith(REQUEST) or not 0 < len(session_id) <= LONGEST_SESSION:
            self._do(Note(True, f"event=request-ignored topic={topic[:80]!r} error=unknown-request"))
            return
        session = self.sessions.get(session_id)
        if session is None or session_id in session.remote.joining:
            self._refuse(session_id, verb, None, Code.UNKNOWN_SESSION, "there is no such session")
            return
        session.ends = now + self.policy.limits.idle
        if verb == "disconnect":
            self._end(session)
            self._answer(session_id, verb, code=Code.OK)
            return
        if len(body) > self.policy.limits.body:
            self._refuse(session_id, verb, None, Code.TOO_LARGE, f"a body has at most {self.policy.limits.body} bytes")
            return
        message = None
        try:
            read = bodies.unpack(body)
            message = bodies.message_of(read)
            if verb == "publish":
                self._publish(session, bodies.publish_request(read))
            elif verb == "subscribe":
                self._subscribe(session, bodies.subscribe_request(read))
            else:
                self._unsubscribe(session, bodies.subscribe_request(read))
        except BodyError as error:
            self._refuse(session_id, verb, message, Code.MALFORMED, str(error))

    def _answer(self, session_id: str, verb: str, **items: Any) -> None:
        self._do(Respond(f"{RESPONSE}{session_id}/{ANSWERS.get(verb, verb)}", bodies.pack(**items), 1))

    def _refuse(self, session_id: str, verb: str, message: str | int | None, code: Code, reason: str) -> None:
        session = self.sessions.get(session_id)
        who = f"client={session.client!r}" if session is not None else "client=unknown"
        self._do(Note(True, f"event=request-refused request={verb} {who} code={code.name} error={reason!r}"))
        self._answer(session_id, verb, message=message, code=code, reason=reason)

    # Connect

    def _connect(self, body: bytes, now: float) -> None:
        client = None
        limits = self.policy.limits
        try:
            if len(body) > limits.body:
                raise BodyError("the body is too large")
            read = bodies.unpack(body)
            client = bodies.client_of(read)
            request = bodies.connect_request(read)
            if "://" in request.remote:
                try:
                    name = str(parse_address(request.remote))
                except ValueError as error:
                    raise BodyError(f"remote: {error}") from None
            else:
                name = request.remote
        except BodyError as error:
            if client is None:
                self._do(Note(True, f"event=request-ignored request=connect error={str(error)!r}"))
            else:
                self._no_session(client, Code.MALFORMED, str(error))
            return
        rule = self.policy.rule(client, name)
        if rule is None:
            self._no_session(client, Code.REFUSED_BY_POLICY, "the policy does not allow this remote to this client")
        elif len(self.sessions) >= limits.sessions or self._clients.get(client, 0) >= limits.sessions_per_client:
            self._no_session(client, Code.TOO_MANY_SESSIONS, "there are too many sessions")
        else:
            self._join(client, Credentials(name, request.username, request.password, rule), now)

    def _no_session(self, client: str, code: Code, reason: str) -> None:
        self._do(Note(True, f"event=connect-refused client={client!r} code={code.name} error={reason!r}"))
        self._answer(client, "connack", code=code, reason=reason)

    def _join(self, client: str, credentials: Credentials, now: float) -> None:
        remote = self._shared.get(credentials)
        if remote is None:
            remote = Remote(self._token(), credentials)
            self._shared[credentials] = remote
            self.remotes[remote.number] = remote
            if "://" in credentials.remote:
                self._open(remote, [credentials.remote])
            else:
                self._do(Resolve(remote.number, credentials.remote))
        session = Session(self._new_id(), client, remote, credentials.rule, now + self.policy.limits.idle)
        self.sessions[session.id] = session
        self._clients[client] = self._clients.get(client, 0) + 1
        remote.sessions.add(session.id)
        if remote.ready:
            self._accept(session)
        else:
            remote.joining[session.id] = now + self.policy.limits.connect
            self._next_look = 0.0

    def _open(self, remote: Remote, addresses: list[str]) -> None:
        credentials = remote.credentials
        self._do(Open(remote.number, addresses, credentials.username, credentials.password, credentials.rule))

    def _accept(self, session: Session) -> None:
        remote = session.remote
        remote.joining.pop(session.id, None)
        self._note_session("begin", session)
        self._answer(session.client, "connack", code=Code.OK, session=session.id)
        if not remote.up:
            self._status(session, Code.REMOTE_UNREACHABLE, remote.reason)

    def on_resolved(self, number: int, addresses: list[str], error: str, now: float) -> None:
        """The answer to `Resolve`: addresses, or none and why."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        good = []
        for text in addresses:
            try:
                good.append(str(parse_address(text)))
            except ValueError:
                self._do(Note(True, f"event=address-ignored service={remote.credentials.remote!r} address={text[:80]!r}"))
        if good:
            self._open(remote, good)
        else:
            self._fail_joining(remote, Code.NO_SUCH_SERVICE, error or "the service has no address that can be used")

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
        left = self._clients[session.client] - 1
        if left:
            self._clients[session.client] = left
        else:
            del self._clients[session.client]
        remote.sessions.discard(session.id)
        remote.joining.pop(session.id, None)
        self._note_session("end", session)
        if not remote.sessions:
            del self._shared[remote.credentials]
            del self.remotes[remote.number]
            self._askings = {token: held for token, held in self._askings.items() if remote.held.get(held.filter) is not held}
            self._do(Close(remote.number))
        else:
            for filter_ in session.filters:
                self._release(remote, filter_, session.id)
        if session.open:
            self._published = {token: to for token, to in self._published.items() if to[0] != session.id}
        for request in [number for number, one in self._subscribing.items() if one.session == session.id]:
            del self._subscribing[request]
            del self._places[request]

    def _release(self, remote: Remote, filter_: str, session_id: str) -> None:
        if remote.release(filter_, session_id) and remote.up:
            self._do(Drop(remote.number, filter_))

    def _note_session(self, what: str, session: Session) -> None:
        remote = session.remote
        text = f"event=session-{what} client={session.client!r} remote={remote.credentials.remote} sharers={len(remote.sessions)}"
        self._do(Note(False, text))

    def _status(self, session: Session, code: Code, reason: str | None = None) -> None:
        self._answer(session.id, "status", code=code, reason=reason or None)

    # Publish

    def _publish(self, session: Session, request: bodies.PublishRequest) -> None:
        message, publish, remote = request.message, request.publish, session.remote
        if message in session.done:
            code = session.done[message]
            if code is not None:  # the answer got lost, or the request came twice
                self._answer(session.id, "publish", message=message, code=code)
            return
        if not session.rule.may_publish(publish.topic):
            self._refuse(session.id, "publish", message, Code.REFUSED_BY_POLICY, "the policy does not allow this topic")
        elif session.open >= self.policy.limits.waiting or remote.congested:
            self._refuse(session.id, "publish", message, Code.TOO_MANY_REQUESTS, "too many requests have no answer yet")
        elif (cannot := _cannot(remote.abilities, publish)) is not None:
            self._refuse(session.id, "publish", message, *cannot)
        elif not publish.qos and not remote.up:
            self._refuse(session.id, "publish", message, Code.REMOTE_UNREACHABLE, remote.reason)
        elif not publish.qos:
            self._do(Send(remote.number, 0, publish))
            self._remember(session, message, Code.OK)
            self._answer(session.id, "publish", message=message, code=Code.OK)
        else:
            token = self._token()
            self._published[token] = (session.id, message)
            self._remember(session, message, None)
            session.open += 1
            self._do(Send(remote.number, token, publish))

    def _remember(self, session: Session, message: str | int, code: Code | None) -> None:
        """Keep the identifier; the oldest one makes room."""
        session.done[message] = code
        while len(session.done) > 2 * self.policy.limits.waiting:
            session.done.popitem(last=False)

    def on_published(self, token: int, reason: int) -> None:
        """The remote has acknowledged or refused what was sent under a token."""
        session_id, message = self._published.pop(token, ("", ""))
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.open -= 1
        if reason < 0x80:
            if message in session.done:
                session.done[message] = Code.OK
            self._answer(session.id, "publish", message=message, code=Code.OK)
        else:
            session.done.pop(message, None)
            self._refuse(session.id, "publish", message, Code.REMOTE_REFUSED, _words(reason))

    # Subscribe

    def _subscribe(self, session: Session, request: bodies.SubscribeRequest) -> None:
        limits, remote, message = self.policy.limits, session.remote, request.message
        if request.durable:
            self._refuse(session.id, "subscribe", message, Code.NOT_SUPPORTED, "durable subscriptions are not served yet")
            return
        if any(filter_.startswith("$share/") for filter_ in request.topics):
            self._refuse(session.id, "subscribe", message, Code.NOT_SUPPORTED, "shared subscriptions are not served")
            return
        if not all(session.rule.may_subscribe(filter_) for filter_ in request.topics):
            self._refuse(session.id, "subscribe", message, Code.REFUSED_BY_POLICY, "the policy does not allow this filter")
            return
        if len(session.filters.union(request.topics)) > limits.subscriptions or session.open >= limits.waiting:
            self._refuse(session.id, "subscribe", message, Code.TOO_MANY_REQUESTS, "too many subscriptions, or requests without an answer")
            return
        if not request.topics:
            self._answer(session.id, "subscribe", message=message, code=Code.OK, codes=[])
            return
        number = self._token()
        places: dict[str, list[int]] = {}
        for index, filter_ in enumerate(request.topics):
            places.setdefault(filter_, []).append(index)
        self._subscribing[number] = _Subscribe(session.id, message, [0] * len(request.topics), len(places))
        self._places[number] = places
        session.open += 1
        for filter_ in places:
            session.filters.add(filter_)
            held = remote.hold(filter_)
            held.next.append(Waiter(session.id, number, request.qos))
            self._ask(remote, held)

    def _ask(self, remote: Remote, held: Held) -> None:
        """Ask for a filter on behalf of those who wait, if nothing is under way."""
        if held.token or not held.next or not remote.up:
            return
        held.asking, held.next = held.next, []
        self._send_ask(remote, held, frozenset(waiter.session for waiter in held.asking))

    def _send_ask(self, remote: Remote, held: Held, who: frozenset[str]) -> None:
        held.token = self._token()
        self._askings[held.token] = held
        for waiter in held.asking:  # from now on: what is retained may come before the answer does (3.8.4)
            remote.grant(held, waiter.session, waiter.qos)
        self._do(Ask(remote.number, held.token, held.filter, held.wanted(), remote.number_for(held, who)))

    def on_subscribed(self, number: int, token: int, reason: int) -> None:
        """The remote has answered an asking: granted QoS, or a refusal."""
        held = self._askings.pop(token, None)
        remote = self.remotes.get(number)
        if held is None or remote is None or held.token != token:
            return
        held.token = 0
        waiters, held.asking = held.asking, []
        if reason < 0x80:
            held.granted = reason
            for waiter in waiters:
                self._settle(waiter, held.filter, min(waiter.qos, reason))
        else:
            self._subscribe_refused(remote, held, waiters, reason)
        self._ask(remote, held)
        if held.idle() and not held.token:
            remote.forget(held)
            if remote.up and reason < 0x80:
                self._do(Drop(remote.number, held.filter))

    def _subscribe_refused(self, remote: Remote, held: Held, waiters: list[Waiter], reason: int) -> None:
        """Who asked does not get the filter; if the remote has none of ours any more, nobody has it."""
        self._do(Note(True, f"event=subscribe-refused remote={remote.credentials.remote} error={_words(reason)!r}"))
        asked = {waiter.session for waiter in waiters}
        for session_id in list(held.holders) if held.granted < 0 else asked:
            held.holders.pop(session_id, None)
            remote.tree.remove(held.filter, session_id)
            session = self.sessions[session_id]
            if not any(waiter.session == session_id for waiter in held.next):
                session.filters.discard(held.filter)
            if session_id not in asked:
                self._status(session, Code.REMOTE_REFUSED, f"{held.filter}: {_words(reason)}")
        for waiter in waiters:
            self._settle(waiter, held.filter, reason)

    def _settle(self, waiter: Waiter, filter_: str, code: int) -> None:
        """One filter of a subscribe request has its answer; the request has, with the last one."""
        request = self._subscribing.get(waiter.request)
        if request is None:
            return
        for place in self._places[waiter.request][filter_]:
            request.codes[place] = code
        request.left -= 1
        if request.left:
            return
        del self._subscribing[waiter.request]
        del self._places[waiter.request]
        self.sessions[request.session].open -= 1
        refused = all(code >= 0x80 for code in request.codes)
        reason = _words(request.codes[0]) if refused else None
        code_ = Code.REMOTE_REFUSED if refused else Code.OK
        self._answer(request.session, "subscribe", message=request.message, code=code_, reason=reason, codes=request.codes)

    def _unsubscribe(self, session: Session, request: bodies.SubscribeRequest) -> None:
        for filter_ in request.topics:
            if filter_ in session.filters:
                session.filters.discard(filter_)
                held = session.remote.held[filter_]
                waiters = [waiter for waiter in (*held.asking, *held.next) if waiter.session == session.id]
                self._release(session.remote, filter_, session.id)
                for waiter in waiters:
                    self._settle(waiter, filter_, Reason.UNSPECIFIED_ERROR)
        self._answer(session.id, "unsubscribe", message=request.message, code=Code.OK)

    # What remotes say

    def on_up(self, number: int, present: bool, abilities: Abilities) -> None:
        """A connection is accepted. present: the remote has kept the subscriptions."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        returned, remote.ready, remote.up, remote.abilities = remote.ready, True, True, abilities
        self._do(Note(False, f"event=remote-up remote={remote.credentials.remote} session_present={str(present).lower()}"))
        if returned:
            for session_id in remote.sessions:
                self._status(self.sessions[session_id], Code.OK)
        for session_id in list(remote.joining):
            self._accept(self.sessions[session_id])
        for held in list(remote.held.values()):
            if held.token:  # its answer went with the connection
                self._askings.pop(held.token, None)
                held.token = 0
                held.next[:0] = held.asking
                held.asking = []
            if held.idle():
                remote.forget(held)
            elif held.holders and not present:
                held.granted = -1
                held.asking, held.next = held.next, []
                self._send_ask(remote, held, frozenset((*held.holders, *(waiter.session for waiter in held.asking))))
            else:
                self._ask(remote, held)

    def on_failed(self, number: int, code: Code, reason: str) -> None:
        """A connection has ended, or every address was tried in vain; it is tried again for the sessions that exist."""
        remote = self.remotes.get(number)
        if remote is None:
            return
        was_up, remote.up = remote.up, False
        changed = reason != remote.reason or was_up
        remote.reason = reason
        if changed:
            self._do(Note(True, f"event=remote-down remote={remote.credentials.remote} code={code.name} error={reason!r}"))
        if not remote.ready:
            self._fail_joining(remote, code, reason)
        elif changed:
            for session_id in remote.sessions:
                self._status(self.sessions[session_id], code, reason)

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
        for session_id, wanted in remote.recipients(publish).items():
            session = self.sessions[session_id]
            session.number += 1
            qos = min(wanted, publish.qos)
            body = bodies.publication(session.number, publish, qos, publish.retain)
            responses.append(Respond(f"{RESPONSE}{session_id}/publish", body, qos))
        self._do(Deliver(number, publish.packet_id, epoch, responses))

    # Time

    def next_deadline(self) -> float:
        """When `on_timer` is to be called, at the latest."""
        return self._next_look

    def on_timer(self, now: float) -> None:
        """Answer connect requests that took too long; end sessions without a request."""
        if now < self._next_look:
            return
        for session in list(self.sessions.values()):
            until = session.remote.joining.get(session.id)
            if until is not None and now >= until:
                self._end(session)
                self._no_session(session.client, Code.REMOTE_UNREACHABLE, session.remote.reason or "the remote does not answer")
            elif until is None and now >= session.ends:
                self._status(session, Code.SESSION_ENDED, f"no request for {self.policy.limits.idle} s")
                self._end(session)
        self._next_look = now + 1.0


def _cannot(abilities: Abilities, publish: Publish) -> tuple[Code, str] | None:
    """Why the remote would end the connection, which others share, for this message; None: it would not."""
    if not fits(publish, abilities.largest):
        return Code.TOO_LARGE, f"the remote takes packets of at most {abilities.largest} bytes"
    if publish.qos > abilities.qos:
        return Code.REMOTE_REFUSED, f"the remote takes messages of QoS {abilities.qos} at most"
    if publish.retain and not abilities.retain:
        return Code.REMOTE_REFUSED, "the remote takes no retained messages"
    if abilities.carries is not None and (why := abilities.carries(publish)) is not None:
        return Code.REMOTE_REFUSED, why
    return None


def _words(reason: int) -> str:
    return f"the remote says {Reason(reason).name.lower().replace('_', ' ')} (0x{reason:02x})"
