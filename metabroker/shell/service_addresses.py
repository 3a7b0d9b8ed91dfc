"""The addresses of services, for a core: looked up in threads, again where none of them answers, and every CHECK seconds while in use.

A directory keeps the addresses of a service from those whom its permissions do not name. Who asks for a session is refused then; where a
permission is withdrawn, the sessions with the service end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from ...base.address import REMOTE, parse_address
from ..connectors.connector import Connector
from ..core.core import Core
from .resolver import NotPermitted, Resolver

LOOKUPS = 4  # threads
CHECK = 2.0  # seconds; answers come from a cache, which our directory keeps right


class ServiceAddresses:
    """See the module. It is used in one event loop.

    patience: seconds that a lookup may take. remotes: the connections. spawn: runs a coroutine beside.
    done: called when the core was told something.
    """

    def __init__(
        self,
        resolver: Resolver,
        core: Core,
        remotes: Mapping[int, Connector],
        patience: float,
        spawn: Callable[[object], None],
        done: Callable[[], None],
    ) -> None:
        self._resolver, self._core, self._remotes = resolver, core, remotes
        self._patience, self._spawn, self._done = patience, spawn, done
        self._threads = ThreadPoolExecutor(LOOKUPS, "lookup")  # a slow directory keeps nothing else waiting
        self._now = asyncio.get_running_loop().time
        self._moving: set[int] = set()  # remotes whose services are looked for again
        self._checked = self._now()
        self._checking = False

    def end(self) -> None:
        """Look up no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def find(self, number: int, name: str) -> None:
        """Tell the core where the service of a remote is."""
        self._spawn(self._find(number, name))

    def find_again(self, number: int) -> None:
        """A remote does not answer: where it is a service, that may be somewhere else now."""
        name = self._core.service(number)
        if name and number not in self._moving:
            self._moving.add(number)
            self._spawn(self._find_again(number, name))

    def tick(self) -> None:
        """Look now and then whether the services in use are still for us."""
        if self._now() - self._checked >= CHECK and not self._checking:
            self._checking = True
            self._spawn(self._check())

    async def _look_up(self, name: str, again: bool = False) -> list[str]:
        """It may take as long as a client waits for a connection. Raises LookupError."""
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._resolver.resolve, name, again)
        try:
            async with asyncio.timeout(self._patience):
                return await asked
        except TimeoutError:
            raise LookupError("the directory does not answer in time") from None

    async def _find(self, number: int, name: str) -> None:
        try:
            found = await self._look_up(name)
        except NotPermitted as failure:
            self._core.on_not_permitted(number, str(failure), self._now())
        except LookupError as failure:
            self._core.on_resolved(number, [], str(failure), self._now())
        else:
            self._core.on_resolved(number, found, "", self._now())
        self._done()

    async def _find_again(self, number: int, name: str) -> None:
        try:
            found = await self._look_up(name, again=True)
        except LookupError:
            return  # the addresses that are known are tried, until the check says that they are not for us
        finally:
            self._moving.discard(number)
        addresses = []
        for text in found:
            with contextlib.suppress(ValueError):
                addresses.append(parse_address(text, REMOTE))
        remote = self._remotes.get(number)
        if remote is not None and addresses:
            remote.move(addresses)

    async def _check(self) -> None:
        numbers: dict[str, list[int]] = {}
        for number in self._core.remotes:
            numbers.setdefault(self._core.service(number), []).append(number)
        numbers.pop("", None)
        try:
            for name, remotes in numbers.items():
                try:
                    await self._look_up(name)
                except NotPermitted as failure:
                    for number in remotes:
                        self._core.on_not_permitted(number, str(failure), self._now())
                        self._done()
                        await asyncio.sleep(0)  # a turn of the loop for each
                except LookupError:
                    pass  # it is not known: who uses the service goes on
        finally:
            self._checked, self._checking = self._now(), False
