"""A broker of a mesh is killed while it writes the journal: nothing is corrupt, and what is missing is said: the end of that life only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mqmesh.broker.journal.ends import stories
from mqmesh.broker.journal.kinds import Kind
from mqmesh.broker.journal.reading import Journal
from mqmesh.broker.journal.settings import JournalSettings
from support.paho_client import Paho
from support.scenes import TRIANGLE, Scene, mesh

pytestmark = pytest.mark.slow

EACH = 150


def test_what_a_crash_loses_is_said_and_bounded(tmp_path: Path) -> None:
    root = tmp_path / "journal"
    scene = Scene(mesh(TRIANGLE), tmp_path / "scene")
    scene.fleet.journal = JournalSettings(str(root), batch_seconds=0.05)
    with scene:
        ports = {site: scene.address(site)[1] for site in scene.sites}
        watcher = Paho(ports["c"]).open()
        watcher.subscribe("t/#", 1)
        scene.settle()
        for _ in range(2):
            with Paho(ports["a"]) as publisher:
                for number in range(EACH):
                    publisher.publish("t/x", str(number), 1)
            got = [watcher.next().payload for _ in range(EACH)]
            assert sorted(got) == sorted(str(number).encode() for number in range(EACH))
            scene.fleet.kill("a")
            scene.fleet.restart("a")
            scene.settle()
        watcher.close()
    journal = Journal(str(root))
    assert journal.check() == []
    rows = [row for table in journal.tables() for row in table.select(["kind", "broker", "epoch", "event", "count", "detail"]).to_pylist()]
    lives: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        lives.setdefault((row["broker"], row["epoch"]), []).append(row["event"])
    assert all(sorted(events) == list(range(1, len(events) + 1)) for events in lives.values()), "no event twice, none missing in between"
    gaps = [json.loads(row["detail"]) for row in rows if row["kind"] == Kind.GAP]
    assert [gap["why"] for gap in gaps] == ["crash", "crash"]
    number = next(broker for broker, epoch in lives if epoch == gaps[0]["epoch"])
    assert [len(lives[number, gap["epoch"]]) for gap in gaps] == [gap["after"] for gap in gaps]
    found = stories(journal.tables())
    whole = [story for story in found.values() if not story.missing]
    print(f"{len(whole)} of {2 * EACH} messages have their end; the crashes lost the rest")
    delivered = sum(row["count"] for row in rows if row["kind"] == Kind.DELIVERED)
    assert delivered == 2 * EACH, "the other brokers' part is whole"
