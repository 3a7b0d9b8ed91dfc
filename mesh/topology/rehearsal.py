"""A topology played through by the brokers' own mesh code: one `Node` for each broker, in one thread, on a clock of its own.

Links come up, interest settles, then messages are published and the frames that all nodes send for them are counted. Links are
perfect and take as many units of time as they cost; nothing is left to chance, so that each run gives the same counts. Copies are counted
without policies, as for a message that may go everywhere; `reach` says where one topic may go, and what it is called there.
`analysis.py` counts the same by a model of the rules of forwarding; this shows that the code keeps them.

It does not know faults: for those there is tests/simulation.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from ...mqtt.batch.run import Run
from ..node.actions import Deliver, Send
from ..node.core import MeshConfig
from ..node.node import Node
from ..wire.identity import Identity
from ..wire.policy import Policy
from .analysis import graph_of
from .topology import Topology

TOPIC = b"rehearsal"


@dataclass(slots=True)
class Counted:
    """frames: data frames that all brokers sent for one message. delivered: the brokers that got it, in order of arrival.

    names: what its topic was called at each.
    """

    frames: int = 0
    delivered: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)


class Rehearsal:
    """A mesh with all links up, where each broker wants all messages. Make it, then `publish`."""

    def __init__(self, topology: Topology, mode: Literal["routed", "flood"], policies: bool = False) -> None:
        """policies: whether links have theirs."""
        self._graph = graph_of(topology)
        self._names = {broker.number: broker.name for broker in topology.brokers}
        self._now = 0.0
        self._flying: list[tuple[float, int, int, int, bytes]] = []  # arrives at, order, broker, from broker, data
        self._order = 0
        self._delivered: list[str] = []
        self._called: dict[str, str] = {}
        rules = _policies(topology) if policies else {}
        identities = {n: Identity(topology.mesh.name, name, n, UUID(int=n), 1) for n, name in self._names.items()}
        self._nodes = {number: Node(identities[number], MeshConfig(mode=mode)) for number in self._graph}
        for number, node in self._nodes.items():
            node.subscribe("#", None, 1, 0.0)
            for other, (cost, incarnation) in self._graph[number].items():  # a link's number is the peer's
                node.link_up(other, identities[other], incarnation, cost, 0.0, rules.get((number, other)))
        self._settle()

    def publish(self, origin: int, qos: int, topic: bytes = TOPIC) -> Counted:
        """One message of the broker with this number, followed until nothing more happens."""
        node = self._nodes[origin]
        before = self._sent()
        self._delivered, self._called = [], {}
        route = node.route(topic)
        if route is not None:
            node.publish(route, Run(topic, qos, False, [b"message"], received=self._now), self._now)
        self._settle()
        return Counted(self._sent() - before, self._delivered, self._called)

    def _sent(self) -> int:
        return sum(node.counters.sent for node in self._nodes.values())

    def _settle(self) -> None:
        """Carry bytes until none is under way."""
        for number in self._nodes:
            self._act(number)
        while self._flying:
            self._now, _, number, sender, data = heapq.heappop(self._flying)
            self._nodes[number].receive(sender, data, self._now)
            self._act(number)

    def _act(self, number: int) -> None:
        node = self._nodes[number]
        again = True
        while again:
            again = False
            for action in node.take():
                if isinstance(action, Send):
                    self._order += 1
                    arrives = self._now + self._graph[number][action.link][0]
                    heapq.heappush(self._flying, (arrives, self._order, action.link, number, bytes(action.data)))
                elif isinstance(action, Deliver):
                    self._delivered.append(self._names[number])
                    self._called[self._names[number]] = action.run.topic.decode()
                    if action.token is not None:
                        node.delivered(action.token, self._now)
                        again = True


def _policies(topology: Topology) -> dict[tuple[int, int], Policy]:
    """(number of an end, number of its peer) -> the policy of that end."""
    found = {}
    for link in topology.links:
        for name, rules in link.rules.items():
            (other,) = link.ends - {name}
            found[topology.broker(name).number, topology.broker(other).number] = rules.policy
    return found


def reach(topology: Topology, topic: str) -> dict[str, dict[str, str]]:
    """For each broker as the origin of a message of this topic: the brokers that it may come to, and what it is called at each."""
    played = Rehearsal(topology, "routed", policies=True)
    return {broker.name: played.publish(broker.number, 1, topic.encode()).names for broker in topology.brokers}


def rehearse(topology: Topology) -> dict[str, tuple[int, int]]:
    """For each broker as the origin of one message: frames by flooding (QoS 0 in mode "flood") and by routing (QoS 1).

    Routed frames are counted for an origin's second message: its first one announces the tree, and goes to each destination
    by itself as that one joins.
    """
    flooding, routing = Rehearsal(topology, "flood"), Rehearsal(topology, "routed")
    counted = {}
    for broker in topology.brokers:
        routing.publish(broker.number, 1)
        counted[broker.name] = flooding.publish(broker.number, 0).frames, routing.publish(broker.number, 1).frames
    return counted
