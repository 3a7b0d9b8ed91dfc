"""The mesh as the journal shows it, as a graph for networkx; the tree's optimum; and advice.

The graph is undirected: nodes are numbers of brokers, edges have `cost`, `copies` and `bytes` of both directions. It knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, NamedTuple

import networkx as nx

MOST = 3  # of each kind of advice
_LARGEST = 200  # brokers up to which new links are tried


class Link(NamedTuple):
    """One direction of a link. cost: 0 is not known."""

    sender: int
    receiver: int
    cost: int = 0
    copies: int = 0
    bytes: int = 0


class Flow(NamedTuple):
    """What was published at one broker and received at another one."""

    origin: int
    broker: int
    messages: int
    bytes: int


def mesh_of(known: Iterable[Link], used: Iterable[Link]) -> nx.Graph[int]:
    """known: links that came up. used: what was sent over links."""
    mesh: nx.Graph[int] = nx.Graph()
    for link in (*known, *used):
        edge = dict(mesh.get_edge_data(link.sender, link.receiver) or {"cost": 0, "copies": 0, "bytes": 0})
        cost = max(edge["cost"], link.cost)
        mesh.add_edge(link.sender, link.receiver, cost=cost, copies=edge["copies"] + link.copies, bytes=edge["bytes"] + link.bytes)
    for _, _, edge in mesh.edges(data=True):
        edge["cost"] = edge["cost"] or 1
    return mesh


def optimum(mesh: nx.Graph[int], origin: int, reached: frozenset[int]) -> int | None:
    """How many copies one message takes down the shortest-path tree, with all links up. None: a broker is not in the graph.

    Of equal paths the parent with the lowest number wins, as in the brokers' own trees.
    """
    if origin not in mesh or not reached <= set(mesh):
        return None
    parents = _parents(mesh, origin)
    edges: set[int] = set()
    for broker in reached:
        while broker != origin and broker not in edges:
            if broker not in parents:
                return None
            edges.add(broker)
            broker = parents[broker]
    return len(edges)


def _parents(mesh: nx.Graph[int], origin: int) -> dict[int, int]:
    distance = nx.single_source_dijkstra_path_length(mesh, origin, weight="cost")
    return {
        node: min(near for near in mesh[node] if near in distance and distance[near] + mesh[node][near]["cost"] == distance[node])
        for node in distance
        if node != origin
    }


def report(mesh: nx.Graph[int], flows: list[Flow]) -> dict[str, Any]:
    """Links, brokers in between, and advice as sentences."""
    between = [flow for flow in flows if flow.origin != flow.broker and flow.origin in mesh and flow.broker in mesh]
    idle = sorted(tuple(sorted(ends)) for *ends, edge in mesh.edges(data=True) if not edge["copies"])
    cuts = _through(mesh, between)
    added = _added(mesh, between)
    advice = [f"the link {a} - {b} carries nothing" for a, b in idle]
    advice += [f"{count:,} messages pass broker {broker}, without which the mesh is in parts" for broker, count in cuts[:MOST]]
    advice += [f"a link {a} - {b} would save {saved:,} copies" for (a, b), saved in added[:MOST]]
    return {
        "links": [
            {"between": sorted(ends), "copies": edge["copies"], "bytes": edge["bytes"], "cost": edge["cost"]}
            for *ends, edge in sorted(mesh.edges(data=True), key=lambda one: -one[2]["copies"])
        ],
        "idle": [list(ends) for ends in idle],
        "cut_brokers": [{"broker": broker, "messages": count} for broker, count in cuts],
        "new_links": [{"between": list(ends), "saves": saved} for ends, saved in added],
        "advice": advice,
    }


def _through(mesh: nx.Graph[int], flows: list[Flow]) -> list[tuple[int, int]]:
    """Messages that pass each cut vertex on their way between two others, the most first."""
    found = []
    for broker in nx.articulation_points(mesh):
        rest = mesh.subgraph(node for node in mesh if node != broker)
        parts = {node: number for number, part in enumerate(nx.connected_components(rest)) for node in part}
        passing = [flow.messages for flow in flows if broker not in flow[:2] and parts[flow.origin] != parts[flow.broker]]
        found.append((broker, sum(passing)))
    return sorted(found, key=lambda one: (-one[1], one[0]))


def _added(mesh: nx.Graph[int], flows: list[Flow]) -> list[tuple[tuple[int, int], int]]:
    """Copies that each link that is not there would save, the most first; each flow by itself, all of cost 1."""
    if len(mesh) > _LARGEST:
        return []
    hops = dict(nx.all_pairs_shortest_path_length(mesh))
    found = []
    for a, b in combinations(sorted(mesh), 2):
        if mesh.has_edge(a, b):
            continue
        saved = 0
        for origin, broker, messages, _ in flows:
            now = hops[origin].get(broker)
            if now is None:
                continue
            there = min(hops[origin].get(x, now) + 1 + hops[y].get(broker, now) for x, y in ((a, b), (b, a)))
            saved += messages * max(0, now - there)
        if saved:
            found.append(((a, b), saved))
    return sorted(found, key=lambda one: (-one[1], one[0]))
