"""Requests and responses of two services at one broker, and the same two clients without an interchange.

    python -m benchmarks.interchange --exchanges 5000 --at-once 64

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
from collections.abc import Callable
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
                one_each = asyncio.run(exchanges(port, interchange, options.exchanges // 10, 1))[1]
                before = sum(process.cpu_times()[:2])
                seconds, _ = asyncio.run(exchanges(port, interchange, options.exchanges, options.at_once))
                spent = (sum(process.cpu_times()[:2]) - before) / options.exchanges
                print(
                    f"{'interchange' if interchange else 'plain MQTT 5':12} {options.exchanges / seconds:8.0f} exchanges/s"
                    f"  processor {1e6 * spent:5.0f} us each  one at a time p50 {1000 * median(one_each):6.2f} ms"
                )
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
