"""What a topology's graph means for its messages: copies, depth of trees, and what each single failure does.

Copies are counted by running the rules of forwarding on the graph, for one message of each origin that every broker wants:
- *flood*: a broker sends to each neighbour whose bit is not set in the copy, with its own bit set (the disclosure's rule); a broker
  that has had the message drops further copies;
- *flood with sibling marks*: the sender also sets the bits of the neighbours that it sends to in the same step;
- *routed*: one copy for each broker, down the shortest-path tree that a broker computes from link state (the same function).
A copy takes as many units of time as its link costs, and copies that arrive together are handled in the order in which they were
sent, so that the result is one definite number.

Graphs here are those of `linkstate`: number -> neighbour -> (cost, incarnation). It knows no processes, sockets or time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import networkx as nx

from ..view.linkstate import Graph, shortest_paths
from .depths import depths_after
from .topology import Topology

FLOODS = 6_000  # runs of the flood rule that the failures may cost altogether; past it, only routed copies are counted there


@dataclass(slots=True, frozen=True)
class Origin:
    """One message from one broker to all: brokers reached, copies sent by each way, the tree's depth in hops and cost."""

    name: str
    reached: int
    flood: int
    marked: int
    routed: int
    depth: int
    cost: int


@dataclass(slots=True, frozen=True)
class Failure:
    """One broken link or broker.

    kind: "link" or "broker". ends: its one or two brokers. cut_off: groups of live brokers that the largest group no longer
    reaches. depth: of the deepest tree left, in hops. copies: by flood with sibling marks for each broker reached, averaged
    over the origins; None when counting was too long or no broker reaches another.
    """

    kind: str
    ends: tuple[str, ...]
    cut_off: tuple[tuple[str, ...], ...]
    depth: int
    copies: float | None

    def __str__(self) -> str:
        return f"{self.kind} {' - '.join(self.ends)}"


@dataclass(slots=True, frozen=True)
class Analysis:
    """All of it. cut_brokers, cut_links: those whose failure alone separates others. diameter: hops of the deepest tree."""

    name: str
    brokers: int
    links: int
    parts: int
    diameter: int
    cut_brokers: tuple[str, ...]
    cut_links: tuple[tuple[str, str], ...]
    origins: tuple[Origin, ...]
    failures: tuple[Failure, ...]

    def copies(self, way: str) -> float:
        """Copies for each broker reached, averaged over the origins; way: "flood", "marked" or "routed". 0 when nobody is reached."""
        return _average((getattr(origin, way), origin.reached) for origin in self.origins)


def graph_of(topology: Topology) -> Graph:
    """The topology as link state shows it when every link is up; neighbours in order of number."""
    numbers = {broker.name: broker.number for broker in topology.brokers}
    graph: Graph = {number: {} for number in sorted(numbers.values())}
    for incarnation, link in enumerate(topology.links, 1):
        one, other = numbers[link.listener], numbers[link.dialler]
        graph[one][other] = graph[other][one] = (link.cost, incarnation)
    return {number: dict(sorted(near.items())) for number, near in graph.items()}


def flood(graph: Graph, origin: int, marks: bool) -> tuple[int, int]:
    """(copies sent, brokers reached besides the origin) of one flooded message."""
    seen: set[int] = set()
    arriving = [(0, 0, origin, 0)]  # time, order, broker, visited bits
    sent = 0
    while arriving:
        now, _, number, visited = heapq.heappop(arriving)
        if number in seen:
            continue
        seen.add(number)
        visited |= 1 << number
        unvisited = [other for other in graph[number] if not visited >> other & 1]
        if marks:
            for other in unvisited:
                visited |= 1 << other
        for other in unvisited:
            sent += 1
            heapq.heappush(arriving, (now + graph[number][other][0], sent, other, visited))
    return sent, len(seen) - 1


def analyse(topology: Topology) -> Analysis:
    """Count everything for one topology."""
    graph, plain = graph_of(topology), topology.graph()
    names = {broker.number: broker.name for broker in topology.brokers}
    origins = tuple(_origin(graph, number, names[number]) for number in graph)
    cut_brokers = tuple(sorted(nx.articulation_points(plain), key=lambda name: topology.broker(name).number))
    cut_links = tuple(sorted((min(a, b), max(a, b)) for a, b in map(tuple, nx.bridges(plain))))
    return Analysis(
        name=topology.mesh.name,
        brokers=len(graph),
        links=len(topology.links),
        parts=nx.number_connected_components(plain),
        diameter=max(origin.depth for origin in origins),
        cut_brokers=cut_brokers,
        cut_links=cut_links,
        origins=origins,
        failures=tuple(_failures(topology, graph, names, {(name,) for name in cut_brokers}.union(cut_links))),
    )


def _origin(graph: Graph, number: int, name: str) -> Origin:
    paths = shortest_paths(graph, number).values()
    plain, reached = flood(graph, number, False)
    marked, _ = flood(graph, number, True)
    depth, cost = max((path.hops for path in paths), default=0), max((path.cost for path in paths), default=0)
    return Origin(name, reached, plain, marked, len(paths), depth, cost)


def _failures(topology: Topology, graph: Graph, names: dict[int, str], weak: set[tuple[str, ...]]) -> Iterable[Failure]:
    """weak: the ends of what cuts others off."""
    counted = len(graph) * (len(graph) + len(topology.links)) <= FLOODS
    numbers = {name: number for number, name in names.items()}
    without_link, without_broker = depths_after(graph)
    whole = len(_groups(graph)) == 1
    for link in topology.links:
        one, other = sorted((numbers[link.listener], numbers[link.dialler]))
        depth = without_link[one, other]
        cuts = not whole or (names[one], names[other]) in weak or (names[other], names[one]) in weak
        left = dict(graph)
        left[one] = {n: edge for n, edge in graph[one].items() if n != other}
        left[other] = {n: edge for n, edge in graph[other].items() if n != one}
        yield _failure("link", (link.listener, link.dialler), left, depth, names, counted, cuts)
    for number, name in sorted(names.items()):
        left = {n: near for n, near in graph.items() if n != number}
        for other in graph[number]:
            left[other] = {n: edge for n, edge in graph[other].items() if n != number}
        yield _failure("broker", (name,), left, without_broker[number], names, counted, not whole or (name,) in weak)


def _failure(kind: str, ends: tuple[str, ...], graph: Graph, depth: int, names: dict[int, str], counted: bool, cuts: bool) -> Failure:
    """graph: what is left. cuts: whether it may be in several parts."""
    groups = sorted(_groups(graph), key=lambda group: (-len(group), group)) if cuts else []
    cut_off = tuple(tuple(names[number] for number in group) for group in groups[1:])
    copies = _average(flood(graph, number, True) for number in graph) if counted and depth else None
    return Failure(kind, ends, cut_off, depth, copies)


def _groups(graph: Graph) -> list[list[int]]:
    """The connected parts, each in order of number."""
    left = dict.fromkeys(graph)
    groups = []
    while left:
        group = [next(iter(left))]
        del left[group[0]]
        for number in group:
            found = [other for other in graph[number] if other in left]
            group += found
            for other in found:
                del left[other]
        groups.append(sorted(group))
    return groups


def _average(counts: Iterable[tuple[int, int]]) -> float:
    ratios = [sent / reached for sent, reached in counts if reached]
    return fmean(ratios) if ratios else 0.0
