"""Objects that became old are visited once: the time of a collection does not grow with what a program holds."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from mqmesh.base.process.collector import EARLY, STARTING, YOUNG, Collector, LargeDict
from mqmesh.mesh.view.interest import InterestSet
from mqmesh.mqtt.topics import FilterTree


@pytest.fixture
def turns() -> Iterator[list[Callable[[], None]]]:
    """The turns that a collector has asked for."""
    asked: list[Callable[[], None]] = []
    before = gc.get_threshold()
    collector = Collector(asked.append)
    collector.begin()
    yield asked
    gc.collect(1)
    collector.end()
    for turn in asked:
        turn()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    gc.freeze()  # what the tests have set apart (tests/conftest.py)


def test_what_is_old_is_set_apart_in_a_turn_of_its_own(turns: list[Callable[[], None]]) -> None:
    apart = gc.get_freeze_count()
    assert apart > 10_000  # what was there before
    assert not turns
    for _ in range(2):
        gc.collect(1)
        assert len(turns) == 1
    kept = [[number] for number in range(1000)]
    turns.pop()()
    assert gc.get_freeze_count() >= apart + len(kept)
    assert len(gc.get_objects(generation=2)) == 0


def test_a_turn_visits_what_one_middle_collection_has_left(turns: list[Callable[[], None]]) -> None:
    """So it takes a few milliseconds, whatever a program holds."""
    kept: list[list[int]] = []
    most = 0
    for number in range(100_000):
        kept.append([number])
        if turns:
            most = max(most, len(gc.get_objects()))
            turns.pop()()
    assert most < 2 * EARLY * YOUNG


def test_no_full_collection_begins_by_itself(turns: list[Callable[[], None]]) -> None:
    full = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(100_000)]
    assert gc.get_stats()[2]["collections"] == full
    assert len(turns) == 1
    assert len(kept) == 100_000


def test_a_cycle_is_still_freed(turns: list[Callable[[], None]]) -> None:
    freed = []

    class Ring:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            freed.append(True)

    Ring()
    gc.collect(1)
    assert freed == [True]
    Ring()
    turns.pop()()
    assert freed == [True, True]


@pytest.mark.process
def test_a_program_looks_for_garbage_rarely_at_its_start_and_not_at_its_end() -> None:
    code = """
import atexit, gc
from mqmesh.base.process.collector import spare_start_and_end
atexit.register(lambda: print(gc.get_freeze_count() > 5000, len(gc.get_objects(generation=2))))
spare_start_and_end()
print(gc.get_threshold()[0])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(STARTING), "True", "0"]


@pytest.mark.parametrize(
    ("kind", "seen"), [(dict, True), (LargeDict, False)], ids=["a plain dict is new again with each key", "a large one is not"]
)
def test_what_is_set_apart_is_not_visited_again(turns: list[Callable[[], None]], kind: type[dict], seen: bool) -> None:
    kept: dict[tuple[str, int], int] = kind()
    for number in range(5000):
        kept[str(number), number] = number
    gc.collect(1)
    gc.collect(1)
    turns.pop()()
    gc.disable()
    try:
        kept[str(len(kept)), 1] = 1
        assert any(one is kept for one in gc.get_objects()) == seen
    finally:
        gc.enable()


def test_filters_are_visited_once(turns: list[Callable[[], None]]) -> None:
    """Those of subscribers here, and elsewhere in the mesh."""
    own, tree = InterestSet(1), FilterTree[tuple[int, str]]()
    kept = (own.entries, tree._exact)
    for number in range(5000):
        own.put((f"f/{number}", None), 1)
        tree.add(f"f/{number}", (1, None), (1, f"f/{number}"))
    gc.collect(1)
    gc.collect(1)
    turns.pop()()
    gc.disable()
    try:
        own.put((f"f/{len(own.entries)}", None), 1)
        tree.add(f"f/{len(tree)}", (1, None), (1, f"f/{len(tree)}"))
        assert not [one for one in gc.get_objects() if any(one is each for each in kept)]
    finally:
        gc.enable()
