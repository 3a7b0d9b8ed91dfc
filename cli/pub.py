"""`mqmesh pub`: publish messages from the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connection_options as o
from .output import FAILED, WRONG_USE, fail, note

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

    from .connection import Connection

option = partial(typer.Option, rich_help_panel="Message")


def pub(
    topic: Annotated[list[str], typer.Option("-t", "--topic", help="Topic; give it again for more.", show_default=False)] = [],  # noqa: B006
    message: Annotated[str | None, option("-m", "--message", help="The payload.")] = None,
    file: Annotated[Path | None, option("-f", "--file", help="Send a file as one message.")] = None,
    lines: Annotated[bool, option("-l", "--stdin-line", help="A message for each line of stdin.")] = False,
    whole: Annotated[bool, option("-s", "--stdin-file", help="All of stdin as one message.")] = False,
    null: Annotated[bool, option("-n", "--null-message", help="An empty payload.")] = False,
    qos: Annotated[int, option("-q", "--qos", min=0, max=2, help="Quality of Service.")] = 0,
    retain: Annotated[bool, option("-r", "--retain", help="Retain the message.")] = False,
    repeat: Annotated[int, option("--repeat", min=1, help="Send this many times.")] = 1,
    interval: Annotated[float, option("--interval", metavar="SECONDS", min=0, help="Time between repeats.")] = 0.0,
    user_property: Annotated[
        list[str],
        option("--user-property", metavar="KEY=VALUE", help="User Property; give it again for more."),
    ] = [],  # noqa: B006
    expiry: Annotated[
        int | None,
        option("--expiry", metavar="SECONDS", min=0, max=0xFFFFFFFF, help="Message Expiry Interval."),
    ] = None,
    response_topic: Annotated[str | None, option("--response-topic", help="Where the answer shall go.")] = None,
    correlation: Annotated[str | None, option("--correlation", help="Correlation Data.")] = None,
    content_type: Annotated[str | None, option("--content-type", help="Content Type, such as application/json.")] = None,
    text: Annotated[bool, option("--text", help="Mark the payload as UTF-8 text (Payload Format Indicator).")] = False,
    host: o.Host = "127.0.0.1",
    port: o.Port = None,
    username: o.Username = None,
    password: o.Password = None,
    protocol: o.Version = "5",
    keepalive: o.KeepAlive = 60,
    cafile: o.CaFile = None,
    cert: o.Certificate = None,
    key: o.Key = None,
    insecure: o.Insecure = False,
    client_id: o.ClientId = None,
    persistent: o.Persistent = False,
    session_expiry: o.SessionExpiry = None,
    will_topic: o.WillTopic = None,
    will_payload: o.WillPayload = "",
    will_qos: o.WillQos = 0,
    will_retain: o.WillRetain = False,
    will_delay: o.WillDelay = 0,
    debug: o.Debug = False,
) -> None:
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
    values = dict(locals()) | {"receive_maximum": None}
    from .connection import Connection, OptionError, build_options, end_on_sigterm

    end_on_sigterm()
    try:
        options = build_options(values)
        topics = _topics(topic, options.address.topic)
        properties = _properties(values, options.version)
        payloads = _payloads(values)
        with Connection(options) as connection:
            status = _Publisher(connection, topics, qos, retain, properties).run(payloads, repeat, interval)
    except OptionError as error:
        raise fail(f"pub: {error}", WRONG_USE) from None
    except ConnectionError as error:
        raise fail(f"pub: {error}") from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(status)


class _Publisher:
    """Sends payloads to all topics and waits for acknowledgements; at most `max_unacknowledged` stay open."""

    def __init__(self, connection: Connection, topics: list[str], qos: int, retain: bool, properties: Properties | None) -> None:
        self.connection = connection
        self.topics = topics
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        connection.client.on_publish = connection.guarded(self._published)

    def _published(self, _client: Client, _userdata: object, mid: int, reason: ReasonCode, _properties: Properties) -> None:
        from .connection import describe

        if reason.is_failure:
            self.refused += 1
            note(f"pub: message {mid} is not accepted: {describe(reason)}")
        self.acknowledged += 1
        self.connection.wake()

    def run(self, payloads: Iterator[bytes], repeat: int, interval: float) -> int:
        """Send everything; the exit status. `interval` in seconds between repeats."""
        due = time.monotonic()
        for payload in payloads:
            for number in range(repeat):
                if number and interval:
                    due += interval
                    self.connection.wait(lambda: False, max(0.0, due - time.monotonic()))
                for topic in self.topics:
                    if not self.connection.wait(self._has_room):
                        return self._ended()
                    self._send(topic, payload)
        if not self.connection.wait(lambda: self.acknowledged == self.sent):
            return self._ended()
        return FAILED if self.refused else 0

    def _has_room(self) -> bool:
        return self.sent - self.acknowledged < self.connection.options.max_unacknowledged

    def _send(self, topic: str, payload: bytes) -> None:
        from .connection import OptionError

        self.sent += 1
        try:
            self.connection.client.publish(topic, payload, self.qos, self.retain, self.properties)
        except ValueError as error:
            raise OptionError(f"topic {topic!r}: {error}") from None

    def _ended(self) -> int:
        note(f"pub: {self.connection.failure} ({self.sent - self.acknowledged} messages are not acknowledged)")
        return FAILED


def _topics(topics: list[str], from_url: str | None) -> list[str]:
    from .connection import OptionError

    chosen = topics or ([from_url] if from_url else [])
    if not chosen:
        raise OptionError("which topic? Give -t TOPIC, for example: mqmesh pub -t plant/3/temperature -m 21.5")
    for topic in chosen:
        _check_topic("topic", topic)
    return chosen


def _check_topic(what: str, topic: str) -> None:
    """A Topic Name by [MQTT-4.7.1-1], [MQTT-4.7.3]: with QoS 0 the broker's refusal would come when nobody listens any more."""
    from .connection import OptionError

    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise OptionError(f"{what} {topic!r}: a topic to publish to is not empty and has no wildcard (+ and # are for sub)")
    if len(topic.encode()) > 65535:
        raise OptionError(f"{what} {topic[:40]!r}...: it has {len(topic.encode())} bytes, at most 65535")


def _payloads(values: dict[str, Any]) -> Iterator[bytes]:
    """The payloads that the options name, read as they are needed."""
    from .connection import OptionError

    given = [name for name in ("message", "file", "lines", "whole", "null") if values[name] not in (None, False)]
    if len(given) != 1:
        raise OptionError("say what to send with exactly one of -m TEXT, -f FILE, -l (lines of stdin), -s (all of stdin) and -n (nothing)")
    if values["lines"]:
        if values["repeat"] != 1:
            raise OptionError("--repeat does not go with -l")
        lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
        return (_checked(line) for line in lines) if values["text"] else lines
    payload = _payload(values)
    return iter([_checked(payload) if values["text"] else payload])


def _checked(payload: bytes) -> bytes:
    """--text is a promise that the broker may check [MQTT5 3.3.2.3.2]."""
    from .connection import OptionError

    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"--text: the payload is not UTF-8 ({error.reason} at byte {error.start}); leave --text out") from None
    return payload


def _payload(values: dict[str, Any]) -> bytes:
    from .connection import OptionError

    if values["message"] is not None:
        return str(values["message"]).encode()
    if values["file"] is not None:
        try:
            return Path(values["file"]).read_bytes()
        except OSError as error:
            raise OptionError(f"-f {values['file']}: {error.strerror}") from None
    return sys.stdin.buffer.read() if values["whole"] else b""


def _properties(values: dict[str, Any], version: int) -> Properties | None:
    """The MQTT 5 properties of each message. MQTT 3.1.1 has none: asking for one is an error rather than a silent loss."""
    if version == 4:
        _refuse_properties(values)
        return None
    from paho.mqtt.packettypes import PacketTypes

    from .connection import OptionError, new_properties

    properties = new_properties(PacketTypes.PUBLISH)
    pairs = [tuple(text.split("=", 1)) for text in values["user_property"]]
    if any(len(pair) != 2 for pair in pairs):
        raise OptionError("--user-property is written KEY=VALUE")
    if pairs:
        properties.UserProperty = pairs
    if values["expiry"] is not None:
        properties.MessageExpiryInterval = values["expiry"]
    if values["response_topic"] is not None:
        _check_topic("--response-topic", values["response_topic"])
        properties.ResponseTopic = values["response_topic"]
    if values["correlation"] is not None:
        properties.CorrelationData = values["correlation"].encode()
    if values["content_type"]:
        properties.ContentType = values["content_type"]
    if values["text"]:
        properties.PayloadFormatIndicator = 1
    return properties  # type: ignore[no-any-return]


def _refuse_properties(values: dict[str, Any]) -> None:
    from .connection import OptionError

    for name in ("user_property", "expiry", "response_topic", "correlation", "content_type", "text"):
        if values[name]:
            raise OptionError(f"--{name.replace('_', '-')} needs MQTT 5: leave -V 4 out")
