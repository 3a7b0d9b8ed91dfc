"""Pages: custody that is on the disk only.

Messages for a site that is away would fill the memory. So those that nobody can be sent now leave it, many at a time: a *page* holds some
hundred entries of one origin as one value of the store. What stays in memory is this description of it, some hundred bytes.

A page stands in the queue of each of its destinations where its entries stood. It is read when a destination comes to it, or when its
entries are to be served elsewhere. While it is read, its entries are in memory too (`entries`), shared by all destinations. What
becomes of an entry by a receipt is not written: it follows from the destination's record. Any other change writes the page anew.

Invariants
- the entries of a page were in the store before, so that nobody waits for the commit of the page;
- in the queue of a destination all entries of a page stood side by side; pages of one stretch differ only in what may be dropped first;
- `held` counts for each destination what is open for it, loaded or not.

It does not know stores, links or trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from ...mqtt.batch.parts import PartsBatch
from ...mqtt.batch.run import Run
from ..wire.visited import numbers
from .entry import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...mqtt.batch.batch import Batch
    from ..wire.control import Position
    from ..wire.envelope import Share

FORM = 1


class Page:
    """Entries that are on the disk only.

    order: its number in the store. epoch, first: position of its first message. last: of its last one. count, size: of all its messages.
    open: destinations that owe the receipt of some of it. held: for each of these, how many messages and bytes.
    oldest, newest: publish times in ms. deadline: when the last of it expires, on the node's clock; None: some of it never does.
    special: some of it is a message between brokers, or for a member of a shared subscription; it is not given up unread.
    shares: the shared subscriptions of that. drop: the destinations for which it may go at a bound. expire: those for which it may go when
    it is too old.
    leaving: destinations that are given up: why, what they had settled and were sent; its entries are returned as soon as it is read.
    cleared: destinations that lost their store: what is not above the position was sent to their earlier life.
    again: destinations out of reach whose shared subscriptions somebody else may serve now.
    entries: while it is in memory. users: destinations that have these in their queues. dirty: entries have changed and are to be written.
    mark: of the records that hold it. asked: it is being read.
    """

    __slots__ = (
        "again",
        "asked",
        "cleared",
        "count",
        "deadline",
        "dirty",
        "drop",
        "entries",
        "epoch",
        "expire",
        "first",
        "held",
        "last",
        "leaving",
        "mark",
        "newest",
        "oldest",
        "open",
        "order",
        "shares",
        "size",
        "special",
        "users",
    )

    def __init__(self, order: int, first: Position, last: Position) -> None:
        self.order = order
        self.epoch, self.first = first
        self.last = last
        self.count = self.size = 0
        self.open = 0
        self.held: dict[int, list[int]] = {}
        self.oldest = self.newest = 0
        self.deadline: float | None = None
        self.special = False
        self.shares: set[Share] = set()
        self.drop = self.expire = 0
        self.leaving: dict[int, tuple[str, Position, Position]] = {}
        self.cleared: dict[int, Position] = {}
        self.again = 0
        self.entries: list[Entry] | None = None
        self.users = 0
        self.dirty = self.asked = False
        self.mark = 0

    @property
    def time(self) -> int:
        """When its oldest message was published, ms since 1970."""
        return self.oldest

    def release(self) -> None:
        """Let go of its entries, unless somebody needs them: a destination, the next commit, or whoever has asked for them."""
        if not self.users and not self.dirty and not self.asked:
            self.entries = None


def page_of(order: int, entries: Sequence[Entry], drop: int, expire: int) -> Page:
    """A page of entries in order of their positions."""
    first, final = entries[0], entries[-1]
    page = Page(order, (first.epoch, first.first), final.last)
    page.entries, page.dirty, page.drop, page.expire = list(entries), True, drop, expire
    page.oldest = page.newest = first.time
    deadline: float | None = 0.0
    held = page.held
    for entry in entries:
        entry.page = page
        page.count += entry.count
        page.size += entry.size
        page.open |= entry.open
        page.oldest, page.newest = min(page.oldest, entry.time), max(page.newest, entry.time)
        page.special = page.special or entry.picks_only or bool(entry.picks)
        page.shares.update(share for share, _ in entry.picks)
        deadline = None if deadline is None or entry.deadline is None else max(deadline, entry.deadline)
        for number in numbers(entry.open):
            known = held.get(number)
            if known is None:
                held[number] = [entry.count, entry.size]
            else:
                known[0] += entry.count
                known[1] += entry.size
    page.deadline = deadline
    return page


# ---- forms of what is stored


def entry_fields(entry: Entry, wall_offset: float) -> list[Any]:
    """An entry without its run, its deadline on the wall clock."""
    deadline = None if entry.deadline is None else entry.deadline + wall_offset
    picks = [[list(share), number] for share, number in entry.picks]
    sets = [octets(mask) for mask in (entry.open, entry.ordinary, entry.refusers)]
    return [FORM, entry.here, entry.epoch, entry.first, sets, picks, entry.picks_only, entry.repeated, entry.time, deadline, entry.kept]


def entry_of(run: Batch, fields: Sequence[Any], wall_offset: float) -> Entry:
    """The reverse. Raises ValueError, TypeError or IndexError for what it is not."""
    _, here, epoch, first, sets, picks, picks_only, repeated, time, deadline, *more = fields
    masks = [int.from_bytes(raw, "little") for raw in sets]
    entry = Entry(epoch, first, run, masks[0], tuple(((share[0], share[1]), number) for share, number in picks), time)
    entry.ordinary, entry.refusers = masks[1], masks[2]
    entry.here, entry.picks_only, entry.repeated = here, picks_only, repeated
    entry.kept = more[0] if more else b""
    entry.deadline = None if deadline is None else deadline - wall_offset
    return entry


def octets(mask: int) -> bytes:
    """A set of brokers as bytes."""
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def encode_body(entries: Sequence[Entry], wall_offset: float) -> bytes:
    """The entries of a page that are still open."""
    packed: bytes = msgpack.packb(
        [FORM, [[entry_fields(entry, wall_offset), _run_fields(entry.run, wall_offset)] for entry in entries if entry.open]]
    )
    return packed


def decode_body(body: bytes, page: Page, wall_offset: float) -> list[Entry]:
    """The entries of a page, open for whom both they and the page are. Raises ValueError."""
    try:
        form, packed = msgpack.unpackb(body)
        if form != FORM:
            raise ValueError(f"form {form}")
        entries = []
        for fields, run in packed:
            entry = entry_of(_run_of(run, wall_offset), fields, wall_offset)
            entry.open &= page.open
            entry.page = page
            entries.append(entry)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return entries


def _run_fields(run: Batch, wall_offset: float) -> list[Any]:
    received = run.received + wall_offset
    if not run.uniform:
        parts = run.parts()
        return [run.qos, received, parts.names, parts.payloads]
    payloads = run.payloads
    joined = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    return [run.qos, received, run.topic, run.retain, run.properties, run.expiry, run.length, run.count, joined]


def _run_of(fields: list[Any], wall_offset: float) -> Batch:
    if len(fields) == 4:
        qos, received, names, payloads = fields
        return PartsBatch(names, payloads, qos, received - wall_offset)
    qos, received, topic, retain, properties, expiry, length, count, joined = fields
    if count == 1 or not length:
        return Run(topic, qos, retain, [joined] * count, properties, expiry, received - wall_offset)
    return Run(topic, qos, retain, None, properties, expiry, received - wall_offset, (joined, 0, length, length))


def encode_page(page: Page, wall_offset: float) -> bytes:
    """What is known of a page without its body."""
    deadline = None if page.deadline is None else page.deadline + wall_offset
    held = {number: list(counts) for number, counts in page.held.items()}
    cleared = {number: list(position) for number, position in page.cleared.items()}
    what = [page.epoch, page.first, list(page.last), page.count, page.size, held, page.oldest, page.newest, deadline, page.special]
    sets = [octets(page.drop), octets(page.expire)]
    packed: bytes = msgpack.packb([FORM, *what, sets, page.leaving, cleared, [list(share) for share in page.shares]])
    return packed


def decode_page(order: int, value: bytes, wall_offset: float) -> Page:
    """The reverse. Raises ValueError."""
    try:
        form, epoch, first, last, count, size, held, oldest, newest, deadline, special, sets, leaving, cleared, shares = msgpack.unpackb(
            value, strict_map_key=False
        )
        if form != FORM:
            raise ValueError(f"form {form}")
        page = Page(order, (epoch, first), (last[0], last[1]))
        page.count, page.size, page.oldest, page.newest, page.special = count, size, oldest, newest, special
        page.held = {number: [messages, bytes_] for number, (messages, bytes_) in held.items()}
        page.deadline = None if deadline is None else deadline - wall_offset
        page.drop, page.expire = (int.from_bytes(raw, "little") for raw in sets)
        page.shares = {(share[0], share[1]) for share in shares}
        page.leaving = {number: (why, (s[0], s[1]), (t[0], t[1])) for number, (why, s, t) in leaving.items()}
        page.cleared = {number: (position[0], position[1]) for number, position in cleared.items()}
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ValueError(f"a page of custody cannot be read ({type(error).__name__}: {error})") from None
    for number in page.held:
        page.open |= 1 << number
    return page
