"""The options that `mqmesh pub` and `mqmesh sub` share: where the broker is, who we are, the will."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

broker = partial(typer.Option, rich_help_panel="Broker")
session = partial(typer.Option, rich_help_panel="Session")
will = partial(typer.Option, rich_help_panel="Will")

Host = Annotated[
    str,
    broker(
        "-h",
        "--host",
        metavar="HOST|URL",
        help="Host name, or mqtt://user:password@host:port, mqtts://..., ws://host:port/path, wss://..., unix:///path.",
    ),
]
Port = Annotated[int | None, broker("-p", "--port", min=1, max=65535, help="TCP port; 1883, or 8883 with TLS.")]
Username = Annotated[str | None, broker("-u", "--username", help="User name.")]
Password = Annotated[str | None, broker("-P", "--password", envvar="MQMESH_PASSWORD", help="Password.", show_envvar=True)]
Version = Annotated[str, broker("-V", "--protocol", metavar="5|4", help="MQTT version: 5, or 4 for MQTT 3.1.1.")]
KeepAlive = Annotated[int, broker("-k", "--keepalive", metavar="SECONDS", min=0, max=65535, help="Keep Alive.")]
CaFile = Annotated[str | None, broker("--cafile", help="PEM file of trusted authorities; turns TLS on.")]
Certificate = Annotated[str | None, broker("--cert", help="PEM file of our certificate.")]
Key = Annotated[str | None, broker("--key", help="PEM file of our private key.")]
Insecure = Annotated[bool, broker("--insecure", help="Do not compare the certificate's name with the host.")]

ClientId = Annotated[str | None, session("-i", "--id", help="Client Identifier; made at random without.")]
Persistent = Annotated[bool, session("-c", "--persistent", help="Keep the session at the broker when we leave (needs -i).")]
SessionExpiry = Annotated[
    int | None,
    session(
        "-x",
        "--session-expiry",
        metavar="SECONDS",
        min=0,
        max=0xFFFFFFFF,
        help="How long the broker keeps the session; with -c alone for ever.",
    ),
]
ReceiveMaximum = Annotated[
    int | None,
    session("--receive-maximum", min=1, max=65535, help="QoS 1 and 2 messages that the broker may have on the way to us."),
]

WillTopic = Annotated[str | None, will("--will-topic", help="Topic of the message that the broker sends if we vanish.")]
WillPayload = Annotated[str, will("--will-payload", help="Its payload.")]
WillQos = Annotated[int, will("--will-qos", min=0, max=2, help="Its QoS.")]
WillRetain = Annotated[bool, will("--will-retain", help="Retain it.")]
WillDelay = Annotated[
    int,
    will("--will-delay", metavar="SECONDS", min=0, max=0xFFFFFFFF, help="How long the broker waits for us first."),
]

Debug = Annotated[bool, typer.Option("-d", "--debug", help="Show each packet on stderr.")]
