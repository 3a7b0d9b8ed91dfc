"""Lives: which lives of a broker there are, which of them yields when two live at once, and whose an epoch is.

Each start of a broker is a *life* with a random name (`Identity.life`). Each life floods a statement (`Life`): its epochs, those of the
lives before it, and its *rivals*: the other lives of its own UUID that it has heard of.

Two lives of one UUID live at once when a data folder was copied. A statement of an earlier life stays known after its end, so that
hearing of another life proves nothing. A statement that names this life as a rival proves it: its speaker lived after this life began.

The rule. Of two lives the one with the higher claim holds; of equal claims the one that began first. The other one yields: it says so, and
says nothing more. A claim is an operator's word that a copy is to hold.

Invariants
- all brokers that know the same statements name the same holder;
- a life that knows no rival alive is never asked to yield.

It does not know links, records, messages or time.
"""

from __future__ import annotations

from typing import NamedTuple

from ..wire.control import ALL, Life
from ..wire.identity import LIFE_BYTES, Identity

LIVES_KEPT = 16  # lives remembered for one UUID
EPOCHS_SAID = 16  # epochs in a statement, the newest first
RIVALS_SAID = 16


class Former(NamedTuple):
    """The identity that a broker had before an operator gave its data folder a new one.

    common: up to which (epoch, sequence), for each epoch that both have in their past, the other one holds what is in custody.
    """

    number: int
    uuid: bytes
    common: tuple[tuple[int, int], ...]

    def others(self, epoch: int, last: int) -> bool:
        """Whether messages in custody, up to this position, are held by whoever kept the identity."""
        return any(epoch == common and last <= end for common, end in self.common) or epoch < min(self.common, default=(0, 0))[0]


class Lives:
    """All lives that a broker knows of, its own included. own: what this one says."""

    def __init__(self, identity: Identity, claim: int = 0, former: Former | None = None) -> None:
        """claim: an operator's word that this data folder holds its identity; a higher one is a later word."""
        before = None if former is None else (former.number, former.uuid)
        self.own = Life(
            identity.number,
            identity.uuid.bytes,
            identity.life or bytes(LIFE_BYTES),
            claim,
            identity.epoch,
            ((identity.epoch, ALL),),
            1,
            (),
            False,
            before,
        )
        self._known: dict[bytes, dict[bytes, Life]] = {self.own.uuid: {self.own.life: self.own}}

    # ---- what is known

    def offer(self, said: Life) -> bool:
        """Keep a statement if it is newer than what is known; whether it was."""
        if not self.newer(said):
            return False
        lives = self._known.setdefault(said.uuid, {})
        if said.life not in lives and len(lives) >= LIVES_KEPT:
            oldest = min((life for life in lives.values() if life.life != self.own.life), key=lambda life: (life.born, life.life))
            if oldest.born > said.born:
                return False
            del lives[oldest.life]
        lives[said.life] = said
        return True

    def newer(self, said: Life) -> bool:
        """Whether a statement says more than what is known."""
        known = self._known.get(said.uuid, {}).get(said.life)
        return said.life != self.own.life and (known is None or said.serial > known.serial)

    def of(self, uuid: bytes) -> list[Life]:
        """All known lives of a UUID, without the own one."""
        return [life for life in self._known.get(uuid, {}).values() if life.life != self.own.life]

    def life_at(self, uuid: bytes, epoch: int) -> Life | None:
        """The life that an epoch belongs to; None when nobody has said so."""
        for life in self._known.get(uuid, {}).values():
            if epoch >= life.born and epoch in life.past:
                return life
        return None

    def differ(self, uuid: bytes, epoch: int, other: int) -> bool:
        """Whether two epochs are known to be those of two lives."""
        if epoch == other:
            return False
        one, two = self.life_at(uuid, epoch), self.life_at(uuid, other)
        return one is not None and two is not None and one.life != two.life

    # ---- what this life says

    def restore(self, epochs: tuple[int, ...], held: dict[int, int]) -> None:
        """The epochs of the lives before this one, the newest first. held: the last sequence of each that is in custody."""
        before = tuple([(epoch, held.get(epoch, 0)) for epoch in epochs if epoch < self.own.born])
        self._say(epochs=(self.own.epochs + before)[:EPOCHS_SAID])

    def raised(self, epoch: int) -> None:
        """This life has a higher epoch now."""
        self._say(epochs=((epoch, ALL), *self.own.epochs)[:EPOCHS_SAID])

    def name(self, rival: bytes) -> bool:
        """Name a life that this one has heard of; whether that is new."""
        if rival in self.own.rivals:
            return False
        self._say(rivals=(rival, *self.own.rivals)[:RIVALS_SAID])
        return True

    def end(self) -> None:
        """This life yields."""
        self._say(yielded=True)

    def sealed(self, said: Life) -> None:
        """The own statement with its signature."""
        self.own = self._known[said.uuid][said.life] = said

    def _say(self, **changes: object) -> None:
        self.sealed(self.own._replace(serial=self.own.serial + 1, seal=None, **changes))  # type: ignore[arg-type]

    # ---- the rule

    def alive(self, said: Life) -> bool:
        """Whether a life of the own UUID proves that it lived beside this one."""
        return self.own.life in said.rivals and not said.yielded

    def yields(self, said: Life) -> bool:
        """Whether this life yields to another one of its UUID, should both live."""
        return precedence(said) < precedence(self.own)

    def common(self, said: Life) -> tuple[tuple[int, int], ...]:
        """For each epoch that this life and another one have in their past, the last sequence that the other one holds."""
        return tuple([end for end in said.epochs if end[0] in self.own.past])


def precedence(life: Life) -> tuple[bool, int, int, bytes]:
    """Of several lives that live at once, the lowest holds."""
    return life.yielded, -life.claim, life.born, life.life
