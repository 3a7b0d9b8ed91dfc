"""Parents: the messages that a message comes of, as its publisher names them (`mqmesh-parents`) and as members see them (`mqmesh-lineage`).

What it does not know: queues, states.
"""

from __future__ import annotations

from ....base.queues import LINEAGE, PARENTS
from ....mqtt.length import encode_length
from ....mqtt.properties import Property, encode_properties
from ....mqtt.publish import publish_properties

MOST = 64  # parents of one message
RIGHT = f'{PARENTS}: give at most {MOST} messages as QUEUE:POSITION, with commas: "orders:17,orders:18"'
Parent = tuple[str, int]  # queue, position


def parents_of(text: str) -> tuple[Parent, ...]:
    """Read what a publisher says. ValueError, one line that says what would be right."""
    found: list[Parent] = []
    for word in text.split(","):
        name, _, position = word.strip().rpartition(":")
        if not name or not (position.isascii() and position.isdigit()) or len(position) > 18:
            raise ValueError(RIGHT)
        found.append((name, int(position)))
    if len(found) > MOST or len(set(found)) < len(found):
        raise ValueError(RIGHT)
    return tuple(found)


def lineage(parents: tuple[Parent, ...]) -> bytes:
    """The user property that says the parents, encoded."""
    text = ",".join(f"{name}:{position}" for name, position in parents)
    return encode_properties({Property.USER_PROPERTY: [(LINEAGE, text)]})


def parents_in(properties: bytes) -> tuple[Parent, ...]:
    """The parents of a message that is in a queue, by its encoded properties; none: it has none."""
    if LINEAGE.encode() not in properties:
        return ()
    data = encode_length(len(properties)) + properties
    pairs = publish_properties(data, 0, len(data)).user_properties
    text = next((value for name, value in pairs if name == LINEAGE), "")
    return parents_of(text) if text else ()
