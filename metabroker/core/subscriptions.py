"""Requests to subscribe and to unsubscribe: what sessions hold is asked for at their remote, once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.metabroker import Code
from ...mqtt.reasons import Reason
from ..protocol import bodies
from .actions import LogLine, Subscribe, Unsubscribe
from .covers import Ask, Covers, Drop, Settled, Step, Wanted
from .remote import Remote, RemoteFilter, Waiter
from .sessions import Session
from .state import CoreState, words

LONGEST_FILTER = 60_000  # bytes, where filters are kept


@dataclass(slots=True)
class _Subscribe:
    """A subscribe request under way: how many filters have no answer, and the codes of the others."""

    session: str
    message: str | int
    codes: list[int]
    left: int


class Subscriptions:
    """Subscriptions of all sessions. Of each filter at most one SUBSCRIBE is under way (`remote.py`). Remotes that do not say for which
    filters a message comes get covers of these (`covers.py`)."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._subscribing: dict[int, _Subscribe] = {}  # request -> what is known
        self._places: dict[int, dict[str, list[int]]] = {}  # request -> filter -> places in the answer
        self._askings: dict[int, RemoteFilter] = {}  # token -> filter

    def subscribe(self, session: Session, request: bodies.SubscribeRequest) -> None:
        state = self._state
        limits, remote, message = state.policy.limits, session.remote, request.message
        if request.durable and session.durable is None:
            state.refuse(session.id, "subscribe", message, Code.NOT_SUPPORTED, "this session is not durable: connect with durable")
            return
        if request.durable and not request.qos:
            state.refuse(session.id, "subscribe", message, Code.MALFORMED, "qos: a durable subscription has QoS 1 or 2")
            return
        if state.persistence is not None and any(len(filter_.encode()) > LONGEST_FILTER for filter_ in request.topics):
            state.refuse(session.id, "subscribe", message, Code.TOO_LARGE, f"a filter has at most {LONGEST_FILTER} bytes")
            return
        if any(filter_.startswith("$share/") for filter_ in request.topics):
            state.refuse(session.id, "subscribe", message, Code.NOT_SUPPORTED, "shared subscriptions are not served")
            return
        if not all(session.rule.may_subscribe(filter_) for filter_ in request.topics):
            state.refuse(session.id, "subscribe", message, Code.REFUSED_BY_POLICY, "the policy does not allow this filter")
            return
        if len(session.filters.union(request.topics)) > limits.subscriptions or session.open >= limits.waiting:
            state.refuse(session.id, "subscribe", message, Code.TOO_MANY_REQUESTS, "too many subscriptions, or requests without an answer")
            return
        if not request.topics:
            state.answer(session.id, "subscribe", message=message, code=Code.OK, codes=[], **remote.status())
            return
        number = state.new_token()
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

    def _ask(self, remote: Remote, held: RemoteFilter, begun: list[Wanted] | None = None) -> None:
        """Ask for a filter on behalf of those who wait, if nothing is under way. begun: see `_send_ask`."""
        if held.token or not held.next or not remote.up:
            return
        held.asking, held.next = held.next, []
        self._send_ask(remote, held, frozenset(waiter.session for waiter in held.asking), begun)

    def _send_ask(self, remote: Remote, held: RemoteFilter, who: frozenset[str], begun: list[Wanted] | None = None) -> None:
        """begun: takes what a remote with covers is asked for on a new connection, all at once."""
        state = self._state
        held.token = state.new_token()
        self._askings[held.token] = held
        for waiter in held.asking:  # from now on: what is retained may come before the answer does (3.8.4)
            remote.grant(held, waiter.session, waiter.qos)
        remote.stale.discard(held.filter)
        number = remote.number_for(held, who)
        if state.persistence is not None:
            state.persistence.put_asked(remote, held)
        if remote.covers is None:
            state.do(Subscribe(remote.number, held.token, held.filter, held.wanted(), number))
        elif begun is None:
            self._step(remote, remote.covers.want(Wanted(held.token, held.filter, held.wanted())))
        else:
            begun.append(Wanted(held.token, held.filter, held.wanted()))

    def _step(self, remote: Remote, steps: list[Step]) -> None:
        """What covers want done."""
        state = self._state
        for step in steps:
            match step:
                case Ask(token, filter_, qos):
                    if state.persistence is not None and filter_ not in remote.held:
                        state.persistence.put_cover(remote, filter_, qos)
                    state.do(Subscribe(remote.number, token, filter_, qos, 0))
                case Drop(filter_):
                    if state.persistence is not None and filter_ not in remote.held:
                        state.persistence.forget_asked(remote, filter_)
                    state.do(Unsubscribe(remote.number, filter_))
                case Settled(token, reason):
                    self._answered(remote, token, reason)

    def on_subscribed(self, number: int, token: int, reason: int) -> None:
        """The remote has answered an asking: granted QoS, or a refusal."""
        remote = self._state.remotes.get(number)
        if remote is not None and remote.covers is not None:
            self._step(remote, remote.covers.answered(token, reason))
        elif remote is not None:
            self._answered(remote, token, reason)

    def _answered(self, remote: Remote, token: int, reason: int) -> None:
        state = self._state
        held = self._askings.pop(token, None)
        if held is None or held.token != token:
            return
        held.token = 0
        waiters, held.asking = held.asking, []
        if reason < 0x80:
            held.granted = reason
            if state.persistence is not None:
                state.persistence.put_asked(remote, held)
                for waiter in waiters:
                    state.persistence.put_filter(state.sessions[waiter.session], held.filter, waiter.qos)
            for waiter in waiters:
                self._settle(waiter, held.filter, min(waiter.qos, reason))
        else:
            self._subscribe_refused(remote, held, waiters, reason)
        self._ask(remote, held)
        if held.idle() and not held.token:
            remote.forget(held)
            if reason < 0x80:
                self._drop(remote, held.filter)
            elif state.persistence is not None:
                state.persistence.forget_asked(remote, held.filter)

    def _subscribe_refused(self, remote: Remote, held: RemoteFilter, waiters: list[Waiter], reason: int) -> None:
        """Who asked does not get the filter; if the remote has none of ours any more, nobody has it."""
        state = self._state
        state.do(LogLine(True, f"event=subscribe-refused remote={remote.credentials.remote} error={words(reason)!r}"))
        asked = {waiter.session for waiter in waiters}
        for session_id in list(held.holders) if held.granted < 0 else asked:
            held.holders.pop(session_id, None)
            remote.tree.remove(held.filter, session_id)
            remote.routes.clear()
            session = state.sessions[session_id]
            if not any(waiter.session == session_id for waiter in held.next):
                session.filters.discard(held.filter)
                if state.persistence is not None:
                    state.persistence.forget_filter(session_id, held.filter)
            if session_id not in asked:
                state.tell_status(session, Code.REMOTE_REFUSED, f"{held.filter}: {words(reason)}")
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
        self._state.sessions[request.session].open -= 1
        refused = all(code >= 0x80 for code in request.codes)
        reason = words(request.codes[0]) if refused else None
        code_ = Code.REMOTE_REFUSED if refused else Code.OK
        self._state.answer_after_commit(
            request.session, "subscribe", message=request.message, code=code_, reason=reason, codes=request.codes
        )

    def unsubscribe(self, session: Session, request: bodies.SubscribeRequest) -> None:
        state = self._state
        for filter_ in request.topics:
            if filter_ in session.filters:
                session.filters.discard(filter_)
                if state.persistence is not None:
                    state.persistence.forget_filter(session.id, filter_)
                held = session.remote.held[filter_]
                waiters = [waiter for waiter in (*held.asking, *held.next) if waiter.session == session.id]
                self.release(session.remote, filter_, session.id)
                for waiter in waiters:
                    self._settle(waiter, filter_, Reason.UNSPECIFIED_ERROR)
        state.answer_after_commit(session.id, "unsubscribe", message=request.message, code=Code.OK)

    def release(self, remote: Remote, filter_: str, session_id: str) -> None:
        if remote.release(filter_, session_id):
            self._drop(remote, filter_)

    def _drop(self, remote: Remote, filter_: str) -> None:
        """Nobody needs a filter any more: unsubscribe, now or when the remote is back."""
        if not remote.up:
            remote.stale.add(filter_)
            return
        self._give_up(remote, filter_, True)

    def _give_up(self, remote: Remote, filter_: str, known: bool) -> None:
        """Nobody needs a filter. known: to the remote, as far as this connection goes. One that keeps filters is told in any case, and this
        is remembered until it has answered."""
        keeps = remote.abilities.keeps
        if remote.covers is not None:
            self._step(remote, remote.covers.want(Wanted(0, filter_, 0)))
        elif known or keeps:
            self._state.do(Unsubscribe(remote.number, filter_))
        if keeps:
            remote.stale.add(filter_)
        elif remote.covers is None or filter_ not in remote.covers.filters:
            self._forget_stale(remote, filter_)
        else:  # as a cover, it stays until what is left of it has another one
            remote.stale.discard(filter_)

    def on_up(self, remote: Remote, present: bool) -> None:
        """A connection is accepted. present: the remote has kept the subscriptions."""
        begun: list[Wanted] | None = None
        old: set[str] = set()
        if remote.abilities.identifiers or remote.abilities.keeps:
            remote.covers = None
        elif not (present and remote.covers is not None and remote.covers.calm):
            remote.stale |= remote.covers.filters if remote.covers is not None else set()
            old = {*remote.stale, *remote.held} if present else set()
            remote.covers, begun, present = Covers(self._state.new_token, remote.credentials.rule.may_subscribe), [], False
        self._drop_stale(remote, present)
        for held in list(remote.held.values()):
            if held.token:  # its answer went with the connection
                self._askings.pop(held.token, None)
                held.token = 0
                held.next[:0] = held.asking
                held.asking = []
            if held.idle():
                remote.forget(held)
                self._give_up(remote, held.filter, present)
            elif held.holders and (not present or held.granted < 0):
                held.granted = -1
                held.asking, held.next = held.next, []
                self._send_ask(remote, held, frozenset((*held.holders, *(waiter.session for waiter in held.asking))), begun)
            else:
                self._ask(remote, held, begun)
        if remote.covers is not None and begun is not None:
            self._step(remote, remote.covers.begin(begun, old))

    def forget_session(self, session_id: str) -> None:
        """A session has ended: nobody waits for its requests."""
        for request in [number for number, one in self._subscribing.items() if one.session == session_id]:
            del self._subscribing[request]
            del self._places[request]

    def forget_remote(self, remote: Remote) -> None:
        """A remote is left: no answers come from it."""
        self._askings = {token: held for token, held in self._askings.items() if remote.held.get(held.filter) is not held}

    def _drop_stale(self, remote: Remote, present: bool) -> None:
        """Give up what nobody wants any more since the last connection. present: see `on_up`."""
        remote.stale -= remote.held.keys()
        for filter_ in sorted(remote.stale):
            self._give_up(remote, filter_, present)

    def on_dropped(self, number: int, filter_: str) -> None:
        """A remote that keeps subscriptions has given one up."""
        remote = self._state.remotes.get(number)
        if remote is not None and filter_ not in remote.held:
            self._forget_stale(remote, filter_)

    def _forget_stale(self, remote: Remote, filter_: str) -> None:
        remote.stale.discard(filter_)
        if self._state.persistence is not None:
            self._state.persistence.forget_asked(remote, filter_)
