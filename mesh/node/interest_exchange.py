"""Interest to and from neighbours: what this broker's subscribers want, and what it knows of the others.

A site may have a million filters. To read, check and pass on so many takes half a minute of processor time, and traffic does not wait for
it: what is more than a portion is done a portion at a time (`work`), whenever the node's timer fires, which is at once.

Invariants
- what comes for one broker is taken in the order in which it came, from all neighbours together;
- over each link a broker's interest goes in the order of its versions: what changes while the whole is being encoded follows it;
- the end of what a neighbour says counts once all that it said before is taken; so does the end of what it is told.

It does not know link records or trees; `membership.py` asks it to say and gives it what it hears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING

from ...mqtt.errors import PeerError
from ..view.edges import Key
from ..view.interest import Interests, InterestSet
from ..wire.control import PORTION, InterestUpdate, encode, encode_interest, encode_raw, interest_owner
from .actions import Send
from .core import Core, LinkEnd

if TYPE_CHECKING:
    from .fence import Fence

WAITING = 2**27  # bytes of large packets that wait; beyond, the first are taken at once, so that a neighbour cannot send faster than that
Heard = InterestUpdate | bytes  # large ones as they came
Steps = Generator[None, None, None]


class Saying:
    """A broker's whole interest that is being encoded for a neighbour. version: of what. after: packets that follow it."""

    __slots__ = ("after", "steps", "version")

    def __init__(self, version: tuple[int, int], steps: Generator[None, None, bytes]) -> None:
        self.version = version
        self.steps = steps
        self.after: list[bytes] = []


class InterestExchange:
    """What is being said and taken, and the own interest, with what of it is not said yet."""

    def __init__(self, core: Core, interests: Interests, fence: Fence, take: Callable[[LinkEnd, Heard], Steps]) -> None:
        """take: an update that a neighbour has said; a portion at a time."""
        self._core = core
        self._interests = interests
        self._fence = fence
        self._take = take
        self.own = InterestSet(core.identity.epoch)
        self._pending: dict[tuple[str, str | None], int | None] = {}  # own interest not yet said
        self._heard: dict[Key, deque[tuple[LinkEnd, Heard]]] = {}  # by broker; the first one is being taken
        self._steps: dict[Key, Steps] = {}  # of these first ones
        self._saying: dict[tuple[int, Key], Saying] = {}  # by link and broker
        self._after_heard: dict[int, Callable[[], None]] = {}  # by link: what waits until all that came over it is taken
        self._after_said: dict[int, Callable[[], None]] = {}  # by link: what waits until all is said
        self.waiting = 0  # bytes of large packets in `_heard`
        self._heard_at = 0.0  # when a neighbour said something last
        self._entries = 0  # what was said at this time
        self.on_caught_up: Callable[[], None] = lambda: None  # routes fit all that is known
        self.seal()

    # ---- the own interest

    def wants(self, filter_: str, group: str | None, weight: int | None) -> None:
        """Local subscribers of a filter come (weight) or go (None); said with the next `flush`."""
        self._pending[filter_, group] = weight

    def flush(self) -> None:
        """Say what has changed since the last time, in one delta, or a portion of it."""
        if not self._pending:
            return
        own, part = self.own, list(islice(self._pending.items(), PORTION))
        changed = {entry: weight for entry, weight in part if own.entries.get(entry) != weight}
        for entry, _ in part:
            del self._pending[entry]
        if not changed:
            return
        for entry, weight in changed.items():
            own.put(entry, weight)
        own.version += 1
        self.seal()
        adds = tuple((f, g, w) for (f, g), w in changed.items() if w is not None)
        removes = tuple(entry for entry, w in changed.items() if w is None)
        core = self._core
        self.flood(InterestUpdate(core.number, core.uuid, own.epoch, own.version - 1, own.version, own.digest, adds, removes, own.seal))

    def raise_epoch(self, epoch: int) -> None:
        """The own interest is that of another epoch from now on: say it."""
        core = self._core
        self.own.epoch = epoch
        self.seal()
        for end in list(core.links.values()):
            if not end.twin:
                self.say(end, (core.number, core.uuid), self.own)

    def seal(self) -> None:
        """The own interest is at another version."""
        core = self._core
        if core.keys is not None:
            self.own.seal = core.keys.seal("interest", *self.own.said((core.number, core.uuid)))

    def version_of(self, number: int) -> tuple[int, int]:
        """(epoch, version) of the interest of a broker by which messages are routed; (0, 0) of one that has said nothing."""
        if number != self._core.number:
            return self._interests.version_of(number)
        while self._pending:
            self.flush()
        return self.own.epoch, self.own.version

    # ---- to neighbours

    def say(self, end: LinkEnd, key: Key, known: InterestSet) -> None:
        """Say a broker's interest as a whole."""
        self._fence.tell(end, [known.head(key)])
        version, pending = (known.epoch, known.version), self._saying.get((end.id, key))
        if pending is not None and pending.version == version:
            return
        if len(known.entries) <= PORTION:
            self._saying.pop((end.id, key), None)
            self._core.control(end.id, "interest", known.whole(key))
        else:
            self._core.stirred = True
            self._saying[end.id, key] = Saying(version, encode_interest(known.head(key), known.entries.copy()))

    def once_said(self, end: LinkEnd, then: Callable[[], None]) -> None:
        """Call it when all that was to be said over a link is said."""
        if any(link == end.id for link, _ in self._saying):
            self._after_said[end.id] = then
        else:
            then()

    def flood(self, update: InterestUpdate, but: int | None = None, payload: bytes | None = None) -> None:
        """Pass an update on over all links but one. payload: its body, as it came."""
        core, key = self._core, (update.number, update.uuid)
        data = None
        for link, end in core.links.items():
            if link == but or end.twin:
                continue
            data = data or (encode("interest", update) if payload is None else encode_raw("interest", payload))
            saying = self._saying.get((link, key))
            if saying is not None:
                saying.after.append(data)
            else:
                self._send(link, data)

    def _send(self, link: int, data: bytes) -> None:
        self._core.counters.control_sent += 1
        self._core.actions.append(Send(link, data, True))

    # ---- from neighbours

    def hear(self, end: LinkEnd, said: Heard) -> None:
        """A neighbour has said something. Raises `PeerError` for what is wrong, if it is small; else its link is closed later."""
        core = self._core
        key = interest_owner(said) if isinstance(said, bytes) else (said.number, said.uuid)
        if self._heard_at != core.now:
            self._heard_at, self._entries = core.now, 0
        self._entries += PORTION if isinstance(said, bytes) else len(said.adds) + len(said.removes)
        if key not in self._heard:
            steps = self._take(end, said)
            if self._entries <= PORTION and _ended(steps):
                return
            core.stirred = True
            self._heard[key], self._steps[key] = deque(), steps
        self._heard[key].append((end, said))
        end.unheard += 1
        self.waiting += _bytes_of(said)
        while self.waiting > WAITING:
            self._hear_more()

    def once_heard(self, end: LinkEnd, then: Callable[[], None]) -> None:
        """Call it when all that has come over a link is taken."""
        if end.unheard:
            self._after_heard[end.id] = then
        else:
            then()

    # ---- portions

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._steps or self._saying or self._pending or self._interests.late)

    def work(self) -> None:
        """A portion of each kind of work."""
        if self._saying:
            self._say_more()
        if self._interests.late:
            self._interests.catch_up()
            if not self._interests.late:
                self.on_caught_up()
        elif self._steps:
            self._hear_more()

    def _say_more(self) -> None:
        (link, key), saying = next(iter(self._saying.items()))
        end = self._core.links.get(link)
        if end is not None:
            try:
                next(saying.steps)
                return
            except StopIteration as made:
                for data in (made.value, *saying.after):
                    self._send(link, data)
        del self._saying[link, key]
        if (
            not any(other == link for other, _ in self._saying)
            and (then := self._after_said.pop(link, None)) is not None
            and end is not None
        ):
            then()

    def _hear_more(self) -> None:
        key, steps = next(iter(self._steps.items()))
        end, _ = self._heard[key][0]
        try:
            if not _ended(steps):
                return
        except PeerError as error:
            if self._core.links.get(end.id) is end:
                self._core.close(end.id, error.reason, error.text)
        waiting = self._heard[key]
        self.waiting -= _bytes_of(waiting.popleft()[1])
        del self._steps[key]
        if waiting:
            self._steps[key] = self._take(*waiting[0])
        else:
            del self._heard[key]
        end.unheard -= 1
        if not end.unheard and (then := self._after_heard.pop(end.id, None)) is not None and self._core.links.get(end.id) is end:
            then()


def _bytes_of(said: Heard) -> int:
    return len(said) if isinstance(said, bytes) else 0


def _ended(steps: Steps) -> bool:
    """Do a portion: whether it was the last one."""
    try:
        next(steps)
    except StopIteration:
        return True
    return False
