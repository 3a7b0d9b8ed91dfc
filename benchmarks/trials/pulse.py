"""How long a message takes from a client to itself, again and again: `python -m benchmarks.trials.pulse HOST PORT ADDRESS`.

A blocking client that connects from ADDRESS, subscribes to a topic of its own, and publishes to it every `PAUSE` seconds at QoS 1. Each
message is a line on stdout: when it was published, on the machine's monotonic clock, and how long it took to come back, both in seconds.
It ends when its stdin does.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription

PAUSE = 0.005  # seconds between an answer and the next message
PATIENCE = 120.0  # seconds for an answer


def main(host: str, port: str, address: str) -> None:
    """Say `ready`, then one line a message."""
    with socket.create_connection((host, int(port)), PATIENCE, (address, 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framer = Framer()

        def receive(kind: type, count: int) -> None:
            """Read until so many packets of a kind have come; what else comes is for nobody."""
            while count:
                data = sock.recv(65536)
                if not data:
                    raise SystemExit("the broker has closed the connection")
                for first, body in framer.feed(data):
                    packet = decode(first, body, 5)
                    count -= isinstance(packet, kind)
                    if isinstance(packet, Publish):
                        sock.sendall(encode(Puback(packet.packet_id or 0), 5))

        topic = f"pulse/{port}"
        sock.sendall(encode(Connect(f"pulse-{port}", 5), 5))
        receive(Connack, 1)
        sock.sendall(encode(Subscribe(1, [Subscription(topic, 1)]), 5))
        receive(Suback, 1)
        print("ready", flush=True)
        number = 0
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            number = number % 65535 + 1
            begun = time.monotonic()
            sock.sendall(encode(Publish(topic, b"x", 1, packet_id=number), 5))
            receive(Publish, 1)
            print(f"{begun:.6f} {time.monotonic() - begun:.6f}")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
