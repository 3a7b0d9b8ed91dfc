"""Who a broker is in its mesh: what a link's handshake proves and what link state carries."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

PROTOCOL = 3  # the version of the mesh protocol that this release speaks
OLDEST = 2  # the version of the previous release, which it speaks too
HIGHEST_NUMBER = 65535
LIFE_BYTES = 16

# What this release understands beyond the version of the protocol. A link's ends tell each other; what needs one is sent to nobody else.
LIFE = "life"  # link state carries the life
MANAGE = "manage"  # orders of operators to the whole mesh
BLOCK = "block"  # the messages of a run under one envelope (block.py)
PACKED = "packed"  # trees as one deflated stream
BRANCH = "branch"  # of a tree only what lies beyond; origins see it in lives
RECEIPTS = "receipts"  # a receipt at once for a single message that asks for it; origins see it in lives
CAPABILITIES = frozenset((LIFE, MANAGE, BLOCK, PACKED, BRANCH, RECEIPTS))


class Identity(NamedTuple):
    """One life of one broker.

    mesh: name of the mesh. name: name of the broker, unique in its mesh. number: 0 to 65535, unique in its mesh; the
    bit that stands for the broker in an envelope. uuid: of the broker's data folder; another UUID under a known
    number is another broker. epoch: of this life, at least the clock in milliseconds at its start.
    key: its public key (keys.py), b"" without one. life: 16 random bytes of this start, b"" where it is not known (a broker of the previous
    release). capabilities: of its release, as it says over a link; empty where it is not known.
    """

    mesh: str
    name: str
    number: int
    uuid: UUID
    epoch: int
    key: bytes = b""
    life: bytes = b""
    capabilities: frozenset[str] = frozenset()

    def twin_of(self, other: Identity) -> bool:
        """Whether both are the same broker, in two lives that say so. A copy with another number is told apart by the number."""
        known = LIFE in self.capabilities and LIFE in other.capabilities
        return known and (self.number, self.uuid) == (other.number, other.uuid) and self.life != other.life

    def same_life(self, other: Identity) -> bool:
        """Whether both are one life of one broker. A life may raise its epoch; where a life is not known, its epoch stands for it."""
        if self.life and other.life:
            return (self.uuid, self.life) == (other.uuid, other.life)
        return (self.uuid, self.epoch) == (other.uuid, other.epoch)

    def __str__(self) -> str:
        return f"{self.name} (number {self.number})"
