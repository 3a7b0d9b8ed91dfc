"""amqtt's client: an MQTT 3.1.1 implementation that shares no code with paho."""

from __future__ import annotations

import asyncio
import logging

import pytest
from amqtt.client import MQTTClient
from support.brokers import RunningBroker

PATIENCE = 90.0
logging.getLogger("amqtt").setLevel(logging.ERROR)


def client(client_id: str | None = None, **config: object) -> MQTTClient:
    return MQTTClient(client_id=client_id, config={"auto_reconnect": False, "keep_alive": 30, **config})


async def take(source: MQTTClient) -> tuple[str, bytes, int]:
    message = await source.deliver_message(timeout_duration=PATIENCE)
    assert message is not None
    return message.topic, bytes(message.data), message.qos


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_in_order(broker: RunningBroker, name: str, qos: int) -> None:
    async def scenario() -> list[int]:
        subscriber, publisher = client(), client()
        await subscriber.connect(broker.url)
        await publisher.connect(broker.url)
        assert await subscriber.subscribe([(f"{name}/#", qos)]) == [qos]
        for number in range(50):
            await publisher.publish(f"{name}/{number}", str(number).encode(), qos=qos)
        got = [await take(subscriber) for _ in range(50)]
        await subscriber.disconnect()
        await publisher.disconnect()
        assert {one[2] for one in got} == {qos}
        return [int(one[1]) for one in got]

    assert asyncio.run(scenario()) == list(range(50))


def test_retained_and_persistent_session(broker: RunningBroker, name: str) -> None:
    async def scenario() -> None:
        away, publisher = client(name), client()
        await away.connect(broker.url, cleansession=False)
        await away.subscribe([(f"{name}/queue", 1)])
        await away.disconnect()
        await publisher.connect(broker.url)
        await publisher.publish(f"{name}/state", b"kept", qos=1, retain=True)
        for number in range(3):
            await publisher.publish(f"{name}/queue", str(number).encode(), qos=1)
        await publisher.disconnect()
        back = client(name)
        await back.connect(broker.url, cleansession=False)
        assert [(await take(back))[1] for _ in range(3)] == [b"0", b"1", b"2"]
        await back.subscribe([(f"{name}/state", 1)])
        assert (await take(back))[1] == b"kept"
        await back.disconnect()

    asyncio.run(scenario())


def test_will(broker: RunningBroker, name: str) -> None:
    async def scenario() -> None:
        watcher = client()
        await watcher.connect(broker.url)
        await watcher.subscribe([(f"{name}/will", 1)])
        dying = client(will={"topic": f"{name}/will", "message": "gone", "qos": 1, "retain": False})
        await dying.connect(broker.url)
        await dying._handler.writer.close()  # amqtt has no public way to break off without DISCONNECT
        topic, data, _ = await take(watcher)
        assert (topic, data) == (f"{name}/will", b"gone")
        await watcher.disconnect()

    asyncio.run(scenario())
