"""Frames under another topic: what a relay writes where a link's policy translates names.

Only the topic and the two lengths in front of it change; envelope, properties and payload stay byte for byte. Frames of one run have one
topic and one size, before and after.

It does not know policies, trees or links.
"""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.batch.parts import PartsBatch
from ...mqtt.length import encode_length
from .policy import PolicyFilter

LARGEST = 268_435_455  # the highest Remaining Length


class Renamed(NamedTuple):
    """Frames of one topic. size: of each. shift: how much farther everything behind the topic stands in a frame."""

    topic: bytes
    block: bytes | bytearray
    size: int
    shift: int


def renamed(block: bytes | bytearray, size: int, topic: bytes, name: bytes | None) -> Renamed | None:
    """Frames of `size` bytes each under another name; None if there is none, or no frame can hold it."""
    if name is None:
        return None
    if name == topic:
        return Renamed(topic, block, size, 0)
    at = 1
    while block[at] > 127:
        at += 1
    at += 1
    cut = at + 2 + len(topic)
    remaining = size - at + len(name) - len(topic)
    if remaining > LARGEST:
        return None
    front = b"".join((b"\x30", encode_length(remaining), len(name).to_bytes(2, "big"), name))
    tails = [block[i + cut : i + size] for i in range(0, len(block), size)]
    return Renamed(name, front + front.join(tails), len(front) + size - cut, len(front) - cut)


def renamed_parts(run: PartsBatch, gate: PolicyFilter) -> PartsBatch | None:
    """Messages of different topics under their names on a link; None if one of them must not leave."""
    names = []
    for topic in run.topics:
        name = gate.outwards(topic)
        if name is None:
            return None
        names.append(len(name).to_bytes(2, "big") + name)
    return PartsBatch(names, run.payloads, run.qos, run.received)
