"""Requests to publish: each goes to the session's remote once, and is answered when the remote has answered.

The core remembers the last identifiers of a session's requests, so that a repeated request is not published again. A request without an
identifier is published or refused, and forgotten (`unanswered.py`).
"""

from __future__ import annotations

from typing import Any

from ...base.metabroker import Code
from ...mqtt.packets import Publish
from ...mqtt.reasons import Reason
from ..protocol import bodies
from ..protocol.bodies import BodyError
from ..protocol.events import Abilities
from ..protocol.messages import ANY_CONTENT, content_of, fits
from .actions import Send
from .remote import Remote
from .sessions import Session
from .state import CoreState, words
from .unanswered import UnansweredRefusals

NOBODY = "the remote has it, and nobody there subscribes to this topic"
SLOW = "the remote does not keep up"


class Publishing:
    """Requests to publish of all sessions. quiet: tells of requests that want no answer."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self.unanswered = UnansweredRefusals(state.do, state.counts)
        self._published: dict[int, tuple[str, str | int]] = {}  # token -> session, message

    def publish(self, session: Session, request: bodies.PublishRequest) -> None:
        state = self._state
        message, publish, remote = request.message, request.publish, session.remote
        assert message is not None
        content = content_of(publish)
        known = session.done.get(message)
        if known is not None:
            if (known if known >= 0 else ~known) not in (content, ANY_CONTENT):
                state.refuse(session.id, "publish", message, Code.MALFORMED, "message: another request had this identifier")
                return
            state.counts.repeated += 1
            if known >= 0:  # the answer got lost, or the request came twice
                state.answer(session.id, "publish", message=message, code=Code.OK)
            return
        if not session.rule.may_publish(publish.topic):
            state.refuse(session.id, "publish", message, Code.REFUSED_BY_POLICY, "the policy does not allow this topic")
        elif (
            session.open >= state.policy.limits.waiting
            or remote.congested
            or (state.persistence is not None and state.persistence.congested)
        ):
            why = SLOW if remote.congested else "too many requests have no answer yet"
            state.refuse(session.id, "publish", message, Code.TOO_MANY_REQUESTS, why)
        elif (cannot := _cannot(remote.abilities, publish)) is not None:
            state.refuse(session.id, "publish", message, *cannot)
        elif not publish.qos and not remote.up:
            state.refuse(session.id, "publish", message, Code.REMOTE_UNREACHABLE, remote.reason)
        elif not publish.qos:
            state.counts.published += 1
            state.do(Send(remote.number, 0, publish))
            self.remember(session, message, content)
            state.answer(session.id, "publish", message=message, code=Code.OK)
        else:
            token = state.new_token()
            self._published[token] = (session.id, message)
            self.remember(session, message, ~content)
            session.open += 1
            state.counts.published += 1
            if session.durable is not None and state.persistence is not None:
                state.persistence.keep_request(session, token, message, publish)
                state.late = True
            self._send(remote, Send(remote.number, token, publish))

    def _send(self, remote: Remote, send: Send) -> None:
        """To a remote, or to be sent when its addresses are known."""
        if remote.opened:
            self._state.do(send)
        else:
            remote.keep(send, self._state.policy.limits.buffer)

    def publish_unanswered(self, session: Session, read: dict[str, Any]) -> None:
        """A request without an identifier: it has no place in what is remembered, nor among those that wait for an answer."""
        state = self._state
        remote = session.remote
        try:
            publish = bodies.publish_request(read).publish
        except BodyError as error:
            self.unanswered.refuse(session, Code.MALFORMED, str(error), state.now)
            return
        if not session.rule.may_publish(publish.topic):
            self.unanswered.refuse(session, Code.REFUSED_BY_POLICY, "the policy does not allow this topic", state.now)
        elif (cannot := _cannot(remote.abilities, publish)) is not None:
            self.unanswered.refuse(session, *cannot, state.now)
        elif not self.refuses_unanswered(session):
            state.counts.published += 1
            state.do(Send(remote.number, 0, publish))

    def refuses_unanswered(self, session: Session) -> bool:
        """Whether the remote takes nothing now; then a request without an identifier is refused."""
        remote = session.remote
        if remote.congested:
            self.unanswered.refuse(session, Code.TOO_MANY_REQUESTS, SLOW, self._state.now)
        elif not remote.up:
            self.unanswered.refuse(session, Code.REMOTE_UNREACHABLE, remote.reason, self._state.now)
        else:
            return False
        return True

    def publish_without_session(self, session_id: str, body: bytes) -> bool:
        """A request without an identifier for a session that there is not. True: it is dealt with."""
        try:
            if len(body) > self._state.policy.limits.body or "message" in bodies.unpack(body):
                return False
        except BodyError:
            return False
        return not self.unanswered.stranger(session_id, self._state.now)

    def forget_session(self, session: Session) -> None:
        """A session has ended: nobody waits for its requests."""
        self.unanswered.forget(session)
        if session.open:
            self._published = {token: to for token, to in self._published.items() if to[0] != session.id}

    def send_again(self, session: Session, message: str | int, sequence: int, publish: Publish) -> None:
        """A kept request that was under way when the process before this one ended."""
        state = self._state
        assert state.persistence is not None
        token = state.new_token()
        self._published[token] = (session.id, message)
        session.open += 1
        state.persistence.found_request(session, token, sequence)
        self._send(session.remote, Send(session.remote.number, token, publish))

    def remember(self, session: Session, message: str | int, content: int) -> None:
        """Keep the identifier; the oldest one makes room. content: see `Session.done`."""
        state = self._state
        session.done[message] = content
        while len(session.done) > 2 * state.policy.limits.waiting:
            oldest, other = session.done.popitem(last=False)
            if other < 0:
                session.done[oldest] = other  # it has no answer yet
            elif session.durable is not None and state.persistence is not None:
                state.persistence.forget_request(session, oldest)

    def on_published(self, token: int, reason: int) -> None:
        """The remote has acknowledged or refused what was sent under a token."""
        state = self._state
        session_id, message = self._published.pop(token, ("", ""))
        session = state.sessions.get(session_id)
        if session is None:
            return
        session.open -= 1
        if session.durable is not None and state.persistence is not None:
            state.persistence.request_done(session, token, message, reason < 0x80)
        self.answer_published(session, message, reason)

    def answer_published(self, session: Session, message: str | int, reason: int) -> None:
        """Say what the remote has said of a message."""
        state = self._state
        durable = session.durable is not None and state.persistence is not None
        if reason < 0x80:
            content = session.done.get(message, 0)
            if content < 0:
                session.done[message] = ~content
            why = NOBODY if reason == Reason.NO_MATCHING_SUBSCRIBERS else None
            (state.answer_after_commit if durable else state.answer)(session.id, "publish", message=message, code=Code.OK, reason=why)
        else:
            session.done.pop(message, None)
            state.refuse(session.id, "publish", message, Code.REMOTE_REFUSED, words(reason), [reason])


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
