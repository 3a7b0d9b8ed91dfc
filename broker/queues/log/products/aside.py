"""An event loop in a thread of its own, for clients of products that need one: whoever calls waits for the answer.

What it does not know: clients.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .entries import Place

T = TypeVar("T")


class Aside:
    """See the module. name: of the thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done there. Raises what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End the thread, and what is still done there."""
        if self._loop.is_closed():
            return
        self.call(_end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class AsideProduct(ABC):
    """A `Product` whose client needs an event loop: what the port has, by coroutines that run there."""

    def __init__(self, name: str) -> None:
        self._aside = Aside(name)

    def open(self) -> list[int]:
        """See `Product`."""
        return self._aside.call(self._told(self._open()))

    def fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]:
        """See `Product`."""
        return self._aside.call(self._told(self._fetch(number, start, most)))

    def send(self, entries: list[tuple[int, bytes]]) -> list[Place]:
        """See `Product`: all at once, and each is confirmed."""
        return self._aside.call(self._told(self._send(entries)))

    def delete(self, number: int) -> None:
        """See `Product`."""
        self._aside.call(self._told(self._delete(number)))

    def close(self) -> None:
        """Close the connection."""
        try:
            self._aside.call(self._told(self._lose()))
        finally:
            self._aside.close()

    @abstractmethod
    async def _told(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something; what the library raises comes out as the port has it, and then the connection is given up."""

    @abstractmethod
    async def _open(self) -> list[int]:
        """Take the log over from who had it, and say which segments there are."""

    @abstractmethod
    async def _fetch(self, number: int, start: Place | None, most: int | None) -> list[tuple[Place, bytes]]: ...

    @abstractmethod
    async def _send(self, entries: list[tuple[int, bytes]]) -> list[Place]: ...

    @abstractmethod
    async def _delete(self, number: int) -> None: ...

    @abstractmethod
    async def _lose(self) -> None:
        """Give the connection up, if there is one."""
