"""The demo's fifth act: how it counts, and a short run of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.cli.demo.queue_act import QueueAct, QueueActResult, Worked, queues, story, tally
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet


def test_each_end_is_counted() -> None:
    ends = {
        ("a", 0): [Worked("w1", 1.0, 0)],
        ("a", 1): [Worked("w1", 1.0, 0), Worked("w2", 2.0, 1)],
        ("b", 0): [Worked("w1", 1.0, 0), Worked("w2", 2.0, 0)],
        ("b", 9): [Worked("w1", 1.0, 0)],
    }
    found = tally([("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)], ends, ("b", 1))
    assert (found.sent, found.lost, found.marked, found.repeated) == (5, 1, 1, 1)
    assert found.worked == {"w1": 3, "w2": 2}
    assert found.problems() == [
        "1 orders were lost in the queue",
        "1 orders were worked twice and not marked",
        "the poisoned order is not among the dead letters",
        "nobody got what the killed worker had",
    ]
    assert QueueActResult(dead=True, handed_over=0.1).problems() == []


def test_a_history_is_told_in_order() -> None:
    trace = {
        "states": [{"who": "shop", "state": "PUT", "at": "1"}, {"who": "shop", "state": "JOURNALLED", "at": "4"}],
        "subscribers": {"w": [{"state": "GET", "at": "2"}, {"state": "DONE", "at": "3"}]},
    }
    assert story(trace) == ["1  shop: PUT", "2  w: GET", "3  w: DONE", "4  shop: JOURNALLED"]


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    fleet = Fleet(ring(("porto", "lyon", "turin")), tmp_path)
    fleet.queues = {"lyon": queues()}
    with fleet:
        for _ in fleet.settling(60.0):
            pass
        found = QueueAct(fleet, ("porto", "turin", "lyon"), "lyon", "turin", print).run()
    assert found.problems() == []
    assert found.sent > 100
    assert len(found.worked) == 4
    assert sum("GET" in line for line in found.trace) == 3, found.trace
