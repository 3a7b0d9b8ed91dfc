"""Who gets a message: subscriptions, the cache of routes, and the delivery of a run.

A *route* is everything that is known about one topic: its targets (one for each session, overlapping subscriptions merged),
the shared subscriptions that match, and who wants it elsewhere in the mesh. It is made once, found by the topic's bytes, and
dropped when a subscription that matches it changes. One event loop owns all of this; nothing here waits.

Invariants: a session is in a route at most once, with the highest QoS of its matching subscriptions (MQTT-3.3.4-2); a shared
subscription gives each message to one member; topics that begin with `$` are matched by no leading wildcard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...base.metabroker import REQUEST, RESPONSE
from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import Run
from ...mqtt.packets import Subscription
from ...mqtt.session import Delivery
from ...mqtt.topics import FilterTree, check_topic, matches, split_share
from ..auth.permissions import SESSION, Access, Rights
from ..counters import Counters
from .route import Entry, Fan, Fans, Route, Service, Target, target_of
from .shared import ShareGroup

if TYPE_CHECKING:
    from ..embedded.direct import Way
    from ..ports import Mesh, Recipient, Subscriber

__all__ = ["Entry", "Fan", "Route", "Router", "Target"]

ANSWERS = ("/publish", "/puback", "/suback", "/unsuback", "/status", "/discack", "/resack")  # of a session of the metabroker
ROUTES_MAX = 100_000  # cached topics; beyond, the cache starts anew
ROUTE_BYTES_MAX = 32 * 2**20  # bytes of the cached topics
SCAN_MAX = 2_000  # cached topics that are compared with a changed filter; beyond, the cache starts anew
SCANS = 50  # how often each cached topic is compared on average until the cache starts anew: by then that is cheaper
SCAN_FREE = 200_000  # bytes compared for nothing: a cache of few topics need not start anew


class Router:
    """Subscriptions and routes of one broker.

    access: who may see and publish what. receipts: whether messages of a topic are acknowledged behind receipts. services: what answers
    requests, by topic. refused: of the last run of QoS 1 or 2 that was delivered, how many of its last messages some session had no room
    for.
    """

    def __init__(self, counters: Counters, access: Access | None = None) -> None:
        self.counters = counters
        self.access = access or Access()
        self.tree: FilterTree[Any] = FilterTree()
        self.groups: dict[tuple[str, str], ShareGroup] = {}
        self.stirred: set[ShareGroup] = set()  # those whose members are looked at
        self.routes: dict[bytes, Route] = {}
        self.fans: dict[bytes, Fan] = {}  # of those routes that have one, and that any client may publish to
        self.owned_fans: dict[bytes, Fan] = {}  # of those that belong to the metabroker
        self.straight: dict[bytes, Way] = {}  # short ways of requests to what runs inside (`straight.py`)
        self._bound: dict[str, set[bytes]] = {}  # session of the metabroker -> cached topics of requests in it
        self.subscriptions = 0
        self.holders: dict[str, int] = {}
        self.mesh: Mesh | None = None
        self.receipts: Callable[[str], bool] = lambda topic: False
        self.services: dict[str, Service] = {}
        self.refused = 0
        self._fans = Fans()
        self._route_bytes = 0
        self._scanned = 0  # bytes of topics, each with 64 more, compared with changed filters since the cache began

    # Subscriptions

    def subscribe(self, session: Subscriber, subscription: Subscription, identifier: int) -> bool:
        """Add or replace one subscription. Returns whether it is new (for Retain Handling 1)."""
        full = subscription.filter
        share = split_share(full)
        is_new = full not in session.subscriptions
        session.subscriptions[full] = subscription
        face = session.face
        entry = Entry(face, subscription, identifier)
        self.subscriptions += is_new
        if share is None:
            self.tree.add(full, face, entry)
            if is_new:
                self._hold(full)
            self._changed(full)
            return is_new
        name, topic_filter = share
        group = self.groups.get(share)
        if group is None:
            group = self.groups[share] = ShareGroup(name, topic_filter, self.stirred)
            self.tree.add(topic_filter, group, group)
        group.join(entry)
        self._weigh(group)
        self._changed(topic_filter)
        return is_new

    def unsubscribe(self, session: Subscriber, full: str) -> bool:
        """Remove one subscription. Returns whether it was there."""
        if session.subscriptions.pop(full, None) is None:
            return False
        self.subscriptions -= 1
        share = split_share(full)
        if share is None:
            self.tree.remove(full, session.face)
            self._release(full)
            self._changed(full)
            return True
        name, topic_filter = share
        group = self.groups[share]
        group.leave(session.face)
        if not group.members:
            del self.groups[share]
            self.tree.remove(topic_filter, group)
            self.stirred.discard(group)
            if self.mesh is not None:
                self.mesh.unsubscribe(topic_filter, name)
        else:
            self._weigh(group)
        self._changed(topic_filter)
        return True

    def identifier(self, session: Subscriber, full: str) -> int:
        """The Subscription Identifier of one of a session's subscriptions, 0 without."""
        return self._entry(session, full).number

    def _entry(self, session: Subscriber, full: str) -> Entry:
        share = split_share(full)
        if share is None:
            return self.tree.get(full)[session.face]  # type: ignore[no-any-return]
        return next(member for member in self.groups[share].members if member.session is session.face)

    def reface(self, session: Subscriber, face: Recipient) -> None:
        """Have routes and groups know a session by another face from now on."""
        for full, subscription in session.subscriptions.items():
            entry = Entry(face, subscription, self.identifier(session, full))
            share = split_share(full)
            if share is None:
                self.tree.remove(full, session.face)
                self.tree.add(full, face, entry)
                self._changed(full)
            else:
                group = self.groups[share]
                group.leave(session.face)
                group.join(entry)
                self._changed(share[1])
        session.face = face

    def _weigh(self, group: ShareGroup) -> None:
        """Tell other brokers what a shared subscription weighs here, if that has changed."""
        weight = group.weigh()
        if weight != group.weight:
            group.weight = weight
            if self.mesh is not None:
                self.mesh.subscribe(group.filter, group.name, weight)

    def look_at_groups(self) -> None:
        """From time to time: how members of shared subscriptions with traffic keep up."""
        for group in list(self.stirred):
            group.look()
            self._weigh(group)

    def stir(self, session: Subscriber) -> None:
        """A session's connection came or went: look at its shared subscriptions."""
        self.stirred.update(self.shares_of(session))

    def shares_of(self, session: Subscriber) -> list[ShareGroup]:
        """The shared subscriptions that a session is a member of."""
        shares = [split_share(full) for full in session.subscriptions if full.startswith("$share/")]
        return [self.groups[share] for share in shares if share is not None]

    def _hold(self, topic_filter: str) -> None:
        count = self.holders[topic_filter] = self.holders.get(topic_filter, 0) + 1
        if count == 1 and self.mesh is not None:
            self.mesh.subscribe(topic_filter, None, 1)

    def _release(self, topic_filter: str) -> None:
        count = self.holders[topic_filter] - 1
        if count:
            self.holders[topic_filter] = count
            return
        del self.holders[topic_filter]
        if self.mesh is not None:
            self.mesh.unsubscribe(topic_filter, None)

    # Routes

    def _changed(self, topic_filter: str) -> None:
        """Drop the cached routes that a filter's change concerns."""
        if self._bound and topic_filter.startswith(RESPONSE):
            for topic in self._bound.pop(topic_filter.split("/")[2], ()):  # somebody else may ask from now on
                self.routes.pop(topic, None)
                self._forget_fan(topic)
        if "+" not in topic_filter and "#" not in topic_filter:
            topic = topic_filter.encode()
            self.routes.pop(topic, None)
            self._forget_fan(topic)
        elif self.routes:
            cost = self._route_bytes + 64 * len(self.routes)
            self._scanned += cost
            if len(self.routes) > SCAN_MAX or self._scanned > SCANS * cost + SCAN_FREE:
                self._clear()
                return
            start = topic_filter[: min(at for at in map(topic_filter.find, "+#") if at >= 0)].rstrip("/").encode()  # `a/#` matches `a` too
            for topic in [one for one, route in self.routes.items() if one.startswith(start) and matches(topic_filter, route.topic)]:
                del self.routes[topic]
                self._forget_fan(topic)

    def _forget_fan(self, topic: bytes) -> None:
        self.fans.pop(topic, None)
        self.owned_fans.pop(topic, None)
        self.straight.pop(topic, None)

    def _clear(self) -> None:
        self.routes.clear()
        self.fans.clear()
        self.owned_fans.clear()
        self.straight.clear()
        self._bound.clear()
        self._route_bytes = 0
        self._scanned = 0

    def filters_changed(self, filters: Iterable[str] | None) -> None:
        """Interest elsewhere in the mesh changed, for these filters or (None) for any."""
        if filters is None:
            self._clear()
        else:
            for topic_filter in filters:
                self._changed(topic_filter)

    def route(self, topic_bytes: bytes) -> Route:
        """The route of a topic that is not in the cache. Raises PeerError for a topic that may not be published to."""
        topic = check_topic(topic_bytes)
        entries: dict[Recipient, list[Entry]] = {}
        shares = []
        rights = self.rights(topic)
        for value in self.tree.match(topic):
            if isinstance(value, ShareGroup):
                if rights is None or self.access.sees(topic, value.filter, None):
                    shares.append(value)
            elif rights is None or self.access.sees(topic, value.subscription.filter, value.session.client_id):
                entries.setdefault(value.session, []).append(value)
        mesh = self.mesh.route(topic_bytes) if self.mesh is not None else None
        writable = topic != "$SYS" and not topic.startswith(("$SYS/", "$mqmesh/"))
        route = Route(topic, [target_of(found) for found in entries.values()], shares, mesh, writable)
        route.receipts = self.receipts(topic)
        route.service = self.services.get(topic)
        route.rights = rights
        self._route_bytes += len(topic_bytes)
        if len(self.routes) >= ROUTES_MAX or self._route_bytes > ROUTE_BYTES_MAX:
            self._clear()
        self.routes[topic_bytes] = route
        if rights is not None and topic.startswith(REQUEST):
            self._bound.setdefault(topic[len(REQUEST) :].partition("/")[0], set()).add(topic_bytes)
        if route.plain and writable and not (rights is not None and rights.identified):
            fans = self.fans if rights is None or rights.owners is None else self.owned_fans
            mask = self.mesh.mask(mesh) if mesh is not None and self.mesh is not None else 0
            if mask is not None:
                fans[topic_bytes] = self._fans.of(route.targets, mask, route.receipts and mask > 0)
        return route

    # Who may

    def refusal(self, client_id: str, full: str) -> str | None:
        """Why a client may not have a subscription; None: it may."""
        return self.access.subscribe(client_id, full, self._holders)

    def rights(self, topic: str) -> Rights | None:
        """What is special about publishing to a topic; None: nothing."""
        rights = self.access.rights(topic)
        if rights is None or not topic.startswith(REQUEST):
            return rights
        name = topic[len(REQUEST) :].partition("/")[0]
        if SESSION.fullmatch(name) is None:
            return rights
        holders = self._holders(name)
        return self.access.bound(frozenset(holders)) if holders else rights

    def _holders(self, name: str) -> set[str]:
        """The clients that have subscriptions to answers in a session of the metabroker. Those that move to another site do not count."""
        prefix = f"{RESPONSE}{name}"
        found = set()
        for verb in ANSWERS:
            for value in self.tree.match(prefix + verb):
                if isinstance(value, Entry) and value.subscription.filter.startswith(prefix):
                    found.add(value.session.client_id)
        return {client_id for client_id in found if client_id != self.access.client and not client_id.startswith("\0")}

    # Delivery

    def deliver(self, run: Run, route: Route, publisher: Recipient | None, shares: bool = True) -> bool:
        """Hand a run to the route's local targets and (unless the mesh picked elsewhere) shares.

        publisher: the session it comes from, for No Local (MQTT-3.8.3-3). False: some session had no room for a part; `refused`
        says for how many messages at the end of the run.
        """
        self.refused = 0
        if run.qos == 0 and route.plain and not (run.retain and route.as_published):
            self._deliver_plain(run, route.targets)
            return True
        refused = 0
        for target in route.targets:
            if target.session is publisher:
                if target.local is None:
                    continue
                target = target.local
            refused = max(refused, self.deliver_to(run, target))
        if shares:
            for group in route.shares:
                refused = max(refused, self._share(run, group))
        self.refused = refused
        return not refused

    def deliver_others(self, run: Run, route: Route, told: set[str]) -> None:
        """Hand a run to the route's targets but the clients of these identifiers, who have it."""
        for target in route.targets:
            if target.session.client_id not in told:
                self.deliver_to(run, target)

    def _deliver_plain(self, run: Run, targets: list[Target]) -> None:
        """The hot loop: QoS 0, no options: each version's bytes are made once and given to all."""
        block4 = block5 = b""
        count = run.count
        given = 0
        for target in targets:
            connection = target.session.connection
            if connection is None:
                continue
            if connection.special or run.expiry is not None:
                connection.send_qos0(run, False, b"")
            elif connection.congested:
                connection.drop(count)
            elif connection.version == 5:
                if not block5:
                    block5 = run.frames(5, 0, False, run.properties).data
                connection.sent += count
                given += len(block5)
                connection.send(block5)
            else:
                if not block4:
                    block4 = run.frames(4, 0).data
                connection.sent += count
                given += len(block4)
                connection.send(block4)
        self.counters.publish_bytes_sent += given

    def deliver_block(self, block: bytes, version: int, count: int, fan: Fan) -> None:
        """Hand a span of QoS 0, as it came from a client of a version, to its recipients."""
        mixed = None
        given = 0
        for session in fan.sessions:
            connection = session.connection
            if connection is None:
                continue
            if connection.congested:
                connection.drop(count)
            elif connection.version == version and not connection.special:
                connection.sent += count
                given += len(block)
                connection.send(block)
            else:
                if mixed is None:
                    mixed = PacketBatch(block, version, 0, count, connection.context.now)
                connection.send_mixed_qos0(mixed)
        self.counters.publish_bytes_sent += given

    def deliver_mixed(self, mixed: PacketBatch, fan: Fan) -> int:
        """Hand a span of QoS 1 or 2 to its recipients: how many messages at its end some session had no room for."""
        refused = 0
        for session, granted in fan.members:
            qos = granted if granted < mixed.qos else mixed.qos
            if qos:
                left = mixed.count - session.deliver(Delivery(mixed, qos))
                if left:
                    self.counters.dropped += left
                    refused = max(refused, left)
            elif session.connection is not None:
                session.connection.send_mixed_qos0(mixed)
        return refused

    def deliver_to(self, run: Run, target: Target) -> int:
        """One session's copy, at the lower of the two QoS (MQTT-3.8.4-8): how many of its last messages it had no room for."""
        qos = run.qos if run.qos < target.qos else target.qos
        retain = run.retain and target.retain_as_published
        session = target.session
        if qos:
            refused = run.count - session.deliver(Delivery(run, qos, retain, target.suffix))
            self.counters.dropped += refused
            return refused
        if session.connection is not None:
            session.connection.send_qos0(run, retain, target.suffix)
        return 0

    def deliver_share(self, run: Run, group: ShareGroup) -> bool:
        """Spread the run's messages over the members, each to one (MQTT-4.8.2-4). False: no member had room for some."""
        return not self._share(run, group)

    def _share(self, run: Run, group: ShareGroup) -> int:
        refused = group.deliver(run)
        self.counters.dropped += refused
        return refused if run.qos else 0
