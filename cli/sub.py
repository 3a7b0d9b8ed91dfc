"""`mqmesh sub`: subscribe from the command line and print what comes."""

from __future__ import annotations

import os
import sys
import threading
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connection_options as o
from .output import FAILED, TIMED_OUT, WRONG_USE, fail, note

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.reasoncodes import ReasonCode

    from .connection import Connection
    from .message_format import Writer

output = partial(typer.Option, rich_help_panel="Output")
subscription = partial(typer.Option, rich_help_panel="Subscription")
RETAIN_HANDLING = {"always": 0, "new": 1, "never": 2}


def sub(
    topic: Annotated[
        list[str],
        typer.Option("-t", "--topic", help="Topic Filter, with + and # as wildcards; give it again for more.", show_default=False),
    ] = [],  # noqa: B006
    exclude: Annotated[
        list[str], typer.Option("-T", "--filter-out", help="Do not print topics that match this filter.", show_default=False)
    ] = [],  # noqa: B006
    qos: Annotated[int, subscription("-q", "--qos", min=0, max=2, help="Highest Quality of Service.")] = 0,
    no_local: Annotated[bool, subscription("--no-local", help="Not what this client itself publishes.")] = False,
    retain_as_published: Annotated[bool, subscription("--retain-as-published", help="Keep the publisher's retain flag.")] = False,
    retain_handling: Annotated[
        str,
        subscription("--retain-handling", metavar="always|new|never", help="When retained messages are sent."),
    ] = "always",
    identifier: Annotated[int | None, subscription("--identifier", min=1, max=268_435_455, help="Subscription Identifier.")] = None,
    count: Annotated[int | None, output("-C", "--count", min=1, help="Leave after this many messages.")] = None,
    timeout: Annotated[
        float | None,
        output("-W", "--timeout", metavar="SECONDS", min=0, help="Leave after this time, with status 27."),
    ] = None,
    verbose: Annotated[bool, output("-v", "--verbose", help="Topic and payload.")] = False,
    form: Annotated[str | None, output("-F", "--format", help="Such as '%I %t %p': see mqmesh sub --formats.")] = None,
    json_lines: Annotated[bool, output("--json", help="One JSON object a line.")] = False,
    no_newline: Annotated[bool, output("-N", help="No line end behind a message.")] = False,
    no_retained: Annotated[bool, output("-R", "--no-retained", help="Do not print retained messages.")] = False,
    retained_only: Annotated[bool, output("--retained-only", help="Print retained messages; leave at the first that is not.")] = False,
    subscribe_only: Annotated[bool, output("-E", "--subscribe-only", help="Leave once subscribed (to make a session, with -c).")] = False,
    formats: Annotated[bool, output("--formats", help="Explain the letters of -F and leave.")] = False,
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
    receive_maximum: o.ReceiveMaximum = None,
    will_topic: o.WillTopic = None,
    will_payload: o.WillPayload = "",
    will_qos: o.WillQos = 0,
    will_retain: o.WillRetain = False,
    will_delay: o.WillDelay = 0,
    debug: o.Debug = False,
) -> None:
    """Subscribe at an MQTT broker and print the messages, until Ctrl-C or SIGTERM.

    \b
    Everything with its topic; one site with times; JSON for a program:
      mqmesh sub -t '#' -v
      mqmesh sub -h mqtt://10.0.0.7:1884 -t 'plant/+/temperature' -F '%I %t %p'
      mqmesh sub -t '#' --json | jq .properties

    \b
    The next message, but wait ten seconds at most:
      mqmesh sub -t plant/3/state -C 1 -W 10

    \b
    A session that collects while we are away; share the work of a group:
      mqmesh sub -t 'alarm/#' -q 1 -c -i desk-7
      mqmesh sub -t '$share/workers/job/#' -q 1

    Status: 0 done; 1 the broker refuses or cannot be reached; 2 wrong command line; 27 -W was over before -C was reached.
    """
    values = dict(locals())
    from . import message_format as formatting
    from .connection import Connection, OptionError, build_options, end_on_sigterm

    if formats:
        print(formatting.__doc__)
        raise typer.Exit
    end_on_sigterm()
    try:
        options = build_options(values)
        subscriptions = _subscriptions(values, options.address.topic, options.version)
        write = formatting.writer(verbose, json_lines, form, not no_newline)
        subscriber = _Subscriber(write, subscriptions, values)
        subscriber.connection = Connection(options, on_ready=subscriber.ready)
        with subscriber.connection as connection:
            status = subscriber.run(connection, timeout)
    except (OptionError, formatting.FormatError) as error:
        raise fail(f"sub: {error}", WRONG_USE) from None
    except ConnectionError as error:
        raise fail(f"sub: {error}") from None
    except KeyboardInterrupt:
        status = 0
    raise typer.Exit(status)


class _Subscriber:
    """Subscribes at each new connection and prints each message once; acknowledges only what it printed.

    What arrives behind the last message wanted is left unacknowledged, so that a persistent session still has it.
    """

    def __init__(self, write: Writer, subscriptions: list[tuple[str, Any]], values: dict[str, Any]) -> None:
        self.write = write
        self.subscriptions = subscriptions
        self.values = values
        self.left: int | None = values["count"]
        self.done = threading.Event()
        self.connection: Connection | None = None
        self.failure: str | None = None
        self.exclude = values["exclude"]

    def run(self, connection: Connection, timeout: float | None) -> int:
        """Wait for the end; the exit status. `timeout` in seconds."""
        if not connection.wait(lambda: self.done.is_set() or self.failure is not None, timeout) and connection.failure is None:
            return TIMED_OUT
        failure = self.failure or connection.failure
        if failure is not None:
            note(f"sub: {failure}")
            return FAILED
        return 0

    def ready(self, client: Client, session_present: bool) -> None:
        """After each CONNACK: subscribe. (paho's thread, as everything below.)"""
        from paho.mqtt.packettypes import PacketTypes

        from .connection import new_properties

        client.manual_ack_set(True)
        assert self.connection is not None
        client.on_message = self.connection.guarded(self.message)
        client.on_subscribe = self.connection.guarded(self.subscribed)
        properties = None
        if self.values["identifier"] is not None:
            properties = new_properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = self.values["identifier"]
        client.subscribe(self.subscriptions, properties=properties)

    def subscribed(self, client: Client, userdata: object, mid: int, reasons: list[ReasonCode], properties: object) -> None:
        from .connection import describe

        for (topic, _), reason in zip(self.subscriptions, reasons, strict=False):
            if reason.is_failure:
                self.failure = f"the broker refuses the subscription to {topic!r}: {describe(reason)}"
        if self.values["subscribe_only"]:
            self.done.set()
        self._wake()

    def message(self, client: Client, userdata: object, message: MQTTMessage) -> None:
        if self.done.is_set():
            return
        if self.values["retained_only"] and not message.retain:
            self._finish()
            return
        if not self._hidden(message):
            try:
                self._print(message)
            except BrokenPipeError:  # the reader, such as `head`, has enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                self._finish()
                return
            if self.left is not None:
                self.left -= 1
        client.ack(message.mid, message.qos)
        if self.left == 0:
            self._finish()

    def _hidden(self, message: MQTTMessage) -> bool:
        from paho.mqtt.client import topic_matches_sub

        if message.retain and self.values["no_retained"]:
            return True
        return any(topic_matches_sub(pattern, message.topic) for pattern in self.exclude)

    def _print(self, message: MQTTMessage) -> None:
        from .message_format import Message, properties_of

        out = sys.stdout.buffer
        received = datetime.now().astimezone()
        properties = properties_of(getattr(message, "properties", None))
        out.write(
            self.write(Message(message.topic, bytes(message.payload), message.qos, message.retain, message.mid, received, properties))
        )
        out.flush()

    def _finish(self) -> None:
        self.done.set()
        self._wake()

    def _wake(self) -> None:
        if self.connection is not None:
            self.connection.wake()


def _subscriptions(values: dict[str, Any], from_url: str | None, version: int) -> list[tuple[str, Any]]:
    """paho's argument for `subscribe`. Raises OptionError."""
    from paho.mqtt.subscribeoptions import SubscribeOptions

    from .connection import OptionError

    filters = values["topic"] or ([from_url] if from_url else [])
    if not filters:
        raise OptionError("which topics? Give -t FILTER, for example: mqmesh sub -t 'plant/+/temperature' -v")
    for name in filters:
        _check_filter(name)
    if values["retain_handling"] not in RETAIN_HANDLING:
        raise OptionError(f"--retain-handling {values['retain_handling']}: there are always, new and never")
    if version == 4:
        if values["no_local"] or values["retain_as_published"] or values["retain_handling"] != "always" or values["identifier"]:
            raise OptionError("--no-local, --retain-as-published, --retain-handling and --identifier need MQTT 5: leave -V 4 out")
        return [(name, values["qos"]) for name in filters]
    options = SubscribeOptions(
        qos=values["qos"],
        noLocal=values["no_local"],
        retainAsPublished=values["retain_as_published"],
        retainHandling=RETAIN_HANDLING[values["retain_handling"]],
    )
    return [(name, options) for name in filters]


def _check_filter(name: str) -> None:
    """The rules of [MQTT-4.7.1], so that the user learns more than 'malformed packet' from the broker."""
    from .connection import OptionError

    levels = name.split("/")
    if not name or "\0" in name or len(name.encode()) > 65535:
        raise OptionError(f"filter {name!r}: it must have 1 to 65535 bytes and no zero byte")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise OptionError(f"filter {name!r}: # stands alone in the last level, as in plant/#")
        if "+" in level and level != "+":
            raise OptionError(f"filter {name!r}: + stands alone in a level, as in plant/+/temperature")
