"""A broker that is a process on data that outlive it, and clients for it."""

from __future__ import annotations

from pathlib import Path

from mqmesh.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property

from support.command import start
from support.raw_client import RawClient
from support.services import free_port


class Site:
    """A broker on data that outlive it."""

    def __init__(self, folder: Path, more: str = "") -> None:
        """more: lines of its file."""
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._config, self._log = folder / "site.toml", folder / "log"
        self._config.write_text(f'listen = ["{self.url}"]\ndata = "{folder / "data"}"\n{more}')
        self.begin()

    def begin(self) -> None:
        self.process = start("broker", "--config", self._config, stderr=self._log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def client(self, name: str) -> RawClient:
        client = RawClient(self.port)
        client.send(Connect(name, 5, False, 0, None, None, None, {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}))
        client.expect(Connack)
        return client

    def subscribe(self, name: str, topic: str) -> None:
        """A durable session that gets what is published from now on."""
        client = self.client(name)
        client.send(Subscribe(1, [Subscription(topic, 1)], {}))
        client.expect(Suback)
        client.close()

    def publish(self, topic: str, payloads: list[bytes]) -> None:
        client = self.client("publisher")
        client.send(*[Publish(topic, payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)])
        for _ in payloads:
            assert client.expect(Puback).reason < 0x80
        client.close()

    def left(self, name: str) -> list[tuple[str, bytes]]:
        """What a durable session has."""
        client = self.client(name)
        client.send(Pingreq())
        found = client.until(Pingresp)
        client.close()
        return [(packet.topic, packet.payload) for packet in found if isinstance(packet, Publish)]

    def waiting(self, name: str, count: int) -> list[bytes]:
        """What a durable session has: exactly so many messages."""
        client, found = self.client(name), []
        for _ in range(count):
            packet = client.expect(Publish)
            client.send(Puback(packet.packet_id))
            found.append(packet.payload)
        client.nothing()
        client.close()
        return found
