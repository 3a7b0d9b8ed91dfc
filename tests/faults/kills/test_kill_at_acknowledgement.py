"""A broker that is killed at the instant at which an acknowledgement arrives has everything that it said.

A round does one thing that is acknowledged, kills the broker when the first byte of the answer is there, starts it again on its data and
looks. Each kind of acknowledgement has its round, for each store on disk. `MQMESH_ACK_KILLS` says how many times; without it, SQLite has
each round once, and the others those that differ most.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqmesh.mqtt.codec import encode
from mqmesh.mqtt.decode import decode
from mqmesh.mqtt.framing import Framer
from mqmesh.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from mqmesh.mqtt.properties import Property
from support.command import start
from support.peers.postgres import server
from support.services import PATIENCE, free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

KILLS = int(os.environ.get("MQMESH_ACK_KILLS", "0"))
FOREVER = 0xFFFFFFFF


class Site:
    """A broker on data that outlive it. number: of the round, in all names."""

    def __init__(self, folder: Path, store: str, *lines: str) -> None:
        self.folder, self.store = folder, store
        self.port = free_port()
        self.number = 0
        self._process: subprocess.Popen[str] | None = None
        head = [f'listen = ["mqtt://127.0.0.1:{self.port}"]', f'data = "{folder}"', "[store]", f'kind = "{store}"']
        (folder / "site.toml").write_text("\n".join([*head, *lines]) + "\n")

    def begin(self) -> None:
        self._process = start("broker", "--config", self.folder / "site.toml", stderr=self.folder / "log")
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready"), (self.folder / "log").read_text()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()


class Client:
    """A blocking client that speaks MQTT 5."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, f"{name}-{site.number}"
        self._socket = socket.create_connection(("127.0.0.1", site.port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._framer = Framer()
        self._packets: list[Any] = []

    def send(self, *what: Any) -> None:
        self._socket.sendall(b"".join([encode(packet, 5) for packet in what]))

    def kill_at_answer(self, *what: Any) -> None:
        """Send, and kill the broker when the first byte of the answer, or the connection's end, is there."""
        self.send(*what)
        self._socket.recv(1)
        self.site.kill()
        self._socket.close()

    def receive(self) -> Any:
        while not self._packets:
            data = self._socket.recv(65536)
            assert data, f"{self.name}: the broker closed the connection"
            self._packets += [decode(first, body, 5) for first, body in self._framer.feed(data)]
        return self._packets.pop(0)

    def expect(self, kind: type, **fields: Any) -> Any:
        packet = self.receive()
        assert isinstance(packet, kind), f"{self.name}: {packet} came, not {kind.__name__}"
        for field, value in fields.items():
            assert getattr(packet, field) == value, f"{self.name}: {field} of {packet} is not {value!r}"
        return packet

    def nothing(self) -> None:
        self.send(Pingreq())
        self.expect(Pingresp)

    def connect_packet(self, clean: bool = False, will: Will | None = None) -> Connect:
        return Connect(self.name, 5, clean, 0, None, None, will, {Property.SESSION_EXPIRY_INTERVAL: FOREVER})

    def connect(self, present: bool, will: Will | None = None) -> Client:
        self.send(self.connect_packet(will=will))
        self.expect(Connack, reason=0, session_present=present)
        return self

    def subscribe(self, topic: str) -> Client:
        self.send(Subscribe(1, [Subscription(topic, 2)], {}))
        self.expect(Suback)
        return self

    def gets(self, *payloads: bytes) -> None:
        """Exactly these messages are there for it."""
        found: list[bytes] = []
        unreleased = 0
        while len(found) < len(payloads) or unreleased:
            packet = self.receive()
            if isinstance(packet, Pubrel):
                self.send(Pubcomp(packet.packet_id))
                unreleased -= 1
                continue
            assert isinstance(packet, Publish), f"{self.name}: {packet} came, not PUBLISH"
            found.append(packet.payload)
            if packet.qos == 1:
                self.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                self.send(Pubrec(packet.packet_id))
                unreleased += 1
        assert found == list(payloads), self.name
        self.nothing()

    def close(self) -> None:
        self._socket.close()


def will_of(site: Site) -> Will:
    return Will(f"wills/{site.number}", b"gone", 1, True)


def retained(site: Site, *payloads: bytes) -> None:
    """What is retained of the round's will."""
    client = Client(site, "watcher").connect(False)
    client.subscribe(f"wills/{site.number}").gets(*payloads)
    client.close()


def away(site: Site) -> None:
    """A session that is not connected, with a subscription."""
    client = Client(site, "away").connect(False).subscribe(f"t/{site.number}")
    client.close()


def connack(site: Site) -> None:
    client = Client(site, "client")
    client.kill_at_answer(client.connect_packet(will=will_of(site)))
    site.begin()
    retained(site, b"gone")
    Client(site, "client").connect(True).close()


def suback(site: Site) -> None:
    topic = f"t/{site.number}"
    Client(site, "client").connect(False).kill_at_answer(Subscribe(1, [Subscription(topic, 1)], {}))
    site.begin()
    client = Client(site, "client").connect(True)
    client.send(Publish(topic, b"x", 0))
    client.gets(b"x")
    client.close()


def unsuback(site: Site) -> None:
    topic = f"t/{site.number}"
    Client(site, "client").connect(False).subscribe(topic).kill_at_answer(Unsubscribe(2, [topic]))
    site.begin()
    client = Client(site, "client").connect(True)
    client.send(Publish(topic, b"x", 0))
    client.nothing()
    client.close()


def puback(site: Site) -> None:
    away(site)
    Client(site, "client").connect(False).kill_at_answer(Publish(f"t/{site.number}", b"x", 1, packet_id=7))
    site.begin()
    Client(site, "away").connect(True).gets(b"x")


def pubrec(site: Site) -> None:
    away(site)
    message = Publish(f"t/{site.number}", b"x", 2, packet_id=7)
    Client(site, "client").connect(False).kill_at_answer(message)
    site.begin()
    client = Client(site, "client").connect(True)
    client.send(Publish(message.topic, b"x", 2, dup=True, packet_id=7))
    client.expect(Pubrec)
    client.send(Pubrel(7))
    client.expect(Pubcomp, reason=0)
    client.close()
    Client(site, "away").connect(True).gets(b"x")


def pubcomp(site: Site) -> None:
    away(site)
    topic = f"t/{site.number}"
    client = Client(site, "client").connect(False)
    client.send(Publish(topic, b"x", 2, packet_id=7))
    client.expect(Pubrec)
    client.kill_at_answer(Pubrel(7))
    site.begin()
    client = Client(site, "client").connect(True)
    client.send(Publish(topic, b"y", 2, packet_id=7))  # the identifier is free: this is another message
    client.expect(Pubrec)
    client.close()
    Client(site, "away").connect(True).gets(b"x", b"y")


def disconnect(site: Site) -> None:
    Client(site, "client").connect(False, will_of(site)).kill_at_answer(Disconnect(0))
    site.begin()
    Client(site, "client").connect(True).close()
    retained(site)


ROUNDS: list[Callable[[Site], None]] = [connack, suback, unsuback, puback, pubrec, pubcomp, disconnect]
STORES = ("sqlite", "lmdb", pytest.param("postgresql", marks=pytest.mark.service))


@pytest.fixture(params=STORES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param != "postgresql":
        made = Site(tmp_path, request.param)
        yield made
        made.end()
        return
    with server() as postgres:
        made = Site(tmp_path, "postgresql", f'url = "{postgres.url}"')
        yield made
        made.end()


def test_what_was_acknowledged_is_there(site: Site) -> None:
    site.begin()
    sample = [ROUNDS] if site.store == "sqlite" else [[connack, pubrec, disconnect]]
    for rounds in [ROUNDS] * KILLS or sample:
        for one in rounds:
            site.number += 1
            one(site)
