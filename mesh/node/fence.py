"""Says which life of its broker this node is, hears which others there are, and stops the node when another one holds its identity.

The rule is in `view/lives.py`, and why it is so in docs/copies.md. A node that yields says so as its last word and ends its links.
From then on it has no link any more (`Core.fenced`); what it has in custody stays in its store.

It does not know link state or custody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...mqtt.reasons import Reason
from ..view.lives import well_formed
from ..wire.control import InterestUpdate, Life, LinkRecord
from ..wire.identity import LIFE
from .core import Core, LinkEnd

if TYPE_CHECKING:
    from .membership import Membership


class Fence:
    """The lives of this node's broker and of the others."""

    def __init__(self, core: Core, members: Membership) -> None:
        self._core = core
        self._members = members
        self._lives = core.lives
        self._met: set[bytes] = set()  # rivals that an event has named
        self.rise: Callable[[int], None] = lambda above: None  # go above an epoch
        self.seal()

    # ---- what is said

    def seal(self) -> None:
        """The own statement has changed."""
        core, own = self._core, self._lives.own
        if core.keys is not None and own.seal is None:
            self._lives.sealed(own._replace(seal=core.keys.seal("life", *own.said())))

    def say(self) -> None:
        """The own statement to all neighbours, before anything that rests on it. A new link record must follow: who misses the statement
        lacks the record too, and gets both when a link comes up."""
        self.seal()
        self._flood([self._lives.own])

    def introduce(self, end: LinkEnd) -> None:
        """A link comes up: its peer learns which life this is."""
        self._send(end, [self._lives.own])

    def tell(self, end: LinkEnd, records: Iterable[LinkRecord | InterestUpdate]) -> None:
        """Say the lives that link records or interest belong to, before they go to a peer."""
        self._send(end, self._lives_of(records))

    def tell_all(self, records: Iterable[LinkRecord | InterestUpdate], but: int) -> None:
        """The same, to all neighbours but one."""
        lives = self._lives_of(records)
        for end in self._core.links.values():
            if end.id != but and not end.twin:
                self._send(end, lives)

    def _lives_of(self, records: Iterable[LinkRecord | InterestUpdate]) -> list[Life]:
        found = [self._lives.life_at(record.number, record.uuid, record.epoch) for record in records]
        return [life for life in dict.fromkeys(found) if life is not None]

    def _flood(self, lives: list[Life], but: int | None = None) -> None:
        for end in self._core.links.values():
            if end.id != but:
                self._send(end, lives)

    def _send(self, end: LinkEnd, lives: list[Life]) -> None:
        """What the peer has not heard over this link, and may believe."""
        if LIFE not in end.peer.capabilities:
            return
        signed, heard = self._core.keys is not None, end.lives
        new = [one for one in lives if heard.get(one.life, 0) < one.serial and not (signed and one.seal is None)]
        if end.twin:
            new = [one for one in new if self._of_own(one)]
        if new:
            heard.update((one.life, one.serial) for one in new)
            self._core.control(end.id, "life", new)

    # ---- what is heard

    def heard(self, end: LinkEnd, lives: tuple[Life, ...]) -> None:
        """Keep and pass on what is new."""
        members = self._members
        new: list[Life] = []
        try:
            for said in lives:
                if not well_formed(said) or (self._lives.newer(said) and self._of_lost_key(said)):
                    continue
                if not self._lives.newer(said) or not members.believes(end, "life", said.number, None, said.seal, said.said()):
                    continue
                if self._lives.offer(said):
                    new.append(said)
                    end.lives[said.life] = said.serial
        finally:  # what is kept counts and is passed on, whatever the peer has said behind it: nobody sends it here again
            if new:
                self._tell_new(new, end)

    def _tell_new(self, new: list[Life], source: LinkEnd) -> None:
        if self._members.states.twins or any(self._lives.several(said) for said in new):  # a lone life of its UUID changes nothing
            self._members.states.judge_anew()
        self._flood(new, but=source.id)
        for said in new:
            if self._of_own(said) and not self._core.fenced:
                self._meet(said)

    def _of_own(self, said: Life) -> bool:
        """Whether it is said of this very broker."""
        return (said.number, said.uuid) == (self._core.number, self._core.uuid)

    def _of_lost_key(self, said: Life) -> bool:
        """Whether an earlier life of this broker said it, which had no data folder and so a key of its own."""
        keys = self._core.keys
        return self._of_own(said) and keys is not None and said.seal is not None and said.seal.key != keys.signer.public

    def _meet(self, said: Life) -> None:
        """Another life of this very broker has said something."""
        core, lives = self._core, self._lives
        yields = lives.yields(said)
        if not yields and said.past[0] >= core.identity.epoch:
            self.rise(said.past[0])  # what others know of that life, be it gone or not, must not hide what this one says
        if said.yielded:
            return
        if lives.name(said.life):
            self.say()
            self._members.say_links()
        if not lives.alive(said):
            return
        if yields:
            self._end(said)
        elif said.life not in self._met:
            self._met.add(said.life)
            text = "a copy of this broker's data folder runs too; it has been told to stop. See docs/copies.md"
            core.event("twin_met", life=core.identity.life.hex(), twin=said.life.hex(), number=said.number, text=text)

    def _end(self, said: Life) -> None:
        core = self._core
        core.fenced = True
        self._lives.end()
        self.say()
        self._members.say_links()
        text = "a broker with this identity and another life is alive, and began first or is claimed: this one stops. See docs/copies.md"
        fields = {"life": core.identity.life.hex(), "twin": said.life.hex(), "number": said.number}
        core.event("fenced", **fields, common=self._lives.common(said), text=text)
        while core.links:
            end = next(iter(core.links.values()))
            core.drop(end)
            core.close(end.id, Reason.USE_ANOTHER_SERVER, f"{core.identity} has yielded to another life of its identity")
        self._members.say_links()
