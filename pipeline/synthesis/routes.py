"""Templates: the events that one message of a topic makes when nothing goes wrong, along the tree that brokers would announce.

A template is a list of rows in causal order. A chunk of messages becomes events by repeating the rows of each message's template, which
numpy does at once for all of them (events.py). Rows of one destination stand together, and so do those of one target, so that what
happens to a destination or a target is drawn once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...broker.journal.schema import NOBODY, Kind, Protocol, name_id
from ...mesh.view.linkstate import Graph, shortest_paths
from .scene import Client, Scene, Topic

_HANDLING = 40  # microseconds that a broker takes
_ACK = 900  # microseconds until a client has acknowledged
MESH_VERSION = 5
# columns of a template
ROW = np.dtype(
    [
        ("kind", "i2"),
        ("broker", "i4"),
        ("from_broker", "i4"),
        ("to_broker", "i4"),
        ("client", "i8"),
        ("recipient", "i8"),
        ("value", "i8"),
        ("qos", "i1"),
        ("version_out", "i1"),
        ("protocol_out", "i1"),
        ("protocol_in", "i1"),
        ("version_in", "i1"),
        ("base", "i8"),
        ("step", "i8"),
        ("reached", "?"),
        ("in_reached", "?"),
        ("target", "?"),
        ("in_target", "?"),
    ]
)


@dataclass(slots=True)
class Routes:
    """rows: of all templates, one after the other. begin, length: of each, by `period * topics + topic`. remote: whether brokers
    elsewhere want it.

    answer: microseconds until the first target has it, which is when a response may begin.
    """

    rows: np.ndarray
    begin: np.ndarray
    length: np.ndarray
    remote: np.ndarray
    answer: np.ndarray


def routes(scene: Scene) -> Routes:
    """Templates of each topic in each state of the links."""
    blocks, remote, answer = [], [], []
    for _, graph in scene.periods():
        trees = {broker: {n: path.parent for n, path in shortest_paths(graph, broker).items()} for broker in graph}
        for topic in scene.topics:
            rows, anywhere, first = _template(scene, topic, graph, trees[topic.publisher.broker])
            blocks.append(np.array(rows, dtype=ROW))
            remote.append(anywhere)
            answer.append(first)
    length = np.array([len(block) for block in blocks], dtype=np.int64)
    return Routes(np.concatenate(blocks), np.cumsum(length) - length, length, np.array(remote), np.array(answer, dtype=np.int64))


def used_edges(parents: dict[int, int], destinations: set[int], root: int) -> list[tuple[int, int]]:
    """The tree's edges that lead to a destination, nearer ones first. parents: nearest first."""
    needed = set()
    for destination in destinations:
        here = destination
        while here != root and here not in needed:
            needed.add(here)
            here = parents[here]
    return [(parents[number], number) for number in parents if number in needed]


def _template(scene: Scene, topic: Topic, graph: Graph, parents: dict[int, int]) -> tuple[list[tuple[Any, ...]], bool, int]:
    publisher, origin = topic.publisher, topic.publisher.broker
    at: dict[int, list[tuple[Client, int]]] = {}
    for client, granted in topic.subscribers:
        at.setdefault(client.broker, []).append((client, min(granted, topic.qos)))
    elsewhere = set(at) - {origin}
    sender = name_id(publisher.name)
    inward = (publisher.protocol, publisher.version)
    rows: list[tuple[Any, ...]] = []

    def row(kind: Kind, broker: int, base: int, step: int, **more: Any) -> None:
        values: dict[str, Any] = {
            "from_broker": NOBODY,
            "to_broker": NOBODY,
            "client": 0,
            "recipient": 0,
            "value": 0,
            "qos": topic.qos,
            "version_out": 0,
        }
        values |= {"protocol_out": 0, "protocol_in": inward[0], "version_in": inward[1], "reached": False, "in_reached": False}
        values |= {"target": False, "in_target": False, **more, "kind": int(kind), "broker": broker, "base": base, "step": step}
        rows.append(tuple(values[name] for name in ROW.names or ()))

    def targets(broker: int, base: int, far: bool) -> int:
        for client, qos in at[broker]:
            named = name_id(client.name) if topic.response >= 0 else 0
            out: dict[str, Any] = {"client": name_id(client.name), "recipient": named, "qos": qos, "in_reached": far, "in_target": True}
            out |= {"version_out": client.version, "protocol_out": client.protocol}
            if far:
                out |= {"protocol_in": int(Protocol.MESH), "version_in": MESH_VERSION}
            row(Kind.DELIVERED, broker, base + _HANDLING, _HANDLING, **out, target=True)
            if qos:
                row(Kind.ACKNOWLEDGED, broker, base + _HANDLING + _ACK, _ACK, **out)
        return base + _HANDLING + _ACK

    row(Kind.PUBLISHED, origin, 0, 0, client=sender, value=len(elsewhere))
    if topic.qos and elsewhere:
        row(Kind.CUSTODY_TAKEN, origin, _HANDLING, 1, client=sender)
    first = 0
    if origin in at:
        row(Kind.RECEIVED, origin, 0, 0, from_broker=origin, value=len(at[origin]))
        first = targets(origin, 0, False)
    arrival = {origin: 0}
    mesh = {"version_out": MESH_VERSION, "protocol_out": int(Protocol.MESH)}
    for u, v in used_edges(parents, elsewhere, origin):
        row(Kind.FORWARDED, u, arrival[u] + _HANDLING, _HANDLING, from_broker=u, to_broker=v, **mesh)
        arrival[v] = arrival[u] + _HANDLING + scene.delays[u, v]
    for broker in sorted(elsewhere):
        far = {"in_reached": True, "protocol_in": int(Protocol.MESH), "version_in": MESH_VERSION}
        step = scene.delays[parents[broker], broker]
        hop = {"from_broker": parents[broker], "to_broker": broker}
        row(Kind.RECEIVED, broker, arrival[broker], step, **far, **hop, value=len(at[broker]), reached=True)
        first = first or arrival[broker] + _HANDLING + _ACK
        targets(broker, arrival[broker], True)
        if topic.qos:
            row(Kind.CUSTODY_RELEASED, origin, 2 * arrival[broker] + _ACK, step, in_reached=True, to_broker=broker)
    return rows, bool(elsewhere), first
