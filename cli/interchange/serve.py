"""`mqmesh interchange serve`: HTTP and SOAP for services, in a process beside a broker."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Annotated

import typer

from ...base.address import COMMAND_LINE, Address, AddressError, is_loopback, parse_address, why_not_listening
from ...base.extras import install
from ..logs import start_logging
from ..output import WRONG_USE, fail


def serve(
    broker: Annotated[
        list[str],
        typer.Option("--broker", metavar="URL", help="A broker with an interchange; again for others that replace it when it fails."),
    ],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any free one.")] = "127.0.0.1:8090",
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="PEM file of our certificate: https.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="PEM file of its private key.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Allow an address other than loopback without --cert, because a proxy does TLS.")
    ] = False,
    cafile: Annotated[Path | None, typer.Option("--cafile", help="PEM file of the authorities of the broker (mqtts://).")] = None,
) -> None:
    """Serve services over HTTP and SOAP, for a broker with an interchange; it prints one line that starts with 'ready' once it listens.

    \b
      mqmesh interchange serve --broker mqtt://127.0.0.1:1883 --listen 127.0.0.1:8090

    Users log in with what they have at the broker: this process has no rights of its own.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise fail(f"interchange: --listen {listen}: give HOST:PORT", WRONG_USE)
    if (cert is None) != (key is None):
        raise fail("interchange: --cert and --key belong together", WRONG_USE)
    if cert is None and not behind_proxy and not is_loopback(host):
        raise fail(
            f"interchange: --listen {listen}: passwords would travel in the clear; give --cert and --key, or --behind-proxy", WRONG_USE
        )
    addresses = [_address(one) for one in broker]
    start_logging(listen, kind="interchange")
    try:
        from ...interchange.shell.serving import Brokers
        from ...interchange.shell.serving import serve as run
    except ImportError as error:
        raise fail(f"interchange: it needs more packages: {install('http')} ({error})") from None
    certificate = (str(cert), str(key)) if cert is not None else None
    try:
        context = ssl.create_default_context(cafile=cafile) if any(one.tls for one in addresses) else None
        asyncio.run(run(Brokers(addresses, context), host, int(port), certificate, lambda url: print(f"ready {url}", flush=True)))
    except (OSError, ssl.SSLError) as error:
        raise fail(f"interchange: cannot serve at {listen}: {why_not_listening(error)}") from None


def _address(text: str) -> Address:
    try:
        address = parse_address(text, COMMAND_LINE)
    except AddressError as error:
        raise fail(f"interchange: --broker {text}: {error}", WRONG_USE) from None
    if address.topic is not None or address.user is not None:
        raise fail(f"interchange: --broker {text}: write mqtt://host:1883 or mqtts://host:8883; users log in by themselves", WRONG_USE)
    return address
