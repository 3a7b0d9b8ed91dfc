"""`mqmesh sub`: subscribe from the command line and print what arrives."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..connection_options import OptionError, SubscriberOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, TIMED_OUT, WRONG_USE, fail, note

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.reasoncodes import ReasonCode

    from ..connection import Connection
    from .format import Writer

_output = partial(typer.Option, rich_help_panel="Output")
_subscription = partial(typer.Option, rich_help_panel="Subscription")
RETAIN_HANDLING = {"always": 0, "new": 1, "never": 2}


@dataclass(slots=True)
class SubscriptionOptions:
    """What is subscribed to."""

    topic: Annotated[
        list[str],
        typer.Option("-t", "--topic", help="Topic Filter, with + and # as wildcards; give it again for more.", show_default=False),
    ] = field(default_factory=list)
    exclude: Annotated[
        list[str], typer.Option("-T", "--filter-out", help="Do not print topics that match this filter.", show_default=False)
    ] = field(default_factory=list)
    qos: Annotated[int, _subscription("-q", "--qos", min=0, max=2, help="Highest Quality of Service.")] = 0
    no_local: Annotated[bool, _subscription("--no-local", help="Not the messages that this client publishes itself.")] = False
    retain_as_published: Annotated[bool, _subscription("--retain-as-published", help="Keep the publisher's retain flag.")] = False
    retain_handling: Annotated[
        str, _subscription("--retain-handling", metavar="always|new|never", help="When retained messages are sent.")
    ] = "always"
    identifier: Annotated[int | None, _subscription("--identifier", min=1, max=268_435_455, help="Subscription Identifier.")] = None


@dataclass(slots=True)
class OutputOptions:
    """What is printed, and when the command ends."""

    count: Annotated[int | None, _output("-C", "--count", min=1, help="End after this many messages.")] = None
    timeout: Annotated[
        float | None, _output("-W", "--timeout", metavar="SECONDS", min=0, help="End after this time, connected or not, with status 27.")
    ] = None
    verbose: Annotated[bool, _output("-v", "--verbose", help="Print topic and payload.")] = False
    form: Annotated[str | None, _output("-F", "--format", help="Such as '%I %t %p': see mqmesh sub --formats.")] = None
    json_lines: Annotated[bool, _output("--json", help="Print one JSON object a line.")] = False
    no_newline: Annotated[bool, _output("-N", help="Print no line end after a message.")] = False
    no_retained: Annotated[bool, _output("-R", "--no-retained", help="Do not print retained messages.")] = False
    retained_only: Annotated[bool, _output("--retained-only", help="Print retained messages; end at the first that is not retained.")] = (
        False
    )
    subscribe_only: Annotated[bool, _output("-E", "--subscribe-only", help="End once subscribed (to make a session, with -c).")] = False
    formats: Annotated[bool, _output("--formats", help="Explain the letters of -F and end.")] = False


@with_option_groups
def sub(wanted: SubscriptionOptions, shown: OutputOptions, options: SubscriberOptions) -> None:
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
    from ..connection import Connection, TimeIsUp, end_on_sigterm
    from . import format as message_format

    if shown.formats:
        print(message_format.__doc__)
        raise typer.Exit
    end_on_sigterm()
    try:
        with reported_errors("sub"):
            connection = Connection(options, shown.timeout)
            subscriptions = _subscriptions(wanted, connection.address.topic, options.version)
            write = message_format.writer(shown.verbose, shown.json_lines, shown.form, not shown.no_newline)
            subscriber = _Subscriber(connection, write, subscriptions, wanted, shown)
            try:
                with connection:
                    status = subscriber.wait()
            except TimeIsUp as error:
                raise fail(f"sub: {error}", TIMED_OUT) from None
    except message_format.FormatError as error:
        raise fail(f"sub: {error}", WRONG_USE) from None
    except KeyboardInterrupt:
        status = 0
    raise typer.Exit(status)


class _Subscriber:
    """Subscribes on each new connection and prints each message once. It acknowledges only what it printed.

    What arrives after the last message wanted is not acknowledged, so that a persistent session keeps it.
    """

    def __init__(
        self,
        connection: Connection,
        write: Writer,
        subscriptions: list[tuple[str, Any]],
        wanted: SubscriptionOptions,
        shown: OutputOptions,
    ) -> None:
        self.connection, self.write, self.subscriptions, self.wanted, self.shown = connection, write, subscriptions, wanted, shown
        self.left: int | None = shown.count
        self.done = threading.Event()
        self.subscribed = False
        self.failure: str | None = None
        connection.on_ready = self._subscribe

    def wait(self) -> int:
        """Wait for the end. Returns the exit status."""
        connection = self.connection

        def ended() -> bool:
            return self.done.is_set() or self.failure is not None

        answered = connection.wait(lambda: self.subscribed or ended(), connection.left(), "SUBACK")
        if not (answered and connection.wait(ended, connection.left())) and connection.failure is None:
            if not answered:
                note(f"sub: {connection.address.endpoint} has not answered SUBSCRIBE in time")
            return TIMED_OUT
        failure = self.failure or connection.failure
        if failure is not None:
            note(f"sub: {failure}")
            return FAILED
        return 0

    # paho's thread

    def _subscribe(self, client: Client, _session_present: bool) -> None:
        """Called after each CONNACK."""
        from paho.mqtt.packettypes import PacketTypes

        from ..connection import new_properties

        client.manual_ack_set(True)
        client.on_message = self.connection.guarded(self._message)
        client.on_subscribe = self.connection.guarded(self._subscribed)
        properties = None
        if self.wanted.identifier is not None:
            properties = new_properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = self.wanted.identifier
        client.subscribe(self.subscriptions, properties=properties)

    def _subscribed(self, _client: Client, _userdata: object, _mid: int, reasons: list[ReasonCode], _properties: object) -> None:
        from ..connection import describe

        for (topic, _), reason in zip(self.subscriptions, reasons, strict=False):
            if reason.is_failure:
                self.failure = f"the broker refuses the subscription to {topic!r}: {describe(reason)}"
        self.subscribed = True
        if self.shown.subscribe_only:
            self.done.set()
        self.connection.wake()

    def _message(self, client: Client, _userdata: object, message: MQTTMessage) -> None:
        if self.done.is_set():
            return
        if self.shown.retained_only and not message.retain:
            self._finish()
            return
        if not self._hidden(message):
            try:
                self._print(message)
            except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
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

        if message.retain and self.shown.no_retained:
            return True
        return any(topic_matches_sub(pattern, message.topic) for pattern in self.wanted.exclude)

    def _print(self, message: MQTTMessage) -> None:
        from .format import Message, properties_of

        out = sys.stdout.buffer
        received = datetime.now().astimezone()
        properties = properties_of(getattr(message, "properties", None))
        out.write(
            self.write(Message(message.topic, bytes(message.payload), message.qos, message.retain, message.mid, received, properties))
        )
        out.flush()

    def _finish(self) -> None:
        self.done.set()
        self.connection.wake()


def _subscriptions(wanted: SubscriptionOptions, from_url: str | None, version: int) -> list[tuple[str, Any]]:
    """The argument for paho's `subscribe`. Raises OptionError."""
    from paho.mqtt.subscribeoptions import SubscribeOptions

    filters = wanted.topic or ([from_url] if from_url else [])
    if not filters:
        raise OptionError("which topics? Give -t FILTER, for example: mqmesh sub -t 'plant/+/temperature' -v")
    for name in filters:
        _check_filter(name)
    if wanted.retain_handling not in RETAIN_HANDLING:
        raise OptionError(f"--retain-handling {wanted.retain_handling}: there are always, new and never")
    if version == 4:
        if wanted.no_local or wanted.retain_as_published or wanted.retain_handling != "always" or wanted.identifier:
            raise OptionError("--no-local, --retain-as-published, --retain-handling and --identifier need MQTT 5: leave -V 4 out")
        return [(name, wanted.qos) for name in filters]
    options = SubscribeOptions(
        qos=wanted.qos,
        noLocal=wanted.no_local,
        retainAsPublished=wanted.retain_as_published,
        retainHandling=RETAIN_HANDLING[wanted.retain_handling],
    )
    return [(name, options) for name in filters]


def _check_filter(name: str) -> None:
    """The rules of [MQTT-4.7.1], so that the user learns more than 'malformed packet' from the broker."""
    levels = name.split("/")
    if not name or "\0" in name or len(name.encode()) > 65535:
        raise OptionError(f"filter {name!r}: it must have 1 to 65535 bytes and no zero byte")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise OptionError(f"filter {name!r}: # stands alone in the last level, as in plant/#")
        if "+" in level and level != "+":
            raise OptionError(f"filter {name!r}: + stands alone in a level, as in plant/+/temperature")
