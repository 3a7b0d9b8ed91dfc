"""`mqmesh metabroker`: let clients of one broker reach others through it."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from ..base.address import COMMAND_LINE, Address, AddressError, parse_address
from .logs import LEVELS, start_logging
from .output import WRONG_USE, fail

log = logging.getLogger(__name__)
REQUESTS = 20_000  # that may wait for the metabroker to run; with fewer the two would wait for each other on a busy machine
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
        typer.Option("--directory", metavar="URL", help="A directory, or the WSDL of a UDDI registry: for names that are not in the file."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="A folder where sessions are kept over restarts; without it none are.")
    ] = None,
    status_topic: Annotated[
        str | None,
        typer.Option("--status-topic", metavar="TOPIC", help="Where it says how it is, '' for nowhere; metabroker/status/ID without."),
    ] = None,
    client_id: Annotated[str, typer.Option("-i", "--id", help="Client Identifier at the community broker.")] = "metabroker",
    version: Annotated[str, typer.Option("-V", "--protocol", metavar="5|4", help="MQTT version there: 5, or 4 for MQTT 3.1.1.")] = "5",
    cafile: Annotated[Path | None, typer.Option("--cafile", help="PEM file of the authorities of the community broker (mqtts://).")] = None,
    password: Annotated[
        str | None, typer.Option("-P", "--password", envvar="MQMESH_PASSWORD", show_envvar=True, help="Password at the community broker.")
    ] = None,
    password_file: Annotated[Path | None, typer.Option("--password-file", help="File with the password there in its first line.")] = None,
    by_client: Annotated[
        bool, typer.Option("--by-client", help="Session identifiers begin with the client's: for Mosquitto's access rules.")
    ] = False,
    log_level: Annotated[str, typer.Option("--log-level", metavar="|".join(LEVELS), help="What goes to stderr.")] = "info",
) -> None:
    """Let the clients of one broker reach other brokers through it.

    It prints one line that starts with 'ready' once it listens to requests.

    \b
      mqmesh metabroker --community mqtt://127.0.0.1:1883 --policy policy.toml --services services.toml

    Ends with SIGTERM or Ctrl-C. Status: 0 stopped; 2 it could not start, one line on stderr says why.
    """
    from ..base.settings import ConfigError
    from ..metabroker.mqtt.client import Login
    from ..metabroker.policy import load
    from ..metabroker.shell.resolver import Chain, Directory, Resolver, Services
    from ..metabroker.shell.server import Community
    from ..metabroker.shell.status import GONE
    from ..metabroker.shell.supervisor import run
    from ..mqtt.packets import Will
    from ..store.base import StoreError

    if log_level not in LEVELS:
        raise fail(f"metabroker: --log-level {log_level}: there are {', '.join(LEVELS)}", WRONG_USE)
    if version not in VERSIONS:
        raise fail(f"metabroker: -V {version}: the MQTT version is 5, or 4 for MQTT 3.1.1", WRONG_USE)
    try:
        where = parse_address(community, COMMAND_LINE)
    except AddressError as error:
        raise fail(f"metabroker: --community {community}: {error}", WRONG_USE) from None
    if where.scheme == "unix" or where.topic is not None:
        raise fail(f"metabroker: --community {community}: write mqtt://host:1883, mqtts://host:8883 or ws://host:80/mqtt", WRONG_USE)
    if cafile is not None:
        _check_authorities(cafile, where.tls)
    resolvers: list[Resolver] = []
    try:
        rules = load(policy)
        if services is not None:
            resolvers.append(Services.load(services))
        if directory is not None:
            resolvers.append(Directory(directory, _account()))
    except ConfigError as error:
        raise fail(f"metabroker: {error}", WRONG_USE) from None
    except ImportError as error:
        raise fail(f"metabroker: --directory needs an extra: pip install 'mqmesh[uddi]' ({error})", WRONG_USE) from None
    except ValueError as error:
        raise fail(f"metabroker: --directory {error}", WRONG_USE) from None
    start_logging(client_id, log_level, "metabroker")
    secret = _password(password or where.password, password_file, where)
    username = where.user if where.user is not None or secret is None else client_id
    kept = data is not None
    login = Login(client_id, VERSIONS[version], username, secret, known=kept, durable=kept, receive_maximum=REQUESTS)
    if kept:
        login = replace(login, expiry=rules.limits.durable)
    status = f"metabroker/status/{client_id}" if status_topic is None else status_topic
    if status:
        login = replace(login, will=Will(_topic(status), GONE, retain=True))
    try:
        run(
            Community(where, login, os.fspath(cafile) if cafile else None, by_client, status),
            rules,
            Chain(*resolvers),
            lambda: print(f"ready {where}", flush=True),
            data,
        )
    except StoreError as error:
        raise fail(f"metabroker: --data {error}", WRONG_USE) from None


def _account() -> tuple[str, str] | None:
    """Of the directory; None: what is public is enough."""
    name, secret = os.environ.get("MQMESH_DIRECTORY_ACCOUNT"), os.environ.get("MQMESH_DIRECTORY_SECRET")
    return (name, secret) if name and secret else None


def _password(given: str | None, file: Path | None, where: Address) -> bytes | None:
    """The password at the community broker; None: without one. On this machine it is what all programs of this user share."""
    from ..broker.auth.metabroker_secret import SecretError, make_shared, read_secret

    try:
        if file is not None:
            if given is not None:
                raise fail("metabroker: --password-file: there is a password already: leave one out", WRONG_USE)
            return read_secret(file)
        if given is None and where.user is None and _is_local(where.host):
            return make_shared()
    except SecretError as error:
        if file is not None:
            raise fail(f"metabroker: --password-file {error}", WRONG_USE) from None
        log.warning("event=no-shared-password text=%s", error)
    return given.encode() if given is not None else None


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _topic(text: str) -> str:
    """A topic that can be published to."""
    from ..mqtt.errors import MqttError
    from ..mqtt.topics import check_topic

    try:
        check_topic(text.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise fail(f"metabroker: --status-topic {text!r}: {getattr(error, 'text', 'it is not Unicode')}", WRONG_USE) from None
    return text


def _check_authorities(cafile: Path, tls: bool) -> None:
    if not tls:
        raise fail("metabroker: --cafile needs TLS: give an mqtts:// or wss:// address", WRONG_USE)
    try:
        ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise fail(f"metabroker: --cafile {cafile}: {error.strerror or error}; give a PEM file of authorities", WRONG_USE) from None
