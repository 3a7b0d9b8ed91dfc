"""One connection of an attached broker on its transport."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from mqmesh.broker.attach import shell
from mqmesh.broker.attach.end import PUBACK, End
from mqmesh.broker.attach.shell import Line
from mqmesh.broker.transport.in_process import InProcessPair
from mqmesh.mqtt.packets import Connect


class Deaf(asyncio.Protocol):
    """A broker that does not read."""

    def connection_made(self, transport: Any) -> None:
        transport.pause_reading()


async def test_a_broker_that_sends_and_does_not_read_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MOST_WAITING", 4000)
    lost: list[str] = []
    owner: Any = SimpleNamespace(ended=lost.append)
    line = Line(owner, End("there", Connect(), 2**20))
    InProcessPair(line, Deaf(), lambda error: None)
    line.end.out.append(bytes(10_000))  # one large message may wait
    line.write()
    assert not lost
    for number in range(1, 2000):
        line.end.answer(PUBACK, number)
        line.write()
    assert "does not read" in lost[0]
