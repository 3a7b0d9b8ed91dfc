"""What the mesh brings to one broker: deliveries to its clients, and what a comparison has changed of retained messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import TYPE_CHECKING

from ...mesh.node import actions
from ..ledger import DELETED
from ..persistence.quota import passes
from ..routing.publication import Publication
from ..routing.retained import BURIED

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..routing.route import Recipients, Route
    from .shell import MeshShell


class Incoming:
    """Carries out what a node says has come.

    store_full: the store keeps nothing more. waiting: by their origins, what has
    come and would have to be kept, and all that came behind it from the same origin. It is not handed over and not confirmed: custody of
    it stays at the origin, which sends no more than its credit. Posts need no room and go ahead, but for those that say where among the
    messages they stand.
    """

    def __init__(self, shell: MeshShell) -> None:
        self.shell = shell
        self.node = shell.node
        self.store_full = False
        self._turn: int | None = None  # the origin whose messages are carried out in their turn though others wait
        self.waiting: dict[int, deque[actions.Deliver | actions.PeerMessage]] = {}

    # While the store keeps nothing more

    def waits(self, action: actions.Deliver | actions.PeerMessage) -> bool:
        """Whether it has to wait; then `go_on` carries it out. Only to be asked while `store_full`, or while something waits."""
        queue = self.waiting.get(action.origin)
        if queue is None:
            if not self.store_full or not self._keeps(action):
                return False
            queue = self.waiting[action.origin] = deque()
        elif action.token is None and isinstance(action, actions.Deliver):
            return False  # QoS 0 has an order of its own
        elif isinstance(action, actions.PeerMessage) and self.shell.peer_messages.goes_ahead(action.kind):
            return False
        queue.append(action)
        return True

    def go_on(self) -> None:
        """From time to time: carry out what waited and finds room now, in the order of each origin."""
        persistence = self.shell.persistence
        if not self.waiting or persistence is None:
            return
        for origin, queue in list(self.waiting.items()):
            while queue and not (self.store_full and self._keeps(queue[0])):
                self._turn = origin
                self.shell.carry_out(queue.popleft())
                self._turn = None
                persistence.look()
            if not queue:
                del self.waiting[origin]

    @property
    def held(self) -> int:
        """Messages that wait."""
        return sum([action.run.count for queue in self.waiting.values() for action in queue if isinstance(action, actions.Deliver)])

    def _keeps(self, action: actions.Deliver | actions.PeerMessage) -> bool:
        """Whether somebody here would have it kept for longer than it takes to send it."""
        if not isinstance(action, actions.Deliver) or action.token is None:
            return False
        router, run = self.shell.router, action.run
        for topic in (run.topic,) if run.uniform else run.topics:
            route = router.routes.get(topic) or router.route(topic)
            if action.ordinary and any(target.qos and not passes(target.session) for target in route.targets):
                return True
        groups = [router.groups[pick] for pick in action.picks if pick in router.groups]
        return any(not any(passes(member.session) for member in group.members) for group in groups)

    # What has come

    def deliver(self, action: actions.Deliver) -> None:
        """A run from elsewhere: local subscribers, the shared subscriptions that the origin picked here, retained messages."""
        run = action.run
        router = self.shell.router
        # what has a token comes again unless its window is kept
        publication = Publication(commit=self._next_commit if self.shell.custody is not None and action.token is not None else 0)
        if publication.commit and run.qos == 2 and self.shell.custody is not None:
            self.shell.custody.hurry()
        picks = [pick for pick in action.picks if pick in router.groups]
        if not run.uniform:
            self._deliver_parts(run, publication)
        elif action.ordinary:
            route = router.routes.get(run.topic) or router.route(run.topic)
            told = self.shell.retained.came(run.topic, action.key) if action.key else None
            self._hand_over(run, route, publication, told or (), len(picks))
        elif run.mark is not None and self.shell.context.journal is not None:
            self.shell.context.journal.received(run, len(picks))
        if action.stored:
            self.shell.retained.store(run, always=True)
            if run.mark is not None and self.shell.context.journal is not None:
                self.shell.context.journal.retained(run)
        for pick in action.picks:
            group = router.groups.get(pick)
            if not router.access.sees(run.topic.decode(), pick[1], None):
                self.shell.context.counters.dropped += run.count  # the origin does not know the rule
            elif group is not None:
                self.shell.context.counters.dropped += router.deliver_shared(group, run, publication)
            elif action.token is not None:
                self.node.refuse(action.token, pick, self.shell.context.now)
        self.carried_out(action.origin, action.token)

    @property
    def _next_commit(self) -> int:
        """The ticket of the commit that holds what is changed now; 0 without a store."""
        return self.shell.persistence.next_commit if self.shell.persistence is not None else 0

    def carried_out(self, origin: int, token: int | None) -> None:
        """A delivery is done; its window belongs into the batch that holds what it caused."""
        if token is None:
            return
        if self.shell.custody is None:
            self.node.delivered(token, self.shell.context.now)
        else:
            self.node.handed(token, self.shell.context.now, early=origin in self.waiting and self._turn != origin)
            self.shell.custody.carried_out(token)

    def weigh(self) -> None:
        """What the mesh remembers of deleted messages needs memory too."""
        self.shell.context.ledger.own.settle(DELETED, BURIED * self.node.buried)

    def retained(self, action: actions.Retained) -> None:
        """What is retained has changed by a comparison with a neighbour. Members of shared subscriptions are not told: each site would
        tell one of them."""
        run, router = action.run, self.shell.router
        if action.announce:
            publication = Publication(commit=self._next_commit)
            self._hand_over(run, router.routes.get(run.topic) or router.route(run.topic), publication)
        self.shell.retained.store(run, always=True)
        if action.coming:
            self.shell.retained.expect(run.topic, action.key)

    def _deliver_parts(self, batch: Batch, publication: Publication) -> None:
        """Messages of different topics: those in a row that have the same recipients go together."""
        router = self.shell.router
        routes = router.routes
        recipients: Recipients | None = None
        start = 0
        for index, topic in enumerate(batch.topics):
            route = routes.get(topic) or router.route(topic)
            found = route.recipients
            if found is not None and (found.local or found) is recipients:
                continue
            if recipients is not None:
                self._hand_over(batch.part(start, index), recipients, publication)
            recipients, start = None, index
            if found is not None:
                recipients = found.local or found
            else:
                self._hand_over(batch.single(index), route, publication)
        if recipients is not None:
            self._hand_over(batch.part(start, batch.count) if start else batch, recipients, publication)

    def _hand_over(self, batch: Batch, to: Route | Recipients, publication: Publication, told: Container[str] = (), picks: int = 0) -> None:
        """Give messages to the sessions here. told: client identifiers of those who have them. picks: shared subscriptions to be served."""
        if batch.mark is not None and self.shell.context.journal is not None:
            targets = [target for target in to.targets if not told or target.session.client_id not in told]
            self.shell.context.journal.received(batch, len(targets) + picks)
        self.shell.router.deliver(batch, to, publication, shares=False, told=told)
        hooks = self.shell.context.hooks
        if hooks is not None:
            names = [target.session.client_id for target in to.targets]
            hooks.delivered(None, batch, [name for name in names if name not in told])
