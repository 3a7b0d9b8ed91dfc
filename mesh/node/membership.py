"""Membership: what this broker knows of the others, how that spreads, and what follows when it changes.

Link records and interest are flooded over all links. When a link comes up, each end says in a summary what it knows; the
other answers with what is newer and ends with `synced`. Only then does the link stand in the own record: a link used at
once would join the peer's present with a past of this broker's own, such as a number's earlier holder.

Invariants
- what is not new is not passed on, so that flooding ends;
- after `refresh` all that rests on link state (holders, active interest, absent members, the epoch, the tree) fits it.

It does not know frames or custody; it tells `own_tree.py` and `dispatch.py` what they must know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Any
from uuid import UUID

from ...mqtt.errors import PeerError
from ...mqtt.reasons import Reason
from ..view.edges import Key
from ..view.interest import Interests, InterestSet
from ..view.linkstate import LinkStates
from ..view.remembered import Known
from ..view.zones import Zones
from ..wire.control import EPOCH_BITS, InterestUpdate, Life, LinkEntry, LinkRecord, SummaryEntry, decode_interest
from ..wire.envelope import Share
from ..wire.identity import LIFE, Identity
from ..wire.keys import Pin, Seal
from ..wire.visited import numbers
from .actions import Member
from .core import Core, LinkEnd
from .dispatch import Dispatch
from .fence import Fence
from .interest_exchange import Heard, InterestExchange, Steps
from .own_tree import OwnTree

NAMED = 1000  # refused keys that are remembered, so that each is said once
LINKS_PAUSE = 0.01  # seconds between two records of links that have come
_NO_VERSION = 2**64 - 1  # in a summary: nothing is known of this broker's interest


class Membership:
    """This broker's view of the mesh."""

    def __init__(
        self, core: Core, states: LinkStates, interests: Interests, zones: Zones, tree: OwnTree, dispatch: Dispatch, own_groups: set[Share]
    ) -> None:
        """own_groups: kept up to date here, read by whoever picks for shared subscriptions."""
        self._core = core
        self.states = states
        self.interests = interests
        self._zones = zones
        self._tree = tree
        self._dispatch = dispatch
        self._own_groups = own_groups
        self.fence = Fence(core, self)
        self.fence.rise = self._raise_epoch
        self.exchange = InterestExchange(core, interests, self.fence, self._taking_interest)
        self.exchange.on_caught_up = self._look_informed
        self._sequence = 0  # of the own link record
        self._said = float("-inf")  # when it was said last because a link had come
        self._unsaid = False  # links have come since
        self._live = states.live
        self._names: dict[int, str] = {}  # of the live ones, to name one that is lost
        self.holders: dict[int, Identity] = {}
        self._intruders: set[tuple[bytes, bytes]] = set()  # pairs that an event has named
        self._absent: dict[int, float] = {}  # since when a known broker is out of reach
        self.changed: dict[int, float] = {}  # when a broker came into reach or went out of it last, in this life
        self._forgotten: set[Key] = set()
        self._named: set[tuple[int, bytes]] = set()  # (number, key) that an event has named
        self._told_known = False
        # who is known now, reachable or not, beside those that were named before, and all that a policy leads to
        self.on_known: Callable[[Iterable[int], Iterable[int]], None] = lambda numbers, behind: None
        self.on_forgotten: Callable[[int], None] = lambda number: None
        self.on_went: Callable[[int], None] = lambda went: None  # a set of brokers is out of reach
        self.buried: Callable[[int, bytes, int], bool] = lambda number, uuid, epoch: False  # nothing of this life is believed
        self.informed = False  # of what others want: a link is used, whose other end has said all that it knew, or an earlier life knew
        self.say_links()

    # ---- an earlier life

    def restore(self, members: dict[int, Known], known_all: bool) -> None:
        """These held their numbers, and are out of reach until link state shows them. known_all: what each of them wants is known."""
        core = self._core
        for number, known in members.items():
            if number != core.number:
                self.states.offer(LinkRecord(number, known.uuid, known.name, known.epoch, 0, ()))
                self._absent[number] = core.now
                self.informed = known_all

    # ---- the own record

    def say_links(self) -> None:
        """A new record of the own links, to all neighbours."""
        core = self._core
        self._unsaid = False
        self._sequence += 1
        entries = tuple(_entry(end) for end in core.links.values() if end.synced and not end.twin and not end.second)
        me = core.identity
        record = LinkRecord(me.number, core.uuid, me.name, me.epoch, self._sequence, entries)
        if core.keys is not None:
            record = record._replace(seal=core.keys.seal("linkstate", *record.said()))
        self.states.offer(record)
        core.flood("linkstate", [record])

    def _gained(self) -> None:
        """A link may be used. Of links that come up in one moment only the first is said at once, the others together: each record goes
        to all brokers. A link that is lost is said at once; so is one where two claim a number or an identity, which others must not
        hear of long before they can reach both."""
        if self._core.now >= self._said + LINKS_PAUSE or self.states.crowded or self.states.twins:
            self._said = self._core.now
            self.say_links()
        else:
            self._unsaid = True

    def flush_links(self) -> None:
        """Say the links that have waited long enough."""
        if self._unsaid:
            self._gained()

    def _raise_epoch(self, above: int) -> None:
        """An earlier life of this number is ahead: go above it before anything else is published."""
        core = self._core
        epoch = above + 1 + int.from_bytes(core.identity.life[:2])  # two lives that rise above the same one do not meet
        if epoch >> EPOCH_BITS:
            core.event("epoch_exhausted", epoch=above)
            return
        core.identity = core.identity._replace(epoch=epoch)
        core.event("epoch_raised", epoch=epoch)
        core.lives.raised(epoch)
        if core.journal is not None:
            core.journal.node(core.uuid, epoch, core.born, core.lives.own.epochs)
        self.fence.say()
        self._tree.epoch_raised()
        self.exchange.raise_epoch(epoch)
        self.say_links()

    # ---- the own interest

    def wants(self, filter_: str, group: str | None, weight: int | None) -> None:
        """Local subscribers of a filter come (weight) or go (None)."""
        if filter_.startswith("$"):
            return  # such topics never leave a broker
        self.exchange.wants(filter_, group, weight)
        if group is None:
            return
        if weight is None:
            self._own_groups.discard((group, filter_))
        else:
            self._own_groups.add((group, filter_))

    def listed(self) -> list[Member]:
        """All brokers that this one knows, itself included, by number."""
        self.refresh()
        states, core = self.states, self._core
        own = len(self.exchange.own.entries)
        found = [Member(core.number, core.identity.name, core.uuid, core.identity.epoch, True, 0, 0, own, 0)]
        first: dict[int, int] = {}  # the neighbour that the path to a broker begins with; parents stand before their children
        for number, path in states.paths.items():
            first[number] = number if path.parent == core.number else first[path.parent]
        for number, uuid in self.interests.active.items():
            record = states.records.get((number, uuid))
            if record is None:
                continue
            way = states.paths.get(number)
            changed = self.changed.get(number)
            interest = self.interests.sets.get((number, uuid))
            d = self._dispatch.custody.destinations.get(number)
            found.append(
                Member(
                    *(number, record.name, uuid, record.epoch, way is not None),
                    *((way.hops, way.cost) if way else (0, 0)),
                    len(interest.entries) if interest else 0,
                    d.held_messages if d else 0,
                    first.get(number),
                    None if changed is None else round(changed + core.wall_offset, 1),
                    *((d.held_bytes, d.waits) if d else (0, "")),
                )
            )
        return sorted(found)

    # ---- a link comes up

    def summary(self) -> list[SummaryEntry]:
        """What this broker knows, for a peer to send what is newer."""
        self.refresh()
        known = dict(self.known_interest())
        entries = []
        for (number, uuid), record in self.states.records.items():
            interest = known.get((number, uuid))
            what = (interest.epoch, interest.version, interest.digest) if interest else (0, _NO_VERSION, 0)
            entries.append(SummaryEntry(number, uuid, record.epoch, record.sequence, *what))
        return entries

    def known_interest(self) -> list[tuple[Key, InterestSet]]:
        """The own interest and all that is known of others, reachable or not."""
        return [((self._core.number, self._core.uuid), self.exchange.own), *self.interests.sets.items()]

    def on_summary(self, end: LinkEnd, entries: tuple[SummaryEntry, ...]) -> None:
        """Send what the peer lacks."""
        core = self._core
        theirs = {(e.number, e.uuid): e for e in entries}
        mine = theirs.get((core.number, core.uuid))
        if core.keys is None and mine is not None and not self._of_twin(mine.epoch) and mine[2:4] > (core.identity.epoch, self._sequence):
            self._raise_epoch(mine.epoch)  # where brokers sign, the record itself follows, and says whether that is true
        newer = [
            record
            for key, record in self.states.records.items()
            if (
                (e := theirs.get(key)) is None
                or (record.epoch, record.sequence) > (e.epoch, e.sequence)
                or core.lives.differ(*key, record.epoch, e.epoch)
            )
            and self._sealed(record.seal)
        ]
        self.refresh()
        newer += [record for record in self.states.contested if self._sealed(record.seal) and LIFE in end.peer.capabilities]
        self.fence.tell(end, newer)
        if newer:
            core.control(end.id, "linkstate", newer)
        self.exchange.flush()
        for key, known in self.known_interest():
            if not self._sealed(known.seal):
                continue
            e = theirs.get(key)
            if e is None or e.version == _NO_VERSION or (known.epoch, known.version) > (e.interest_epoch, e.version):
                self.exchange.say(end, key, known)
            elif known.epoch and (known.epoch, known.version) == (e.interest_epoch, e.version) and known.digest != e.digest:
                core.event("interest_mismatch", broker=key[0], peer=str(end.peer))
        self.exchange.once_said(end, lambda: core.control(end.id, "synced", None))

    def on_synced(self, end: LinkEnd, _: int) -> None:
        """The peer has said all: the link may be used."""
        if not end.synced:
            end.synced = True
            self._gained()

    # ---- flooding

    def on_linkstate(self, end: LinkEnd, records: tuple[LinkRecord, ...]) -> bool:
        """Keep and pass on what is new; whether something was."""
        core = self._core
        new = []
        try:
            for record in records:
                back = self._taken_back(record)
                if not (back or self.states.newer(record)) or self.buried(record.number, record.uuid, record.epoch):
                    continue
                if not self.believes(end, "linkstate", record.number, record.name, record.seal, record.said()):
                    continue
                if back and record.seal is not None:
                    self._disown(record.number, record.seal.key)
                    self._ask_anew((record.number, record.uuid))
                if (record.number, record.uuid) == (core.number, core.uuid) and not self._of_twin(record.epoch):
                    self._raise_epoch(record.epoch)
                elif self.states.offer(record):
                    new.append(record)
        finally:  # what is kept is passed on, whatever the peer has said behind it: nobody sends it here again
            if new:
                self.fence.tell_all(new, but=end.id)
                core.flood("linkstate", new, but=end.id)
        return bool(new)

    def on_life(self, end: LinkEnd, lives: tuple[Life, ...]) -> None:
        """Which lives of brokers there are."""
        self.fence.heard(end, lives)

    def _of_twin(self, epoch: int) -> bool:
        """Whether an epoch of the own identity is known to be that of another life."""
        return self._core.lives.differ(self._core.number, self._core.uuid, epoch, self._core.identity.epoch)

    def _taking_interest(self, end: LinkEnd, said: Heard) -> Steps:
        """Apply and pass on what is new, a portion at a time; ask for the whole where a delta does not fit. Raises `PeerError`."""
        core = self._core
        update = (yield from decode_interest(said)) if isinstance(said, bytes) else said
        key = (update.number, update.uuid)
        if key == (core.number, core.uuid):
            yield from self._taking_own_interest(end, update)
            return
        self.refresh()
        if self.states.foreign(*key, update.epoch) and not self.buried(*key, update.epoch):
            self.fence.tell(end, [update])  # the life that holds its place says its own; the peer learns whose this is
        if not self._counts(update) or (update.seal is not None and not self._admits(end, update.number, None, update.seal)):
            return
        genuine = None if core.keys is None else lambda found: self._signed(update, found)
        verdict = yield from self.interests.applying(update, genuine, lambda: self._counts(update))
        if verdict == "new":
            self._learn(update.number, update.seal)
            self._forgotten.discard(key)
            self.fence.tell_all([update], but=end.id)
            self.exchange.flood(update, but=end.id, payload=said if isinstance(said, bytes) else None)
        elif verdict == "gap" and core.links.get(end.id) is end:
            core.control(end.id, "want", [key])

    def _counts(self, update: InterestUpdate) -> bool:
        """Whether what is said of a broker's interest is that of a life that may hold its number."""
        if self.buried(update.number, update.uuid, update.epoch) or self.states.foreign(update.number, update.uuid, update.epoch):
            return False
        active = self.interests.active.get(update.number)
        return active is None or active == update.uuid or not self.states.live >> update.number & 1

    def _taking_own_interest(self, end: LinkEnd, update: InterestUpdate) -> Steps:
        """A peer says what this broker wants. If that is of a later epoch, it hides what this life says, and this life goes above it.

        It is that of a life which nobody here has heard of: a copy, or one whose data folder was restored from a backup since.
        """
        core = self._core
        if update.epoch <= core.identity.epoch or self._of_twin(update.epoch):
            return
        if core.keys is not None:
            if update.seal is None or update.seal.key != core.keys.signer.public:
                return
            if update.base is not None:  # what is signed is the whole
                core.control(end.id, "want", [(core.number, core.uuid)])
                return
            found = yield from InterestSet.of(update)
            if not self._signed(update, found):
                return
        self._raise_epoch(update.epoch)

    def on_want(self, end: LinkEnd, keys: tuple[Key, ...]) -> None:
        """Send interest as a whole."""
        known = dict(self.known_interest())
        for key in keys:
            if key in known and self._sealed(known[key].seal):
                self.exchange.say(end, key, known[key])

    # ---- who may say it

    def _sealed(self, seal: Seal | None) -> bool:
        """Whether something can be passed on: others believe only what its owner has signed."""
        return self._core.keys is None or seal is not None

    def _signed(self, update: InterestUpdate, found: InterestSet) -> bool:
        keys = self._core.keys
        assert keys is not None
        if keys.genuine("interest", update.seal, *found.said((update.number, update.uuid))):
            return True
        self._core.counters.forged += 1
        return False

    def believes(self, end: LinkEnd, kind: str, number: int, name: str | None, seal: Seal | None, said: tuple[Any, ...]) -> bool:
        """Whether a statement for a number counts. Raises `PeerError` when it is not signed by the key that it shows: whoever passes
        statements on has checked them, so that the peer itself lies."""
        core = self._core
        if core.keys is None:
            return True
        if not core.keys.genuine(kind, seal, *said):
            core.counters.forged += 1
            raise PeerError(Reason.NOT_AUTHORIZED, f"$mesh/{kind}: it speaks for broker {number}, which has not signed it")
        assert seal is not None
        if not self._admits(end, number, name, seal, silent=kind == "life"):  # the link state that follows says the broker's name
            return False
        self._learn(number, seal)
        return True

    def shown(self, peer: Identity) -> None:
        """A peer has proved its key: if the configuration says that its number belongs to it, whatever was learned before is wrong."""
        keys = self._core.keys
        pin = None if keys is None else keys.pins.get(peer.number)
        if keys is not None and pin is not None and pin.key != peer.key and keys.belongs(peer.number, peer.name, peer.key):
            self.pin(peer.number, Pin(peer.key, lasting=True))
            self._disown(peer.number, peer.key)

    def _taken_back(self, record: LinkRecord) -> bool:
        """Whether a record comes from the key that the configuration or an operator has given its number, and another key has spoken under
        that number before. How new those statements say they are does not count then: they must not hide the owner's."""
        keys, seal = self._core.keys, record.seal
        pin = None if keys is None else keys.pins.get(record.number)
        if keys is None or pin is None or seal is None:
            return False
        if pin.key != seal.key:
            return keys.belongs(record.number, record.name, seal.key)
        key = record.number, record.uuid
        said = (self.states.records.get(key), self.interests.sets.get(key))
        return pin.lasting and any(one is not None and one.seal is not None and one.seal.key != seal.key for one in said)

    def _disown(self, number: int, key: bytes) -> None:
        """A number belongs to this key: what others said under it does not count."""
        self.states.disown(number, key)
        self.interests.disown(number, key)
        self._core.lives.disown(number, key)

    def _ask_anew(self, key: Key) -> None:
        """What a broker wants is not known from itself: ask for it once it can be reached."""
        known = self.interests.sets.get(key)
        if known is None or known.seal is None:
            self._forgotten.add(key)

    def _admits(self, end: LinkEnd, number: int, name: str | None, seal: Seal, silent: bool = False) -> bool:
        """Whether a key may speak for a number. silent: a refusal is counted only."""
        core = self._core
        if core.keys is None:
            return True
        why = core.keys.why_not(number, name, seal.key, bool(self.states.live >> number & 1))
        if why is None:
            return True
        core.counters.refused_keys += 1
        if not silent and (number, seal.key) not in self._named:
            if len(self._named) >= NAMED:
                self._named.clear()
            self._named.add((number, seal.key))
            core.event("key_refused", number=number, broker=name or "?", peer=str(end.peer), text=why)
        return False

    def _learn(self, number: int, seal: Seal | None) -> None:
        """A broker has said something under a number: that number is known under its key."""
        core = self._core
        if core.keys is None or seal is None:
            return
        pin = core.keys.learn(number, seal)
        if pin is not None and core.journal is not None:
            core.journal.others.pin(number, pin)

    def _release_keys(self) -> None:
        """Numbers of brokers that have been away for long may be had by others."""
        held, keys = self._core.config.keys_held, self._core.keys
        if held is None or keys is None:
            return
        for number, since in self._absent.items():
            if since + held <= self._core.now and keys.forget(number):
                self._drop_pin(number)

    def _drop_pin(self, number: int) -> None:
        self._named = {named for named in self._named if named[0] != number}
        self._core.event("key_released", number=number)
        if self._core.journal is not None:
            self._core.journal.others.pin(number, None)

    # ---- what follows from link state

    def refresh(self) -> None:
        """Bring all that follows from link state up to date."""
        states, core = self.states, self._core
        news = states.changes()
        if news is None:
            return
        core.stirred = True
        self._conflicts()
        for number in news:
            record = states.holders[number]
            self.holders[number] = Identity(core.identity.mesh, record.name, number, UUID(bytes=record.uuid), record.epoch)
        if len(self.holders) > len(states.holders):
            for number in self.holders.keys() - states.holders.keys():
                del self.holders[number]
        self._activate(news)
        moved = bool(states.policies or self._zones.of) and self._zones.refresh(states.paths, states.policies)
        if moved:
            self.interests.all_stale()
        if core.journal is not None:
            for number in states.holders if moved else news:
                record = states.holders[number]
                if number != core.number:
                    core.journal.others.member(number, Known(record.uuid, record.name, record.epoch, number in self._zones.of))
        self._come_and_go()
        self._stay_ahead()
        self._tree.shape_changed()
        if news or moved:
            whole = moved or not self._told_known
            self._told_known = True
            self.on_known(self.interests.active if whole else news, self._zones.of)

    def _conflicts(self) -> None:
        """Name each pair of reachable brokers with one number once; close links to those that came later."""
        core = self._core
        pairs = set()
        for holder, intruder in self.states.intruders:
            pairs.add((holder.uuid, intruder.uuid))
            text = f"{intruder.name!r} has number {intruder.number}, which {holder.name!r} holds; give one of them another number"
            if (holder.uuid, intruder.uuid) not in self._intruders:
                core.event("number_conflict", number=holder.number, holder=holder.name, intruder=intruder.name, text=text)
            end = core.by_number.get(intruder.number)
            if end is not None and end.peer.uuid.bytes == intruder.uuid:
                core.drop(end)
                core.close(end.id, Reason.CLIENT_IDENTIFIER_NOT_VALID, text)
                self.say_links()
        self._intruders = pairs

    def _activate(self, news: Collection[int]) -> None:
        """The interest of those who hold a number counts; what is open for an earlier broker of a number is returned."""
        core, interests = self._core, self.interests
        for number in news:
            record = self.states.holders[number]
            if number == core.number:
                continue
            if interests.active.get(number) != record.uuid:
                interests.activate(number, record.uuid)
                self._dispatch.replaced(number, record.uuid)
                interests.all_stale()
            key = (number, record.uuid)
            known = interests.sets.get(key)
            foreign = known is not None and self.states.foreign(*key, known.epoch)
            if foreign:
                interests.outdate(key)
            if foreign or key in self._forgotten or key in self.states.taken_over:
                core.flood("want", [key])
        self._say_taken_over()
        for number in {*news, core.number} if news else ():
            if (holder := self.states.holders.get(number)) is not None:
                interests.keep_only(number, holder.uuid)

    def _say_taken_over(self) -> None:
        """Pass on the records of lives that hold their UUIDs only now: who came while they could not be reached has not heard of them."""
        keys, self.states.taken_over = self.states.taken_over, []
        records = [record for key in keys if (record := self.states.records.get(key)) is not None and self._sealed(record.seal)]
        if records:
            self.fence.tell_all(records, but=-1)
            self._core.flood("linkstate", records)

    def _come_and_go(self) -> None:
        states, core = self.states, self._core
        came, went = states.live & ~self._live, self._live & ~states.live
        self._live = states.live
        for number in numbers(came):
            self._absent.pop(number, None)
            self.changed[number] = core.now
            self._names[number] = states.holders[number].name
            core.event("member_up", number=number, broker=self._names[number])
        for number in numbers(went):
            self._absent[number] = self.changed[number] = core.now
            core.event("member_down", number=number, broker=self._names.pop(number, "?"))
            self._dispatch.out_of_reach(number)
        if went:
            self.on_went(went)
        if came:
            self._dispatch.in_reach()
            self._look_informed()  # only now does what was said count: interest belongs to who is reachable

    def _look_informed(self) -> None:
        live = self._live & ~(1 << self._core.number)
        if not self.informed and live and not self.interests.late:
            self.informed = True
            self._core.event("informed", brokers=live.bit_count())

    def _stay_ahead(self) -> None:
        """Raise the epoch above that of an earlier broker of this number, unless that one lives."""
        states, core = self.states, self._core
        if not states.crowded:
            return
        ahead = [
            record.epoch
            for record in (*states.records.values(), *states.twins.values())
            if record.number == core.number and record.uuid != core.uuid and record.epoch >= core.identity.epoch
        ]
        if ahead and not any(intruder.number == core.number for _, intruder in states.intruders):
            self._raise_epoch(max(ahead))
            states.refresh()

    # ---- absence

    def next_deadline(self) -> float | None:
        """When there is more of interest to say or to take (at once), links are said, or the next absent broker is forgotten."""
        if self.exchange.busy:
            return self._core.now
        if self._unsaid:
            return self._said + LINKS_PAUSE
        if not self._absent:
            return None
        core = self._core
        limit, held, keys = core.config.forget_after, core.config.keys_held, core.keys
        pinned = [since for number, since in self._absent.items() if number in keys.pins] if keys is not None and held is not None else []
        due = [min(self._absent.values()) + limit] if limit is not None else []
        if held is not None and pinned:
            due.append(min(pinned) + held)
        return min(due, default=None)

    def expire(self) -> None:
        """Go on with interest; forget those that have been away for too long, and release their keys."""
        self.exchange.work()
        self._release_keys()
        limit = self._core.config.forget_after
        if limit is None:
            return
        for number in [n for n, since in self._absent.items() if since + limit <= self._core.now]:
            del self._absent[number]
            self.forget(number)

    def forget(self, number: int) -> None:
        """See `Node.forget`."""
        self.refresh()
        uuid = self.interests.active.get(number)
        if uuid is None or self.states.live >> number & 1:
            return
        self._forgotten.add((number, uuid))
        self.changed.pop(number, None)
        self.interests.activate(number, None)
        if self._core.journal is not None:
            self._core.journal.others.member(number, None)
        if self._core.keys is not None and self._core.keys.forget(number):
            self._drop_pin(number)
        self._zones.forget(number)
        self._dispatch.absent(number)
        self.on_forgotten(number)
        self.interests.all_stale()
        self._core.event("member_forgotten", number=number)

    def forget_life(self, number: int, uuid: bytes, epoch: int) -> None:
        """A broker is gone for good, up to an epoch, whatever was known of it; `forget` and its link records, too."""
        active = self.interests.active.get(number)
        if active == uuid:
            self.forget(number)
        elif active is None and self._core.keys is not None and self._core.keys.forget(number):
            self._drop_pin(number)
        self._absent.pop(number, None)
        self.states.drop((number, uuid), epoch)

    def pin(self, number: int, pin: Pin) -> None:
        """The number belongs to this key from now on."""
        keys = self._core.keys
        assert keys is not None
        keys.pins[number] = pin
        self._named = {named for named in self._named if named[0] != number}
        if self._core.journal is not None:
            self._core.journal.others.pin(number, pin)

    def held_for(self, number: int) -> int:
        """Messages in custody here that a broker has not confirmed."""
        destination = self._dispatch.custody.destinations.get(number)
        return destination.held_messages if destination is not None else 0

    def go_above(self, epoch: int) -> None:
        """Others have forgotten this broker up to an epoch: it lives, above it."""
        if epoch >= self._core.identity.epoch:
            self._raise_epoch(epoch)

    def digest(self) -> str:
        """Of the live brokers' links and interest: the same wherever the same is known."""
        self.refresh()
        known = {key: (i.epoch, i.version, i.digest) for key, i in self.known_interest()}
        parts = [(n, r.uuid, r.epoch, r.sequence, known.get((n, r.uuid))) for n, r in sorted(self.states.holders.items())]
        return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _entry(end: LinkEnd) -> LinkEntry:
    return LinkEntry(end.peer.number, end.incarnation, end.cost, None if end.gate is None else end.gate.policy)
