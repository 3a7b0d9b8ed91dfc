"""What a dead letter says of itself: where it comes from, why it is dead, who had it and when.

It keeps its payload, topic and properties. User properties follow them:

    mqmesh-dead-queue, mqmesh-dead-position     the queue, and the position there, for `mqmesh queue trace`
    mqmesh-dead-reason                          in words
    mqmesh-dead-deliveries                      how often it was given to members
    mqmesh-dead-history                         JSON: [[when, who, what], ...]; times in milliseconds since 1970

What it does not know: files, clients.
"""

from __future__ import annotations

import json

from ....mqtt.properties import Property, encode_properties, properties_in
from ..core.blocks import Meta
from ..core.queue import Queue
from ..core.stock import Dead, Stock

PREFIX = "mqmesh-dead-"
LONGEST = 60_000  # bytes of the history; behind the first step the oldest go
NAME_MAX = 256  # characters of a name in the history


def bury(queue: Stock, target: Queue, dead: list[Dead], payloads: list[bytes], now: int) -> None:
    """Dead letters of a queue enter another one."""
    for one, payload in zip(dead, payloads, strict=True):
        target.put([payload], dead_meta(queue, one), now, one.block.key.topic, one.block.priority_of(one.at), delay=0)


def dead_meta(queue: Stock, dead: Dead) -> Meta:
    """What the dead letter's publisher said of it, and why it is dead."""
    block, index = dead.block, dead.at
    meta = block.meta(index)
    steps = [(block.at, meta.publisher[:NAME_MAX], "PUT")]
    for part in block.parts:
        steps += [(at, queue.names[number][:NAME_MAX], "returned") for number, at in (part.returns or {}).get(index, ())]
    pairs = [
        (PREFIX + "queue", queue.name),
        (PREFIX + "position", str(block.first + index)),
        (PREFIX + "reason", dead.why),
        (PREFIX + "deliveries", str(sum([part.tries(index) for part in block.parts]))),
        (PREFIX + "history", _history(steps)),
    ]
    _, properties = origin_of(meta.properties)  # of an earlier death nothing is said
    return Meta(meta.publisher, properties + encode_properties({Property.USER_PROPERTY: pairs}), "", meta.group)


def failed_meta(queue: str, meta: Meta, at: int, why: str) -> Meta:
    """The same of a message that its queue has not taken, and that cannot be refused any more: it has no position there."""
    pairs = [
        (PREFIX + "queue", queue),
        (PREFIX + "reason", why),
        (PREFIX + "deliveries", "0"),
        (PREFIX + "history", _history([(at, meta.publisher[:NAME_MAX], "PUT")])),
    ]
    return meta._replace(properties=meta.properties + encode_properties({Property.USER_PROPERTY: pairs}), handle="")


def position_of(properties: bytes) -> int:
    """The position that a dead letter had in the queue that it comes from; 0: it is not said."""
    found = properties_in(properties)
    text = next((value for name, value in found.get(Property.USER_PROPERTY, []) if name == PREFIX + "position"), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _history(steps: list[tuple[int, str, str]]) -> str:
    """The steps as JSON: the first one, and as many of the last ones as there is room for."""
    first, rest = json.dumps(steps[0], separators=(",", ":")), []
    room = LONGEST - len(first)
    for one in reversed(steps[1:]):
        text = json.dumps(one, separators=(",", ":"))
        room -= len(text) + 1
        if room < 0:
            break
        rest.append(text)
    return f"[{','.join([first, *reversed(rest)])}]"


def origin_of(properties: bytes) -> tuple[str | None, bytes]:
    """The queue that a dead letter comes from (None: it is no dead letter), and its properties without what makes it one."""
    if not properties:
        return None, properties
    found = properties_in(properties)
    pairs = found.get(Property.USER_PROPERTY, [])
    origin = next((value for name, value in pairs if name == PREFIX + "queue"), None)
    found[Property.USER_PROPERTY] = [(name, value) for name, value in pairs if not name.startswith(PREFIX)]
    if not found[Property.USER_PROPERTY]:
        del found[Property.USER_PROPERTY]
    return origin, encode_properties(found)
