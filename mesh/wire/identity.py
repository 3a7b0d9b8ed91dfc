"""Who a broker is in its mesh: what a link's handshake proves and what link state carries."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

HIGHEST_NUMBER = 65535


class Identity(NamedTuple):
    """One life of one broker.

    mesh: name of the mesh. name: name of the broker, unique in its mesh. number: 0 to 65535, unique in its mesh; the
    bit that stands for the broker in an envelope. uuid: of the broker's data folder; another UUID under a known
    number is another broker. epoch: of this life, at least the clock in milliseconds at its start.
    key: its public key (keys.py), b"" without one.
    """

    mesh: str
    name: str
    number: int
    uuid: UUID
    epoch: int
    key: bytes = b""

    def __str__(self) -> str:
        return f"{self.name} (number {self.number})"
