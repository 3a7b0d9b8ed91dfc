"""Branches of a tree: each relay learns what the whole tree says of it, and no other tree has the same digest."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mqmesh.mesh.view.branches import AFTER, BEFORE, check_branch, digest, joined, part, tree_digest
from mqmesh.mesh.view.trees import Node, branches, preorder
from mqmesh.mesh.wire.control import BESIDE_BYTES, Branch, Hanging, Level
from mqmesh.mqtt.errors import PeerError

ORIGIN = 1


@st.composite
def trees(draw: st.DrawFn) -> list[Hanging]:
    """Of broker 1, each one before those beyond it."""
    shape = {}
    for number in range(2, draw(st.integers(3, 14))):
        shape[number] = Node(draw(st.integers(1, number - 1)), draw(st.integers(1, 3)) * 100 + number, b"", 1)
    return [(number, *shape[number][:2]) for number in preorder(shape, ORIGIN)]


def told(nodes: list[Hanging]) -> dict[int, Branch]:
    """What each broker gets, passed on from one to the next."""
    found: dict[int, Branch] = {}
    todo = list(part((), ORIGIN, 0, nodes).values())
    while todo:
        path, beyond = todo.pop()
        number, _, incarnation = beyond[0]
        found[number] = Branch(ORIGIN, b"u" * 16, 5, 6, path, tuple(beyond))
        todo += part(path, number, incarnation, beyond[1:]).values()
    return found


@given(trees())
def test_each_broker_learns_what_the_whole_tree_says_of_it(nodes: list[Hanging]) -> None:
    whole = [(number, parent) for number, parent, _ in nodes]
    found = told(nodes)
    assert set(found) == {number for number, _ in whole}
    for number, parent, incarnation in nodes:
        branch = found[number]
        assert check_branch(branch, number) == (parent, incarnation)
        assert branches([(n, p) for n, p, _ in branch.nodes], parent, number) == branches(whole, ORIGIN, number)
        assert branch.path[0].number == ORIGIN
    assert len({tree_digest(branch) for branch in found.values()}) == 1


def _steps(beside: bytes) -> list[bytes]:
    return [beside[at : at + BESIDE_BYTES] for at in range(0, len(beside), BESIDE_BYTES)]


def _turned(step: bytes) -> bytes:
    return (AFTER if step[:1] == BEFORE else BEFORE) + step[1:]


@st.composite
def lies(draw: st.DrawFn) -> tuple[Branch, Branch, int]:
    """A branch, another one that is as well formed, and whose it is."""
    found = told(draw(trees()))
    number = draw(st.sampled_from(sorted(found)))
    branch = found[number]
    nodes, path = list(branch.nodes), list(branch.path)
    at, level = draw(st.integers(0, len(nodes) - 1)), draw(st.integers(0, len(path) - 1))
    (one, parent, incarnation), (who, hangs, beside) = nodes[at], path[level]
    match draw(st.integers(0, 9)):
        case 0:
            del nodes[at]
        case 1:
            nodes[at] = one, parent, incarnation + 1
        case 2:
            nodes[at] = draw(st.integers(1, 20)), parent, incarnation
        case 3:
            nodes[at] = one, draw(st.sampled_from([n for n, _, _ in nodes])), incarnation
        case 4:
            nodes.insert(at + 1, (draw(st.integers(15, 20)), one, 7))
        case 5:
            nodes.append(nodes.pop(at))
        case 6:
            path[level] = Level(who, hangs, b"".join(_turned(one) for one in _steps(beside)))
        case 7:
            path[level] = Level(draw(st.integers(15, 20)), hangs + draw(st.integers(0, 1)), beside)
        case 8:
            path[level] = Level(who, hangs, b"".join(draw(st.permutations(_steps(beside)))))
        case 9:
            path[level] = Level(who, hangs, b"".join(_steps(beside)[:-1]))
    return branch, branch._replace(nodes=tuple(nodes), path=tuple(path)), number


@given(lies())
def test_no_other_branch_passes_for_the_origins(lie: tuple[Branch, Branch, int]) -> None:
    honest, other, number = lie
    assume(other != honest)
    try:
        check_branch(other, number)
    except PeerError:
        return
    assert tree_digest(other) != tree_digest(honest)


def test_a_path_cannot_be_told_as_a_branch() -> None:
    """A digest says what it is of: a broker, its link and its children, so that none can be read in another way."""
    below = digest(3, 9, b"")
    branch = Branch(1, b"u" * 16, 5, 6, (Level(1, 0, b""),), ((2, 1, 8), (3, 2, 9)))
    assert tree_digest(branch) == digest(1, 0, digest(2, 8, below))
    assert tree_digest(branch._replace(path=(Level(1, 0, b""), Level(2, 8, b"")), nodes=((3, 2, 9),))) == tree_digest(branch)
    assert tree_digest(branch._replace(nodes=((2, 1, 8),))) != tree_digest(branch)
    assert joined([below]) == below
    assert joined([below, below]) not in (below, digest(3, 9, below + below))


def test_what_stands_beside_a_child_grows_with_the_logarithm_of_their_number() -> None:
    star = [(number, ORIGIN, number) for number in range(2, 1002)]
    found = told(star)
    assert max(len(branch.path[0].beside) for branch in found.values()) == 10 * BESIDE_BYTES
    assert len({tree_digest(branch) for branch in found.values()}) == 1


@pytest.mark.parametrize(
    ("path", "nodes"),
    [
        ((), ((2, 1, 9),)),  # from nowhere
        (((1, 0),), ()),  # empty
        (((4, 0),), ((2, 4, 9),)),  # not from its origin
        (((1, 7),), ((2, 1, 9),)),  # the origin hangs on nothing
        (((1, 0),), ((3, 1, 9), (2, 3, 9))),  # another one's
        (((1, 0), (4, 8), (1, 9)), ((2, 1, 9),)),  # the path meets itself
        (((1, 0), (3, 8)), ((2, 3, 9), (3, 2, 9))),  # the branch meets the path
        (((1, 0),), ((2, 3, 9),)),  # it hangs elsewhere
        (((1, 0),), ((2, 1, 9), (3, 1, 9))),  # two branches
        (((1, 0),), ((2, 1, 9), (3, 4, 9), (4, 2, 9))),  # a child before its parent
        (((1, 0),), ((2, 1, 9), (3, 2, 9), (4, 2, 9), (5, 3, 9))),  # what lies beyond 3 is not together
        (((1, 0),), ((2, 1, 9), (3, 2, 9), (3, 2, 9))),  # twice
    ],
)
def test_a_branch_that_is_none_is_the_peers_error(path: tuple[tuple[int, int], ...], nodes: tuple[Hanging, ...]) -> None:
    branch = Branch(1, b"u" * 16, 5, 6, tuple([Level(number, hangs, b"") for number, hangs in path]), nodes)
    with pytest.raises(PeerError, match="branch of origin 1"):
        check_branch(branch, 2)
