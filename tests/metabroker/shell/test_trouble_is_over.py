"""Troubles of a metabroker that go by themselves: the log says once that there is one, and once that it is over."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from mqmesh.base.refusals import Refusals
from mqmesh.metabroker.peers.roster import Roster
from mqmesh.metabroker.shell import server as module
from mqmesh.metabroker.shell.server import Server
from mqmesh.store import Kind, StoreError


@pytest.fixture
def server() -> Any:
    made: Any = object.__new__(Server)
    made._unseen = made._unheard = False
    made._warned = Refusals(module.log)
    made._now = lambda: 0.0
    made._carry_out = mock.Mock()
    made.roster = Roster(1, joining=True)
    return made


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.split()[0] for one in caplog.messages]


def test_metabrokers_that_are_heard_again(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    roster = server.roster
    roster.connected(0.0)
    for reason in (0x87, 0):
        roster.refused()
        server._say_heard(reason)
    assert said(caplog) == ["event=metabrokers-unheard"]
    for word in roster.take():
        roster.hear(word.topic, word.body, 1.0)
        server._say_heard()
    assert said(caplog) == ["event=metabrokers-unheard", "event=metabrokers-heard"]


def test_metabrokers_that_may_not_speak(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The broker lets this one subscribe, and drops what it publishes."""
    server.roster.connected(0.0)
    server.failed, server.community = mock.Mock(), mock.Mock(taken=False)
    server.failed.done = lambda: False
    server._homes = server._store = None
    for now in (0.0, 100.0, 200.0):
        server._now = lambda now=now: now
        server._on_beat()
    assert said(caplog) == ["event=metabrokers-unheard"]


def test_homes_that_are_seen_again(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    homes = mock.Mock()
    homes.others.side_effect = [StoreError(Kind.OTHER, "there", "gone"), StoreError(Kind.OTHER, "there", "gone"), set(), set()]

    async def story() -> None:
        for _ in range(4):
            await server._look_for_homes(homes)

    asyncio.run(story())
    assert said(caplog) == ["event=homes-unseen", "event=homes-seen"]
