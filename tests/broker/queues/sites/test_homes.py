"""Which site is the home of a queue, by what brokers say (`broker/queues/sites/homes.py`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.queues.sites.homes import Homes
from mqmesh.broker.queues.sites.keeping import Keeping

NAME = "orders"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=12))
def test_the_highest_term_is_the_home_and_else_the_lowest_number(said: list[tuple[int, int]]) -> None:
    """Term 0: the broker is not the home any more; it stays a queue until another one says that it is."""
    homes, latest = Homes(set(), Keeping()), dict[int, int]()
    for number, term in said:
        before = homes.home(NAME)
        moved = homes.told(number, {NAME: False} if term else {}, {NAME: term} if term else {})
        latest[number] = term or latest.get(number, 0)
        there = [(-term, one) for one, term in latest.items() if term]
        assert homes.home(NAME) == (min(there)[1] if there else None)
        assert moved == ({NAME} if homes.home(NAME) != before else set())
        assert homes.shared(NAME) == bool(there)


def test_a_queue_without_terms_has_one_home() -> None:
    homes = Homes(set(), Keeping())
    homes.told(3, {NAME: False}, {})
    homes.told(2, {NAME: True}, {})
    assert homes.home(NAME) == 2
    assert homes.full(NAME)
    assert not homes.shared(NAME)


def test_a_queue_that_its_home_has_left_takes_nothing_until_it_has_another() -> None:
    homes = Homes(set(), Keeping())
    homes.told(1, {NAME: False}, {NAME: 4})
    homes.told(1, {}, {})
    assert homes.home(NAME) == 1
    assert homes.full(NAME)
    homes.told(2, {NAME: False}, {NAME: 5})
    assert homes.home(NAME) == 2
    assert not homes.full(NAME)
    assert homes.forgotten(2) == {NAME}
    assert homes.forgotten(1) == {NAME}
    assert homes.home(NAME) is None


def test_terms_survive_a_restart() -> None:
    homes = Homes(set(), Keeping())
    homes.restore({1: {NAME: 4}, 2: {NAME: 7, "other": 0}})
    assert (homes.home(NAME), homes.home("other")) == (2, 2)
    assert homes.told(1, {NAME: False}, {NAME: 8}) == {NAME}
    assert homes.home(NAME) == 1
