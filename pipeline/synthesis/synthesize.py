"""`synthesize`: a journal of a given size, and `truth.json` beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...broker.journal.place import Place
from ...broker.journal.schema import Kind, name_id
from ..errors import PipelineError
from .events import Columns, Maker
from .routes import routes
from .scene import Order, Scene, build
from .truth import Truth
from .writer import Writer, plain_events

TRUTH = "truth.json"
CHUNK = 1_000_000  # events


@dataclass(frozen=True, slots=True)
class Made:
    """What was written."""

    events: int
    messages: int
    segments: int
    bytes: int
    truth: dict[str, Any]


def synthesize(order: Order, root: str | Path, progress: Callable[[int, int], None] | None = None) -> Made:
    """Write a journal. progress: is told how many events of about how many are written.

    Raises PipelineError: the topology cannot be read, or the folder holds a journal already.
    """
    try:
        place = Place(root)
    except ValueError as error:
        raise PipelineError(str(error)) from None
    if place.files("manifest", ".json"):
        raise PipelineError(f"{place.root}: holds a journal already: give an empty folder")
    scene = build(order)
    made = routes(scene)
    maker, truth, writer = Maker(scene, made), Truth(scene), Writer(place, scene)
    rest = list(_others(scene))
    for count, begin, end in _chunks(order, scene, maker):
        messages = maker.messages(count, begin, end)
        columns, incomplete = maker.events(messages)
        truth.add(columns, messages, incomplete)
        writer.write(columns, messages)
        refused = round(count * order.refused)
        if refused:
            _plain(maker.refused(refused, begin, end), truth, writer)
        now = [row for row in rest if row["true"] < end or end >= scene.end]
        if now:
            _plain(plain_events(now), truth, writer)
            rest = [row for row in rest if row["true"] >= end and end < scene.end]
        if progress is not None:
            progress(writer.written, max(order.events, writer.written))
    writer.close()
    place.write(TRUTH, json.dumps(truth.dumped(), indent=1).encode())
    return Made(writer.written, truth.messages, len(writer.segments), writer.bytes, truth.dumped())


def _plain(columns: Columns, truth: Truth, writer: Writer) -> None:
    truth.add_kinds(columns)
    writer.write(columns)


def _chunks(order: Order, scene: Scene, maker: Maker) -> list[tuple[int, int, int]]:
    """Messages to draw, and the time that they are published in, so that all chunks together have about the events that are asked for."""
    sample = maker.routes.length[: len(scene.topics)].astype(float)
    each = float((sample * maker.weights).sum())
    asked = maker.response >= 0
    for topic in np.flatnonzero(asked):  # what a request causes
        chain = [maker.response[topic]]
        if maker.second[topic] >= 0:
            chain += [maker.second[topic], maker.response[maker.second[topic]]]
        each += maker.weights[topic] * sum(sample[one] for one in chain)
    messages = max(1, round(order.events / each))
    count = max(1, -(-order.events // CHUNK))
    edges = np.linspace(scene.order.start, scene.end, count + 1).astype(np.int64)
    shares = np.linspace(0, messages, count + 1).astype(np.int64)
    return [(int(shares[i + 1] - shares[i]), int(edges[i]), int(edges[i + 1])) for i in range(count)]


def _others(scene: Scene) -> list[dict[str, Any]]:
    """Events that belong to no message: links, clients, recipients."""
    made: list[dict[str, Any]] = []

    def add(kind: Kind, broker: int, true: int, **more: Any) -> None:
        made.append({"kind": int(kind), "broker": broker, "true": true, "time": true + scene.skew(broker), **more})

    start = scene.order.start
    for a, near in scene.graph.items():
        for b in near:
            add(Kind.LINK_UP, a, start, to_broker=b, detail=json.dumps({"cost": near[b][0]}))
    for client in scene.clients:
        add(Kind.CONNECTED, client.broker, start + 1, client=name_id(client.name), version_in=client.version, protocol_in=client.protocol)
    for fault in scene.link_faults:
        for number, (a, b) in enumerate((fault.ends, fault.ends[::-1])):
            add(Kind.LINK_DOWN, a, fault.begins + 1_000 * number, to_broker=b, reason=name_id("cut"))
            add(Kind.LINK_UP, a, fault.ends_at + 1_000 * number, to_broker=b, reason=name_id("restored"))
    for one in scene.recipient_faults:
        who = {"recipient": name_id(one.recipient), "client": name_id(one.recipient)}
        detail = json.dumps({"from": "operational", "to": "fault", "last_success": one.began})
        add(Kind.RECIPIENT_STATE, one.broker, one.fault_at, **who, reason=name_id("no answer"), detail=detail)
        if one.defunct_at:
            add(
                Kind.RECIPIENT_STATE,
                one.broker,
                one.defunct_at,
                **who,
                reason=name_id("no answer"),
                detail='{"from": "fault", "to": "defunct"}',
            )
        add(Kind.RECIPIENT_STATE, one.broker, one.ends_at, **who, reason=name_id("answered"), detail='{"to": "operational"}')
    return sorted(made, key=lambda row: row["true"])


__all__ = ["TRUTH", "Made", "Order", "synthesize"]
