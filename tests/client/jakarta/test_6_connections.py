"""Jakarta Messaging 3.1, chapters 4 to 6: destinations, connections and sessions. The number in a test's name is the section's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    Connection,
    ConnectionFactory,
    Context,
    IllegalStateError,
    InvalidDestinationError,
    JMSError,
    Message,
    TemporaryTopic,
    Topic,
    TopicRequestor,
)
from support.jms_client import PATIENCE, Collected, texts, until_waiting


def test_4_2_each_subscription_gets_each_message(context: Context, name: str) -> None:
    consumers = [context.create_consumer(Topic(name)) for _ in range(3)]
    context.create_producer().send(Topic(name), "a")
    assert [texts(consumer, 1) for consumer in consumers] == [["a"]] * 3


def test_4_2_a_subscription_that_is_not_durable_gets_what_is_sent_while_it_is_there(context: Context, name: str) -> None:
    producer = context.create_producer()
    producer.send(Topic(name), "before")
    with context.create_consumer(Topic(name)) as consumer:
        producer.send(Topic(name), "meanwhile")
        assert texts(consumer, 1) == ["meanwhile"]
    producer.send(Topic(name), "after")
    assert context.create_consumer(Topic(name)).receive(0.05) is None


def test_4_2_a_request_is_answered_at_a_temporary_topic(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as server, server.create_context() as client:
        producer = server.create_producer()
        server.create_consumer(Topic(name)).message_listener = lambda request: producer.set_correlation_id(request.message_id).send(
            request.reply_to, f"re {request.body}"
        )
        with TopicRequestor(client.session, Topic(name)) as requestor:
            answer = requestor.request(client.create_text_message("question"), PATIENCE)
            assert answer is not None
            assert answer.body == "re question"


def test_5_a_factory_makes_connections_of_their_own(way: Any, name: str) -> None:
    factory = way.factory()
    with factory.create_connection() as one, factory.create_connection() as two:
        assert one.prefix != two.prefix


def test_6_1_2_the_factorys_client_identifier_is_the_connections(factory: ConnectionFactory, connection: Connection) -> None:
    assert connection.client_id == factory.client_id
    with pytest.raises(IllegalStateError):
        connection.client_id = "another"


def test_6_1_2_the_client_identifier_is_set_before_anything_else(way: Any, name: str) -> None:
    with way.factory().create_connection() as connection:
        assert connection.client_id is None
        connection.client_id = name
        assert connection.client_id == name
        with pytest.raises(IllegalStateError):
            connection.client_id = "again"
    with way.factory().create_connection() as connection:
        connection.create_session()
        with pytest.raises(IllegalStateError):
            connection.client_id = name


def test_6_1_3_a_new_connection_is_stopped_and_sends(factory: ConnectionFactory, name: str) -> None:
    with factory.create_connection() as connection:
        session = connection.create_session()
        consumer = session.create_consumer(Topic(name))
        session.create_producer(Topic(name)).send(session.create_text_message("a"))
        assert consumer.receive_no_wait() is None
        connection.start()
        assert texts(consumer, 1) == ["a"]


def test_6_1_4_starting_again_is_ignored(connection: Connection, name: str) -> None:
    connection.start()
    connection.start()
    session = connection.create_session()
    consumer = session.create_consumer(Topic(name))
    session.create_producer(Topic(name)).send(session.create_text_message("a"))
    assert texts(consumer, 1) == ["a"]


def test_6_1_5_a_session_made_while_stopped_is_stopped(connection: Connection, name: str) -> None:
    connection.stop()
    session = connection.create_session()
    consumer = session.create_consumer(Topic(name))
    session.create_producer(Topic(name)).send(session.create_text_message("a"))
    assert consumer.receive(0.05) is None


def test_6_1_5_what_is_received_while_stopped_waits(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(Topic(name))
    got = Collected()
    consumer.message_listener = got
    connection.stop()
    session.connection.create_session().create_producer(Topic(name)).send(Message())
    assert got.items == []
    connection.start()
    got.wait(1)


def test_6_1_7_there_is_one_exception_listener(connection: Connection) -> None:
    assert connection.exception_listener is None
    told = Collected()
    connection.exception_listener = told
    connection.report(JMSError("text", "code"))
    assert told.wait(1)[0].error_code == "code"
    connection.exception_listener = None


def test_6_1_8_everything_of_a_closed_connection_is_closed(factory: ConnectionFactory, name: str) -> None:
    connection = factory.create_connection()
    session = connection.create_session()
    consumer, producer = session.create_consumer(Topic(name)), session.create_producer(Topic(name))
    connection.close()
    connection.close()
    for use in (
        connection.start,
        connection.stop,
        connection.create_session,
        lambda: session.create_consumer(Topic(name)),
        lambda: producer.send(Message()),
        lambda: setattr(consumer, "message_listener", print),
    ):
        with pytest.raises(IllegalStateError):
            use()
    assert consumer.receive_no_wait() is None
    session.close()
    producer.close()


def test_6_1_8_a_transaction_under_way_is_rolled_back(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as other:
        consumer = other.create_consumer(Topic(name))
        with other.create_context(AckMode.SESSION_TRANSACTED) as context:
            context.create_producer().send(Topic(name), "a")
        assert consumer.receive(0.05) is None


def test_6_2_1_sessions_make_any_number_of_producers_and_consumers(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumers = [session.create_consumer(Topic(name)) for _ in range(5)]
    producers = [session.create_producer(Topic(name)) for _ in range(5)]
    for number, producer in enumerate(producers):
        producer.send(session.create_text_message(str(number)))
    assert [texts(consumer, 5) for consumer in consumers] == [list("01234")] * 5


def test_6_2_2_a_temporary_topic_has_a_name_of_its_own_and_ends_with_its_connection(factory: ConnectionFactory, way: Any) -> None:
    with way.factory().create_context() as context, way.factory().create_context() as other:
        one, two = context.create_temporary_topic(), context.create_temporary_topic()
        assert isinstance(one, TemporaryTopic)
        assert one.name != two.name
        with pytest.raises(InvalidDestinationError):
            other.create_consumer(one)
        with context.create_consumer(one), pytest.raises(JMSError):
            one.delete()
        one.delete()
        with pytest.raises(InvalidDestinationError):
            context.create_producer().send(one, "a")


def test_6_2_2_every_connection_may_send_to_a_temporary_topic(way: Any) -> None:
    with way.factory().create_context() as context, way.factory().create_context() as other:
        topic = context.create_temporary_topic()
        consumer = context.create_consumer(topic)
        other.create_producer().send(Topic(topic.name), "a")
        assert texts(consumer, 1) == ["a"]


def test_6_2_3_a_destination_object_needs_no_broker(context: Context) -> None:
    assert context.create_topic("a/b") == Topic("a/b") == context.session.create_topic("a/b")
    assert context.create_topic("a/b").topic_name == str(Topic("a/b")) == "a/b"
    assert context.create_queue("a").queue_name == "a"


def test_6_2_5_only_close_may_be_called_by_another_thread(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(Topic(name))
    got: list[Message | None] = []
    thread = threading.Thread(target=lambda: got.append(consumer.receive()))
    thread.start()
    until_waiting(thread)
    session.close()
    thread.join(PATIENCE)
    assert got == [None]


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.CLIENT, AckMode.DUPS_OK])
def test_6_2_7_a_session_that_is_not_transacted_has_no_transaction(connection: Connection, mode: AckMode) -> None:
    session = connection.create_session(acknowledge_mode=mode)
    assert session.acknowledge_mode is mode
    for call in (session.commit, session.rollback):
        with pytest.raises(IllegalStateError):
            call()


def test_6_2_7_a_transacted_session_does_not_recover(connection: Connection) -> None:
    session = connection.create_session(True)
    assert session.acknowledge_mode is AckMode.SESSION_TRANSACTED
    with pytest.raises(IllegalStateError):
        session.recover()


def test_6_2_7_one_transaction_follows_the_other(way: Any, name: str) -> None:
    with way.factory().create_context(AckMode.SESSION_TRANSACTED) as context, context.create_context() as other:
        consumer, producer = other.create_consumer(Topic(name)), context.create_producer()
        for text, end in (("1", context.commit), ("2", context.rollback), ("3", context.commit)):
            producer.send(Topic(name), text)
            end()
        assert texts(consumer, 2) == ["1", "3"]
        assert consumer.receive_no_wait() is None


def test_6_2_7_what_is_rolled_back_comes_again_redelivered(way: Any, name: str) -> None:
    with way.factory().create_context(AckMode.SESSION_TRANSACTED) as context, context.create_context() as other:
        consumer = context.create_consumer(Topic(name))
        for text in "ab":
            other.create_producer().send(Topic(name), text)
        assert texts(consumer, 2) == ["a", "b"]
        context.rollback()
        again = [consumer.receive(PATIENCE) for _ in range(2)]
        assert [(one.body, one.redelivered, one.delivery_count) for one in again if one] == [("a", True, 2), ("b", True, 2)]
        context.commit()
        assert consumer.receive(0.05) is None


def test_6_2_9_sessions_are_independent(connection: Connection, name: str) -> None:
    one, two = connection.create_session(True), connection.create_session(True)
    consumer = connection.create_session().create_consumer(Topic(name))
    for session, text in ((one, "one"), (two, "two")):
        session.create_producer(Topic(name)).send(session.create_text_message(text))
    two.commit()
    one.rollback()
    assert texts(consumer, 1) == ["two"]
    assert consumer.receive_no_wait() is None


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.DUPS_OK])
def test_6_2_10_what_is_acknowledged_is_not_recovered(connection: Connection, name: str, mode: AckMode) -> None:
    session = connection.create_session(acknowledge_mode=mode)
    consumer = session.create_consumer(Topic(name))
    session.create_producer(Topic(name)).send(session.create_text_message("a"))
    assert texts(consumer, 1) == ["a"]
    session.recover()
    assert consumer.receive(0.05) is None


def test_6_2_10_a_context_acknowledges_what_its_session_has_delivered(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context(AckMode.CLIENT) as context:
        consumer = context.create_consumer(Topic(name))
        for text in "ab":
            context.create_producer().send(Topic(name), text)
        assert texts(consumer, 2) == ["a", "b"]
        context.acknowledge()
        context.recover()
        assert consumer.receive(0.05) is None


def test_6_2_15_closing_a_session_again_is_ignored_and_ends_its_receive(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(Topic(name))
    session.close()
    session.close()
    assert consumer.receive() is None
    with pytest.raises(IllegalStateError):
        session.create_producer(Topic(name))


def test_6_2_15_the_other_sessions_of_a_connection_go_on(connection: Connection, name: str) -> None:
    one, two = connection.create_session(), connection.create_session()
    consumer = two.create_consumer(Topic(name))
    one.create_consumer(Topic(name))
    one.close()
    two.create_producer(Topic(name)).send(two.create_text_message("a"))
    assert texts(consumer, 1) == ["a"]
