"""One link through a metabroker, as a machine: what the community broker brings and what the user asks in, actions out.

No socket, clock, thread or log. Time is data: `tick` with the time, `deadline` for the next one.

Strategy. A link is one session of the metabroker. Every request has a number and stays in `_open` until it is answered, over broken
connections to the community broker and over new sessions; the metabroker removes repeats within a session. Whether the
metabroker still knows the session is asked with an empty request to subscribe (a *probe*): at intervals, and whenever the connection to the
community broker is new. While no answer comes the metabroker is *silent*: nothing is sent but probes.

States and what leads on:

    AWAY       no connection to the community broker     connected: LISTENING, or back to the state before
    LISTENING  subscribing to the topic of the connack   done: ASKING
    ASKING     connect request sent, or to be repeated   connack: TAKING, or FAILED
    TAKING     subscribing to the session's topics       done: OPEN
    OPEN       requests are sent                         the session is unknown or ended: LISTENING
    LEAVING    disconnect request sent                   answered, or too late: ENDED
    ENDED      nothing more

Answers are subscribed to at QoS 0, publications at QoS 1: a consumer that has as many unacknowledged messages as it may (Receive
Maximum) still hears answers. An answer that is lost with a connection is asked for again.

A *durable* session outlives this link. Its publications are numbered without gaps; the metabroker keeps them until they are acknowledged
up to a number (`ack`), and sends them again from there on when it is asked (`resume`): behind a connection to the community broker that
has lost our subscriptions, and when one is missing. What has been given to the user and is not acknowledged yet is a repeat then.

Invariants: requests to publish reach one session in the order of their numbers, unless the metabroker refuses some for want of room
(code 9), which are sent again when all others are answered; a publication is given to the user once for each time that it must be
acknowledged; what a former session of this link has sent still counts.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ...base.cache import Cache
from ...base.metabroker import ANSWERS, CONNECT, REQUEST, RESPONSE, Code, pack, response_topic
from ...mqtt.reasons import Reason
from ...mqtt.topics import matches
from ..core.transport import NEVER, Done, Incoming, Outcome, Publication
from .actions import Acknowledge, Down, Failed, Ignore, Leave, Listen, Request, Say, Token, Told, Up
from .bodies import RemoteLogin, code_of, is_session, outcome_of, publication_of, unpack
from .flow_control import Flow
from .publication_sequence import Numbers
from .sending import WINDOW, Sending, State

CONNACK = 25.0  # seconds for a connack: the metabroker tries a remote broker for 20
ANSWER = 15.0  # seconds for the answer to a probe: a busy machine may hold the metabroker up for some
REPEAT = 10.0  # seconds after which a request without an answer is sent again
GOODBYE = 3.0  # seconds for the answer to a disconnect request
REMEMBERED = 4096  # publications that were acknowledged, remembered to recognise repeats
FORMER = 8  # sessions whose publications are still taken
ENDED = Outcome(Reason.SERVER_SHUTTING_DOWN, "the connection is closed")
NO_METABROKER = "no_metabroker"
SILENCE = Outcome(Reason.UNSPECIFIED_ERROR, "the metabroker has not answered: the message may be lost", "no_answer")
FINAL = (Code.MALFORMED, Code.REFUSED_BY_POLICY, Code.REMOTE_REFUSED_CREDENTIALS, Code.REMOTE_REFUSED, Code.TOO_LARGE, Code.NOT_SUPPORTED)
FINAL_AT_FIRST = (*FINAL, Code.NO_SUCH_SERVICE, Code.TOO_MANY_SESSIONS)


class RemoteSession(Sending):
    """client: as whom the metabroker and the community broker know us. number: identifiers of requests begin there.

    probe: seconds between two questions whether the session is still known. retry: seconds until the first and the last of growing pauses.
    durable: seconds that a durable session is kept without us, 0: it is not durable. keep: seconds that one is kept that is not.
    """

    def __init__(
        self,
        client: str,
        login: RemoteLogin,
        number: int,
        probe: float = 10.0,
        retry: tuple[float, float] = (0.1, 5.0),
        durable: int = 0,
        keep: int = 300,
    ) -> None:
        super().__init__(number, retry)
        self.client, self.login, self.durable = client, login, durable
        self._keep = max(keep, int(3 * probe) + 1)  # probes show that we are there
        self._connack = response_topic(client, "connack")
        self._probe_every = probe
        self._too_late = ENDED  # what requests are answered that come too late
        self._was_open = self._told_up = self._kept = False  # kept: nothing was lost since the user was told `Up`
        self._remote_down = False
        self._at: float | None = None  # when to ask for a session again, to leave
        self._asked = False  # ASKING: whether a connack is waited for; if not, the request goes out at `_at`
        self._probe: int | None = None  # number of the one without an answer
        self._probe_at = 0.0  # when to probe, or to probe again
        self._takes: set[str] = set()  # topics of the session that the community broker has not confirmed
        self._former: deque[str] = deque(maxlen=FORMER)
        self._filters: dict[str, int] = {}  # granted, with the QoS asked for
        self._renewing: set[int] = set()  # numbers of requests that subscribe anew
        self._done: Cache[tuple[str, int], None] = Cache(REMEMBERED)

    def deadline(self) -> float | None:
        """When `tick` is to be called at the latest."""
        if not self._connected:
            return None
        if self.state is State.OPEN:
            return min(self._probe_at, self._room_at) if self._refused else self._probe_at
        return self._at if self.state in (State.ASKING, State.LEAVING) else None

    # What the user asks

    def publish(self, publication: Publication, done: Done, now: float) -> None:
        if self.state in (State.LEAVING, State.ENDED):
            self._settle(done, self._too_late)
        elif not publication.qos and not self._told_up:
            self._settle(done, Outcome(Reason.SERVER_UNAVAILABLE, "no connection"))
        else:
            self._waiting.append(Request(self._next(), "publish", publication, publication.qos, done))
            self._drain(now)

    def subscribe(self, filter_: str, qos: int, done: Done | None, now: float) -> None:
        self._ask("subscribe", filter_, qos, done, now)

    def unsubscribe(self, filter_: str, done: Done, now: float) -> None:
        self._filters.pop(filter_, None)
        self._ask("unsubscribe", filter_, 0, done, now)

    def _ask(self, verb: str, filter_: str, qos: int, done: Done | None, now: float) -> int:
        request = Request(self._next(), verb, filter_, qos, done)
        if self.state in (State.LEAVING, State.ENDED):
            self._settle(done, self._too_late)
        else:
            self._open[request.number] = request
            if self._talking:
                self._send(request, now)
        return request.number

    def acknowledge(self, token: object) -> None:
        """The user has done with a publication. A repeat of it is recognised from now on."""
        if isinstance(token, Token):
            self._done.keep((token.session, token.id), None)
            self._actions.append(Acknowledge(token.inner))
            if self.durable and token.session == self.session:
                self._numbers.done(token.id)

    def close(self, forget: bool, now: float) -> None:
        """Leave the session, behind everything asked before. forget: a durable one is to end."""
        if self.state in (State.LEAVING, State.ENDED):
            return
        if not self._talking:
            self.end(ENDED)
            return
        self._window = len(self._waiting) + len(self._open) + len(self._refused) + 1
        self._back_to_waiting(open_too=False)
        self._flow = Flow()
        self._drain(now)
        self._tell()
        self.state, self._at = State.LEAVING, now + GOODBYE
        self._say("disconnect", pack(clean=True) if forget else pack(), 1)

    def end(self, outcome: Outcome) -> None:
        """Nothing more: answer what is open."""
        if self.state is State.ENDED:
            return
        self.state = State.ENDED
        requests = [*self._open.values(), *self._refused, *self._waiting]
        self._open, self._refused, self._waiting = {}, [], deque()
        for request in requests:
            self._settle(request.done, outcome)
        self._actions.append(Leave())

    # What the community broker brings

    def connected(self, resumed: bool, now: float) -> None:
        """There is a connection to the community broker. resumed: it has kept what was for us."""
        if self.state is State.ENDED:
            return
        self._connected = True
        self._kept = self._kept and (resumed or bool(self.durable))
        self._numbers.connected(resumed)
        if self.state is State.AWAY:
            self.state = State.LISTENING
            self._actions.append(Listen(self._connack, 0))
        elif self.state is State.OPEN:
            self._remote_down = False  # not known any more
            self._hush(now)

    def disconnected(self, text: str, word: str = "") -> None:
        """There is no connection to the community broker; it is tried again. word: as in `Outcome`."""
        self._connected = False
        if self.state is State.LEAVING:
            self.end(ENDED)
        elif self.state is not State.ENDED:
            self._down(text, word)

    def failed(self, outcome: Outcome) -> None:
        """The connection to the community broker is refused for good."""
        self._fail(outcome)

    def listening(self, filter_: str, outcome: Outcome, now: float) -> None:
        """The community broker has answered `Listen`."""
        if outcome.failed:
            if self.state is not State.ENDED and outcome is not ENDED:
                self._fail(Outcome(outcome.code, f"the community broker refuses the subscription to {filter_!r}", outcome.word))
            return
        if self.state is State.LISTENING and filter_ == self._connack:
            self.state = State.ASKING
            self._connect(now)
        self._takes.discard(filter_)
        if self.state is State.TAKING and not self._takes:
            self._opened(now)

    def said(self, session: str, outcome: Outcome, now: float) -> None:
        """The community broker has taken or refused what was said for a session."""
        if self.state is State.ENDED or session != self.session:
            return
        if outcome.failed and outcome.code not in (ENDED.code, Reason.SERVER_UNAVAILABLE):
            self._fail(
                Outcome(outcome.code, f"the community broker refuses requests to the metabroker{outcome.text and ': '}{outcome.text}")
            )
        elif outcome.code == Reason.NO_MATCHING_SUBSCRIBERS:
            self._nobody(now)

    def received(self, incoming: Incoming, now: float) -> None:
        """A message has come from the community broker."""
        name, _, verb = incoming.topic.removeprefix(RESPONSE).rpartition("/")
        body = unpack(incoming.payload)
        if verb == "publish" and (name == self.session or name in self._former) and body is not None and self.state is not State.ENDED:
            self._publication(name, incoming, body, now)
            return
        if incoming.token is not None:
            self._actions.append(Acknowledge(incoming.token))
        if body is None:
            return
        if verb == "connack" and name == self.client:
            self._connacked(body, now)
        elif name == self.session and self.state is State.LEAVING:
            if verb == "discack":
                self.end(ENDED)
            else:
                self._answered(verb, body, now)
        elif name == self.session and self.state is State.OPEN:
            self._answered(verb, body, now)

    def tick(self, now: float) -> None:
        """What is due."""
        self._tell()
        due = self.deadline()
        if due is None or now < due:
            return
        if self.state is State.LEAVING:
            self.end(ENDED)
        elif self.state is State.ASKING:
            if self._at is not None and self._asked:
                self._down("the metabroker does not answer", NO_METABROKER)
            self._connect(now)
        elif self.state is State.OPEN:
            if self._refused and now >= self._room_at:
                self._room(now)
            if now >= self._probe_at:
                self._look(now)

    # Sessions

    def _connect(self, now: float) -> None:
        self._asked, self._at = True, now + CONNACK
        login = self.login
        durable = {"durable": True, "expiry": self.durable} if self.durable else {"expiry": min(self._keep, NEVER)}
        body = pack(client=self.client, remote=login.remote, username=login.username, password=login.password, **durable)
        self._actions.append(Say(CONNECT, body, 1, ""))

    def _nobody(self, now: float) -> None:
        """The community broker knows nobody who reads requests: no metabroker is connected to it."""
        if self.state is State.ASKING and self._asked:
            self._connect_later("no metabroker is connected to the community broker", NO_METABROKER, now)
        elif self.state is State.OPEN and not self._silent:
            self._hush(now)
            self._probe_at = self._later(now)
            self._down("no metabroker is connected to the community broker", NO_METABROKER)
        elif self.state is State.OPEN:
            self._probe_at = self._later(now)

    def _connect_later(self, text: str, word: str, now: float) -> None:
        self._asked, self._at = False, self._later(now)
        self._down(text, word)

    def _connacked(self, body: dict[str, Any], now: float) -> None:
        session = body.get("session")
        code = code_of(body)
        if self.state is not State.ASKING:
            if code == Code.OK and type(session) is str and session not in (self.session, *self._former):
                self._actions.append(Say(f"{REQUEST}{session}/disconnect", pack(), 1, session))  # of a request that was sent twice
            return
        if code == Code.OK and type(session) is str and is_session(session, self.client):
            self._begin(session, body.get("present") is True)
            self._window, self._largest = WINDOW, 0
            if type(waiting := body.get("requests")) is int and waiting > 0:
                self._window = min(WINDOW, waiting)
            if type(largest := body.get("body")) is int and largest > 0:
                self._largest = largest
            self._flow = Flow(body.get("quiet") is True)
            self._backoff.reset()
            self._at, self.state = None, State.TAKING
            answers = [response_topic(session, verb) for verb in ANSWERS.values()]
            self._takes = {response_topic(session, "publish"), *answers}
            self._actions.append(Ignore(self._connack))
            self._actions.append(Listen(response_topic(session, "publish"), 1))
            self._actions += [Listen(topic, 0) for topic in answers]
            return
        outcome = outcome_of(body)
        if code in (FINAL if self._was_open else FINAL_AT_FIRST) or not outcome.failed:
            self._fail(outcome if outcome.failed else Outcome(Reason.PROTOCOL_ERROR, "the metabroker gives no session"))
        else:
            self._connect_later(outcome.text, outcome.word, now)

    def _begin(self, session: str, present: bool) -> None:
        """A session: what was counted of another one counts no more."""
        if session in self._former:  # it was known after all
            self._former.remove(session)
            self._numbers.connected(False)
        else:
            self._numbers = Numbers(present)
        self.session, self._present = session, present

    def _opened(self, now: float) -> None:
        """The session's topics are subscribed to: ask for everything that is not answered."""
        self.state, self._silent, self._remote_down, self._probe = State.OPEN, False, False, None
        self._probe_at = now + self._probe_every
        self._kept = self._present
        self._renewing.clear()
        for request in list(self._open.values()):
            if request.verb == "subscribe" and request.done is None:
                del self._open[request.number]  # to renew what a former session had
            else:
                self._send(request, now)
        for filter_, qos in self._filters.items():
            self._renewing.add(self._ask("subscribe", filter_, qos, None, now))
        if not self._renewing:
            self._up()
        self._drain(now)

    def _lost_session(self, now: float) -> None:
        """The metabroker does not know the session, or has ended it: another one."""
        former, self.session = self.session, ""
        self._former.append(former)
        self._kept = self._silent = False
        self._probe = None
        self._give_up(SILENCE)
        self._back_to_waiting()
        self.state = State.LISTENING
        self._told_up = False
        for verb in (*ANSWERS.values(), "publish"):
            self._actions.append(Ignore(response_topic(former, verb)))
        self._actions.append(Listen(self._connack, 0))

    def _fail(self, outcome: Outcome) -> None:
        if self.state is State.ENDED:
            return
        self._too_late = outcome
        self.end(outcome)
        self._actions.append(Failed(outcome))

    def _up(self) -> None:
        if not self._told_up:
            self._actions.append(Up(self._kept))
        self._told_up = self._was_open = self._kept = True

    def _down(self, text: str, word: str) -> None:
        """Also the end of what is sent at most once: nobody will answer it."""
        self._told_up = False
        self._flow.broken()
        self._actions.append(Down(text, word))
        self._give_up(Outcome())  # published, perhaps
        for request in [one for one in self._waiting if not one.qos]:
            self._waiting.remove(request)
            self._settle(request.done, Outcome(Reason.SERVER_UNAVAILABLE, "no connection"))

    # Whether the metabroker is there

    def _hush(self, now: float) -> None:
        """Ask whether the session is known before anything else is sent."""
        self._silent, self._probe = True, None
        self._look(now)

    def _look(self, now: float) -> None:
        if self._probe is not None and not self._silent:
            self._silent = True
            self._down("the metabroker does not answer", NO_METABROKER)
        if not self._silent and not self._remote_down:
            self._give_up(SILENCE, now - REPEAT)
            for request in [one for one in self._open.values() if now - one.sent >= REPEAT]:
                self._send(request, now)
            self._drain(now)
        if self._probe is None:
            self._probe = self._next()
        self._probe_at = now + ANSWER
        self._say("subscribe", pack(message=self._probe, topics=[]), 1)

    def _alive(self, now: float) -> None:
        """The probe is answered."""
        self._probe = None
        self._probe_at = now + self._probe_every
        if not self._silent:
            return
        self._silent = False
        self._backoff.reset()
        self._numbers.told = 0
        for request in list(self._open.values()):
            self._send(request, now)
        self._ask_for_more(now)
        if not self._renewing and not self._remote_down:
            self._up()
        self._drain(now)

    def _answered(self, verb: str, body: dict[str, Any], now: float) -> None:
        """An answer of the session has come."""
        code = code_of(body)
        if code == Code.UNKNOWN_SESSION or (verb == "status" and code == Code.SESSION_ENDED):
            self._unknown(now)
            return
        if verb == "status":
            self._status(code, outcome_of(body), now)
            return
        number = body.get("message")
        if verb == "puback" and "refused" in body:
            self._refused_quietly(body)
            return
        if number is not None and number == self._probe and verb == "suback":
            self._alive(now)
            return
        request = self._open.get(number) if type(number) is int else None
        if request is None or ANSWERS[request.verb] != verb:
            return
        del self._open[request.number]
        if request.verb == "publish":
            self._published(request, code, outcome_of(body), now)
        elif request.verb == "resume":
            self._numbers.resumed(body.get("id"), body.get("waiting", 0), body.get("sent"))
            self._ask_for_more(now)
        else:
            self._subscribed(request, body)
            self._ask_for_more(now)

    def _unknown(self, now: float) -> None:
        if self.state is State.LEAVING:
            self.end(ENDED)
        else:
            self._lost_session(now)

    # Durable sessions

    def _tell(self) -> None:
        """Acknowledge what is done with."""
        numbers = self._numbers
        if numbers.acked > numbers.told and self._talking:
            numbers.told = numbers.acked
            self._say("ack", pack(id=numbers.acked), 1)

    def _ask_for_more(self, now: float) -> None:
        """Have the publications behind the last acknowledged one sent, if need be and if somebody wants them."""
        numbers = self._numbers
        if self.durable and numbers.resume and not numbers.resuming and self._filters and self._talking:
            numbers.resume, numbers.resuming = False, True
            self._ask("resume", "", 0, None, now)

    def _status(self, code: int, outcome: Outcome, now: float) -> None:
        """The remote broker has come or gone, or the metabroker itself."""
        if code == Code.RESUMED:
            self._remote_down = False
            self._give_up(SILENCE)
            self._hush(now)
        elif code == Code.MESSAGES_DROPPED:
            self._actions.append(Told(outcome.text, outcome.word))
        elif code == Code.OK:
            self._remote_down = False
            for request in self._open.values():
                request.sent = now
            if not self._silent and not self._renewing:
                self._up()
        elif any(outcome.text.startswith(f"{filter_}: ") for filter_ in self._filters):
            self._fail(Outcome(outcome.code, f"the remote broker does not renew a subscription: {outcome.text}", outcome.word))
        else:
            self._remote_down = True
            self._down(outcome.text, outcome.word)

    def _subscribed(self, request: Request, body: dict[str, Any]) -> None:
        filter_, outcome = str(request.work), outcome_of(body)
        codes = body.get("codes")
        if not outcome.failed and request.verb == "subscribe":
            if type(codes) is list and len(codes) == 1 and type(codes[0]) is int and codes[0] >= 0x80:
                outcome = Outcome(codes[0], outcome.text)
            else:
                self._filters[filter_] = request.qos
        self._settle(request.done, outcome)
        if request.number in self._renewing:
            self._renewing.discard(request.number)
            if outcome.failed:
                self._fail(Outcome(outcome.code, f"the subscription to {filter_!r} is not renewed: {outcome.text}", outcome.word))
            elif not self._renewing and not self._remote_down:
                self._up()

    # Publications

    def _publication(self, session: str, incoming: Incoming, body: dict[str, Any], now: float) -> None:
        read = publication_of(body)
        number = read[0] if read is not None else 0
        known = (session, number) in self._done
        if read is not None and self.durable and number:
            known = session != self.session or not self._numbers.next(number, body.get("after"))
            self._ask_for_more(now)
        if read is None or known:  # of no use, or a repeat
            if incoming.token is not None:
                self._actions.append(Acknowledge(incoming.token))
            return
        _, publication, retained = read
        token = None if incoming.token is None else Token(incoming.token, session, number)
        unwanted = self.durable and not any(matches(filter_, publication.topic) for filter_ in self._filters)
        if retained or unwanted:  # sent because of a subscription, which nobody here asks for; of an earlier definition of a durable one
            self.acknowledge(token)
            return
        packet = 0 if token is None else number
        again = incoming.duplicate or 0 < number <= self._numbers.sent
        self._actions.append(
            Incoming(publication.topic, publication.payload, publication.qos, again, publication.properties, (), token, packet)
        )
