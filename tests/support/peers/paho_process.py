"""paho as a program: `python paho_process.py PORT CLIENT FILTER...`; see `talking_client.py`."""

from __future__ import annotations

import sys

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion


def main() -> None:
    port, name, *filters = sys.argv[1:]
    client = paho.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
    client.on_message = lambda _client, _data, message: print(message.topic, message.payload.decode(), flush=True)
    client.on_connect = lambda client, *_: client.subscribe([(one, 1) for one in filters])
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", int(port), 60)
    client.loop_start()
    for line in sys.stdin:
        topic, body = line.split()
        client.publish(topic, body, 1).wait_for_publish()


if __name__ == "__main__":
    main()
