"""Trees: how an origin says over which links its messages go, and what a relay keeps of it.

The origin computes one shortest-path tree from link state and announces it down the tree (OPEN). A relay keeps, for each origin,
only the newest tree: where it comes from and which brokers lie behind which child. It never looks at its own link
state for that, so that views need not agree; what no longer fits (a link reset) just leaves the record until the next OPEN.

Tree numbers are 64 bits and begin each life at epoch * 65,536, so that those of a later life are higher.

Invariants
- parents stand before children; a broker stands in a tree once;
- the children's sets of brokers are disjoint and do not hold the relay itself.

It does not know messages or when to announce.
"""

from __future__ import annotations

from typing import NamedTuple

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..wire.control import LinkRecord, Open, Position
from .linkstate import Path

EPOCH_SHIFT = 16


class Node(NamedTuple):
    """One broker of an origin's tree: its parent, the incarnation of the link between them, and which life of it is meant."""

    parent: int
    incarnation: int
    uuid: bytes
    epoch: int


Shape = dict[int, Node]


def shape_of(paths: dict[int, Path], holders: dict[int, LinkRecord]) -> Shape:
    """The tree that shortest paths make; when it differs from the announced one, a new one is due."""
    return {n: Node(p.parent, p.incarnation, holders[n].uuid, holders[n].epoch) for n, p in paths.items()}


def preorder(shape: Shape, root: int) -> list[int]:
    """The brokers of a tree, each one before those beyond it. Trees that agree in what is beyond a link then say it alike."""
    children: dict[int, list[int]] = {}
    for number in sorted(shape, reverse=True):
        children.setdefault(shape[number].parent, []).append(number)
    found, open_ = [], children.get(root, [])
    while open_:
        number = open_.pop()
        found.append(number)
        open_ += children.get(number, ())
    return found


def branches(nodes: list[tuple[int, int]], root: int, here: int) -> dict[int, int]:
    """(number, parent) of all but the root, parents first -> for each child of `here`, the brokers behind it, itself included."""
    sets = {number: 1 << number for number, _ in nodes}
    sets[root] = 0
    for number, parent in reversed(nodes):
        sets[parent] |= sets[number]
    return {number: sets[number] for number, parent in nodes if parent == here}


class Child:
    """A tree's link away from the origin. mask: the brokers behind it. cut: custody frames were dropped here, so none may follow."""

    __slots__ = ("cut", "link", "mask")

    def __init__(self, link: int, mask: int) -> None:
        self.link = link
        self.mask = mask
        self.cut = False


class Record:
    """What a relay keeps of one origin's newest tree.

    upstream: the link that it came over, None once that link is gone. children: by link. last: (epoch, sequence) of the newest QoS 0 frame.
    """

    __slots__ = ("children", "last", "origin", "tree", "upstream", "uuid")

    def __init__(self, origin: int, uuid: bytes, tree: int, upstream: int) -> None:
        self.origin = origin
        self.uuid = uuid
        self.tree = tree
        self.upstream: int | None = upstream
        self.children: dict[int, Child] = {}
        self.last: Position = (0, 0)

    def lose(self, link: int) -> bool:
        """A link is gone; whether it was part of this tree."""
        if self.upstream == link:
            self.upstream = None
            return True
        return self.children.pop(link, None) is not None


def check_open(message: Open, here: int) -> tuple[int, int]:
    """The (parent, incarnation) that an OPEN gives this broker. Raises `PeerError` unless the OPEN is a tree that holds it."""
    known = {message.origin}
    mine = None
    for number, parent, incarnation in message.nodes:
        if number in known or parent not in known:
            raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/open: the tree of origin {message.origin} is no tree at broker {number}")
        known.add(number)
        if number == here:
            mine = (parent, incarnation)
    if mine is None:
        raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/open: the tree of origin {message.origin} does not hold broker {here}")
    return mine
