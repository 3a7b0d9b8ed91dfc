"""The options of commands that connect to a broker as an MQTT client.

This module imports no client library, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from .output import WRONG_USE, fail

NEVER = 0xFFFFFFFF  # session expiry in seconds: the session never expires
VERSIONS = {"5": 5, "mqttv5": 5, "4": 4, "311": 4, "3.1.1": 4, "mqttv311": 4}
NEEDS_MQTT_5 = ("session_expiry", "receive_maximum", "will_delay")

_broker = partial(typer.Option, rich_help_panel="Broker")
_session = partial(typer.Option, rich_help_panel="Session")
_will = partial(typer.Option, rich_help_panel="Will")


class OptionError(ValueError):
    """Options do not fit together. The message says what is right."""


@contextmanager
def reported_errors(command: str) -> Iterator[None]:
    """End the command with one line on stderr after a wrong option or a failed connection."""
    try:
        yield
    except OptionError as error:
        raise fail(f"{command}: {error}", WRONG_USE) from None
    except ConnectionError as error:
        raise fail(f"{command}: {error}") from None


@dataclass(slots=True)
class ConnectionOptions:
    """Where the broker is, and as whom the command connects."""

    host: Annotated[
        str,
        _broker(
            "-h",
            "--host",
            metavar="HOST|URL",
            help="Host name, or mqtt://user:password@host:port, mqtts://..., ws://host:port/path, wss://..., unix:///path.",
        ),
    ] = "127.0.0.1"
    port: Annotated[int | None, _broker("-p", "--port", min=1, max=65535, help="TCP port; 1883, or 8883 with TLS.")] = None
    username: Annotated[str | None, _broker("-u", "--username", help="User name.")] = None
    password: Annotated[str | None, _broker("-P", "--password", envvar="MQMESH_PASSWORD", help="Password.", show_envvar=True)] = None
    protocol: str = "5"
    keepalive: int = 60
    cafile: Annotated[str | None, _broker("--cafile", help="PEM file of trusted authorities; turns TLS on.")] = None
    cert: Annotated[str | None, _broker("--cert", help="PEM file of our certificate.")] = None
    key: Annotated[str | None, _broker("--key", help="PEM file of our private key.")] = None
    insecure: Annotated[bool, _broker("--insecure", help="Do not compare the certificate's name with the host.")] = False
    client_id: Annotated[str | None, _session("-i", "--id", help="Client Identifier; a random one without this option.")] = None
    persistent: bool = False
    session_expiry: int | None = None
    receive_maximum: int | None = None
    will_topic: str | None = None
    will_payload: str = ""
    will_qos: int = 0
    will_retain: bool = False
    will_delay: int = 0
    debug: Annotated[bool, typer.Option("-d", "--debug", help="Show each packet on stderr.")] = False

    @property
    def version(self) -> int:
        """The MQTT version as in the CONNECT packet: 5 or 4."""
        return VERSIONS[self.protocol.lower()]

    def check(self, tls: bool) -> None:
        """Raise OptionError for options that do not fit together. tls: whether the broker's address asks for TLS."""
        if self.protocol.lower() not in VERSIONS:
            raise OptionError(f"-V {self.protocol}: the MQTT version is 5, or 4 for MQTT 3.1.1")
        if (self.cert or self.key) and not tls:
            raise OptionError("--cert and --key need TLS: give --cafile, or an mqtts:// address")
        if self.key and not self.cert:
            raise OptionError("--key goes with --cert")
        if self.persistent and not self.client_id:
            raise OptionError("-c keeps a session under a Client Identifier: give one with -i")
        if not self.will_topic and (self.will_payload or self.will_retain or self.will_qos or self.will_delay):
            raise OptionError("a will needs --will-topic")
        for name in NEEDS_MQTT_5 if self.version == 4 else ():
            if getattr(self, name):
                raise OptionError(f"--{name.replace('_', '-')} needs MQTT 5: leave -V 4 out")


@dataclass(slots=True)
class VersionedConnectionOptions(ConnectionOptions):
    """The same, with the MQTT version."""

    protocol: Annotated[str, _broker("-V", "--protocol", metavar="5|4", help="MQTT version: 5, or 4 for MQTT 3.1.1.")] = "5"


@dataclass(slots=True)
class ClientOptions(VersionedConnectionOptions):
    """The same, with session and will, for a client that publishes."""

    keepalive: Annotated[int, _broker("-k", "--keepalive", metavar="SECONDS", min=0, max=65535, help="Keep Alive.")] = 60
    persistent: Annotated[bool, _session("-c", "--persistent", help="Keep the session at the broker when the command ends (needs -i).")] = (
        False
    )
    session_expiry: Annotated[
        int | None,
        _session(
            "-x",
            "--session-expiry",
            metavar="SECONDS",
            min=0,
            max=NEVER,
            help="How long the broker keeps the session; with -c and without -x for ever.",
        ),
    ] = None
    will_topic: Annotated[str | None, _will("--will-topic", help="Topic of the message that the broker sends if we vanish.")] = None
    will_payload: Annotated[str, _will("--will-payload", help="Its payload.")] = ""
    will_qos: Annotated[int, _will("--will-qos", min=0, max=2, help="Its QoS.")] = 0
    will_retain: Annotated[bool, _will("--will-retain", help="Retain it.")] = False
    will_delay: Annotated[
        int, _will("--will-delay", metavar="SECONDS", min=0, max=NEVER, help="How long the broker waits before it sends the will.")
    ] = 0


@dataclass(slots=True)
class SubscriberOptions(ClientOptions):
    """The same, for a client that subscribes."""

    receive_maximum: Annotated[
        int | None,
        _session("--receive-maximum", min=1, max=65535, help="QoS 1 and 2 messages that the broker may send before we acknowledge one."),
    ] = None
