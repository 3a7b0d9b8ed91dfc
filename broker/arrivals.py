"""What the mesh brings to one broker: deliveries to its clients, and what a comparison has changed of retained messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..mesh import actions
from ..mqtt.loose import Loose
from .retained import BURIED

if TYPE_CHECKING:
    from .links import MeshShell
    from .route import Fan


class Arrivals:
    """Carries out what a node says has come.

    tokens: of deliveries that are carried out and not saved yet.
    """

    def __init__(self, shell: MeshShell) -> None:
        self.shell = shell
        self.broker = shell.broker
        self.node = shell.node
        self.tokens: list[int] = []

    def deliver(self, action: actions.Deliver) -> None:
        """A run from elsewhere: local subscribers, the shared subscriptions that the origin picked here, retained messages."""
        run = action.run
        router = self.broker.router
        if run.qos == 2 and self.shell.custody is not None and action.token is not None:  # it comes again unless its window is kept
            assert self.broker.durable is not None
            self.broker.behind = self.broker.durable.next_commit
        if isinstance(run, Loose):
            self._deliver_span(run)
        elif action.ordinary:
            route = router.routes.get(run.topic) or router.route(run.topic)
            told = self.broker.retained.came(run.topic, action.key) if action.key else None
            if told:
                router.deliver_others(run, route, told)
            else:
                router.deliver(run, route, None, shares=False)
        if action.stored:
            self.broker.retained.store(run, always=True)
        for pick in action.picks:
            group = router.groups.get(pick)
            if not router.access.sees(run.topic.decode(), pick[1], None):
                self.broker.counters.dropped += run.count  # the origin does not know the rule
            elif group is not None:
                router.deliver_share(run, group)
            elif action.token is not None:
                self.node.refuse(action.token, pick, self.broker.now)
        self.broker.behind = 0
        self.carried_out(action.token)

    def carried_out(self, token: int | None) -> None:
        """A delivery is done; its window belongs into the batch that holds what it caused."""
        if token is None:
            return
        if self.shell.custody is None:
            self.node.delivered(token, self.broker.now)
        else:
            self.node.handed(token, self.broker.now)
            self.tokens.append(token)

    def weigh(self) -> None:
        """What the mesh remembers of deleted messages needs memory too."""
        self.broker.account.buried = BURIED * self.node.buried

    def retained(self, action: actions.Retained) -> None:
        """What is retained has changed by a comparison with a neighbour. Members of shared subscriptions are not told: each site would
        tell one of them."""
        run, router = action.run, self.broker.router
        if action.announce:
            if run.qos == 2 and self.broker.durable is not None:
                self.broker.behind = self.broker.durable.next_commit
            router.deliver(run, router.routes.get(run.topic) or router.route(run.topic), None, shares=False)
            self.broker.behind = 0
        self.broker.retained.store(run, always=True)
        if action.coming:
            self.broker.retained.expect(run.topic, action.key)

    def _deliver_span(self, run: Loose) -> None:
        """Messages of different topics: those in a row that have the same recipients go together."""
        router = self.broker.router
        known, owned = router.fans.get, router.owned_fans.get
        fan: Fan | None = None
        start = 0
        for index, topic in enumerate(run.topics):
            found = known(topic) or owned(topic)
            if found is None:
                route = router.routes.get(topic) or router.route(topic)
                found = known(topic) or owned(topic)
            if found is not None and found.local is fan:
                continue
            if fan is not None:
                router.deliver_mixed(run.part(start, index), fan)
            fan, start = None, index
            if found is not None:
                fan = found.local
            else:
                router.deliver(run.single(index), route, None, shares=False)
        if fan is not None:
            router.deliver_mixed(run.part(start, run.count) if start else run, fan)
