"""Takes what a node says, and holds it to its word: where it says that it has nothing to do, it is asked to do it all the same."""

from __future__ import annotations

from mqmesh.mesh.node.actions import Action
from mqmesh.mesh.node.node import Node


def take(node: Node) -> list[Action]:
    """`Node.take`. A node that is not `unsettled` must have nothing more to give, nor another deadline, when it looks for it."""
    settled = not node.unsettled
    actions = node.take()
    deadline = node.next_deadline()
    if settled and (deadline is None or deadline > node._core.now):  # at its deadline it may, though nobody has woken it yet
        node._core.stirred = True
        more = node.take()
        assert not more, more
        assert node.next_deadline() == deadline
    return actions
