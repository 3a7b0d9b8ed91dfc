"""The asyncio twin: the same behaviour, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
from typing import Any

from mqmesh.client import AckMode, AsyncContext, ConnectionFactory
from support.jms_client import PATIENCE


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


def test_it_makes_messages_and_answers_come_to_a_temporary_topic(way: Any, name: str) -> None:
    async def program() -> None:
        async with AsyncContext(way.factory()) as asker, AsyncContext(way.factory()) as clerk:
            topic, answers = clerk.create_topic(name), asker.create_temporary_topic()
            orders, heard = await clerk.create_consumer(topic), await asker.create_consumer(answers)
            order = asker.create_map_message({"article": "bolt"})
            order.reply_to = answers
            order.set_int_property("amount", 3)
            await asker.create_producer().send(topic, order)
            got = await orders.receive(PATIENCE)
            assert got is not None
            assert got.reply_to is not None
            assert (got.body, got.get_int_property("amount")) == ({"article": "bolt"}, 3)
            await clerk.create_producer().send(got.reply_to, clerk.create_text_message("thank you"))
            answer = await heard.receive(PATIENCE)
            assert answer is not None
            assert answer.body == "thank you"

    asyncio.run(program())
