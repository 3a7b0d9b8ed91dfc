"""Temporary queues through the API (6.2.2), over both transports that reach a broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mqmesh.client import (
    AsyncContext,
    ConnectionFactory,
    InvalidDestinationError,
    JMSError,
    Queue,
    QueueRequestor,
    TemporaryQueue,
)
from support.brokers import RunningBroker, running_broker
from support.jms_client import PATIENCE
from support.paho_client import Paho
from support.services import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker"), "mqmesh", web=True, queues="\n[queues.work]\n") as made:
        yield made


@pytest.fixture(params=["tcp", "websocket"])
def factory(request: pytest.FixtureRequest, running: RunningBroker) -> ConnectionFactory:
    return ConnectionFactory(running.url if request.param == "tcp" else running.web_url, send_timeout=PATIENCE)


def exists(factory: ConnectionFactory, queue: Queue) -> bool:
    with factory.create_context() as other:
        try:
            other.create_producer().send(queue, "is it there?")
        except InvalidDestinationError:
            return False
        return True


def test_replies_come_to_a_temporary_queue(factory: ConnectionFactory) -> None:
    with factory.create_context() as asks, factory.create_context() as answers:
        replies = asks.create_temporary_queue()
        worker = answers.create_consumer(answers.create_queue("work"))
        request = asks.create_text_message("7 times 6?")
        request.reply_to = replies
        asks.create_producer().send(asks.create_queue("work"), request)
        found = worker.receive(PATIENCE)
        assert found is not None
        assert found.reply_to == Queue(replies.name)
        answers.create_producer().send(found.reply_to, "42")
        first, second = asks.create_consumer(replies), asks.create_consumer(replies)
        got = first.receive_no_wait() or second.receive_no_wait()
        while got is None:
            got = first.receive(0.01) or second.receive(0.01)
        assert got.body == "42"
        with pytest.raises(JMSError, match="has consumers"):
            replies.delete()
        first.close()
        second.close()
        replies.delete()
        assert not exists(factory, replies)
        with pytest.raises(InvalidDestinationError, match="is deleted"):
            asks.create_consumer(replies)


def test_only_its_connection_consumes(factory: ConnectionFactory) -> None:
    with factory.create_context() as asks, factory.create_context() as other:
        replies = asks.create_temporary_queue()
        for destination in (replies, Queue(replies.name)):
            with pytest.raises(InvalidDestinationError, match="another connection's"):
                other.create_consumer(destination)
        assert exists(factory, replies)
    assert not exists(factory, replies)


def test_a_requestor_of_a_queue(factory: ConnectionFactory) -> None:
    with factory.create_connection() as connection, factory.create_context() as answers:
        connection.start()
        worker = answers.create_consumer(answers.create_queue("work"))

        def answer() -> None:
            request = worker.receive(PATIENCE)
            assert request is not None
            assert request.reply_to is not None
            reply = answers.create_text_message(f"{request.body}!")
            reply.correlation_id = request.message_id
            answers.create_producer().send(request.reply_to, reply)

        thread = threading.Thread(target=answer)
        thread.start()
        with QueueRequestor(connection.create_session(), Queue("work")) as requestor:
            reply = requestor.request(connection.create_session().create_text_message("hello"), PATIENCE)
        thread.join()
        assert reply is not None
        assert reply.body == "hello!"


def test_in_asyncio(factory: ConnectionFactory) -> None:
    async def run() -> Any:
        async with AsyncContext(factory) as context:
            queue = await context.create_temporary_queue()
            consumer = await context.create_consumer(queue)
            await context.create_producer().send(queue, "to myself")
            message = await consumer.receive(PATIENCE)
            return message.body if message is not None else None

    assert asyncio.run(run()) == "to myself"


def test_it_ends_with_a_program_that_is_killed(running: RunningBroker) -> None:
    program = f"""
from mqmesh.client import ConnectionFactory
context = ConnectionFactory({running.url!r}, session_keep=0).create_context()
print(context.create_temporary_queue().name, flush=True)
input()
"""
    factory = ConnectionFactory(running.url, send_timeout=PATIENCE)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert exists(factory, Queue(name))
        process.kill()
    wait_until(lambda: not exists(factory, Queue(name)), PATIENCE, "the end of the queue")


def test_a_client_of_paho_has_one(running: RunningBroker) -> None:
    with Paho(running.port, client_id="asks") as asks:
        asks.subscribe("$mqmesh/queues/answer", 0)
        asks.publish("$mqmesh/queues", b'{"do": "temporary"}', 1)
        topic = "$queue/" + json.loads(asks.next().payload)["queue"]
        asks.subscribe(topic, 1)
        with ConnectionFactory(running.url).create_context() as answers:
            answers.create_producer().send(Queue(topic.removeprefix("$queue/")), "42")
        assert asks.next().payload == b"42"


def test_the_broker_lost_the_session(running: RunningBroker) -> None:
    """As after a restart of the broker: the application is told, and may make another one."""
    factory = ConnectionFactory(running.url, send_timeout=PATIENCE, session_keep=0)
    told: list[JMSError] = []
    event = threading.Event()

    def tell(error: JMSError) -> None:
        told.append(error)
        if error.error_code == "session_lost":
            event.set()

    with factory.create_connection() as connection:
        connection.exception_listener = tell
        replies = connection.create_session().create_temporary_queue()
        asker = connection._temporary_queues._requests
        assert asker is not None
        asker._link._client.socket().shutdown(2)  # type: ignore[attr-defined]
        assert event.wait(PATIENCE)
        assert isinstance(replies, TemporaryQueue)
        with pytest.raises(InvalidDestinationError, match="is deleted"):
            connection.create_session().create_consumer(replies)
        assert exists(factory, connection.create_session().create_temporary_queue())
