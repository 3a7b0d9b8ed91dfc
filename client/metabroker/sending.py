"""Requests to publish on their way to the metabroker, a part of the machine of a link (`remote_session.py`): what waits, what has no
answer, what is sent again.

Requests go out in the order of their numbers. What the metabroker refuses for want of room (code 9) is sent again when all others are
answered. Messages of QoS 0 mostly want no answer (`remote_flow.py`): nothing is kept of them then.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from ...base.backoff import Backoff
from ...base.metabroker import REQUEST, Code, pack
from ...mqtt.reasons import Reason
from ..core.transport import Done, Outcome, Publication
from .actions import Action, Request, Say, Settle, Told
from .bodies import outcome_of, publish_body
from .flow_control import Flow
from .publication_sequence import Numbers

WINDOW = 200  # requests to publish without an answer


class State(Enum):
    AWAY = "no connection to the community broker"
    LISTENING = "subscribing to the connack"
    ASKING = "asking for a session"
    TAKING = "subscribing to the session's topics"
    OPEN = "open"
    LEAVING = "leaving"
    ENDED = "ended"


class Sending:
    """number: identifiers of requests begin there. retry: seconds until the first and the last of growing pauses."""

    def __init__(self, number: int, retry: tuple[float, float]) -> None:
        self.state = State.AWAY
        self.session = ""
        self._actions: list[Action] = []
        self._number = number
        self._backoff = Backoff(*retry)
        self._connected = False  # to the community broker
        self._silent = False  # no answer comes from the metabroker
        self._waiting: deque[Request] = deque()  # to publish, not sent
        self._open: dict[int, Request] = {}  # sent, not answered
        self._refused: list[Request] = []  # to be sent again when there is room
        self._room_at = 0.0
        self._window, self._largest = WINDOW, 0
        self._numbers = Numbers()  # of a durable session
        self._flow = Flow()

    def take(self) -> list[Action]:
        """What is to be done, in order."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def _talking(self) -> bool:
        return self.state is State.OPEN and self._connected and not self._silent

    def _later(self, now: float) -> float:
        return now + self._backoff.next()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _settle(self, done: Done | None, outcome: Outcome) -> None:
        if done is not None:
            self._actions.append(Settle(done, outcome))

    def _say(self, verb: str, body: bytes, qos: int) -> None:
        self._actions.append(Say(f"{REQUEST}{self.session}/{verb}", body, qos, self.session))

    def _send(self, request: Request, now: float) -> None:
        request.sent = now
        if isinstance(request.work, Publication):
            self._send_publication(request, request.work)
        elif request.verb == "resume":
            self._say("resume", pack(message=request.number, id=self._numbers.acked), 1)
        else:
            self._say(request.verb, pack(message=request.number, topics=[request.work], qos=request.qos or None), 1)

    def _send_publication(self, request: Request, publication: Publication, asks: bool = True) -> None:
        """asks: for an answer; else it is done with when the community broker's link has it."""
        try:
            body = publish_body(request.number if asks else None, publication)
        except ValueError as error:
            outcome = Outcome(Reason.PAYLOAD_FORMAT_INVALID, str(error))
        else:
            if not self._largest or len(body) <= self._largest:
                topic = f"{REQUEST}{self.session}/publish"
                self._actions.append(Say(topic, body, min(request.qos, 1), self.session, None if asks else request.done))
                return
            text = f"a request of {len(body)} bytes; the metabroker takes {self._largest} at most"
            outcome = Outcome(Reason.PACKET_TOO_LARGE, text, "too_large")
        self._open.pop(request.number, None)
        self._flow.answered(request.number, publication.topic, False)
        self._settle(request.done, outcome)

    def _drain(self, now: float) -> None:
        """Send what waits, as far as there is room."""
        while self._waiting and self._talking and not self._refused and len(self._open) < self._window and self._flow.room:
            request = self._waiting.popleft()
            publication = request.work
            assert isinstance(publication, Publication)
            if self._flow.asks(publication):
                self._flow.asked(request.number)
                self._open[request.number] = request
                self._send(request, now)
            else:
                self._flow.went(publication)
                self._send_publication(request, publication, asks=False)

    def _give_up(self, outcome: Outcome, before: float | None = None) -> None:
        """Requests of QoS 0 without an answer have had their chance: again they would come late, or twice. before: sent until then."""
        for request in [one for one in self._open.values() if one.verb == "publish" and not one.qos]:
            if before is None or request.sent <= before:
                del self._open[request.number]
                self._flow.answered(request.number, str(request.work), False)
                self._settle(request.done, outcome)

    def _room(self, now: float) -> None:
        """Send again what was refused, when everything behind it is answered: in order."""
        if not any(request.verb == "publish" for request in self._open.values()):
            self._back_to_waiting(open_too=False)
            self._drain(now)
        else:
            self._room_at = now + self._backoff.first

    def _back_to_waiting(self, open_too: bool = True) -> None:
        """Requests to publish that are not answered wait again, in order."""
        again = self._refused
        if open_too:
            again = again + [request for request in self._open.values() if request.verb == "publish"]
        for request in again:
            self._open.pop(request.number, None)
        self._refused = []
        self._waiting.extendleft(sorted(again, key=lambda request: -request.number))

    def _refused_quietly(self, body: dict[str, Any]) -> None:
        """Messages that were sent without asking have not been published. Topics are asked for again."""
        outcome = outcome_of(body)
        self._flow.forget()
        if outcome.failed:
            text = f"NON_PERSISTENT messages are not published, {body['refused']} in this session so far: {outcome.text}"
            self._actions.append(Told(text, outcome.word))

    def _published(self, request: Request, code: int, outcome: Outcome, now: float) -> None:
        assert isinstance(request.work, Publication)
        self._flow.answered(request.number, request.work.topic, not outcome.failed)
        if code == Code.TOO_MANY_REQUESTS and request.qos and self.state is State.OPEN:
            if not self._refused:
                self._room_at = self._later(now)
            self._refused.append(request)
            return
        if code == Code.OK:
            self._backoff.reset()
        self._settle(request.done, outcome)
        self._drain(now)
