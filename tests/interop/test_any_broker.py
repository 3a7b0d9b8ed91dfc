"""A program with the JMS-like API and the address of its own broker alone: brokers of every kind by the name of a service.

The names are in a real directory, which a metabroker beside our broker asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mqmesh.client import DeliveryMode, Message, MetabrokerConnectionFactory, Topic
from support.brokers import running_broker
from support.directories import Directory
from support.jms_client import PATIENCE
from support.peers.nats_server import running_nats
from support.peers.rabbitmq import RabbitMQ
from support.remotes import running_amqtt, running_metabroker
from support.services import wait_until

POLICY = """
[[allow]]
clients = ["*"]
remotes = ["far/*-mqtt", "far/amqtt"]
publish = ["#"]
subscribe = ["#"]
version = "3.1.1"

[[allow]]
clients = ["*"]
remotes = ["far/*"]
publish = ["#"]
subscribe = ["#"]
"""


@dataclass
class Site:
    """A community: its broker's URL, the directory, and the metabroker's log."""

    url: str
    directory: Directory
    log: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    directory = Directory(f"sqlite:///{folder / 'directory.db'}", folder / "directory.log")
    try:
        directory.accounts()
        directory.client("alice").put("mesh", "far")
        with (
            running_broker(folder, "mqmesh") as broker,
            running_metabroker(folder, broker.port, POLICY, "", "--directory", directory.url) as log,
        ):
            yield Site(broker.url, directory, log)
    finally:
        directory.kill()


@contextlib.contextmanager
def amqtt(folder: Path, _: Callable[[], RabbitMQ]) -> Iterator[str]:
    with running_amqtt(folder) as port:
        yield f"mqtt://127.0.0.1:{port}"


@contextlib.contextmanager
def mosquitto(folder: Path, _: Callable[[], RabbitMQ]) -> Iterator[str]:
    with running_broker(folder, "mosquitto") as running:
        yield running.url


@contextlib.contextmanager
def rabbitmq_mqtt(_: Path, rabbitmq: Callable[[], RabbitMQ]) -> Iterator[str]:
    yield f"mqtt://127.0.0.1:{rabbitmq().mqtt_port}"


@contextlib.contextmanager
def rabbitmq_amqp(_: Path, rabbitmq: Callable[[], RabbitMQ]) -> Iterator[str]:
    yield rabbitmq().url


@contextlib.contextmanager
def nats_mqtt(folder: Path, _: Callable[[], RabbitMQ]) -> Iterator[str]:
    with running_nats(folder) as server:
        yield f"mqtt://127.0.0.1:{server.mqtt_port}"


@contextlib.contextmanager
def nats(folder: Path, _: Callable[[], RabbitMQ]) -> Iterator[str]:
    with running_nats(folder) as server:
        yield server.url


KINDS = {  # service -> how to start the server, whether it carries more than topic and body
    "amqtt": (amqtt, False),
    "mosquitto": (mosquitto, True),
    "rabbitmq-mqtt": (rabbitmq_mqtt, False),
    "rabbitmq-amqp": (rabbitmq_amqp, True),
    "nats-mqtt": (nats_mqtt, False),
    "nats": (nats, True),
}


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Iterator[str]:
    """The name of a service whose server runs and is registered."""
    server, _ = KINDS[request.param]
    with server(tmp_path, lambda: request.getfixturevalue("rabbitmq")) as address:
        site.directory.client("alice").put("service", request.param, "far", addresses=[address])
        yield request.param


def receive(consumer: object, count: int) -> list[Message]:
    found = [consumer.receive(PATIENCE) for _ in range(count)]  # type: ignore[attr-defined]
    assert None not in found
    return found


def body(message: Message) -> str:
    return message.body if isinstance(message.body, str) else message.body.decode()


def test_connect_publish_subscribe_receive_unsubscribe_disconnect(site: Site, service: str, name: str) -> None:
    gauges = MetabrokerConnectionFactory(site.url, f"far/{service}", client_id=f"gauges-{service}")
    office = MetabrokerConnectionFactory(site.url, f"far/{service}", client_id=f"office-{service}")
    with gauges.create_context() as sender, office.create_context() as receiver:
        levels = receiver.create_consumer(Topic(f"{name}/+/level"))
        flows = receiver.create_consumer(Topic(f"{name}/flow/#"))
        producer = sender.create_producer().set_property("unit", "mm")
        for topic, value in (("rhine/level", "7"), ("flow/rhine/now", "2300"), ("elbe/level", "9"), ("elbe/ice", "unwanted")):
            producer.send(Topic(f"{name}/{topic}"), value)
        found = receive(levels, 2)
        assert [(str(message.destination), body(message)) for message in found] == [
            (f"{name}/rhine/level", "7"),
            (f"{name}/elbe/level", "9"),
        ]
        assert [body(message) for message in receive(flows, 1)] == ["2300"]
        if KINDS[service][1]:
            assert [message.get_string_property("unit") for message in found] == ["mm", "mm"]
            assert len({message.message_id for message in found} - {None}) == 2
        producer.set_delivery_mode(DeliveryMode.NON_PERSISTENT).send(Topic(f"{name}/oder/level"), "at most once")
        assert body(receive(levels, 1)[0]) == "at most once"
        levels.close()  # unsubscribes
        for topic in ("rhine/level", "flow/elbe"):
            sender.create_producer().send(Topic(f"{name}/{topic}"), "8")
        assert [body(message) for message in receive(flows, 1)] == ["8"]
        assert site.log.read_text().count(f"event=remote-up remote=far/{service} ") == 1  # one connection for both clients
    wait_until(lambda: f"remote=far/{service} sharers=0" in site.log.read_text(), PATIENCE, "end of the last session")
