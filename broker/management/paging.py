"""Pages: the rows of a list that follow a position, found in one walk over all rows, without sorting them all.

Position: (value of the column that rows are sorted by, key of the row, site). It says where the last page ended. A page is the first
rows behind it. Rows that come, go or change between two pages are in the next one or not, as their new values say; no other row is left
out or comes twice.

`Best` keeps the best rows so far, and looks at the value of each further row only, as long as that is worse than the worst of them. So a
page of a million rows takes a walk over them, and no copy. The walk is cut into steps (`find`), so that it can be interleaved with
other work.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgpack

from .errors import Refused

MOST = 100  # rows of a page
CUT = 200  # rows beyond those of the page, from which on the worst are dropped
FORM = 1  # of cursors
_by_value_and_key = itemgetter(0, 1)


class Position(NamedTuple):
    """Where a page ended."""

    value: Any
    key: Any
    site: str


class Page(NamedTuple):
    """rows: (value, key, row) in order. total: how many rows there are that fit, whatever page they are on. more: others follow."""

    rows: list[tuple[Any, Any, Any]]
    total: int
    more: bool


class Best:
    """The first rows behind a position.

    limit: how many. order: value of a row that it is sorted by. key: of a row. after: where to begin; None: at the first row. site: where
    this is: of rows that are alike, those of the site with the lesser name come first (with the greater one, if descending).
    """

    def __init__(
        self,
        limit: int,
        order: Callable[[Any], Any],
        key: Callable[[Any], Any],
        descending: bool = False,
        after: Position | None = None,
        site: str = "",
    ) -> None:
        self._limit = limit
        self._order = order
        self._key = key
        self._descending = descending
        self._after = after
        self._too = after is not None and site != after.site and (site > after.site) is not descending  # also the row that is alike
        self._found: list[tuple[Any, Any, Any]] = []
        self._worst: tuple[Any, Any] | None = None  # (value, key) of the last row that counts, once there are enough
        self._more = False

    def take(self, rows: Sequence[Any]) -> None:
        """Look at more rows, at least one. Raises TypeError where the position is of another column."""
        values = list(map(self._order, rows))
        worst = self._worst
        if worst is None:
            hits = list(zip(values, rows, strict=True))
        elif self._descending:
            last, end = worst
            if max(values) < last:
                return
            key = self._key
            hits = [one for one in zip(values, rows, strict=True) if one[0] > last or (one[0] == last and key(one[1]) > end)]
        else:
            last, end = worst
            if min(values) > last:
                return
            key = self._key
            hits = [one for one in zip(values, rows, strict=True) if one[0] < last or (one[0] == last and key(one[1]) < end)]
        if hits:
            self._add(hits)

    def _add(self, hits: list[tuple[Any, Any]]) -> None:
        """Take rows that are before the worst."""
        key, after = self._key, self._after
        if after is not None:  # first by value alone: the keys of rows of earlier pages are not made
            begin = after.value
            hits = [one for one in hits if (one[0] <= begin if self._descending else one[0] >= begin)]
        found = [(value, key(row), row) for value, row in hits]
        if after is not None:
            place, too = after[:2], self._too
            if self._descending:
                found = [one for one in found if one[:2] < place or (too and one[:2] == place)]
            else:
                found = [one for one in found if one[:2] > place or (too and one[:2] == place)]
        self._found += found
        if len(self._found) > self._limit + CUT or (self._worst is None and len(self._found) > self._limit):
            self._cut()

    def _cut(self) -> None:
        """Keep the best."""
        found = {one[1]: one for one in self._found}  # a row that was found twice has moved: it counts as it was seen last
        best = sorted(found.values(), key=_by_value_and_key, reverse=self._descending)
        self._more = self._more or len(best) > self._limit
        self._found = best[: self._limit]
        if len(self._found) == self._limit:
            self._worst = self._found[-1][:2]

    def page(self, total: int) -> Page:
        """What was found."""
        self._cut()
        return Page(self._found, total, self._more)


def find(best: Best, pieces: Iterator[Sequence[Any]], tests: Sequence[Callable[[Any], bool]]) -> Generator[None, None, Page]:
    """Walk over all rows, a piece a step. tests: what rows have to pass. Raises Refused."""
    total = 0
    for piece in pieces:
        rows = piece
        for test in tests:
            rows = [row for row in rows if test(row)]
        if rows:
            total += len(rows)
            try:
                best.take(rows)
            except TypeError:
                raise Refused("the cursor is of another request") from None
        yield
    return best.page(total)


def cursor_of(position: Position, asked: tuple[str, str]) -> str:
    """A position as text for the one who asks. asked: list and order that it holds for."""
    return base64.urlsafe_b64encode(msgpack.packb([FORM, *asked, *position])).decode().rstrip("=")


def position_of(cursor: str, asked: tuple[str, str]) -> Position:
    """The position in a cursor. Raises Refused."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        form, name, order, value, key, site = msgpack.unpackb(raw, use_list=False, strict_map_key=False)
        if form != FORM or not isinstance(site, str) or value is None or key is None:
            raise ValueError
    except (ValueError, TypeError, binascii.Error, msgpack.UnpackException):
        raise Refused("this is no cursor: give the one of the last answer as it is, or none") from None
    if (name, order) != asked:
        raise Refused(f"the cursor is of the list {str(name)[:80]!r} sorted by {str(order)[:80]!r}")
    return Position(value, key, site)
