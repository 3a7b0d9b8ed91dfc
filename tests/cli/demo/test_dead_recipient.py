"""The demo's fourth act: how it counts, and a short run of it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from mqmesh.cli.demo.dead_recipient import FIRST, RETURNED, SECOND, DeadRecipientAct, DeadRecipientResult, End, Step, recipients, tally
from mqmesh.cli.demo.ring import ring
from mqmesh.cli.fleet.process import Fleet


def test_each_end_is_counted() -> None:
    ends = {
        0: [End(FIRST, 1.0)],
        1: [End(FIRST, 1.0), End(SECOND, 2.0, repeated=True)],
        2: [End(SECOND, 1.0), End(FIRST, 2.0)],
        3: [End(RETURNED, 1.0)],
        5: [End(FIRST, 1.0)],
    }
    found = tally(range(5), ends)
    assert (found.sent, found.lost, found.returned, found.marked, found.repeated) == (5, 1, 1, 1, 1)
    assert found.handled == {FIRST: 3, SECOND: 2}
    assert found.problems() == ["1 orders were lost", "1 orders were handled twice and not marked"]


def test_what_nobody_notices_is_a_problem() -> None:
    assert DeadRecipientResult(steps=[Step("orders hangs", 1.0)]).problems() == ["nobody noticed: orders hangs"]
    assert DeadRecipientResult(steps=[Step("orders hangs", 1.0, 0.5)]).problems() == []


def test_the_order_that_is_being_sent_when_the_shop_closes_is_waited_for() -> None:
    act = DeadRecipientAct(cast(Fleet, SimpleNamespace(folder=None)), "turin", "porto", "lyon", lambda text: None)
    sending, acknowledged, counted = threading.Event(), threading.Event(), threading.Event()

    def send(number: int) -> None:
        sending.set()
        acknowledged.wait()

    def finish() -> None:
        act._finish()
        counted.set()

    act._sell(send)
    sending.wait()
    finishing = threading.Thread(target=finish, daemon=True)
    finishing.start()
    act._shop.closed.wait()  # the shop closes, and the order is not acknowledged yet
    acknowledged.set()
    act._shop.sellers[0].join()
    assert not counted.is_set()  # the order is with a clerk
    act._end(0, End(FIRST, 1.0))
    counted.wait()
    assert tally(act._sent, act._ends).problems() == []


@pytest.mark.slow
def test_nothing_is_lost_while_clerks_hang(tmp_path: Path) -> None:
    fleet = Fleet(ring(("porto", "lyon", "turin")), tmp_path)
    fleet.recipients = recipients()
    said: list[str] = []
    with fleet:
        for _ in fleet.settling(90):
            pass
        result = DeadRecipientAct(fleet, "turin", "porto", "lyon", said.append).run()
    assert result.problems() == []
    assert result.sent > 100
    assert min(result.handled[FIRST], result.handled[SECOND], result.returned) > 0
    assert len(result.steps) == 5
    assert all(step.noticed is not None and step.then for step in result.steps)
    assert any("fault after" in one for one in said)
