"""Who gets a message: subscriptions, the cache of routes, and the delivery of a run.

A *route* is everything that is known about one topic: its targets (one for each session, overlapping subscriptions merged),
the shared subscriptions that match, and who wants it elsewhere in the mesh. It is made once, found by the topic's bytes, and
dropped when a subscription that matches it changes. One event loop owns all of this; nothing here waits.

Invariants: a session is in a route at most once, with the highest QoS of its matching subscriptions (MQTT-3.3.4-2); a shared
subscription gives each message to one member; topics that begin with `$` are matched by no leading wildcard.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ...base.queues import PREFIX
from ...mqtt.batch.batch import Batch
from ...mqtt.packets import Subscription
from ...mqtt.session import Delivery
from ...mqtt.topics import FilterTree, check_topic, matches, split_share
from ..auth.permissions import Access, Rights
from ..counters import Counters
from ..journal.tally import amount_of
from ..ledger import ROUTES, SUBSCRIPTIONS, Ledger, weight_of_filter, weight_of_route
from .route import (
    Addressed,
    Entry,
    KnownRecipients,
    PartOfTargets,
    Recipients,
    Route,
    Service,
    Target,
    Together,
    heard_by,
    queue_recipients,
    target_of,
)
from .shared import ShareGroup

if TYPE_CHECKING:
    from ..journal.recorder import Recorder
    from ..ports import DeliveryRules, Mesh, Recipient, Subscriber
    from .publication import Publication
    from .spread import Spread

__all__ = ["Entry", "Recipients", "Route", "Router", "Target"]

ROUTES_MAX = 100_000  # cached topics; beyond, the cache starts anew
ROUTES_PART = 8  # such a part of what the broker may hold they are at most
SCAN_MAX = 2**20  # bytes of cached routes that are compared with a changed filter; beyond, the cache starts anew
SCANS = 50  # how often each cached topic is compared on average until the cache starts anew: by then that is cheaper
WIDE = 500  # subscriptions of a broker; with more a route may be made in steps
STEP = 512  # subscriptions that are looked at in one step
ALIKE = 32  # overlapping subscriptions of one session; of more, one that says the same as the one before is left out
FREE_STEPS = 4  # steps of a route that are taken at once
END = object()
SCAN_FREE = 1_500_000  # bytes compared for nothing: a cache of few topics need not start anew


class Members(Protocol):
    """The queues, as those see them who subscribe."""

    def name_of(self, topic: str) -> str | None:
        """The queue of a topic `$queue/NAME`; None: there is none."""

    def owns(self, topic: str) -> bool:
        """Whether a topic that begins with `$queue/` is for queues alone."""

    def subscribed(self, session: Any, topic_filter: str, qos: int, identifier: int) -> None:
        """A session is a member of a queue, or has other options."""

    def unsubscribed(self, session: Any, topic_filter: str) -> None:
        """A session is no member any more."""


class Making:
    """A route that is being made. entries, targets: by session. known: what is in `shares`. addressed: who gets its messages by name.
    queued: it is that of a queue. changed: sessions and groups with a subscription that matches and has changed since it was begun."""

    __slots__ = ("addressed", "changed", "entries", "known", "queued", "rights", "shares", "targets", "topic")

    def __init__(self, topic: str, rights: Rights | None, queued: bool) -> None:
        self.topic = topic
        self.queued = queued
        self.rights = rights
        self.entries: dict[Recipient, list[Entry]] = {}
        self.addressed: Addressed | None = None
        self.shares: list[ShareGroup] = []
        self.known: set[ShareGroup] = set()
        self.targets: dict[Recipient, Target] = {}
        self.changed: set[Any] = set()


class Router:
    """Subscriptions and routes of one broker.

    access: who may see and publish what.
    receipts: whether messages of a topic are acknowledged after receipts.
    services: what answers requests, by topic. together: the same of those that take messages whose properties differ at once.
    addressed: says of a topic for which a route is made, and of who is subscribed, what `Route.addressed` is. None: no topic is reserved.
    queues: who takes subscriptions of queues; None: there are no queues, and their topics are as any other.
    recipients: of plain topics that any client may publish to, by topic.
    receivers: what takes requests in this process, by topic (`broker/embedded/direct.py`).
    rules: decides what is delivered of subscriptions that the rules of access allow in part.
    filtered: these subscriptions, by session and filter.
    spreads: batches that are delivered in turns now.
    noting: whether the journal has events of a topic, and what its counters call it.
    journal: what is told of deliveries; None without one.
    watchers: told of each filter whose subscribers change, here or elsewhere in the mesh; of None when any may have changed.
    edits: counts changes of subscriptions here, and of rules.
    changes: counts dropped routes; what a connection remembers of recipients is good until the count changes.
    """

    def __init__(self, counters: Counters, access: Access | None = None, ledger: Ledger | None = None) -> None:
        self.counters = counters
        self._ledger = Ledger(2**30) if ledger is None else ledger
        self.access = access or Access()
        self.tree: FilterTree[Any] = FilterTree()
        self.groups: dict[tuple[str, str], ShareGroup] = {}
        self.stirred: set[ShareGroup] = set()  # those whose members are looked at
        self.routes: dict[bytes, Route] = {}
        self.recipients: dict[bytes, Recipients] = {}
        self.receivers: dict[bytes, Callable[[bytes, float], bool]] = {}
        self.rules: DeliveryRules | None = None
        self.filtered: dict[tuple[Recipient, str], Subscriber] = {}
        self.changes = 0
        self.edits = 0
        self.subscriptions = 0
        self.holders: dict[str, int] = {}
        self.mesh: Mesh | None = None
        self.receipts: Callable[[str], bool] = lambda topic: False
        self.noting: Callable[[bytes, str], tuple[bool, str]] = lambda topic, text: (False, "")
        self.journal: Recorder | None = None
        self.services: dict[str, Service] = {}
        self.together: dict[bytes, Together] = {}
        self.queues: Members | None = None
        self.addressed: Callable[[str, dict[Any, list[Entry]], list[ShareGroup]], Addressed | None] | None = None
        self.spreads: list[Spread] = []
        self.watchers: list[Callable[[str | None], None]] = []
        self._known = KnownRecipients()
        self._making: list[Making] = []
        self._scanned = 0  # bytes of cached routes, as the ledger has them, compared with changed filters since the cache began

    # Subscriptions

    def subscribe(self, session: Subscriber, subscription: Subscription, identifier: int) -> bool:
        """Add or replace one subscription. Returns whether it is new (for Retain Handling 1)."""
        self.edits += 1
        full = subscription.filter
        share = split_share(full)
        is_new = full not in session.subscriptions
        if is_new:
            session.account.charge(SUBSCRIPTIONS, weight_of_filter(full))
        session.subscriptions[full] = subscription
        face = session.face
        entry = Entry(face, subscription, identifier)
        self.subscriptions += is_new
        if share is None:
            self.tree.add(full, face, entry)
            self._note_filtered(session, full)
            if self.queues is not None and full.startswith(PREFIX):
                self.queues.subscribed(session, full, subscription.qos, identifier)
            if is_new:
                self._hold(full)
            self._changed(full, face)
            return is_new
        name, topic_filter = share
        group = self.groups.get(share)
        if group is None:
            group = self.groups[share] = ShareGroup(name, topic_filter, self.stirred)
            group.journal = self.journal
            self.tree.add(topic_filter, group, group)
        group.join(entry)
        self._weigh(group)
        self._changed(topic_filter, group)
        return is_new

    def bind(self, group: ShareGroup) -> None:
        """Somebody that is no session wants messages, of all sites: a queue."""
        self.tree.add(group.filter, group, group)
        self._hold(group.filter)
        self._changed(group.filter, group)

    def unbind(self, group: ShareGroup) -> None:
        """It wants them no more."""
        self.tree.remove(group.filter, group)
        self._release(group.filter)
        self._changed(group.filter, group)

    def _note_filtered(self, session: Subscriber, full: str) -> None:
        if self.rules is not None and self.rules.filters(session, full):
            self.filtered[session.face, full] = session
        elif self.filtered:
            self.filtered.pop((session.face, full), None)

    def rules_changed(self, sessions: Iterable[Subscriber]) -> None:
        """The rules of access are others: look again which subscriptions they allow in part."""
        self.edits += 1
        for session in sessions:
            for full in session.subscriptions:
                if not full.startswith("$share/"):
                    self._note_filtered(session, full)
            for making in self._making:
                making.changed.add(session.face)
        for making in self._making:
            making.rights = self.rights(making.topic)
        self._clear()

    def reads(self, session: Recipient, topic_filter: str, topic: str) -> bool:
        """Whether the rules let a subscription that matches a topic have its messages."""
        partial = self.filtered.get((session, topic_filter))
        return partial is None or self.rules is None or self.rules.reads(partial, topic)

    def unsubscribe(self, session: Subscriber, full: str) -> bool:
        """Remove one subscription. Returns whether it was there."""
        if session.subscriptions.pop(full, None) is None:
            return False
        self.edits += 1
        session.account.charge(SUBSCRIPTIONS, -weight_of_filter(full))
        self.subscriptions -= 1
        share = split_share(full)
        if share is None:
            self.tree.remove(full, session.face)
            self.filtered.pop((session.face, full), None)
            if self.queues is not None and full.startswith(PREFIX):
                self.queues.unsubscribed(session, full)
            self._release(full)
            self._changed(full, session.face)
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
        self._changed(topic_filter, group)
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
        for spread in self.spreads:
            spread.serve(session.face)
        for full, subscription in session.subscriptions.items():
            entry = Entry(face, subscription, self.identifier(session, full))
            share = split_share(full)
            if share is None:
                self.tree.remove(full, session.face)
                self.tree.add(full, face, entry)
                partial = self.filtered.pop((session.face, full), None)
                if partial is not None:
                    self.filtered[face, full] = partial
                self._changed(full, session.face, face)
            else:
                group = self.groups[share]
                group.leave(session.face)
                group.join(entry)
                self._changed(share[1], group)
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

    def _changed(self, topic_filter: str, *whose: Any) -> None:
        """Drop the cached routes that a filter's change concerns. whose: the sessions or groups whose subscription has changed."""
        for watcher in self.watchers:
            watcher(topic_filter)
        for making in self._making:
            if matches(topic_filter, making.topic):
                making.changed.update(whose)
        if "+" not in topic_filter and "#" not in topic_filter:
            topic = topic_filter.encode()
            self._drop(topic)
        elif self.routes:
            cost = self._ledger.held[ROUTES]
            self._scanned += cost
            if cost > SCAN_MAX or self._scanned > SCANS * cost + SCAN_FREE:
                self._clear()
                return
            start = topic_filter[: min(at for at in map(topic_filter.find, "+#") if at >= 0)].rstrip("/").encode()  # `a/#` matches `a` too
            for topic in [one for one, route in self.routes.items() if one.startswith(start) and matches(topic_filter, route.topic)]:
                self._drop(topic)

    def _drop(self, topic: bytes) -> None:
        """Forget what is known about a topic."""
        route = self.routes.pop(topic, None)
        if route is not None:
            self._ledger.own.charge(ROUTES, -weight_of_route(topic, len(route.targets)))
        self.recipients.pop(topic, None)
        self.receivers.pop(topic, None)
        self.changes += 1

    def _clear(self) -> None:
        self.routes.clear()
        self.recipients.clear()
        self.receivers.clear()
        self.changes += 1
        self._ledger.own.settle(ROUTES, 0)
        self._scanned = 0

    def filters_changed(self, filters: Iterable[str] | None) -> None:
        """Interest elsewhere in the mesh changed, for these filters or (None) for any."""
        if filters is None:
            self._clear()
            for watcher in self.watchers:
                watcher(None)
        else:
            for topic_filter in filters:
                self._changed(topic_filter)

    def route(self, topic_bytes: bytes) -> Route:
        """The route of a topic that is not in the cache. Raises PeerError for a topic that may not be published to."""
        topic = check_topic(topic_bytes)
        making = Making(topic, self.rights(topic), self._queued(topic))
        if not making.queued:
            self._sort_out(making, self.tree.match(topic))
        self._address(making)
        return self._keep(topic_bytes, making, [target_of(found) for found in making.entries.values()])

    def begin_route(self, topic_bytes: bytes) -> Route | Iterator[None]:
        """The same; where very many subscriptions are concerned, the steps that make it and put it into the cache.

        Raises PeerError, and so do the steps.
        """
        if len(self.tree) <= WIDE:
            return self.route(topic_bytes)
        steps = self._make(topic_bytes)
        for _ in range(FREE_STEPS):
            if next(steps, END) is END:
                return self.routes[topic_bytes]
        return steps

    def _make(self, topic_bytes: bytes) -> Iterator[None]:
        topic = check_topic(topic_bytes)
        making = Making(topic, self.rights(topic), self._queued(topic))
        self._making.append(making)
        try:
            found: list[Any] = []
            if not making.queued:
                yield from self.tree.match_in_steps(topic, found)
            for start in range(0, len(found), STEP):
                self._sort_out(making, found[start : start + STEP])
                yield
            self._address(making)
            entries = list(making.entries.items())
            for start in range(0, len(entries), STEP):
                making.targets.update([(session, target_of(known)) for session, known in entries[start : start + STEP]])
                yield
            while making.changed and not making.queued:
                yield from self._look_again(making, making.changed.pop())
        finally:
            self._making.remove(making)
        self._keep(topic_bytes, making, list(making.targets.values()))

    def _look_again(self, making: Making, whose: Any) -> Iterator[None]:
        """Correct what is known of one session or group, whose subscriptions have changed. What changes meanwhile is looked at later."""
        found: list[Any] = []
        yield from self.tree.match_key_in_steps(making.topic, whose, found)
        making.entries.pop(whose, None)
        making.targets.pop(whose, None)
        making.shares = [group for group in making.shares if group is not whose]
        making.known = set(making.shares)
        for start in range(0, len(found), STEP):
            self._sort_out(making, found[start : start + STEP])
            yield
        known = {whose: making.entries[whose]} if whose in making.entries else {}
        if self.addressed is not None:
            self.addressed(making.topic, known, making.shares)
        for entries in known.values():
            making.targets[whose] = target_of(entries)

    def _queued(self, topic: str) -> bool:
        """Whether messages of a topic go into a queue, and to nobody else."""
        return self.queues is not None and topic.startswith(PREFIX) and self.queues.owns(topic)

    def _sort_out(self, making: Making, values: list[Any]) -> None:
        """Add subscriptions and groups that match to what is known of a route."""
        topic, rights, entries = making.topic, making.rights, making.entries
        for value in values:
            if isinstance(value, ShareGroup):
                if value not in making.known and (rights is None or self.access.sees(topic, value.filter, None)):
                    making.known.add(value)
                    making.shares.append(value)
            elif (rights is None or self.access.sees(topic, value.subscription.filter, value.session.client_id)) and (
                not self.filtered or self.reads(value.session, value.subscription.filter, topic)
            ):
                known = entries.setdefault(value.session, [])
                if len(known) < ALIKE or not (self.addressed is None and value.adds_nothing_to(known[-1])):
                    known.append(value)

    def _address(self, making: Making) -> None:
        """Take the sessions out that get a topic's messages by their name: they are no targets of their own."""
        if self.addressed is not None:
            making.addressed = self.addressed(making.topic, making.entries, making.shares)

    def _keep(self, topic_bytes: bytes, making: Making, targets: list[Target]) -> Route:
        """Make a route and put it into the cache."""
        topic, rights, queued = making.topic, making.rights, making.queued
        service = self.services.get(topic)
        writable = topic != "$SYS" and not topic.startswith(("$SYS/", "$mqmesh/")) and not queued and service is None
        mesh = self.mesh.route(topic_bytes) if self.mesh is not None and not queued and service is None else None
        route = Route(topic, targets, making.shares, mesh, writable)
        route.receipts = self.receipts(topic)
        route.service = service
        route.rights = rights
        if queued and self.queues is not None:
            self._queue(route, topic_bytes, self.queues.name_of(topic))
        route.addressed = making.addressed
        if self.journal is not None:
            route.noted, route.dimension = self.noting(topic_bytes, topic)
        if topic_bytes in self.routes:  # it was made twice, in turns
            self._drop(topic_bytes)
        ledger, weight = self._ledger, weight_of_route(topic_bytes, len(targets))
        if len(self.routes) >= ROUTES_MAX or ledger.held[ROUTES] + weight > ledger.limit // ROUTES_PART:
            self._clear()
        ledger.own.charge(ROUTES, weight)
        self.routes[topic_bytes] = route
        if writable and making.addressed is None and not (rights is not None and rights.identified):
            route.recipients = self.recipients_of(route, None)
            if route.recipients is not None and not route.choosy and (rights is None or rights.owners is None):
                self.recipients[topic_bytes] = route.recipients
        return route

    def recipients_of(self, route: Route, publisher: Recipient | None) -> Recipients | None:
        """Who gets the plain messages of a publisher; None: they go by the route. publisher: None: one that is not among the targets."""
        targets = route.targets
        if not route.plain:
            heard = heard_by(targets, publisher) if route.choosy and not route.shares else None
            if heard is None:
                return None
            targets = heard
        mask = self.mesh.mask(route.mesh) if route.mesh is not None and self.mesh is not None else 0
        if mask is None:
            return None
        return self._known.of(targets, mask, route.receipts and mask > 0, route.noted, route.dimension)

    def _queue(self, route: Route, topic: bytes, name: str | None) -> None:
        """The route of a queue's topic. name: None: there is no such queue."""
        route.queue = name or ""
        if name is not None and not (route.rights is not None and route.rights.identified):
            route.recipients = queue_recipients(name)
            if route.rights is None or route.rights.owners is None:
                self.recipients[topic] = route.recipients

    # Who may

    def refusal(self, client_id: str, full: str) -> str | None:
        """Why a client may not have a subscription; None: it may."""
        return self.access.subscribe(client_id, full)

    def rights(self, topic: str) -> Rights | None:
        """What is special about publishing to a topic; None: nothing."""
        return self.access.rights(topic)

    # Delivery

    def deliver(
        self,
        batch: Batch,
        to: Route | Recipients | PartOfTargets,
        publication: Publication,
        shares: bool = True,
        told: Container[str] = (),
        counted: bool = False,
    ) -> None:
        """Hand a batch to the sessions and shared subscriptions here. `publication.refused` says what found no room.

        shares: whether shared subscriptions get it. told: client identifiers of those who have it. counted: the journal's counters
        have it already.
        """
        journal = self.journal
        if journal is not None and to.targets and not counted:
            if not to.tally:
                journal.tally.begin(to)
            to.tally += amount_of(batch)
        plain = not batch.qos and to.plain and batch.expiry is None and batch.mark is None
        if plain and not told and not (batch.retain and to.as_published):
            self._deliver_plain(batch, to)
            return
        refused = 0
        for target in to.targets:
            if told and target.session.client_id in told:
                if journal is not None:
                    journal.missed(to.dimension, target.session, batch)
                continue
            refused = max(refused, self.deliver_to(batch, target, publication, to.dimension))
        if shares:
            for group in to.shares:
                left = self.deliver_shared(group, batch, publication)
                self.counters.dropped += left
                if batch.qos:
                    refused = max(refused, left)
        publication.refused = refused

    def count(self, batch: Batch, to: Route | Recipients) -> None:
        """Have the journal's counters count a batch for all targets, before it is delivered in parts."""
        if self.journal is not None and to.targets:
            if not to.tally:
                self.journal.tally.begin(to)
            to.tally += amount_of(batch)

    def deliver_shared(self, group: ShareGroup, batch: Batch, publication: Publication) -> int:
        """The copy of a shared subscription: how many messages found no member."""
        left = group.take(batch, publication)
        if left and batch.mark is not None and self.journal is not None:
            self.journal.dropped("", batch.mark.part(batch.count - left, batch.count), group.no_room)
        return left

    def _deliver_plain(self, batch: Batch, to: Route | Recipients | PartOfTargets) -> None:
        """The hot loop: QoS 0, no options. The bytes for each version are made once and given to all."""
        block4 = block5 = b""
        count = batch.count
        given = 0
        journal = self.journal
        for target in to.targets:
            connection = target.session.connection
            if connection is None:
                if journal is not None:
                    journal.missed(to.dimension, target.session, batch)
                continue
            if connection.special:
                if not connection.send_qos0(batch, False, b"") and journal is not None:
                    journal.missed(to.dimension, target.session, batch)
            elif connection.congested:
                connection.drop(count)
                if journal is not None:
                    journal.missed(to.dimension, target.session, batch)
            elif connection.version == 5:
                if not block5:
                    block5 = batch.block(5)
                connection.sent += count
                given += len(block5)
                connection.send(block5)
            else:
                if not block4:
                    block4 = batch.block(4)
                connection.sent += count
                given += len(block4)
                connection.send(block4)
        self.counters.publish_bytes_sent += given

    def deliver_to(self, batch: Batch, target: Target, publication: Publication, dimension: str | None = None) -> int:
        """One session's copy, at the lower of the two QoS (MQTT-3.8.4-8): how many of its last messages it had no room for.

        dimension: what the journal's counters call the topic; None: what is not given to a route as a whole is not counted.
        """
        session, journal = target.session, self.journal if dimension is not None else None
        dimension = dimension or ""
        if session is publication.session:  # No Local (MQTT-3.8.3-3)
            if target.deaf:
                if journal is not None:
                    journal.missed(dimension, session, batch)
                return 0
            target = target.foreign or target
        qos = batch.qos if batch.qos < target.qos else target.qos
        retain = batch.retain and target.retain_as_published
        if qos:
            ticket = publication.commit if qos == 2 else 0
            refused = batch.count - session.deliver(Delivery(batch, qos, retain, target.suffix, ticket=ticket))
            self.counters.dropped += refused
            if refused and journal is not None:
                journal.full(dimension, session, batch, refused)
            return refused
        connection = session.connection
        if connection is None:
            if journal is not None:
                journal.away(dimension, session, batch)
        elif not connection.send_qos0(batch, retain, target.suffix) and journal is not None:
            journal.missed(dimension, session, batch)
        return 0
