"""When a broker asks its directory, what it says about the answers, and what it remembers."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from mqmesh.directory.registration import LONGEST_PAUSE, LeaseSchedule, RegistrationState

outcomes = st.lists(st.sampled_from(["granted", "missed", "refused"]), max_size=30)


@given(lease=st.floats(1, 86400), chance=st.floats(0, 1), outcomes=outcomes)
def test_whatever_happens_it_asks_again_in_time_and_says_each_state_once(lease: float, chance: float, outcomes: list[str]) -> None:
    schedule, now, before = LeaseSchedule(lease, chance), 100.0, ""
    for outcome in outcomes:
        news = getattr(schedule, outcome)(now, "the same text")
        assert news is (outcome != before)
        assert now < schedule.due <= now + lease / 3 * 1.1, "three attempts fit into a lease"
        if outcome != "granted":
            assert schedule.due <= now + LONGEST_PAUSE * 1.1
        now, before = schedule.due, outcome
    assert (schedule.asked, schedule.failed) == (outcomes.count("granted"), len(outcomes) - outcomes.count("granted"))


def test_pauses_grow_while_the_directory_is_away_and_begin_anew() -> None:
    schedule = LeaseSchedule(600)
    pauses = []
    for _ in range(7):
        schedule.missed(0.0, "x")
        pauses.append(schedule.due)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    schedule.granted(0.0, "x")
    schedule.missed(0.0, "x")
    assert schedule.due == 1


def test_what_changed_is_said() -> None:
    schedule = LeaseSchedule(60)
    assert [schedule.granted(0, text) for text in ("number=1", "number=1", "number=2")] == [True, False, True]
    assert [schedule.refused(0, text) for text in ("a", "a", "b")] == [True, False, True]
    assert [schedule.missed(0, text) for text in ("no answer", "another address")] == [True, False]


def test_memory_lasts_and_is_of_one_mesh(tmp_path: Path) -> None:
    memory = RegistrationState.load(tmp_path / "data", "ring")
    assert memory.number is None
    memory.number, memory.neighbours = 7, {"lyon": ["mqtt://lyon:1883"]}
    memory.save()
    again = RegistrationState.load(tmp_path / "data", "ring")
    assert (again.holder, again.number, again.neighbours) == (memory.holder, 7, memory.neighbours)
    other = RegistrationState.load(tmp_path / "data", "another")
    assert (other.holder, other.number, other.neighbours) == (memory.holder, None, {})


def test_a_damaged_memory_and_a_broker_from_before(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text(
        json.dumps({"uuid": str(uuid.uuid4()), "epoch": 1, "name": "porto", "number": 5, "mesh": "ring"})
    )
    assert RegistrationState.load(tmp_path, "ring").number == 5, "the number that it has had without a directory"
    for text in ("", "{", "[]", '{"holder": "x"}', '{"holder": 1, "mesh": "ring"}'):
        (tmp_path / "directory.json").write_text(text)
        assert RegistrationState.load(tmp_path, "ring").number == 5
    assert json.loads((tmp_path / "directory.json").read_text())["number"] == 5
