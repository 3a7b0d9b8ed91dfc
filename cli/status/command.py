"""`mqmesh status`: the state of a running broker and its mesh, by MQTT.

It is an ordinary client. It subscribes to `$SYS` and `metabroker/status/`, and publishes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..connection_options import VersionedConnectionOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, WRONG_USE, fail, note

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

    from ..connection import Connection

BROKER_FILTERS = ("$SYS/broker/#", "metabroker/status/#")
OTHER_FILTERS = ("$SYS/#",)  # for a broker that publishes nothing below $SYS/broker
FENCE = "$SYS/broker/mqmesh-status"  # not subscribed to: the answer to its UNSUBSCRIBE comes after the retained messages
PATIENCE = 30.0  # seconds to wait for the retained messages
WATCHED = 5  # Keep Alive in seconds with --watch: a broker that is stopped is missed after twice that


@with_option_groups
def status(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show each change until Ctrl-C or SIGTERM.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="With --watch: the shortest time between two updates.")
    ] = 1.0,
    check: Annotated[bool, typer.Option("--check", help="Status 1 if anything is down, full or out of reach.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; with --watch one a line.")] = False,
    picture: Annotated[bool, typer.Option("--picture", help="Draw the mesh, too.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print only the mesh, in Graphviz's language.")] = False,
    options: VersionedConnectionOptions,
) -> None:
    """Show how a running broker and its mesh are: who can be reached, over which links, and what waits.

    \b
      mqmesh status -h mqtt://porto.example.com:1883
      mqmesh status --watch --picture
      mqmesh status --dot | dot -Tsvg -o mesh.svg
      mqmesh status --check --json | jq -r '.problems[]'

    It shows what one broker knows. Any broker of a mesh will do. It also shows the $SYS of brokers of other makes.

    Status: 0 shown, and with --check all is well; 1 the broker refuses or cannot be reached, or with --check something is not well; 2 wrong
    command line.
    """
    from ..connection import Connection, end_on_sigterm

    if sum((as_json, picture, dot)) > 1:
        raise fail("status: --json, --picture and --dot show different things: choose one", WRONG_USE)
    if watch and (check or dot):
        raise fail(f"status: {'--check' if check else '--dot'} looks once: leave --watch out", WRONG_USE)
    end_on_sigterm()
    try:
        with reported_errors("status"):
            if watch:
                options.keepalive = WATCHED
            reader = StatusReader(Connection(options))
            with reader.connection as connection:
                reader.wait_until_complete()
                if watch:
                    _watch(reader, interval, as_json, picture)
                    return
                found = reader.report()
            _show(found, as_json, picture, dot, connection.address.endpoint)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if check and not found["ok"]:
        raise typer.Exit(FAILED)


class StatusReader:
    """Collects what a broker says of itself. paho's thread writes it, the command reads it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.values: dict[str, str] = {}
        self.complete = False  # all retained messages have arrived
        self.failure: str | None = None
        self.changes = 0
        self._asked: tuple[str, ...] = ()
        connection.on_ready = self._start

    # The command's thread

    def wait_until_complete(self) -> None:
        """Wait for the retained messages. Raises ConnectionError."""
        connection = self.connection
        connection.wait(lambda: self.complete or self.failure is not None, PATIENCE, "what it says of itself")
        failure = self.failure or connection.failure
        if failure is None and not self.complete:
            failure = f"{connection.address.endpoint} does not answer a subscription within {PATIENCE:g} s"
        if failure is not None:
            raise ConnectionError(failure)

    def report(self) -> dict[str, Any]:
        """The report of this moment."""
        from .report import report

        connection = self.connection
        address = connection.address.endpoint
        lost = not connection.connected
        failure = f"{address}: the connection is lost, and tried again" if lost else None
        return report({} if lost else dict(self.values), address, time.time(), failure)

    # paho's thread

    def _start(self, client: Client, _session_present: bool) -> None:
        """Called after each CONNACK."""
        connection = self.connection
        self.values.clear()
        self.complete = False
        client.on_subscribe = connection.guarded(self._subscribed)
        client.on_unsubscribe = connection.guarded(self._unsubscribed)
        client.on_message = connection.guarded(self._message)
        self._subscribe(client, BROKER_FILTERS)

    def _subscribe(self, client: Client, filters: tuple[str, ...]) -> None:
        self._asked = filters
        client.subscribe([(one, 0) for one in filters])

    def _subscribed(self, client: Client, _userdata: object, _mid: int, reasons: list[Any], _properties: object) -> None:
        from ..connection import describe

        if reasons and reasons[0].is_failure and self._asked == BROKER_FILTERS:
            self._fail(f"the broker does not let this user see {BROKER_FILTERS[0]}: {describe(reasons[0])}")
        else:
            client.unsubscribe(FENCE)

    def _unsubscribed(self, client: Client, *_: object) -> None:
        """The answer to UNSUBSCRIBE of `FENCE`: the retained messages have arrived."""
        if not any(topic.startswith("$SYS/broker/") for topic in self.values) and self._asked == BROKER_FILTERS:
            self._subscribe(client, OTHER_FILTERS)
            return
        self.complete = True
        self._changed()

    def _message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        if message.payload:
            self.values[message.topic] = message.payload.decode("utf-8", "replace")
        else:
            self.values.pop(message.topic, None)
        if self.complete:
            self._changed()

    def _fail(self, text: str) -> None:
        self.failure = text
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self.connection.wake()


# Showing


def _show(found: dict[str, Any], as_json: bool, picture: bool, dot: bool, address: str) -> None:
    """Show one report. Raises ConnectionError if there is no mesh to draw."""
    if as_json:
        print(json.dumps(found), flush=True)
    elif dot:
        from .picture import dot as written

        if found["mesh"] is None:
            raise ConnectionError(f"{address} is not in a mesh, or does not say so: there is nothing to draw")
        print(written(found["mesh"]), flush=True)
    else:
        from .view import console, view

        if picture and found["mesh"] is None:
            note(f"status: {address} is not in a mesh, or does not say so: there is nothing to draw")
        console(sys.stdout.isatty()).print(view(found, picture))
        sys.stdout.flush()


def _watch(reader: StatusReader, interval: float, as_json: bool, picture: bool) -> None:
    """Show each change, until the connection fails for good. Raises ConnectionError."""
    if as_json or not sys.stdout.isatty():
        for found in _changes(reader, interval, False):
            _show(found, as_json, picture, False, reader.connection.address.endpoint)
        return
    from rich.live import Live

    from .view import console, view

    with Live(console=console(True), auto_refresh=False, vertical_overflow="crop", screen=True) as live:
        for found in _changes(reader, interval, True):
            live.update(view(found, picture), refresh=True)


def _changes(reader: StatusReader, interval: float, ages: bool) -> Any:
    """A report now and after each change. ages: also after each interval, because ages grow."""
    connection = reader.connection
    while True:
        seen, up = reader.changes, connection.connected
        if reader.complete or not up:
            yield reader.report()
        begun = time.monotonic()
        connection.wait(lambda seen=seen, up=up: reader.changes != seen or connection.connected != up, interval if ages else None)  # type: ignore[misc]
        if connection.failure is not None or reader.failure is not None:
            raise ConnectionError(reader.failure or connection.failure)
        time.sleep(max(0.0, begun + interval - time.monotonic()))
