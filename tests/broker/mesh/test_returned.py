"""The log of what comes back: one line for each destination and reason, with what it means."""

from __future__ import annotations

import logging

import pytest
from mqmesh.broker.mesh.returned import REASONS, Returned
from mqmesh.mqtt.batch.run import Run


@pytest.mark.parametrize("reason", REASONS)
def test_one_line_for_each_destination(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    returned = Returned({3: "lyon", 4: "a site"}.__getitem__)
    returned.came(3, reason, Run(b"a/b", 1, False, [b"1", b"2"], b"", None, 0.0))
    returned.came(3, reason, Run(b"c", 1, False, [b"3"], b"", None, 0.0))
    returned.given_up(4, reason, 7)
    with caplog.at_level(logging.WARNING):
        returned.say()
        returned.say()
    assert [record.getMessage() for record in caplog.records] == [
        f"event=returned destination=3 name=lyon reason={reason} messages=3 first_topic=a/b text={REASONS[reason]}",
        f'event=returned destination=4 name="a site" reason={reason} messages=7 place=disk text={REASONS[reason]}',
    ]


def test_a_topic_writes_no_keys_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    returned = Returned(str)
    returned.came(3, "expired", Run(b"a level=error event=stopped", 1, False, [b"1"], b"", None, 0.0))
    with caplog.at_level(logging.WARNING):
        returned.say()
    assert 'first_topic="a level=error event=stopped"' in caplog.text
