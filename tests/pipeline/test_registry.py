"""The table of jobs: each place is there, needs come first."""

from __future__ import annotations

import pytest
from mqmesh.pipeline.errors import PipelineError
from mqmesh.pipeline.registry import JOBS, plan


@pytest.mark.parametrize("name", JOBS)
def test_each_job_is_there(name: str) -> None:
    assert callable(JOBS[name].function)
    assert JOBS[name].tables or name == "audit"  # which writes a chain, and no table


def test_what_a_job_needs_comes_first() -> None:
    order = [job.name for job in plan([])]
    for job in JOBS.values():
        assert all(need in JOBS for need in job.needs)
        if job.name in order:
            assert all(order.index(need) < order.index(job.name) for need in job.needs)
    assert len(order) == len(set(order))


def test_no_such_job() -> None:
    with pytest.raises(PipelineError, match='"latencies" is no job: give one of messages'):
        plan(["latencies"])
