"""Jakarta Messaging 3.1, section by section, where the other modules here are not: the number in a test's name is the section's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    Connection,
    ConnectionFactory,
    Context,
    DeliveryMode,
    IllegalStateError,
    Message,
    MessageFormatError,
    Session,
    TextMessage,
    Topic,
)
from support.jms_client import PATIENCE, Collected, texts, until_waiting
from support.services import wait_until


def sent(session: Session, topic: str, *words: str) -> None:
    producer = session.create_producer(session.create_topic(topic))
    for word in words:
        producer.send(session.create_text_message(word))


def test_3_5_11_the_delivery_count_is_a_property_and_1_at_first(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    sent(context.session, name, "a")
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert (message.redelivered, message.delivery_count, message.get_int_property("JMSXDeliveryCount")) == (False, 1, 1)


def test_3_6_acknowledge_is_ignored_where_the_session_does_it(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    sent(context.session, name, "a", "b")
    message = consumer.receive(PATIENCE)
    assert message is not None
    message.acknowledge()
    assert texts(consumer, 1) == ["b"]


def test_3_9_a_sent_message_may_be_changed_and_sent_again(context: Context, name: str) -> None:
    consumer, producer = context.create_consumer(context.create_topic(name)), context.session.create_producer(Topic(name))
    message = TextMessage("first")
    producer.send(message)
    message.text = "second"
    producer.send(message)
    producer.send(message)
    assert texts(consumer, 3) == ["first", "second", "second"]


def test_3_10_what_is_redelivered_is_the_original(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.CLIENT)
    consumer = session.create_consumer(session.create_topic(name))
    message = session.create_text_message("original")
    message.set_string_property("color", "red")
    session.create_producer(session.create_topic(name)).send(message)
    found = consumer.receive(PATIENCE)
    assert isinstance(found, TextMessage)
    found.clear_body()
    found.clear_properties()
    found.text = "changed"
    session.recover()
    found = consumer.receive(PATIENCE)
    assert isinstance(found, TextMessage)
    assert (found.text, found.get_string_property("color"), found.redelivered) == ("original", "red", True)


def test_6_1_4_a_context_starts_with_its_first_consumer_unless_told_otherwise(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        context.auto_start = False
        consumer = context.create_consumer(context.create_topic(name))
        context.create_producer().send(context.create_topic(name), "a")  # sending needs no start
        assert consumer.receive(0.05) is None
        context.start()
        assert texts(consumer, 1) == ["a"]


def test_6_1_5_starting_and_stopping_again_is_ignored(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_topic(name))
    connection.start()
    connection.stop()
    connection.stop()
    sent(session, name, "a")
    assert consumer.receive(0.05) is None, "the time of a receive goes on"
    connection.start()
    assert texts(consumer, 1) == ["a"]


def test_6_1_6_metadata(connection: Connection) -> None:
    assert connection.metadata.jms_version == "3.1"
    assert "JMSXDeliveryCount" in connection.metadata.jmsx_property_names


def test_6_1_8_a_message_of_a_closed_connection_is_acknowledged_no_more(factory: ConnectionFactory, name: str) -> None:
    with factory.create_connection() as connection:
        connection.start()
        session = connection.create_session(acknowledge_mode=AckMode.CLIENT)
        consumer = session.create_consumer(session.create_topic(name))
        sent(session, name, "a")
        message = consumer.receive(PATIENCE)
    assert isinstance(message, TextMessage)
    with pytest.raises(IllegalStateError):
        message.acknowledge()
    assert message.text == "a", "everything else of it goes on"
    for closed in (connection, session, consumer):
        closed.close()  # type: ignore[attr-defined]
    with pytest.raises(IllegalStateError):
        session.create_consumer(Topic(name))


def test_6_2_5_and_6_2_14_sessions_run_their_listeners_beside_each_other(connection: Connection, name: str) -> None:
    both = threading.Barrier(2)
    met = Collected(lambda _: both.wait(PATIENCE))
    for part in "ab":
        session = connection.create_session()
        session.create_consumer(session.create_topic(f"{name}/{part}")).message_listener = met
    with connection.create_session() as sender:
        for part in "ab":
            sent(sender, f"{name}/{part}", part)
        met.wait(2)


def test_6_2_9_2_order_holds_within_a_delivery_mode(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    words = [str(number) for number in range(100)]
    for word in words:
        mode = DeliveryMode.PERSISTENT if int(word) % 2 else DeliveryMode.NON_PERSISTENT
        context.create_producer().set_delivery_mode(mode).send(context.create_topic(name), word)
    found = texts(consumer, 100)
    for part in (0, 1):
        assert [word for word in found if int(word) % 2 == part] == words[part::2]


def test_6_2_15_closing_a_session_acknowledges_nothing_of_a_client(connection: Connection, name: str) -> None:
    with connection.create_session(acknowledge_mode=AckMode.CLIENT) as session:
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        sent(session, name, "a")
        assert texts(consumer, 1) == ["a"]
    with connection.create_session(acknowledge_mode=AckMode.CLIENT) as session:
        consumer = session.create_durable_consumer(session.create_topic(name), name)
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.redelivered) == ("a", True)
        assert message.delivery_count >= 2
        message.acknowledge()
        consumer.close()
        session.unsubscribe(name)


def test_7_3_4_commit_waits_for_completions_and_their_listeners_cannot_close(connection: Connection, name: str) -> None:
    session = connection.create_session(transacted=True)
    refused: list[str] = []

    def done(_message: Message, _error: object) -> None:
        for forbidden in (session.commit, session.rollback, session.close, connection.close):
            try:
                forbidden()
            except IllegalStateError:
                refused.append(forbidden.__name__)

    producer = session.create_producer(session.create_topic(name))
    for number in range(20):
        producer.send(session.create_text_message(str(number)), completion_listener=done)
    session.commit()
    assert refused == ["commit", "rollback", "close", "close"] * 20


def test_8_5_receiving_waits_no_longer_than_it_may(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    assert consumer.receive_no_wait() is None
    assert consumer.receive(0.01) is None
    sent(context.session, name, "a")
    message = consumer.receive()
    assert isinstance(message, TextMessage)
    assert message.text == "a"


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.DUPS_OK, AckMode.CLIENT, AckMode.SESSION_TRANSACTED])
def test_8_6_bodies_are_received_as_their_type_or_not_at_all(factory: ConnectionFactory, name: str, mode: AckMode) -> None:
    with factory.create_context(mode) as context, context.connection.create_session() as other:
        consumer = context.create_consumer(context.create_topic(name))
        producer = other.create_producer(other.create_topic(name))
        for message in (other.create_text_message("text"), other.create_bytes_message(b"bytes"), other.create_map_message({"a": 1})):
            producer.send(message)
        assert consumer.receive_body(str, PATIENCE) == "text"
        with pytest.raises(MessageFormatError):
            consumer.receive_body(str, PATIENCE)
        if mode in (AckMode.AUTO, AckMode.DUPS_OK):
            found = consumer.receive(PATIENCE)
            assert found is not None
            assert (found.body, found.redelivered, found.delivery_count) == (b"bytes", False, 1), "as if it had not been tried"
        assert consumer.receive_body(dict, PATIENCE) == {"a": 1}
        assert consumer.receive_body_no_wait(dict) is None
        if mode is AckMode.CLIENT:
            context.recover()
            again = [consumer.receive(PATIENCE) for _ in range(3)]
            assert [one and one.delivery_count for one in again] == [2, 2, 2], "the failed one was delivered, too"
        producer.send(other.create_stream_message())
        producer.send(Message())
        for _ in range(2):
            with pytest.raises(MessageFormatError):
                consumer.receive_body(object, PATIENCE)
            if mode in (AckMode.AUTO, AckMode.DUPS_OK):
                assert consumer.receive(PATIENCE) is not None


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.SESSION_TRANSACTED])
def test_8_7_after_a_listener_that_raises_the_next_message_comes(connection: Connection, name: str, mode: AckMode) -> None:
    """Where the application acknowledges, it says what comes again."""

    def fails(message: object) -> None:
        if message.delivery_count == 1 and message.body == "bad":  # type: ignore[attr-defined]
            raise RuntimeError("no")

    seen = Collected(fails)
    session = connection.create_session(acknowledge_mode=mode)
    consumer = session.create_consumer(session.create_topic(name))
    consumer.message_listener = seen
    with connection.create_session() as sender:
        sent(sender, name, "bad", "next")
    assert [message.body for message in seen.wait(2)] == ["bad", "next"]
    consumer.message_listener = None
    if mode is AckMode.CLIENT:
        session.recover()
    else:
        session.rollback()
    for word in ("bad", "next"):
        message = consumer.receive(PATIENCE)
        assert message is not None
        assert (message.body, message.delivery_count) == (word, 2)


def test_8_8_closing_a_consumer_ends_its_receive_and_waits_for_its_listener(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_topic(name))
    found: list[object] = ["nothing yet"]
    thread = threading.Thread(target=lambda: found.append(consumer.receive()))
    thread.start()
    until_waiting(thread)
    consumer.close()
    thread.join(PATIENCE)
    assert found == ["nothing yet", None]

    inside, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(message: object) -> None:
        inside.set()
        assert leave.wait(PATIENCE)

    consumer = session.create_consumer(session.create_topic(name))
    consumer.message_listener = slow
    with connection.create_session() as sender:
        sent(sender, name, "a")
    assert inside.wait(PATIENCE)
    thread = threading.Thread(target=lambda: (consumer.close(), closed.set()))
    thread.start()
    assert not closed.wait(0.05)
    leave.set()
    assert closed.wait(PATIENCE)
    thread.join()


def test_8_8_what_a_closed_consumer_has_delivered_is_acknowledged_as_ever(connection: Connection, name: str) -> None:
    session = connection.create_session(acknowledge_mode=AckMode.CLIENT)
    consumer, other = (session.create_consumer(session.create_topic(f"{name}/{part}")) for part in "ab")
    sent(session, f"{name}/a", "a")
    sent(session, f"{name}/b", "b")
    assert texts(consumer, 1) == ["a"]
    consumer.close()
    message = other.receive(PATIENCE)
    assert message is not None
    message.acknowledge()
    session.recover()
    assert other.receive_no_wait() is None


def test_3_4_2_a_consumer_that_does_not_receive_drops_non_persistent_messages_and_says_so(way: Any, name: str) -> None:
    told = Collected()
    with way.factory(inbox=10).create_context() as context, way.factory().create_context() as other:
        context.exception_listener = told
        consumer = context.create_consumer(context.create_topic(name))
        producer = other.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        for number in range(30):
            producer.send(Topic(name), str(number))
        producer.set_delivery_mode(DeliveryMode.PERSISTENT).send(Topic(name), "persistent")
        wait_until(lambda: len(consumer.inbox) + consumer.dropped == 31, PATIENCE, "all messages")
        assert told.wait(1)[0].error_code == "messages_dropped"
        assert (texts(consumer, 11), consumer.dropped) == ([*map(str, range(10)), "persistent"], 20)
