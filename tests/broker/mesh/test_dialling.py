"""How often a neighbour is dialled again: soon while nobody is there, less and less often where a link breaks at once."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.base.backoff import Backoff
from mqmesh.broker.config import BrokerConfig, Limits, MeshSettings, PeerSettings
from mqmesh.broker.mesh import dialer
from mqmesh.broker.server import Broker

ATTEMPTS = 12
KEY = "a key of sixteen bytes"


class Pauses:
    """Pauses that are noted and left out; the wish for the last of ATTEMPTS ends the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[float] = []
        self.enough = asyncio.Event()

        class Noted(Backoff):
            def next(one) -> float:
                self.taken.append(super().next())
                if len(self.taken) >= ATTEMPTS:
                    self.enough.set()
                return 0.0

        monkeypatch.setattr(dialer, "Backoff", Noted)


async def pauses_of(monkeypatch: pytest.MonkeyPatch, address: str, **settings: float) -> list[float]:
    """The first pauses of a broker with one neighbour."""
    noted = Pauses(monkeypatch)
    mesh = MeshSettings("sites", KEY, peers=[PeerSettings(address)], **settings)
    broker = Broker(BrokerConfig("near", 1, listen=[], mesh=mesh, limits=Limits(sys_interval=0)))
    await broker.start()
    try:
        async with asyncio.timeout(30):
            await noted.enough.wait()
    finally:
        await broker.stop()
    return noted.taken[:ATTEMPTS]


@pytest.mark.parametrize("answers", [False, True], ids=["refused", "reset"])
def test_a_neighbour_that_is_not_reached_is_dialled_each_second(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    async def work() -> list[float]:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if not answers:
            server.close()
        try:
            return await pauses_of(monkeypatch, f"mqtt://127.0.0.1:{port}")
        finally:
            server.close()

    pauses = asyncio.run(work())
    assert pauses[0] <= 0.12
    assert all(0.8 <= one <= 1.2 for one in pauses[-5:])


def test_a_longer_first_pause_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = asyncio.run(pauses_of(monkeypatch, "mqtt://127.0.0.1:1", retry_first=3.0))
    assert all(2.4 <= one <= 3.6 for one in pauses)


def test_a_shorter_longest_pause_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = asyncio.run(pauses_of(monkeypatch, "mqtt://127.0.0.1:1", retry_last=0.3))
    assert all(one <= 0.36 for one in pauses)


def test_a_link_that_breaks_at_once_is_dialled_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[float]:
        far = Broker(BrokerConfig("far", 2, listen=["mqtt://127.0.0.1:0"], mesh=MeshSettings("others", KEY), limits=Limits(sys_interval=0)))
        await far.start()
        try:
            return await pauses_of(monkeypatch, far.addresses[0])
        finally:
            await far.stop()

    assert max(asyncio.run(work())) > 3.9
