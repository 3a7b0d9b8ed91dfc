"""Requests to publish, a part of the core: each goes to the session's remote once, and is answered when the remote has answered.

The core remembers the last identifiers of a session's requests, so that one that comes again is not published again. A request without an
identifier is published or refused and forgotten (`quiet.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.metabroker import Code
from ...mqtt.packets import Publish
from ...mqtt.reasons import Reason
from ..mqtt.client import fits
from ..mqtt.events import Abilities
from ..policy import Policy
from ..protocol import bodies
from ..protocol.bodies import BodyError
from .actions import Send
from .base import words
from .records import Changes
from .refusals import Quiet
from .remote import Remote
from .sessions import Session
from .subscribing import Subscribing

NOBODY = "the remote has it, and nobody there subscribes to this topic"
SLOW = "the remote does not keep up"


class Publishing(Subscribing):
    """quiet: what is told of requests that want no answer."""

    def __init__(self, policy: Policy, new_id: Callable[[], str], changes: Changes | None = None, offset: float = 0.0) -> None:
        super().__init__(policy, new_id, changes, offset)
        self.quiet = Quiet(self.do, self.counts)
        self._published: dict[int, tuple[str, str | int]] = {}  # token -> session, message

    def _publish(self, session: Session, request: bodies.PublishRequest) -> None:
        message, publish, remote = request.message, request.publish, session.remote
        assert message is not None
        if message in session.done:
            code = session.done[message]
            self.counts.repeated += 1
            if code is not None:  # the answer got lost, or the request came twice
                self._answer(session.id, "publish", message=message, code=code)
            return
        if not session.rule.may_publish(publish.topic):
            self._refuse(session.id, "publish", message, Code.REFUSED_BY_POLICY, "the policy does not allow this topic")
        elif session.open >= self.policy.limits.waiting or remote.congested or (self.memory is not None and self.memory.congested):
            self._refuse(session.id, "publish", message, Code.TOO_MANY_REQUESTS, "too many requests have no answer yet")
        elif (cannot := _cannot(remote.abilities, publish)) is not None:
            self._refuse(session.id, "publish", message, *cannot)
        elif not publish.qos and not remote.up:
            self._refuse(session.id, "publish", message, Code.REMOTE_UNREACHABLE, remote.reason)
        elif not publish.qos:
            self.counts.published += 1
            self._do(Send(remote.number, 0, publish))
            self.remember(session, message, Code.OK)
            self._answer(session.id, "publish", message=message, code=Code.OK)
        else:
            token = self._token()
            self._published[token] = (session.id, message)
            self.remember(session, message, None)
            session.open += 1
            self.counts.published += 1
            if session.durable is not None and self.memory is not None:
                self.memory.keep_request(session, token, message, publish)
                self._late = True
            self._send(remote, Send(remote.number, token, publish))

    def _send(self, remote: Remote, send: Send) -> None:
        """To a remote, or to be sent when its addresses are known."""
        if remote.opened:
            self._do(send)
        else:
            remote.waiting.append(send)

    def _publish_quietly(self, session: Session, read: dict[str, Any]) -> None:
        """A request without an identifier: it has no place in what is remembered, nor among those that wait for an answer."""
        remote = session.remote
        try:
            publish = bodies.publish_request(read).publish
        except BodyError as error:
            self.quiet.refuse(session, Code.MALFORMED, str(error), self._now)
            return
        if not session.rule.may_publish(publish.topic):
            self.quiet.refuse(session, Code.REFUSED_BY_POLICY, "the policy does not allow this topic", self._now)
        elif (cannot := _cannot(remote.abilities, publish)) is not None:
            self.quiet.refuse(session, *cannot, self._now)
        elif not self.refuses_quietly(session):
            self.counts.published += 1
            self._do(Send(remote.number, 0, publish))

    def refuses_quietly(self, session: Session) -> bool:
        """Whether the remote takes nothing now; then a request without an identifier is refused."""
        remote = session.remote
        if remote.congested:
            self.quiet.refuse(session, Code.TOO_MANY_REQUESTS, SLOW, self._now)
        elif not remote.up:
            self.quiet.refuse(session, Code.REMOTE_UNREACHABLE, remote.reason, self._now)
        else:
            return False
        return True

    def _publish_to_nobody(self, session_id: str, body: bytes) -> bool:
        """A request without an identifier for a session that there is not. True: it is dealt with."""
        try:
            if len(body) > self.policy.limits.body or "message" in bodies.unpack(body):
                return False
        except BodyError:
            return False
        return not self.quiet.stranger(session_id, self._now)

    def send_again(self, session: Session, message: str | int, sequence: int, publish: Publish) -> None:
        """A kept request that was under way when the process before this one ended."""
        assert self.memory is not None
        token = self._token()
        self._published[token] = (session.id, message)
        session.open += 1
        self.memory.found_request(session, token, sequence)
        self._send(session.remote, Send(session.remote.number, token, publish))

    def remember(self, session: Session, message: str | int, code: Code | None) -> None:
        """Keep the identifier; the oldest one makes room."""
        session.done[message] = code
        while len(session.done) > 2 * self.policy.limits.waiting:
            oldest, code_ = session.done.popitem(last=False)
            if code_ is None:
                session.done[oldest] = None  # it has no answer yet
            elif session.durable is not None and self.memory is not None:
                self.memory.forget_request(session, oldest)

    def on_published(self, token: int, reason: int) -> None:
        """The remote has acknowledged or refused what was sent under a token."""
        session_id, message = self._published.pop(token, ("", ""))
        session = self.sessions.get(session_id)
        if session is None:
            return
        session.open -= 1
        if session.durable is not None and self.memory is not None:
            self.memory.request_done(session, token, message, reason < 0x80)
        self.answer_published(session, message, reason)

    def answer_published(self, session: Session, message: str | int, reason: int) -> None:
        """Say what the remote has said of a message."""
        durable = session.durable is not None and self.memory is not None
        if reason < 0x80:
            if message in session.done:
                session.done[message] = Code.OK
            why = NOBODY if reason == Reason.NO_MATCHING_SUBSCRIBERS else None
            (self._answer_kept if durable else self._answer)(session.id, "publish", message=message, code=Code.OK, reason=why)
        else:
            session.done.pop(message, None)
            self._refuse(session.id, "publish", message, Code.REMOTE_REFUSED, words(reason), [reason])


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
