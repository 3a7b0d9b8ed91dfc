"""Jakarta Messaging 3.1, chapter 7: producers and asynchronous sends. The number in a test's name is the section's."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.client import (
    AckMode,
    BytesMessage,
    Context,
    DeliveryMode,
    IllegalStateError,
    InvalidDestinationError,
    JMSError,
    MapMessage,
    Message,
    MessageFormatError,
    TextMessage,
    Topic,
)
from support.jms_client import PATIENCE, Collected, texts


def test_7_1_a_producer_has_a_destination_or_is_given_one_with_each_send(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    bound, free = context.session.create_producer(Topic(name)), context.session.create_producer()
    assert (bound.destination, free.destination) == (Topic(name), None)
    bound.send(TextMessage("bound"))
    free.send(TextMessage("free"), Topic(name))
    assert texts(consumer, 2) == ["bound", "free"]
    with pytest.raises(IllegalStateError):
        bound.send(TextMessage("x"), Topic("other"))
    with pytest.raises(IllegalStateError):
        free.send(TextMessage("x"))


@pytest.mark.parametrize("wrong", [Topic(""), Topic("a/#"), Topic("a\0b"), "a", None])
def test_7_1_what_cannot_be_sent_to(context: Context, wrong: Any) -> None:
    with pytest.raises(InvalidDestinationError):
        context.create_producer().send(wrong, "a")


def test_7_1_a_closed_producer_does_not_send(context: Context, name: str) -> None:
    producer = context.session.create_producer(Topic(name))
    producer.close()
    producer.close()
    with pytest.raises(IllegalStateError):
        producer.send(Message())


def test_7_2_a_send_returns_when_the_broker_has_the_message(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context() as context:
        context.create_durable_consumer(Topic(name), "desk").close()
        context.create_producer().send(Topic(name), "a")
    with way.factory(client_id=name).create_context() as context:
        assert texts(context.create_durable_consumer(Topic(name), "desk"), 1) == ["a"]


def test_7_3_1_an_asynchronous_send_is_delivered_as_any_other(context: Context, name: str) -> None:
    consumer, done = context.create_consumer(Topic(name)), Collected()
    context.create_producer().set_async(done).send(Topic(name), "a")
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert (message.body, message.redelivered, message.delivery_mode) == ("a", False, DeliveryMode.PERSISTENT)
    done.wait(1)


def test_7_3_2_what_is_wrong_with_a_message_is_raised_at_once(context: Context) -> None:
    done = Collected()
    with pytest.raises(InvalidDestinationError):
        context.create_producer().set_async(done).send(Topic("#"), "a")
    assert done.items == []


def test_7_3_3_asynchronous_and_other_sends_keep_their_order(context: Context, name: str) -> None:
    consumer, done = context.create_consumer(Topic(name)), Collected()
    for number in range(20):
        context.create_producer().set_async(done if number % 3 else None).send(Topic(name), str(number))
    assert texts(consumer, 20) == [str(number) for number in range(20)]


def test_7_3_6_the_headers_of_a_completed_message_are_set(context: Context, name: str) -> None:
    done = Collected()
    message = TextMessage("a")
    context.session.create_producer(Topic(name)).send(message, priority=7, completion_listener=done)
    completed = done.wait(1)[0]
    assert completed is message
    assert (completed.priority, completed.destination) == (7, Topic(name))
    assert completed.message_id is not None


def test_7_3_8_a_listener_may_send(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    producer = context.create_producer()
    done = Collected(lambda message: producer.send(Topic(name), "second"))
    context.create_producer().set_async(done).send(Topic(name), "first")
    assert texts(consumer, 2) == ["first", "second"]


def test_7_4_options_of_a_producer_and_of_one_send(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    producer = context.session.create_producer(Topic(name))
    assert (producer.delivery_mode, producer.priority, producer.time_to_live, producer.delivery_delay) == (DeliveryMode.PERSISTENT, 4, 0, 0)
    producer.priority, producer.time_to_live, producer.delivery_mode = 2, 90_000, DeliveryMode.NON_PERSISTENT
    producer.send(Message())
    producer.send(Message(), delivery_mode=DeliveryMode.PERSISTENT, priority=8, time_to_live=0)
    found = sorted((consumer.receive(PATIENCE) for _ in range(2)), key=lambda one: one.priority if one else 0)
    assert [(one.priority, one.delivery_mode, bool(one.expiration)) for one in found if one] == [
        (2, DeliveryMode.NON_PERSISTENT, True),
        (8, DeliveryMode.PERSISTENT, False),
    ]


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("priority", -1), ("priority", 10), ("time_to_live", -1), ("delivery_delay", -1), ("delivery_mode", 3), ("priority", "high")],
)
def test_7_4_wrong_options_are_refused(context: Context, option: str, wrong: Any) -> None:
    with pytest.raises(JMSError):
        setattr(context.session.create_producer(), option, wrong)


def test_7_4_what_a_context_producer_sets_is_on_each_message(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    producer = context.create_producer().set_correlation_id("c").set_type("t").set_reply_to(Topic("r")).set_property("n", 1)
    producer.send(Topic(name), "a").send(Topic(name), b"b").send(Topic(name), {"c": 1}).send(Topic(name), None)
    found = [consumer.receive(PATIENCE) for _ in range(4)]
    assert [type(one) for one in found] == [TextMessage, BytesMessage, MapMessage, Message]
    for one in found:
        assert one is not None
        assert (one.correlation_id, one.jms_type, one.reply_to, one.get_int_property("n")) == ("c", "t", Topic("r"), 1)
    with pytest.raises(MessageFormatError):
        producer.send(Topic(name), 3)  # type: ignore[arg-type]


def test_7_7_a_persistent_message_waits_for_a_durable_subscription(way: Any, name: str) -> None:
    with way.factory(client_id=name).create_context() as context:
        topic = Topic(name)
        context.create_durable_consumer(topic, "desk").close()
        context.create_producer().set_delivery_mode(DeliveryMode.PERSISTENT).send(topic, "a")
        assert texts(context.create_durable_consumer(topic, "desk"), 1) == ["a"]


def test_7_8_an_expired_message_is_not_delivered(context: Context, name: str) -> None:
    context.auto_start = False
    consumer = context.create_consumer(Topic(name))
    context.create_producer().set_time_to_live(1).send(Topic(name), "short")
    context.create_producer().send(Topic(name), "long")
    context.connection.start()
    found = consumer.receive(PATIENCE)
    assert found is not None
    if found.body == "short":  # this machine was quicker than a millisecond
        found = consumer.receive(PATIENCE)
    assert found is not None
    assert found.body == "long"


def test_7_9_a_delayed_message_comes_after_one_that_was_sent_later(context: Context, name: str) -> None:
    consumer = context.create_consumer(Topic(name))
    context.create_producer().set_delivery_delay(1_500).send(Topic(name), "delayed")
    context.create_producer().send(Topic(name), "at once")
    assert texts(consumer, 2) == ["at once", "delayed"]


def test_7_2_sends_of_a_transaction_wait_for_its_commit(way: Any, name: str) -> None:
    with way.factory().create_context(AckMode.SESSION_TRANSACTED) as context, context.create_context() as other:
        consumer = other.create_consumer(Topic(name))
        context.create_producer().send(Topic(name), "a")
        assert consumer.receive(0.05) is None
        context.commit()
        assert texts(consumer, 1) == ["a"]
