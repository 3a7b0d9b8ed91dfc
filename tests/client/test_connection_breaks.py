"""Connections that break under load, and one that falls silent: the broker lives, every consumer gets each message once and in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from mqmesh.cli.fleet.proxy import Proxy
from mqmesh.client import AckMode, JMSError, Message, Session, Topic
from support.examples import how_many
from support.jms_client import PATIENCE, Collected, texts

CUTS = how_many("MQMESH_CUTS", 6)  # the last one is a silence
BETWEEN = 100  # messages between two cuts
AHEAD = 50  # of the slowest consumer


@pytest.fixture
def proxy(way: Any) -> Iterator[Proxy]:
    """Before the first broker on the way."""
    made = Proxy("127.0.0.1", way.first.port)
    yield made
    made.close()


def publish(session: Session, topic: str, consumers: list[Collected], completed: Collected, ending: threading.Event) -> None:
    producer, sent = session.create_producer(Topic(topic)), 0
    while not ending.is_set():
        producer.send(session.create_text_message(str(sent)), completion_listener=completed)
        sent += 1
        for consumer in consumers:
            consumer.wait(sent - AHEAD)
    session.close()  # waits for what is under way


@pytest.mark.slow
@pytest.mark.parametrize("qos", [1, 2])
def test_each_message_once_and_in_order(proxy: Proxy, name: str, qos: int, way: Any) -> None:
    factory = way.factory(proxy.url, persistent_qos=qos, retry_last=0.3, keep_alive=1)
    told, completed, ending = Collected(), Collected(), threading.Event()
    with factory.create_connection() as source, factory.create_connection() as connection:
        source.exception_listener = told
        connection.client_id = f"client-{name}"
        seen = {mode: Collected() for mode in (AckMode.AUTO, AckMode.DUPS_OK, AckMode.INDIVIDUAL, AckMode.SESSION_TRANSACTED)}
        for mode, collected in seen.items():
            session = connection.create_session(acknowledge_mode=mode)

            def consume(message: Message, collected: Collected = collected, session: Session = session) -> None:
                collected(message)
                message.acknowledge()
                if session.acknowledge_mode is AckMode.SESSION_TRANSACTED and int(message.body) % 3 == 0:
                    session.commit()

            session.create_consumer(Topic(name)).message_listener = consume
        connection.start()
        publisher = threading.Thread(
            target=publish, args=(source.create_session(), name, list(seen.values()), completed, ending), daemon=True
        )
        publisher.start()
        for cut in range(1, CUTS + 1):
            goal = len(completed.items) + AHEAD + BETWEEN  # more than is under way: everybody is connected again
            for collected in (completed, *seen.values()):
                collected.wait(goal)
            (proxy.silence if cut == CUTS else proxy.cut)()
            told.wait(cut)
            proxy.mend()
        for collected in (completed, *seen.values()):
            collected.wait(len(completed.items) + BETWEEN)
        ending.set()
        publisher.join(PATIENCE)
        assert not publisher.is_alive()
        expected = [str(number) for number in range(len(completed.items))]
        assert [message.body for message in completed.items] == expected
        for mode, collected in seen.items():
            assert [message.body for message in collected.wait(len(expected))] == expected, mode
        assert {error.error_code for error in told.items} == {"connection_lost"}


def test_what_happens_to_sends_without_a_connection(proxy: Proxy, name: str, way: Any) -> None:
    """PERSISTENT ones wait, and raise after `send_timeout`; NON_PERSISTENT ones raise at once."""
    told = Collected()
    with way.factory(proxy.url, retry_last=0.2, send_timeout=0.3).create_context() as context:
        context.exception_listener = told
        consumer = context.create_consumer(Topic(name))
        proxy.cut()
        told.wait(1)
        with pytest.raises(JMSError, match="may still be sent") as caught:
            context.create_producer().send(Topic(name), "persistent")
        assert caught.value.error_code == "timeout"
        with pytest.raises(JMSError, match="no connection"):
            context.create_producer().set_delivery_mode(1).send(Topic(name), "not")  # type: ignore[arg-type]
        proxy.mend()
        assert texts(consumer, 1) == ["persistent"]


def test_7_3_4_closing_without_a_connection_tells_the_completion_listeners(proxy: Proxy, name: str, way: Any) -> None:
    told, completed = Collected(), Collected()
    with way.factory(proxy.url, send_timeout=0.3).create_context() as context:
        context.exception_listener = told
        proxy.cut()
        told.wait(1)
        for number in range(3):
            context.create_producer().set_async(completed).send(Topic(name), str(number))
    assert [(message.body, error.error_code) for message, error in completed.items] == [(str(n), "timeout") for n in range(3)]
