"""The connections of thousands of remotes that are lost at one moment: how many of them are taken in one turn of the loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any
from unittest import mock

from mqmesh.base.metabroker import Code
from mqmesh.metabroker.shell.server import AT_ONCE, Server


def test_remotes_that_are_lost_at_once_are_taken_in_turns() -> None:
    async def story() -> None:
        server: Any = object.__new__(Server)
        server._down, server.failed = {}, asyncio.get_running_loop().create_future()
        server.core = server._services = server._now = server._carry_out = server._congestion = mock.Mock()
        server.core.tell_some = lambda: False
        failed: list[tuple[Any, ...]] = []
        server.core.on_failed = lambda *args: failed.append(args)
        for number in range(3 * AT_ONCE):
            server._remote_down(number, None if number else True, "lost")
        assert not failed
        server._on_remote(50, [])
        assert failed == [(50, Code.REMOTE_UNREACHABLE, "lost")], "what a remote says comes behind its loss"
        counts = []
        while server._down:
            await asyncio.sleep(0)
            counts.append(len(failed))
        assert counts == [1 + AT_ONCE, 1 + 2 * AT_ONCE, 3 * AT_ONCE]
        assert failed[1] == (0, Code.REMOTE_REFUSED_CREDENTIALS, "lost")

    asyncio.run(story())


def test_thousands_of_remotes_are_left_in_turns() -> None:
    async def story() -> None:
        server: Any = object.__new__(Server)
        server._store, server._services, server._others = None, mock.Mock(), set()
        left, counts = [0], []

        async def stay() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                left[0] += 1

        server.remotes = {number: mock.Mock() for number in range(3 * AT_ONCE + 5)}
        server._tasks = {number: asyncio.create_task(stay()) for number in server.remotes}
        await asyncio.sleep(0)
        ending = asyncio.create_task(server._end())
        while not ending.done():
            await asyncio.sleep(0)
            counts.append(left[0])
        assert counts[-1] == len(server.remotes)
        assert max(after - before for before, after in pairwise([0, *counts])) == AT_ONCE
        assert all(one.forget for one in server.remotes.values())

    asyncio.run(story())
