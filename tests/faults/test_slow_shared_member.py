"""A shared subscription with a slow member at one site, a fast one at another: the slow site gets a small part, nobody anything twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from mqmesh.cli.fleet.process import Fleet
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTMessage, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.scenes import mesh

pytestmark = pytest.mark.slow
BATCH = 160  # ten parts of a run, which go to one member's broker each
PATIENCE = 90.0


class Member:
    """One member of the group. It acknowledges at once, or (slow) when it is told to."""

    def __init__(self, name: str, port: int, slow: bool, changed: threading.Condition) -> None:
        self.got: list[bytes] = []
        self.owed: list[MQTTMessage] = []
        self.slow = slow
        self.changed = changed
        self.client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5, manual_ack=True)
        ready = threading.Event()
        self.client.on_message = self._message
        self.client.on_subscribe = lambda *_: ready.set()
        # without a Receive Maximum the broker keeps back what goes beyond `in_flight`, while the slow one says nothing
        all_at_once = Properties(PacketTypes.CONNECT)
        all_at_once.ReceiveMaximum = 65_535
        self.client.connect("127.0.0.1", port, properties=all_at_once)
        self.client.loop_start()
        self.client.subscribe("$share/g/work", qos=1)
        assert ready.wait(PATIENCE)

    def _message(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        with self.changed:
            self.got.append(message.payload)
            if self.slow:
                self.owed.append(message)
            else:
                client.ack(message.mid, message.qos)
            self.changed.notify_all()

    def catch_up(self) -> None:
        with self.changed:
            self.slow = False
            for message in self.owed:
                self.client.ack(message.mid, message.qos)


def test_the_slow_site_gets_a_small_part(tmp_path: Path) -> None:
    changed = threading.Condition()
    with Fleet(mesh([("a", "b"), ("a", "c")]), tmp_path) as fleet:
        fleet.wait_settled(PATIENCE)
        port = {name: member.address.port for name, member in fleet.members.items()}
        slow, fast = Member("slow", port["b"], True, changed), Member("fast", port["c"], False, changed)
        fleet.wait_settled(PATIENCE)
        publisher = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        publisher.connect("127.0.0.1", port["a"])
        publisher.loop_start()
        sent = 0
        parts: list[float] = []
        end = time.monotonic() + PATIENCE
        while not parts or parts[-1] > 0.15:  # half of it, until the other sites know better
            assert time.monotonic() < end, f"the slow site's part stayed high: {parts}"
            before = len(slow.got)
            for _ in range(BATCH):
                sent += 1
                publisher.publish("work", b"%d" % sent, qos=1)
            with changed:
                assert changed.wait_for(lambda wanted=sent: len(slow.got) + len(fast.got) >= wanted, PATIENCE), "something is lost"
            parts.append((len(slow.got) - before) / BATCH)
        print("the slow site's part of each batch:", parts)
        assert parts[0] > 0.15, "it was not half at first, so this says nothing"
        slow.catch_up()
        last = b"last"
        publisher.publish("work", last, qos=1)
        with changed:
            assert changed.wait_for(lambda: last in fast.got or last in slow.got, PATIENCE)
        assert sorted([*slow.got, *fast.got]) == sorted([*(b"%d" % n for n in range(1, sent + 1)), last])
        for client in (publisher, slow.client, fast.client):
            client.disconnect()
            client.loop_stop()
