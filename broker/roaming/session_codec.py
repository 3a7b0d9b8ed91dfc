"""A session in parcels: what one broker sends of it to another, as msgpack.

    state   [form, expiry | nil, user | nil, [[filter, QoS, No Local, Retain As Published, Retain Handling, identifier], ...],
             QoS 2 identifiers received, [[first, count], ...] identifiers released, name of the listener by which the client came last]
             (the last only if it has a name)
    items   [item, ...]; an item is a run, or a span of messages of different topics, for this one session:
            [0, QoS, first identifier, retain, suffix, topic, publisher's QoS, publisher's retain, properties, expiry left | nil, payloads]
            [1, QoS, first identifier, block of frames, version of the frames, count, publisher's QoS]

The first identifier is 0 for what waits; else the messages are in flight with this identifier and those behind it. Messages that were taken
for a shared subscription are the session's own from here on.

What it does not know: who sends it, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from ...mqtt.batch.batch import Batch
from ...mqtt.batch.packets import PacketBatch
from ...mqtt.batch.run import Run
from ...mqtt.packets import Subscription
from ...mqtt.session import Delivery

FORM = 1
PIECE = 128 * 1024  # bytes of messages in one item, about


class SessionState(NamedTuple):
    """A session without its messages. subscriptions: with their identifiers. received: QoS 2 identifiers. released: blocks of them.
    listener: by which the client came last, "" if it has no name."""

    expiry: float | None
    user: str | None
    subscriptions: list[tuple[Subscription, int]]
    received: list[int]
    released: list[tuple[int, int]]
    listener: str = ""


def encode_state(state: SessionState) -> bytes:
    """As it travels."""
    subscriptions = [
        [
            s.filter,
            s.qos,
            s.no_local,
            s.retain_as_published,
            s.retain_handling,
            number,
            *s.said,
        ]
        for s, number in state.subscriptions
    ]
    listener = [state.listener] if state.listener else []  # an earlier release has no names of listeners, and reads none
    packed: bytes = msgpack.packb([FORM, state.expiry, state.user, subscriptions, state.received, state.released, *listener])
    return packed


def decode_state(data: bytes) -> SessionState:
    """The reverse. Raises ValueError."""
    try:
        form, expiry, user, subscriptions, received, released, *listener = msgpack.unpackb(data)
        if form != FORM:
            raise ValueError(f"form {form}, this version reads {FORM}")
        if any(type(one) is not str for one in listener):
            raise ValueError("the listener is no text")
        held = [
            (Subscription(topic, qos, local, published, handling, *said), n)
            for topic, qos, local, published, handling, n, *said in subscriptions
        ]
        return SessionState(expiry, user, held, received, [(first, count) for first, count in released], *listener)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"a session's state: {error}") from None


def items(delivery: Delivery, first: int, now: float) -> Iterator[tuple[list[Any], int]]:
    """A delivery as items of about `PIECE` bytes at most, and their sizes. first: packet identifier of its first message, 0: it waits."""
    step = max(1, PIECE // max(1, delivery.each))
    for start in range(0, delivery.count, step):
        stop = min(delivery.count, start + step)
        run = delivery.run
        if stop - start < run.count:
            run = run.part(delivery.start + start, delivery.start + stop)
        yield _item(delivery, run, first + start if first else 0, now), (stop - start) * delivery.each


def encode_items(found: list[list[Any]]) -> bytes:
    """As they travel together."""
    packed: bytes = msgpack.packb(found)
    return packed


def _item(delivery: Delivery, run: Batch, first: int, now: float) -> list[Any]:
    if not run.uniform:
        block, version = run.written()
        return [1, delivery.qos, first, block, version, run.count, run.qos]
    left = None if run.expiry is None else max(0, round(run.expiry - (now - run.received)))
    what = [0, delivery.qos, first, delivery.retain, delivery.suffix, bytes(run.topic), run.qos, run.retain, run.properties, left]
    return [*what, [bytes(payload) for payload in run.payloads]]


def deliveries(body: bytes, now: float) -> list[Delivery]:
    """The reverse: with `first` set for those that are in flight. Raises ValueError."""
    found = []
    try:
        for item in msgpack.unpackb(body):
            if item[0] == 1:
                _, qos, first, block, version, count, run_qos = item
                delivery = Delivery(PacketBatch(block, version, run_qos, count, now), qos)
            else:
                _, qos, first, retain, suffix, topic, run_qos, run_retain, properties, left, payloads = item
                delivery = Delivery(Run(topic, run_qos, run_retain, payloads, properties, left, now), qos, retain, suffix)
            delivery.first = first
            found.append(delivery)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ValueError(f"a session's messages: {error}") from None
    return found
