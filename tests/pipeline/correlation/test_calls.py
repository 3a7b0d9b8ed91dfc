"""Hops, calls, causes, sessions and orphans: against what the generator knows, and against DuckDB."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mqmesh.pipeline.run import Summary
from mqmesh.pipeline.synthesis.synthesize import Made
from mqmesh.pipeline.tables.tables import Tables

from .. import oracle

Both = tuple[Path, Made, Tables]


@pytest.fixture
def made(tables: tuple[Path, Summary], journal: tuple[Path, Made]) -> Both:
    return journal[0], journal[1], Tables(tables[0])


def test_hops_row_for_row_as_duckdb(made: Both, tables: tuple[Path, Summary]) -> None:
    assert oracle.difference(oracle.hops(made[0]), tables[0], "hops") == ([], [])


def test_hops_of_runs(runs: tuple[Path, Made], run_tables: tuple[Path, Summary]) -> None:
    assert oracle.difference(oracle.hops(runs[0]), run_tables[0], "hops") == ([], [])


def test_calls_row_for_row_as_duckdb(made: Both, tables: tuple[Path, Summary]) -> None:
    assert oracle.difference(oracle.calls(made[0]), tables[0], "calls") == ([], [])


def test_calls_are_those_that_were_made(made: Both) -> None:
    _, truth, tables = made
    status = Counter(tables.arrow("calls").column("status").to_pylist())
    assert sum(status.values()) == truth.truth["calls"]
    answered = sum(count > 1 for count in tables.arrow("calls").column("messages").to_pylist())
    assert answered == truth.truth["answered"]
    assert status[1] > 0
    assert status[3] > 0


def test_sessions_row_for_row_as_duckdb(made: Both, tables: tuple[Path, Summary]) -> None:
    """A call belongs to its trace, or to the call that caused it."""
    assert oracle.difference(oracle.session_calls(made[0]), tables[0], "session_calls") == ([], [])


def test_a_session_has_its_calls_and_its_route(made: Both) -> None:
    _, truth, tables = made
    sessions = tables.arrow("sessions").to_pylist()
    assert sum(one["calls"] for one in sessions) == truth.truth["calls"]
    assert any(one["calls"] == 2 for one in sessions)
    for one in sessions:
        times = [stage["published"] for stage in one["route"]]
        assert times == sorted(times)
        assert len(times) == one["messages"]
        assert one["bytes"] == sum(stage["size"] for stage in one["route"])
        assert one["complete"] == (one["answered"] == one["calls"])


def test_causes_are_found(made: Both) -> None:
    causes = made[2].arrow("causes").to_pylist()
    with_cause = [one for one in causes if one["parent_origin"] is not None]
    assert with_cause
    assert all(one["parent_status"] is not None for one in with_cause), "each cause is a message of the journal"


def test_orphans_are_the_incomplete_messages(made: Both) -> None:
    _, truth, tables = made
    orphans = tables.arrow("orphans").to_pylist()
    assert len(orphans) == truth.truth["incomplete"]
    assert {one["why"] for one in orphans} == {"a broker has not received it", "a session has no end"}
    assert all(one["missing"] > 0 for one in orphans)
