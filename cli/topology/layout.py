"""The places of brokers in a picture of a topology.

Distances in the picture should follow hops: stress majorisation (SMACOF) moves all points until they do, from several
starts, and the one with the least stress is taken. In plain Python, so that drawing needs no numerical package; it
takes some milliseconds for ten brokers and some seconds for a hundred. The result is the same on each run.

Then the picture is turned so that many brokers stand level or above each other, the first one near the top.
"""

from __future__ import annotations

import cmath
import random
from math import pi, sqrt

import networkx as nx

Point = tuple[float, float]
_STARTS = 8
_ROUNDS = 200
_ENOUGH = 1e-5  # relative improvement of a round below which it ends
_LEVEL = 0.05  # hops within which points count as level
_MANY = 40  # points from which on a figure is neither solved from all starts nor turned with care
_APART = 1.6  # hops between parts that are not connected


def positions(graph: nx.Graph[str]) -> dict[str, Point]:
    """A point for each node, x to the right and y down, in units of about one hop, within a box that starts at (0, 0)."""
    placed: dict[str, Point] = {}
    right = 0.0
    for part in sorted(nx.connected_components(graph), key=len, reverse=True):
        nodes = [node for node in graph if node in part]
        points = _turned(_best(nodes, graph), nodes, graph)
        left, top = min(p.real for p in points), min(p.imag for p in points)
        placed |= {node: (p.real - left + right, p.imag - top) for node, p in zip(nodes, points, strict=True)}
        right = max(x for x, _ in placed.values()) + _APART
    return placed


def _best(nodes: list[str], graph: nx.Graph[str]) -> list[complex]:
    if len(nodes) < 3:
        return [complex(i, 0) for i in range(len(nodes))]
    hops = dict(nx.all_pairs_shortest_path_length(graph.subgraph(nodes)))
    distances = [[float(hops[a][b]) for b in nodes] for a in nodes]
    starts = _STARTS if len(nodes) <= _MANY else 2
    solved = [_majorise(distances, _start(len(nodes), seed)) for seed in range(starts)]
    return min(solved, key=lambda pair: pair[0])[1]


def _start(count: int, seed: int) -> list[complex]:
    """On a circle in order for the first seed, anywhere for the others."""
    if seed == 0:
        return [cmath.rect(count / (2 * pi), 2 * pi * i / count - pi / 2) for i in range(count)]
    chance = random.Random(seed)
    side = sqrt(count)
    return [complex(chance.uniform(0, side), chance.uniform(0, side)) for _ in range(count)]


def _majorise(distances: list[list[float]], points: list[complex]) -> tuple[float, list[complex]]:
    """(stress, points): each point moves to the mean of where the others want it, weighted by 1 / distance squared."""
    stress = _stress(distances, points)
    for _ in range(_ROUNDS):
        for i, row in enumerate(distances):
            total, weights = 0j, 0.0
            for j, want in enumerate(row):
                if i != j:
                    away = points[i] - points[j]
                    weight = 1 / (want * want)
                    total += weight * (points[j] + away * (want / (abs(away) or 1e-9)))
                    weights += weight
            points[i] = total / weights
        before, stress = stress, _stress(distances, points)
        if before - stress < _ENOUGH * before:
            break
    return stress, points


def _stress(distances: list[list[float]], points: list[complex]) -> float:
    return sum(
        (abs(points[i] - points[j]) / want - 1) ** 2 for i, row in enumerate(distances) for j, want in enumerate(row[:i])
    )  # fmt: skip


def _turned(points: list[complex], nodes: list[str], graph: nx.Graph[str]) -> list[complex]:
    """The same figure, turned and perhaps mirrored, so that most points stand level or above each other."""
    if len(points) < 3:
        return points
    middle = sum(points) / len(points)
    points = [p - middle for p in points]
    index = {node: i for i, node in enumerate(nodes)}
    ways = [points[index[b]] - points[index[a]] for a, b in graph.subgraph(nodes).edges] if len(points) <= _MANY else []
    ways += points if ways else points[:1]
    angles = {round(cmath.phase(way * turn), 4) for way in ways for turn in (1, 1j, -1, -1j)}
    turned = ([p * cmath.exp(-1j * angle) for p in points] for angle in sorted(angles))
    both = (figure for one in turned for figure in (one, [p.conjugate() for p in one]))
    best = max(both, key=_beauty)
    return _straight(best) if len(points) <= _MANY else best


def _beauty(points: list[complex]) -> tuple[float, ...]:
    """What to prefer: symmetry and points in line, a wide figure, the first at the top, then at the left, the second to its right."""
    regular = 0.0
    if len(points) <= _MANY:
        for i, a in enumerate(points):
            regular += sum((abs(a.real - b.real) < _LEVEL) + (abs(a.imag - b.imag) < _LEVEL) for b in points[:i]) / 2
            for mirrored in (a.conjugate(), -a.conjugate()):
                regular += any(abs(mirrored - b) < 2 * _LEVEL for b in points)
    wide = max(p.real for p in points) - min(p.real for p in points)
    high = max(p.imag for p in points) - min(p.imag for p in points)
    first, second = points[:2]
    return regular, wide >= high - _LEVEL, round(-first.imag, 1), round(-first.real, 1), round(second.real, 1)


def _straight(points: list[complex]) -> list[complex]:
    """Align points that are nearly level, or nearly above each other."""
    xs, ys = _gathered([p.real for p in points]), _gathered([p.imag for p in points])
    return [complex(x, y) for x, y in zip(xs, ys, strict=True)]


def _gathered(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    gathered = list(values)
    while order:
        group = [i for i in order if values[i] - values[order[0]] < 2 * _LEVEL]
        mean = sum(values[i] for i in group) / len(group)
        for i in group:
            gathered[i] = mean
        order = order[len(group) :]
    return gathered
