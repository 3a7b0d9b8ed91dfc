"""How deep the deepest shortest-path tree is after each single failure.

A tree that has lost a link or a broker changes only below it: what is not behind the failure keeps its distance and its parent, since
distances of others only grow. So for each origin only the brokers behind the failure are computed anew, from their neighbours that are not
behind it. For all failures together that is the sum of the depths of all brokers, for each origin: about N log N in a mesh with short ways,
where trees computed anew for each failure are N squared. What a failure cuts off is not computed at all.

Ties are broken as in `linkstate.shortest_paths`: of equal ways the parent with the lowest number wins.

It knows graphs only. Brokers are counted from 0 here, in order of number.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import networkx as nx

from ..view.linkstate import Graph, shortest_paths

Pair = tuple[int, int]  # the numbers of a link's ends, the lower first


def depths_after(graph: Graph) -> tuple[dict[Pair, int], dict[int, int]]:
    """The depth in hops of the deepest tree that is left without each link, and without each broker."""
    places = {number: place for place, number in enumerate(sorted(graph))}
    near = [[(places[other], cost) for other, (cost, _) in sorted(graph[number].items())] for number in places]
    pairs = [(one, other) for one, edges in enumerate(near) for other, _ in edges if one < other]
    plain: nx.Graph[Any] = nx.Graph(pairs)
    bridges = {(min(a, b), max(a, b)) for a, b in nx.bridges(plain)}
    sides = {broker: _sides(near, broker) for broker in nx.articulation_points(plain)}
    links = dict.fromkeys(pairs, 0)
    brokers = [0] * len(near)
    for number, root in places.items():
        tree = _Tree(near, root, {places[n]: (places[p.parent], p.cost, p.hops) for n, p in shortest_paths(graph, number).items()})
        whole = max(tree.hops)
        for pair in pairs:
            if links[pair] < whole and not tree.uses(pair):
                links[pair] = whole
        for broker in range(len(near)):
            if not tree.holds(broker):
                brokers[broker] = max(brokers[broker], whole)
        for child in tree.order[1:]:
            parent = tree.parent[child]
            pair = (parent, child) if parent < child else (child, parent)
            depth = tree.above(child)
            if pair not in bridges:
                depth = max(depth, tree.anew(tree.behind(child), (parent, child), None))
            links[pair] = max(links[pair], depth)
            depth = tree.above(child)
            lost = tree.behind(child)[1:]
            if child in sides:
                side = sides[child]
                lost = [one for one in lost if side[one] == side[root]]
            if lost:
                depth = max(depth, tree.anew(lost, None, child))
            brokers[child] = max(brokers[child], depth)
    numbers = list(places)
    return {(numbers[a], numbers[b]): depth for (a, b), depth in links.items()}, dict(zip(numbers, brokers, strict=True))


def _sides(near: list[list[tuple[int, int]]], without: int) -> list[int]:
    """For each broker the part that it is in when one broker is gone."""
    side = [-1] * len(near)
    for start in range(len(near)):
        if side[start] < 0 and start != without:
            side[start] = start
            todo = [start]
            while todo:
                for other, _ in near[todo.pop()]:
                    if side[other] < 0 and other != without:
                        side[other] = start
                        todo.append(other)
    return side


class _Tree:
    """One origin's shortest-path tree.

    order: its brokers, each before those behind it, which follow at once. hops: 0 where it does not come.
    """

    def __init__(self, near: list[list[tuple[int, int]]], root: int, paths: dict[int, tuple[int, int, int]]) -> None:
        """paths: broker -> (parent, cost, hops), parents first, without the root."""
        count = len(near)
        self._near = near
        self._root = root
        self.parent = [-1] * count
        self._cost = [-1] * count
        self.hops = [0] * count
        self._cost[root] = 0
        children: list[list[int]] = [[] for _ in range(count)]
        for broker, (parent, cost, hops) in paths.items():
            self.parent[broker], self._cost[broker], self.hops[broker] = parent, cost, hops
            children[parent].append(broker)
        self._size = [1] * count
        for broker in reversed(paths):
            self._size[self.parent[broker]] += self._size[broker]
        self.order = list(_preorder(children, root))
        self._at = [-1] * count
        for at, broker in enumerate(self.order):
            self._at[broker] = at
        along = [self.hops[broker] for broker in self.order]
        self._before = [0, *accumulate(along, max)]
        self._after = [*[*accumulate(reversed(along), max)][::-1], 0]

    def holds(self, broker: int) -> bool:
        """Whether the tree comes to a broker; it holds its root."""
        return self._at[broker] >= 0

    def uses(self, pair: Pair) -> bool:
        """Whether the tree uses a link."""
        one, other = pair
        return self.parent[one] == other or self.parent[other] == one

    def behind(self, broker: int) -> list[int]:
        """A broker and all behind it, itself first."""
        at = self._at[broker]
        return self.order[at : at + self._size[broker]]

    def above(self, broker: int) -> int:
        """The depth of what is not behind a broker."""
        at = self._at[broker]
        return max(self._before[at], self._after[at + self._size[broker]])

    def anew(self, lost: list[int], link: Pair | None, gone: int | None) -> int:
        """The depth of the brokers that have lost their way, when they find another. link: (parent, child) that is gone; gone: a broker."""
        near, known, known_hops = self._near, self._cost, self.hops
        count = len(near)
        inside = set(lost)
        best: dict[int, tuple[int, int, int]] = {}  # cost, parent, hops
        parent, child = link or (-1, -1)
        heap = []
        for broker in lost:
            found = None
            for other, cost in near[broker]:
                if other in inside or other == gone or (other == parent and broker == child):
                    continue
                way = (known[other] + cost, other)
                if found is None or way < found:
                    found = way
            if found is not None:
                best[broker] = (*found, known_hops[found[1]] + 1)
                heap.append(found[0] * count + broker)
        heapq.heapify(heap)
        deepest = 0
        while heap:
            total, broker = divmod(heapq.heappop(heap), count)
            if broker not in inside or total > best[broker][0]:
                continue
            inside.discard(broker)
            hops = best[broker][2]
            deepest = max(deepest, hops)
            hops += 1
            for other, cost in near[broker]:
                if other in inside:
                    longer = total + cost
                    had = best.get(other)
                    if had is None or longer < had[0]:
                        heapq.heappush(heap, longer * count + other)
                    elif longer > had[0] or broker >= had[1]:
                        continue
                    best[other] = (longer, broker, hops)
        return deepest


def _preorder(children: list[list[int]], root: int) -> Iterator[int]:
    todo = [root]
    while todo:
        broker = todo.pop()
        yield broker
        todo += children[broker]
