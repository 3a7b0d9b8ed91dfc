"""`mqmesh directory serve|account|register|import|find|leases|forget`: run a directory, and use one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...base.address import is_loopback, why_not_listening
from ...base.plural import counted
from ...base.settings import ConfigError
from ...base.standing import StandingFile
from ...directory.client import Client, ClientError
from ..logs import start_logging
from ..output import FAILED, WRONG_USE, command_group, fail, note
from .database import opened_store

if TYPE_CHECKING:
    from ...directory.services import Check

app = command_group(
    no_args_is_help=True,
    help="""A directory of brokers, services and applications: serve one, register there, find.

    \b
      mqmesh directory account plant-a --organisation acme
      mqmesh directory serve
      mqmesh directory import topologies/ring-of-five.toml --account plant-a
      mqmesh directory find
    """,
)
SORTS = ("mesh", "broker", "service", "application")

Database = Annotated[
    str,
    typer.Option(
        "--database", metavar="URL", envvar="MQMESH_DIRECTORY_DATABASE", help="sqlite:///FILE, or postgresql://user:password@host/name."
    ),
]
Url = Annotated[str, typer.Option("--url", metavar="URL", envvar="MQMESH_DIRECTORY_URL", help="Where the directory is.")]
AccountName = Annotated[
    str | None,
    typer.Option("--account", metavar="NAME", envvar="MQMESH_DIRECTORY_ACCOUNT", help="Our account; its secret: $MQMESH_DIRECTORY_SECRET."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")]
DATABASE = "sqlite:///directory.db"
URL = "http://127.0.0.1:8090"
DAY = 86400.0
AT_ONCE = 1000  # records in one request of `import`


@app.command()
def serve(
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any free one.")] = "127.0.0.1:8090",
    database: Database = DATABASE,
    public_url: Annotated[
        str | None, typer.Option("--public-url", metavar="URL", help="Where clients reach it, if not where it listens. The WSDL names it.")
    ] = None,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="PEM file of our certificate: https.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="PEM file of its private key.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Allow an address other than loopback without --cert, because a proxy does TLS.")
    ] = False,
    keep_numbers: Annotated[
        float, typer.Option("--keep-numbers", metavar="DAYS", min=0, help="How long the number of a broker that is gone stays reserved.")
    ] = 365.0,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0, help="Entities a second that an account may write after a burst; 0: no bound.")
    ] = 200.0,
    account_limit: Annotated[int, typer.Option("--account-limit", metavar="N", min=1, help="Entities that an account may own.")] = 10_000,
    standing: Annotated[
        Path | None,
        typer.Option(
            "--standing",
            metavar="FILE",
            help="Who has paid (mqmesh billing standing): overdue accounts register nothing.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a directory; it prints one line that starts with 'ready' once it listens. Several may share one PostgreSQL database."""
    host, port = _address(listen)
    if (cert is None) != (key is None):
        raise fail("--cert and --key belong together", WRONG_USE)
    if cert is None and not behind_proxy and not is_loopback(host):
        raise fail(f"--listen {listen}: secrets would travel in the clear; give --cert and --key, or --behind-proxy", WRONG_USE)
    start_logging(f"{host}:{port}", kind="directory")
    try:
        paid = StandingFile(standing)
    except ConfigError as error:
        raise fail(str(error), WRONG_USE) from None
    with opened_store(database) as store:
        from ...directory.server import serve as run
        from ...directory.storage.rates import Rates

        store.standing, store.account_limit = paid, account_limit
        store.rates = Rates(rate, 2.0 * account_limit)
        try:
            run(
                store,
                host,
                port,
                lambda url: print(f"ready {url}", flush=True),
                public_url=public_url,
                certificate=cert,
                key=key,
                keep=keep_numbers * DAY,
                check=_check(),
            )
        except OSError as error:
            raise fail(f"cannot serve at {listen}: {why_not_listening(error)}") from error


@app.command()
def account(
    name: Annotated[str, typer.Argument(help="The account's name.")],
    organisation: Annotated[str, typer.Option("--organisation", help="Its organisation. Records may be visible only to an organisation.")],
    database: Database = DATABASE,
    from_stdin: Annotated[bool, typer.Option("--from-stdin", help="Read the secret from stdin instead of making one.")] = False,
    interchange: Annotated[
        bool, typer.Option("--interchange", help="The account of brokers with an interchange: it sees the records of all organisations.")
    ] = False,
) -> None:
    """Make an account in the database, or give it a new secret; the secret is printed once and stored as a hash."""
    given = sys.stdin.readline().rstrip("\n") if from_stdin else None
    if given is not None and not 16 <= len(given) <= 1024:
        raise fail("a secret has 16 to 1024 characters", WRONG_USE)
    with opened_store(database) as store:
        from ...directory.storage.accounts import add_account

        try:
            secret = add_account(store, name, organisation, given, interchange=interchange)
        except ValueError as error:
            raise fail(str(error), WRONG_USE) from error
    if given is None:
        print(secret)


@app.command()
def register(
    sort: Annotated[str, typer.Argument(metavar="mesh|broker|service|application", help="What the record is.")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    mesh: Annotated[str, typer.Option("--mesh", help="The mesh that it belongs to. Created if it does not exist.")] = "",
    address: Annotated[list[str] | None, typer.Option("--address", help="Its address; again for more.")] = None,
    number: Annotated[int | None, typer.Option("--number", help="A broker's number in its mesh.")] = None,
    alternative: Annotated[
        list[str] | None,
        typer.Option(
            "--alternative", help="An application that takes this one's messages when it is in fault, the preferred first; again for more."
        ),
    ] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="The broker that holds an application's queue.")] = None,
    clients: Annotated[list[str] | None, typer.Option("--client", help="A client that serves an application; again for more.")] = None,
    message_interval: Annotated[
        float | None, typer.Option("--message-interval", metavar="SECONDS", help="How long one attempt of a message lasts.")
    ] = None,
    fault_interval: Annotated[
        float | None, typer.Option("--fault-interval", metavar="SECONDS", help="Time without any delivery until it is in fault.")
    ] = None,
    defunct_interval: Annotated[
        float | None, typer.Option("--defunct-interval", metavar="SECONDS", help="Time in fault until it is defunct.")
    ] = None,
    consent: Annotated[
        list[str] | None,
        typer.Option("--consent", metavar="NAME|*", help="An application whose messages this one takes as an alternative; again for more."),
    ] = None,
    probe: Annotated[bool | None, typer.Option("--probe", help="An application takes an empty message as a probe.")] = None,
    interval: Annotated[
        float | None, typer.Option("--interval", metavar="SECONDS", help="Time until an application looks up the record again.")
    ] = None,
    permission: Annotated[
        list[str] | None,
        typer.Option("--permission", metavar="NAME|*", help="An organisation or account that gets a service's addresses; again for more."),
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="A description.")] = None,
    visibility: Annotated[str | None, typer.Option("--visibility", metavar="public|organisation|list", help="Who finds it.")] = None,
    visible_to: Annotated[
        list[str] | None,
        typer.Option("--visible-to", metavar="ORGANISATION", help="Who finds it too, with --visibility list; again for more."),
    ] = None,
    publisher: Annotated[
        list[str] | None,
        typer.Option("--publisher", metavar="ORGANISATION", help="Who may put records of their own into a mesh; again for more."),
    ] = None,
    editor: Annotated[
        list[str] | None, typer.Option("--editor", metavar="ORGANISATION", help="Who may change and delete it, too; again for more.")
    ] = None,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Register a record, or replace it."""
    if sort not in SORTS or (sort != "mesh") != bool(mesh):
        raise fail(f"{sort}: write mesh NAME, or {', '.join(SORTS[1:])} NAME --mesh MESH", WRONG_USE)
    lists = {"addresses": address, "alternatives": alternative, "permissions": permission, "clients": clients, "consents": consent}
    one = {"number": number, "interval": interval, "description": description, "visibility": visibility, "broker": broker}
    lists |= {"visible_to": visible_to, "publishers": publisher, "editors": editor}
    one |= {"message_interval": message_interval, "fault_interval": fault_interval, "defunct_interval": defunct_interval, "probe": probe}
    with _logged_in(url, account) as client:
        if mesh:
            _ensure_mesh(client, mesh)
        client.put(sort, name, mesh, **{key: value for key, value in (lists | one).items() if value is not None})
    note(f"registered {sort} {name}")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A topology file.", show_default=False)],
    visibility: Annotated[str, typer.Option("--visibility", metavar="public|organisation", help="Who finds it.")] = "public",
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Register the mesh of a topology file and its brokers, all or none. Existing records are replaced, others stay."""
    from ...mesh.topology.topology import load

    try:
        topology = load(file)
    except ConfigError as error:
        raise fail(str(error), WRONG_USE) from error
    mesh = topology.mesh.name
    records: list[dict[str, Any]] = [{"sort": "mesh", "name": mesh, "visibility": visibility}]
    for broker in topology.brokers:
        place = {"sort": "broker", "mesh": mesh, "name": broker.name}
        records.append({**place, "number": broker.number, "addresses": list(broker.listen), "visibility": visibility})
    with _logged_in(url, account) as client:
        for start in range(0, len(records), AT_ONCE):
            client.put_all(records[start : start + AT_ONCE])
    note(f"registered mesh {topology.mesh.name} and {counted(len(topology.brokers), 'broker')}")


@app.command()
def leases(
    mesh: Annotated[str, typer.Option("--mesh", help="Our mesh.")],
    as_json: AsJson = False,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """List the numbers of our mesh: those that registered brokers hold, and those reserved for brokers that are gone."""
    with _logged_in(url, account) as client:
        found = client.leases(mesh)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table("number", "name", "lease ends in", "kept for", "holder", box=None)
    for one in found:
        ends = f"{one['expires_in']:.0f} s" if one["expires_in"] else "is over"
        cells = [str(one["number"]), one["name"], ends, f"{one['kept_for'] / DAY:.1f} days", one["holder"]]
        table.add_row(*map(escape, cells))
    Console(soft_wrap=True).print(table)


@app.command()
def forget(
    number: Annotated[int, typer.Argument(min=0, max=65535, help="A number reserved for a broker that does not return.")],
    mesh: Annotated[str, typer.Option("--mesh", help="Our mesh.")],
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Free a number. Messages that brokers hold for its former owner are returned once another broker has the number."""
    with _logged_in(url, account) as client:
        client.forget(mesh, number)
    note(f"number {number} of {mesh} is free")


@app.command()
def find(
    name: Annotated[str | None, typer.Argument(help="A name; * stands for any characters.")] = None,
    sort: Annotated[str, typer.Option("--sort", metavar="mesh|broker|service|application", help="What to look for.")] = "broker",
    mesh: Annotated[str | None, typer.Option("--mesh", help="In this mesh only.")] = None,
    as_json: AsJson = False,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Find records; the exit status is 1 when there is none. With --account also those visible only to our organisation."""
    with _client(url) if account is None else _logged_in(url, account) as client:
        found = client.find(sort, mesh, name)
    if as_json:
        print(json.dumps(found, indent=2))
    elif found:
        Console(soft_wrap=True).print(_table(sort, found))
    if not found:
        raise fail(f"no {sort} found") if not as_json else typer.Exit(FAILED)


def _table(sort: str, found: list[dict[str, Any]]) -> Table:
    given = {"sort", "key", "modified", "owner"}
    columns = [key for key in found[0] if key not in given and any(record[key] not in ("", [], None, False) for record in found)]
    table = Table(*columns, box=None)
    for record in found:
        cells = [
            ", ".join(map(str, cell)) if isinstance(cell, list) else "" if cell is None else str(cell)
            for cell in (record[key] for key in columns)
        ]
        table.add_row(*map(escape, cells))
    return table


def _ensure_mesh(client: Client, mesh: str) -> None:
    try:
        client.get("mesh", mesh)
    except ClientError as error:
        if error.status != 404:
            raise
        client.put("mesh", mesh)


@contextmanager
def _client(url: str) -> Iterator[Client]:
    try:
        yield Client(url)
    except ValueError as error:
        raise fail(f"--url {error}", WRONG_USE) from error
    except ClientError as error:
        raise fail(f"{error.code}: {error}" if error.code else str(error)) from error


@contextmanager
def _logged_in(url: str, account: str | None) -> Iterator[Client]:
    secret = os.environ.get("MQMESH_DIRECTORY_SECRET")
    if not account or not secret:
        raise fail("publishing takes --account NAME and its secret in MQMESH_DIRECTORY_SECRET", WRONG_USE)
    with _client(url) as client:
        client.log_in(account, secret)
        try:
            yield client
        finally:
            client.log_out()


def _check() -> Check | None:
    """What looks at the records of the interchange's services, where it is installed; else interchanges do so alone."""
    try:
        from ...interchange.registry.file import check_profile
    except ImportError:
        return None
    return check_profile


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise fail(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:8090 or [::1]:8090", WRONG_USE)
    return host.strip("[]"), int(port)
