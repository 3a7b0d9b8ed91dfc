"""The trail only grows: across runs, late segments, runs that did not end, and hands that change it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqmesh.broker.journal.place import Place
from mqmesh.pipeline.audit.chain import Broken, Head
from mqmesh.pipeline.audit.trail import FOLDER, STATE, Trail, joined, missing
from mqmesh.pipeline.errors import PipelineError

LIFE = (7, 100)


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(Place(tmp_path))


def add(trail: Trail, *events: int) -> Head:
    """Records of these events."""
    records = [{"what": "connected", "event": event} for event in events]
    return trail.append(trail.state(), records, {LIFE: [(event, event) for event in events]}).head


def test_it_goes_on_where_it_ended(trail: Trail) -> None:
    first = add(trail, 1, 2)
    last = add(trail, 3)
    assert (first.number, last.number) == (2, 3)
    assert trail.verify(first) == last
    assert trail.state().covered == {LIFE: [(1, 3)]}
    assert [json.loads(line)["event"] for line in trail.lines()] == [1, 2, 3]


def test_what_comes_late_is_added_at_the_end(trail: Trail) -> None:
    noted = add(trail, 1, 5)
    assert missing(1, 6, trail.state().covered[LIFE]) == [(2, 4), (6, 6)]
    add(trail, 2, 3, 4)
    trail.verify(noted)
    assert [json.loads(line)["event"] for line in trail.lines()] == [1, 5, 2, 3, 4]


def test_a_run_that_did_not_end_leaves_nothing(trail: Trail) -> None:
    noted = add(trail, 1)
    trail.place.write(f"{FOLDER}/000000000002.jsonl", b"half a rec")
    assert trail.verify() == noted
    assert add(trail, 2).number == 2
    trail.verify(noted)


def test_it_is_kept_in_several_files(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqmesh.pipeline.audit.trail.CHUNK", 3)
    head = add(trail, *range(1, 9))
    assert [name.rpartition("/")[2] for name in trail.files()] == ["000000000001.jsonl", "000000000004.jsonl", "000000000007.jsonl"]
    assert trail.verify() == head


def test_changes_are_found(trail: Trail, tmp_path: Path) -> None:
    noted = add(trail, 1, 2, 3)
    file = tmp_path / FOLDER / "000000000001.jsonl"
    whole = file.read_text()
    file.write_text(whole.replace('"event": 2', '"event": 9'))
    with pytest.raises(Broken, match="record 2 was changed"):
        trail.verify()
    file.write_text("".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(Broken, match="the trail ends with 2:"):
        trail.verify()
    with pytest.raises(Broken, match="the end is cut off"):
        trail.verify(noted)
    file.unlink()
    with pytest.raises(Broken):
        trail.verify()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"head": "1:x", "covered": {}}'])
def test_a_damaged_state_is_named(trail: Trail, text: str) -> None:
    trail.place.write(STATE, text.encode())
    with pytest.raises(PipelineError, match=r"audit/state\.json: "):
        trail.state()


ranges = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda one: (one[0], one[0] + one[1])), max_size=6)


@given(ranges, st.integers(1, 30), st.integers(0, 10))
def test_ranges_are_sets_of_numbers(given_ranges: list[tuple[int, int]], first: int, length: int) -> None:
    covered = joined(given_ranges)
    held = {number for begin, end in given_ranges for number in range(begin, end + 1)}
    assert {number for begin, end in covered for number in range(begin, end + 1)} == held
    left = {number for begin, end in missing(first, first + length, covered) for number in range(begin, end + 1)}
    assert left == set(range(first, first + length + 1)) - held
