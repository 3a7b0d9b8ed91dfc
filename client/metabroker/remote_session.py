"""One link through a metabroker, as a state machine. Inputs: events of the community broker and requests of the user. Outputs: actions.

No socket, clock, thread or log. Time is data: `tick` takes the time, `deadline` returns when the next `tick` is due.

A link is one session of the metabroker. Every request has a number and is kept until it is answered, over broken connections to the
community broker and over new sessions. The metabroker removes repeats within a session. An empty request to subscribe (a *probe*) asks
whether the metabroker still knows the session: at intervals, and on each new connection to the community broker. While no answer comes, the
metabroker is *silent*, and only probes are sent.

States, and what ends them:

    DISCONNECTED          no connection to the community broker        connected: SUBSCRIBING_CONNACK, or the state before
    SUBSCRIBING_CONNACK   subscribing to the topic of the connack      done: CONNECTING
    CONNECTING            connect request sent, or to be repeated      connack: SUBSCRIBING_SESSION, or failed
    SUBSCRIBING_SESSION   subscribing to the session's topics          done: OPEN
    OPEN                  requests are sent                            the session is unknown or ended: SUBSCRIBING_CONNACK
    CLOSING               disconnect request sent                      answered, or time is up: CLOSED
    CLOSED                final

Answers are subscribed to at QoS 0, publications at QoS 1: a consumer that has reached its Receive Maximum still receives answers. The
client asks again for an answer that is lost with a connection.

A *durable* session outlives this link. Its publications are numbered without gaps. The metabroker keeps them until they are acknowledged up
to a number (`ack`), and sends them again from there when it is asked (`resume`): after a connection to the community broker that lost our
subscriptions, and when one is missing. Publications that the user has and has not acknowledged are then repeats.

Invariants:
- Requests to publish reach one session in the order of their numbers. Exception: the metabroker refuses some for lack of room (code 9);
  they are repeated when all others are answered.
- The user receives a publication once for each acknowledgement that it needs.
- Publications of a former session of this link still count.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from ...base.cache import Cache
from ...base.metabroker import ANSWERS, REQUEST, RESPONSE, Code, connect_topic, pack, response_topic
from ...mqtt.reasons import Reason
from ...mqtt.topics import matches
from ..core.transport import NEVER, Done, Incoming, Outcome, Publication
from . import actions
from .actions import Action, Request, Token
from .bodies import RemoteLogin, code_of, is_session, outcome_of, publication_of, unpack
from .flow_control import FlowControl
from .publication_sequence import PublicationSequence
from .requests import WINDOW, Requests

CONNACK = 25.0  # seconds for a connack: the metabroker tries a remote broker for 20
ANSWER = 15.0  # seconds for the answer to a probe: a busy machine may delay the metabroker
REPEAT = 10.0  # seconds after which a request without an answer is sent again
GOODBYE = 3.0  # seconds for the answer to a disconnect request
REMEMBERED = 4096  # acknowledged publications that are remembered, to recognise repeats
FORMER = 8  # former sessions whose publications still count
CLOSED = Outcome(Reason.SERVER_SHUTTING_DOWN, "the connection is closed")
NO_METABROKER = "no_metabroker"
SILENCE = Outcome(Reason.UNSPECIFIED_ERROR, "the metabroker has not answered: the message may be lost", "no_answer")
FINAL = (Code.MALFORMED, Code.REFUSED_BY_POLICY, Code.REMOTE_REFUSED_CREDENTIALS, Code.REMOTE_REFUSED, Code.TOO_LARGE, Code.NOT_SUPPORTED)
FINAL_AT_FIRST = (*FINAL, Code.NO_SUCH_SERVICE, Code.TOO_MANY_SESSIONS)


class State(Enum):
    """The states of the table above."""

    DISCONNECTED = "no connection to the community broker"
    SUBSCRIBING_CONNACK = "subscribing to the topic of the connack"
    CONNECTING = "asking for a session"
    SUBSCRIBING_SESSION = "subscribing to the session's topics"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class RemoteSession:
    """The state machine of one link.

    client: our name at the metabroker and the community broker.
    number: identifiers of requests start after it.
    probe: seconds between two probes.
    retry: seconds, the first and the longest pause of the back-off.
    durable: seconds that the metabroker keeps a durable session without us; 0: the session is not durable.
    keep: seconds that it keeps one that is not durable.
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
        self.state = State.DISCONNECTED
        self._actions: list[Action] = []
        self._requests = Requests(self._actions, number, retry, lambda: self._can_send)
        self._connected = False  # to the community broker
        self._silent = False  # the metabroker does not answer
        self.client, self.login, self.durable = client, login, durable
        self._expiry = max(keep, int(3 * probe) + 1)  # longer than the time between probes, which keep the session
        self._connack = response_topic(client, "connack")
        self._probe_every = probe
        self._closed_outcome = CLOSED  # of requests after the end
        self._was_open = False  # at least once
        self._user_connected = False  # the last event for the user was `Connected`
        self._nothing_lost = False  # since then
        self._remote_down = False  # the metabroker has no connection to the remote broker
        self._state_ends: float | None = None  # CONNECTING: when to send the next connect request; CLOSING: when to close without an answer
        self._connect_sent = False  # CONNECTING: a connack is due; otherwise the back-off runs
        self._probe: int | None = None  # number of the unanswered probe
        self._probe_at = 0.0  # when to send the next probe
        self._unconfirmed_topics: set[str] = set()  # SUBSCRIBING_SESSION: topics without an answer of the community broker
        self._former: deque[str] = deque(maxlen=FORMER)
        self._filters: dict[str, int] = {}  # granted filters, with the QoS asked for
        self._renewing: set[int] = set()  # numbers of the requests that renew subscriptions in a new session
        self._acknowledged: Cache[tuple[str, int], None] = Cache(REMEMBERED)

    @property
    def session(self) -> str:
        """The identifier that the metabroker gave the session; "" without one."""
        return self._requests.session

    @property
    def _can_send(self) -> bool:
        return self.state is State.OPEN and self._connected and not self._silent

    def take_actions(self) -> list[Action]:
        """The actions to carry out, in order. Each is returned once."""
        taken = self._actions[:]
        self._actions.clear()
        return taken

    def deadline(self) -> float | None:
        """When `tick` is to be called at the latest."""
        if not self._connected:
            return None
        if self.state is State.OPEN:
            return min(self._probe_at, self._requests.retry_at) if self._requests.refused else self._probe_at
        return self._state_ends if self.state in (State.CONNECTING, State.CLOSING) else None

    # Requests of the user

    def publish(self, publication: Publication, done: Done, now: float) -> None:
        if self.state in (State.CLOSING, State.CLOSED):
            self._requests.complete(done, self._closed_outcome)
        elif not publication.qos and not self._user_connected:
            self._requests.complete(done, Outcome(Reason.SERVER_UNAVAILABLE, "no connection"))
        else:
            self._requests.waiting.append(Request(self._requests.next_number(), "publish", publication, publication.qos, done))
            self._requests.send_waiting(now)

    def subscribe(self, filter_: str, qos: int, done: Done | None, now: float) -> None:
        self._request("subscribe", filter_, qos, done, now)

    def unsubscribe(self, filter_: str, done: Done, now: float) -> None:
        self._filters.pop(filter_, None)
        self._request("unsubscribe", filter_, 0, done, now)

    def _request(self, verb: str, filter_: str, qos: int, done: Done | None, now: float) -> int:
        request = Request(self._requests.next_number(), verb, filter_, qos, done)
        if self.state in (State.CLOSING, State.CLOSED):
            self._requests.complete(done, self._closed_outcome)
        else:
            self._requests.unanswered[request.number] = request
            if self._can_send:
                self._requests.send(request, now)
        return request.number

    def acknowledge(self, token: object) -> None:
        """The user has consumed a publication. From now on, a repeat of it is recognised."""
        if isinstance(token, Token):
            self._acknowledged.keep((token.session, token.id), None)
            self._actions.append(actions.Acknowledge(token.inner))
            if self.durable and token.session == self.session:
                self._requests.sequence.consume(token.id)

    def close(self, forget: bool, now: float) -> None:
        """Leave the session after all earlier requests. forget: end a durable session."""
        if self.state in (State.CLOSING, State.CLOSED):
            return
        if not self._can_send:
            self.end(CLOSED)
            return
        self._requests.window = len(self._requests.waiting) + len(self._requests.unanswered) + len(self._requests.refused) + 1
        self._requests.return_to_waiting(unanswered_too=False)
        self._requests.flow = FlowControl()
        self._requests.send_waiting(now)
        self._acknowledge_publications()
        self.state, self._state_ends = State.CLOSING, now + GOODBYE
        self._requests.publish("disconnect", pack(clean=True) if forget else pack(), 1)

    def end(self, outcome: Outcome) -> None:
        """Close the link. Open requests get this outcome."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        requests = [*self._requests.unanswered.values(), *self._requests.refused, *self._requests.waiting]
        self._requests.unanswered, self._requests.refused, self._requests.waiting = {}, [], deque()
        for request in requests:
            self._requests.complete(request.done, outcome)
        self._actions.append(actions.CloseLink())

    # Events of the community broker

    def connected(self, resumed: bool, now: float) -> None:
        """There is a connection to the community broker. resumed: it has kept our messages."""
        if self.state is State.CLOSED:
            return
        self._connected = True
        self._nothing_lost = self._nothing_lost and (resumed or bool(self.durable))
        self._requests.sequence.connected(resumed)
        if self.state is State.DISCONNECTED:
            self.state = State.SUBSCRIBING_CONNACK
            self._actions.append(actions.Subscribe(self._connack, 0))
        elif self.state is State.OPEN:
            self._remote_down = False  # unknown until the metabroker says it again
            self._verify_session(now)

    def disconnected(self, text: str, word: str = "") -> None:
        """The connection to the community broker is lost. Its link connects again. word: see `Outcome`."""
        self._connected = False
        if self.state is State.CLOSING:
            self.end(CLOSED)
        elif self.state is not State.CLOSED:
            self._notify_disconnected(text, word)

    def failed(self, outcome: Outcome) -> None:
        """The connection to the community broker is refused for good."""
        self._fail(outcome)

    def subscribed(self, filter_: str, outcome: Outcome, now: float) -> None:
        """The community broker has answered a `Subscribe`."""
        if outcome.failed:
            if self.state is not State.CLOSED and outcome is not CLOSED:
                self._fail(Outcome(outcome.code, f"the community broker refuses the subscription to {filter_!r}", outcome.word))
            return
        if self.state is State.SUBSCRIBING_CONNACK and filter_ == self._connack:
            self.state = State.CONNECTING
            self._connect(now)
        self._unconfirmed_topics.discard(filter_)
        if self.state is State.SUBSCRIBING_SESSION and not self._unconfirmed_topics:
            self._session_is_open(now)

    def request_published(self, session: str, outcome: Outcome, now: float) -> None:
        """The community broker has accepted or refused a request of a session."""
        if self.state is State.CLOSED or session != self.session:
            return
        if outcome.failed and outcome.code not in (CLOSED.code, Reason.SERVER_UNAVAILABLE):
            self._fail(
                Outcome(outcome.code, f"the community broker refuses requests to the metabroker{outcome.text and ': '}{outcome.text}")
            )
        elif outcome.code == Reason.NO_MATCHING_SUBSCRIBERS:
            self._no_metabroker(now)

    def received(self, incoming: Incoming, now: float) -> None:
        """A message has arrived from the community broker."""
        name, _, verb = incoming.topic.removeprefix(RESPONSE).rpartition("/")
        body = unpack(incoming.payload)
        if verb == "publish" and (name == self.session or name in self._former) and body is not None and self.state is not State.CLOSED:
            self._publication(name, incoming, body, now)
            return
        if incoming.token is not None:
            self._actions.append(actions.Acknowledge(incoming.token))
        if body is None:
            return
        if verb == "connack" and name == self.client:
            self._connacked(body, now)
        elif name == self.session and self.state is State.CLOSING:
            if verb == "discack":
                self.end(CLOSED)
            else:
                self._answered(verb, body, now)
        elif name == self.session and self.state is State.OPEN:
            self._answered(verb, body, now)

    def tick(self, now: float) -> None:
        """Do what is due at this time."""
        self._acknowledge_publications()
        due = self.deadline()
        if due is None or now < due:
            return
        if self.state is State.CLOSING:
            self.end(CLOSED)
        elif self.state is State.CONNECTING:
            if self._state_ends is not None and self._connect_sent:
                self._notify_disconnected("the metabroker does not answer", NO_METABROKER)
            self._connect(now)
        elif self.state is State.OPEN:
            if self._requests.refused and now >= self._requests.retry_at:
                self._requests.repeat_refused(now)
            if now >= self._probe_at:
                self._send_probe(now)

    # Sessions

    def _connect(self, now: float) -> None:
        self._connect_sent, self._state_ends = True, now + CONNACK
        login = self.login
        durable = {"durable": True, "expiry": self.durable} if self.durable else {"expiry": min(self._expiry, NEVER)}
        body = pack(client=self.client, remote=login.remote, username=login.username, password=login.password, **durable)
        self._actions.append(actions.Publish(connect_topic(self.client), body, 1, ""))

    def _no_metabroker(self, now: float) -> None:
        """No client at the community broker subscribes to requests: no metabroker is connected to it."""
        if self.state is State.CONNECTING and self._connect_sent:
            self._connect_later("no metabroker is connected to the community broker", NO_METABROKER, now)
        elif self.state is State.OPEN and not self._silent:
            self._verify_session(now)
            self._probe_at = now + self._requests.backoff.next()
            self._notify_disconnected("no metabroker is connected to the community broker", NO_METABROKER)
        elif self.state is State.OPEN:
            self._probe_at = now + self._requests.backoff.next()

    def _connect_later(self, text: str, word: str, now: float) -> None:
        self._connect_sent, self._state_ends = False, now + self._requests.backoff.next()
        self._notify_disconnected(text, word)

    def _connacked(self, body: dict[str, Any], now: float) -> None:
        session = body.get("session")
        code = code_of(body)
        if self.state is not State.CONNECTING:
            if code == Code.OK and type(session) is str and session not in (self.session, *self._former):
                self._actions.append(
                    actions.Publish(f"{REQUEST}{session}/disconnect", pack(), 1, session)
                )  # the session of a repeated connect request
            return
        if code == Code.OK and type(session) is str and is_session(session, self.client):
            self._set_session(session, body.get("present") is True)
            self._remote_down = body.get("status", Code.OK) != Code.OK
            if self._remote_down:
                outcome = outcome_of({**body, "code": body["status"]})
                self._notify_disconnected(outcome.text, outcome.word)
            self._requests.window, self._requests.largest = WINDOW, 0
            if type(waiting := body.get("requests")) is int and waiting > 0:
                self._requests.window = min(WINDOW, waiting)
            if type(largest := body.get("body")) is int and largest > 0:
                self._requests.largest = largest
            self._requests.flow = FlowControl(body.get("quiet") is True)
            self._requests.backoff.reset()
            self._state_ends, self.state = None, State.SUBSCRIBING_SESSION
            answers = [response_topic(session, verb) for verb in ANSWERS.values()]
            self._unconfirmed_topics = {response_topic(session, "publish"), *answers}
            self._actions.append(actions.Unsubscribe(self._connack))
            self._actions.append(actions.Subscribe(response_topic(session, "publish"), 1))
            self._actions += [actions.Subscribe(topic, 0) for topic in answers]
            return
        outcome = outcome_of(body)
        if code in (FINAL if self._was_open else FINAL_AT_FIRST) or not outcome.failed:
            self._fail(outcome if outcome.failed else Outcome(Reason.PROTOCOL_ERROR, "the metabroker gives no session"))
        else:
            self._connect_later(outcome.text, outcome.word, now)

    def _set_session(self, session: str, present: bool) -> None:
        """Use this session. The numbers of another session no longer count."""
        if session in self._former:  # the metabroker knows it after all
            self._former.remove(session)
            self._requests.sequence.connected(False)
        else:
            self._requests.sequence = PublicationSequence(present)
        self._requests.session, self._present = session, present

    def _session_is_open(self, now: float) -> None:
        """The session's topics are subscribed to: repeat all requests without an answer."""
        self.state, self._silent, self._probe = State.OPEN, False, None
        self._probe_at = now + self._probe_every
        self._nothing_lost = self._present
        self._renewing.clear()
        for request in list(self._requests.unanswered.values()):
            if request.verb == "subscribe" and request.done is None:
                del self._requests.unanswered[request.number]  # it renewed a subscription of a former session
            else:
                self._requests.send(request, now)
        for filter_, qos in self._filters.items():
            self._renewing.add(self._request("subscribe", filter_, qos, None, now))
        if self._remote_down:
            self._send_probe(now)  # it may be back, and nobody has told us
        elif not self._renewing:
            self._notify_connected()
        self._requests.send_waiting(now)

    def _lost_session(self, now: float) -> None:
        """The metabroker does not know the session, or has ended it: ask for another one."""
        former, self._requests.session = self.session, ""
        self._former.append(former)
        self._nothing_lost = self._silent = False
        self._probe = None
        self._requests.give_up(SILENCE)
        self._requests.return_to_waiting()
        self.state = State.SUBSCRIBING_CONNACK
        self._user_connected = False
        for verb in (*ANSWERS.values(), "publish"):
            self._actions.append(actions.Unsubscribe(response_topic(former, verb)))
        self._actions.append(actions.Subscribe(self._connack, 0))

    def _fail(self, outcome: Outcome) -> None:
        if self.state is State.CLOSED:
            return
        self._closed_outcome = outcome
        self.end(outcome)
        self._actions.append(actions.Failed(outcome))

    def _notify_connected(self) -> None:
        if not self._user_connected:
            self._actions.append(actions.Connected(self._nothing_lost))
        self._user_connected = self._was_open = self._nothing_lost = True

    def _notify_disconnected(self, text: str, word: str) -> None:
        """Tell the user, and complete requests of QoS 0: they will not be answered."""
        self._user_connected = False
        self._requests.flow.disconnected()
        self._actions.append(actions.Disconnected(text, word))
        self._requests.give_up(Outcome())  # published, perhaps
        for request in [one for one in self._requests.waiting if not one.qos]:
            self._requests.waiting.remove(request)
            self._requests.complete(request.done, Outcome(Reason.SERVER_UNAVAILABLE, "no connection"))

    # Probes and answers

    def _verify_session(self, now: float) -> None:
        """Send nothing more until a probe shows that the metabroker knows the session."""
        self._silent, self._probe = True, None
        self._send_probe(now)

    def _send_probe(self, now: float) -> None:
        if self._probe is not None and not self._silent:
            self._silent = True
            self._notify_disconnected("the metabroker does not answer", NO_METABROKER)
        if not self._silent and not self._remote_down:
            self._requests.give_up(SILENCE, now - REPEAT)
            for request in [one for one in self._requests.unanswered.values() if now - one.sent >= REPEAT]:
                self._requests.send(request, now)
            self._requests.send_waiting(now)
        if self._probe is None:
            self._probe = self._requests.next_number()
        self._probe_at = now + ANSWER
        self._requests.publish("subscribe", pack(message=self._probe, topics=[]), 1)

    def _probe_answered(self, body: dict[str, Any], now: float) -> None:
        """The metabroker has answered the probe: it knows the session, and says how the remote broker is."""
        self._probe = None
        self._probe_at = now + self._probe_every
        status = body.get("status")
        if type(status) is int and (status != Code.OK) != self._remote_down:
            self._status(status, outcome_of({**body, "code": status}), now)
        if not self._silent:
            return
        self._silent = False
        self._requests.backoff.reset()
        self._requests.sequence.reported = 0
        for request in list(self._requests.unanswered.values()):
            self._requests.send(request, now)
        self._request_publications(now)
        if not self._renewing and not self._remote_down:
            self._notify_connected()
        self._requests.send_waiting(now)

    def _answered(self, verb: str, body: dict[str, Any], now: float) -> None:
        """An answer to a request of the session has arrived."""
        code = code_of(body)
        if code == Code.UNKNOWN_SESSION or (verb == "status" and code == Code.SESSION_ENDED):
            self._unknown(now)
            return
        if verb == "status":
            self._status(code, outcome_of(body), now)
            return
        number = body.get("message")
        if verb == "puback" and "refused" in body:
            self._requests.refused_without_answer(body)
            return
        if number is not None and number == self._probe and verb == "suback":
            self._probe_answered(body, now)
            return
        request = self._requests.unanswered.get(number) if type(number) is int else None
        if request is None or ANSWERS[request.verb] != verb:
            return
        del self._requests.unanswered[request.number]
        if request.verb == "publish":
            self._requests.published(request, code, outcome_of(body), now, repeat=self.state is State.OPEN)
        elif request.verb == "resume":
            self._requests.sequence.resumed(body.get("id"), body.get("waiting", 0), body.get("sent"))
            self._request_publications(now)
        else:
            self._subscription_answered(request, body)
            self._request_publications(now)

    def _unknown(self, now: float) -> None:
        if self.state is State.CLOSING:
            self.end(CLOSED)
        else:
            self._lost_session(now)

    # Durable sessions

    def _acknowledge_publications(self) -> None:
        """Acknowledge consumed publications to the metabroker."""
        sequence = self._requests.sequence
        if sequence.acknowledged > sequence.reported and self._can_send:
            sequence.reported = sequence.acknowledged
            self._requests.publish("ack", pack(id=sequence.acknowledged), 1)

    def _request_publications(self, now: float) -> None:
        """Ask for the publications after the last acknowledged one, if some may be missing and there are subscriptions."""
        sequence = self._requests.sequence
        if self.durable and sequence.resume and not sequence.resuming and self._filters and self._can_send:
            sequence.resume, sequence.resuming = False, True
            self._request("resume", "", 0, None, now)

    def _status(self, code: int, outcome: Outcome, now: float) -> None:
        """The metabroker reports its state, or that of the remote broker."""
        if code == Code.RESUMED:
            self._remote_down = False
            self._requests.give_up(SILENCE)
            self._verify_session(now)
        elif code == Code.MESSAGES_DROPPED:
            self._actions.append(actions.Notified(outcome.text, outcome.word))
        elif code == Code.OK:
            self._remote_down = False
            for request in self._requests.unanswered.values():
                request.sent = now
            if not self._silent and not self._renewing:
                self._notify_connected()
        elif any(outcome.text.startswith(f"{filter_}: ") for filter_ in self._filters):
            self._fail(Outcome(outcome.code, f"the remote broker does not renew a subscription: {outcome.text}", outcome.word))
        else:
            self._remote_down = True
            self._notify_disconnected(outcome.text, outcome.word)

    def _subscription_answered(self, request: Request, body: dict[str, Any]) -> None:
        filter_, outcome = str(request.work), outcome_of(body)
        codes = body.get("codes")
        if not outcome.failed and request.verb == "subscribe":
            if type(codes) is list and len(codes) == 1 and type(codes[0]) is int and codes[0] >= 0x80:
                outcome = Outcome(codes[0], outcome.text)
            else:
                self._filters[filter_] = request.qos
        self._requests.complete(request.done, outcome)
        if request.number in self._renewing:
            self._renewing.discard(request.number)
            if outcome.failed:
                self._fail(Outcome(outcome.code, f"the subscription to {filter_!r} is not renewed: {outcome.text}", outcome.word))
            elif not self._renewing and not self._remote_down:
                self._notify_connected()

    # Publications

    def _publication(self, session: str, incoming: Incoming, body: dict[str, Any], now: float) -> None:
        read = publication_of(body)
        number = read[0] if read is not None else 0
        known = (session, number) in self._acknowledged
        if read is not None and self.durable and number:
            known = session != self.session or not self._requests.sequence.accept(number, body.get("after"))
            self._request_publications(now)
        if read is None or known:  # malformed, or a repeat
            if incoming.token is not None:
                self._actions.append(actions.Acknowledge(incoming.token))
            return
        _, publication, retained = read
        token = None if incoming.token is None else Token(incoming.token, session, number)
        unwanted = self.durable and not any(matches(filter_, publication.topic) for filter_ in self._filters)
        if retained or unwanted:  # retained messages are not asked for; others are of an earlier definition of a durable subscription
            self.acknowledge(token)
            return
        packet = 0 if token is None else number
        again = incoming.duplicate or 0 < number <= self._requests.sequence.sent_before
        self._actions.append(
            Incoming(publication.topic, publication.payload, publication.qos, again, publication.properties, (), token, packet)
        )
