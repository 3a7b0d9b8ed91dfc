"""One remote broker with one set of credentials, shared by sessions: who holds which filter, and who gets a message.

Subscriptions are counted: the remote is asked for a filter when the first session wants it, and asked to drop it when the last one has
left. For a session that comes later the filter is subscribed again, so that the remote sends its retained messages again. Each SUBSCRIBE
has a number (Subscription Identifier) that an MQTT 5 remote returns with each message. Retained messages with a number go only to the
sessions for which that SUBSCRIBE was sent. Where a remote sends a copy for each of several filters, a session takes the copy of its
oldest filter.

Without Subscription Identifiers (MQTT 3.1.1) the remote has covers of these filters (`covers.py`), so that it sends one copy; retained
messages go to all whose filters match.

Invariant: of each filter at most one SUBSCRIBE is under way; sessions that come meanwhile wait for the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...base.metabroker import Code
from ...mqtt.packets import Publish
from ...mqtt.properties import Property
from ...mqtt.topics import FilterTree
from ..policy import Rule
from ..protocol.events import Abilities
from ..protocol.messages import weight
from .actions import Send
from .covers import Covers

FEW = 8  # sessions that are remembered by name behind a number
KEPT = 4  # numbers of one filter that are remembered: messages under older ones may be on their way


class Credentials(NamedTuple):
    """What sessions must have in common to share a connection."""

    remote: str
    username: str | None
    password: bytes | None
    rule: Rule


class Waiter(NamedTuple):
    """A session that wants a filter, and the request that is answered then."""

    session: str
    request: int
    qos: int


@dataclass(slots=True)
class RemoteFilter:
    """One filter. holders: session -> QoS, from their asking on. granted: at the remote, -1: nothing.

    asking: whose asking is under way, `token` is its own. next: who waits for the next one.
    """

    filter: str
    order: int
    holders: dict[str, int] = field(default_factory=dict)
    granted: int = 0
    asking: list[Waiter] = field(default_factory=list)
    next: list[Waiter] = field(default_factory=list)
    token: int = 0
    numbers: list[int] = field(default_factory=list)

    def wanted(self) -> int:
        """The QoS that the remote is asked for."""
        return max(self.holders.values(), default=0)

    def idle(self) -> bool:
        """Whether nobody needs it."""
        return not (self.holders or self.asking or self.next)


class FilterHolder(NamedTuple):
    """Of one holder in the tree."""

    session: str
    qos: int
    held: RemoteFilter


@dataclass(slots=True)
class Remote:
    """The shared state of one remote.

    joining: sessions that wait for the first connection -> until when.
    client_id: our client identifier there, if that outlives this process.
    ready: a connection has been accepted once.
    up: there is a connection now.
    code, reason: while there is none: why, as `status` says it.
    congested: it does not take what is sent.
    asked: Subscription Identifier -> filter, and the sessions for which it was subscribed.
    stale: filters that were given up while there was no connection.
    leaves: when it is left at the latest, because nobody needs it.
    retry: when the addresses of its service are asked for again.
    opened: its addresses are known.
    waiting: messages to be sent then. waiting_bytes: their weight; beyond the bound it is congested.
    routes: recipients of topics (`batch_path.py`); empty when subscriptions change.
    covers: what it is subscribed to; None: to `held`.
    """

    number: int
    credentials: Credentials
    sessions: set[str] = field(default_factory=set)
    joining: dict[str, float] = field(default_factory=dict)  # sessions that wait for the first connection -> until when
    client_id: str = ""  # as which we are known there, when that outlives this process
    ready: bool = False
    up: bool = False
    congested: bool = False
    abilities: Abilities = field(default_factory=Abilities)
    code: Code = Code.REMOTE_UNREACHABLE
    reason: str = ""
    held: dict[str, RemoteFilter] = field(default_factory=dict)
    tree: FilterTree[FilterHolder] = field(default_factory=FilterTree)
    asked: dict[int, tuple[RemoteFilter, frozenset[str]]] = field(default_factory=dict)  # number -> filter, who asked then
    stale: set[str] = field(default_factory=set)  # filters that were given up while it was away
    leaves: float | None = None  # nobody needs it; it is left when it is up, or forgotten then
    retry: float | None = None  # when its service's addresses are asked for again
    opened: bool = False  # its addresses are known
    waiting: list[Send] = field(default_factory=list)  # what is sent then
    waiting_bytes: int = 0
    routes: dict[Any, Any] = field(default_factory=dict)  # topics whose recipients are known (fast.py); empty when subscriptions change
    covers: Covers | None = None
    _order: int = 0
    _number: int = 0

    def status(self) -> dict[str, Any]:
        """The keys of an answer that say how it is."""
        return {"status": Code.OK} if self.up else {"status": self.code, "reason": self.reason or None}

    def keep(self, send: Send, most: int) -> None:
        """Have a message wait until the addresses are known. most: bytes that may wait; with more it takes nothing until then."""
        self.waiting.append(send)
        self.waiting_bytes += weight(send.publish)
        self.congested = self.waiting_bytes > most

    def let_go(self) -> list[Send]:
        """The addresses are known: what has waited for that. Whether it is congested is said by the connection from now on."""
        sends, self.waiting = self.waiting, []
        self.waiting_bytes, self.opened, self.congested = 0, True, False
        return sends

    def hold(self, filter_: str) -> RemoteFilter:
        """The entry of a filter, made if it is not there."""
        held = self.held.get(filter_)
        if held is None:
            self._order += 1
            held = self.held[filter_] = RemoteFilter(filter_, self._order)
        return held

    def restored(self, held: RemoteFilter, order: int, numbers: list[tuple[int, frozenset[str]]]) -> None:
        """A filter as it was known before this process."""
        held.order = order
        self._order = max(self._order, order)
        for number, who in numbers:
            self.asked[number] = (held, who)
            held.numbers.append(number)
            self._number = max(self._number, number)

    def number_for(self, held: RemoteFilter, who: frozenset[str]) -> int:
        """A number for an asking on behalf of these sessions; 0 when the remote takes none."""
        if not self.abilities.identifiers:
            return 0
        self.routes.clear()
        self._number = self._number % 268_435_455 + 1
        self.asked[self._number] = (held, who)
        held.numbers.append(self._number)
        if len(held.numbers) > KEPT:
            self.asked.pop(held.numbers.pop(0), None)
        return self._number

    def grant(self, held: RemoteFilter, session: str, qos: int) -> None:
        """A session holds a filter from now on."""
        self.routes.clear()
        held.holders[session] = qos
        self.tree.add(held.filter, session, FilterHolder(session, qos, held))

    def release(self, filter_: str, session: str) -> bool:
        """A session gives a filter up; True if nobody needs the filter any more, which is forgotten then."""
        held = self.held.get(filter_)
        if held is None:
            return False
        self.routes.clear()
        if held.holders.pop(session, None) is not None:
            self.tree.remove(filter_, session)
        held.next = [waiter for waiter in held.next if waiter.session != session]
        held.asking = [waiter for waiter in held.asking if waiter.session != session]
        if not held.idle() or held.token:  # an asking under way is waited for
            return False
        self.forget(held)
        return True

    def forget(self, held: RemoteFilter) -> None:
        """Nobody needs a filter."""
        self.routes.clear()
        del self.held[held.filter]
        for number in held.numbers:
            self.asked.pop(number, None)

    def recipients(self, publish: Publish) -> dict[str, int]:
        """Session -> QoS for a message that has come."""
        numbers: list[int] = publish.properties.get(Property.SUBSCRIPTION_IDENTIFIER, [])
        known = [self.asked[number] for number in numbers if number in self.asked]
        whole = bool(known) and len(known) == len(numbers)
        if publish.retain and whole:
            return self._askers(known)
        oldest: dict[str, RemoteFilter] = {}
        found: dict[str, int] = {}
        for target in self.tree.match(publish.topic):
            session = target.session
            found[session] = max(found.get(session, 0), target.qos)
            if session not in oldest or target.held.order < oldest[session].order:
                oldest[session] = target.held
        if not whole:
            return found
        copies = {id(held) for held, _ in known}
        return {session: qos for session, qos in found.items() if id(oldest[session]) in copies}

    @staticmethod
    def _askers(known: list[tuple[RemoteFilter, frozenset[str]]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for held, who in known:
            for session in who:
                qos = held.holders.get(session)
                if qos is not None:
                    found[session] = max(found.get(session, 0), qos)
        return found
