"""Servers that keep the log of queues, by name: all that a broker may name in `store`, but those in its own folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pika

from support.services import PATIENCE, wait_until

from . import postgres
from .nats_server import running_nats
from .rabbitmq import running_rabbitmq
from .redis_server import running_redis


class Server(Protocol):
    """A server that can be killed and started again with its data."""

    url: str

    def start(self) -> None: ...

    def kill(self) -> None: ...


@contextmanager
def _rabbitmq(folder: Path) -> Iterator[Server]:
    """A node that knows after SIGKILL that it has streams: it writes that down some seconds after its first one only."""
    with running_rabbitmq(folder) as node:
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            connection.channel().queue_declare("first", durable=True, arguments={"x-queue-type": "stream"})
        written = b"rabbit_stream_coordinator"
        wait_until(lambda: any(written in file.read_bytes() for file in folder.rglob("names.dets")), PATIENCE, "coordinator of streams")
        yield node


PRODUCTS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "redis": running_redis,
    "nats": running_nats,
    "rabbitmq": _rabbitmq,
}
SERVERS = ("postgres", *PRODUCTS)
_numbers = itertools.count(1)


def started(name: str, folder: Path) -> AbstractContextManager[Server]:
    """A server that is up; what it has, it has in a folder."""
    return postgres.server() if name == "postgres" else PRODUCTS[name](folder)


def log_at(server: Server) -> str:
    """The URL of a log that nothing is in."""
    return f"{server.url}?{'schema' if server.url.startswith('postgres') else 'name'}=queues_{next(_numbers)}"
