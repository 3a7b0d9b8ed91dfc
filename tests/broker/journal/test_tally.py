"""Counters of a minute: routes are multiplied by their targets a portion at a time, and each minute has its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.journal import tally
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.settings import JournalSettings
from mqmesh.broker.journal.tally import ONE, PORTION, Key, Tally
from support.broker_site import Site

Minute = dict[Key, int]


@dataclass
class Route:
    dimension: str
    targets: list[Any]
    tally: int = 0


@dataclass
class Loop:
    """Does a step when it is asked to."""

    steps: list[Iterator[None]] = field(default_factory=list)

    def turn(self) -> bool:
        """Do a step; False: there is none."""
        while self.steps:
            if next(self.steps[0], self) is not self:
                return True
            self.steps.pop(0)
        return False


def session(name: str) -> Any:
    made = SimpleNamespace(client_id=name, user=f"user-{name}")
    return SimpleNamespace(session=SimpleNamespace(client_id=name, main=made))


def counter(loop: Loop | None) -> Tally:
    counted = Tally()
    if loop is not None:
        counted.run = loop.steps.append
    return counted


@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(1, 9)), st.sampled_from(["minute", "turn"])), max_size=40),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_in_turns_the_counts_are_those_of_at_once(what: list[Any], portion: int, routes: int) -> None:
    said: list[list[Minute]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "PORTION", portion)
        patch.setattr(tally, "ROUTES", routes)
        for loop in (None, Loop()):
            counted, minutes = counter(loop), list[Minute]()
            made = [Route(f"part-{number}", [session(f"{number}-{each}") for each in range(number * 2)]) for number in range(4)]
            for step in what:
                if step == "minute":
                    counted.take(minutes.append)
                elif step == "turn":
                    if loop is not None:
                        loop.turn()
                else:
                    to = made[step[0]]
                    if not to.tally:
                        counted.begin(to)
                    to.tally += step[1] * ONE
                    counted.add(Kind.PUBLISHED, to.dimension, "someone", "", step[1] * ONE)
            counted.take(minutes.append)
            counted.finish()
            said.append(minutes)
    assert said[0] == said[1]
    total = sum(step[1] * step[0] * 2 for step in what if isinstance(step, tuple))
    assert sum(amount for minute in said[0] for (kind, *_), amount in minute.items() if kind == Kind.DELIVERED) == total * ONE


def test_no_step_counts_more_than_a_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, minutes = Loop(), list[Minute]()
    counted = counter(loop)
    targets = [session(str(number)) for number in range(10 * PORTION)]
    for number in range(3):
        to = Route(f"part-{number}", targets, ONE)
        counted.begin(to)
    seen = [0]
    monkeypatch.setattr(tally, "_add", lambda *_: seen.__setitem__(-1, seen[-1] + 1))
    counted.take(minutes.append)
    assert seen == [0]
    while loop.turn():
        seen.append(0)
    assert sum(seen) == 30 * PORTION
    assert max(seen) <= PORTION
    assert len(minutes) == 1


async def test_the_last_counters_are_made_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the minute before may still have turns there: a thread met them, and the broker ended with an error."""
    begin, threads = Tally.take, []

    def take(tally: Tally, then: Callable[[dict[Key, int]], None]) -> None:
        threads.append(threading.current_thread())
        begin(tally, then)

    monkeypatch.setattr(Tally, "take", take)
    async with Site(journal=JournalSettings(str(tmp_path / "journal"))) as site:
        assert await (await site.client("gauge")).publish("t", b"x", 1) == 0x10
    assert threads == [threading.current_thread()]
