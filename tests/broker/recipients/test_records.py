"""The choice of an alternative, which is pure."""

from __future__ import annotations

from mqmesh.broker.recipients.handover.records import Record, choose

NAMES = [f"tried-{number}" for number in range(8)]


def test_f16_alternatives_of_those_that_were_tried_come_in_the_order_of_the_tries() -> None:
    records = {name: Record(name, 1, "porto", alternatives=[f"after-{name}"]) for name in NAMES}
    records |= {one.alternatives[0]: Record(one.alternatives[0], 1, "porto") for one in list(records.values())}
    for tried in (NAMES, NAMES[::-1]):
        steps, chosen = choose("orders", ["orders", *tried], records.get, lambda _: True)
        assert chosen is records[f"after-{tried[0]}"]
        assert [step.recipient for step in steps] == [f"after-{tried[0]}"]
