"""What the load on a mesh that is broken holds for a repeat, and what it excuses."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.trials.load import RECENT, Group, Load, Stream


def stream_of(times: list[float]) -> Stream:
    """A stream of the messages 1, 2, ... that came at these times."""
    stream = Stream()
    for sequence, now in enumerate(times, 1):
        stream.take(sequence, now)
    return stream


def test_recent_is_what_came_within_the_time_before() -> None:
    stream = stream_of([0.0, 5.0, 10.0, 10.5, 11.0])
    assert list(stream.recent(10.2 + RECENT)) == [4, 5]
    assert list(stream.recent(100.0)) == []


def test_what_an_earlier_session_had_may_come_once_more_and_is_counted() -> None:
    stream = stream_of([0.0, 10.0, 10.1])
    stream.earlier = {2, 3}
    for sequence in (2, 3, 3, 1):
        stream.take(sequence, 11.0)
    assert (stream.again, stream.duplicates) == (2, 2)


CASES = [(1, 1, True, 1), (1, 2, True, 1), (2, 1, True, 1), (2, 2, True, 0), (1, 1, False, 0), (0, 1, True, 0)]


@pytest.mark.parametrize(("publisher", "subscriber", "keeps", "excused"), CASES)
def test_only_qos_1_at_a_killed_broker_that_keeps_is_excused(publisher: int, subscriber: int, keeps: bool, excused: int) -> None:
    """At the killed broker's site alone, and only what came shortly before."""
    with Load() as load:
        here, there = Stream(), Stream()
        load.publishers = {1: SimpleNamespace(number=1, qos=publisher, site="c", open={}, sent=9, close=lambda: None)}  # type: ignore[dict-item]
        clients: list[Any] = [
            SimpleNamespace(site=site, qos=subscriber, streams={1: stream}, group=None, close=lambda: None, corrupt=0)
            for site, stream in (("a", here), ("b", there))
        ]
        load.subscribers = clients
        for stream in (here, there):
            stream.take(1, time.monotonic())
        load.killed("a", keeps)
        for stream in (here, there):
            stream.take(1, time.monotonic())
        assert (here.again, here.duplicates) == (excused, 1 - excused)
        assert (there.again, there.duplicates) == (0, 1)


def test_a_group_counts_what_qos_1_allows_apart() -> None:
    group = Group()
    for sequence in (1, 2, 2, 3, 3, 3):
        group.take(1, sequence, "a", 10.0)
    group.twice = {1: {3}}
    assert group.duplicates() == (2, 1)
    group.take(1, 4, "a", 10.0 + 2 * RECENT)
    assert [sequence for _, _, sequence in group.got["a"]] == [4]
