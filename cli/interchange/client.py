"""A service on the command line: it posts one message, and takes messages from an inbox one by one (docs/interchange.md, "Over MQTT")."""

from __future__ import annotations

import base64
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from ...base.interchange import ANSWER, ENVELOPE, INBOX, POST, QUERY
from ..connection import PATIENCE, Connection, TimeIsUp, describe, end_on_sigterm, new_properties

if TYPE_CHECKING:
    from paho.mqtt.client import Client as PahoClient
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.reasoncodes import ReasonCode

    from ..connection_options import ConnectionOptions

ANSWERED = 60.0  # seconds until the interchange must have answered a post
JSON = ("access", "context", "arguments")


class Client:
    """See above. A context manager: entering connects and subscribes."""

    def __init__(self, options: ConnectionOptions, within: float | None = None) -> None:
        """within: seconds until it must be ready to take messages."""
        options.receive_maximum = 1  # a message that is not taken stays with the broker
        self._connection = Connection(options, within)
        self._connection.on_ready = self._subscribe
        self._inbox = self._selector = ""
        self._granted: set[int] = set()  # subscriptions, by their packet
        self._answers: deque[dict[str, Any]] = deque()
        self._messages: deque[MQTTMessage] = deque()
        self._taken: MQTTMessage | None = None

    @property
    def failure(self) -> str | None:
        """Why nothing more comes."""
        return self._connection.failure

    def take_from(self, service: str, selector: str = "") -> None:
        """Take messages from the inbox of a service; say so before the connection is there."""
        self._inbox, self._selector = f"$queue/{INBOX}{service}", selector

    def __enter__(self) -> Self:
        end_on_sigterm()
        self._connection.__enter__()
        connection, left = self._connection, self._connection.left()
        ready = connection.wait(lambda: len(self._granted) == 1 + bool(self._inbox), PATIENCE if left is None else left, "SUBACK")
        if not ready and connection.failure is None:
            connection.__exit__()
            raise (ConnectionError if left is None else TimeIsUp)(f"{connection.address.endpoint} has not answered SUBSCRIBE in time")
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.__exit__(*error)

    def post(self, payload: bytes, expires: int | None) -> dict[str, Any] | None:
        """Post a message in its JSON form: what the interchange answers. None: nothing; `failure` says why."""
        properties = new_properties(PacketTypes.PUBLISH)
        properties.ContentType = ENVELOPE
        if expires is not None:
            properties.MessageExpiryInterval = expires
        return self._ask(POST, payload, properties)

    def query(self, question: bytes) -> dict[str, Any] | None:
        """Ask what became of messages: the answer. None: nothing; `failure` says why."""
        return self._ask(QUERY, question, new_properties(PacketTypes.PUBLISH))

    def _ask(self, topic: str, payload: bytes, properties: Any) -> dict[str, Any] | None:
        if self.failure is None:
            self._connection.client.publish(topic, payload, 1, properties=properties)
            if self._connection.wait(lambda: bool(self._answers), ANSWERED, "the answer of the interchange"):
                return self._answers.popleft()
            if self.failure is None:
                self._connection.failure = "no answer came. Has this broker an interchange ([interchange] in its file)?"
        return None

    def next(self, wait: float | None) -> dict[str, Any] | None:
        """The next message of the inbox. None: none came in `wait` seconds, or `failure`."""
        if not self._connection.wait(lambda: bool(self._messages), wait):
            return None
        self._taken = self._messages.popleft()
        return shown(self._taken)

    def acknowledge(self) -> None:
        """The last message of `next` does not come again."""
        if self._taken is not None:
            self._connection.client.ack(self._taken.mid, self._taken.qos)
            self._taken = None

    # paho's thread

    def _subscribe(self, client: PahoClient, _session_present: bool) -> None:
        client.manual_ack_set(True)
        client.on_message = self._connection.guarded(self._message)
        client.on_subscribe = self._connection.guarded(self._subscribed)
        client.on_publish = self._connection.guarded(self._published)
        self._granted.clear()
        self._messages.clear()  # they come again
        self._taken = None
        client.subscribe([(ANSWER, SubscribeOptions(qos=0))])  # it never waits for messages of the inbox
        if self._inbox:
            properties = new_properties(PacketTypes.SUBSCRIBE)
            if self._selector:
                properties.UserProperty = [("mqmesh-selector", self._selector)]
            client.subscribe([(self._inbox, SubscribeOptions(qos=1))], properties=properties)

    def _subscribed(self, _client: PahoClient, _userdata: object, mid: int, reasons: list[ReasonCode], properties: Any) -> None:
        for reason in reasons:
            if reason.is_failure:
                text = getattr(properties, "ReasonString", None)
                why = f": {text}" if text else ". Is there a service of this name, and does this user act as it?"
                self._connection.fail(f"the broker refuses {self._inbox or ANSWER}: {describe(reason)}{why}")
        self._granted.add(mid)
        self._connection.wake()

    def _published(self, _client: PahoClient, _userdata: object, _mid: int, reason: ReasonCode, properties: Any) -> None:
        if reason.value == 0x10:
            self._connection.fail("this broker has no interchange: [interchange] in its file starts one")
        elif reason.is_failure and reason.value != 0x83:  # 0x83: the answer says why
            text = getattr(properties, "ReasonString", None)
            self._connection.fail(f"the broker refuses the post: {describe(reason)}" + (f": {text}" if text else ""))

    def _message(self, _client: PahoClient, _userdata: object, message: MQTTMessage) -> None:
        if message.topic == ANSWER:
            self._answers.append(json.loads(message.payload))
        else:
            self._messages.append(message)
        self._connection.wake()


def shown(message: MQTTMessage) -> dict[str, Any]:
    """A message of an inbox as one object: the header's fields, `body` or `base64`, `content_type`, attachments."""
    payload = bytes(message.payload)
    kind = getattr(message.properties, "ContentType", "")
    if kind == ENVELOPE:
        found: dict[str, Any] = json.loads(payload)
        return found
    made: dict[str, Any] = {}
    for name, value in getattr(message.properties, "UserProperty", ()):
        made[name] = json.loads(value) if name in JSON else value
    if kind:
        made["content_type"] = kind
    try:
        return made | {"body": payload.decode()}
    except UnicodeDecodeError:
        return made | {"base64": base64.b64encode(payload).decode()}
