"""What a broker of the mesh may say in the name of another: well-formed packets that, believed, keep messages from it.

A lie is signed with the liar's own key, with a signature that its victim gave for something else, or not at all. What the
liar says of itself stays true, so that all that the mesh promises holds while it lies.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from mqmesh.mesh.view.branches import tree_digest
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mesh.wire.control import BESIDE_BYTES, EPOCH_BITS, Branch, InterestUpdate, Level, LinkRecord, encode, encode_packed
from mqmesh.mesh.wire.keys import Keys, Seal
from mqmesh.mesh.wire.packed import Packer

if TYPE_CHECKING:
    from .site import Site


def lie(chance: Random, liar: Site, victim: Site, hearer: Site, incarnation: int) -> bytes:
    """A control packet of the liar for the other end of one of its links. hearer: who that is; incarnation: the link's."""
    node: Any = liar.node
    known: dict[tuple[int, bytes], LinkRecord] = node._states.records
    key = (victim.number, victim.uuid.bytes)
    record = known.get(key) or LinkRecord(victim.number, key[1], f"site{victim.number}", victim.epoch, 1, ())
    own = Keys("mesh", victim.number, record.name, liar.signer)
    seals: tuple[Seal | None, ...]
    what = chance.choice(("gone", "ahead", "other", "interest", "tree", "branch", "summary"))
    if what == "summary":
        return encode("summary", [(victim.number, key[1], (1 << EPOCH_BITS) - 1, 9, 0, 0, 0)])
    if what == "interest":
        said = InterestSet(record.epoch + chance.choice((0, 1)))
        said.version = chance.choice((1, 1 << 40))
        old = node.interests.sets.get(key)
        seals = (None, None if old is None else old.seal, own.seal("interest", *said.said(key)))
        return encode("interest", InterestUpdate(*key, said.epoch, None, said.version, 0, (), (), chance.choice(seals)))
    if what == "tree":
        body = (*key, record.epoch, 1 << 62, [(liar.number, victim.number, 1), (hearer.number, liar.number, incarnation)])
        return encode("open", (*body, chance.choice((None, record.seal, own.seal("open", *body)))))
    if what == "branch":  # the hearer hangs on the liar, whatever its victim has signed of it
        path = (Level(victim.number, 0, chance.choice((b"", bytes(BESIDE_BYTES)))), Level(liar.number, chance.randrange(1 << 63), b""))
        branch = Branch(*key, record.epoch, 1 << 62, path, ((hearer.number, liar.number, incarnation),))
        seals = (None, record.seal, own.seal("branch", *branch[:4], tree_digest(branch)))
        return encode_packed("branch", branch._replace(seal=chance.choice(seals)), Packer())
    if what == "gone":
        record = record._replace(sequence=record.sequence + chance.choice((1, 1 << 30)), links=())
    elif what == "ahead":
        record = record._replace(epoch=chance.choice((record.epoch + 1, (1 << EPOCH_BITS) - 1)))
    else:
        record = record._replace(uuid=chance.randbytes(16), epoch=1, sequence=1)
    seals = (None, record.seal, own.seal("linkstate", *record.said()))
    return encode("linkstate", [record._replace(seal=chance.choice(seals))])


__all__ = ["lie"]
