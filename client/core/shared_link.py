"""One link for many consumers: their subscriptions share one MQTT session, and so one socket.

A *lane* is what one consumer has of the shared link. It is a `transport.Link`, so a consumer does not see whether its link is shared.

- A topic filter is subscribed to once, however many lanes have it. Each lane asks the broker again: what comes after the answer was
  published after the lane was there.
- A message is routed by its Subscription Identifiers, without them by its topic. It is decoded by each consumer for itself.
- The broker has its acknowledgement when each lane has taken the message, not when the consumers have acknowledged it: these subscriptions
  end with the program anyway. A lane takes as many as its prefetch says. So the messages that a consumer has not worked off hold back no
  others, until there are more than that. Then the link waits (Receive Maximum), as a link of one consumer does.

Everything except the requests of a lane runs on the transport's thread. So there are no locks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...mqtt.reasons import Reason
from ...mqtt.topics import FilterTree
from .transport import Done, Incoming, Link, LinkHandler, LinkSpec, Outcome, Publication, Transport

WINDOW = 8192  # messages that lanes have not taken, and those under way
SLOW = WINDOW // 2  # messages that lanes have not taken when somebody is told
ENDED = Outcome(Reason.SERVER_SHUTTING_DOWN, "the connection is closed")


@dataclass(eq=False, slots=True)
class _Arrival:
    """A message of QoS 1 or 2 that came over the link. inner: the link's token. lanes: how many have not taken it."""

    inner: object
    packet: int
    number: int
    lanes: int = 0


@dataclass(eq=False, slots=True)
class _Route:
    """A subscription. asking: lanes whose SUBSCRIBE is not answered. waiting: those that ask next."""

    filter: str
    qos: int
    identifier: int
    lanes: list[Lane] = field(default_factory=list)
    asking: list[tuple[Lane, Done]] = field(default_factory=list)
    waiting: list[tuple[Lane, Done]] = field(default_factory=list)


class SharedLinks:
    """The shared link of a connection. It is opened for the first lane, and closed with the last. After it has failed there is a new one.

    client_id: makes the MQTT client identifier of a new link.
    """

    def __init__(self, transport: Transport, client_id: Callable[[], str], expiry: int) -> None:
        self.transport, self._client_id, self._expiry = transport, client_id, expiry
        self._current: _SharedLink | None = None

    def open(self, handler: LinkHandler, prefetch: int) -> Lane:
        """Make a lane. prefetch: messages that its consumer may have, and not have acknowledged."""
        lane = Lane(self, handler, prefetch)
        self.transport.call(lambda: self._join(lane))
        return lane

    def _join(self, lane: Lane) -> None:
        if self._current is None or self._current.over:
            self._current = _SharedLink(self.transport, LinkSpec(self._client_id(), self._expiry, prefetch=WINDOW))
        self._current.join(lane)


class Lane:
    """See `transport.Link`."""

    def __init__(self, links: SharedLinks, handler: LinkHandler, prefetch: int) -> None:
        self._links, self.handler, self._prefetch = links, handler, prefetch
        self.shared: _SharedLink
        self.route: _Route | None = None
        self.closed = False
        self._open = 0  # messages of QoS 1 and 2 that the consumer has not acknowledged
        self._held: deque[_Arrival] = deque()  # those beyond the prefetch

    # any thread

    @property
    def held(self) -> int:
        """Messages beyond the prefetch."""
        return len(self._held)

    @property
    def has_queues(self) -> bool:
        return self.shared.link.has_queues

    @property
    def has_delays(self) -> bool:
        return self.shared.link.has_delays

    def publish(self, publication: Publication, done: Done) -> None:
        self._links.transport.call(lambda: self.shared.link.publish(publication, done))

    def subscribe(self, filter_: str, qos: int, identifier: int, done: Done, said: tuple[tuple[str, str], ...] = ()) -> None:
        """A lane has one subscription. Its identifier is the link's own, and nothing can be said to the broker."""
        self._links.transport.call(lambda: self.shared.subscribe(self, filter_, qos, done))

    def unsubscribe(self, filter_: str, done: Done) -> None:
        self._links.transport.call(lambda: self.shared.leave(self, done))

    def acknowledge(self, token: object, reason: int = 0) -> None:
        self._links.transport.call(self._acknowledged)

    def close(self, forget: bool, done: Done) -> None:
        self._links.transport.call(lambda: self._close(done))

    # the transport's thread

    def take(self, arrival: _Arrival) -> None:
        """Count a message that the consumer gets."""
        self._open += 1
        if self._open > self._prefetch:
            arrival.lanes += 1
            self._held.append(arrival)

    def _acknowledged(self) -> None:
        self._open -= 1
        while self._held and len(self._held) > self._open - self._prefetch:
            self.shared.taken(self._held.popleft())

    def _close(self, done: Done) -> None:
        if self.closed:
            done(Outcome())
            return
        self.closed = True
        while self._held:
            self.shared.taken(self._held.popleft())
        self.shared.close(self, lambda outcome: done(Outcome()))  # whatever ends first, the lane or the link


class _SharedLink:
    """The handler of the link that lanes share."""

    def __init__(self, transport: Transport, spec: LinkSpec) -> None:
        self.over = False  # it is being closed, or has failed
        self._failure = ENDED
        self._up = False
        self._lanes: set[Lane] = set()
        self._routes: dict[str, _Route] = {}
        self._by_identifier: dict[int, _Route] = {}
        self._by_topic: FilterTree[_Route] = FilterTree()
        self._identifiers, self._numbers = itertools.count(1), itertools.count(1)
        self._untaken: dict[int, int] = {}  # packet identifier -> number, of messages that are not acknowledged
        self.link: Link = transport.open(spec, self)

    def join(self, lane: Lane) -> None:
        """Take in one more lane."""
        lane.shared = self
        self._lanes.add(lane)
        if self._up:
            lane.handler.connected(False)

    def subscribe(self, lane: Lane, filter_: str, qos: int, done: Done) -> None:
        """Subscribe for a lane. done: when the broker has answered."""
        if self.over or lane.closed:
            done(self._failure)
            return
        route = self._routes.get(filter_)
        if route is None:
            route = _Route(filter_, qos, next(self._identifiers))
            self._routes[filter_] = self._by_identifier[route.identifier] = route
            self._by_topic.add(filter_, 0, route)
            route.lanes.append(lane)  # nothing older can come
        lane.route = route
        route.waiting.append((lane, done))
        if not route.asking:
            self._ask(route)

    def _ask(self, route: _Route) -> None:
        """Send SUBSCRIBE for the lanes that wait. One at a time: its answer says of which messages on they are there."""
        route.asking, route.waiting = route.waiting, []
        self.link.subscribe(route.filter, route.qos, route.identifier, lambda outcome: self._answered(route, outcome))

    def _answered(self, route: _Route, outcome: Outcome) -> None:
        asked, route.asking = route.asking, []
        for lane, done in asked:
            if outcome.failed:
                self._drop_lane(lane)
            elif lane.route is route and lane not in route.lanes:
                route.lanes.append(lane)
            done(outcome)
        if route.waiting and not self.over:
            self._ask(route)
        elif not route.lanes:
            self._end_route(route, lambda outcome: None)

    def leave(self, lane: Lane, done: Done) -> None:
        """End the subscription of a lane."""
        route = lane.route
        self._drop_lane(lane)
        if route is None or self.over or route.lanes or route.asking or route.waiting:
            done(Outcome())
        else:
            self._end_route(route, done)

    def _drop_lane(self, lane: Lane) -> None:
        if lane.route is not None and lane in lane.route.lanes:
            lane.route.lanes.remove(lane)
        lane.route = None

    def _end_route(self, route: _Route, done: Done) -> None:
        if self._routes.get(route.filter) is not route:
            done(Outcome())
            return
        del self._routes[route.filter], self._by_identifier[route.identifier]
        self._by_topic.remove(route.filter, 0)
        self.link.unsubscribe(route.filter, done)

    def close(self, lane: Lane, done: Done) -> None:
        """End a lane, with the last one the link."""
        self._lanes.discard(lane)
        if self._lanes or self.over:
            self.leave(lane, done)
        else:
            self.over = True
            self.link.close(True, done)

    def taken(self, arrival: _Arrival) -> None:
        """One of the lanes that had no room for a message has it now."""
        arrival.lanes -= 1
        if not arrival.lanes:
            self._untaken.pop(arrival.packet, None)
            self.link.acknowledge(arrival.inner)

    # the link's events

    def received(self, incoming: Incoming) -> None:
        """See `transport.LinkHandler`."""
        routes = [self._by_identifier[one] for one in incoming.subscriptions if one in self._by_identifier]
        if not incoming.subscriptions:
            routes = self._by_topic.match(incoming.topic)
        lanes = [lane for route in routes for lane in route.lanes]
        if incoming.token is None:
            for_lanes = _for_lane(incoming, None, 0)
            for lane in lanes:
                lane.handler.received(for_lanes)
            return
        number = self._untaken.get(incoming.packet) if incoming.duplicate else None
        arrival = _Arrival(incoming.token, incoming.packet, number or next(self._numbers))
        for lane in lanes:
            lane.take(arrival)
        if arrival.lanes:
            self._untaken[arrival.packet] = arrival.number
            if len(self._untaken) == SLOW:
                self._tell(max(self._lanes, key=lambda lane: lane.held))
        else:
            self._untaken.pop(arrival.packet, None)
            self.link.acknowledge(incoming.token)
        for_lanes = _for_lane(incoming, arrival, arrival.number)
        for lane in lanes:
            lane.handler.received(for_lanes)

    def _tell(self, slowest: Lane) -> None:
        text = f"{slowest.held} messages wait that it has no room for; when there are {WINDOW}, all consumers of its link wait for it"
        slowest.handler.notified(text, "slow_consumer")

    def connected(self, resumed: bool) -> None:
        """See `transport.LinkHandler`."""
        self._up = True
        if not resumed:
            self._untaken.clear()
        for lane in list(self._lanes):
            lane.handler.connected(resumed)

    def disconnected(self, text: str, word: str = "") -> None:
        """See `transport.LinkHandler`."""
        self._up = False
        for lane in list(self._lanes):
            lane.handler.disconnected(text, word)

    def notified(self, text: str, word: str) -> None:
        """See `transport.LinkHandler`."""
        for lane in list(self._lanes)[:1]:  # it concerns all of them: said once
            lane.handler.notified(text, word)

    def failed(self, outcome: Outcome) -> None:
        """See `transport.LinkHandler`."""
        self.over, self._failure = True, outcome
        for lane in list(self._lanes):
            lane.handler.failed(outcome)


def _for_lane(incoming: Incoming, arrival: _Arrival | None, number: int) -> Incoming:
    """The message as lanes get it. The link's identifiers and packet identifiers mean nothing to them: once a message is acknowledged, its
    packet identifier stands for another one."""
    return Incoming(incoming.topic, incoming.payload, incoming.qos, incoming.duplicate, incoming.properties, (), arrival, number)
