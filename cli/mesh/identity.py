"""`mqmesh identity`: show a data folder's identity, and decide which of two brokers with one identity holds it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..output import WRONG_USE, command_group, fail

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig

identity = command_group(no_args_is_help=True)
Config = Annotated[Path, typer.Option("--config", help="The broker's file.")]
BROKER = Path("broker.toml")


@identity.callback()
def _group() -> None:
    """Decide which of two brokers with one data folder holds its identity.

    \b
      mqmesh identity show --config porto.toml
      mqmesh identity new --config copy.toml
      mqmesh identity claim --config standby.toml
    """


@identity.command()
def show(config: Config = BROKER, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show who the broker of a data folder is, and whether it has stopped because a copy of it is alive.

    Status: 0 it may serve; 1 it has stopped; 2 a file is wrong.
    """
    from ...broker.mesh.identity import read_identity

    _, data = _folder(config)
    try:
        table, standing = read_identity(data)
    except (ValueError, OSError) as error:
        raise fail(f"identity: {error}", WRONG_USE) from None
    if as_json:
        print(json.dumps(table))
    elif not table:
        print(f"{data} has no identity yet")
    else:
        print(f"{table['name']} (number {table['number']}) uuid={table['uuid']} epoch={table['epoch']}")
        if standing.fenced is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(standing.fenced.at))
            print(f"stopped at {at}: the broker with this identity and life {standing.fenced.twin} was alive")
    if standing.fenced is not None:
        raise typer.Exit(1)


@identity.command()
def new(config: Config = BROKER) -> None:
    """Give a copy of a data folder an identity of its own. Give it another number and name in the broker's file first, and stop it.

    Its sessions stay. What it has in custody that the original has not goes out under the new identity.
    """
    from ...broker.mesh.identity import renew

    settings, data = _folder(config)
    try:
        made = renew(data, settings.number)
    except (ValueError, OSError) as error:
        raise fail(f"identity: {error}", WRONG_USE) from None
    print(f"number {made.number} has uuid {made.uuid} now: start the broker")


@identity.command(name="claim")
def claim_(config: Config = BROKER) -> None:
    """Let this broker hold its identity, and every other one with it yield. Stop it first, start it afterwards.

    Another one that cannot be reached yields when it meets this one.
    """
    from ...broker.mesh.identity import claim

    _, data = _folder(config)
    try:
        claim(data, time.time())
    except (ValueError, OSError) as error:
        raise fail(f"identity: {error}", WRONG_USE) from None
    print("this broker holds its identity: start it")


def _folder(config: Path) -> tuple[BrokerConfig, Path]:
    from ...base.settings import ConfigError
    from ...broker.config import load

    try:
        settings = load(config)
    except ConfigError as error:
        raise fail(f"identity: {error}", WRONG_USE) from None
    if settings.data is None:
        raise fail(f"identity: {config}: broker.data is not set: a broker without a data folder is a new one at each start", WRONG_USE)
    return settings, settings.data
