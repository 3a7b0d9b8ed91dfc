"""The JMS-like API: Jakarta Messaging 3.1 in Python's spelling, over any MQTT 5 broker. docs/client.md has a first program."""

from __future__ import annotations

from .api.aio import AsyncConsumer, AsyncContext, AsyncProducer, AsyncQueueBrowser
from .api.browser import QueueBrowser
from .api.connection import Connection, ConnectionMetaData
from .api.consumer import MessageConsumer
from .api.context import Context, Producer
from .api.factory import ConnectionFactory, TopicConnectionFactory
from .api.producer import MessageProducer
from .api.recipient import Recipient
from .api.requestor import QueueRequestor, TopicRequestor
from .api.service import AsyncService, CancelledError, Delivered, ExpiredError, Service, ServiceError
from .api.session import Session
from .core.errors import (
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
from .core.settings import AckMode, Settings
from .message.bodies import BytesMessage, MapMessage, StreamMessage
from .message.destinations import Destination, Queue, TemporaryQueue, TemporaryTopic, Topic
from .message.fail_over import Returned, failed_over, maybe_repeated, returned
from .message.messages import DeliveryMode, Message, ObjectMessage, TextMessage
from .message.selector import Selector
from .metabroker.factory import MetabrokerConnectionFactory

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
    "AsyncQueueBrowser",
    "AsyncService",
    "BytesMessage",
    "CancelledError",
    "Connection",
    "ConnectionFactory",
    "ConnectionMetaData",
    "Context",
    "Delivered",
    "DeliveryMode",
    "Destination",
    "ExpiredError",
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
    "QueueBrowser",
    "QueueRequestor",
    "Recipient",
    "ResourceAllocationError",
    "Returned",
    "Selector",
    "Service",
    "ServiceError",
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
    "failed_over",
    "maybe_repeated",
    "returned",
]
