"""The demo's sixth act: what counts as a problem, and a short run of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.cli.demo.interchange_act import FAR, NEAR, InterchangeAct, InterchangeActResult, written
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet


def test_problems() -> None:
    assert InterchangeActResult(answered=1, refused=1, late=1).problems() == [
        "1 of two banks answered",
        "the filter stopped 1 of two requests that were too large",
        "a request to a bank that was cut off did not expire",
        "1 expired requests came to a bank",
        "not both banks answered after the cut",
    ]
    assert InterchangeActResult(2, 2, 3.0, 0, 1.0).problems() == []


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    sites = ("porto", "lyon", "turin", "graz")
    fleet = Fleet(ring(sites), tmp_path, proxies=True)
    fleet.services = written(tmp_path, sites)
    with fleet:
        for _ in fleet.settling(60.0):
            pass
        found = InterchangeAct(fleet, sites, ("turin", "porto"), print).run()
    assert found.problems() == []
    text = " ".join(" ".join(found.picture).split())
    assert f"to {NEAR}: answered" in text
    assert f"to {FAR}: expired" in text
    assert "filter/credit -> " + NEAR in text
