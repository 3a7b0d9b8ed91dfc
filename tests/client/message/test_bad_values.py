"""What an application may get wrong raises the library's errors, at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mqmesh.client import (
    BytesMessage,
    ConnectionFactory,
    Context,
    InvalidClientIDError,
    InvalidDestinationError,
    InvalidSelectorError,
    JMSError,
    MapMessage,
    Message,
    MessageEOFError,
    MessageFormatError,
    ObjectMessage,
    StreamMessage,
    TextMessage,
    Topic,
)
from mqmesh.client.api.subscriptions import check_subscription_name
from mqmesh.client.message.destinations import filter_to_consume, topic_to_send
from mqmesh.client.message.selector import selects_all
from mqmesh.client.message.wire import encode

HALF = "\ud800"  # a surrogate: UTF-8 cannot carry it


def sent(**headers: Any) -> Any:
    message = Message()
    message.destination = Topic("a")
    for name, value in headers.items():
        setattr(message, name, value)
    return encode(message, 1, 0)


def property_set(name: Any, value: Any) -> None:
    Message().properties.set(name, value)


def readable(data: bytes) -> BytesMessage:
    message = BytesMessage(data)
    message.reset()
    return message


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: TextMessage(HALF), MessageFormatError),
        (lambda: TextMessage(3), MessageFormatError),  # type: ignore[arg-type]
        (lambda: MapMessage({"a": HALF}), MessageFormatError),
        (lambda: MapMessage({HALF: 1}), MessageFormatError),
        (lambda: MapMessage({"": 1}), MessageFormatError),
        (lambda: StreamMessage(HALF), MessageFormatError),
        (lambda: StreamMessage().write(HALF, "char"), MessageFormatError),
        (lambda: ObjectMessage(HALF), MessageFormatError),
        (lambda: ObjectMessage({HALF: 1}, "json"), MessageFormatError),
        (lambda: BytesMessage("text"), MessageFormatError),  # type: ignore[arg-type]
        (lambda: BytesMessage(5), MessageFormatError),  # type: ignore[arg-type]
        (lambda: BytesMessage().write_bytes("text"), MessageFormatError),  # type: ignore[arg-type]
        (lambda: BytesMessage().write_utf(HALF), MessageFormatError),
        (lambda: BytesMessage().write("number", 3), MessageFormatError),
        (lambda: readable(b"\0\1\2\3").read("number"), MessageFormatError),
        (lambda: readable(b"\0\1\xff").read_utf(), MessageFormatError),
        (lambda: readable(b"\0\5a").read_utf(), MessageEOFError),
        (lambda: MapMessage({"a": "b"}).read("a", "int"), MessageFormatError),
        (lambda: MapMessage({"a": 1}).read("a", "number"), MessageFormatError),
        (lambda: property_set("a", HALF), MessageFormatError),
        (lambda: property_set("", 1), JMSError),
        (lambda: property_set(HALF, 1), JMSError),
        (lambda: sent(jms_type=HALF), MessageFormatError),
        (lambda: sent(jms_type=3), MessageFormatError),
        (lambda: sent(correlation_id=HALF), MessageFormatError),
        (lambda: sent(correlation_id=3), MessageFormatError),
        (lambda: sent(reply_to=Topic(HALF)), InvalidDestinationError),
        (lambda: sent(reply_to="a"), InvalidDestinationError),
        (lambda: topic_to_send(Topic("")), InvalidDestinationError),
        (lambda: topic_to_send(Topic(HALF)), InvalidDestinationError),
        (lambda: topic_to_send(Topic(3)), InvalidDestinationError),  # type: ignore[arg-type]
        (lambda: filter_to_consume(Topic("")), InvalidDestinationError),
        (lambda: filter_to_consume(Topic(HALF)), InvalidDestinationError),
        (lambda: check_subscription_name(""), JMSError),
        (lambda: check_subscription_name(HALF), JMSError),
        (lambda: selects_all(f"a = '{HALF}'"), InvalidSelectorError),
        (lambda: selects_all(None), InvalidSelectorError),  # type: ignore[arg-type]
        (lambda: ConnectionFactory(client_id=""), InvalidClientIDError),
        (lambda: ConnectionFactory(client_id=HALF), InvalidClientIDError),
    ],
)
def test_it_is_one_of_ours(call: Callable[[], Any], error: type[JMSError]) -> None:
    with pytest.raises(error):
        call()


def test_a_text_that_cannot_be_read_stays_the_next() -> None:
    for data in (b"\0\1\xff", b"\0\5a"):
        message = readable(data)
        with pytest.raises(JMSError):
            message.read_utf()
        assert message.read_bytes() == data


def test_consumers_of_what_cannot_be_named(context: Context, name: str) -> None:
    topic = context.create_topic(name)
    for make in (
        lambda: context.create_consumer(context.create_topic(HALF)),
        lambda: context.create_consumer(topic, HALF),
        lambda: context.create_durable_consumer(topic, HALF),
        lambda: context.create_shared_consumer(topic, ""),
        lambda: context.create_producer().send(topic, HALF),
        lambda: context.create_producer().set_property("n", HALF),
        lambda: context.unsubscribe(HALF),
    ):
        with pytest.raises(JMSError):
            make()
