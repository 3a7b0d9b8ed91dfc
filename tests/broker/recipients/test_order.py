"""Order holds while messages are taken away from a dead recipient, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from mqmesh.broker.persistence.commits import Persistence
from mqmesh.store.memory import MemoryStore

from .test_recipients import application, served, site, state


class Gate:
    """What the store answers waits until the gate is opened. held: answers that wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[Callable[[], None]] = []
        self.shut = False
        original = Persistence.read

        def read(persistence: Persistence, ask: Callable[[], Any], take: Callable[[Any, Any], None]) -> None:
            original(persistence, ask, partial(self._came, take))

        monkeypatch.setattr(Persistence, "read", read)

    def _came(self, take: Callable[[Any, Any], None], answer: Any, error: Any) -> None:
        if self.shut:
            self.held.append(partial(take, answer, error))
        else:
            take(answer, error)

    def open(self) -> None:
        """Let the answers through."""
        self.shut = False
        held, self.held = self.held, []
        for call in held:
            call()


async def test_what_comes_while_messages_are_taken_away_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        b = await served(at, "b")
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/a/x", b"%d" % number, 1)
        gate.shut = True
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        assert state(at, "a") == "fault"
        await sender.publish("app/a/x", b"3", 1)  # the last one: nothing comes that would have it taken along
        gate.open()
        got = await b.messages(3)
        assert [one.payload for one in got] == [b"1", b"2", b"3"]


async def test_a_session_is_emptied_before_the_queue_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client's session has on the disk is older than what waits in the recipient's queue."""
    gate = Gate(monkeypatch)
    async with site(MemoryStore(), message_interval=3, application=[application("a", "b"), application("b")]) as at:
        a, b = await served(at, "a", clean=False, expiry=1000, receive_maximum=1), await served(at, "b")
        sender = await at.client("shop")
        for number in range(3):
            await sender.publish("app/a/x", b"%d" % number, 1)
        a.transport.abort()
        await at.gone("a")
        for number in range(3, 6):
            await sender.publish("app/a/x", b"%d" % number, 1)
        gate.shut = True
        await at.later(3.1)
        await at.until(lambda: bool(gate.held))
        assert len(gate.held) == 1
        gate.open()
        got = await b.messages(5)
        assert [one.payload for one in got] == [b"1", b"2", b"3", b"4", b"5"]
