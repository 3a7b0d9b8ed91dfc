"""Clients, remotes and a metabroker process for the tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from support.command import start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_for_port

POLICY = """
[[allow]]
clients = ["*"]
remotes = ["mqtt://127.0.0.1:*", "weather", "gone", "nowhere"]
publish = ["#"]
subscribe = ["#"]
"""


@contextlib.contextmanager
def running_amqtt(folder: Path) -> Iterator[int]:
    """amqtt's broker (MQTT 3.1.1); its port."""
    port = free_port()
    config = folder / "amqtt.yaml"
    plugin = "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    config.write_text(f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{port}\n{plugin}")
    command = [sys.executable, "-c", "from amqtt.scripts.broker_script import main; main()", "-c", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_metabroker(folder: Path, community: int | str, policy: str = POLICY, services: str = "", *options: str) -> Iterator[Path]:
    """`mqmesh metabroker` beside the broker at a port, or an address; its log file."""
    (folder / "policy.toml").write_text(policy)
    (folder / "services.toml").write_text("[services]\n" + services)
    log = folder / "metabroker.log"
    files = ("--policy", folder / "policy.toml", "--services", folder / "services.toml")
    address = community if isinstance(community, str) else f"mqtt://127.0.0.1:{community}"
    process = start("metabroker", "--community", address, *files, *options, stderr=log)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        assert line.startswith("ready"), log.read_text()
        yield log
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
        process.communicate()
        assert "Traceback" not in log.read_text(), log.read_text()


class Kept:
    """A metabroker with a folder for data, killed and started at will."""

    def __init__(self, folder: Path, community: int, policy: str = POLICY) -> None:
        self.folder = folder
        (folder / "policy.toml").write_text(policy)
        self.log = folder / "metabroker.log"
        self._command = ("metabroker", "--community", f"mqtt://127.0.0.1:{community}", "--policy", folder / "policy.toml")
        self.start()

    def start(self) -> None:
        self.process = start(*self._command, "--data", self.folder / "data", stderr=self.log)
        assert self.process.stdout.readline().startswith("ready"), self.log.read_text()  # type: ignore[union-attr]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        assert "Traceback" not in self.log.read_text(), self.log.read_text()


class Member:
    """A client of the community that uses the metabroker; `connect` gives the connack's body.

    user: its name and password, if it is known by that; then its client identifier differs.
    """

    def __init__(self, port: int, client: str, version: int = 5, user: tuple[str, str] | None = None) -> None:
        self.name = client
        self.paho = Paho(port, version, client if user is None else f"program-of-{client}")
        if user is not None:
            self.paho.client.username_pw_set(*user)
        self.paho.open()
        self.session = ""

    def connect(self, remote: str, **keys: Any) -> dict[str, Any]:
        topic = f"metabroker/response/{self.name}/connack"
        self.paho.subscribe(topic, 1)
        self.paho.publish(f"metabroker/request/{self.name}/connect", msgpack.packb({"client": self.name, "remote": remote, **keys}), 1)
        verb, body = self.next()
        while verb != "connack":  # of an earlier session
            verb, body = self.next()
        self.paho.unsubscribe(topic)
        if body["code"] == 0:
            self.session = body["session"]
            self.paho.subscribe(f"metabroker/response/{self.session}/#", 2)
        return body

    def send(self, verb: str, **keys: Any) -> None:
        self.raw(verb, msgpack.packb(keys))

    def raw(self, verb: str, body: bytes, session: str | None = None) -> None:
        self.paho.publish(f"metabroker/request/{session or self.session}/{verb}", body, 1)

    def next(self) -> tuple[str, dict[str, Any]]:
        message = self.paho.next()
        while message.topic.startswith("metabroker/status/"):  # of the metabroker itself, for whoever subscribes to `#`
            message = self.paho.next()
        return message.topic.rpartition("/")[2], msgpack.unpackb(message.payload)

    def ask(self, verb: str, **keys: Any) -> dict[str, Any]:
        """Send a request; the answer has to be what comes next, but for what is said of the remote: that may come at any time."""
        self.send(verb, **keys)
        answer, body = self.next()
        while answer == "status":
            answer, body = self.next()
        assert (
            answer
            == {"publish": "puback", "subscribe": "suback", "unsubscribe": "unsuback", "disconnect": "discack", "resume": "resack"}[verb]
        ), body
        return body

    def close(self) -> None:
        self.paho.close()
