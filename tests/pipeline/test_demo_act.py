"""The demo's last act over a journal that a test writes: a message's way, faults beside what was done, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mqmesh.base.extras import install
from mqmesh.broker.config import load
from mqmesh.broker.journal.schema import Kind
from mqmesh.cli.demo import journal_act
from mqmesh.cli.demo.journal_act import JournalAct, JournalResult, missing, settings
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet import broker_file
from mqmesh.cli.fleet.process import Fleet
from mqmesh.pipeline.run import Order, run
from support.written_journal import NOVEMBER, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000  # microseconds
SITES = {1: "porto", 2: "lyon", 3: "turin"}


def written(folder: Path) -> None:
    """One message from 1 over 2 to 3, and a link that is down for two seconds."""
    made = Written(folder)
    common: dict[str, Any] = {"origin": 1, "stream": 1, "sequence": 7, "size": 10, "topic": "plant/3", "qos": 1, "published": NOVEMBER}
    at = NOVEMBER

    def step(kind: Kind, milliseconds: int, **more: Any) -> dict[str, Any]:
        return {"kind": kind, "time": at + milliseconds * 1000, **common, **more}

    link = [(Kind.LINK_UP, 0), (Kind.LINK_DOWN, 10), (Kind.LINK_UP, 12)]
    links = {
        broker: [
            {"kind": kind, "time": at + seconds * SECOND + broker * 1000, "to_broker": 3 - broker, "value": 1} for kind, seconds in link
        ]
        for broker in (1, 2)
    }
    made.events(step(Kind.PUBLISHED, 0, client="meter", value=2), step(Kind.FORWARDED, 1, to_broker=2), *links[1], broker=1)
    made.events(step(Kind.RECEIVED, 2, from_broker=1), step(Kind.FORWARDED, 3, to_broker=3), *links[2], broker=2)
    end = [step(Kind.DELIVERED, 6, client="desk"), step(Kind.ACKNOWLEDGED, 9, client="desk")]
    made.events(step(Kind.RECEIVED, 5, from_broker=2, value=1), *end, broker=3)
    made.counts({"kind": Kind.PUBLISHED, "topic": "plant", "account": "acme", "messages": 1, "bytes": 10})
    made.close()


def act(tmp_path: Path, said: list[str]) -> JournalAct:
    did = [(9.9, "link porto - lyon cut"), (11.9, "link porto - lyon mended")]
    return JournalAct(tmp_path, tmp_path / "pictures", SITES, NOVEMBER / 1e6, did, said.append)


def test_it_shows_the_way_of_a_message_and_the_faults(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "journal")

    def pipeline(self: JournalAct) -> dict[str, Any]:
        summary = run(Order(str(self.journal), str(self.out), tuple(journal_act.jobs())))
        assert not summary.failed, [job.error for job in summary.jobs]
        return {}

    monkeypatch.setattr(JournalAct, "_pipeline", pipeline)
    found = act(tmp_path, []).run()
    assert found.problems() == []
    assert found.messages == {"complete": 1}
    way = [line.split()[2:4] for line in found.story[2:]]
    assert way == [
        ["porto", "published"],
        ["porto", "forwarded"],
        ["lyon", "received"],
        ["lyon", "forwarded"],
        ["turin", "received"],
        ["turin", "delivered"],
        ["turin", "acknowledged"],
    ]
    (fault,) = found.faults
    assert (fault.what, fault.did) == ("link porto - lyon", "link porto - lyon cut")
    assert (round(fault.at), round(fault.lasted or 0)) == (10, 2)
    assert sorted(Path(path).name for path in found.pictures) == ["message.svg", "traffic-matrix.svg", "traffic.svg"]
    for path in found.pictures:
        assert Path(path).read_text().startswith("<svg")


def test_a_pipeline_that_fails_is_a_problem_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    found = act(tmp_path, said).run()
    assert len(found.problems()) == 1
    assert "has no closed segments" in found.failed or "the pipeline failed: " in found.failed
    assert "\n" not in found.failed
    assert said[0].startswith("Spark starts, and runs messages")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_act, "find_spec", lambda name: None if name == "pyspark" else object())
    assert missing() == f"pyspark is not installed: {install('spark')}"
    assert JournalResult().problems() == []


def test_brokers_of_a_fleet_get_the_journal(tmp_path: Path) -> None:
    fleet = Fleet(ring(), tmp_path)
    fleet.journal = settings(tmp_path)
    file = tmp_path / "porto.toml"
    broker_file.write(file, fleet.configuration("porto"))
    found = load(file).journal
    assert found == fleet.journal
    assert json.dumps(str(tmp_path / "journal")) in file.read_text()
