"""Routes: which services get a message, in which order, with which context, and what of it (us-9037726, l. 150-194).

Logical and physical routing are two things (l. 162). A message is routed *logically* to a service by evaluating the service's rules, which
may include further services, each an invocation of its own. It is delivered *physically* to those that have not excluded themselves.
`Route` is what comes of the first: the list of deliveries for the second.

Order: the sender's rules in their sequence, then the services that they include; the services that the header names; then the recipients in
the order of the header. What a service includes is evaluated depth first, what comes before it before what comes after it, so that a
logical route is in the order of its deliveries. The part of the sender is travelled once; then the route forks for each recipient.

Context (l. 178-180): an invocation has an invoker, arguments, variables and visible parts. Its variables are those that its invoker has set
before, and those that services which the invoker included earlier have returned; what the invoker has set counts more. It does not inherit
those of its invoker: what strangers are told is what somebody has decided to tell them. Visible parts only become fewer.

A service with dynamic routing is a delivery whose rules are evaluated when the message comes to it (`Calculation.arrive`).

Bounds: depth, services of a route, and the budget of the rules; a service that includes itself is refused with the chain.

What it does not know: sockets, clocks, tasks. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from msgspec import structs

from ..base.wildcards import fits
from .calls import Step
from .message import Declaration, Kind, Message
from .refusals import Code, Refusal
from .rules.actions import IN, OUT, Exclude, Include, Redirect, Reject, SetContext, SetExpiry, SetTopic
from .rules.compiling import Values
from .rules.routing import Routing
from .rules.rules import Rule, RuleSet
from .rules.view import Budget, Content, Facts, plain_type

DEEPEST = 16  # services that include each other in turn
MOST_SERVICES = 1024  # invocations of one message, those of all recipients together


class Services(Protocol):
    """The registry."""

    def check_sends(self, sender: str) -> None:
        """Raise Refusal if a service may not post anything new."""

    def check_reaches(self, sender: str, to: str) -> None:
        """Raise Refusal if `to` is unknown to `sender`, suspended, or may not be called by it."""

    def routing(self, service: str) -> Routing:
        """Of a service that one of the checks has let pass."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """A service to which the message was routed logically, as a log keeps it.

    chain: the services that included each other up to this one. fired: names of its rules that held. revision: of its rules.
    waits: its rules are evaluated when the message comes to it.
    """

    role: str
    chain: tuple[str, ...]
    fired: tuple[str, ...] = ()
    revision: int = 0
    waits: bool = False

    @property
    def service(self) -> str:
        return self.chain[-1]


@dataclass(frozen=True, slots=True)
class Fork:
    """The part of a route for one recipient. refusal: why there is none."""

    recipient: str
    steps: tuple[Step, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """common: the deliveries before the route forks. order: the logical route, in the order of evaluation."""

    common: tuple[Step, ...]
    forks: tuple[Fork, ...]
    order: tuple[Invocation, ...]

    def ways(self) -> list[tuple[Step, ...]]:
        """All deliveries for each recipient. Raises Refusal if the route is invalid for one of them (l. 186)."""
        for fork in self.forks:
            if fork.refusal is not None:
                raise fork.refusal
        return [(*self.common, *fork.steps) for fork in self.forks]


@dataclass(slots=True)
class State:
    """What actions change of the message on its way. recipient: of this fork; before the fork the only one, or empty."""

    topic: str
    expires: int | None
    recipient: str = ""


@dataclass(slots=True)
class Frame:
    """An invocation that is under way. party: the sender or the recipient whose part of the route it is in.

    proven: the service is let in without asking, as the one that gets a response is.
    """

    to: Declaration
    role: str
    chain: tuple[str, ...]
    party: str
    invoker: str = ""
    path: tuple[int, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    proven: bool = False
    invoked: int = 0  # how many it has invoked
    given: dict[str, str] = field(default_factory=dict)  # variables that it has set for those that it invokes
    told: dict[str, str] = field(default_factory=dict)  # what those that it invoked have returned
    returned: dict[str, str] = field(default_factory=dict)  # variables for its invoker

    def invoke(self, to: Declaration, given: Mapping[str, str], party: str = "") -> Frame:
        """The frame of a service that this one invokes. party: a recipient, which begins a chain of its own."""
        visible = fewer(self.to.visible, to.visible)
        self.invoked += 1
        return Frame(
            structs.replace(to, visible=visible),
            IN,
            (to.service,) if party else (*self.chain, to.service),
            party or self.party,
            self.to.service,
            (*self.path, self.invoked),
            {**self.told, **given},
        )


@dataclass(slots=True)
class Plan:
    """What the rules of one service want. Includes come with the variables that are set for them."""

    before: list[tuple[Declaration, dict[str, str]]] = field(default_factory=list)
    after: list[tuple[Declaration, dict[str, str]]] = field(default_factory=list)
    excluded: bool = False


class Calculation:
    """Calculates the routes of one message.

    now: time of the post.
    has: what the connection of the post had: `tls`, `password`, `certificate`.
    content: the message's parts, as rules see them; left out, they are those of `message`.
    ruled: whether a service has rules for it, or is to be asked when the message comes to it.
    `trace` gets each evaluation, for `explain.py`, if it is set to a list.
    NeedsValues comes through: `extract` the values elsewhere, and calculate anew with `Content(message, known)`.
    """

    def __init__(
        self, services: Services, message: Message, now: int, has: frozenset[str] = frozenset(), content: Content | None = None
    ) -> None:
        self.order: list[Invocation] = []
        self.trace: list[tuple[Invocation, RuleSet, Values]] | None = None
        self.ruled = False
        self._services = services
        self._header = message.header
        self._now = now
        self._has = has
        self._content = content or Content(message)
        self._budget = Budget()
        self._message = message
        self._facts: dict[str, object] | None = None

    # The whole

    def route(self) -> Route:
        """The route of a request or notification. Raises Refusal if the sender's part is invalid."""
        header = self._header
        self._services.check_sends(header.sender)
        state = State(header.topic, header.expires, header.recipients[0].service if len(header.recipients) == 1 else "")
        frame, common = self._sender(state)
        for one in header.services:
            self._include(frame, one, frame.given, state, common)
        forks = tuple(self._fork(frame, one, replace(state, recipient=one.service)) for one in header.recipients)
        return Route(tuple(common), forks, tuple(self.order))

    def back(self, requester: str) -> Route:
        """The route of a response to the service that has posted the request, through the rules of both (l. 204); its step is the last."""
        state = State(self._header.topic, None, requester)
        frame, common = self._sender(state)
        fork = self._fork(frame, Declaration(requester), state, proven=True)
        return Route(tuple(common), (fork,), tuple(self.order))

    def arrive(self, steps: tuple[Step, ...], at: int) -> tuple[Step, ...]:
        """The steps of a way, where the one at `at` is of a service with dynamic routing: with its deliveries in its place (l. 168).

        What it returns is told to its invoker and to the services that this one includes later. Raises Refusal.
        """
        step = steps[at]
        party = step.recipient or self._header.sender
        invoker = step.chain[-2] if len(step.chain) > 1 else self._header.sender
        topic = self._header.topic if step.topic is None else step.topic
        frame = Frame(step.to, IN, step.chain, party, invoker, step.path, step.context)
        made: list[Step] = []
        self._evaluate(frame, State(topic, step.expires, step.recipient), made)
        if not made and at == len(steps) - 1:
            raise _nobody(step.to.service)
        later = tuple(_told(one, step.path, frame.returned) for one in steps[at + 1 :])
        return (*steps[:at], *(structs.replace(one, recipient=step.recipient) for one in made), *later)

    def _sender(self, state: State) -> tuple[Frame, list[Step]]:
        """The part of the sender's own rules."""
        sender = self._header.sender
        self._check_needs(sender)
        frame = Frame(Declaration(sender), OUT, (sender,), sender)
        common: list[Step] = []
        self._evaluate(frame, state, common)
        return frame, common

    def _fork(self, sender: Frame, to: Declaration, state: State, proven: bool = False) -> Fork:
        steps: list[Step] = []
        frame = replace(sender.invoke(to, sender.given, to.service), proven=proven)
        try:
            self._invoke(frame, state, steps)
            if not steps:
                raise _nobody(to.service)
        except Refusal as refusal:
            return Fork(to.service, (), refusal)
        return Fork(to.service, tuple(structs.replace(one, recipient=to.service) for one in steps))

    # One invocation

    def _include(self, frame: Frame, to: Declaration, given: Mapping[str, str], state: State, steps: list[Step]) -> None:
        """Route to a service that another one includes, or that the header names as one to be included."""
        allowed = self._services.routing(frame.party).includes
        if allowed is not None:
            pattern = next((one for one in allowed if fits(one, to.service)), None)
            if pattern is None:
                raise Refusal(Code.NOT_PERMITTED, f"{to.service} may not be included into messages of {frame.party}")
            to = structs.replace(to, visible=fewer(to.visible, allowed[pattern]))
        inner = frame.invoke(to, given)
        self._invoke(inner, state, steps)
        frame.told.update(inner.returned)

    def _invoke(self, frame: Frame, state: State, steps: list[Step]) -> None:
        service = frame.to.service
        shown = " -> ".join(frame.chain)
        if service in frame.chain[:-1]:
            raise Refusal(Code.SERVICE_CYCLE, f"a service includes itself: {shown}", "end the circle in one of their rules")
        if len(frame.chain) > DEEPEST:
            raise Refusal(Code.ROUTE_TOO_LONG, shown, f"at most {DEEPEST} services include each other in turn")
        if not frame.proven:
            self._services.check_reaches(frame.invoker, service)
            self._check_needs(service)
        if self._services.routing(service).dynamic and not frame.proven:
            self.ruled = True
            self._note(Invocation(frame.role, frame.chain, waits=True))
            steps.append(self._step(frame, state, dynamic=True))
        else:
            self._evaluate(frame, state, steps)

    def _evaluate(self, frame: Frame, state: State, steps: list[Step]) -> None:
        """Evaluate the rules of a service, and route to those that they include."""
        routing = self._services.routing(frame.to.service)
        rules = routing.script.of(frame.role)
        fired: list[Rule] = []
        if rules.rules or self.trace is not None:
            self.ruled = True
            values = rules.values(self._content, self._seen(frame, state), self._budget)
            fired = rules.fired(values) if rules.rules else []
        self._note(Invocation(frame.role, frame.chain, tuple(rule.name for rule in fired), routing.revision))
        if self.trace is not None:
            self.trace.append((self.order[-1], rules, values))
        plan = self._plan(fired, frame, state)
        for to, given in plan.before:
            self._include(frame, to, given, state, steps)
        if frame.role == IN and not plan.excluded:
            steps.append(self._step(frame, state))
        for to, given in plan.after:
            self._include(frame, to, given, state, steps)

    def _plan(self, fired: list[Rule], frame: Frame, state: State) -> Plan:
        """What the rules that hold want. Topic and expiry hold from here on. Raises Refusal for a reject."""
        plan = Plan()
        for action in (action for rule in fired for action in rule.actions):
            match action:
                case Include():
                    to = Declaration(action.service, action.arguments, action.visible)
                    (plan.before if action.before else plan.after).append((to, dict(frame.given)))
                case Redirect():
                    to = Declaration(action.service, action.arguments or frame.to.arguments)
                    plan.after.insert(0, (to, dict(frame.given)))
                    plan.excluded = True
                case Exclude():
                    plan.excluded = True
                case SetContext():
                    (frame.returned if action.on_return else frame.given).update(action.variables)
                case SetTopic():
                    state.topic = action.topic
                case SetExpiry() if self._header.kind is not Kind.RESPONSE:  # its request's holds (l. 206)
                    ends = self._now + int(action.seconds * 1000)
                    state.expires = ends if state.expires is None else min(ends, state.expires)
                case Reject():
                    raise Refusal(Code.REJECTED, f"{frame.to.service}: {action.reason}")
        return plan

    def _step(self, frame: Frame, state: State, dynamic: bool = False) -> Step:
        topic = None if state.topic == self._header.topic else state.topic
        expires = None if state.expires == self._header.expires else state.expires
        context = {**frame.context, **frame.told}
        revision = self._services.routing(frame.to.service).revision
        return Step(frame.to, context, "", topic, expires, dynamic, frame.chain, frame.path, revision)

    def _seen(self, frame: Frame, state: State) -> Facts:
        """The header as the rules of a service see it."""
        self._facts = self._facts or _facts(self._message)
        values = {
            **self._facts,
            "service": frame.to.service,
            "invoker": frame.invoker,
            "recipient": state.recipient,
            "topic": state.topic,
            "expires": state.expires,
        }
        return Facts(values, frame.to.arguments, frame.context)

    def _note(self, invocation: Invocation) -> None:
        self.order.append(invocation)
        if len(self.order) > MOST_SERVICES:
            raise Refusal(Code.ROUTE_TOO_LONG, f"{len(self.order)} services", f"a message is routed to at most {MOST_SERVICES}")

    def _check_needs(self, service: str) -> None:
        lacks = self._services.routing(service).needs - self._has
        if lacks:
            raise Refusal(Code.NOT_SECURE_ENOUGH, f"{service} asks for {', '.join(sorted(lacks))}", "post over a connection that has it")


def fewer(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """The parts that both allow; None: all."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _facts(message: Message) -> dict[str, object]:
    """What no rule changes of a header."""
    header = message.header
    return {
        "kind": header.kind.value,
        "sender": header.sender,
        "sender.organisation": header.sender.partition("/")[0],
        "recipients": tuple(one.service for one in header.recipients),
        "services": tuple(one.service for one in header.services),
        "handle": header.handle,
        "possible_duplicate": header.possible_duplicate,
        "code": header.code,
        "reason": header.reason,
        "content_type": plain_type(message.body.content_type),
        "attachments": tuple(plain_type(one.content_type) for one in message.attachments),
        "size": len(message.body.data) + sum(len(one.data) for one in message.attachments),
    }


def _told(step: Step, path: tuple[int, ...], returned: Mapping[str, str]) -> Step:
    """A later step, with what the invocation at `path` has returned, if its invoker is the one of the step or invoked the step's."""
    if not returned:
        return step
    if step.path == path[:-1]:
        return structs.replace(step, context={**step.context, **returned})
    if step.path[:-1] == path[:-1]:
        return structs.replace(step, context={**returned, **step.context})
    return step


def _nobody(service: str) -> Refusal:
    return Refusal(Code.INVALID_ROUTE, f"{service} excludes itself and includes no other service: nobody gets the message")
