"""Requests to a service of NATS, beside the exchanges of the interchange: a queue group, as NATS services have it, and an inbox.

NATS keeps everything in memory: what is on its way when the server or a client dies is lost. Frames are written and read by the loop
without a client library.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

SERVICE, GROUP, INBOX = "bank.credit", "q", "_INBOX.shop"
_MESSAGE = re.compile(rb"MSG (\S+) \S+ (?:(\S+) )?(\d+)\r\n")
Taken = Callable[[bytes, bytes], None]  # the reply subject, the body


class Party(asyncio.Protocol):
    """One of the two clients, with one subscription. taken: gets each message."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._data = b""
        self.ready = asyncio.get_running_loop().create_future()
        self.taken: Taken = lambda reply, body: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        hello = f'CONNECT {{"verbose":false,"pedantic":false,"lang":"python","version":"0"}}\r\nSUB {self._subscription} 1\r\nPING\r\n'
        self.send(hello.encode())

    def data_received(self, data: bytes) -> None:
        data, at = self._data + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            end += 2
            if found := _MESSAGE.match(data, at):
                begin, end = end, end + int(found[3]) + 2
                if len(data) < end:
                    break
                self.taken(found[2] or b"", data[begin : end - 2])
            elif data.startswith(b"PING", at):
                self.send(b"PONG\r\n")
            elif data.startswith(b"PONG", at):
                self.ready.set_result(None)
            else:
                assert not data.startswith(b"-ERR", at), data[at:end]
            at = end
        self._data = data[at:]

    def send(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


async def exchanges(port: int, body: bytes, count: int, at_once: int) -> tuple[float, list[float]]:
    """Exchange so many: seconds in all, and those of each."""
    loop = asyncio.get_running_loop()
    _, bank = await loop.create_connection(lambda: Party(f"{SERVICE} {GROUP}"), "127.0.0.1", port)
    _, shop = await loop.create_connection(lambda: Party(INBOX), "127.0.0.1", port)
    await asyncio.gather(bank.ready, shop.ready)
    begun: list[float] = []
    times: list[float] = []
    done = loop.create_future()

    def ask() -> None:
        begun.append(time.perf_counter())
        shop.send(b"PUB %s %s %d\r\n%s\r\n" % (SERVICE.encode(), INBOX.encode(), len(body), body))

    def came(_reply: bytes, _body: bytes) -> None:
        times.append(time.perf_counter() - begun[len(times)])
        if len(times) == count:
            done.set_result(None)
        elif len(begun) < count:
            ask()

    bank.taken = lambda reply, request: bank.send(b"PUB %s %d\r\n%s\r\n" % (reply, len(request), request))
    shop.taken = came
    start = time.perf_counter()
    for _ in range(min(at_once, count)):
        ask()
    await done
    took = time.perf_counter() - start
    for party in (shop, bank):
        party.transport.close()
    return took, times
