"""SIGHUP: the broker's file is read in a thread, and taken over in the loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest import mock

import pytest
from mqmesh.base.settings import ConfigError
from mqmesh.broker import program
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.program import Reloading

TIMEOUT = 30.0


class Story:
    """What is read and taken over. may: what each reading waits for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.may = threading.Semaphore(0)
        self.read: list[int] = []  # threads
        self.taken: asyncio.Queue[object] = asyncio.Queue()
        monkeypatch.setattr(program, "reload_files", self._take)

    def reload(self) -> BrokerConfig:
        assert self.may.acquire(timeout=TIMEOUT)
        self.read.append(threading.get_ident())
        if len(self.read) == 2:
            raise ConfigError("broker.toml", "name", 1, "wrong")
        return BrokerConfig(f"name-{len(self.read)}")

    def _take(self, broker: object, reload: Any, inside: object) -> None:
        try:
            self.taken.put_nowait(reload().name)
        except ConfigError:
            self.taken.put_nowait("wrong")


async def test_the_loop_goes_on_while_the_file_is_read_and_later_signals_count(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    reloading = Reloading(mock.Mock(), story.reload, ())
    reloading.begin()
    await asyncio.sleep(0)
    assert story.taken.empty()
    story.may.release()
    async with asyncio.timeout(TIMEOUT):
        assert await story.taken.get() == "name-1"
        reloading.begin()
        await asyncio.sleep(0)  # it is being read
        reloading.begin()
        reloading.begin()
        story.may.release(2)
        assert [await story.taken.get(), await story.taken.get()] == ["wrong", "name-3"]
    assert threading.get_ident() not in story.read
    assert story.taken.empty()


async def test_what_is_being_read_when_the_broker_ends_is_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(monkeypatch)
    reloading = Reloading(mock.Mock(), story.reload, ())
    reloading.begin()
    await asyncio.sleep(0)
    reloading.end()
    story.may.release()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert story.taken.empty()


async def test_without_a_file_only_certificates_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(program, "reload_files", lambda *args: calls.append(args[1]))
    Reloading(mock.Mock(), None, ()).begin()
    assert calls == [None]
