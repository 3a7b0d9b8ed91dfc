"""Pauses between attempts."""

from __future__ import annotations

from mqmesh.base.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5


def test_the_spread_bounds_a_pause() -> None:
    for _ in range(100):
        assert 8.0 <= Backoff(10.0, 10.0, (0.8, 1.2)).next() <= 12.0
