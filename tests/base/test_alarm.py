"""One timer for many deadlines."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from mqmesh.base.alarm import Alarm


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_earliest_time_wins_also_when_it_is_past(new_loop: type[asyncio.AbstractEventLoop]) -> None:
    loop = new_loop()
    rung: list[float] = []

    def ring(at: float) -> None:
        rung.append(at)
        loop.stop()

    alarm = Alarm(ring)
    now = loop.time()
    for at in (now + 3600, now - 1, now + 60, now - 2):  # the last one is earlier than one that is due already
        alarm.set(loop, at)
    loop.run_forever()
    assert rung == [now - 2]
    alarm.set(loop, now + 3600)  # it has rung: any time is taken
    alarm.set(loop, now - 3)
    loop.run_forever()
    assert rung == [now - 2, now - 3]
    loop.close()


def test_a_cancelled_alarm_does_not_ring() -> None:
    loop = asyncio.new_event_loop()
    rung: list[float] = []
    alarm = Alarm(rung.append)
    alarm.cancel()
    alarm.set(loop, loop.time())
    alarm.cancel()
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    assert not rung
    loop.close()
