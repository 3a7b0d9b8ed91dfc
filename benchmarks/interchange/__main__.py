"""Requests and responses of two services at one broker, and the same two clients without an interchange.

    python -m benchmarks.interchange --exchanges 5000 --at-once 64
    python -m benchmarks.interchange --rabbitmq               and RPC over quorum queues of RabbitMQ (`rabbitmq.py`)

Both have QoS 1, sessions that are kept, and a store that is synced. Without an interchange the request goes to a topic of the responder,
and its response to the Response Topic; what a connected client has acknowledged need not be stored there. Latency is from PUBLISH of the
request until the response has come, with one exchange at a time; the processor's time is the broker's.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from statistics import median

import psutil
from mqmesh.base.interchange import INBOX, POST
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

SERVICES = '[services."shop/orders"]\nusers = ["*"]\n[services."bank/credit"]\nusers = ["*"]\n'
REQUEST = [("kind", "request"), ("sender", "shop/orders"), ("recipient", "bank/credit")]
BODY = b"x" * 256
Exchanges = Callable[[int, int], Coroutine[object, object, tuple[float, list[float]]]]  # how many, at once: seconds in all and of each


class Party(asyncio.Protocol):
    """One of the two clients. taken: gets each message."""

    def __init__(self, name: str, topic: str) -> None:
        self._name, self._topic = name, topic
        self._framer = Framer()
        self._number = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.taken: Callable[[Publish], None] = lambda publish: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.send(Connect(self._name, 5, False, 0, properties={Property.SESSION_EXPIRY_INTERVAL: 3600}))

    def data_received(self, data: bytes) -> None:
        out: list[object] = []
        for first, body in self._framer.feed(data):
            packet = decode(first, body, 5)
            if isinstance(packet, Publish):
                self.taken(packet)
                out.append(Puback(packet.packet_id))
            elif isinstance(packet, Connack):
                out.append(Subscribe(1, [Subscription(self._topic, 1)]))
            elif isinstance(packet, Suback):
                assert packet.reasons[0] < 0x80, packet
                self.ready.set_result(None)
            elif isinstance(packet, Puback):
                assert packet.reason < 0x80, packet
        if out:
            self.send(*out)

    def send(self, *packets: object) -> None:
        self._transport.write(b"".join([encode(one, 5) for one in packets]))  # type: ignore[arg-type, attr-defined]

    def post(self, topic: str, body: bytes, properties: dict[int, object]) -> None:
        self._number = self._number % 60_000 + 2
        self.send(Publish(topic, body, 1, packet_id=self._number, properties=properties))


async def exchanges(port: int, interchange: bool, count: int, at_once: int) -> tuple[float, list[float]]:
    """Exchange so many: seconds in all, and those of each."""
    loop = asyncio.get_running_loop()
    inbox = f"$queue/{INBOX}"
    _, shop = await loop.create_connection(
        lambda: Party("shop", f"{inbox}shop/orders" if interchange else "answers/shop"), "127.0.0.1", port
    )
    _, bank = await loop.create_connection(lambda: Party("bank", f"{inbox}bank/credit" if interchange else "bank"), "127.0.0.1", port)
    await asyncio.gather(shop.ready, bank.ready)

    def answer(publish: Publish) -> None:
        found = publish.properties
        more: dict[int, object] = {Property.CORRELATION_DATA: found[Property.CORRELATION_DATA]}
        if interchange:
            more[Property.USER_PROPERTY] = [("sender", "bank/credit")]
        bank.post(found[Property.RESPONSE_TOPIC], publish.payload, more)

    begun: list[float] = []
    times: list[float] = []
    done = loop.create_future()

    def ask() -> None:
        begun.append(time.perf_counter())
        if interchange:
            shop.post(POST, BODY, {Property.USER_PROPERTY: REQUEST})
        else:
            shop.post("bank", BODY, {Property.RESPONSE_TOPIC: "answers/shop", Property.CORRELATION_DATA: b"1"})

    def came(publish: Publish) -> None:
        times.append(time.perf_counter() - begun[len(times)])
        if len(times) == count:
            done.set_result(None)
        elif len(begun) < count:
            ask()

    bank.taken, shop.taken = answer, came
    start = time.perf_counter()
    for _ in range(at_once):
        ask()
    await done
    return time.perf_counter() - start, times


def main() -> None:
    parser = argparse.ArgumentParser(description="exchanges over the interchange, and plain requests of MQTT 5")
    parser.add_argument("--exchanges", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rabbitmq", action="store_true", help="RPC over quorum queues of RabbitMQ too")
    parser.add_argument("more", nargs="*", help="options of the broker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "services.toml").write_text(SERVICES)
        (folder / "broker.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\ndata = "data"\n[interchange]\nservices = "services.toml"\n')
        words = [
            str(Path(sys.executable).with_name("mqmesh")),
            "broker",
            "-c",
            str(folder / "broker.toml"),
            "--stop-with-stdin",
            *options.more,
        ]
        broker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert broker.stdout is not None
            port = int(broker.stdout.readline().split()[1].rpartition(":")[2])
            process = psutil.Process(broker.pid)
            for interchange in (False, True):
                made = partial(exchanges, port, interchange)
                measure("interchange" if interchange else "plain MQTT 5", made, [process], options.exchanges, options.at_once)
        finally:
            broker.kill()
    if options.rabbitmq:
        beside_rabbitmq(options.exchanges, options.at_once)


def measure(name: str, made: Exchanges, processes: list[psutil.Process], count: int, at_once: int) -> None:
    """Print what so many exchanges take. processes: those of the server."""
    one_each = asyncio.run(made(count // 10, 1))[1]
    before = spent(processes)
    seconds, _ = asyncio.run(made(count, at_once))
    each = (spent(processes) - before) / count
    print(
        f"{name:12} {count / seconds:8.0f} exchanges/s  processor {1e6 * each:5.0f} us each"
        f"  one at a time p50 {1000 * median(one_each):6.2f} ms"
    )


def spent(processes: list[psutil.Process]) -> float:
    """Seconds of processor time."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def beside_rabbitmq(count: int, at_once: int) -> None:
    """The same with RabbitMQ, whose queues are new for each of the two measurements."""
    from benchmarks.interchange import rabbitmq
    from benchmarks.queues.products import PRODUCTS

    with tempfile.TemporaryDirectory() as name:
        server = PRODUCTS["rabbitmq"].deploy(Path(name) / "rabbitmq")
        try:
            roots = [psutil.Process(one.pid) for one in server.processes]
            processes = roots + [child for one in roots for child in one.children(recursive=True)]
            measure("RabbitMQ", partial(rabbitmq.exchanges, server.ports[0], BODY), processes, count, at_once)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
