"""aiomqtt: asyncio on top of paho, MQTT 3.1.1 and 5."""

from __future__ import annotations

import asyncio

import aiomqtt
import pytest
from support.brokers import RunningBroker

PATIENCE = 90.0
both = pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])


def client(broker: RunningBroker, version: aiomqtt.ProtocolVersion, **options: object) -> aiomqtt.Client:
    return aiomqtt.Client(broker.host, broker.port, protocol=version, timeout=PATIENCE, **options)


async def take(source: aiomqtt.Client, count: int) -> list[aiomqtt.Message]:
    """The next `count` messages; TimeoutError when they do not come."""
    got = []
    async with asyncio.timeout(PATIENCE):
        async for message in source.messages:
            got.append(message)
            if len(got) == count:
                break
    return got


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_in_order(broker: RunningBroker, name: str, version: aiomqtt.ProtocolVersion, qos: int) -> None:
    async def scenario() -> list[int]:
        async with client(broker, version) as subscriber, client(broker, version) as publisher:
            await subscriber.subscribe(f"{name}/#", qos)
            for number in range(100):
                await publisher.publish(f"{name}/{number}", number, qos)
            return [int(message.payload) for message in await take(subscriber, 100)]

    assert asyncio.run(scenario()) == list(range(100))


@both
def test_concurrent_publishers(broker: RunningBroker, name: str, version: aiomqtt.ProtocolVersion) -> None:
    async def scenario() -> list[str]:
        async with client(broker, version) as subscriber, client(broker, version) as publisher:
            await subscriber.subscribe(f"{name}/#", 1)
            await asyncio.gather(*(publisher.publish(f"{name}/{task}", str(task), 1) for task in range(200)))
            return sorted(str(message.topic) for message in await take(subscriber, 200))

    assert asyncio.run(scenario()) == sorted(f"{name}/{task}" for task in range(200))


@both
def test_retained_and_will(broker: RunningBroker, name: str, version: aiomqtt.ProtocolVersion) -> None:
    async def scenario() -> None:
        will = aiomqtt.Will(f"{name}/state", "offline", 1, True)
        leaving = client(broker, version, will=will)
        await leaving.__aenter__()
        await leaving.publish(f"{name}/state", "online", 1, retain=True)
        async with client(broker, version) as watcher:
            await watcher.subscribe(f"{name}/state", 1)
            [first] = await take(watcher, 1)
            assert (first.payload, first.retain) == (b"online", True)
            leaving._client.socket().shutdown(2)
            [second] = await take(watcher, 1)
            assert (second.payload, second.retain) == (b"offline", False)
        with pytest.raises(aiomqtt.MqttError):
            await leaving.publish(f"{name}/state", "x", 1)

    asyncio.run(scenario())


def test_shared_subscription(broker: RunningBroker, name: str) -> None:
    async def scenario() -> list[int]:
        version = aiomqtt.ProtocolVersion.V5
        async with client(broker, version) as a, client(broker, version) as b, client(broker, version) as publisher:
            for member in (a, b):
                await member.subscribe(f"$share/g/{name}", 1)
            for number in range(50):
                await publisher.publish(name, number, 1)
            got: list[int] = []

            async def collect(member: aiomqtt.Client) -> None:
                async for message in member.messages:
                    got.append(int(message.payload))
                    if len(got) == 50:
                        done.set()

            done = asyncio.Event()
            tasks = [asyncio.create_task(collect(member)) for member in (a, b)]
            async with asyncio.timeout(PATIENCE):
                await done.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return got

    assert sorted(asyncio.run(scenario())) == list(range(50))


def test_wrong_filter_is_an_error_for_this_client_alone(broker: RunningBroker, name: str) -> None:
    async def scenario() -> None:
        async with client(broker, aiomqtt.ProtocolVersion.V5) as good:
            await good.subscribe(name, 1)
            with pytest.raises((aiomqtt.MqttError, ValueError)):
                async with client(broker, aiomqtt.ProtocolVersion.V5) as bad:
                    await bad.subscribe("a/#/b", 1)
            await good.publish(name, "fine", 1)
            [message] = await take(good, 1)
            assert message.payload == b"fine"

    asyncio.run(scenario())
