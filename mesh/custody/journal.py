"""What of a node must survive a restart, as records that a store keeps: what changed, in batches; and all of it back at the start.

Strategy. The parts of a node tell the `Journal` what they changed; it keeps one mark for each changed thing and encodes each once, when the
shell asks (`Node.records`). So the cost follows the number of runs and of receipts, never that of messages, and what comes and
goes between two questions is not written at all. A node without a journal builds none of this.

    record       key in the store                      holds
    entry        its order, a rising number            the run; picks, open destinations, position, times (`extra`)
    page         its order, a rising number            what is known of it, and its body: many entries (pages.py)
    destination  b"d" number (2) uuid (16)             settled, sent (nil: perhaps all), since when it remembers
    window       b"w" number (2) uuid (16)             what was handed to the shell, refusals that the origin has not noted
    node         b"n"                                  form, uuid, epoch, born, epochs of its lives
    others       b"m", b"i", b"f", b"k", see remembered.py   who the others are and what they want

Invariants
- `take` is a consistent cut: all of it together is a state that the node was in, and the deliveries handed over up to then belong to it;
- an entry that a receipt settled is not written again: what is settled follows from its destinations' records;
- `committed` never passes a mark whose records are not in the store.

Not kept: links, link state, trees; the next life learns them anew.
It does not know stores, tables or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgpack

from ...mqtt.batch.batch import Batch
from ..view.remembered import LINGER, Recall, Remembered, recall
from ..wire.control import Refusal
from .entry import Entry
from .pages import Page, decode_page, encode_body, encode_page, entry_fields, entry_of, page_of
from .windows import CustodyWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .custody import Destination

FORM = 1
NODE = b"n"
_DESTINATION = b"d"
_WINDOW = b"w"
Owner = tuple[int, bytes]  # number, uuid


class Records(NamedTuple):
    """Changes that belong into one batch, together with the deliveries that the shell carried out before it asked.

    mark: for `Node.committed`. entries: (order, run, extra), to be stored. changed: (order, extra) of stored ones. gone: orders of
    those to be deleted. values: (key, value); None: to be deleted. pages: (order, description, body); without a description it is to be
    deleted, without a body that stays as it is. An entry that is gone because a page holds it goes in the batch of the page.
    """

    mark: int
    entries: list[tuple[int, Batch, bytes]]
    changed: list[tuple[int, bytes]]
    gone: list[int]
    values: list[tuple[bytes, bytes | None]]
    pages: list[tuple[int, bytes | None, bytes | None]] = []  # noqa: RUF012  # it is never changed


class Journal:
    """What changed since the last `take`.

    mark: of what is being gathered.
    committed: the highest mark that is in the store.
    urgent: more than receipts waits for the commit of what is being gathered.
    others: what is known of other brokers.
    wall_offset: from the node's clock to that whose times are stored.
    """

    def __init__(self, wall_offset: float, others: Remembered) -> None:
        self.others = others
        self.mark = 1
        self.committed = 0
        self.urgent = False
        self.waiting = False  # something waits for a commit
        self.wall_offset = wall_offset
        self._order = 0
        self._page = 0
        self._pages: dict[int, Page | None] = {}  # that have changed; None: gone
        self._fresh: dict[int, Entry] = {}
        self._changed: dict[int, Entry] = {}
        self._gone: list[int] = []
        self._destinations: dict[Owner, Destination | None] = {}
        self._windows: dict[Owner, CustodyWindow] = {}
        self._node: bytes | None = None
        self._also = False

    # ---- what changes

    def put(self, entry: Entry) -> None:
        """An entry is to be kept."""
        self._order += 1
        entry.order, entry.mark = self._order, self.mark
        self.urgent = True
        self._fresh[self._order] = entry

    def change(self, entry: Entry) -> None:
        """An entry is not what it was, other than by receipts."""
        self.urgent = True
        if entry.page is not None:
            self.rewrite(entry.page)
            return
        if entry.order not in self._fresh:
            self._changed[entry.order] = entry

    def drop(self, entry: Entry) -> None:
        """An entry need not be kept any more."""
        if self._fresh.pop(entry.order, None) is None:
            self._changed.pop(entry.order, None)
            self._gone.append(entry.order)

    def page(self, entries: Sequence[Entry], drop: int, expire: int) -> Page:
        """These entries, all in the store, are to be kept as a page. drop, expire: see `Page`."""
        self._page += 1
        page = page_of(self._page, entries, drop, expire)
        for entry in entries:
            self.drop(entry)
        self.rewrite(page)
        return page

    def rewrite(self, page: Page) -> None:
        """Entries of a page, which are in memory, have changed."""
        page.dirty = True
        page.mark = self.mark
        self.page_changed(page)

    def page_changed(self, page: Page) -> None:
        """What is known of a page has changed, other than by receipts."""
        if page.open:
            self._pages[page.order] = page

    def page_gone(self, page: Page) -> None:
        """A page need not be kept any more."""
        page.dirty = False
        page.entries = None
        self._pages[page.order] = None

    def stored(self, entry: Entry) -> bool:
        """Whether the store has an entry for sure."""
        return entry.order > 0 and entry.mark <= self.committed

    def destination(self, d: Destination) -> None:
        """A destination is farther, or new."""
        self._destinations[d.number, d.uuid] = d

    def forget(self, d: Destination) -> None:
        """A destination is no more."""
        self._destinations[d.number, d.uuid] = None

    def window(self, owner: Owner, window: CustodyWindow) -> None:
        """A window has moved, or its refusals have changed."""
        self._windows[owner] = window

    def also(self) -> None:
        """Something that is written beside the records, in their batch, has changed: its commit is to be told."""
        self._also = self.urgent = True

    def node(self, uuid: bytes, epoch: int, born: int, epochs: tuple[tuple[int, int], ...]) -> None:
        """Who this broker is in this life. epochs: see `Life`."""
        self._node = msgpack.packb([FORM, uuid, epoch, born, [one for one, _ in epochs], [last for _, last in epochs]])
        self.urgent = True

    # ---- what is written

    @property
    def changed(self) -> bool:
        """Whether something is to be written, apart from what changed about others."""
        return bool(self._windows or self._destinations or not self.blank)

    @property
    def blank(self) -> bool:
        """Whether nothing is to be written but positions."""
        return not (self._fresh or self._gone or self._changed or self._pages or self._also or self._node is not None)

    @property
    def alone(self) -> int:
        """The order of the only entry that is to be written, where nothing else is but positions; 0: there is none."""
        if len(self._fresh) != 1 or self._gone or self._changed or self._pages or self._also or self._node is not None:
            return 0
        return next(iter(self._fresh))

    def unwritten(self, order: int) -> bool:
        """Whether an entry is still to be written."""
        return order in self._fresh

    @property
    def latest(self) -> int:
        """The mark whose commit holds everything so far."""
        return self.mark if self.changed else self.mark - 1

    def held(self, entry: Entry) -> bool:
        """Whether an entry may not be sent before it is in the store; the next commit wakes whoever asked."""
        if entry.hold and entry.mark > self.committed:
            self.waiting = True
            return True
        return False

    def stir(self, now: float) -> None:
        """See to it that what changed about others is written in a while."""
        if self.others.due is None and self.others.changed:
            self.others.due = now + LINGER

    def late(self, now: float) -> bool:
        """Whether what changed about others is due."""
        return self.others.due is not None and self.others.due <= now

    def take(self, now: float) -> Records | None:
        """The changes since the last time, None without any. What changed about others is none before it is due, and goes with others."""
        values: list[tuple[bytes, bytes | None]] = []
        if self.others.changed and (self.late(now) or self.latest == self.mark):
            values += self.others.take()
        if self._windows:
            values += [(_key(_WINDOW, owner), encode_window(window)) for owner, window in self._windows.items()]
            self._windows.clear()
        if self._destinations:
            values += [(_key(_DESTINATION, o), None if d is None else encode_destination(d)) for o, d in self._destinations.items()]
            self._destinations.clear()
        if self._node is not None:
            values.append((NODE, self._node))
            self._node = None
        if not (values or self._fresh or self._changed or self._gone or self._pages or self._also):
            return None
        self._also = self.urgent = False
        offset = self.wall_offset
        entries = [(order, entry.run, encode_entry(entry, offset)) for order, entry in self._fresh.items()]
        changed = [(order, encode_entry(entry, offset)) for order, entry in self._changed.items()]
        pages = [self._written(order, page) for order, page in self._pages.items()]
        records = Records(self.mark, entries, changed, self._gone, values, pages)
        self.mark += 1
        self._fresh.clear()
        self._changed.clear()
        self._gone = []
        self._pages = {}
        return records

    def _written(self, order: int, page: Page | None) -> tuple[int, bytes | None, bytes | None]:
        if page is None:
            return order, None, None
        body = None
        if page.dirty:
            assert page.entries is not None
            body = encode_body(page.entries, self.wall_offset)
            page.dirty = False
            page.release()
        return order, encode_page(page, self.wall_offset), body

    # ---- what was written

    def restored(self, entry: Entry, order: int) -> None:
        """An entry that is in the store."""
        entry.order, entry.mark = order, 0
        self._order = max(self._order, order)

    def restored_pages(self, pages: Iterable[tuple[int, bytes]]) -> list[Page]:
        """The pages that are in the store, by their positions. Raises ValueError."""
        found = []
        for order, value in pages:
            try:
                found.append(decode_page(order, value, self.wall_offset))
            except ValueError as error:
                raise _foreign("a page of custody", error) from None
            self._page = max(self._page, order)
        return sorted(found, key=lambda page: (page.epoch, page.first))


def _key(kind: bytes, owner: Owner) -> bytes:
    return kind + owner[0].to_bytes(2, "big") + owner[1]


# ---- forms


def encode_entry(entry: Entry, wall_offset: float) -> bytes:
    """An entry without its run, its deadline on the wall clock."""
    packed: bytes = msgpack.packb(entry_fields(entry, wall_offset))
    return packed


def decode_entry(run: Batch, extra: bytes, wall_offset: float) -> Entry:
    """The reverse. Raises ValueError."""
    try:
        fields = msgpack.unpackb(extra)
        entry = entry_of(run, fields, wall_offset)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise _foreign("a message in custody", error) from None
    _check_form(fields[0])
    return entry


def encode_destination(d: Destination) -> bytes:
    """How far a destination is. While it has joined, it may be sent more at any time, so `sent` is left open."""
    packed: bytes = msgpack.packb([d.settled, None if d.joined else d.sent, d.born if d.joined else d.sent_born])
    return packed


def encode_window(window: CustodyWindow) -> bytes:
    """What a window let in and handed over."""
    what = [window.handed, [[*refusal[:3], list(refusal.share)] for refusal in window.kept]]
    if window.past:
        what += [window.early, list(window.past.items())]
    elif window.early:
        what.append(window.early)
    packed: bytes = msgpack.packb(what)
    return packed


class StoredNode(NamedTuple):
    """Who the broker of a store was in its last life.

    epochs: of its lives, the newest first, each with what `Life` says of it; None where an earlier release has written it.
    """

    uuid: bytes
    epoch: int
    born: int
    epochs: tuple[tuple[int, int | None], ...]


class Stored(NamedTuple):
    """What the values of a store say.

    node: None: nothing was ever stored. destinations: settled, sent or None, since when it remembers.
    others: what is known of other brokers.
    """

    node: StoredNode | None
    destinations: dict[Owner, tuple[tuple[int, int], tuple[int, int] | None, int]]
    windows: dict[Owner, CustodyWindow]
    others: Recall


def decode_values(values: dict[bytes, bytes]) -> Stored:
    """All values of a store. Raises ValueError."""
    node = stored_node(values.get(NODE))
    try:
        others = recall(values)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise _foreign("what is known of another broker", error) from None
    stored = Stored(node, {}, {}, others)
    for key, value in values.items():
        owner = (int.from_bytes(key[1:3], "big"), key[3:])
        try:
            if key[:1] == _DESTINATION:
                settled, sent, born = msgpack.unpackb(value)
                stored.destinations[owner] = ((settled[0], settled[1]), None if sent is None else (sent[0], sent[1]), born)
            elif key[:1] == _WINDOW:
                position, refusals, *more = msgpack.unpackb(value)
                found = [Refusal(epoch, first, last, (share[0], share[1])) for epoch, first, last, share in refusals]
                early = [(epoch, first, last) for epoch, first, last in more[0]] if more else None
                past = dict(more[1]) if len(more) > 1 else None
                stored.windows[owner] = CustodyWindow((position[0], position[1]), found, owner, early, past)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise _foreign("a position", error) from None
    return stored


def stored_node(value: bytes | None) -> StoredNode | None:
    """What the value under `NODE` says. Raises ValueError."""
    if value is None:
        return None
    try:
        form, uuid, epoch, born, *more = msgpack.unpackb(value)
        epochs = more[0] if more else [epoch]
        known = tuple(zip(epochs, more[1] if len(more) > 1 else [None] * len(epochs), strict=True))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _foreign("the broker's record", error) from None
    _check_form(form)
    return StoredNode(uuid, epoch, born, known)


def _check_form(form: object) -> None:
    if form != FORM:
        remedy = "run the version that wrote it, or begin with an empty store"
        raise ValueError(f"the mesh's state has form {form}, this version reads {FORM}: {remedy}")


def _foreign(what: str, error: Exception) -> ValueError:
    cause = f"{type(error).__name__}: {error}"
    return ValueError(f"{what} of the mesh's state cannot be read ({cause}): restore a copy, or begin with an empty store")


__all__ = ["NODE", "Journal", "Records", "Stored", "decode_entry", "decode_values", "stored_node"]
