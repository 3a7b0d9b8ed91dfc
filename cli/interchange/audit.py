"""`mqmesh interchange audit|erase`: are the logs of a home and of a directory whole? Take a service out of a home's tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ...base.plural import counted
from ..directory.database import opened_store
from ..output import WRONG_USE, command_group, fail, note

app = command_group(no_args_is_help=True, help="Check the audit of the interchange: what became of hops, and who has changed services.")
FILE = "correlation.db"
Data = Annotated[Path, typer.Option("--data", metavar="FOLDER", help="The data folder of a broker.", show_default=False)]


@app.command()
def verify(
    data: Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The data folder of a broker.", show_default=False)] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="URL", help="The database of a directory.", envvar="MQMESH_DIRECTORY_DATABASE")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="NUMBER:DIGEST", help="What an earlier check of the folder printed."),
    ] = None,
) -> None:
    """Compare each row of an audit with its hash. Status 1: one was changed, or taken out.

    \b
      mqmesh interchange audit verify --data data
      mqmesh interchange audit verify --database sqlite:///directory.db
    """
    if (data is None) == (database is None):
        raise fail("interchange: give --data, the folder of a broker, or --database, that of a directory", WRONG_USE)
    if data is not None:
        _verify_home(data, head)
    else:
        _verify_directory(str(database))


def erase(
    service: Annotated[str, typer.Argument(metavar="ORGANISATION/NAME", help="A service.")],
    data: Data,
) -> None:
    """Take a service's name, handles and identifiers out of what a home tells of calls. Run it at each home; the broker may run."""
    from ...interchange.correlation import tables

    with _opened(data) as connection:
        calls = tables.erase(connection, service, int(time.time() * 1000))
    note(f"erased {service} in {counted(calls, 'call')}")


def _verify_home(data: Path, head: str | None) -> None:
    from ...interchange.correlation import audit

    with _opened(data) as connection:
        found = audit.verify(connection)
        if head is not None:
            number, _, digest = head.partition(":")
            if not number.isdecimal():
                raise fail("interchange: --head: give NUMBER:DIGEST", WRONG_USE)
            if audit.digest_at(connection, int(number)) != digest:
                raise fail(f"interchange: {data}: row {number} is not the one of --head")
    if found.broken is not None:
        raise fail(f"interchange: {data}: row {found.broken} is not as it was written, or is missing")
    typer.echo(f"{counted(found.rows, 'row')} whole; head {found.head[0]}:{found.head[1]}")


def _verify_directory(database: str) -> None:
    with opened_store(database) as store, store.reading() as records:
        from ...directory.services import verify_audit

        rows, broken = verify_audit(records)
    if broken is not None:
        raise fail(f"interchange: {database.rpartition('@')[2]}: row {broken} is not as it was written, or is missing")
    typer.echo(f"{counted(rows, 'row')} whole")


@contextmanager
def _opened(data: Path) -> Iterator[sqlite3.Connection]:
    from ...interchange.correlation import tables

    if not (data / FILE).is_file():
        raise fail(f"interchange: {data}: there is no {FILE}: give the data folder of a broker with an interchange", WRONG_USE)
    try:
        connection = tables.connect(data / FILE)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise fail(f"interchange: {data / FILE}: {error}") from error
