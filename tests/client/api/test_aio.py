"""The asyncio twin: the same behaviour, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    AsyncConsumer,
    AsyncContext,
    AsyncProducer,
    AsyncQueueBrowser,
    ConnectionFactory,
    Context,
    IllegalStateError,
    JMSError,
    Message,
    MessageFormatError,
    Producer,
    QueueBrowser,
)
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


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_asyncio_classes_have_what_the_blocking_ones_have(factory: ConnectionFactory) -> None:
    async def program() -> None:
        async with AsyncContext(factory) as context:
            assert not public(Context) - public(AsyncContext)
            assert "auto_start" in public(AsyncContext), "an attribute of Context"
            assert not public(Producer) - public(AsyncProducer)
            assert not public(QueueBrowser) - public(AsyncQueueBrowser) - {"open"}
            consumer = await context.create_consumer(context.create_topic("a"))
            assert (consumer.destination.name, consumer.message_selector, consumer.closed) == ("a", None, False)
            there = {"receive", "receive_no_wait", "receive_body", "receive_body_no_wait", "close"}
            assert there <= public(AsyncConsumer)

    asyncio.run(program())


def test_contexts_of_one_connection_start_stop_and_close(factory: ConnectionFactory, name: str) -> None:
    async def program() -> None:
        with pytest.raises(IllegalStateError):
            AsyncContext(factory).create_topic("a")
        async with AsyncContext(factory) as context:
            assert (context.client_id, context.session_mode) == (factory.client_id, AckMode.AUTO)
            assert context.metadata.jms_version == "3.1"
            context.auto_start = False
            topic = context.create_topic(name)
            consumer = await context.create_consumer(topic)
            async with await context.create_context(AckMode.SESSION_TRANSACTED) as other:
                assert (other.connection, other.session_mode) == (context.connection, AckMode.SESSION_TRANSACTED)
                await other.create_producer().send(topic, "a")
                await other.commit()
            assert await consumer.receive(0.05) is None
            await context.start()
            assert await consumer.receive_body(str, PATIENCE) == "a"
            await context.create_producer().send(topic, "b")
            with pytest.raises(MessageFormatError):
                await consumer.receive_body(bytes, PATIENCE)
            assert consumer.receive_body_no_wait(str) == "b"
            assert consumer.receive_no_wait() is None
            await context.stop()
            found: list[JMSError] = []
            context.exception_listener = found.append
            assert context.exception_listener == found.append
            await context.close()
            assert consumer.closed

    asyncio.run(program())


def test_a_cancellation_that_comes_with_the_answer_is_not_forgotten(
    factory: ConnectionFactory, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncContext(factory) as context:

            def answer_and_cancel(message: Message, _destination: Any, _options: Any, done: Any) -> None:
                done(message, None)
                loop.call_soon_threadsafe(sending.cancel)

            monkeypatch.setattr(context.session, "send", answer_and_cancel)
            sending = asyncio.create_task(context.create_producer().send(context.create_topic(name), "x"))
            with pytest.raises(asyncio.CancelledError):
                await sending

    asyncio.run(program())
