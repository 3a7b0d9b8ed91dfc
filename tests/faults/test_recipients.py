"""Applications that hang, and brokers that die meanwhile: a sample of `benchmarks/trials/recipients`, whose whole runs in `make soak`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.broker.recipients.settings import Intervals

from benchmarks.trials.recipients import hang, kill
from benchmarks.trials.recipients.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.keeps]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path, Intervals(0.5, 1.0, 2.0), print) as made:
        yield made


def test_each_message_ends_once_while_one_application_after_the_other_hangs(scene: Scene) -> None:
    report = hang.run(scene, rate=100.0, between=0.5)
    print(report)
    assert report.good, str(report)
    assert all(report.ended[who] for who in ("orders", "orders-turin", "orders-graz", "returned"))


def test_nothing_is_lost_while_brokers_are_killed(scene: Scene) -> None:
    report = kill.run(scene, rounds=2, seed=1, rate=100.0)
    print(report)
    assert report.good, str(report)
