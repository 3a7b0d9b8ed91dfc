"""The asyncio twin: the same behaviour, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
from typing import Any

from jms_client import PATIENCE
from mqmesh.client import AckMode, AsyncContext, ConnectionFactory


def test_send_receive_iterate_and_close(factory: ConnectionFactory, name: str) -> None:
    async def program() -> list[str]:
        found: list[str] = []
        async with AsyncContext(factory) as context:
            topic = context.create_topic(name)
            consumer = await context.create_consumer(topic, "n >= 0")

            async def collect() -> None:
                async for message in consumer:
                    found.append(message.body)
                    if len(found) == 100:
                        await consumer.close()

            collecting = asyncio.create_task(collect())
            await asyncio.gather(*(context.create_producer().set_property("n", n).send(topic, str(n)) for n in range(100)))
            await asyncio.wait_for(collecting, PATIENCE)
            assert await consumer.receive(0.01) is None
        return found

    assert asyncio.run(program()) == [str(n) for n in range(100)]


def test_transactions_redelivery_and_timeouts(factory: ConnectionFactory, way: Any, name: str) -> None:
    async def program() -> None:
        async with (
            AsyncContext(factory, AckMode.SESSION_TRANSACTED) as context,
            AsyncContext(way.factory()) as other,
        ):
            topic = context.create_topic(name)
            consumer = await context.create_consumer(topic)
            assert await consumer.receive(0.01) is None
            await other.create_producer().set_delivery_delay(50).send(topic, "a")
            message = await consumer.receive(PATIENCE)
            assert message is not None
            context.rollback()
            message = await consumer.receive(PATIENCE)
            assert message is not None
            assert (message.body, message.delivery_count) == ("a", 2)
            await context.commit()
            context.rollback()
            assert await consumer.receive(0.01) is None

    asyncio.run(program())
