"""Delivery delay (7.9) at a broker that holds delayed messages: consumers, their prefetch and plain MQTT clients see nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.client import AckMode, ConnectionFactory, Topic
from mqmesh.client.core.settings import Settings
from support.brokers import RunningBroker, running_broker
from support.jms_client import PATIENCE, texts
from support.paho_client import Paho

pytestmark = pytest.mark.process

TABLES = "\n[queues.later]\npublish = true\n"
HOUR = 3_600_000  # milliseconds


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker"), "mqmesh", queues=TABLES) as made:
        yield made


def factory(running: RunningBroker, name: str) -> ConnectionFactory:
    return ConnectionFactory(running.url, client_id=name, send_timeout=PATIENCE)


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.SESSION_TRANSACTED])
def test_7_9_delayed_messages_do_not_fill_the_prefetch_of_a_durable_consumer(running: RunningBroker, name: str, mode: AckMode) -> None:
    with factory(running, name).create_context() as shop, factory(running, f"{name}-clerk").create_context(mode) as clerk:
        consumer = clerk.create_durable_consumer(Topic(name), "desk")
        delayed, now = shop.create_producer().set_delivery_delay(HOUR), shop.create_producer()
        for number in range(Settings().prefetch + 1):
            delayed.send(Topic(name), f"in an hour {number}")
        now.send(Topic(name), "now")
        assert texts(consumer, 1) == ["now"]
        assert len(consumer.inbox) == (mode is AckMode.SESSION_TRANSACTED), "nothing else has come"
        delayed.set_delivery_delay(300).send(Topic(name), "soon")
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.redelivered, message.delivery_time - message.timestamp) == ("soon", False, 300)
        assert message.properties == {"JMSXDeliveryCount": 1}, "the words for the broker are no properties"


def test_7_9_a_transaction_delays_from_its_commit_and_priorities_stay(running: RunningBroker, name: str) -> None:
    with factory(running, name).create_context(AckMode.SESSION_TRANSACTED) as shop, Paho(running.port) as plain:
        plain.subscribe(name, 1)
        producer = shop.create_producer().set_delivery_delay(200).set_priority(7)
        producer.send(Topic(name), "taken back")
        shop.rollback()
        producer.send(Topic(name), "committed")
        shop.commit()
        message = plain.next()
        assert message.payload == b"committed"
        assert dict(message.properties.UserProperty)["JMSPriority"] == "7"  # type: ignore[union-attr]


def test_7_9_time_to_live_begins_after_the_delay(running: RunningBroker, name: str) -> None:
    with factory(running, name).create_context() as context:
        consumer = context.create_consumer(Topic(name))
        context.create_producer().set_delivery_delay(400).set_time_to_live(60_000).send(Topic(name), "later")
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert message.expiration == message.delivery_time + 60_000


def test_7_9_what_is_held_outlives_the_broker(tmp_path: Path, name: str) -> None:
    with running_broker(tmp_path, "mqmesh", queues=TABLES) as broker, factory(broker, name).create_context() as context:
        context.create_durable_consumer(Topic(name), "desk").close()
        context.create_producer().set_delivery_delay(1_000).send(Topic(name), "later")
    with running_broker(tmp_path, "mqmesh", queues=TABLES) as broker, factory(broker, name).create_context() as context:
        consumer = context.create_durable_consumer(Topic(name), "desk")
        assert texts(consumer, 1) == ["later"]
        assert consumer.receive_no_wait() is None
