"""How soon a message is pushed, alone and beside 100 bad receivers: `python -m benchmarks.interchange.push`.

A quarter of them each never answers, refuses, answers after ten seconds, and redirects to an address that policy does not name. Each has
messages waiting all the time, which are tried again every second. Latency is from PUBLISH until the receiver has the request, one at a
time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial

from mqmesh.base.interchange import POST
from mqmesh.mqtt.properties import Property

from benchmarks.interchange import mqtt
from benchmarks.interchange.brokers import brokers
from benchmarks.peers import free_port

KINDS = ("hangs", "refuses", "slow", "redirects")
SLOW = 10.0  # seconds
FORBIDDEN = "127.0.0.2"
PUSH = '[services."{name}"]\nusers = ["*"]\ndelivery = "push"\npush = {{url = "http://127.0.0.1:{port}/", interval = 1}}\n'
GOOD = "good/one"


class Receivers:
    """All of them. came: called with each message of the good one. counts: requests of each kind, and connections where none may come."""

    def __init__(self) -> None:
        self.ports = {kind: free_port() for kind in (*KINDS, "good", "forbidden")}
        self.came: Callable[[], None] = lambda: None
        self.counts = dict.fromkeys(self.ports, 0)
        self._never = asyncio.Event()  # what those that hang wait for

    async def start(self) -> None:
        for kind, port in self.ports.items():
            await asyncio.start_server(partial(self._serve, kind), FORBIDDEN if kind == "forbidden" else "127.0.0.1", port)

    async def _serve(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if kind == "forbidden":
            self.counts[kind] += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
                self.counts[kind] += 1
                await self._answer(kind, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, kind: str, writer: asyncio.StreamWriter) -> None:
        status, more = "200 OK", ""
        match kind:
            case "good":
                self.came()
            case "hangs":
                await self._never.wait()
            case "refuses":
                status = "403 Forbidden"
            case "slow":
                await asyncio.sleep(SLOW)
            case "redirects":
                status, more = "307 Temporary Redirect", f"Location: http://{FORBIDDEN}:{self.ports['forbidden']}/\r\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n{more}\r\n".encode())


def services(receivers: Receivers, bad: int) -> str:
    names = {f"bad/{kind}-{number}": receivers.ports[kind] for number in range(bad // len(KINDS)) for kind in KINDS}
    return "".join(PUSH.format(name=name, port=port) for name, port in {**names, GOOD: receivers.ports["good"]}.items())


async def measured(port: int, receivers: Receivers, bad: int, messages: int) -> None:
    await receivers.start()
    shop = await mqtt.party(port, "answers/shop")
    came: asyncio.Queue[float] = asyncio.Queue()
    receivers.came = lambda: came.put_nowait(time.perf_counter())

    def post(service: str) -> None:
        pairs = [("kind", "notification"), ("sender", mqtt.SHOP), ("recipient", service)]
        shop.post(POST, b"x" * 256, {Property.USER_PROPERTY: pairs})

    async def latency() -> list[float]:
        times = []
        for _ in range(messages):
            before = time.perf_counter()
            post(GOOD)
            times.append(await came.get() - before)
        return sorted(times)

    show("alone", await latency())
    for _ in range(20):
        for number in range(bad // len(KINDS)):
            for kind in KINDS:
                post(f"bad/{kind}-{number}")
    while min(receivers.counts[kind] for kind in KINDS) < bad // len(KINDS):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    show(f"beside {bad} bad", await latency())
    print("  requests: " + ", ".join(f"{kind} {count}" for kind, count in receivers.counts.items()))


def show(name: str, times: list[float]) -> None:
    print(f"{name:14} median {1e3 * times[len(times) // 2]:6.2f} ms, p99 {1e3 * times[len(times) * 99 // 100]:6.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="pushes beside bad receivers")
    parser.add_argument("--bad", type=int, default=100)
    parser.add_argument("--messages", type=int, default=500)
    options = parser.parse_args()
    receivers = Receivers()
    networks = 'push_networks = ["127.0.0.1/32"]\n'
    with brokers(["porto"], [sys.executable], records=services(receivers, options.bad), settings=networks) as (ports, _):
        asyncio.run(measured(ports[0], receivers, options.bad, options.messages))


if __name__ == "__main__":
    main()
