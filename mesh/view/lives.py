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

from collections.abc import Iterable
from typing import NamedTuple

from ..wire.control import ALL, GIVES_RECEIPTS, TAKES_BRANCHES, Life
from ..wire.identity import BRANCH, LIFE_BYTES, RECEIPTS, Identity

LIVES_KEPT = 16  # lives remembered for one broker, and UUIDs for one number
EPOCHS_SAID = 16  # epochs in a statement, the newest first
RIVALS_SAID = 16

Key = tuple[int, bytes]  # number, UUID: who speaks for a number, by its key, says nothing of another number's UUIDs


class Former(NamedTuple):
    """The identity that a broker had before an operator gave its data folder a new one.

    common: up to which (epoch, sequence), for each epoch that both have in their past, the other one holds, or has seen off, what was in
    custody.
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
            (TAKES_BRANCHES if BRANCH in identity.capabilities else 0) | (GIVES_RECEIPTS if RECEIPTS in identity.capabilities else 0),
        )
        self._own = self.own.number, self.own.uuid
        self._known: dict[Key, dict[bytes, Life]] = {self._own: {self.own.life: self.own}}
        self._uuids: dict[int, tuple[bytes, ...]] = {self.own.number: (self.own.uuid,)}  # of each number, those that are known

    # ---- what is known

    def offer(self, said: Life) -> bool:
        """Keep a statement if it is newer than what is known; whether it was."""
        if not self.newer(said) or not well_formed(said) or not self._room(said):
            return False
        lives = self._known.get((said.number, said.uuid))
        if lives is None:
            lives = self._known[said.number, said.uuid] = {}
            self._uuids[said.number] = (*self._uuids.get(said.number, ()), said.uuid)
        if said.life not in lives and len(lives) >= LIVES_KEPT:
            oldest = min((life for life in lives.values() if life.life != self.own.life), key=lambda life: (life.born, life.life))
            if oldest.born > said.born:
                return False
            del lives[oldest.life]
        lives[said.life] = said
        return True

    def newer(self, said: Life) -> bool:
        """Whether a statement says more than what is known."""
        known = self._known.get((said.number, said.uuid), {}).get(said.life)
        return said.life != self.own.life and (known is None or said.serial > known.serial)

    def disown(self, number: int, key: bytes) -> None:
        """Forget what other keys than this one have said of the lives of a number, which is not the own one."""
        for one in [(number, uuid) for uuid in self._uuids.get(number, ())]:
            lives = self._known[one]
            self._known[one] = {life: said for life, said in lives.items() if said.seal is not None and said.seal.key == key}
            if not self._known[one]:
                self._forget(one)

    def _forget(self, key: Key) -> None:
        del self._known[key]
        self._uuids[key[0]] = tuple([uuid for uuid in self._uuids[key[0]] if uuid != key[1]])

    def _room(self, said: Life) -> bool:
        """Make room for one more UUID under a number: the one whose lives are oldest goes, unless the new one is older still."""
        if (said.number, said.uuid) in self._known:
            return True
        uuids = self._uuids.get(said.number, ())
        if len(uuids) < LIVES_KEPT:
            return True
        born = {(said.number, uuid): max(life.born for life in self._known[said.number, uuid].values()) for uuid in uuids}
        oldest = min((key for key in born if key != self._own), key=lambda key: (born[key], key))
        if born[oldest] >= said.born:
            return False
        self._forget(oldest)
        return True

    def life_at(self, number: int, uuid: bytes, epoch: int) -> Life | None:
        """The life of a broker that an epoch belongs to; None when nobody has said so."""
        for life in self._known.get((number, uuid), {}).values():
            if epoch >= life.born and epoch in life.past:
                return life
        return None

    def differ(self, number: int, uuid: bytes, epoch: int, other: int) -> bool:
        """Whether two epochs of a broker are known to be those of two lives."""
        if epoch == other:
            return False
        one, two = self.life_at(number, uuid, epoch), self.life_at(number, uuid, other)
        return one is not None and two is not None and one.life != two.life

    def several(self, said: Life) -> bool:
        """Whether more than one life of this one's UUID is known."""
        return len(self._known.get((said.number, said.uuid), ())) > 1

    def takes_branches(self, number: int, uuid: bytes, epoch: int) -> bool:
        """Whether the life of a broker that an epoch belongs to is known to take trees as branches."""
        life = self.life_at(number, uuid, epoch)
        return life is not None and bool(life.takes & TAKES_BRANCHES)

    def gives_receipts(self, number: int, uuid: bytes, epoch: int) -> bool:
        """Whether the life of a broker that an epoch belongs to is known to give receipts of single messages at once where they ask."""
        life = self.life_at(number, uuid, epoch)
        return life is not None and bool(life.takes & GIVES_RECEIPTS)

    # ---- what this life says

    def restore(self, epochs: Iterable[tuple[int, int]]) -> None:
        """The epochs of the lives before this one, the newest first, each with the last sequence that the store is known to have had."""
        before = tuple([one for one in epochs if one[0] < self.own.born])
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
        self.own = self._known[self._own][said.life] = said

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
        """For each epoch that this life and another one have in their past, the last sequence that the other one is known to have had."""
        return tuple([end for end in said.epochs if end[0] in self.own.past])


def well_formed(said: Life) -> bool:
    """Whether a statement has as much to it as a broker says."""
    return 0 < len(said.epochs) <= EPOCHS_SAID and len(said.rivals) <= RIVALS_SAID


def precedence(life: Life) -> tuple[bool, int, int, bytes]:
    """Of several lives that live at once, the lowest holds."""
    return life.yielded, -life.claim, life.born, life.life
