"""An application in a process of its own, that SIGSTOP can hang: `python -m benchmarks.trials.recipients.recipient PORT NAME FILE`.

It knows nothing of surveillance: it subscribes to what is addressed to it, and does its work, which is to write a line for each message
to FILE, before it acknowledges it: number, time (CLOCK_MONOTONIC, which all processes share), whether the message is marked as a
repeat (`mqmesh-repeated`, or DUP), and who did not take it before (`mqmesh-failed-over`, or -). The first line is `ready`.

What waited for a dead application comes to its alternative at once, and later messages come after it: the alternative's own pace decides
how late these are. So this one does as little as possible for each message.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from typing import Any

from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

from benchmarks.recipients.mqtt import SESSION
from benchmarks.recipients.system import number_of

KEEP_ALIVE = 600  # seconds: a broker that waits for a missing PINGREQ notices nothing here
AGAIN = 1.0  # seconds until it connects again
VERSION = 5


class Application(asyncio.Protocol):
    """One connection. out: the file's descriptor. lost: done when the connection has ended."""

    def __init__(self, name: str, out: int, lost: asyncio.Future[None]) -> None:
        self._name, self._out, self._lost = name, out, lost
        self._framer = Framer()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send(Connect(self._name, VERSION, False, KEEP_ALIVE, None, None, None, {Property.SESSION_EXPIRY_INTERVAL: SESSION}))

    def _send(self, packet: Any) -> None:
        self._transport.write(encode(packet, VERSION))

    def data_received(self, data: bytes) -> None:
        lines, answers = [], []
        for first, body in self._framer.feed(data):
            packet = decode(first, body, VERSION)
            if isinstance(packet, Publish):
                lines.append(_line(packet))
                answers.append(encode(Puback(packet.packet_id), VERSION))
            elif isinstance(packet, Connack):
                self._send(Subscribe(1, [Subscription(f"app/{self._name}/#", 1)], {}))
            elif isinstance(packet, Suback):
                lines.append("ready\n")
        if lines:
            os.write(self._out, "".join(lines).encode())
        if answers:
            self._transport.write(b"".join(answers))

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set_result(None)


def _line(packet: Publish) -> str:
    said = dict(packet.properties.get(Property.USER_PROPERTY, ()))
    marked = "mqmesh-repeated" in said or packet.dup
    return f"{number_of(bytes(packet.payload))} {time.monotonic():.6f} {marked:d} {said.get('mqmesh-failed-over', '-')}\n"


async def serve(port: int, name: str, file: str) -> None:
    """Receive until the process ends; connect again after a broken connection."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    loop = asyncio.get_running_loop()
    while True:
        lost = loop.create_future()
        try:
            await loop.create_connection(partial(Application, name, out, lost), "127.0.0.1", port)
            await lost
        except OSError:
            pass
        await asyncio.sleep(AGAIN)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), *sys.argv[2:]))
