"""The JMS-like API: Jakarta Messaging 3.1 in Python's spelling, over any MQTT 5 broker. docs/client.md has a first program."""

from __future__ import annotations

from .aio import AsyncConsumer, AsyncContext, AsyncProducer
from .bodies import BytesMessage, MapMessage, StreamMessage
from .connection import Connection, ConnectionMetaData
from .consumer import MessageConsumer
from .context import Context, Producer
from .destinations import Destination, Queue, TemporaryQueue, TemporaryTopic, Topic
from .errors import (
    IllegalStateError,
    InvalidClientIDError,
    InvalidDestinationError,
    InvalidSelectorError,
    JMSError,
    JMSSecurityError,
    MessageEOFError,
    MessageFormatError,
    MessageNotReadableError,
    MessageNotWriteableError,
    ResourceAllocationError,
    TransactionInProgressError,
    TransactionRolledBackError,
)
from .factory import ConnectionFactory, TopicConnectionFactory
from .messages import DeliveryMode, Message, ObjectMessage, TextMessage
from .producer import MessageProducer
from .remote_factory import MetabrokerConnectionFactory
from .requestor import TopicRequestor
from .selector import Selector
from .session import Session
from .settings import AckMode, Settings

# The names of JMS 1.1 for topics.
TopicConnection = Connection
TopicSession = Session
TopicPublisher = MessageProducer
TopicSubscriber = MessageConsumer

__all__ = [
    "AckMode",
    "AsyncConsumer",
    "AsyncContext",
    "AsyncProducer",
    "BytesMessage",
    "Connection",
    "ConnectionFactory",
    "ConnectionMetaData",
    "Context",
    "DeliveryMode",
    "Destination",
    "IllegalStateError",
    "InvalidClientIDError",
    "InvalidDestinationError",
    "InvalidSelectorError",
    "JMSError",
    "JMSSecurityError",
    "MapMessage",
    "Message",
    "MessageConsumer",
    "MessageEOFError",
    "MessageFormatError",
    "MessageNotReadableError",
    "MessageNotWriteableError",
    "MessageProducer",
    "MetabrokerConnectionFactory",
    "ObjectMessage",
    "Producer",
    "Queue",
    "ResourceAllocationError",
    "Selector",
    "Session",
    "Settings",
    "StreamMessage",
    "TemporaryQueue",
    "TemporaryTopic",
    "TextMessage",
    "Topic",
    "TopicConnection",
    "TopicConnectionFactory",
    "TopicPublisher",
    "TopicRequestor",
    "TopicSession",
    "TopicSubscriber",
    "TransactionInProgressError",
    "TransactionRolledBackError",
]
