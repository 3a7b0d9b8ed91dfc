"""Start, stop, close, listeners and threads: Jakarta Messaging 3.1, 6.1.2 to 6.1.8, 6.2.5, 6.2.13, 6.2.15, 7.3 to 7.9."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

import pytest
from mqmesh.cli.fleet.proxy import Proxy
from mqmesh.client import (
    AckMode,
    Connection,
    ConnectionFactory,
    Context,
    DeliveryMode,
    IllegalStateError,
    InvalidClientIDError,
    JMSError,
    Message,
    MetabrokerConnectionFactory,
    Topic,
)
from support.brokers import RunningBroker
from support.jms_client import PATIENCE, Collected, texts, until_waiting
from support.paho_client import Paho
from support.services import wait_until

DIRECT = pytest.mark.direct("what the broker does with MQTT client identifiers")


def test_6_1_5_a_connection_delivers_only_while_it_is_started(factory: ConnectionFactory, name: str) -> None:
    with factory.create_connection() as connection:
        session = connection.create_session()
        consumer = session.create_consumer(session.create_topic(name))
        producer = session.create_producer(session.create_topic(name))
        producer.send(session.create_text_message("a"))
        assert consumer.receive(0.05) is None
        connection.start()
        assert texts(consumer, 1) == ["a"]
        connection.stop()
        producer.send(session.create_text_message("b"))
        assert consumer.receive(0.05) is None
        connection.start()
        assert texts(consumer, 1) == ["b"]


def test_6_1_5_stop_waits_for_the_listener_that_runs(connection: Connection, name: str) -> None:
    inside, leave, stopped = threading.Event(), threading.Event(), threading.Event()

    def slow(message: Message) -> None:
        inside.set()
        assert leave.wait(PATIENCE)

    session = connection.create_session()
    session.create_consumer(session.create_topic(name)).message_listener = slow
    with connection.create_session() as sender:
        sender.create_producer(Topic(name)).send(Message())
        assert inside.wait(PATIENCE)
        thread = threading.Thread(target=lambda: (connection.stop(), stopped.set()))
        thread.start()
        assert not stopped.wait(0.05)
        leave.set()
        assert stopped.wait(PATIENCE)
        thread.join()


def test_6_1_8_close_ends_a_receive_that_waits(factory: ConnectionFactory, name: str) -> None:
    connection = factory.create_connection()
    connection.start()
    session = connection.create_session()
    consumer = session.create_consumer(session.create_topic(name))
    found: list[Message | None] = []
    thread = threading.Thread(target=lambda: found.append(consumer.receive()))
    thread.start()
    until_waiting(thread)
    connection.close()
    thread.join(PATIENCE)
    assert found == [None]
    connection.close()  # again: nothing
    for forbidden in (connection.create_session, connection.start, connection.stop, session.create_producer):
        with pytest.raises(IllegalStateError):
            forbidden()


def test_6_1_8_closing_leaves_no_thread(factory: ConnectionFactory, name: str) -> None:
    before = set(threading.enumerate())
    with factory.create_context() as context:
        context.create_consumer(context.create_topic(name)).message_listener = Collected()
        context.create_producer().send(context.create_topic(name), "x")
    wait_until(lambda: set(threading.enumerate()) <= before, PATIENCE, "end of its threads")


def test_6_2_15_a_listener_cannot_close_what_runs_it(factory: ConnectionFactory, name: str) -> None:
    refused = Collected()

    def closes(message: Message) -> None:
        for forbidden in (context.session.close, context.connection.close, context.connection.stop, context.close):
            with pytest.raises(IllegalStateError):
                forbidden()
        refused(message)

    with factory.create_context() as context:
        context.create_consumer(context.create_topic(name)).message_listener = closes
        with context.connection.create_session() as session:
            session.create_producer(Topic(name)).send(Message())
            refused.wait(1)


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.CLIENT, AckMode.SESSION_TRANSACTED])
def test_6_2_5_a_listener_may_send_acknowledge_commit_make_and_close_consumers(connection: Connection, name: str, mode: AckMode) -> None:
    session = connection.create_session(acknowledge_mode=mode)
    consumer = session.create_consumer(session.create_topic(name))
    producer = session.create_producer(session.create_topic(f"{name}/answer"))
    done = threading.Event()

    def busy(message: Message) -> None:
        producer.send(session.create_text_message(f"re {message.body}"))
        message.acknowledge()
        if mode is AckMode.SESSION_TRANSACTED:
            session.commit()
        session.create_consumer(session.create_topic(f"{name}/more")).close()
        if message.body == "last":
            consumer.close()
            done.set()

    with connection.create_session() as other:
        answers = other.create_consumer(other.create_topic(f"{name}/answer"))
        consumer.message_listener = busy
        sender = other.create_producer(other.create_topic(name))
        for word in ("a", "last"):
            sender.send(other.create_text_message(word))
        assert done.wait(PATIENCE)
        assert texts(answers, 2) == ["re a", "re last"]


def test_6_2_5_a_session_with_a_listener_does_not_receive(context: Context, name: str) -> None:
    first, second = (context.create_consumer(context.create_topic(name)) for _ in range(2))
    first.message_listener = Collected()
    with pytest.raises(IllegalStateError):
        second.receive_no_wait()


def test_6_2_13_listeners_of_a_session_run_one_at_a_time_in_order(connection: Connection, name: str) -> None:
    session, running, seen = connection.create_session(), threading.Lock(), Collected()

    def alone(message: Message) -> None:
        assert running.acquire(blocking=False), "two listeners of one session at a time"
        seen((message.destination.name, message.body))  # type: ignore[union-attr]
        running.release()

    for topic in ("a", "b"):
        session.create_consumer(session.create_topic(f"{name}/{topic}")).message_listener = alone
    with connection.create_session() as other:
        producer = other.create_producer()
        for number in range(50):
            for topic in ("a", "b"):
                producer.send(other.create_text_message(str(number)), Topic(f"{name}/{topic}"))
        found = seen.wait(100)
    for topic in ("a", "b"):
        assert [body for where, body in found if where == f"{name}/{topic}"] == [str(number) for number in range(50)]


def test_7_3_8_asynchronous_sends_complete_in_order(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    completed = Collected()
    producer = context.create_producer().set_async(completed)
    for number in range(2500):  # more than may be under way
        producer.send(context.create_topic(name), str(number))
    assert [message.body for message in completed.wait(2500)] == [str(number) for number in range(2500)]
    assert texts(consumer, 2500) == [str(number) for number in range(2500)]


def test_7_3_4_close_waits_for_completions(factory: ConnectionFactory, name: str) -> None:
    completed = Collected()
    with factory.create_context() as context:
        for number in range(200):
            context.create_producer().set_async(completed).send(context.create_topic(name), str(number))
    assert len(completed.items) == 200


def test_3_4_2_non_persistent_messages_are_qos_0(context: Context, name: str) -> None:
    consumer = context.create_consumer(context.create_topic(name))
    context.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT).send(context.create_topic(name), "x")
    message = consumer.receive(PATIENCE)
    assert message is not None
    assert message.delivery_mode is DeliveryMode.NON_PERSISTENT


def test_persistent_messages_with_qos_2(name: str, way: Any) -> None:
    with way.factory(persistent_qos=2).create_context() as context:
        consumer = context.create_consumer(context.create_topic(name))
        for number in range(50):
            context.create_producer().send(context.create_topic(name), str(number))
        assert texts(consumer, 50) == [str(number) for number in range(50)]


def test_7_8_and_7_9_time_to_live_and_delivery_delay(factory: ConnectionFactory, context: Context, name: str) -> None:
    topic = context.create_topic(name)
    consumer = context.create_consumer(topic)
    delay = 300
    while True:
        context.connection.stop()
        dead = context.create_text_message("dead")
        context.create_producer().set_time_to_live(1).send(topic, dead)
        context.create_producer().set_delivery_delay(delay).send(topic, "later")
        context.create_producer().send(topic, "now")
        wait_until(lambda dead=dead: time.time() * 1000 > dead.expiration, PATIENCE, "end of its life")  # type: ignore[misc]
        context.connection.start()
        found = [consumer.receive(PATIENCE) for _ in range(2)]
        later = next(message for message in found if message is not None and message.body == "later")
        assert later.delivery_time == later.timestamp + delay
        assert time.time() * 1000 >= later.delivery_time
        if [message and message.body for message in found] == ["now", "later"]:
            break
        assert [message and message.body for message in found] == ["later", "now"]
        assert delay < 30_000, "the delay does not hold messages back"
        delay *= 4  # this machine was too slow for that: it had passed before the other one came


def test_6_1_2_a_client_identifier_is_one_connections(way: Any, factory: ConnectionFactory) -> None:
    """An mqmesh broker refuses the second one. Mosquitto lets it take over, and closes the first one without saying why."""
    if way.first.kind == "mosquitto":
        pytest.skip("Mosquitto 2.0 cannot tell")
    with factory.create_connection() as first:
        for _ in range(2):
            with pytest.raises(InvalidClientIDError, match="another connection has this client identifier"):
                factory.create_connection()
        first.create_session().create_producer(Topic("a")).send(Message())
    factory.create_connection().close()


@DIRECT
def test_6_1_2_a_connection_that_is_taken_over_is_told(broker: RunningBroker, way: Any, name: str) -> None:
    """By an MQTT client that does not ask to be refused. The connection does not fight for the identifier."""
    if broker.kind == "mosquitto":
        pytest.skip("Mosquitto 2.0 closes the first connection without saying why")
    told = Collected()
    with way.factory(client_id=name).create_connection() as first:
        first.exception_listener = told
        with Paho(broker.port, client_id=name):
            assert isinstance(told.wait(1)[0], InvalidClientIDError)
            with pytest.raises(InvalidClientIDError):
                first.create_session().create_producer(Topic("a")).send(Message())


@DIRECT
def test_6_1_2_a_broken_connection_takes_its_identifier_back(broker: RunningBroker, way: Any, name: str) -> None:
    """A broker that has not seen the end of the old one would refuse it, if it asked again to be refused."""
    told, proxy = Collected(), Proxy("127.0.0.1", broker.port)
    with contextlib.closing(proxy), way.factory(proxy.url, client_id=name, retry_last=0.2).create_connection() as first:
        assert not hasattr(first.publisher._said, "UserProperty"), "said once"
        first.exception_listener = told
        proxy.cut()
        assert told.wait(1)[0].error_code == "connection_lost"
        proxy.mend()
        first.create_session().create_producer(Topic("a")).send(Message())


def test_no_broker_and_wrong_addresses_are_said() -> None:
    with pytest.raises(JMSError, match=r"cannot connect to mqtt:.*refused, does a broker listen there"):
        ConnectionFactory("mqtt://127.0.0.1:1").create_connection()
    for wrong in ("http://a", "mqtt://", "mqtt://a:b", "127.0.0.1:1883"):
        with pytest.raises(JMSError, match="write mqtt://HOST:PORT"):
            ConnectionFactory(wrong)
    with pytest.raises(JMSError, match="prefetch = 0: expected a number from 1 to 65535"):
        ConnectionFactory(prefetch=0)
    with pytest.raises(JMSError, match="the settings are prefetch"):
        ConnectionFactory(prefech=1)


def test_a_host_name_that_nobody_knows_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:  # no question to a real name server, which may be out of reach
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for factory in (ConnectionFactory("mqtt://nowhere.invalid"), MetabrokerConnectionFactory("mqtt://nowhere.invalid", "a")):
        with pytest.raises(JMSError, match=r"host name 'nowhere.invalid' is not known") as raised:
            factory.create_connection()
        assert raised.value.error_code == "no_such_host"


def test_a_listener_that_exits_does_not_end_its_session(connection: Connection, name: str) -> None:
    def exits(message: Message) -> None:
        if message.delivery_count == 1:
            raise SystemExit

    seen = Collected(exits)
    session = connection.create_session()
    session.create_consumer(session.create_topic(name)).message_listener = seen
    with connection.create_session() as sender:
        sender.create_producer(Topic(name)).send(Message())
        assert [message.delivery_count for message in seen.wait(2)] == [1, 2]
    session.close()


def test_a_received_message_can_be_sent_on(connection: Connection, name: str) -> None:
    """What sending sets on it is not what it comes back with after a rollback."""
    session = connection.create_session(transacted=True)
    consumer, onward = session.create_consumer(session.create_topic(name)), session.create_consumer(session.create_topic(f"{name}/on"))
    producer = session.create_producer()
    with connection.create_session() as sender:
        message = sender.create_text_message("a")
        message.properties["n"] = 1
        sender.create_producer(Topic(name)).send(message)
    found = consumer.receive(PATIENCE)
    assert found is not None
    identifier = found.message_id
    producer.send(found, Topic(f"{name}/on"), time_to_live=1)
    assert found.message_id != identifier
    session.rollback()
    found = consumer.receive(PATIENCE)
    assert found is not None
    assert (found.message_id, found.delivery_count, found.expiration) == (identifier, 2, 0)
    producer.send(found, Topic(f"{name}/on"))
    session.commit()
    found = onward.receive(PATIENCE)
    assert found is not None
    assert (found.body, found.get_int_property("n"), found.delivery_count) == ("a", 1, 1)
