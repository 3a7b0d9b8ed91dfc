"""What the mesh brings to one broker: deliveries to its clients, and what a comparison has changed of retained messages.

A message for very many clients goes in turns (`routing/spread.py`), as one does that a client here publishes. All that its origin sends
after it waits until it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from ...mesh.node import actions
from ..ledger import DELETED
from ..persistence.quota import passes
from ..routing.publication import Publication
from ..routing.retained import BURIED
from ..routing.route import Route
from ..routing.spread import Spread

if TYPE_CHECKING:
    from ...mqtt.batch.batch import Batch
    from ..routing.route import Recipients
    from .shell import MeshShell


WIDE = (2_000, 500, 500)  # clients here that get a message, by its QoS; more are served in turns
QOS_0_MAX = 8 * 2**20  # bytes of QoS 0 that wait for messages in turns before them; more is dropped


class Incoming:
    """Carries out what a node says has come.

    store_full: the store keeps nothing more. waiting: by their origins, what has
    come and would have to be kept, and all that came behind it from the same origin. It is not handed over and not confirmed: custody of
    it stays at the origin, which sends no more than its credit. Posts need no room and go ahead, but for those that say where among the
    messages they stand. Of the origins in `_spreading` a message is under way to very many clients; what comes behind it waits too.
    """

    def __init__(self, shell: MeshShell) -> None:
        self.shell = shell
        self.node = shell.node
        self.store_full = False
        self._turn: int | None = None  # the origin whose messages are carried out in their turn though others wait
        self.waiting: dict[int, deque[actions.Deliver | actions.PeerMessage]] = {}
        self._spreading: set[int] = set()
        self._qos_0 = 0  # bytes of QoS 0 that wait

    # What waits

    def waits(self, action: actions.Deliver | actions.PeerMessage) -> bool:
        """Whether it has to wait; then it is carried out by itself later. Only to be asked while `store_full`, or while something waits."""
        queue = self.waiting.get(action.origin)
        if queue is None:
            if not self.store_full or not self._keeps(action):
                return False
            queue = self.waiting[action.origin] = deque()
        elif action.token is None and isinstance(action, actions.Deliver):
            if action.origin not in self._spreading and not self._qos_0:
                return False  # it does not wait for the store
            size = action.run.count * action.run.length
            if self._qos_0 + size > QOS_0_MAX:
                self.shell.context.counters.dropped += action.run.count
                return True
            self._qos_0 += size
        elif isinstance(action, actions.PeerMessage) and self.shell.peer_messages.goes_ahead(action.kind):
            return False
        queue.append(action)
        return True

    def go_on(self) -> None:
        """From time to time, and when there is reason to: carry out what waited and may go now, in the order of each origin."""
        for origin in list(self.waiting):
            for _ in self._go_on(origin):
                pass

    def _go_on(self, origin: int) -> Iterator[None]:
        """The same for one origin, a message in each step."""
        queue, persistence = self.waiting[origin], self.shell.persistence
        while queue and origin not in self._spreading and not (self.store_full and self._keeps(queue[0])):
            waited = len(queue)
            action = queue.popleft()
            self._turn = origin
            try:
                self.shell.carry_out(action)
            finally:
                self._turn = None
            if len(queue) == waited:
                return  # it has been put back
            if action.token is None and isinstance(action, actions.Deliver):
                self._qos_0 -= action.run.count * action.run.length
            if persistence is not None:
                persistence.look()
            yield
        if not queue and origin not in self._spreading:
            self.waiting.pop(origin, None)

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
            if action.ordinary and any(group.keeps for group in route.shares):
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
        if publication.commit and self._has_to_wait(action):
            self.waiting.setdefault(action.origin, deque()).appendleft(action)
            return
        if publication.commit and run.qos == 2 and self.shell.custody is not None:
            self.shell.custody.hurry()
        picks = [pick for pick in action.picks if pick in router.groups]
        wide: list[Spread] = []
        if not run.uniform:
            self._deliver_parts(run, action.origin, publication, wide)
        elif action.ordinary:
            route = router.routes.get(run.topic) or router.route(run.topic)
            told = self.shell.retained.came(run.topic, action.key) if action.key else None
            self._hand_over(run, route, publication, told or (), len(picks), wide)
            if route.shares:
                self._put(run, route, action.origin)
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
        if wide:
            self._go_in_turns(action, wide, publication)
        else:
            self.carried_out(action.origin, action.token)

    def _has_to_wait(self, action: actions.Deliver) -> bool:
        """Whether very many get what belongs into one commit, and other such deliveries are under way."""
        shell, router = self.shell, self.shell.router
        if shell.persistence is None or shell.roaming is not None or not shell.persistence.busy():
            return False
        topics = (action.run.topic,) if action.run.uniform else action.run.topics
        return any(_is_wide(router.routes.get(topic) or router.route(topic), action.run.qos) for topic in topics)

    def _go_in_turns(self, action: actions.Deliver, wide: list[Spread], publication: Publication) -> None:
        """The rest of a delivery, in turns; what comes behind it from the same origin follows then."""
        persistence, turns = self.shell.persistence, self.shell.context.turns
        self._spreading.add(action.origin)
        self.waiting.setdefault(action.origin, deque())
        steps = self._spread(action, wide)
        if publication.commit and persistence is not None:
            steps = persistence.whole(steps)
        turns.run(turns.broker, self._and_what_waits(action.origin, steps), f"origin={action.origin} work=mesh")

    def _spread(self, action: actions.Deliver, wide: list[Spread]) -> Iterator[None]:
        for one in wide:
            for _ in one.steps():
                yield
                self.shell.context.refresh()
        self._turn = action.origin
        self.carried_out(action.origin, action.token)
        self._turn = None
        if action.token is not None and self.shell.custody is not None:
            self.shell.custody.save()

    def _and_what_waits(self, origin: int, steps: Iterator[None]) -> Iterator[None]:
        try:
            yield from steps
        finally:
            self._spreading.discard(origin)
        yield from self._go_on(origin)

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

    def _put(self, run: Batch, route: Route, origin: int) -> None:
        """Put messages into the queues that are bound to their topic."""
        for group in route.shares:
            self.shell.context.counters.dropped += group.come(run, origin)

    def _deliver_parts(self, batch: Batch, origin: int, publication: Publication, wide: list[Spread] | None = None) -> None:
        """Messages of different topics: those in a row that have the same recipients go together. wide: see `_hand_over`."""
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
                self._hand_over(batch.part(start, index), recipients, publication, wide=wide)
            recipients, start = None, index
            if found is not None:
                recipients = found.local or found
            else:
                single = batch.single(index)
                self._hand_over(single, route, publication, wide=wide)
                self._put(single, route, origin)
        if recipients is not None:
            self._hand_over(batch.part(start, batch.count) if start else batch, recipients, publication, wide=wide)

    def _hand_over(
        self,
        batch: Batch,
        to: Route | Recipients,
        publication: Publication,
        told: Container[str] = (),
        picks: int = 0,
        wide: list[Spread] | None = None,
    ) -> None:
        """Give messages to the sessions here.

        told: client identifiers of those who have them. picks: shared subscriptions to be served. wide: takes what is to be delivered in
        turns, and all behind it; None: everything is delivered at once.
        """
        shell = self.shell
        if batch.mark is not None and shell.context.journal is not None:
            targets = [target for target in to.targets if not told or target.session.client_id not in told]
            shell.context.journal.received(batch, len(targets) + picks)
        if wide is not None and shell.roaming is None and (wide or _is_wide(to, batch.qos)):
            wide.append(Spread(shell.router, shell.persistence, batch, to, publication, told=told, shares=False))
        else:
            shell.router.deliver(batch, to, publication, shares=False, told=told)
        hooks = shell.context.hooks
        if hooks is not None:
            names = [target.session.client_id for target in to.targets]
            hooks.delivered(None, batch, [name for name in names if name not in told])


def _is_wide(to: Route | Recipients, qos: int) -> bool:
    """Whether messages go in turns: for very many clients, none of which is addressed."""
    return len(to.targets) > WIDE[qos] and not (isinstance(to, Route) and to.addressed is not None)
