"""`mqmesh interchange ls|show|register|remove|rules|history`: the services that a directory has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...base.plural import counted
from ...base.settings import ConfigError
from ...directory.client import Client, ClientError
from ..output import FAILED, WRONG_USE, fail, note

URL = "http://127.0.0.1:8090"
Url = Annotated[str, typer.Option("--url", metavar="URL", envvar="MQMESH_DIRECTORY_URL", help="Where the directory is.")]
AccountName = Annotated[
    str | None,
    typer.Option("--account", metavar="NAME", envvar="MQMESH_DIRECTORY_ACCOUNT", help="Our account; its secret: $MQMESH_DIRECTORY_SECRET."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
ServiceName = Annotated[str, typer.Argument(metavar="ORGANISATION/NAME", help="A service.")]


def ls(
    pattern: Annotated[str, typer.Argument(metavar="[ORGANISATION/]NAME", help="* stands for any characters in a name.")] = "*",
    as_json: AsJson = False,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """List the services that the directory shows us. Status 1: there is none."""
    organisation, _, name = pattern.rpartition("/")
    with _client(url, account) as client:
        found = client.services(organisation if organisation not in ("", "*") else None, None if name == "*" else name)
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif found:
        table = Table("service", "delivery", "visibility", "revision", "state", "description", box=None)
        for one in found:
            profile = one["profile"]
            state = "suspended" if profile.get("suspended") else ""
            said = [profile.get("delivery", "mqtt"), profile.get("visibility", "public"), str(one["revision"]), state]
            table.add_row(*map(escape, [one["service"], *said, profile.get("description", "")]))
        Console(soft_wrap=True).print(table)
    if not found:
        raise fail("no service found") if not as_json else typer.Exit(FAILED)


def show(name: ServiceName, url: Url = URL, account: AccountName = None) -> None:
    """Show what the directory says of a service, as JSON: all of it to accounts of its organisation."""
    with _client(url, account) as client:
        typer.echo(json.dumps(client.service(name), indent=2, ensure_ascii=False))


def register(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of services (docs/interchange.md).", show_default=False)],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This service of the file; again for more.")] = None,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Register the services of a file for our organisation, or write them over. Interchanges know of it within a second."""
    from ...interchange.registry.file import tables

    try:
        found = tables(file)
    except ConfigError as error:
        raise fail(f"interchange: {error}", WRONG_USE) from None
    missing = sorted(set(only or ()) - found.keys())
    if missing:
        raise fail(f"interchange: {file} has no service {missing[0]}", WRONG_USE)
    wanted = {name: table for name, table in found.items() if not only or name in only}
    with _client(url, account, must=True) as client:
        for name, table in wanted.items():
            client.put_service(name, json.loads(json.dumps(table, default=str)))
    note(f"registered {counted(len(wanted), 'service')}")


def remove(name: ServiceName, url: Url = URL, account: AccountName = None) -> None:
    """Delete a service of ours from the directory."""
    with _client(url, account, must=True) as client:
        client.delete_service(name)
    note(f"deleted {name}")


def rules(
    name: ServiceName,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="TOML or JSON with `rules`: write them over.")] = None,
    url: Url = URL,
    account: AccountName = None,
) -> None:
    """Show the rules of a service of ours as JSON; with a file, write them anew and leave all else as it is."""
    with _client(url, account, must=True) as client:
        found = client.service(name)
        if file is None:
            said = {"revision": found["revision"], "rules": found["profile"].get("rules", [])}
            typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
            return
        profile = {**found["profile"], "rules": _rules_of(file)}
        revision = client.put_service(name, profile, found["revision"])["revision"]
    note(f"{name} has revision {revision}")


def history(name: ServiceName, url: Url = URL, account: AccountName = None) -> None:
    """Show every revision of a service of ours: when it was written, and by whom."""
    with _client(url, account, must=True) as client:
        found = client.service_history(name)
    table = Table("revision", "at", "account", "", box=None)
    for one in found:
        at = datetime.fromtimestamp(one["at"], UTC).isoformat(" ", "seconds")
        table.add_row(*map(escape, [str(one["revision"]), at, one["account"], "deleted" if one["profile"] is None else ""]))
    Console(soft_wrap=True).print(table)


def _rules_of(file: Path) -> Any:
    from ...base.settings import read
    from ...interchange.refusals import Refusal
    from ...interchange.rules.rules import read_script

    try:
        if file.suffix == ".toml":
            found: Any = read(file).table.get("rules")
        else:
            found = json.loads(file.read_text(encoding="utf-8-sig"))
            found = found.get("rules") if isinstance(found, dict) else found
        read_script(found)
    except (ConfigError, Refusal) as error:
        raise fail(f"interchange: {error}", WRONG_USE) from None
    except (OSError, ValueError) as error:
        raise fail(f"interchange: {file} cannot be read: {error}", WRONG_USE) from None
    return json.loads(json.dumps(found, default=str))


@contextmanager
def _client(url: str, account: str | None, must: bool = False) -> Iterator[Client]:
    secret = os.environ.get("MQMESH_DIRECTORY_SECRET")
    if must and not (account and secret):
        raise fail("this takes --account NAME and its secret in MQMESH_DIRECTORY_SECRET", WRONG_USE)
    try:
        client = Client(url, account=(account, secret) if account and secret else None)
        yield client
        client.log_out()
    except ValueError as error:
        raise fail(f"--url {error}", WRONG_USE) from error
    except ClientError as error:
        raise fail(f"{error.code}: {error}" if error.code else str(error)) from error
