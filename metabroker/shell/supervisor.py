"""Runs one metabroker after the other: an internal error ends one, and the next begins after a pause that grows with each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...base.backoff import Backoff
from ...base.process.descriptors import raise_file_limit
from ...base.process.memory import keep_freed_memory
from ...store.base import StoreError
from ..policy import Policy
from .community import Community
from .resolver import Resolver
from .server import Server

log = logging.getLogger(__name__)
PAUSES = (0.5, 30.0)  # seconds: first, longest
WELL = 60.0  # seconds after which a metabroker counts as one that runs


class Supervisor:
    """open_: makes a metabroker; it may raise StoreError. begun: there has been one already. faults: how many have ended with one."""

    def __init__(self, open_: Callable[[], Awaitable[Server]], begun: bool = False) -> None:
        self._open = open_
        self._server: Server | None = None
        self._begun = begun
        self.faults = 0

    async def run(self) -> None:
        """Until it is cancelled. Raises StoreError if there is no first one; later ones are tried again."""
        clock = asyncio.get_running_loop().time
        backoff = Backoff(*PAUSES)
        while True:
            began = clock()
            try:
                self._server = await self._open()
                self._begun = True
                await self._server.run()
            except StoreError as error:
                if not self._begun:
                    raise
                pause = backoff.next()
                log.error("event=metabroker-cannot-start pause=%g error=%r", pause, str(error))
            except Exception as error:
                if isinstance(_one_of(error), StoreError):  # another metabroker has what this one kept
                    pause = PAUSES[0]
                    log.error("event=metabroker-outdone pause=%g error=%r", pause, str(_one_of(error)))
                    await asyncio.sleep(pause)
                    continue
                self.faults += 1
                if clock() - began > WELL:
                    backoff.reset()
                pause = backoff.next()
                log.error("event=metabroker-failed pause=%g", pause, exc_info=_one_of(error))
            self._server = None
            await asyncio.sleep(pause)

    @property
    def server(self) -> Server | None:
        """The metabroker that runs now."""
        return self._server

    def leave(self) -> None:
        """Say that the metabroker ends in order; to be called before `run` is cancelled."""
        if self._server is not None:
            self._server.leave()


def _one_of(error: Exception) -> Exception:
    """What stands in a group of one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def run(
    community: Community,
    policy: Policy,
    resolver: Resolver,
    on_ready: Callable[[], None],
    data: Path | str | None = None,
    key_file: Path | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. data, key_file: see `Server.open`. Raises StoreError."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        supervisor = Supervisor(lambda: Server.open(community, policy, resolver, on_ready, data, key_file))

        def end() -> None:
            supervisor.leave()
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        with contextlib.suppress(asyncio.CancelledError):
            await supervisor.run()

    keep_freed_memory()
    raise_file_limit()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
