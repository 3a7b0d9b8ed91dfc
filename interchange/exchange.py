"""Exchanges of one home: posts come in, deliveries and verdicts go out; each request ends once (us-9037726, l. 98-126, 184-206).

    a post              what becomes of the branch (`TABLE`)                                     who gets something
    request             a branch for each recipient; it is OUT                                   the first service of each way
    response            of a service on the way: OUT or BACK, one step on                        the next service
                        of the recipient: BACK, or ANSWERED; of several each but the last        the next service, or the sender
                        one has a branch of its own
    error               FAILED                                                                   the sender
    cancel              CANCELLED                                                                who has it
    acknowledge         as it was: the hop says when                                             nobody
    its time is over    EXPIRED                                                                  the sender
    notification        DELIVERED as soon as it is in the recipient's inbox                      nobody hears of a failure

Strategy: `post` and `on_timer` change the calls and gather actions, which the shell carries out together: what is delivered, and what is
kept of the call, are one commit. A refused post changes nothing: identifiers, the only thing that can be missing, are taken first.

Invariants: a branch that has ended stays as it is. A request that fails gets one error for each recipient that fails, and no more. Nobody
gets anything of a branch after its end, but the sender's error and the cancel.

What it does not know: sockets, clocks, stores, rules. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from .calls import Branch, Call, Hop, State, Step, changed, pack, seen, unpack
from .deadlines import Deadlines
from .identifiers import Identifiers, count_of, home_of
from .message import NEW_SESSION, Declaration, Header, Kind, Message, Part, delivered
from .quota import Quota
from .refusals import Code, Refusal
from .sessions import Sessions

DEFAULT_EXPIRY = 48 * 3_600_000  # l. 206; so long a response waits in its inbox, at least
LATER = 1000  # until what could not be done is tried again


class Input(Enum):
    """An input to the machine of a branch: what has happened to it."""

    ANSWER = auto()  # of the service that has it
    ARRIVED = auto()  # its way is at an end
    ERROR = auto()
    CANCEL = auto()
    EXPIRY = auto()


TABLE: dict[tuple[State, Input], State] = {
    (State.OUT, Input.ANSWER): State.OUT,  # or BACK, when the recipient has answered
    (State.OUT, Input.ARRIVED): State.DELIVERED,
    (State.OUT, Input.ERROR): State.FAILED,
    (State.OUT, Input.CANCEL): State.CANCELLED,
    (State.OUT, Input.EXPIRY): State.EXPIRED,
    (State.BACK, Input.ANSWER): State.BACK,
    (State.BACK, Input.ARRIVED): State.ANSWERED,
    (State.BACK, Input.ERROR): State.FAILED,
    (State.BACK, Input.CANCEL): State.CANCELLED,
    (State.BACK, Input.EXPIRY): State.EXPIRED,
}
TOO_LATE: dict[State, tuple[Code, str]] = {
    State.ANSWERED: (Code.ALREADY_ANSWERED, "this request has its response"),
    State.DELIVERED: (Code.NO_RESPONSE_WANTED, "a notification has no response"),
    State.FAILED: (Code.ALREADY_ENDED, "this request has failed"),
    State.EXPIRED: (Code.EXPIRED, "the time of this request is over"),
    State.CANCELLED: (Code.CANCELLED, "its sender has cancelled this request"),
}


class Deliver(Struct, frozen=True, gc=False):
    """Put a message into the inbox of a service. expires: when it is of no use there any more; None: never."""

    service: str
    message: Message
    expires: int | None = None


class Save(Struct, frozen=True, gc=False):
    """Keep what is known of a call; None: it is forgotten."""

    call: str
    value: bytes | None


Action = Deliver | Save
Identified = tuple[tuple[str, str, str], ...]  # service, name, value


class Verdict(Struct, frozen=True, gc=False):
    """The answer to a post that is not refused. came: for a cancel, how far the call came."""

    session: str
    call: str
    came: list[dict[str, str]] | None = None


class Elsewhere(Exception):
    """Another home has to decide: that of the call, or of the session that the poster names for a call of its own (`asks`)."""

    def __init__(self, home: int, asks: bool = False) -> None:
        super().__init__(home)
        self.home, self.asks = home, asks


class Routes(Protocol):
    """The ways of messages (`route.py`)."""

    def out(self, message: Message, now: int) -> list[tuple[Step, ...]]:
        """The way to each recipient; the service of its last step answers for it. Raises Refusal."""

    def back(self, request: Header, response: Message, now: int) -> tuple[Step, ...]:
        """The services between a recipient and the sender of its request. Raises Refusal."""

    def arrive(self, message: Message, steps: tuple[Step, ...], at: int, now: int) -> tuple[Step, ...]:
        """The steps of a way, of which the one at `at` is next, with what its service's rules make of the message now. Raises Refusal."""

    def delivery(self, service: str) -> str:
        """How a service takes its messages: `mqtt`, `poll` or `push`; empty: it is not known."""

    def refuses_duplicates(self, service: str) -> bool:
        """Whether a service wants a second post with one handle refused."""

    def responses(self, service: str) -> int:
        """How many responses a service gives to a request (l. 222, 224)."""

    def follows(self, service: str) -> bool:
        """Whether what a service posts while it works on a message is of that message's session (l. 222)."""


class Exchange:
    """The exchanges of one home: posts come in, deliveries and verdicts go out.

    ids: issues identifiers of this home.
    born: the first count of this life of the home: what is older, and unknown, was lost.
    retention: milliseconds that an ended call is known; most: ended calls at most. quota: of open calls.
    """

    def __init__(
        self, ids: Identifiers, routes: Routes, born: int, retention: int = 3_600_000, most: int = 100_000, quota: Quota | None = None
    ) -> None:
        self.ids = ids
        self.calls: dict[str, Call] = {}
        self._routes = routes
        self._born = born
        self._retention, self._most = retention, most
        self._quota = Quota() if quota is None else quota
        self._hops: dict[str, tuple[Call, Branch, Hop]] = {}
        self._sessions = Sessions()
        self._handles: dict[tuple[str, str], Call] = {}
        self._ended: dict[str, None] = {}  # the oldest first
        self._deadlines = Deadlines()
        self._actions: list[Action] = []

    def restore(self, values: Iterable[bytes]) -> None:
        """Take up what an earlier process has kept. ValueError, TypeError, KeyError or Refusal for a value that is no call."""
        for call in sorted(map(unpack, values), key=lambda one: (not one.ended, one.ended)):  # of one handle the open call is known last
            self._know(call)
            if call.ended:
                self._ended[call.id] = None

    def take(self) -> list[Action]:
        """What is to be done now, in one commit."""
        actions, self._actions = self._actions, []
        return actions

    # What comes

    def post(self, message: Message, now: int, vouched: bool = False, identifiers: Identified = ()) -> Verdict:
        """Take a message whose sender is proved. vouched: the home of its session says that the sender takes part in it.

        identifiers: what services call the message by.

        Raises Refusal, and Elsewhere; nothing is changed then.
        """
        match message.header.kind:
            case Kind.REQUEST | Kind.NOTIFICATION:
                return self._begin(message, now, vouched, identifiers)
            case Kind.CANCEL:
                return self._cancel(message.header, now)
            case Kind.ACKNOWLEDGE:
                return self._acknowledge(message.header, now)
            case _:
                return self._answer(message, now, identifiers)

    def takes_part(self, service: str, session: str) -> bool:
        """Whether a service has sent or got a message of a session that is known here."""
        return self._sessions.takes_part(service, session)

    def idle(self) -> bool:
        """Whether nothing is known of any call."""
        return not (self.calls or self._hops or self._handles or self._sessions or self._quota)

    def session_for(self, service: str, session: str, call: str) -> str:
        """The session in which a service may begin a call: `session`, or that of `call`. Raises Refusal, Elsewhere."""
        return self._session_of(Header(Kind.REQUEST, service, session=session, call=call), vouched=False)

    def next_deadline(self) -> int | None:
        """When `on_timer` is to be called."""
        return self._deadlines.next()

    def on_timer(self, now: int) -> None:
        """End what has expired, forget what ended long ago."""
        while (id := self._deadlines.due(now)) is not None:
            call = self.calls[id]
            if call.ended:
                self._forget(call)
                continue
            over = [branch for branch in call.branches if not branch.state.ended and call.ends(branch) <= now]
            try:
                fresh = self.ids.some(len(over) if call.request else 0, now)
            except Refusal:  # no identifiers for now
                self._deadlines.set(id, now + LATER)
                return
            for branch in over:
                self._step(call, branch, Input.EXPIRY, fresh, now, Code.EXPIRED, "its time is over")
            self._keep(call, now)

    # Requests and notifications

    def _begin(self, message: Message, now: int, vouched: bool, identifiers: Identified) -> Verdict:
        header = message.header
        expires = now + DEFAULT_EXPIRY if header.expires is None else header.expires
        if expires <= now:
            raise Refusal(Code.EXPIRED, f"expires: {expires} is over", "give a time to come")
        known = self._handles.get((header.sender, header.handle)) if header.handle else None
        if known is not None and self._routes.refuses_duplicates(header.sender):
            text = f"handle {header.handle!r} was posted before: it is call {known.id} of session {known.session}"
            raise Refusal(Code.DUPLICATE, text, "give each message a handle of its own")
        self._quota.check(header.sender)
        session = self._session_of(header, vouched)
        ways = self._routes.out(message, now)
        expires = min(expires, max(expires if way[-1].expires is None else way[-1].expires for way in ways))  # rules make it earlier
        fresh = self.ids.some(len(ways) + 1, now)
        if not session:
            session = self.ids.session(now)
        posted = replace(header, session="", call="", hop="", expires=expires)
        call = Call(fresh.pop(0), session, posted, now, expires, [Branch(way) for way in ways], identifiers=identifiers)
        self._know(call)
        for branch in call.branches:
            self._give(call, branch, message, message.protocol, fresh, now)
            if not call.request and len(branch.out) == 1:
                self._arrived(call, branch)
        self._keep(call, now)
        return Verdict(session, call.id)

    def _session_of(self, header: Header, vouched: bool) -> str:
        """The session that a new call belongs to; empty: one of its own. A call that it names says which (l. 234)."""
        session = header.session
        if session == NEW_SESSION:
            return ""
        if header.call and not session:
            named = self.calls.get(header.call)
            if named is None and home_of(header.call) != self.ids.home:
                raise Elsewhere(home_of(header.call), asks=True)
            if named is None or header.sender not in named.services:
                raise Refusal(Code.UNKNOWN_CALL, f"call {header.call} is not known", "leave it out, for a session of its own")
            return named.session
        if session and not self.takes_part(header.sender, session) and not vouched:
            if home_of(session) != self.ids.home:
                raise Elsewhere(home_of(session), asks=True)
            raise Refusal(Code.UNKNOWN_SESSION, f"session {session} is not known", "leave it out, for one of its own")
        if not session and self._routes.follows(header.sender):
            return self._sessions.of_work(header.sender)
        return session

    # What follows

    def _answer(self, message: Message, now: int, identifiers: Identified) -> Verdict:
        """A response, or an error instead of one."""
        header = message.header
        call, branch, hop = self._find(header, Code.NO_REQUEST)
        if hop is None:
            raise Refusal(Code.NOT_A_RECIPIENT, f"call {call.id} was not delivered to {header.sender}", "answer what you were delivered")
        if branch.state.ended:
            code, text = TOO_LATE[branch.state]
            raise Refusal(code, f"call {call.id}: {text}")
        if hop is not branch.hop:
            raise Refusal(Code.ALREADY_ANSWERED, f"hop {hop.id} has its answer")
        if header.kind is Kind.ERROR or header.code:
            fresh = self.ids.some(1, now)
            hop.ended = now
            self._step(call, branch, Input.ERROR, fresh, now, header.code or Code.SERVICE_ERROR, header.reason)
        else:
            self._go_on(call, branch, message, now)
        call.identifiers = tuple(dict.fromkeys((*call.identifiers, *identifiers)))
        self._keep(call, now)
        return Verdict(call.session, call.id)

    def _go_on(self, call: Call, branch: Branch, answer: Message, now: int) -> None:
        """The service that has a branch has worked on it: the next one gets it."""
        state, hop = TABLE[branch.state, Input.ANSWER], branch.hop
        if branch.state is State.OUT and branch.at == len(branch.out) - 1:
            number = _number(call, branch, answer.header)
            way = self._routes.back(call.header, answer, now)
            fresh = self.ids.some(1, now)
            branch.missing = tuple(one for one in branch.missing if one != number)
            if branch.missing:  # more are to come: this one goes its own way
                branch = Branch(branch.out, of=branch.of)
                call.branches.append(branch)
            else:
                hop.ended = now
            branch.number = f"{number}/{branch.of}" if number else ""
            branch.back, branch.at, branch.message = way, 0, None
            branch.state = State.BACK
            following = answer
        else:
            assert branch.message is not None
            fresh = self.ids.some(1, now)
            hop.ended = now
            following = changed(branch.step, call.header.access, branch.message, answer)
            branch.state = state
            branch.at += 1
            try:
                self._arrive(call, branch, following, now)
            except Refusal as refusal:
                self._step(call, branch, Input.ERROR, fresh, now, refusal.code, refusal.what)
                return
        if branch.state is State.BACK and branch.at == len(branch.back):
            self._respond(call, branch, Kind.RESPONSE, following, answer.protocol, fresh, now)
            self._arrived(call, branch)
            return
        self._give(call, branch, following, answer.protocol, fresh, now)
        if not call.request and branch.at == len(branch.out) - 1:
            self._arrived(call, branch)

    def _cancel(self, header: Header, now: int) -> Verdict:
        if not (header.call or header.hop):
            named = self._handles.get((header.sender, header.handle))
            if named is None:
                raise Refusal(Code.UNKNOWN_CALL, f"handle {header.handle!r} is not known", "cancel what you have posted here")
            header = replace(header, call=named.id)
        call, _, _ = self._find(header, Code.UNKNOWN_CALL)
        if call.header.sender != header.sender:
            raise Refusal(Code.UNKNOWN_CALL, f"call {call.id} is not one of {header.sender}", "cancel what you have posted")
        came = call.standing()
        open_ = [branch for branch in call.branches if not branch.state.ended]
        fresh = self.ids.some(len(open_), now)
        for branch in open_:
            self._step(call, branch, Input.CANCEL, fresh, now, Code.CANCELLED, header.reason)
        if open_:
            self._keep(call, now)
        return Verdict(call.session, call.id, came)

    def _acknowledge(self, header: Header, now: int) -> Verdict:
        call, _, hop = self._find(header, Code.UNKNOWN_CALL)
        if hop is None:
            raise Refusal(
                Code.NOT_A_RECIPIENT, f"call {call.id} was not delivered to {header.sender}", "acknowledge what you were delivered"
            )
        if not hop.acknowledged:
            hop.acknowledged = now
            self._actions.append(Save(call.id, pack(call)))
        return Verdict(call.session, call.id)

    def _find(self, header: Header, unknown: Code) -> tuple[Call, Branch, Hop | None]:
        """The call that a message is about, and the hop of it that its sender has, or had. A stranger is told that there is none."""
        id, sender = header.hop or header.call, header.sender
        call: Call | None
        if header.hop:
            call, branch, hop = self._hops.get(header.hop, (None, None, None))
        else:
            call = self.calls.get(header.call)
        if call is None or sender not in call.services:
            home = home_of(id)
            if home != self.ids.home:
                raise Elsewhere(home)
            if call is None and count_of(id) < self._born:
                raise Refusal(Code.HOME_LOST, f"{id} is of an earlier life of this home, whose store is lost")
            raise Refusal(unknown, f"{id} is not known", "name the call or the hop of what you were delivered")
        if header.hop:
            assert branch is not None
            assert hop is not None
            return call, branch, hop if hop.service == sender else None
        had: tuple[Branch, Hop] | None = None
        for branch in call.branches:
            for hop in branch.hops:
                if hop.service == sender:
                    had = branch, hop
                    if hop is branch.hop and not branch.state.ended:
                        return call, branch, hop
        return (call, *had) if had is not None else (call, call.branches[0], None)

    # Steps

    def _arrive(self, call: Call, branch: Branch, message: Message, now: int) -> None:
        """A message comes to the next service of a branch. Raises Refusal."""
        known = replace(message, header=replace(call.header, context={}) if branch.state is State.OUT else message.header)
        if branch.state is State.OUT:
            branch.out = self._routes.arrive(known, branch.out, branch.at, now)
        else:
            branch.back = self._routes.arrive(known, branch.back, branch.at, now)

    def _give(self, call: Call, branch: Branch, message: Message, received: str, fresh: list[str], now: int) -> None:
        """Deliver to the service of a branch's step. What is still needed of the message is kept."""
        step = branch.step
        hop = self._hop(call, branch, step.to.service, fresh, now, received)
        hop.works = True
        self._sessions.begins(hop.service, call.session)
        parts = seen(step, call.header.access, message)
        recipient = branch.state is State.OUT and branch.at == len(branch.out) - 1
        branch.message = None if recipient else message
        if recipient and call.request and (count := self._routes.responses(hop.service)) > 1:
            branch.missing, branch.of = tuple(range(1, count + 1)), count
        if branch.message is not None and parts is None and all(one.change is None for one in call.header.access.values()):
            branch.message = replace(message, body=Part(b""), attachments=())  # all of it is what the service makes of it
        to = step.to if parts == step.to.visible else replace(step.to, visible=parts)
        expires = call.expires if step.expires is None else min(step.expires, call.expires)
        changes: dict[str, Any] = {"expires": expires}
        if branch.state is State.BACK:
            changes = {
                "kind": Kind.RESPONSE,
                "sender": branch.recipient,
                "expires": None,
                "topic": message.header.topic or call.header.topic,
                "number": branch.number,
            }
        if step.topic is not None:
            changes["topic"] = step.topic
        sent = delivered(message, call.header, to, call.session, call.id, hop.id, step.context, **changes)
        self._deliver(hop, sent, expires)

    def _respond(self, call: Call, branch: Branch, kind: Kind, message: Message, received: str, fresh: list[str], now: int) -> None:
        """Deliver to the sender: the response, or the error."""
        sender = call.header.sender
        hop = self._hop(call, branch, sender, fresh, now, received)
        hop.ended = now
        header = message.header
        changes: dict[str, Any] = {"kind": kind, "sender": branch.recipient, "expires": None, "topic": header.topic or call.header.topic}
        changes |= {"handle": call.header.handle, "number": branch.number}  # the first: the sender's own name for it
        if kind is Kind.ERROR:
            changes |= {"code": branch.code, "reason": branch.reason}
        sent = delivered(message, header, Declaration(sender), call.session, call.id, hop.id, {}, **changes)
        self._deliver(hop, sent, max(call.expires, now + DEFAULT_EXPIRY))

    def _deliver(self, hop: Hop, sent: Message, expires: int) -> None:
        hop.kind, hop.size = sent.header.kind.value, sent.size
        self._actions.append(Deliver(hop.service, sent, expires))

    def _hop(self, call: Call, branch: Branch, service: str, fresh: list[str], now: int, received: str = "") -> Hop:
        if branch.hops:
            self._rests(call, branch.hop)
        hop = Hop(fresh.pop(0), service, now, received=received, sent=self._routes.delivery(service))
        branch.hops.append(hop)
        self._hops[hop.id] = (call, branch, hop)
        if service not in call.services:
            call.services.add(service)
            self._sessions.joined(service, call.session)
        return hop

    def _rests(self, call: Call, hop: Hop) -> None:
        """The service of a hop has nothing to answer there any more."""
        if hop.works:
            hop.works = False
            self._sessions.ends(hop.service, call.session)

    def _arrived(self, call: Call, branch: Branch) -> None:
        """The way of a branch is at its end."""
        branch.state, branch.message = TABLE[branch.state, Input.ARRIVED], None
        self._rests(call, branch.hop)

    def _step(self, call: Call, branch: Branch, input: Input, fresh: list[str], now: int, code: str, reason: str) -> None:
        """End a branch, unless it has ended, and tell those who are to know."""
        state = TABLE.get((branch.state, input))
        if state is None:
            return
        holder = branch.hop.service
        self._rests(call, branch.hop)
        branch.state, branch.message = state, None
        branch.code, branch.reason = str(code), reason
        if input is Input.CANCEL:
            header = Header(Kind.CANCEL, call.header.sender, call=call.id, topic=call.header.topic, reason=reason)
            hop = self._hop(call, branch, holder, fresh, now)
            sent = delivered(Message(header), header, Declaration(holder), call.session, call.id, hop.id, {})
            self._deliver(hop, sent, call.expires)
        elif call.request:
            about = Header(Kind.ERROR, branch.recipient, call=call.id, code=branch.code, reason=reason)
            self._respond(call, branch, Kind.ERROR, Message(about, Part(b"")), "", fresh, now)

    # What is known

    def _know(self, call: Call) -> None:
        self.calls[call.id] = call
        if not call.ended:
            self._quota.opened(call.header.sender)
            self._quota.grown(call.header.sender, call.size)
        for service in call.services:
            self._sessions.joined(service, call.session)
        if call.header.handle:
            self._handles[call.header.sender, call.header.handle] = call
        for branch in call.branches:
            for hop in branch.hops:
                self._hops[hop.id] = (call, branch, hop)
            if branch.hops and not branch.state.ended:
                branch.hop.works = True
                self._sessions.begins(branch.hop.service, call.session)
        self._deadlines.set(call.id, call.ended + self._retention if call.ended else call.next_end())

    def _keep(self, call: Call, now: int) -> None:
        """A call has changed."""
        if not call.ended and call.is_over():
            call.ended = now
            self._quota.closed(call.header.sender, call.size)
            self._ended[call.id] = None
            self._deadlines.set(call.id, now + self._retention)
        elif not call.ended:
            self._deadlines.set(call.id, call.next_end())
        value = pack(call)
        if not call.ended:
            self._quota.grown(call.header.sender, len(value) - call.size)
            call.size = len(value)
        self._actions.append(Save(call.id, value))
        while len(self._ended) > self._most:
            self._forget(self.calls[next(iter(self._ended))])

    def _forget(self, call: Call) -> None:
        self._deadlines.drop(call.id)
        self._ended.pop(call.id, None)
        del self.calls[call.id]
        for hop in call.hops():
            del self._hops[hop.id]
        for service in call.services:
            self._sessions.left(service, call.session)
        if self._handles.get(key := (call.header.sender, call.header.handle)) is call:
            del self._handles[key]
        self._actions.append(Save(call.id, None))


def _number(call: Call, branch: Branch, header: Header) -> int:
    """Which of several responses this is; 0: of one. Raises Refusal."""
    if branch.of == 1:
        return 0
    text = header.number.partition("/")[0]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    if not 1 <= number <= branch.of:
        raise Refusal(Code.NOT_WELL_FORMED, f"number: {header.number[:40]!r}", f"give which response it is: 1 to {branch.of}")
    if number not in branch.missing:
        raise Refusal(Code.ALREADY_ANSWERED, f"call {call.id}: response {number} is there")
    return number
