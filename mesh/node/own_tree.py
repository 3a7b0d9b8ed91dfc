"""The tree that this broker announces as an origin: its number, its shape, and whether a new one is due.

A tree follows the shortest paths that link state shows (`LinkStates.paths`, trees.py). It stays until link state gives it another shape,
or something was dropped in it, and the next one is announced when there is something to send. A neighbour gets its branch of it
(view/branches.py), or the whole where a broker of the branch is of an earlier release, which all beyond it then get.

Invariants
- numbers rise through all lives, because they begin at the epoch;
- `branches` are links that are up, and no broker is behind two of them.

It does not know who is sent what in it.
"""

from __future__ import annotations

from ..view.branches import part, tree_digest
from ..view.linkstate import LinkStates
from ..view.trees import EPOCH_SHIFT, Shape, branches, preorder, shape_of
from ..wire.control import Branch, Open
from ..wire.keys import Seal
from ..wire.visited import width_for
from .core import Core


class OwnTree:
    """This broker's tree.

    number: of the one announced last. due: the shape that link state asks for may be another one, or it has a hole; see `wanted`. shape: as
    announced.
    branches: (link, brokers behind it). reach: all brokers in the branches. told: those of them that got a branch, not the whole.
    """

    def __init__(self, core: Core, states: LinkStates) -> None:
        self._core = core
        self._states = states
        self._announced = False
        self._holed = False
        self.number = core.identity.epoch << EPOCH_SHIFT
        self.due = True
        self.shape: Shape = {}
        self.branches: list[tuple[int, int]] = []
        self.reach = self.told = 0

    def shape_changed(self) -> None:
        """Link state has changed. Whether that makes a new tree due is looked at once there is something to send."""
        self.due = True

    def holed(self) -> None:
        """Something was dropped in it that must come again: a new one is due, whatever its shape."""
        self.due = self._holed = True

    def wanted(self) -> bool:
        """Whether a new tree is due indeed; `due` is taken back if not."""
        self.due = self._holed or not self._announced or shape_of(self._states.paths, self._states.holders) != self.shape
        return self.due

    def epoch_raised(self) -> None:
        """A new life as far as numbering goes."""
        self.number = max(self.number, self._core.identity.epoch << EPOCH_SHIFT)
        self._announced, self.due = False, True  # under this number nothing was, though the shape is what it was

    def announce(self) -> None:
        """Open a new tree along the shortest paths that link state shows."""
        core, states = self._core, self._states
        self.shape = shape_of(states.paths, states.holders)
        self.number += 1
        self._announced, self.due, self._holed = True, False, False
        core.counters.trees += 1
        nodes = [(number, *self.shape[number][:2]) for number in preorder(self.shape, core.number)]
        masks = branches([(n, p) for n, p, _ in nodes], core.number, core.number)
        parts = part((), core.number, 0, nodes)
        named = core.number, core.uuid, core.identity.epoch, self.number
        whole: Open | None = None
        seal: Seal | None = None
        self.branches = []
        self.reach = self.told = 0
        for number, mask in masks.items():
            end = core.by_number.get(number)
            if end is None or end.incarnation != self.shape[number].incarnation:
                continue
            self.branches.append((end.id, mask))
            self.reach |= mask
            path, beyond = parts[number]
            if all(core.lives.takes_branches(one, *self.shape[one][2:]) for one, _, _ in beyond):
                body = Branch(*named, path, tuple(beyond))
                seal = seal or self._seal("branch", *named, tree_digest(body))
                core.branch(end, body._replace(seal=seal))
                self.told |= mask
            else:
                whole = whole or Open(*named, tuple(nodes), self._seal("open", *named, nodes))
                core.open(end, whole)
        core.event("tree_announced", tree=self.number, brokers=len(nodes))

    def _seal(self, kind: str, *said: object) -> Seal | None:
        return None if self._core.keys is None else self._core.keys.seal(kind, *said)

    def width(self, share: int) -> int:
        """How many bytes of visited bits frames of this share have: none where it is everybody, and all know what that means."""
        return 0 if not self.reach & ~(share & self.told) else width_for(share)

    def link_lost(self, link: int) -> None:
        """A link went down: what is behind it is not reached any more in this tree."""
        self.branches = [(end, mask) for end, mask in self.branches if end != link]
        self.reach = 0
        for _, mask in self.branches:
            self.reach |= mask
