"""A picture of a running mesh: of characters for a terminal, or in Graphviz's language.

It shows the members and links of one broker's report (`report.py`). A dotted link is not used: only one end lists it, or dialling fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import networkx as nx

from ..topology.layout import positions

LARGEST = 40  # brokers that fit a picture of characters
ACROSS, DOWN = 20, 6  # characters and lines for a hop
LEGEND = "[name number] a broker, * the one that was asked, (name number) one that cannot be reached; ....: a link that is down"


class Edge(NamedTuple):
    """A link between two brokers, by number. used: messages may go over it."""

    low: int
    high: int
    cost: int
    used: bool


def edges(mesh: Mapping[str, Any]) -> list[Edge]:
    """The links of the whole mesh, and those that this broker fails to dial, if their other end is known."""
    found = {}
    for row in mesh["graph"]:
        match row:
            case [int(low), int(high), int(cost), bool(used)]:
                found[low, high] = Edge(low, high, cost, used)
    own = mesh["number"]
    by_name = {member["name"]: member["number"] for member in mesh["members"]}
    for link in mesh["links"]:
        number = link["number"] if link["number"] is not None else by_name.get(link["name"])
        if isinstance(own, int) and isinstance(number, int) and not link["up"]:
            pair = min(own, number), max(own, number)
            found.setdefault(pair, Edge(*pair, link["cost"] or 1, False))
    return list(found.values())


def _labels(mesh: Mapping[str, Any]) -> dict[int, str]:
    """number -> label, also for unknown brokers that links name."""
    found = {number: f"(? {number})" for edge in edges(mesh) for number in (edge.low, edge.high)}
    for member in mesh["members"]:
        number = member["number"]
        text = f"{plain(member['name'])} {number}"
        if isinstance(number, int):
            found[number] = f"[*{text}]" if number == mesh["number"] else f"[{text}]" if member["live"] else f"({text})"
    return dict(sorted(found.items()))


def plain(text: object) -> str:
    """Text from the network, without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def drawn(mesh: Mapping[str, Any]) -> str:
    """A picture of characters. Raises ValueError for a mesh with more than `LARGEST` brokers."""
    labels, links = _labels(mesh), edges(mesh)
    if len(labels) > LARGEST:
        raise ValueError(f"{len(labels)} brokers are too many for a picture of characters: --dot writes one for Graphviz")
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(str(number) for number in labels)
    graph.add_edges_from((str(edge.low), str(edge.high)) for edge in links)
    widest = max((len(label) for label in labels.values()), default=0)
    places = {int(name): (round(x * max(ACROSS, widest + 6)) + widest // 2, round(y * DOWN)) for name, (x, y) in positions(graph).items()}
    height = max((y for _, y in places.values()), default=0) + 1
    width = max((x for x, _ in places.values()), default=0) + widest
    canvas = [[" "] * (width + 1) for _ in range(height)]
    for edge in sorted(links, key=lambda one: one.used):  # used links are drawn over unused ones
        for step, (x, y, letter) in enumerate(_line(places[edge.low], places[edge.high])):
            if edge.used or letter != "-" or not step % 2:
                canvas[y][x] = letter if edge.used else "."
    for edge in links:
        if edge.cost != 1:
            (ax, ay), (bx, by) = places[edge.low], places[edge.high]
            _write(canvas, (ax + bx) // 2, (ay + by) // 2, str(edge.cost))
    for number, label in labels.items():
        _write(canvas, *places[number], label)
    return "\n".join("".join(row).rstrip() for row in canvas)


def _write(canvas: list[list[str]], x: int, y: int, text: str) -> None:
    """Write a text, centred on x."""
    start = max(0, min(x - len(text) // 2, len(canvas[y]) - len(text)))
    canvas[y][start : start + len(text)] = text


def _line(a: tuple[int, int], b: tuple[int, int]) -> Iterator[tuple[int, int, str]]:
    """The characters between two points. A character is twice as high as wide."""
    (ax, ay), (bx, by) = (a, b) if a[1] <= b[1] else (b, a)
    across, down = bx - ax, by - ay
    steps = max(abs(across), down, 1)
    letter = "-" if abs(across) > 4 * down else "|" if 2 * abs(across) < down else "\\" if across > 0 else "/"
    for step in range(steps + 1):
        yield ax + round(across * step / steps), ay + round(down * step / steps), letter


def dot(mesh: Mapping[str, Any]) -> str:
    """A graph in Graphviz's language, for `dot -Tsvg` or `neato`."""
    lines = [f"graph {_quoted(mesh['mesh'] or 'mesh')} {{", "  node [shape=box, style=rounded];"]
    known = {member["number"]: member for member in mesh["members"]}
    for number in _labels(mesh):
        member = known.get(number, {})
        style = ", color=red, fontcolor=red" if not member.get("live") else ", penwidth=2" if number == mesh["number"] else ""
        label = _quoted(f"{member.get('name', '?')} {number}")
        lines.append(f"  {number} [label={label}{style}];")
    for edge in edges(mesh):
        words = ([f"label={_quoted(str(edge.cost))}"] if edge.cost != 1 else []) + ([] if edge.used else ["style=dashed", "color=red"])
        how = f" [{', '.join(words)}]" if words else ""
        lines.append(f"  {edge.low} -- {edge.high}{how};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + plain(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
