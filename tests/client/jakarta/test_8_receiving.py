"""Jakarta Messaging 3.1, chapters 8 and 10: consumers, subscriptions, errors. The number in a test's name is the section's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    Connection,
    Context,
    IllegalStateError,
    InvalidDestinationError,
    InvalidSelectorError,
    JMSError,
    JMSSecurityError,
    MessageFormatError,
    TextMessage,
    Topic,
)
from mqmesh.client.core import errors
from support.jms_client import PATIENCE, Collected, texts, until_waiting

HERE = "desk"


def test_8_1_a_consumer_says_what_it_consumes(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name), "n > 1")
    assert (consumer.destination, consumer.message_selector, consumer.message_listener) == (Topic(name), "n > 1", None)
    assert context.create_consumer(Topic(name), "  ").message_selector in (None, "  ")
    assert context.create_consumer(Topic(name)).message_selector is None


def test_8_1_a_wrong_selector_or_topic_is_refused(context: Context, name: str) -> None:
    with pytest.raises(InvalidSelectorError):
        context.create_consumer(Topic(name), "n >")
    for wrong in (Topic(""), Topic("a/#/b"), "a", None):
        with pytest.raises(InvalidDestinationError):
            context.create_consumer(wrong)  # type: ignore[arg-type]


def test_8_3_1_an_unshared_subscription_ends_with_its_consumer(context: Context, name: str) -> None:
    context.create_consumer(Topic(name)).close()
    context.create_producer().send(Topic(name), "a")
    assert context.create_consumer(Topic(name)).receive(0.05) is None


def test_8_3_1_no_local_is_about_the_connection(way: Any, name: str) -> None:
    with way.factory().create_context() as context, way.factory().create_context() as other:
        consumer = context.create_consumer(Topic(name), no_local=True)
        context.create_producer().send(Topic(name), "own")
        other.create_producer().send(Topic(name), "other")
        assert texts(consumer, 1) == ["other"]
        assert consumer.receive(0.05) is None


@pytest.mark.direct("a metabroker has no shared subscriptions")
def test_8_3_2_a_shared_subscription_gets_each_message_once(context: Context, name: str) -> None:
    consumers = [context.create_shared_consumer(Topic(name), HERE) for _ in range(2)]
    for number in range(10):
        context.create_producer().send(Topic(name), str(number))
    found: list[str] = []
    while len(found) < 10:
        for consumer in consumers:
            message = consumer.receive(0.05)
            found += [message.body] if message is not None else []
    assert sorted(found) == [str(number) for number in range(10)]


def test_8_3_2_a_shared_subscription_needs_a_name(context: Context, name: str) -> None:
    with pytest.raises(JMSError):
        context.create_shared_consumer(Topic(name), "")


def test_8_3_3_a_durable_subscription_is_found_by_client_identifier_and_name(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context() as context, way.factory(client_id=f"{name}-2").create_context() as other:
        for each in (context, other):
            each.create_durable_consumer(Topic(name), HERE).close()
        context.create_producer().send(Topic(name), "a")
        assert texts(context.create_durable_consumer(Topic(name), HERE), 1) == ["a"]
        assert texts(other.create_durable_consumer(Topic(name), HERE), 1) == ["a"]


def test_8_3_3_one_consumer_at_a_time(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context() as context:
        with context.create_durable_consumer(Topic(name), HERE):
            with pytest.raises(IllegalStateError):
                context.create_durable_consumer(Topic(name), HERE)
            with pytest.raises(IllegalStateError):
                context.unsubscribe(HERE)
        context.unsubscribe(HERE)


def test_8_3_3_unsubscribe_drops_what_it_has_collected(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context() as context:
        context.create_durable_consumer(Topic(name), HERE).close()
        context.create_producer().send(Topic(name), "a")
        context.unsubscribe(HERE)
        assert context.create_durable_consumer(Topic(name), HERE).receive(0.05) is None
        with pytest.raises(InvalidDestinationError):
            context.unsubscribe("never")


def test_8_3_3_a_message_that_is_not_acknowledged_comes_again(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context(AckMode.CLIENT) as context:
        consumer = context.create_durable_consumer(Topic(name), HERE)
        context.create_producer().send(Topic(name), "a")
        assert texts(consumer, 1) == ["a"]
    with way.factory(client_id=name).create_context() as context:
        message = context.create_durable_consumer(Topic(name), HERE).receive(PATIENCE)
        assert message is not None
        assert (message.body, message.redelivered) == ("a", True)


def test_8_4_delivery_waits_for_start(context: Context, name: str) -> None:
    context.auto_start = False
    consumer = context.create_consumer(Topic(name))
    context.create_producer().send(Topic(name), "a")
    assert consumer.receive_no_wait() is None
    context.start()
    assert texts(consumer, 1) == ["a"]


def test_8_5_receive_waits_for_a_message(connection: Connection, name: str) -> None:
    consumer, got = connection.create_session().create_consumer(Topic(name)), []
    thread = threading.Thread(target=lambda: got.append(consumer.receive()))
    thread.start()
    until_waiting(thread)
    other = connection.create_session()
    other.create_producer(Topic(name)).send(other.create_text_message("a"))
    thread.join(PATIENCE)
    assert [message.body for message in got if message] == ["a"]


def test_8_5_what_a_closed_consumer_receives_is_nothing(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    consumer.close()
    consumer.close()
    assert consumer.receive() is None
    assert list(consumer) == []


def test_8_6_the_body_of_the_next_message(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    context.create_producer().send(Topic(name), "a").send(Topic(name), {"b": 1}).send(Topic(name), b"c")
    assert consumer.receive_body(str, PATIENCE) == "a"
    with pytest.raises(MessageFormatError):
        consumer.receive_body(str, PATIENCE)
    assert consumer.receive_body(dict, PATIENCE) == {"b": 1}
    assert consumer.receive_body(bytes, PATIENCE) == b"c"
    assert consumer.receive_body_no_wait(str) is None


def test_8_7_a_listener_gets_each_message_and_may_be_taken_away(connection: Connection, name: str) -> None:
    consumer, got = connection.create_session().create_consumer(Topic(name)), Collected()
    consumer.message_listener = got
    assert consumer.message_listener is got
    other = connection.create_session()
    producer = other.create_producer(Topic(name))
    producer.send(TextMessage("a"))
    assert [message.body for message in got.wait(1)] == ["a"]
    consumer.message_listener = None
    producer.send(TextMessage("b"))
    assert texts(consumer, 1) == ["b"]
    assert len(got.items) == 1


def test_8_7_a_listener_may_acknowledge_and_roll_back(connection: Connection, name: str) -> None:
    session = connection.create_session(True)
    seen: list[tuple[Any, bool]] = []
    done = threading.Event()

    def listen(message: Any) -> None:
        seen.append((message.body, message.redelivered))
        if message.redelivered:
            session.commit()
            done.set()
        else:
            session.rollback()

    session.create_consumer(Topic(name)).message_listener = listen
    other = connection.create_session()
    other.create_producer(Topic(name)).send(other.create_text_message("a"))
    assert done.wait(PATIENCE)
    assert seen == [("a", False), ("a", True)]


def test_8_8_a_closed_consumer_takes_no_message_from_others(context: Context, name: str) -> None:
    one, two = context.create_consumer(Topic(name)), context.create_consumer(Topic(name))
    one.close()
    context.create_producer().send(Topic(name), "a")
    assert texts(two, 1) == ["a"]


def test_10_1_errors_are_one_tree_with_codes() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert all(issubclass(one, JMSError) for one in kinds)
    error = JMSError("text", "code")
    assert (str(error), error.error_code, JMSError("text").error_code) == ("text", "code", "")
    linked = JMSError("outer")
    linked.__cause__ = error
    assert linked.__cause__ is error


def test_10_2_what_the_broker_refuses_is_one_of_them() -> None:
    for code, kind in ((0x87, JMSSecurityError), (0x90, InvalidDestinationError), (0x97, errors.ResourceAllocationError), (0x80, JMSError)):
        error = errors.error_from_reason(code, "sending")
        assert type(error) is kind
        assert error.error_code == f"{code:#04x}"
