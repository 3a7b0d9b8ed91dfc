"""Walks over dictionaries that change meanwhile."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.base.pieces import pieces


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=40), st.integers(1, 5))
def test_every_key_that_stays_is_found(there: list[int], changes: list[tuple[bool, int]], size: int) -> None:
    table = {str(number): number for number in there}
    stays, found = set(there), []
    gone: list[int] = []
    steps = iter(changes)
    with mock.patch("mqmesh.base.pieces.AGAIN", 2 * size):
        for piece in pieces(table, size, lambda: len(gone)):
            assert 0 < len(piece) <= size
            found += piece
            adds, number = next(steps, (True, 0))
            if adds:
                table[str(number)] = number
            elif table.pop(str(number), None) is not None:
                gone.append(number)
                stays.discard(number)
    assert stays <= set(found)
    assert gone or len(found) == len(set(found))
