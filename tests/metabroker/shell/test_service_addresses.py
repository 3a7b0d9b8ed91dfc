"""Services of very many remotes: each name is looked up once, and remotes that are not for us any more have a turn of the loop each."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from mqmesh.metabroker.shell.resolver import NotPermitted
from mqmesh.metabroker.shell.service_addresses import ServiceAddresses

REMOTES = 100


@pytest.mark.parametrize("permitted", [True, False])
def test_a_service_of_many_remotes_is_looked_up_once(permitted: bool) -> None:
    asked: list[str] = []

    class Book:
        def resolve(self, name: str, again: bool = False) -> list[str]:
            asked.append(name)
            if not permitted and name == "weather":
                raise NotPermitted("not for us")
            return ["mqtt://h:1"]

    async def story() -> None:
        core: Any = mock.Mock()
        core.remotes = dict.fromkeys(range(REMOTES + 2))
        core.service = lambda number: {REMOTES: "", REMOTES + 1: "rain"}.get(number, "weather")
        refused: list[int] = []
        core.on_not_permitted = lambda number, *_: refused.append(number)
        services = ServiceAddresses(Book(), core, {}, 10.0, lambda work: None, lambda: None)
        services._checking = True
        task = asyncio.create_task(services._check())
        before, most = 0, 0
        while not task.done():
            await asyncio.sleep(0)
            most, before = max(most, len(refused) - before), len(refused)
        services.end()
        assert asked == ["weather", "rain"]
        assert refused == ([] if permitted else list(range(REMOTES)))
        assert most == (not permitted)
        assert not services._checking

    asyncio.run(story())
