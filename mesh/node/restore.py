"""A node goes on where an earlier life of its broker was: what a store kept of the mesh, given back to the parts that it belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from uuid import UUID

from ...mqtt.batch.batch import Batch
from ..custody.custody import Entry
from ..custody.journal import Journal, Stored, decode_entry, decode_values
from ..custody.pages import Page
from ..view.interest import Interests
from ..view.lives import Former
from ..view.remembered import Remembered
from ..wire.control import Position
from .core import Core
from .dispatch import Dispatch
from .membership import Membership
from .relay import Relay


def restore(
    core: Core,
    members: Membership,
    interests: Interests,
    relay: Relay,
    dispatch: Dispatch,
    entries: Iterable[tuple[int, Batch, bytes]],
    values: dict[bytes, bytes],
    pages: Iterable[tuple[int, bytes]],
) -> list[Entry]:
    """See `Node.restore`. Returns messages that are for members of this broker."""
    former = core.former
    stored = decode_values(values)
    renewed = former is not None and stored.node is not None and stored.node.uuid == former.uuid
    journal = Journal(core.kept_offset, Remembered(core.config.remembered))
    if stored.node is not None:
        uuid, epoch, core.born, _ = stored.node
        if uuid != core.uuid and not renewed:
            raise ValueError(f"the mesh's state is that of the broker {UUID(bytes=uuid)}, not of {core.identity.uuid}")
        if epoch >= core.identity.epoch:
            raise ValueError(f"the epoch {core.identity.epoch} is not above that of the mesh's state, {epoch}")
    others = stored.others
    complete = all((n, known.uuid) in others.sets and not known.behind for n, known in others.members.items())
    members.restore(others.members, complete and not renewed)  # whoever kept the former identity is not among them
    interests.restore(others.sets, {n: known.uuid for n, known in others.members.items() if n != core.number})
    journal.others.restored(others)
    if core.keys is not None:
        core.keys.pins.update(others.pins)
    interests.memory = journal.others
    relay.windows.update(stored.windows)
    dispatch.restore(stored.destinations)
    served: list[Entry] = []
    found = [(decode_entry(run, extra, core.kept_offset), order) for order, run, extra in entries]
    found.sort(key=lambda one: (one[0].epoch, one[0].first))  # what was split has its place in the sequence, and later orders
    stored_pages = deque(journal.restored_pages(pages))
    core.lives.restore(_epochs(stored, [*(entry.last for entry, _ in found), *(page.last for page in stored_pages)]))
    members.fence.seal()
    if former is not None and renewed:  # what whoever keeps the former identity has too stays with it
        found, stored_pages = _without(former, found, stored_pages, journal)
    for entry, order in found:
        journal.restored(entry, order)
        while stored_pages and (stored_pages[0].epoch, stored_pages[0].first) < (entry.epoch, entry.first):
            dispatch.hold_page(stored_pages.popleft(), journal)
        if entry.here:
            served.append(entry)
        else:
            dispatch.hold(entry, journal)
    for page in stored_pages:
        dispatch.hold_page(page, journal)
    core.journal = dispatch.custody.journal = journal
    journal.node(core.uuid, core.identity.epoch, core.born, core.lives.own.epochs)
    return served


def _epochs(stored: Stored, held: list[Position]) -> Iterator[tuple[int, int]]:
    """The epochs of a store's lives, the newest first, each with the last sequence that it is known to have had.

    Of the newest epoch a copy of the store may have more, or less: what is certain is what is in custody (held), and what a destination has
    confirmed. The earlier ones had ended before, and stand as they were written.
    """
    if stored.node is None:
        return
    known: dict[int, int] = {}
    for epoch, last in (*held, *(settled for settled, _, _ in stored.destinations.values())):
        known[epoch] = max(last, known.get(epoch, 0))
    for epoch, had in stored.node.epochs:
        yield epoch, known.get(epoch, 0) if had is None or epoch == stored.node.epoch else had


def _without(
    former: Former, entries: list[tuple[Entry, int]], pages: deque[Page], journal: Journal
) -> tuple[list[tuple[Entry, int]], deque[Page]]:
    """What is in custody, without what the former identity has too, which is dropped from the store."""
    for entry, order in entries:
        if former.others(*entry.last):
            journal.restored(entry, order)
            journal.drop(entry)
    for page in pages:
        if former.others(*page.last):
            journal.page_gone(page)
    kept = [one for one in entries if not former.others(*one[0].last)]
    return kept, deque([page for page in pages if not former.others(*page.last)])
