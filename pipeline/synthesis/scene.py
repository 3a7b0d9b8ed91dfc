"""What a made journal is about: brokers, links, clients, topics, and which links and recipients fail when.

Everything follows from a topology and a seed. Conversations (a request, perhaps a second request that it causes, and their responses) are
topics that point at each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from ...base.settings import ConfigError
from ...broker.journal.schema import Protocol, name_id
from ...mesh.topology.analysis import graph_of
from ...mesh.topology.topology import load
from ...mesh.view.linkstate import Graph
from ..errors import PipelineError

DAY = 86_400_000_000  # microseconds
HOUR = DAY // 24
START = 1_735_689_600_000_000  # 2025-01-01, microseconds since 1970
ACCOUNTS = ("plant", "shop", "fleet", "lab", "office")


@dataclass(frozen=True, slots=True)
class Order:
    """How large the journal is, and how much goes wrong in it.

    events: about how many. days: that they spread over. topics: how many. run: messages that one event stands for. fates: how often a
    target does not get a message, by what happens instead. unreached: how often a broker does not. refused, conversations: shares of
    messages. faults: of links, and as many of recipients. skew: microseconds that the clock of the last broker is ahead of the others.
    """

    topology: Path
    events: int = 100_000
    days: int = 1
    seed: int = 1
    start: int = START
    topics: int = 200
    clients: int = 8
    run: int = 1
    refused: float = 0.002
    conversations: float = 0.05
    unreached: float = 0.0002
    fates: dict[str, float] = field(
        default_factory=lambda: {"dropped": 0.002, "expired": 0.001, "returned": 0.0005, "failed_over": 0.0005, "lost": 0.0005}
    )
    faults: int = 4
    skew: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    broker: int
    version: int
    protocol: int


@dataclass(slots=True)
class Topic:
    """subscribers: client and granted QoS. response, second: topics of a conversation, by index; -1: none."""

    name: str
    publisher: Client
    account: str
    qos: int
    size: int
    subscribers: list[tuple[Client, int]]
    weight: float = 1.0
    response: int = -1
    second: int = -1


@dataclass(frozen=True, slots=True)
class LinkFault:
    ends: tuple[int, int]
    begins: int
    ends_at: int


@dataclass(frozen=True, slots=True)
class RecipientFault:
    """defunct_at: 0 when it comes back before its defunct interval. failed_over, returned: messages."""

    recipient: str
    broker: int
    began: int  # the last moment at which it took a message
    fault_at: int
    defunct_at: int
    ends_at: int


@dataclass(slots=True)
class Scene:
    """periods: when which links are up; the first begins at `start`."""

    order: Order
    graph: Graph
    names: dict[int, str]
    clients: list[Client]
    topics: list[Topic]
    link_faults: list[LinkFault]
    recipient_faults: list[RecipientFault]
    delays: dict[tuple[int, int], int]

    @property
    def brokers(self) -> list[int]:
        return sorted(self.graph)

    @property
    def end(self) -> int:
        return self.order.start + self.order.days * DAY

    @property
    def epoch(self) -> int:
        """Of each broker's one life: milliseconds, before the first event."""
        return self.order.start // 1000 - 3_600_000

    def periods(self) -> list[tuple[int, Graph]]:
        """When each state of the links begins."""
        moments = {self.order.start}
        for fault in self.link_faults:
            moments |= {fault.begins, fault.ends_at}
        return [(moment, self.graph_at(moment)) for moment in sorted(moments)]

    def graph_at(self, moment: int) -> Graph:
        down = {fault.ends for fault in self.link_faults if fault.begins <= moment < fault.ends_at}
        gone = down | {(b, a) for a, b in down}
        return {a: {b: edge for b, edge in near.items() if (a, b) not in gone} for a, near in self.graph.items()}

    def skew(self, broker: int) -> int:
        return self.order.skew if broker == self.brokers[-1] else 0

    def texts(self) -> list[tuple[str, str]]:
        """kind and name of everything that has one."""
        found = {("topic", topic.name) for topic in self.topics} | {("client", client.name) for client in self.clients}
        found |= {("account", name) for name in ACCOUNTS} | {("recipient", fault.recipient) for fault in self.recipient_faults}
        found |= {("recipient", client.name) for topic in self.topics if topic.response >= 0 for client, _ in topic.subscribers}
        return sorted(found | {("reason", name) for name in REASONS})


REASONS = ("queue full", "message expiry", "fault", "not authorised", "no answer", "answered", "cut", "restored")


def build(order: Order) -> Scene:
    """Raises PipelineError for a topology that cannot be read."""
    try:
        topology = load(order.topology)
    except ConfigError as error:
        raise PipelineError(str(error)) from None
    chance = Random(order.seed)
    graph = graph_of(topology)
    names = {broker.number: broker.name for broker in topology.brokers}
    clients = _clients(order, graph, names)
    topics = _topics(order, clients, chance)
    delays = {}
    for a, near in graph.items():
        for b, (cost, _) in near.items():
            if a < b:
                delays[a, b] = delays[b, a] = 1_000 * cost + chance.randrange(500, 20_000)
    scene = Scene(order, graph, names, clients, topics, [], [], delays)
    scene.link_faults, scene.recipient_faults = _link_faults(scene, chance), _recipient_faults(scene, chance)
    return scene


def _clients(order: Order, graph: Graph, names: dict[int, str]) -> list[Client]:
    kinds = ((4, Protocol.MQTT), (5, Protocol.MQTT), (5, Protocol.WEBSOCKET))
    return [Client(f"{names[b]}-{i}", b, kinds[i % 3][0], int(kinds[i % 3][1])) for b in sorted(graph) for i in range(order.clients)]


def _topics(order: Order, clients: list[Client], chance: Random) -> list[Topic]:
    made = []
    plain = max(1, order.topics - 6 * (order.topics // 20))
    for i in range(plain):
        publisher = chance.choice(clients)
        count = min(len(clients), 1 + (i % 5 == 0) + 3 * (i % 17 == 0))
        subscribers = [(client, chance.choice((0, 1, 2))) for client in chance.sample(clients, count)]
        name = f"site/{publisher.name}/sensor{i % 7}/{i}"
        qos = (1, 0, 1, 2)[i % 4]
        made.append(Topic(name, publisher, ACCOUNTS[i % len(ACCOUNTS)], qos, chance.randrange(16, 2_000), subscribers, 1 / (1 + i % 40)))
    share = sum(topic.weight for topic in made) * order.conversations
    groups = (order.topics - plain) // 6
    for i in range(groups):
        _conversation(made, i, clients, chance, share / max(1, groups) / 2)
    return made


def _conversation(made: list[Topic], number: int, clients: list[Client], chance: Random, weight: float) -> None:
    """Requests of `asker` at `service`, each with a response; and those that make `service` ask `helper` first."""
    asker, service, helper = chance.sample(clients, 3)
    account = ACCOUNTS[number % len(ACCOUNTS)]
    first = len(made)

    def add(name: str, sender: Client, taker: Client, weight: float = 0.0) -> Topic:
        made.append(Topic(f"call/{number}/{name}", sender, account, 1, chance.randrange(50, 500), [(taker, 1)], weight))
        return made[-1]

    add("ask", asker, service, weight).response = first + 1
    add("answer", service, asker)
    both = add("ask-both", asker, service, weight)
    both.response, both.second = first + 3, first + 4
    add("answer-both", service, asker)
    add("help", service, helper).response = first + 5
    add("helped", helper, service)


def _link_faults(scene: Scene, chance: Random) -> list[LinkFault]:
    """One after the other; of links without which the mesh is still whole."""
    edges = sorted({(min(a, b), max(a, b)) for a, near in scene.graph.items() for b in near})
    count = scene.order.faults
    length = (scene.end - scene.order.start) // max(1, count)
    made = []
    for i in range(count):
        begins = scene.order.start + i * length + chance.randrange(length // 8, length // 2)
        fault = LinkFault(chance.choice(edges), begins, begins + chance.randrange(length // 50, length // 4))
        if _whole(scene.graph, fault.ends):
            made.append(fault)
    return made


def _whole(graph: Graph, without: tuple[int, int]) -> bool:
    seen, left = set(), [next(iter(graph))]
    while left:
        here = left.pop()
        if here not in seen:
            seen.add(here)
            left += [b for b in graph[here] if (here, b) not in (without, without[::-1])]
    return len(seen) == len(graph)


def _recipient_faults(scene: Scene, chance: Random) -> list[RecipientFault]:
    count = scene.order.faults
    length = (scene.end - scene.order.start) // max(1, count)
    made = []
    for i in range(count):
        client = chance.choice(scene.clients)
        began = scene.order.start + i * length + chance.randrange(length // 8, length // 2)
        noticed = began + length // 40
        ends = noticed + chance.randrange(length // 20, length // 4)
        defunct = noticed + length // 10 if ends > noticed + length // 10 else 0
        made.append(RecipientFault(client.name, client.broker, began, noticed, defunct, ends))
    return made


def ids(names: list[str]) -> np.ndarray:
    """The ids of names, as the journal has them."""
    return np.array([name_id(name) for name in names], dtype=np.int64)
