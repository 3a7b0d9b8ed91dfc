"""What the journal remembers of names that clients choose."""

from __future__ import annotations

from pathlib import Path

from mqmesh.broker.journal import topics
from mqmesh.broker.journal.settings import JournalSettings


def test_rules_of_queues_that_come_and_go_are_not_kept_for_ever() -> None:
    rules = topics.Topics(JournalSettings(Path("journal")))
    for number in range(2 * topics.QUEUES):
        assert rules.queue_rule(f"tmp/1/{number}").mode == rules.queue_rule("orders").mode
    assert len(rules._queues) == topics.QUEUES
