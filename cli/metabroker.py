"""`mqmesh metabroker`: let clients of one broker reach others through it."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from .address import AddressError, parse
from .broker import LEVELS, start_logging
from .output import WRONG_USE, fail

VERSIONS = {"5": 5, "3.1.1": 4, "4": 4}


def metabroker(
    community: Annotated[
        str,
        typer.Option("--community", metavar="URL", help="The broker to stand beside: mqtt[s]://[user@]host:port.", show_default=False),
    ],
    policy: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="Who may reach which remotes (docs/metabroker.md).", show_default=False)
    ],
    services: Annotated[Path | None, typer.Option("--services", metavar="FILE", help="Names of services and their addresses.")] = None,
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="URL", help="A directory, asked for names that are not in the file."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="A folder where sessions are kept over restarts; without it none are.")
    ] = None,
    client_id: Annotated[str, typer.Option("-i", "--id", help="Client Identifier at the community broker.")] = "metabroker",
    version: Annotated[str, typer.Option("-V", "--protocol", metavar="5|4", help="MQTT version there: 5, or 4 for MQTT 3.1.1.")] = "5",
    cafile: Annotated[Path | None, typer.Option("--cafile", help="PEM file of the authorities of the community broker (mqtts://).")] = None,
    password: Annotated[
        str | None, typer.Option("-P", "--password", envvar="MQMESH_PASSWORD", show_envvar=True, help="Password at the community broker.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", metavar="|".join(LEVELS), help="What goes to stderr.")] = "info",
) -> None:
    """Let the clients of one broker reach other brokers through it.

    It prints one line that starts with 'ready' once it listens to requests.

    \b
      mqmesh metabroker --community mqtt://127.0.0.1:1883 --policy policy.toml --services services.toml

    Ends with SIGTERM or Ctrl-C. Status: 0 stopped; 2 it could not start, one line on stderr says why.
    """
    from ..broker.store.base import StoreError
    from ..mesh.settings import ConfigError
    from ..metabroker.address import Address
    from ..metabroker.policy import load
    from ..metabroker.resolver import Chain, Directory, Resolver, Services
    from ..metabroker.server import Community, run
    from ..metabroker.wire import Login

    if log_level not in LEVELS:
        raise fail(f"metabroker: --log-level {log_level}: there are {', '.join(LEVELS)}", WRONG_USE)
    if version not in VERSIONS:
        raise fail(f"metabroker: -V {version}: the MQTT version is 5, or 4 for MQTT 3.1.1", WRONG_USE)
    try:
        where = parse(community)
    except AddressError as error:
        raise fail(f"metabroker: --community {error}", WRONG_USE) from None
    if where.path is not None or where.topic is not None:
        raise fail(f"metabroker: --community {community}: write mqtt://host:1883 or mqtts://host:8883", WRONG_USE)
    if cafile is not None:
        _check_authorities(cafile, where.tls)
    resolvers: list[Resolver] = []
    try:
        rules = load(policy)
        if services is not None:
            resolvers.append(Services.load(services))
        if directory is not None:
            resolvers.append(Directory(directory))
    except ConfigError as error:
        raise fail(f"metabroker: {error}", WRONG_USE) from None
    except ValueError as error:
        raise fail(f"metabroker: --directory {error}", WRONG_USE) from None
    secret = password or where.password
    kept = data is not None
    login = Login(client_id, VERSIONS[version], where.username, secret.encode() if secret is not None else None, known=kept, durable=kept)
    if kept:
        login = replace(login, expiry=rules.limits.durable)
    start_logging(client_id, log_level)
    address = Address(where.host, where.port, where.tls)
    try:
        run(
            Community(address, login, os.fspath(cafile) if cafile else None),
            rules,
            Chain(*resolvers),
            lambda: print(f"ready {address}", flush=True),
            data,
        )
    except StoreError as error:
        raise fail(f"metabroker: --data {error}", WRONG_USE) from None


def _check_authorities(cafile: Path, tls: bool) -> None:
    if not tls:
        raise fail("metabroker: --cafile needs TLS: give an mqtts:// address", WRONG_USE)
    try:
        ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise fail(f"metabroker: --cafile {cafile}: {error.strerror or error}; give a PEM file of authorities", WRONG_USE) from None
