"""Acknowledgement, redelivery and transactions: Jakarta Messaging 3.1, 3.4.7, 6.2.7, 6.2.10, 6.2.15, 8.7 and 8.8."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from mqmesh.client import AckMode, Connection, ConnectionFactory, IllegalStateError, Topic, TransactionRolledBackError
from support.jms_client import PATIENCE, Collected, texts


def sent(connection: Connection, name: str, *words: str) -> None:
    """Send with another session."""
    with connection.create_session() as session:
        producer = session.create_producer(session.create_topic(name))
        for word in words:
            producer.send(session.create_text_message(word))


def test_6_2_10_auto_what_is_received_is_not_delivered_again(factory: ConnectionFactory, name: str) -> None:
    with factory.create_connection() as connection:
        connection.start()
        session = connection.create_session()
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        sent(connection, name, "a", "b")
        assert texts(consumer, 2) == ["a", "b"]
        session.recover()
        assert consumer.receive_no_wait() is None
    with factory.create_context() as context:
        consumer = context.create_durable_consumer(context.create_topic(name), name)
        context.create_producer().send(context.create_topic(name), "c")
        assert texts(consumer, 1) == ["c"]
        consumer.close()
        context.unsubscribe(name)


def test_6_2_10_client_one_acknowledgement_is_for_all_before_it(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.CLIENT)
    consumer = session.create_durable_consumer(session.create_topic(name), name)
    sent(connection, name, "a", "b", "c")
    assert texts(consumer, 2) == ["a", "b"]
    message = consumer.receive(PATIENCE)
    session.recover()
    assert texts(consumer, 2) == ["a", "b"]
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert (message.redelivered, message.delivery_count) == (True, 2)
    message.acknowledge()
    session.recover()
    sent(connection, name, "d")
    assert texts(consumer, 1) == ["d"]
    session.close()
    with connection.create_session() as session:
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        message = consumer.receive(PATIENCE)  # never acknowledged: comes again from the broker, and nothing else does
        assert message is not None
        assert (message.body, message.redelivered) == ("d", True)
        sent(connection, name, "e")
        assert texts(consumer, 1) == ["e"]
        consumer.close()
        session.unsubscribe(name)


def test_6_2_10_recover_delivers_again_in_order_and_counts(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.CLIENT)
    consumer = session.create_consumer(session.create_topic(name))
    sent(connection, name, *"abcde")
    assert texts(consumer, 3) == ["a", "b", "c"]
    for attempt in (2, 3):
        session.recover()
        for word in "abc":
            message = consumer.receive(PATIENCE)
            assert message is not None
            assert (message.body, message.delivery_count, message.redelivered) == (word, attempt, True)
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert (message.body, message.delivery_count, message.redelivered) == ("d", 1, False)


def test_individual_acknowledges_one_message(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.INDIVIDUAL)
    consumer = session.create_consumer(session.create_topic(name))
    sent(connection, name, "a", "b", "c")
    messages = [consumer.receive(PATIENCE) for _ in range(3)]
    assert messages[1] is not None
    messages[1].acknowledge()
    session.recover()
    assert texts(consumer, 2) == ["a", "c"]


def test_6_2_10_dups_ok_delivers_each_message(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.DUPS_OK)
    consumer = session.create_durable_consumer(session.create_topic(name), name)
    words = [str(number) for number in range(70)]
    sent(connection, name, *words)
    assert texts(consumer, 70) == words
    session.close()
    with connection.create_session() as session:
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        sent(connection, name, "last")
        assert texts(consumer, 1) == ["last"]  # closing had acknowledged the rest
        consumer.close()
        session.unsubscribe(name)


def test_6_2_7_a_transaction_sends_and_acknowledges_together(connection: Connection, name: str) -> None:
    session = connection.create_session(transacted=True)
    requests = session.create_consumer(session.create_topic(name))
    answers = session.create_consumer(session.create_topic(f"{name}/answer"))
    producer = session.create_producer(session.create_topic(f"{name}/answer"))
    sent(connection, name, "a", "b")

    assert texts(requests, 2) == ["a", "b"]
    producer.send(session.create_text_message("lost"))
    session.rollback()
    for word in "ab":
        message = requests.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.delivery_count) == (word, 2)
        producer.send(session.create_text_message(f"re {word}"))
    assert answers.receive(0) is None
    session.commit()
    assert texts(answers, 2) == ["re a", "re b"]
    session.rollback()  # takes back the answers, not what was committed
    assert texts(answers, 2) == ["re a", "re b"]
    assert requests.receive_no_wait() is None


def test_6_2_15_closing_a_transacted_session_rolls_back(connection: Connection, name: str) -> None:
    session = connection.create_session(transacted=True)
    consumer = session.create_durable_consumer(session.create_topic(name), name)
    sent(connection, name, "a")
    assert texts(consumer, 1) == ["a"]
    session.create_producer(session.create_topic(name)).send(session.create_text_message("never"))
    session.close()
    with connection.create_session() as session:
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.redelivered) == ("a", True)
        sent(connection, name, "b")
        assert texts(consumer, 1) == ["b"]
        consumer.close()
        session.unsubscribe(name)


def test_8_8_a_consumer_closed_in_a_transaction_stays_part_of_it(connection: Connection, name: str) -> None:
    session = connection.create_session(transacted=True)
    consumer = session.create_durable_consumer(session.create_topic(name), name)
    sent(connection, name, "a")
    assert texts(consumer, 1) == ["a"]
    consumer.close()
    with pytest.raises(IllegalStateError):
        session.create_durable_consumer(session.create_topic(name), name)
    session.commit()
    sent(connection, name, "b")
    with connection.create_session() as other:
        consumer = other.create_durable_consumer(other.create_topic(name), name)
        assert texts(consumer, 1) == ["b"]
        consumer.close()
        other.unsubscribe(name)


def test_6_2_7_a_commit_that_the_broker_does_not_answer_is_rolled_back(factory: ConnectionFactory, way: Any, name: str) -> None:
    impatient = way.factory(send_timeout=0.2)
    with factory.create_connection() as sender, impatient.create_connection() as connection:
        connection.start()
        session = connection.create_session(transacted=True)
        consumer = session.create_consumer(session.create_topic(name))
        sent(sender, name, "a")
        assert texts(consumer, 1) == ["a"]
        session.create_producer(session.create_topic(name)).send(session.create_text_message("x"))
        connection.publisher.close(False, lambda outcome: None)
        with pytest.raises(TransactionRolledBackError) as caught:
            session.commit()
        assert caught.value.already_sent == ()
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.delivery_count) == ("a", 2)


def test_modes_refuse_what_is_not_theirs(connection: Connection) -> None:
    with connection.create_session() as session, pytest.raises(IllegalStateError):
        session.commit()
    with connection.create_session(transacted=True) as session, pytest.raises(IllegalStateError):
        session.recover()


def test_8_7_a_listener_that_raises_gets_the_message_again_some_times(way: Any, name: str) -> None:
    with way.factory(redeliveries=2).create_connection() as connection:
        failures = Collected()
        connection.exception_listener = failures

        def fail_on_bad(message: object) -> None:
            if message.body == "bad":  # type: ignore[attr-defined]
                raise RuntimeError("no")

        seen = Collected(fail_on_bad)
        session = connection.create_session()
        session.create_consumer(session.create_topic(name)).message_listener = seen
        sent(connection, name, "good", "bad", "last")
        connection.start()
        counts = [(message.body, message.delivery_count) for message in seen.wait(5)]
        assert counts == [("good", 1), ("bad", 1), ("bad", 2), ("bad", 3), ("last", 1)]
        assert failures.wait(1)[0].error_code == "given_up"


PROGRAM = """
import sys
from mqmesh.client import *
community, name, remote = sys.argv[1:]
factory = MetabrokerConnectionFactory(community, remote, client_id=name) if remote else ConnectionFactory(community, client_id=name)
with factory.create_context(AckMode.CLIENT) as context:
    consumer = context.create_durable_consumer(Topic(name), "work")
    for number in range(5):
        consumer.receive(90)
    print("five", flush=True)
    consumer.receive()
"""


def test_3_4_7_a_program_that_is_killed_gets_again_what_it_had_not_acknowledged(way: Any, name: str) -> None:
    clerk, topic = way.factory(client_id=f"clerk-{name}"), Topic(f"clerk-{name}")
    with clerk.create_context() as context:
        context.create_durable_consumer(topic, "work").close()
        for word in "abcde":
            context.create_producer().send(topic, word)
    command = [sys.executable, "-c", PROGRAM, way.first.url, topic.name, way.broker.url if way.community else ""]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "five\n"
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    with clerk.create_context(AckMode.CLIENT) as context:
        consumer = context.create_durable_consumer(topic, "work")
        context.create_producer().send(topic, "f")
        found = [message for _ in range(6) if (message := consumer.receive(PATIENCE))]
        again = [(word, True, 2) for word in "abcde"]
        assert [(message.body, message.redelivered, message.delivery_count) for message in found] == [*again, ("f", False, 1)]
        found[-1].acknowledge()
        consumer.close()
        context.unsubscribe("work")
