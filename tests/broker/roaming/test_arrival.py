"""Very many clients that come at once to a site where their sessions are not: they stand in a line."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.broker.roaming.arrival import Line
from mqmesh.mesh.roaming.names import Places
from mqmesh.mesh.roaming.places import Place
from support.broker_site import Client, until

from .test_owner import answered, come, let_in, pair

CLIENTS = 12


class Turns:
    """A line, clients that ask, and who has had his turn."""

    def __init__(self, asking: int) -> None:
        self.places = Places()
        self.line = Line(self.places)
        self.came: list[str] = []
        for i in range(asking):
            self.ask(f"c{i}")

    def ask(self, client: str) -> None:
        place = self.places[client] = Place(client, (1, 1))
        place.waiting = 1 << 2
        self.line.asks(client)

    def stand(self, client: str) -> None:
        def go() -> None:
            self.came.append(client)
            self.ask(client)

        self.line.stand(go)


def test_nobody_stands_in_it_while_few_ask() -> None:
    turns = Turns(Line.MOST - 1)
    assert not turns.line.full
    turns.ask("one more")
    assert turns.line.full


def test_each_answer_lets_the_next_one_ask() -> None:
    turns = Turns(Line.MOST)
    for client in ("a", "b", "c"):
        turns.stand(client)
    turns.line.go_on()
    assert turns.came == []
    turns.places["c0"].waiting = 0
    del turns.places["c1"]  # it was refused
    turns.line.go_on()
    assert turns.came == ["a", "b"]
    assert len(turns.line) == 1
    assert turns.line.full


def test_those_that_wait_for_long_hold_up_nobody() -> None:
    turns = Turns(Line.MOST)
    turns.stand("a")
    turns.places[f"c{Line.MOST - 1}"].waiting = 0
    turns.line.go_on()
    assert turns.came == ["a"]


async def test_all_get_their_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ask at a time; one of those in the line leaves before its turn."""
    monkeypatch.setattr(Line, "MOST", 2)
    async with pair(None, False) as (one, two):
        for i in range(CLIENTS):
            await (await let_in(one, None, f"c{i}")).leave()
        roaming = two.broker.site.roaming
        assert roaming is not None
        clients: list[Client] = list(await asyncio.gather(*(come(two, None, f"c{i}") for i in range(CLIENTS))))
        await clients.pop().cut()
        connacks = await asyncio.gather(*map(answered, clients))
        assert [(found.reason, found.session_present) for found in connacks] == [(0, True)] * (CLIENTS - 1)
        await until(lambda: len(roaming.line) == 0 and not roaming._waiting)
        for client in clients:
            assert await client.publish("up", b"1", 1) in (0, 0x10)
