"""`mqmesh metabroker`: let clients of one broker reach others through it."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.address import COMMAND_LINE, Address, AddressError, is_loopback, parse_address
from ..base.extras import install
from .logs import LEVELS, start_logging
from .option_groups import with_option_groups
from .output import WRONG_USE, Command, GroupWithDefault, command_group, fail

if TYPE_CHECKING:
    from ..metabroker.shell.community import Community
    from ..metabroker.shell.resolver import Chain

log = logging.getLogger(__name__)
REQUESTS = 20_000  # requests that may wait for the metabroker. With fewer, it and the broker would wait for each other on a busy machine
VERSIONS = {"5": 5, "3.1.1": 4, "4": 4}


@dataclass(slots=True)
class CommunityOptions:
    """The community broker, and as whom the metabroker connects to it."""

    community: Annotated[
        str,
        typer.Option("--community", metavar="URL", help="The broker to stand beside: mqtt[s]://[user@]host:port.", show_default=False),
    ]
    status_topic: Annotated[
        str | None,
        typer.Option("--status-topic", metavar="TOPIC", help="Topic of its status, '' for none; metabroker/status/ID without this option."),
    ] = None
    client_id: Annotated[str, typer.Option("-i", "--id", help="Client Identifier at the community broker.")] = "metabroker"
    version: Annotated[str, typer.Option("-V", "--protocol", metavar="5|4", help="MQTT version there: 5, or 4 for MQTT 3.1.1.")] = "5"
    cafile: Annotated[Path | None, typer.Option("--cafile", help="PEM file of the authorities of the community broker (mqtts://).")] = None
    password: Annotated[
        str | None, typer.Option("-P", "--password", envvar="MQMESH_PASSWORD", show_envvar=True, help="Password at the community broker.")
    ] = None
    password_file: Annotated[Path | None, typer.Option("--password-file", help="File whose first line is the password there.")] = None

    def address(self) -> Address:
        """The checked address. Ends the command if options are wrong."""
        if self.version not in VERSIONS:
            raise fail(f"metabroker: -V {self.version}: the MQTT version is 5, or 4 for MQTT 3.1.1", WRONG_USE)
        try:
            address = parse_address(self.community, COMMAND_LINE)
        except AddressError as error:
            raise fail(f"metabroker: --community {self.community}: {error}", WRONG_USE) from None
        if address.scheme == "unix" or address.topic is not None:
            forms = "mqtt://host:1883, mqtts://host:8883 or ws://host:80/mqtt"
            raise fail(f"metabroker: --community {self.community}: write {forms}", WRONG_USE)
        if self.cafile is not None:
            _check_authorities(self.cafile, address.tls)
        return address

    def resolve(self, where: Address, durable_expiry: int | None) -> Community:
        """The community broker as the metabroker takes it. durable_expiry: seconds that the session is kept there, None: it is not."""
        from ..metabroker.mqtt.login import Login
        from ..metabroker.shell.community import Community
        from ..metabroker.shell.status import GONE
        from ..mqtt.packets import Will

        secret = _password(self.password or where.password, self.password_file, where)
        username = where.user if where.user is not None or secret is None else self.client_id
        durable = durable_expiry is not None
        version = VERSIONS[self.version]
        login = Login(self.client_id, version, username, secret, known=durable, durable=durable, yields=True, receive_maximum=REQUESTS)
        if durable_expiry is not None:
            login = replace(login, expiry=durable_expiry)
        status = f"metabroker/status/{self.client_id}" if self.status_topic is None else self.status_topic
        if status:
            login = replace(login, will=Will(_topic(status), GONE, retain=True))
        return Community(where, login, os.fspath(self.cafile) if self.cafile else None, status)


app = command_group(GroupWithDefault)


@app.command("run", cls=Command)
@with_option_groups
def metabroker(
    *,
    options: CommunityOptions,
    policy: Annotated[
        Path, typer.Option("--policy", metavar="FILE", help="Who may reach which remotes (docs/metabroker.md).", show_default=False)
    ],
    services: Annotated[Path | None, typer.Option("--services", metavar="FILE", help="Names of services and their addresses.")] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--directory", metavar="URL", help="A directory, or the WSDL of a UDDI registry, for services that are not in the file."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR|URL",
            help="Folder where sessions survive a restart, or postgresql://... where other metabrokers take them over; none do without.",
        ),
    ] = None,
    data_key_file: Annotated[
        Path | None,
        typer.Option("--data-key-file", metavar="FILE", help="Key of the passwords there, in its first line; DIR/passwords.key without."),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", metavar="|".join(LEVELS), help="What goes to stderr.")] = "info",
) -> None:
    """Let the clients of one broker reach other brokers through it.

    It prints one line that starts with 'ready' once it listens to requests.

    \b
      mqmesh metabroker --community mqtt://127.0.0.1:1883 --policy policy.toml --services services.toml

    Ends with SIGTERM or Ctrl-C. Status: 0 stopped; 2 it could not start, one line on stderr says why.
    """
    from ..base.settings import ConfigError
    from ..metabroker.policy import load
    from ..metabroker.shell.session_store import place_of
    from ..metabroker.shell.supervisor import run
    from ..store.base import StoreError

    if log_level not in LEVELS:
        raise fail(f"metabroker: --log-level {log_level}: there are {', '.join(LEVELS)}", WRONG_USE)
    where = options.address()
    try:
        rules = load(policy)
        resolvers = _resolvers(services, directory)
    except ConfigError as error:
        raise fail(f"metabroker: {error}", WRONG_USE) from None
    start_logging(options.client_id, log_level, "metabroker")
    place = place_of(data) if data is not None else None
    community = options.resolve(where, rules.limits.durable if isinstance(place, Path) else None)
    try:
        run(community, rules, resolvers, lambda: print(f"ready {community.address}", flush=True), place, data_key_file)
    except StoreError as error:
        raise fail(f"metabroker: --data {error}", WRONG_USE) from None


@app.command("acl", cls=Command)
def acl(
    broker: Annotated[str, typer.Option("--for", metavar="BROKER", help="mosquitto, emqx, nanomq, hivemq or amqtt.", show_default=False)],
    metabroker: Annotated[str, typer.Option("--metabroker", metavar="NAME", help="User name of the metabroker.")] = "metabroker",
    user: Annotated[list[str] | None, typer.Option("--user", metavar="NAME", help="A client; may be given again. For amqtt.")] = None,
    by_client_id: Annotated[
        bool, typer.Option("--by-client-id", help="Clients by client identifier: where the broker takes it from the user name.")
    ] = False,
) -> None:
    """Print access rules for the metabroker's topics, for a broker that is not ours.

    \b
      mqmesh metabroker acl --for mosquitto > acl

    Status: 0 printed; 2 the command line is wrong.
    """
    from ..metabroker.access_rules import BROKERS, RulesError
    from ..metabroker.protocol.bodies import is_level

    if broker not in BROKERS:
        raise fail(f"metabroker: --for {broker}: there are {', '.join(BROKERS)}", WRONG_USE)
    for name in (metabroker, *(user or ())):
        if not is_level(name) or not name.isprintable():
            raise fail(f"metabroker: {name!r}: a name is one level of a topic, without / + #, and not 'connect'", WRONG_USE)
    try:
        print(BROKERS[broker](metabroker, user or (), by_client_id), end="")
    except RulesError as error:
        raise fail(f"metabroker: --for {broker}: {error}", WRONG_USE) from None


def _resolvers(services: Path | None, directory: str | None) -> Chain:
    """What finds the addresses of services: a file, then a directory. Raises ConfigError."""
    from ..metabroker.shell.resolver import Chain, Directory, Services

    try:
        return Chain(
            *([Services.load(services)] if services is not None else []),
            *([Directory(directory, _account())] if directory is not None else []),
        )
    except ImportError as error:
        raise fail(f"metabroker: --directory needs an extra: {install('uddi')} ({error})", WRONG_USE) from None
    except ValueError as error:
        if directory is None:
            raise
        raise fail(f"metabroker: --directory {error}", WRONG_USE) from None


def _account() -> tuple[str, str] | None:
    """Name and secret of our account in the directory; None: public records are enough."""
    name, secret = os.environ.get("MQMESH_DIRECTORY_ACCOUNT"), os.environ.get("MQMESH_DIRECTORY_SECRET")
    return (name, secret) if name and secret else None


def _password(given: str | None, file: Path | None, where: Address) -> bytes | None:
    """The password at the community broker; None: without one. For a broker on this machine, the one that this user's programs share."""
    from ..broker.auth.metabroker_secret import SecretError, make_shared, read_secret

    try:
        if file is not None:
            if given is not None:
                raise fail("metabroker: --password-file: there is a password already: leave one out", WRONG_USE)
            return read_secret(file)
        if given is None and where.user is None and is_loopback(where.host):
            return make_shared()
    except SecretError as error:
        if file is not None:
            raise fail(f"metabroker: --password-file {error}", WRONG_USE) from None
        log.warning("event=no-shared-password text=%s", error)
    return given.encode() if given is not None else None


def _topic(text: str) -> str:
    """The topic, checked that it can be published to."""
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
