"""Pages and cursors: every row once, in order, whatever the order is, across sites too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.management.errors import Refused
from mqmesh.broker.management.paging import Best, Page, Position, cursor_of, find, position_of

Row = tuple[int, str]


def page(rows: Sequence[Row], limit: int, descending: bool, after: Position | None, site: str = "", size: int = 3) -> Page:
    best = Best(limit, lambda row: row[0], lambda row: row[1], descending, after, site)
    walk = find(best, iter([rows[start : start + size] for start in range(0, len(rows), size)]), [])
    while True:
        try:
            next(walk)
        except StopIteration as stop:
            return stop.value


rows_ = st.lists(st.tuples(st.integers(0, 5), st.text("abcdef", max_size=3)), max_size=60, unique_by=lambda row: row[1])


@given(rows=rows_, limit=st.integers(1, 7), descending=st.booleans())
def test_pages_give_each_row_once_and_in_order(rows: list[Row], limit: int, descending: bool) -> None:
    found: list[Row] = []
    after = None
    while True:
        one = page(rows, limit, descending, after)
        assert one.total == len(rows)
        found += [row for _, _, row in one.rows]
        assert one.more == (len(found) < len(rows))
        if not one.more:
            break
        after = Position(*one.rows[-1][:2], "")
    assert found == sorted(rows, reverse=descending)


@given(st.dictionaries(st.sampled_from("ABC"), rows_), st.integers(1, 7), st.booleans())
def test_rows_that_are_alike_at_several_sites_come_once_each(sites: dict[str, list[Row]], limit: int, descending: bool) -> None:
    everything = sorted([(*row, site) for site, rows in sites.items() for row in rows], reverse=descending)
    found: list[Any] = []
    after = None
    for _ in range(len(everything) + 1):
        parts = {site: page(rows, limit, descending, after, site) for site, rows in sites.items()}
        merged = sorted([(value, key, site) for site, one in parts.items() for value, key, _ in one.rows], reverse=descending)[:limit]
        found += merged
        if not merged:
            break
        after = Position(*merged[-1])
    assert found == everything


def test_a_row_that_moved_while_it_was_looked_for_counts_once() -> None:
    best = Best(2, lambda row: row[0], lambda row: row[1])
    best.take([(1, "a"), (2, "b")])
    best.take([(3, "a"), (4, "c")])
    assert [row for _, _, row in best.page(0).rows] == [(2, "b"), (3, "a")]


def test_cursors_are_for_their_request_only() -> None:
    cursor = cursor_of(Position(("a", b"b"), 5, "lyon"), ("sessions", "-bytes"))
    assert position_of(cursor, ("sessions", "-bytes")) == (("a", b"b"), 5, "lyon")
    with pytest.raises(Refused, match="the list 'sessions' sorted by '-bytes'"):
        position_of(cursor, ("sessions", "bytes"))
    for wrong in ("", "x", "*", cursor[:-4], cursor + "AAAA", "gg"):
        with pytest.raises(Refused, match="no cursor"):
            position_of(wrong, ("sessions", "-bytes"))


def test_a_cursor_of_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="another request"):
        page([(1, "a"), (2, "b")], 1, False, Position("text", "b", ""))
