"""Very many clients that come at once to a site where their sessions are not: they stand in a line."""

from __future__ import annotations

import asyncio

import pytest
from mqmesh.broker.roaming.arrival import Line
from mqmesh.mesh.roaming.names import Places
from mqmesh.mesh.roaming.places import Place
from support.broker_site import Client, until

from .test_owner import answered, come, let_in, linked, pair, site

CLIENTS = 12
NOW = 100.0


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
        self.line.asks(client, NOW)

    def stand(self, client: str) -> None:
        def go() -> None:
            self.came.append(client)
            self.ask(client)

        self.line.stand(go)


def test_nobody_stands_in_it_while_few_ask() -> None:
    turns = Turns(Line.MOST - 1)
    assert not turns.line.full(NOW)
    turns.ask("one more")
    assert turns.line.full(NOW)


def test_each_answer_lets_the_next_one_ask() -> None:
    turns = Turns(Line.MOST)
    for client in ("a", "b", "c"):
        turns.stand(client)
    turns.line.go_on(NOW)
    assert turns.came == []
    turns.places["c0"].waiting = 0
    del turns.places["c1"]  # it was refused
    turns.line.go_on(NOW)
    assert turns.came == ["a", "b"]
    assert len(turns.line) == 1
    assert turns.line.full(NOW)


def test_those_that_wait_for_long_hold_up_nobody() -> None:
    turns = Turns(Line.MOST)
    turns.stand("a")
    turns.places[f"c{Line.MOST - 1}"].waiting = 0
    turns.line.go_on(NOW)
    assert turns.came == ["a"]


def test_a_member_that_does_not_answer_holds_up_nobody_for_long() -> None:
    turns = Turns(Line.MOST)
    turns.stand("a")
    turns.line.go_on(NOW + Line.PATIENCE / 2)
    assert turns.came == []
    turns.line.go_on(NOW + Line.PATIENCE)
    assert turns.came == ["a"]


def test_a_session_that_will_be_passed_on_is_an_answer() -> None:
    """It may take a minute to come."""
    turns = Turns(Line.MOST)
    turns.stand("a")
    for place in turns.places.values():
        place.coming = place.waiting
    turns.line.go_on(NOW)
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


async def test_a_member_that_never_answers_does_not_stop_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Line, "MOST", 2)
    async with site(1, None) as one, site(2, None, one, roam_wait=60.0) as two:
        await linked(one, two)
        deaf, roaming = one.broker.site.roaming, two.broker.site.roaming
        assert deaf is not None
        assert roaming is not None
        monkeypatch.setattr(deaf, "received", lambda *_: None)
        for i in range(CLIENTS):
            await come(two, None, f"c{i}")
        await until(lambda: len(roaming.line) == 0 and len(roaming._waiting) == CLIENTS)
