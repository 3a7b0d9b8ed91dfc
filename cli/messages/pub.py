"""`mqmesh pub`: publish messages from the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...base.plural import counted
from ..connection_options import ClientOptions, OptionError, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, note

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

    from ..connection import Connection

_message = partial(typer.Option, rich_help_panel="Message")


@dataclass(slots=True)
class MessageOptions:
    """What is published, and how."""

    topic: Annotated[list[str], typer.Option("-t", "--topic", help="Topic; give it again for more.", show_default=False)] = field(
        default_factory=list
    )
    message: Annotated[str | None, _message("-m", "--message", help="The payload.")] = None
    file: Annotated[Path | None, _message("-f", "--file", help="Send a file as one message.")] = None
    lines: Annotated[bool, _message("-l", "--stdin-line", help="Send each line of stdin as a message.")] = False
    whole: Annotated[bool, _message("-s", "--stdin-file", help="Send all of stdin as one message.")] = False
    null: Annotated[bool, _message("-n", "--null-message", help="Send an empty payload.")] = False
    qos: Annotated[int, _message("-q", "--qos", min=0, max=2, help="Quality of Service.")] = 0
    retain: Annotated[bool, _message("-r", "--retain", help="Retain the message.")] = False
    repeat: Annotated[int, _message("--repeat", min=1, help="Send this many times.")] = 1
    interval: Annotated[float, _message("--interval", metavar="SECONDS", min=0, help="Time between repeats.")] = 0.0
    user_property: Annotated[list[str], _message("--user-property", metavar="KEY=VALUE", help="User Property; give it again for more.")] = (
        field(default_factory=list)
    )
    expiry: Annotated[int | None, _message("--expiry", metavar="SECONDS", min=0, max=0xFFFFFFFF, help="Message Expiry Interval.")] = None
    response_topic: Annotated[str | None, _message("--response-topic", help="Topic to send the answer to.")] = None
    correlation: Annotated[str | None, _message("--correlation", help="Correlation Data.")] = None
    content_type: Annotated[str | None, _message("--content-type", help="Content Type, such as application/json.")] = None
    text: Annotated[bool, _message("--text", help="Mark the payload as UTF-8 text (Payload Format Indicator).")] = False


@with_option_groups
def pub(given: MessageOptions, options: ClientOptions) -> None:
    """Publish messages to an MQTT broker.

    \b
    One message; the same retained with QoS 1; the retained one deleted:
      mqmesh pub -t plant/3/state -m running
      mqmesh pub -t plant/3/state -m running -q 1 -r
      mqmesh pub -t plant/3/state -n -r

    \b
    A message for each line; a file, to two topics; ten times, two a second:
      vmstat 1 | mqmesh pub -t host/vmstat -l
      mqmesh pub -h mqtt://10.0.0.7:1884 -t a -t b -f picture.png
      mqmesh pub -t tick -m x --repeat 10 --interval 0.5

    \b
    A request that is worth nothing after a minute:
      mqmesh pub -t job -m go --response-topic done --correlation 42 --expiry 60

    Status: 0 all is sent (QoS 1 and 2: acknowledged); 1 the broker refuses or cannot be reached; 2 wrong command line.
    """
    from ..connection import Connection, end_on_sigterm

    end_on_sigterm()
    try:
        with reported_errors("pub"):
            connection = Connection(options)
            topics = _topics(given.topic, connection.address.topic)
            properties = _properties(given, options.version)
            payloads = _payloads(given)
            with connection:
                status = _Publisher(connection, topics, given, properties).publish_all(payloads)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(status)


class _Publisher:
    """Publishes payloads to all topics and waits for acknowledgements; at most `max_unacknowledged` messages lack one."""

    def __init__(self, connection: Connection, topics: list[str], given: MessageOptions, properties: Properties | None) -> None:
        self.connection, self.topics, self.given, self.properties = connection, topics, given, properties
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        connection.client.on_publish = connection.guarded(self._published)

    def _published(self, _client: Client, _userdata: object, mid: int, reason: ReasonCode, _properties: Properties) -> None:
        from ..connection import describe

        if reason.is_failure:
            self.refused += 1
            note(f"pub: message {mid} is not accepted: {describe(reason)}")
        self.acknowledged += 1
        self.connection.wake()

    def publish_all(self, payloads: Iterable[bytes]) -> int:
        """Publish each payload as often as the options say. Returns the exit status."""
        due = time.monotonic()
        for payload in payloads:
            for number in range(self.given.repeat):
                if number and self.given.interval:
                    due += self.given.interval
                    self.connection.wait(lambda: False, max(0.0, due - time.monotonic()))
                for topic in self.topics:
                    if not self.connection.wait(self._has_room, answer="acknowledgements"):
                        return self._failed()
                    self._publish(topic, payload)
        if not self.connection.wait(lambda: self.acknowledged == self.sent, answer="acknowledgements"):
            return self._failed()
        return FAILED if self.refused else 0

    def _has_room(self) -> bool:
        return self.sent - self.acknowledged < self.connection.max_unacknowledged

    def _publish(self, topic: str, payload: bytes) -> None:
        self.sent += 1
        try:
            self.connection.client.publish(topic, payload, self.given.qos, self.given.retain, self.properties)
        except ValueError as error:
            raise OptionError(f"topic {topic!r}: {error}") from None

    def _failed(self) -> int:
        note(f"pub: {self.connection.failure} ({counted(self.sent - self.acknowledged, 'message')} not acknowledged)")
        return FAILED


def _topics(topics: list[str], from_url: str | None) -> list[str]:
    chosen = topics or ([from_url] if from_url else [])
    if not chosen:
        raise OptionError("which topic? Give -t TOPIC, for example: mqmesh pub -t plant/3/temperature -m 21.5")
    for topic in chosen:
        _check_topic("topic", topic)
    return chosen


def _check_topic(what: str, topic: str) -> None:
    """Check a Topic Name by [MQTT-4.7.1-1] and [MQTT-4.7.3]: with QoS 0 the command ends before the broker's refusal arrives."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise OptionError(f"{what} {topic!r}: a topic to publish to is not empty and has no wildcard (+ and # are for sub)")
    if len(topic.encode()) > 65535:
        raise OptionError(f"{what} {topic[:40]!r}...: it has {len(topic.encode())} bytes, at most 65535")


def _payloads(given: MessageOptions) -> Iterator[bytes]:
    """The payloads that the options name. Lines of stdin are read one by one."""
    sources = (given.message is not None, given.file is not None, given.lines, given.whole, given.null)
    if sum(sources) != 1:
        raise OptionError("say what to send with exactly one of -m TEXT, -f FILE, -l (lines of stdin), -s (all of stdin) and -n (nothing)")
    if given.lines:
        if given.repeat != 1:
            raise OptionError("--repeat does not go with -l")
        lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return map(_checked_text, lines) if given.text else lines
    payload = _payload(given)
    return iter([_checked_text(payload) if given.text else payload])


def _checked_text(payload: bytes) -> bytes:
    """--text is a promise that the broker may check [MQTT5 3.3.2.3.2]."""
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"--text: the payload is not UTF-8 ({error.reason} at byte {error.start}); leave --text out") from None
    return payload


def _payload(given: MessageOptions) -> bytes:
    if given.message is not None:
        return given.message.encode()
    if given.file is not None:
        try:
            return given.file.read_bytes()
        except OSError as error:
            raise OptionError(f"-f {given.file}: {error.strerror}") from None
    return sys.stdin.buffer.read() if given.whole else b""


def _properties(given: MessageOptions, version: int) -> Properties | None:
    """The MQTT 5 properties of each message. MQTT 3.1.1 has none: an option for one is an error there."""
    if version == 4:
        for name in ("user_property", "expiry", "response_topic", "correlation", "content_type", "text"):
            if getattr(given, name):
                raise OptionError(f"--{name.replace('_', '-')} needs MQTT 5: leave -V 4 out")
        return None
    from paho.mqtt.packettypes import PacketTypes

    from ..connection import new_properties

    properties = new_properties(PacketTypes.PUBLISH)
    pairs = [tuple(text.split("=", 1)) for text in given.user_property]
    if any(len(pair) != 2 for pair in pairs):
        raise OptionError("--user-property is written KEY=VALUE")
    if pairs:
        properties.UserProperty = pairs
    if given.expiry is not None:
        properties.MessageExpiryInterval = given.expiry
    if given.response_topic is not None:
        _check_topic("--response-topic", given.response_topic)
        properties.ResponseTopic = given.response_topic
    if given.correlation is not None:
        properties.CorrelationData = given.correlation.encode()
    if given.content_type:
        properties.ContentType = given.content_type
    if given.text:
        properties.PayloadFormatIndicator = 1
    return properties  # type: ignore[no-any-return]
