"""`mqmesh billing`: check tariffs, list invoices, note payments, and say who has paid. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ...base.process.files import READABLE, replace_file
from ...base.settings import ConfigError
from ...pipeline.billing.ledger import Payment, open_amounts, standings
from ...pipeline.billing.store import Invoices
from ...pipeline.billing.tariff import read_tariffs
from ...pipeline.errors import PipelineError
from ...pipeline.run import place_of
from ...pipeline.tables.tables import Tables
from ..output import FAILED, WRONG_USE, command_group, fail, note
from ..tables import titled_table

app = command_group(
    no_args_is_help=True,
    help="""Check tariffs, list invoices, note payments, and say who has paid.

    \b
      mqmesh billing tariffs tariffs.toml
      mqmesh pipeline run invoices --journal data/journal --out data/tables --set usage.tariffs=tariffs.toml
      mqmesh billing usage --out data/tables --service plant
      mqmesh billing invoices --out data/tables
      mqmesh billing paid INV-2026-11-acme 30.75 --out data/tables
      mqmesh billing standing --out data/tables --write standing.json
    """,
)

AsJson = Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")]
Out = Annotated[str, typer.Option("--out", metavar="URL", help="The folder or URL of the pipeline's output.", show_default=False)]
Day = Annotated[
    str | None, typer.Option("--on", metavar="DATE", help="The day, as 2026-12-01; today (UTC) without this option.", show_default=False)
]


@contextmanager
def _mistakes() -> Iterator[None]:
    """Turn a mistake of the user into one line and status 2, what the disk refuses into status 1."""
    try:
        yield
    except (ConfigError, PipelineError) as error:
        raise fail(str(error), WRONG_USE) from None
    except OSError as error:
        raise fail(f"{error.filename or 'billing'}: {error.strerror or error}", FAILED) from None


def _day(text: str | None) -> date:
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise fail(f"--on {text}: give a day, as 2026-12-01", WRONG_USE) from None


def _table(title: str, headings: tuple[str, ...], rows: list[tuple[Any, ...]], right: tuple[str, ...] = ()) -> None:
    table = titled_table(title, *headings, right=right)
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False).print(table)


@app.command()
def tariffs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of tariffs.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Check a file of tariffs, and show it. Status: 0 it is good; 2 it has a mistake, which is named."""
    with _mistakes():
        found = read_tariffs(file)
    rows = [
        (
            tariff.name,
            ", ".join(tariff.accounts),
            ", ".join(price.services),
            price.per,
            tier.upto or "",
            f"{tier.price:f}",
            role.value,
            f"{share:f}",
        )
        for tariff in found.tariffs
        for price in tariff.prices
        for tier in price.tiers
        for role, share in price.shares
    ]
    headings = ("tariff", "accounts", "services", "per", "up to", "price", "pays", "share")
    if as_json:
        fees = {one.name: {"flat": f"{one.flat:f}", "minimum": f"{one.minimum:f}"} for one in found.tariffs}
        print(
            json.dumps(
                {"currency": found.currency, "tariffs": fees, "prices": [dict(zip(headings, row, strict=True)) for row in rows]}, indent=1
            )
        )
        return
    _table(f"{file}, in {found.currency}", headings, rows, ("up to", "price", "share"))


@app.command()
def usage(
    out: Out,
    account: Annotated[str | None, typer.Option("--account", help="Only this account.", show_default=False)] = None,
    service: Annotated[str | None, typer.Option("--service", help="Only this service.", show_default=False)] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="DATE", help="From this day on (UTC).", show_default=False)] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DATE", help="Before this day.", show_default=False)] = None,
    by_day: Annotated[bool, typer.Option("--by-day", help="A line for each day.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report the usage of an account or service: messages and bytes by role, with what services of the interchange have sent each other.

    The jobs `usage` and `exchanges` of mqmesh pipeline run make the tables.
    """
    wanted = {"account": account, "service": service}
    days = (since or "", until or "9999")
    keys = ("date", "account", "service", "role") if by_day else ("account", "service", "role")
    sums: dict[tuple[str, ...], list[int]] = {}
    with _mistakes():
        tables = Tables(out)
        exchanged = tables.arrow("service_usage").to_pylist() if tables.version("service_usage") is not None else []
        for row in [*tables.arrow("usage").to_pylist(), *exchanged]:
            if days[0] <= row["date"] < days[1] and all(value is None or row[key] == value for key, value in wanted.items()):
                found = sums.setdefault(tuple(row[key] for key in keys), [0, 0])
                found[0] += row["messages"]
                found[1] += row["bytes"]
    rows = [(*key, *values) for key, values in sorted(sums.items())]
    headings = (*keys, "messages", "bytes")
    if as_json:
        print(json.dumps([dict(zip(headings, row, strict=True)) for row in rows], indent=1))
        return
    _table("usage", headings, [(*row[:-2], f"{row[-2]:,}", f"{row[-1]:,}") for row in rows], ("messages", "bytes"))


@app.command()
def invoices(out: Out, on: Day = None, as_json: AsJson = False) -> None:
    """List invoices: what is asked, what of it is open, when it is due."""
    day = _day(on)
    with _mistakes():
        store = Invoices(place_of(out))
        known = store.all()
        left = open_amounts(known, store.payments(), day)
    rows = [(one.number, one.account, one.due, f"{one.total:f}", f"{left[one.number]:f}", one.currency) for one in known]
    headings = ("invoice", "account", "due", "total", "open", "currency")
    if as_json:
        print(json.dumps([dict(zip(headings, map(str, row), strict=True)) for row in rows], indent=1))
        return
    _table(f"invoices on {day}", headings, rows, ("total", "open"))


@app.command()
def paid(
    invoice: Annotated[str, typer.Argument(help="Number of an invoice.", show_default=False)],
    amount: Annotated[str, typer.Argument(help="What was paid, as 30.75; negative where money went back.", show_default=False)],
    out: Out,
    on: Day = None,
) -> None:
    """Note a payment. It counts for this invoice only."""
    try:
        value = Decimal(amount)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite():
        raise fail(f"AMOUNT {amount}: give an amount, as 30.75", WRONG_USE)
    with _mistakes():
        store = Invoices(place_of(out))
        store.pay(Payment(invoice, _day(on), value))
        left = open_amounts(store.all(), store.payments(), date.max)[invoice]
    note(f"{invoice}: {left:f} is open" if left > 0 else f"{invoice}: is paid")


@app.command()
def standing(
    out: Out,
    on: Day = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the file that brokers read (access.standing).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how each account stands: paid, open, or overdue. Brokers refuse the messages of overdue accounts."""
    with _mistakes():
        store = Invoices(place_of(out))
        made = standings(store.all(), store.payments(), _day(on))
        if write is not None:
            replace_file(write, made.dumped(), READABLE)  # brokers may look at it at any moment
    if as_json:
        print(made.dumped(), end="")
        return
    rows = [(account, one.standing, one.since, one.owed, ", ".join(one.invoices)) for account, one in sorted(made.accounts.items())]
    _table(f"accounts on {made.as_of}", ("account", "standing", "since", "owed", "invoices"), rows)
