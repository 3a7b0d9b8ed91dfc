"""`benchmarks.scale` measures what it says, with small numbers; a figure beyond its bar is a failure."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import scale

pytestmark = pytest.mark.slow
SMALL = ["--clients", "50", "--subscriptions", "1000", "--seconds", "1", "--peers", "mqmesh", "--json"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "MESSAGES", 600)


def run(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    done = CliRunner().invoke(scale.app, [*SMALL, *arguments])
    lines = done.stdout.splitlines()
    return done.exit_code, json.loads(lines[-1]) if lines else []


def test_three_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "BARS", {"idle": 1e9, "subscriptions": 1e9, "unread": 1e9})  # what a test may not judge is time
    status, figures = run()
    assert status == 0
    assert [one["what"] for one in figures] == ["idle", "subscriptions", "unread"]
    assert figures[1]["value"] > 0  # type: ignore[operator]
    assert all(one["value"] >= 0 for one in figures)  # type: ignore[operator]  # 50 clients may fit into memory that is there already
    assert figures[2]["details"]["megabytes_sent"] > 1  # type: ignore[index]


def test_a_figure_beyond_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "BARS", {"idle": 0.0, "subscriptions": 0.0, "unread": 0.0})
    status, (figure,) = run("--only", "subscriptions")
    assert status == 1
    assert figure["good"] is False


def test_the_filters_are_well_formed_and_differ() -> None:
    from mqmesh.mqtt.topics import check_filter, matches

    filters = [one.decode() for client in range(3) for one in scale.filters_of(client, 500)]
    assert len(set(filters)) == 1500
    for one in filters:
        check_filter(one)
        assert not matches(one, scale.TOPIC.decode())
    assert sum("+" in one or "#" in one for one in filters) == 300
