"""`mqmesh trace` over journals: text, JSON, a picture, and what is wrong in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from mqmesh.cli.main import app
from mqmesh.cli.trace.command import moment
from support.journals import SECOND, START, JournalMaker, message
from typer.testing import CliRunner


@pytest.fixture
def sites(tmp_path: Path) -> list[str]:
    """The journals of two sites: the first two brokers write one, the third another."""
    makers = JournalMaker(tmp_path / "one"), JournalMaker(tmp_path / "two")
    for number in (1, 2, 3):
        rows = makers[0].way(number, at=START + number * SECOND)
        makers[0].write([row for row in rows if row["broker"] < 3])
        if number != 2:
            makers[1].write([row for row in rows if row["broker"] == 3])
    return [f"--journal={maker.root}" for maker in makers]


def trace(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_a_message_over_the_journals_of_two_sites(sites: list[str], tmp_path: Path) -> None:
    said = trace(str(message(1)), *sites, f"--svg={tmp_path / 'way.svg'}")
    assert "complete" in said
    assert "acknowledged" in said
    assert "client reader" in said
    assert len(ET.parse(tmp_path / "way.svg").getroot()) > 6


def test_conditions_and_json(sites: list[str]) -> None:
    lines = [json.loads(line) for line in trace("--client", "publisher", "--json", *sites).splitlines()]
    assert [(line["status"], len(line["steps"])) for line in lines] == [("complete", 6), ("not received", 3), ("complete", 6)]
    (one,) = trace("--status", "not received", "--json", *sites).splitlines()
    assert json.loads(one)["message"] == str(message(2))
    assert len(trace("--topic", "shop/#", "--limit", "2", "--json", *sites).splitlines()) == 2


@pytest.mark.parametrize(("arguments", "status"), [
    (["7.1.1.1"], 2),
    (["x", "--journal=/nowhere"], 2),
    (["--journal=/nowhere"], 2),
    (["--since=yesterday", "--journal=/nowhere"], 2),
    (["--call=zz", "--journal=/nowhere"], 2),
    (["--status=good", "--journal=/nowhere"], 2),
    (["7.1.1.1", "--journal=/nowhere"], 1),
    (["7.1.1.1", "--tables=/nowhere"], 1),
])  # fmt: skip
def test_what_is_wrong(arguments: list[str], status: int) -> None:
    said = trace(*arguments, status=status)
    assert said.startswith("mqmesh: trace: ")
    assert len(said.splitlines()) == 1


def test_times() -> None:
    assert moment("--since", "10min", now=1000.0) == 400 * SECOND
    assert moment("--since", "1970-01-01T00:00:01") == SECOND
