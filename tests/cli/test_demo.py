"""The main job itself, run as users run it."""

from __future__ import annotations

import json
import subprocess

import pytest
from command import MQMESH, run


@pytest.mark.slow
def test_the_demo_loses_nothing_and_says_so() -> None:
    done = run("demo", "--for", 10, "--json", timeout=100)
    assert done.stdout, done.stderr.decode()
    report = json.loads(done.stdout)
    assert done.returncode == 0, (report["problems"], done.stderr)
    total = report["totals"]
    assert (total["lost"], total["duplicates"], report["ok"]) == (0, 0, True)
    assert total["due"] == total["delivered"] > 4000
    copies = report["copies"]
    assert copies["exact"]
    assert copies["frames"] == copies["optimum"] * copies["messages"]
    assert len(report["faults"]) == 4
    assert all(fault["flowed_again"] is not None for fault in report["faults"])
    assert b"SIGKILL" in done.stderr


@pytest.mark.slow
def test_the_demo_ends_in_order_when_it_is_stopped() -> None:
    process = subprocess.Popen([*MQMESH, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "settled" in line:
            break
    process.terminate()
    assert process.wait(20) == 130
    process.communicate()


def test_too_short_a_run_is_refused() -> None:
    done = run("demo", "--for", 1)
    assert done.returncode == 2
