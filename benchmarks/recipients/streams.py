"""Redis Streams with a consumer group of two; what one holds too long the other takes over with XAUTOCLAIM, if it asks for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis.asyncio as redis

from benchmarks.peers import Deployment
from benchmarks.queues.products import Redis
from benchmarks.recipients.system import Record, Sender, Sent, System, payload

STREAM, GROUP = "orders", "workers"
BATCH = 100
IDLE = 3000  # milliseconds
LOOK = 0.5  # seconds between two XAUTOCLAIM


class Streams(System):
    """As it comes nobody takes over what another consumer of the group holds; set for a hang both look for it twice a second."""

    name = "Redis Streams, consumer group"

    @property
    def settings(self) -> str:
        return f"XAUTOCLAIM of what is idle for {IDLE // 1000} s" if self.tuned else "XREADGROUP only"

    def version(self) -> str:
        return Redis().version()

    def deploy(self, folder: Path) -> Deployment:
        return Redis().deploy(folder)

    async def prepare(self, ports: list[int]) -> None:
        async with redis.Redis(port=ports[0]) as client:
            await client.xgroup_create(STREAM, GROUP, mkstream=True)

    def sender(self, ports: list[int], sent: Sent) -> Sender:
        return _Sender(sent, ports[0])

    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        client = redis.Redis(port=ports[0], socket_timeout=None)
        ready()
        looked = 0.0

        async def take(entries: list[tuple[bytes, dict[bytes, bytes]]], again: bool) -> None:
            for _, fields in entries:
                record(fields[b"m"], again)
            if entries:
                await client.xack(STREAM, GROUP, *[place for place, _ in entries])

        while True:
            if self.tuned and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                claimed: Any = await client.xautoclaim(STREAM, GROUP, who, IDLE, count=1000)
                await take(claimed[1], True)
            found: Any = await client.xreadgroup(GROUP, who, {STREAM: ">"}, count=BATCH, block=int(LOOK * 1000))
            for _, entries in found or []:
                await take(entries, False)


class _Sender(Sender):
    def __init__(self, sent: Sent, port: int) -> None:
        super().__init__(sent)
        self.client = redis.Redis(port=port, max_connections=50)
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(50)

    async def open(self) -> None:
        await self.client.ping()

    def send(self, number: int) -> None:
        task = asyncio.ensure_future(self._send(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, number: int) -> None:
        async with self._free:
            await self.client.xadd(STREAM, {"m": payload(number)})
        self.sent.confirmed[number] = time.monotonic()

    async def close(self) -> None:
        await self.client.aclose()
