"""`mqmesh store`: look through a broker's store, or keep what is whole of one that the disk has damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..output import FAILED, WRONG_USE, command_group, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...store.salvage import Report

SHOWN = 50  # lines of damage

app = command_group(no_args_is_help=True)

Address = Annotated[str | None, typer.Argument(help="sqlite:///path, lmdb:///path or postgresql://...", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="The broker's file, instead of an address.", show_default=False)]


@app.callback()
def _group() -> None:
    """Look through a broker's store, or save the intact rows of a damaged one.

    \b
      mqmesh store check --config porto.toml
    """


@app.command()
def check(address: Address = None, config: Config = None) -> None:
    """Read every row and compare the counts; nothing is changed, and a broker may be running.

    \b
      mqmesh store check --config porto.toml
      mqmesh store check sqlite:///var/lib/porto/store.db

    Status: 0 all is whole; 1 something is damaged, or the store cannot be opened; 2 the command line or a file is wrong.
    """
    from ...store.salvage import check as look

    _show(_done("check", look, _address("check", address, config)), "")


@app.command()
def salvage(address: Address = None, config: Config = None) -> None:
    """Set a damaged store aside and put a new one with its intact rows in its place. Stop the broker before.

    \b
      mqmesh store salvage --config porto.toml

    One that is interrupted goes on when it is called again. Status: 0 all was whole; 1 something is lost, or it failed; 2 wrong use.
    """
    from ...store.salvage import salvage as save

    report = _done("salvage", save, _address("salvage", address, config))
    _show(report, f"; the damaged store is in {report.aside}")


def _address(what: str, address: str | None, config: Path | None) -> str:
    from ...base.settings import ConfigError
    from ...broker.config import load

    if (address is None) == (config is None):
        raise fail(f"store {what}: give either an address or --config", WRONG_USE)
    if config is None:
        assert address is not None
        return address
    try:
        found = load(config).store_address
    except ConfigError as error:
        raise fail(f"store {what}: {error}", WRONG_USE) from None
    if found is None:
        raise fail(f"store {what}: {config}: this broker keeps nothing on disk", WRONG_USE)
    return found


def _done(what: str, action: Callable[[str], Report], address: str) -> Report:
    from ...store import StoreError

    try:
        return action(address)
    except StoreError as error:
        raise fail(f"store {what}: {error}") from None


def _show(report: Report, end: str) -> None:
    for problem in report.problems[:SHOWN]:
        print(f"damaged: {problem}")
    if len(report.problems) > SHOWN:
        print(f"damaged: {len(report.problems) - SHOWN:,} more")
    runs, deliveries, values = report.whole
    print(f"whole: {runs:,} runs, {deliveries:,} deliveries, {values:,} values{end}")
    if report.problems:
        raise typer.Exit(FAILED)
