"""A publisher that repeats its messages with their handles after `kill -9` of the broker delivers each of them once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mqmesh.mqtt.packets import Connack, Connect, Puback, Publish, Suback, Subscribe, Subscription
from mqmesh.mqtt.properties import Property
from support.command import start
from support.raw_client import RawClient
from support.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.keeps]

KILLS = 4
BATCH = 200
FOREVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


class Site:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.config = folder / "site.toml"
        self.config.write_text(f'listen = ["mqtt://127.0.0.1:{self.port}"]\ndata = "{folder}"\n')
        self.log = folder / "log"

    def begin(self) -> None:
        self.process = start("broker", "--config", self.config, stderr=self.log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def client(self, name: str) -> RawClient:
        client = RawClient(self.port)
        client.send(Connect(name, 5, False, 0, None, None, None, FOREVER))
        client.expect(Connack)
        return client


def batch(number: int) -> list[Publish]:
    def message(row: int) -> Publish:
        return Publish(
            "t", b"%d" % row, 1, packet_id=1 + row % 60_000, properties={Property.USER_PROPERTY: [("mqmesh-handle", f"rows/{row}")]}
        )

    return [message(row) for row in range(number * BATCH, (number + 1) * BATCH)]


def test_each_message_once(tmp_path: Path) -> None:
    chance = random.Random(12)
    site = Site(tmp_path)
    site.begin()
    subscriber = site.client("away")
    subscriber.send(Subscribe(1, [Subscription("t", 1)], {}))
    subscriber.expect(Suback)
    subscriber.close()
    for number in range(KILLS):
        publisher = site.client(f"publisher-{number}")
        publisher.send(*batch(number))
        for _ in range(chance.randrange(BATCH)):
            publisher.expect(Puback)
        site.kill()
        publisher.close()
        site.begin()
        publisher = site.client(f"again-{number}")
        publisher.send(*batch(number))
        for _ in range(BATCH):
            assert publisher.expect(Puback).reason < 0x80
        publisher.close()
    subscriber = site.client("away")
    found = []
    while len(found) < KILLS * BATCH:
        packet = subscriber.expect(Publish)
        subscriber.send(Puback(packet.packet_id))
        found.append(int(packet.payload))
    assert sorted(found) == list(range(KILLS * BATCH))
    subscriber.nothing()
    subscriber.close()
    site.kill()
