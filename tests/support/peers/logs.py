"""Servers that keep the log of queues, by name: all that a broker may name in `store`, but those in its own folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from . import postgres
from .nats_server import running_nats
from .redis_server import running_redis


class Server(Protocol):
    """A server that can be killed and started again with its data."""

    url: str

    def start(self) -> None: ...

    def kill(self) -> None: ...


PRODUCTS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {"redis": running_redis, "nats": running_nats}
SERVERS = ("postgres", *PRODUCTS)
_numbers = itertools.count(1)


def started(name: str, folder: Path) -> AbstractContextManager[Server]:
    """A server that is up; what it has, it has in a folder."""
    return postgres.server() if name == "postgres" else PRODUCTS[name](folder)


def log_at(server: Server) -> str:
    """The URL of a log that nothing is in."""
    return f"{server.url}?{'schema' if server.url.startswith('postgres') else 'name'}=queues_{next(_numbers)}"
