"""Subscriptions: Jakarta Messaging 3.1, 4.2, 8.3 (durable, shared), 6.2.2 (temporary topics), noLocal, selectors at work, order."""

from __future__ import annotations

from typing import Any

import pytest
from mqmesh.client import (
    Connection,
    ConnectionFactory,
    Context,
    IllegalStateError,
    InvalidDestinationError,
    InvalidSelectorError,
    JMSError,
    Session,
    TextMessage,
    Topic,
    TopicConnectionFactory,
    TopicRequestor,
)
from support.jms_client import PATIENCE, texts


def sent(session: Session, topic: str, *words: str) -> None:
    producer = session.create_producer(session.create_topic(topic))
    for word in words:
        producer.send(session.create_text_message(word))


def test_8_3_3_a_durable_subscription_collects_while_nobody_consumes(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        context.create_durable_consumer(context.create_topic(name), "news").close()
        sent(context.session, name, "a", "b")
    with factory.create_context() as context:
        sent(context.session, name, "c")
        consumer = context.create_durable_consumer(context.create_topic(name), "news")
        assert texts(consumer, 3) == ["a", "b", "c"]
        with pytest.raises(IllegalStateError):
            context.create_durable_consumer(context.create_topic(name), "news")
        with pytest.raises(IllegalStateError):
            context.unsubscribe("news")
        consumer.close()
        context.unsubscribe("news")
        sent(context.session, name, "nobody is subscribed")
        consumer = context.create_durable_consumer(context.create_topic(name), "news")
        sent(context.session, name, "d")
        assert texts(consumer, 1) == ["d"]
        consumer.close()
        context.unsubscribe("news")
        with pytest.raises(InvalidDestinationError):
            context.unsubscribe("news")


@pytest.mark.parametrize("change", ["selector", "topic"])
def test_8_3_3_a_durable_subscription_with_another_definition_begins_anew(way: Any, context: Context, name: str, change: str) -> None:
    if change == "selector" and way.community is not None:
        pytest.skip("through a metabroker the new selector judges what was collected")
    context.create_durable_consumer(context.create_topic(name), name).close()
    sent(context.session, name, "of the old one")
    topic, selector = (name, "JMSPriority >= 0") if change == "selector" else (f"{name}/other", "")
    consumer = context.create_durable_consumer(context.create_topic(topic), name, selector)
    sent(context.session, name, "to the old topic")
    sent(context.session, topic, "of the new one")
    words = ["to the old topic", "of the new one"] if change == "selector" else ["of the new one"]
    assert texts(consumer, len(words)) == words
    consumer.close()
    context.unsubscribe(name)


def test_8_3_3_a_durable_subscription_needs_a_client_identifier(name: str, way: Any) -> None:
    with way.factory().create_connection() as connection:
        connection.client_id = f"late-{name}"
        session = connection.create_session()
        session.create_durable_consumer(session.create_topic(name), "a").close()
        session.unsubscribe("a")
        with pytest.raises(IllegalStateError):
            connection.client_id = "again"
    with way.factory().create_connection() as connection, pytest.raises(IllegalStateError):
        connection.create_session().create_durable_consumer(Topic(name), "a")


@pytest.mark.direct("the metabroker serves no shared subscriptions")
def test_8_3_2_consumers_of_a_shared_subscription_divide_the_messages(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        topic = context.create_topic(name)
        consumers = [context.create_shared_consumer(topic, "pool"), context.create_shared_consumer(topic, "pool")]
        alone = context.create_shared_consumer(topic, "other")
        words = [str(number) for number in range(20)]
        sent(context.session, name, *words)
        assert texts(alone, 20) == words
        found: list[str] = []
        while len(found) < 20:
            for consumer in consumers:
                message = consumer.receive(0.05)
                if isinstance(message, TextMessage):
                    found.append(str(message.text))
        assert sorted(found, key=int) == words


@pytest.mark.direct("the metabroker serves no shared subscriptions")
def test_8_3_4_a_shared_durable_subscription_collects(factory: ConnectionFactory, name: str) -> None:
    with factory.create_context() as context:
        topic = context.create_topic(name)
        first = context.create_shared_durable_consumer(topic, "jobs")
        second = context.create_shared_durable_consumer(topic, "jobs")
        first.close()
        second.close()
        sent(context.session, name, *"abcdef")
    with factory.create_context() as context:
        consumers = [context.create_shared_durable_consumer(topic, "jobs") for _ in range(2)]
        found: list[str] = []
        while len(found) < 6:
            found += [message.body for consumer in consumers if (message := consumer.receive(0.05))]
        assert sorted(found) == list("abcdef")
        for consumer in consumers:
            consumer.close()
        context.unsubscribe("jobs")


def test_8_3_1_no_local(factory: ConnectionFactory, name: str, way: Any) -> None:
    with factory.create_context() as context, way.factory().create_context() as other:
        consumer = context.create_consumer(context.create_topic(name), no_local=True)
        sent(context.session, name, "own")
        sent(other.session, name, "other")
        assert texts(consumer, 1) == ["other"]


def test_3_8_1_a_selector_chooses_and_a_wrong_one_is_refused(context: Context, name: str) -> None:
    topic = context.create_topic(name)
    consumer = context.create_consumer(topic, "color = 'red' AND weight > 2500")
    producer = context.create_producer()
    for color, weight in (("red", 2500), ("blue", 3000), ("red", 2501)):
        producer.set_property("color", color).set_property("weight", weight).send(topic, f"{color} {weight}")
    assert texts(consumer, 1) == ["red 2501"]
    assert consumer.message_selector == "color = 'red' AND weight > 2500"
    with pytest.raises(InvalidSelectorError):
        context.create_consumer(topic, "color =")


def test_topics_with_wildcards_say_where_a_message_came_from(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(f"{name}/+/temperature"))
    sent(context.session, f"{name}/oven/temperature", "200")
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert message.destination == Topic(f"{name}/oven/temperature")


@pytest.mark.parametrize("wrong", ["", "a/+", "a/#", "#", "a#b", "$share/a/b"])
def test_wrong_destinations_are_refused(context: Context, wrong: str) -> None:
    if wrong != "$share/a/b":
        with pytest.raises(InvalidDestinationError):
            context.create_producer().send(Topic(wrong), "x")
    if wrong in ("", "a#b", "$share/a/b"):
        with pytest.raises(InvalidDestinationError):
            context.create_consumer(Topic(wrong))


@pytest.mark.direct("TopicConnectionFactory is a ConnectionFactory")
def test_the_names_of_jms_1_1(factory: ConnectionFactory, name: str) -> None:
    with TopicConnectionFactory(str(factory.address), client_id=f"old-{name}").create_topic_connection() as connection:
        connection.start()
        session = connection.create_topic_session()
        topic = session.create_topic(name)
        subscribers = [session.create_subscriber(topic), session.create_durable_subscriber(topic, name)]
        session.create_publisher(topic).publish(session.create_text_message("a"))
        assert [texts(subscriber, 1) for subscriber in subscribers] == [["a"], ["a"]]
        subscribers[1].close()
        session.unsubscribe(name)


def test_queues_say_what_they_need(context: Context) -> None:
    queue = context.create_queue("q")
    for use in (context.create_consumer, context.create_browser, lambda queue: context.create_producer().send(queue, "a")):
        with pytest.raises(JMSError, match="needs an mqmesh broker with queues"):
            use(queue)


def test_6_2_9_one_session_to_one_consumer_keeps_the_order(connection: Connection, name: str) -> None:
    session = connection.create_session()
    consumer = session.create_consumer(session.create_topic(name))
    words = [str(number) for number in range(300)]
    sent(session, name, *words)
    assert texts(consumer, 300) == words


def test_3_4_10_higher_priority_first_among_what_waits(connection: Connection, name: str) -> None:
    connection.stop()
    session = connection.create_session()
    consumer, marker = session.create_consumer(session.create_topic(name)), session.create_consumer(session.create_topic(name))
    producer = session.create_producer(session.create_topic(name))
    for word, priority in (("low", 0), ("normal", 4), ("high", 9)):
        producer.send(session.create_text_message(word), priority=priority)
    connection.start()
    for each in (marker, consumer):
        with session.cond:
            assert session.cond.wait_for(lambda each=each: len(each.inbox) == 3, PATIENCE)
    assert texts(consumer, 3) == ["high", "normal", "low"]


def test_6_2_2_a_temporary_topic_is_its_connections(factory: ConnectionFactory, name: str, way: Any) -> None:
    with factory.create_context() as context, way.factory().create_context() as other:
        topic = context.create_temporary_topic()
        consumer = context.create_consumer(topic)
        with pytest.raises(InvalidDestinationError):
            other.create_consumer(Topic(topic.name))
        other.create_producer().send(Topic(topic.name), "hello")
        assert texts(consumer, 1) == ["hello"]
        with pytest.raises(JMSError):
            topic.delete()
        consumer.close()
        topic.delete()
        with pytest.raises(InvalidDestinationError):
            context.create_producer().send(topic, "x")


def test_a_requestor_gets_the_reply(way: Any, name: str) -> None:
    with way.factory().create_connection() as connection, way.factory().create_connection() as server:
        connection.start()
        server.start()
        session = server.create_session()
        producer = session.create_producer()

        def answer(request: TextMessage) -> None:
            reply = session.create_text_message(f"re {request.text}")
            reply.correlation_id = request.message_id
            producer.send(reply, request.reply_to)

        session.create_consumer(session.create_topic(name)).message_listener = answer  # type: ignore[assignment]
        with TopicRequestor(connection.create_topic_session(), Topic(name)) as requestor:
            for word in ("one", "two"):
                reply = requestor.request(TextMessage(word), PATIENCE)
                assert reply is not None
                assert reply.body == f"re {word}"
