"""Branches: what one relay is told of an origin's tree, and how it sees that the origin has said it.

A relay needs no more of a tree than the link that it hangs on and what lies beyond itself. It gets that, its *branch*, and the *path* of
the tree to it. The origin signs one digest for the whole tree. Each relay computes it from what it got (a Merkle tree: R. Merkle, "A
digital signature based on a conventional encryption function", CRYPTO 1987):

    digest of a broker   = SHA-256 of 0 and [number, incarnation of the link that it hangs on, digest of its children]
    digest of children   = that of a child; of several, SHA-256 of 1 and the digests of the first and second half, joined
    digest of the tree   = that of the origin, whose incarnation is 0

    path                 = for each broker from the origin to the parent: number, incarnation, and the digests *beside* the child through
                           which the path goes on: those of the halves that it is not in, from the least to the largest

So a tree costs each link what lies beyond it and the digests beside the path to it: for each broker on it as many as the logarithm of the
number of its children.

It does not know links, seals or when a tree is announced.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise

import msgpack

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..wire.control import BESIDE_BYTES, Branch, Hanging, Level

Path = tuple[Level, ...]
BEFORE, AFTER = b"\0", b"\1"  # on which side of the child the half is whose digest follows


def digest(number: int, incarnation: int, children: bytes) -> bytes:
    """Of a broker and all beyond it. children: their digest; b"" without any."""
    return sha256(b"\0" + msgpack.packb((number, incarnation, children))).digest()


def joined(found: list[bytes]) -> bytes:
    """The digest of children with these digests."""
    if len(found) < 2:
        return found[0] if found else b""
    middle = (len(found) + 1) // 2
    return sha256(b"\1" + joined(found[:middle]) + joined(found[middle:])).digest()


def besides(found: list[bytes]) -> list[bytes]:
    """For each of these children, what is beside it."""
    if len(found) < 2:
        return [b""] * len(found)
    middle = (len(found) + 1) // 2
    one, other = found[:middle], found[middle:]
    after, before = AFTER + joined(other), BEFORE + joined(one)
    return [beside + after for beside in besides(one)] + [beside + before for beside in besides(other)]


def digests(nodes: Sequence[Hanging]) -> dict[int, bytes]:
    """Of each broker. nodes: parents first, children of one parent in their order."""
    below: dict[int, list[bytes]] = {}
    found = {}
    for number, parent, incarnation in reversed(nodes):
        found[number] = own = digest(number, incarnation, joined(below.get(number, [])[::-1]))
        below.setdefault(parent, []).append(own)
    return found


def part(path: Path, number: int, incarnation: int, nodes: Sequence[Hanging]) -> dict[int, tuple[Path, list[Hanging]]]:
    """What the children of a broker get: child -> path, branch.

    path: to the broker, which hangs on a link of this incarnation. nodes: all beyond it, each one before those beyond it.
    """
    known = digests(nodes)
    begins = [at for at, node in enumerate(nodes) if node[1] == number]
    found = {}
    for beside, (begin, end) in zip(besides([known[nodes[at][0]] for at in begins]), pairwise([*begins, len(nodes)]), strict=True):
        found[nodes[begin][0]] = (*path, Level(number, incarnation, beside)), list(nodes[begin:end])
    return found


def tree_digest(branch: Branch) -> bytes:
    """Of the whole tree, as this branch and its path have it."""
    found = digests(branch.nodes)[branch.nodes[0][0]]
    for level in reversed(branch.path):
        for at in range(0, len(level.beside), BESIDE_BYTES):
            side, other = level.beside[at : at + 1], level.beside[at + 1 : at + BESIDE_BYTES]
            found = sha256(b"\1" + (other + found if side == BEFORE else found + other)).digest()
        found = digest(level.number, level.incarnation, found)
    return found


def check_branch(branch: Branch, here: int) -> tuple[int, int]:
    """The (parent, incarnation) that a branch gives this broker. Raises `PeerError` unless it is one that begins here."""
    path = [level.number for level in branch.path]
    if not path or path[0] != branch.origin or branch.path[0].incarnation or not branch.nodes or branch.nodes[0][0] != here:
        raise _bad(branch, f"does not lead from there to broker {here}")
    known = set(path)
    if len(known) != len(path):
        raise _bad(branch, "is no tree: its path meets itself")
    open_ = path[-1:]
    for number, parent, _ in branch.nodes:
        while open_ and open_[-1] != parent:
            open_.pop()
        if number in known or not open_ or (number != here and len(open_) == 1):
            raise _bad(branch, f"is no tree at broker {number}")
        known.add(number)
        open_.append(number)
    return branch.nodes[0][1:]


def _bad(branch: Branch, text: str) -> PeerError:
    return PeerError(Reason.PROTOCOL_ERROR, f"$mesh/branch: the branch of origin {branch.origin} {text}")
