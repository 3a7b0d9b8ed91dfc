"""What one site does for a request, whoever asked and wherever: a page of its rows, or an action.

The rights of the one who asks are those that count at this site. A request that they do not allow is refused as a whole; where they are for
some topics or queues, rows about others are left out as if they were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgpack

from ..auth.roles import Rights, Role
from .actions import Actions, Later
from .errors import Refused
from .listing import Listing, Registry
from .paging import Best, Page, find, position_of

if TYPE_CHECKING:
    from .asked import Asked

PART_BYTES = 256 * 1024  # of the rows of one site; a page ends before it gets larger
PAYLOAD_BYTES = 4096  # of a payload that are shown
NOT_PERMITTED = "not permitted: it takes the role {}{} at this site"


class SiteWork:
    """The lists and actions of one site. name: of the site."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lists = Registry()
        self.actions = Actions()

    def walk(self, asked: Asked, rights: Rights, clock: Callable[[], float] = perf_counter) -> Generator[None, None, dict[str, Any]]:
        """A page of a list, in steps: the part of this site. Raises Refused, at once."""
        listing = self.lists.get(asked.name)
        permitted = _rows_for(listing, rights)
        if asked.payload:
            _check_payloads(listing, rights)
        field = listing.sorted_by(asked.sort) if asked.sort else listing.fields[0]
        order = "-" * asked.descending + field.name
        after = position_of(asked.cursor, (listing.name, order)) if asked.cursor is not None else None
        tests = listing.tests(asked.where)
        if permitted is not None:
            tests.append(permitted)
        best = Best(asked.limit, field.sorter(), listing.key, asked.descending, after, self.name)
        return self._walked(asked, rights, listing, order, find(best, listing.scan(asked.where), tests), clock)

    def _walked(
        self,
        asked: Asked,
        rights: Rights,
        listing: Listing,
        order: str,
        search: Generator[None, None, Page],
        clock: Callable[[], float],
    ) -> Generator[None, None, dict[str, Any]]:
        begun = clock()
        page = yield from search
        rows: list[Any] = []
        size, more = 0, page.more
        for value, key, found in page.rows:
            row = listing.row(found)
            if asked.payload and listing.payload is not None:
                _add_payload(row, listing, found, rights)
            size += len(msgpack.packb(row))
            if size > PART_BYTES and rows:
                more = True
                break
            rows.append((value, key, row))
        return {"rows": rows, "total": page.total, "more": more, "order": order, "ms": round(1000 * (clock() - begun), 1)}

    def act(self, asked: Asked, rights: Rights) -> str | Later:
        """Do something: what was done, as a line, or what is still to do. Raises Refused or UsageError."""
        action = self.actions.get(asked.name)
        if not action.permitted(rights, asked.values):
            raise Refused(NOT_PERMITTED.format(action.role.value, ""))
        return action.do(action.taken(asked.values), asked.dry_run)


def _rows_for(listing: Listing, rights: Rights) -> Callable[[Any], bool] | None:
    """Which rows somebody may see; None: all. Raises Refused for none."""
    if rights.may(Role.VIEWER):
        return None
    topic, queue = listing.topic, listing.queue
    if topic is not None and rights.some(Role.VIEWER, "topics"):
        return lambda row: rights.may_topic(Role.VIEWER, topic(row))
    if queue is not None and rights.some(Role.VIEWER, "queues"):
        return lambda row: rights.may_queue(Role.VIEWER, queue(row))
    only = " for more than some topics or queues" if rights else ""
    raise Refused(NOT_PERMITTED.format(Role.VIEWER.value, only))


def _check_payloads(listing: Listing, rights: Rights) -> None:
    if listing.payload is None:
        raise Refused(f"{listing.name} have no payloads")
    if not any(rights.some(Role.PAYLOAD_READER, about) for about in ("topics", "queues")):
        raise Refused(NOT_PERMITTED.format(Role.PAYLOAD_READER.value, ""))


def _add_payload(row: dict[str, Any], listing: Listing, found: Any, rights: Rights) -> None:
    """The payload, where the reader may see it."""
    about_topic = listing.topic is not None and rights.may_topic(Role.PAYLOAD_READER, listing.topic(found))
    about_queue = listing.queue is not None and rights.may_queue(Role.PAYLOAD_READER, listing.queue(found))
    if listing.payload is not None and (about_topic or about_queue):
        payload = listing.payload(found)
        row["payload"] = payload[:PAYLOAD_BYTES]
        row["payload_cut"] = len(payload) > PAYLOAD_BYTES
