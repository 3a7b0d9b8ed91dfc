"""Requests to the metabroker: those that wait, those without an answer, those to be repeated. A part of `RemoteSession`.

Requests are sent in the order of their numbers. Requests that the metabroker refuses for lack of room (code 9) are repeated when all others
are answered. Most messages of QoS 0 ask for no answer (`flow_control.py`): nothing is kept of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...base.backoff import Backoff
from ...base.metabroker import REQUEST, Code, pack
from ...mqtt.reasons import Reason
from ..core.transport import Done, Outcome, Publication
from . import actions
from .actions import Action, Request
from .bodies import outcome_of, publish_body
from .flow_control import FlowControl
from .publication_sequence import PublicationSequence

WINDOW = 200  # requests to publish without an answer


class Requests:
    """The requests of one link.

    pending: the machine's list of actions to carry out.
    number: identifiers of requests start after it.
    retry: seconds, the first and the longest pause of the back-off.
    can_send: whether the session is open and the metabroker answers.
    """

    def __init__(self, pending: list[Action], number: int, retry: tuple[float, float], can_send: Callable[[], bool]) -> None:
        self._actions, self._number, self._can_send = pending, number, can_send
        self.backoff = Backoff(*retry)
        self.waiting: deque[Request] = deque()  # to publish, not sent
        self.unanswered: dict[int, Request] = {}  # sent, by number
        self.refused: list[Request] = []  # to be repeated when there is room
        self.retry_at = 0.0  # when to repeat them
        self.session = ""
        self.sequence = PublicationSequence()  # of a durable session
        self.window = WINDOW  # requests without an answer at most
        self.largest = 0  # bytes of a body; 0: no bound
        self.flow = FlowControl()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def complete(self, done: Done | None, outcome: Outcome) -> None:
        """Pass an outcome to the user."""
        if done is not None:
            self._actions.append(actions.Complete(done, outcome))

    def publish(self, verb: str, body: bytes, qos: int) -> None:
        """Publish a request of the session at the community broker."""
        self._actions.append(actions.Publish(f"{REQUEST}{self.session}/{verb}", body, qos, self.session))

    def send(self, request: Request, now: float) -> None:
        """Send a request, for the first time or again."""
        request.sent = now
        if isinstance(request.work, Publication):
            self._send_publication(request, request.work)
        elif request.verb == "resume":
            self.publish("resume", pack(message=request.number, id=self.sequence.acknowledged), 1)
        else:
            self.publish(request.verb, pack(message=request.number, topics=[request.work], qos=request.qos or None), 1)

    def _send_publication(self, request: Request, publication: Publication, answered: bool = True) -> None:
        """answered: whether the metabroker answers. Without an answer, the request is complete when the community broker has it."""
        try:
            body = publish_body(request.number if answered else None, publication)
        except ValueError as error:
            outcome = Outcome(Reason.PAYLOAD_FORMAT_INVALID, str(error))
        else:
            if not self.largest or len(body) <= self.largest:
                topic = f"{REQUEST}{self.session}/publish"
                self._actions.append(actions.Publish(topic, body, min(request.qos, 1), self.session, None if answered else request.done))
                return
            text = f"a request of {len(body)} bytes; the metabroker takes {self.largest} at most"
            outcome = Outcome(Reason.PACKET_TOO_LARGE, text, "too_large")
        self.unanswered.pop(request.number, None)
        self.flow.answered(request.number, publication.topic, False)
        self.complete(request.done, outcome)

    def send_waiting(self, now: float) -> None:
        """Send waiting requests to publish, as far as the window allows."""
        while self.waiting and self._can_send() and not self.refused and len(self.unanswered) < self.window and self.flow.may_send:
            request = self.waiting.popleft()
            publication = request.work
            assert isinstance(publication, Publication)
            if self.flow.needs_answer(publication):
                self.flow.sent_with_answer(request.number)
                self.unanswered[request.number] = request
                self.send(request, now)
            else:
                self.flow.sent_without_answer(publication)
                self._send_publication(request, publication, answered=False)

    def give_up(self, outcome: Outcome, before: float | None = None) -> None:
        """Complete requests of QoS 0 without an answer: a repeat could arrive late or twice. before: only those sent until then."""
        for request in [one for one in self.unanswered.values() if one.verb == "publish" and not one.qos]:
            if before is None or request.sent <= before:
                del self.unanswered[request.number]
                self.flow.answered(request.number, str(request.work), False)
                self.complete(request.done, outcome)

    def repeat_refused(self, now: float) -> None:
        """Repeat refused requests when all later ones are answered, so that the order is kept."""
        if not any(request.verb == "publish" for request in self.unanswered.values()):
            self.return_to_waiting(unanswered_too=False)
            self.send_waiting(now)
        else:
            self.retry_at = now + self.backoff.first

    def return_to_waiting(self, unanswered_too: bool = True) -> None:
        """Let requests to publish that are not answered wait again, in order."""
        again = self.refused
        if unanswered_too:
            again = again + [request for request in self.unanswered.values() if request.verb == "publish"]
        for request in again:
            self.unanswered.pop(request.number, None)
        self.refused = []
        self.waiting.extendleft(sorted(again, key=lambda request: -request.number))

    def refused_without_answer(self, body: dict[str, Any]) -> None:
        """The metabroker has refused messages that asked for no answer. The next message to each topic asks again."""
        outcome = outcome_of(body)
        self.flow.forget_topics()
        if outcome.failed:
            text = f"NON_PERSISTENT messages are not published, {body['refused']} in this session so far: {outcome.text}"
            self._actions.append(actions.Notified(text, outcome.word))

    def published(self, request: Request, code: int, outcome: Outcome, now: float, repeat: bool) -> None:
        """The answer to a request to publish. repeat: whether a refused one may be repeated."""
        assert isinstance(request.work, Publication)
        self.flow.answered(request.number, request.work.topic, not outcome.failed)
        if code == Code.TOO_MANY_REQUESTS and request.qos and repeat:
            if not self.refused:
                self.retry_at = now + self.backoff.next()
            self.refused.append(request)
            return
        if code == Code.OK:
            self.backoff.reset()
        self.complete(request.done, outcome)
        self.send_waiting(now)
