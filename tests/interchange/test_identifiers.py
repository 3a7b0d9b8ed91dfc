"""Identifiers: their form, that they never repeat, and what happens where the clock goes back (us-9037726, l. 218-246)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mqmesh.interchange.identifiers import BEGINNING, EACH, Identifiers, count_of, first_count, home_of, time_of
from mqmesh.interchange.refusals import Code, Refusal

NOW = BEGINNING + 60 * 86_400_000
RANDOM = "0123456789abcdef"


def issuer(last: int = 0) -> Identifiers:
    return Identifiers(7, last, lambda: RANDOM)


def test_the_form() -> None:
    ids = issuer()
    session, call = ids.session(NOW), ids.one(NOW)
    assert re.fullmatch("[0-9a-f]{32}", session)
    assert session.endswith(RANDOM)
    assert re.fullmatch("[0-9a-f]{16}", call)
    assert home_of(session) == home_of(call) == 7
    assert count_of(call) == count_of(session) + 1 == first_count(NOW) + 1
    assert time_of(call) == NOW


def test_the_identifiers_of_a_millisecond_come_to_an_end_and_go_on_in_the_next() -> None:
    ids = issuer()
    made = [ids.one(NOW) for _ in range(EACH)]
    with pytest.raises(Refusal) as refused:
        ids.one(NOW)
    assert refused.value.code is Code.UNAVAILABLE
    assert ids.one(NOW + 1) not in made


@pytest.mark.parametrize("issued", [0, 100, 127, 128])
def test_when_there_are_enough_again(issued: int) -> None:
    ids = issuer(first_count(NOW) + issued - 1)
    ahead = ids.ahead(NOW, 50)
    assert ahead == (issued > 78)
    for _ in range(50):
        ids.one(NOW + ahead)


def test_a_clock_that_was_set_back_issues_nothing_until_it_has_caught_up() -> None:
    """Or a home that then loses its disk could issue the same again."""
    ids = issuer(first_count(NOW))
    for back in (86_400_000, 1000, 1):
        with pytest.raises(Refusal):
            ids.one(NOW - back)
    assert count_of(ids.one(NOW)) == first_count(NOW) + 1


@example([(0, 1, False), (0, 0, True), (-1, 1, False)])
@given(st.lists(st.tuples(st.integers(-500, 500), st.integers(0, 300), st.booleans()), max_size=30))
def test_nothing_repeats_whatever_clock_and_disk_do(steps: list[tuple[int, int, bool]]) -> None:
    """Each step: the clock jumps, perhaps the disk is lost, some identifiers are asked for. A clock without its disk does not go back."""
    ids, now, latest, seen = issuer(), NOW, NOW, set()
    for jump, many, lost in steps:
        now += jump
        if lost:
            now = max(now, latest + 1)
            ids = issuer(first_count(now) - 1)  # it issues nothing of before its birth
        for _ in range(many):
            try:
                made = ids.one(now)
            except Refusal:
                now += 1
                continue
            assert made not in seen
            seen.add(made)
            latest = max(latest, now)
