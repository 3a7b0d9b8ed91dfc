"""An application in a process of its own, that SIGSTOP can hang: `python -m benchmarks.trials.recipients.recipient PORT NAME FILE`.

It knows nothing of surveillance: it subscribes to what is addressed to it, and does its work, which is to write a line for each message
to FILE, before paho acknowledges it: number, time (CLOCK_MONOTONIC, which all processes share), whether the message is marked as a
repeat (`mqmesh-repeated`, or DUP), and who did not take it before (`mqmesh-failed-over`, or -). The first line is `ready`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import paho.mqtt.client as paho

from benchmarks.recipients.mqtt import client_at, properties_of
from benchmarks.recipients.system import number_of

KEEP_ALIVE = 600  # seconds: a broker that waits for a missing PINGREQ notices nothing here


def main(port: str, name: str, file: str) -> None:
    """Receive until the process ends; connect again after a broken connection."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    client = client_at(int(port), name, KEEP_ALIVE)

    def came(_client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        said = properties_of(message)
        marked = "mqmesh-repeated" in said or bool(message.dup)
        line = f"{number_of(bytes(message.payload))} {time.monotonic():.6f} {marked:d} {said.get('mqmesh-failed-over', '-')}\n"
        os.write(out, line.encode())

    def ready(*_: Any) -> None:
        os.write(out, b"ready\n")

    client.on_message = came
    client.on_connect = lambda client, *_: client.subscribe(f"app/{name}/#", 1)
    client.on_subscribe = ready
    client.reconnect_delay_set(1, 1)
    client.loop_forever(retry_first_connection=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
