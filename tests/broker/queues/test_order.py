"""Positions in order and timers, held against plain lists; both stay fast and small where there are very many."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from mqmesh.broker.queues.core import order
from mqmesh.broker.queues.core.blocks import spans
from mqmesh.broker.queues.core.order import Order
from mqmesh.broker.queues.core.timers import SPARE, Timers
from support.examples import examples


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "front"]), st.integers(0, 300)), max_size=400))
def test_order_is_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    held, plain = Order(), list[int]()
    size, order.PIECE = order.PIECE, 4
    try:
        for what, number in steps:
            if what == "add" and number not in plain:
                held.add(number)
                plain = sorted([*plain, number])
            elif what == "remove" and number in plain:
                held.remove(number)
                plain.remove(number)
            elif what == "front" and plain:
                held.remove(plain.pop(0))
            assert list(held) == plain
            assert bool(held) == bool(plain)
            if plain:
                assert held.first == plain[0]
            at = bisect_right(plain, number)
            assert held.floor(number) == (plain[at - 1] if at else None)
            assert held.above(number) == (plain[at] if at < len(plain) else None)
    finally:
        order.PIECE = size


def test_pieces_stay_short() -> None:
    held = Order()
    for number in [*range(0, 40_000, 2), *range(19_999, 0, -2)]:
        held.add(number)
    assert max(map(len, held._pieces)) <= 2 * order.PIECE
    for number in range(0, 40_000, 2):
        held.remove(number)
    assert list(held) == list(range(1, 20_000, 2))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "pop"]), st.integers(1, 20), st.integers(0, 5)), max_size=100))
def test_timers_are_a_set_of_times(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    plain: set[tuple[int, int]] = set()
    for what, when, item in steps:
        if what == "add":
            timers.add(when, item)
            plain.add((when, item))
        elif what == "remove":
            timers.remove(when, item)
            plain.discard((when, item))
        elif plain:
            found: Any = timers.pop()
            assert found in plain
            assert found[0] == min(plain)[0]
            plain.discard(found)
        assert timers.next == (min(plain)[0] if plain else 0)
        assert len(timers) == len(plain)


def test_timers_that_are_not_needed_any_more_hold_nothing() -> None:
    timers: Timers[int] = Timers()
    for number in range(1, 100_000):
        timers.add(10**9 + number, number)
        timers.remove(10**9 + number, number)
    assert len(timers._times) <= SPARE + 1


@given(st.sets(st.integers(0, 60)))
def test_spans_are_what_is_in_a_row(indexes: set[int]) -> None:
    found = spans(sorted(indexes))
    assert [at for start, count in found for at in range(start, start + count)] == sorted(indexes)
    assert all(start + count < after for (start, count), (after, _) in pairwise(found))
