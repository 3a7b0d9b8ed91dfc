"""Interest: which topic filters the subscribers of each broker hold, and so who wants a topic.

Each broker owns its set of (filter, group) entries with weights and a version; changes are flooded as deltas, a set as a whole
when a link comes up or a delta does not fit. A digest of the set travels with each update, so that what is
applied is what the owner has.

Only the set of the broker that *holds* a number is asked (`activate`); the answer for a topic is kept until any set changes.

Invariants
- a set's digest is that of its owner at that version, or the update was refused;
- the interest of a broker that restarts or is out of reach stays as it was until its new life has said its own.

It does not know links, trees or messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from hashlib import blake2b, sha256, shake_256
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...base.cache import LONGEST
from ...base.process.collector import LargeDict
from ...mqtt.errors import MqttError, PeerError
from ...mqtt.reasons import Reason
from ...mqtt.topics import FilterTree, check_filter, split_share
from ..wire.control import PORTION, InterestUpdate
from ..wire.envelope import Share
from ..wire.keys import Seal
from .edges import Key

if TYPE_CHECKING:
    from .remembered import Remembered

Entry = tuple[str, str | None]  # filter, group
T = TypeVar("T")
SUM_BITS = 4096
_MODULUS = 1 << SUM_BITS
CACHED = 100_000  # topics whose match is kept


class Group(NamedTuple):
    """A shared subscription that matches: its (group, filter) and who has members, (broker, weight) by number."""

    share: Share
    members: tuple[tuple[int, int], ...]


class Match(NamedTuple):
    """Who wants a topic. mask: brokers with ordinary subscriptions. guarded: to some of them a policy leads (zones.py)."""

    mask: int
    groups: tuple[Group, ...]
    guarded: bool = False


NOBODY = Match(0, ())


def entry_digest(filter_: str, group: str | None, weight: int) -> int:
    """64 bits for one entry; the digest of a set is the exclusive or over its entries."""
    raw = f"{weight}\0{'' if group is None else '+' + group}\0{filter_}".encode()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "big")


def entry_sum(filter_: str, group: str | None, weight: int) -> int:
    """The same for who must not be deceived: `SUM_BITS` bits for one entry; a set's sum is that of its entries, modulo 2**SUM_BITS.

    Adding hashes of this size is collision resistant (Bellare and Micciancio's AdHash; Wagner's attack takes some 2**128 steps), and a
    change of one entry costs one entry, however many there are. An exclusive or is not, whatever its size.
    """
    raw = f"{weight}\0{'' if group is None else '+' + group}\0{filter_}".encode()
    return int.from_bytes(shake_256(raw).digest(SUM_BITS // 8), "big")


class InterestSet:
    """What one life of one broker wants. sum: of its entries, for the seal. seal: its owner's, at this version; None without keys."""

    __slots__ = ("digest", "entries", "epoch", "seal", "sum", "version")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.version = 0
        self.digest = 0
        self.sum = 0
        self.seal: Seal | None = None
        self.entries: LargeDict[Entry, int] = LargeDict()

    @classmethod
    def of(cls, update: InterestUpdate) -> Generator[None, None, InterestSet]:
        """What an update says that says all, made a portion at a time."""
        found = cls(update.epoch)
        found.version, found.seal = update.version, update.seal
        for part in portions(update.adds):
            for filter_, group, weight in part:
                found.put((filter_, group), weight)
            yield
        return found

    def copy(self) -> InterestSet:
        """The same, to be changed by itself."""
        found = InterestSet(self.epoch)
        found.version, found.digest, found.sum, found.seal = self.version, self.digest, self.sum, self.seal
        found.entries = LargeDict(self.entries)
        return found

    def put(self, entry: Entry, weight: int | None) -> None:
        """Set or, with None, remove an entry."""
        old = self.entries.pop(entry, None)
        if old is not None:
            self.digest ^= entry_digest(*entry, old)
            self.sum = (self.sum - entry_sum(*entry, old)) % _MODULUS
        if weight is not None:
            self.entries[entry] = weight
            self.digest ^= entry_digest(*entry, weight)
            self.sum = (self.sum + entry_sum(*entry, weight)) % _MODULUS

    def said(self, key: Key) -> tuple[Any, ...]:
        """What its owner signs: which set it is, and what is in it."""
        return (*key, self.epoch, self.version, sha256(self.sum.to_bytes(SUM_BITS // 8, "big")).digest())

    def head(self, key: Key) -> InterestUpdate:
        """The update that says all, without the entries."""
        return InterestUpdate(key[0], key[1], self.epoch, None, self.version, self.digest, (), (), self.seal)

    def whole(self, key: Key) -> InterestUpdate:
        """The update that says all."""
        return self.head(key)._replace(adds=tuple((f, g, w) for (f, g), w in self.entries.items()))


class Interests:
    """The sets of all other brokers and the tree over the active ones. memory: what of it outlives this life; None without a store."""

    def __init__(self) -> None:
        self.sets: dict[Key, InterestSet] = {}
        self._uuids: dict[int, set[bytes]] = {}  # number -> those of its sets
        self.active: dict[int, bytes] = {}
        self._tree: FilterTree[tuple[int, str | None, int, str]] = FilterTree()
        self._matches: dict[str, Match] = {}
        self._late: dict[int, tuple[tuple[int, int], deque[Iterator[Entry]]]] = {}  # by number: version of the tree, entries it lacks
        self.changed: set[str] | None = set()  # filters whose routes are stale; None for all
        self.generation = 0
        self.memory: Remembered | None = None
        self.reserved: tuple[str, ...] = ()  # topics that begin so are matched by filters that begin so alone

    def restore(self, sets: dict[Key, InterestSet], active: dict[int, bytes]) -> None:
        """What an earlier life knew: all sets, and whose counts for each number. All of it counts at once: nobody is served yet."""
        self.sets.update(sets)
        for number, uuid in sets:
            self._uuids.setdefault(number, set()).add(uuid)
        for number, uuid in active.items():
            self.activate(number, uuid)
        while self._late:
            self.catch_up()

    def activate(self, number: int, uuid: bytes | None) -> None:
        """Whose set counts for a number from now on; None for nobody's. The set of another UUID is forgotten."""
        old = self.active.get(number)
        if old == uuid:
            return
        if old is not None:
            entries = self._pop((number, old))
            if self.memory is not None:
                self.memory.forget((number, old), entries.entries if entries else {})
            del self.active[number]
            self._touch(number, entries.entries if entries else ())
        if uuid is not None:
            self.active[number] = uuid
            now = self.sets.get((number, uuid))
            if now is not None:
                self._touch(number, now.entries)

    def keep_only(self, number: int, uuid: bytes) -> None:
        """Forget what earlier brokers of this number wanted."""
        for other in self._uuids.get(number, set()) - {uuid}:
            gone = self._pop((number, other))
            if gone is not None and self.memory is not None:
                self.memory.forget((number, other), gone.entries)

    def _pop(self, key: Key) -> InterestSet | None:
        """Take out the set of a UUID."""
        self._uuids.get(key[0], set()).discard(key[1])
        return self.sets.pop(key, None)

    def disown(self, number: int, key: bytes) -> None:
        """A number belongs to this key: what another one said that it wants counts until the owner says something, however old."""
        for one, known in self.sets.items():
            if one[0] == number and known.seal is not None and known.seal.key != key:
                self.outdate(one)

    def outdate(self, key: Key) -> None:
        """What is known of a broker's interest was said by whoever does not hold its place: it counts until the holder says something."""
        known = self.sets[key]
        known.epoch = known.version = 0
        known.seal = None  # so that it is not passed on
        if self.memory is not None:
            self.memory.interest(key, known, {})

    def applying(
        self, update: InterestUpdate, genuine: Callable[[InterestSet], bool] | None = None, wanted: Callable[[], bool] = lambda: True
    ) -> Generator[None, None, str]:
        """Take an update, a portion at a time, and return "new" (pass it on), "old" (nothing to do) or "gap" (ask for the whole).

        genuine: whether the owner has signed this set; None: nobody signs. wanted: asked when a large update has been read: whether it
        still counts. Updates of one set must not overlap. Raises `PeerError`.
        """
        key, whole = (update.number, update.uuid), update.base is None
        if self._stands(update):
            return "old"
        for number, part in enumerate(portions(update.adds)):
            if number:
                yield
            for filter_, group, _ in part:
                _check(filter_, group)
        known = self.sets.get(key)
        if not whole and (known is None or known.epoch != update.epoch or known.version != update.base):
            return "gap"
        before: dict[Entry, int] = known.entries if known else {}
        result = known if known is not None and not whole else InterestSet(update.epoch)
        if result is known and len(update.adds) + len(update.removes) > PORTION:
            result = result.copy()
        undo: dict[Entry, int | None] = {}  # of what is changed where it stands, in one portion
        for number, changes in enumerate(portions(_changes(update))):
            if number:
                yield
            for entry, weight in changes:
                if result is known:
                    undo.setdefault(entry, before.get(entry))
                result.put(entry, weight)
        if result is not known and (self.sets.get(key) is not known or self._stands(update) or not wanted()):
            return "old" if whole else "gap"
        version, result.version = result.version, update.version
        agrees = result.digest == update.digest
        if not agrees or (genuine is not None and not genuine(result)):
            result.version = version
            for entry, weight in undo.items():
                result.put(entry, weight)
            if agrees:
                raise PeerError(Reason.NOT_AUTHORIZED, f"$mesh/interest: broker {update.number} has not signed this interest")
            if whole:
                raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/interest: the digest of broker {update.number}'s interest is wrong")
            return "gap"
        result.seal = update.seal
        former = (known.epoch, known.version) if known is not None and result is not known else None
        self.sets[key] = result
        self._uuids.setdefault(update.number, set()).add(update.uuid)
        touched: dict[Entry, None] = {}
        for number, entries in enumerate(portions(chain(before, result.entries) if whole else [entry for entry, _ in _changes(update)])):
            if number:
                yield
            if before is not result.entries:
                entries = [one for one in entries if before.get(one) != result.entries.get(one)]
            touched.update(dict.fromkeys(entries))
        if self.sets.get(key) is not result:
            return "new"  # it was, and whoever replaced it has seen to the rest
        if self.memory is not None:
            self.memory.interest(key, result, touched)
        if self.active.get(update.number) == update.uuid:
            self._touch(update.number, touched, former)
        return "new"

    def _stands(self, update: InterestUpdate) -> bool:
        """Whether what is known is as new as an update, or newer."""
        known = self.sets.get((update.number, update.uuid))
        return (update.epoch, update.version) <= ((known.epoch, known.version) if known else (0, -1))

    def _touch(self, number: int, entries: Collection[Entry], former: tuple[int, int] | None = None) -> None:
        """Bring the tree in line for these entries of one broker; many of them later, with `catch_up`.

        former: (epoch, version) of what the tree has now.
        """
        if len(entries) > PORTION:
            self._late.setdefault(number, (former or (0, 0), deque()))[1].append(iter(list(entries)))
        else:
            self._align(number, entries)

    def _align(self, number: int, entries: Collection[Entry]) -> None:
        """The tree has these entries of one broker as its set has them; routes of their filters are stale."""
        known = self.sets.get((number, self.active.get(number, b"")))
        wanted = known.entries if known is not None else {}
        for filter_, group in entries:
            weight = wanted.get((filter_, group))
            if weight is None:
                self._tree.remove(filter_, (number, group))
            else:
                self._tree.add(filter_, (number, group), (number, group, weight, filter_))
            if self.changed is not None:
                self.changed.add(filter_)
        if entries:
            self._matches.clear()
            self.generation += 1

    @property
    def late(self) -> bool:
        """Whether the tree lacks something that is known: `catch_up` is to be called."""
        return bool(self._late)

    def catch_up(self) -> None:
        """Bring the tree in line for the next portion of entries."""
        number, (_, rest) = next(iter(self._late.items()))
        entries = list(islice(rest[0], PORTION))
        self._align(number, entries)
        if len(entries) < PORTION:
            rest.popleft()
            if not rest:
                del self._late[number]

    def version_of(self, number: int) -> tuple[int, int]:
        """(epoch, version) of the interest of a broker by which messages are routed; (0, 0) of one that has said nothing."""
        if number in self._late:
            return self._late[number][0]
        known = self.sets.get((number, self.active.get(number, b"")))
        return (known.epoch, known.version) if known is not None else (0, 0)

    def all_stale(self) -> None:
        """Each route must be asked for again."""
        self.changed = None
        self._matches.clear()
        self.generation += 1

    def match(self, topic: str) -> Match:
        """Who wants a topic."""
        found = self._matches.get(topic)
        if found is None:
            found = self._ask(topic)
            if len(topic) <= LONGEST:
                if len(self._matches) >= CACHED:
                    self._matches.clear()
                self._matches[topic] = found
        return found

    def _ask(self, topic: str) -> Match:
        values = self._tree.match(topic)
        if topic.startswith(self.reserved):
            values = [value for value in values if value[3].startswith(self.reserved)]
        if not values:
            return NOBODY
        mask = 0
        groups: dict[Share, list[tuple[int, int]]] = {}
        for number, group, weight, filter_ in values:
            if group is None:
                mask |= 1 << number
            else:
                groups.setdefault((group, filter_), []).append((number, weight))
        return Match(mask, tuple(Group(share, tuple(sorted(members))) for share, members in sorted(groups.items())))

    def filters(self) -> Iterator[Iterable[Entry]]:
        """What is subscribed at each broker that counts, as tables that change."""
        for number, uuid in list(self.active.items()):
            known = self.sets.get((number, uuid))
            if known is not None:
                yield known.entries

    def has(self, filter_: str) -> bool:
        """Whether a filter is subscribed at a broker that counts, shared or not."""
        return self._tree.count(filter_) > 0

    def members(self, share: Share) -> tuple[tuple[int, int], ...]:
        """Who has members of a shared subscription, (broker, weight) by number."""
        group, filter_ = share
        return tuple(sorted((n, w) for (n, g), (_, _, w, _) in self._tree.get(filter_).items() if g == group))


def portions(entries: Iterable[T]) -> Iterator[list[T]]:
    """Lists of `PORTION` entries, the last one shorter."""
    rest = iter(entries)
    while part := list(islice(rest, PORTION)):
        yield part


def _changes(update: InterestUpdate) -> Iterator[tuple[Entry, int | None]]:
    """What becomes of each entry that an update names; of the last that it says of one, None: it goes."""
    if update.base is not None:
        yield from ((entry, None) for entry in update.removes)
    yield from (((filter_, group), weight) for filter_, group, weight in update.adds)


def _check(filter_: str, group: str | None) -> None:
    try:
        check_filter(filter_, shared=False)
        if group is not None:
            split_share(f"$share/{group}/{filter_}")
    except MqttError as error:
        raise PeerError(Reason.PROTOCOL_ERROR, f"$mesh/interest: {filter_[:80]!r}: {error}") from None
