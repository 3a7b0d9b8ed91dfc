"""The main job itself, run as users run it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from mqmesh.base.extras import install
from mqmesh.cli.demo import foreign_broker
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet
from support.command import MQMESH, run
from support.services import PATIENCE


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_loses_nothing_and_says_so() -> None:
    for _ in range(3):
        done = run("demo", "--for", 10, "--rate", 100, "--no-spark", "--json", timeout=280)
        assert done.stdout, done.stderr.decode()
        report = json.loads(done.stdout)
        assert done.returncode == 0, (report["problems"], done.stderr)
        if report["copies"]["trees"] == 0:
            break  # else a busy machine gave a link up while frames were counted, which the demo says: it is done again
    total = report["totals"]
    assert (total["lost"], total["duplicates"], report["ok"]) == (0, 0, True)
    assert total["due"] == total["delivered"] > 1000
    copies = report["copies"]
    assert copies["exact"]
    assert copies["frames"] == copies["optimum"] * copies["messages"]
    assert len(report["faults"]) == 4
    assert all(fault["flowed_again"] is not None for fault in report["faults"])
    assert b"SIGKILL" in done.stderr
    abroad = report["abroad"]
    assert abroad["skipped"] == ""
    assert (abroad["connections"], abroad["sessions"], abroad["told"], abroad["refused"]) == (1, 4, 2, True)
    assert abroad["returned"] is not None
    assert [(one["delivered"], one["lost"]) for one in abroad["visitors"]] == [(abroad["acknowledged"], 0)] * 2
    assert abroad["acknowledged"] > 50
    recipients = report["recipients"]
    assert (recipients["lost"], recipients["repeated"]) == (0, 0)
    assert recipients["sent"] > 100
    assert all(step["noticed"] is not None for step in recipients["steps"])


@pytest.mark.slow
def test_the_demo_ends_in_order_when_it_is_stopped() -> None:
    process = subprocess.Popen([*MQMESH, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "settled" in line:
            break
    process.terminate()
    assert process.wait(PATIENCE) == 130
    process.communicate()


def test_the_third_act_is_left_out_where_its_packages_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign_broker, "find_spec", lambda module: None)
    said: list[str] = []
    act = foreign_broker.ForeignBrokerAct(Fleet(ring(), tmp_path), ("lyon", "graz"), "turin", said.append)
    result = act.run()
    assert install("demo") in result.skipped
    assert "amqtt, directory, uddi" in said[0]
    assert result.problems() == []


def test_what_must_not_be_in_the_third_act() -> None:
    good = foreign_broker.ForeignBrokerResult("", 9, [foreign_broker.SiteArrivals("lyon", 9)], 2, 1, 1, True, 1.0)
    assert good.problems() == []
    bad = foreign_broker.ForeignBrokerResult("", 9, [foreign_broker.SiteArrivals("lyon", 8, 1)], 2, 2, 0, False)
    assert len(bad.problems()) == 4


@pytest.mark.process
def test_too_short_a_run_is_refused() -> None:
    done = run("demo", "--for", 1)
    assert done.returncode == 2
