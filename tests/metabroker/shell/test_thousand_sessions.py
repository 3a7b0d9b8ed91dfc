"""A thousand sessions with the same credentials: one connection to the remote, and each has its own publications, no others."""

from __future__ import annotations

import threading
from pathlib import Path

import msgpack
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from support.brokers import running_broker
from support.paho_client import Paho
from support.remotes import POLICY, running_metabroker

pytestmark = pytest.mark.service
SESSIONS = 1000
PATIENCE = 120.0


class Crowd:
    """A thousand sessions of one MQTT connection, in paho-mqtt's thread. Each has topics of its own and one with nine others."""

    def __init__(self, port: int, url: str) -> None:
        self.sessions: dict[str, int] = {}
        self._subscribes: dict[int, str] = {}  # SUBSCRIBE at the community -> session
        self.got: dict[int, list[bytes]] = {number: [] for number in range(SESSIONS)}
        self.wrong: list[object] = []
        self.wanted = 3  # publications for each
        self._left = {"subscribed": SESSIONS, "got": SESSIONS * self.wanted, "ended": SESSIONS}
        self.events = {name: threading.Event() for name in self._left}
        self.url = url
        self.client = paho.Client(CallbackAPIVersion.VERSION2, "crowd", protocol=paho.MQTTv5)
        self.client.max_inflight_messages_set(0)
        self.client.on_connect = lambda *_: self.client.subscribe("metabroker/response/crowd/connack", 1)
        self.client.on_subscribe = lambda _client, _data, mid, *_rest: self._on_subscribed(mid)
        self.client.on_message = lambda _client, _data, came: self._on_message(came.topic, msgpack.unpackb(came.payload))
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def _on_subscribed(self, mid: int) -> None:
        session = self._subscribes.get(mid)
        if session is None:
            for _ in range(SESSIONS):
                self.client.publish("metabroker/request/crowd/connect", msgpack.packb({"client": "crowd", "remote": self.url}), 1)
        else:
            number = self.sessions[session]
            self.request(session, "subscribe", message=0, topics=[f"own/{number}/+", f"ten/{number // 10}"], qos=1)

    def request(self, session: str, verb: str, **body: object) -> None:
        self.client.publish(f"metabroker/request/{session}/{verb}", msgpack.packb(body), 1)

    def _on_message(self, topic: str, body: dict) -> None:
        who, _, verb = topic.removeprefix("metabroker/response/").rpartition("/")
        if body.get("code", 0):
            self.wrong.append((topic, body))
        elif verb == "connack":
            session = body["session"]
            self.sessions[session] = len(self.sessions)
            self._subscribes[self.client.subscribe(f"metabroker/response/{session}/#", 1)[1]] = session
        elif verb == "suback":
            self._count("subscribed")
        elif verb == "publish":
            self.got[self.sessions[who]].append(body["payload"])
            self._count("got")
        elif verb == "discack":
            self._count("ended")

    def _count(self, name: str) -> None:
        self._left[name] -= 1
        if not self._left[name]:
            self.events[name].set()

    def wait(self, name: str) -> None:
        assert self.events[name].wait(PATIENCE), f"{self._left[name]} are not {name}: {self.wrong[:3]}"


def test_a_thousand_sessions(tmp_path: Path) -> None:
    for name in ("community", "remote"):
        (tmp_path / name).mkdir()
    policy = "[limits]\nsessions_per_client = 1000\n" + POLICY
    with (
        running_broker(tmp_path / "community", "mqmesh") as here,
        running_broker(tmp_path / "remote", "mosquitto") as there,
        running_metabroker(tmp_path, here.port, policy, "", "--data", str(tmp_path / "data")),
        Paho(there.port) as far,
    ):
        crowd = Crowd(here.port, there.url)
        try:
            crowd.wait("subscribed")
            assert there.log.read_text().count(" as metabroker-") == 1
            for number in range(SESSIONS):
                for place in ("a", "b"):
                    far.client.publish(f"own/{number}/{place}", f"{number}{place}", 1)
            for ten in range(SESSIONS // 10):
                far.client.publish(f"ten/{ten}", f"ten {ten}", 1)
            far.client.publish("own/none/a", "nobody's", 1)
            crowd.wait("got")
            for session in crowd.sessions:
                crowd.request(session, "disconnect")
            crowd.wait("ended")  # whatever else was sent would have come before
            expected = {number: [f"{number}a".encode(), f"{number}b".encode(), f"ten {number // 10}".encode()] for number in crowd.got}
            assert {number: sorted(got) for number, got in crowd.got.items()} == {n: sorted(one) for n, one in expected.items()}
            assert not crowd.wrong
        finally:
            crowd.client.disconnect()
            crowd.client.loop_stop()
