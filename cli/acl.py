"""`mqmesh acl check`: what a broker's rules let a user do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .output import FAILED, WRONG_USE, fail

acl = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


@acl.callback()
def _group() -> None:
    """Look at a broker's rules of access.

    \b
      mqmesh acl check alice meters/alice/power --config porto.toml
    """


@acl.command()
def check(
    user: Annotated[str, typer.Argument(help="The user; '' for a client that does not say who it is.", show_default=False)],
    topic: Annotated[str, typer.Argument(help="A topic; a filter with wildcards is judged for subscribing alone.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", help="The broker's file.")] = Path("broker.toml"),
    client: Annotated[str, typer.Option("--client", "-i", help="The client identifier.")] = "client",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say whether a user may publish and subscribe to a topic, and which rule decides.

    \b
      mqmesh acl check alice meters/alice/power --config porto.toml
      mqmesh acl check alice 'meters/#' --config porto.toml

    Status: 0 something is allowed; 1 nothing is; 2 the file or the topic is wrong.
    """
    from ..broker.auth.rules import Rules
    from ..broker.config import ConfigError, load
    from ..mqtt.errors import MqttError
    from ..mqtt.topics import check_filter, has_wildcard

    try:
        settings = load(config).access
        check_filter(topic)
    except ConfigError as error:
        raise fail(f"acl: {error}", WRONG_USE) from None
    except MqttError as error:
        raise fail(f"acl: {topic}: {getattr(error, 'text', error)}", WRONG_USE) from None
    rules = settings.rules if settings is not None else Rules()
    name = user or None
    verdicts = {"subscribe": rules.subscribe(name, client, topic)}
    if not has_wildcard(topic):
        verdicts = {"publish": rules.publish(name, client, topic), **verdicts}
    if as_json:
        found = {action: {"allowed": one.allowed, "rule": one.rule.number if one.rule else None} for action, one in verdicts.items()}
        print(json.dumps(found))
    else:
        for action, one in verdicts.items():
            why = str(one) if rules else "there are no rules"
            print(f"{action:9} {'allowed' if one.allowed else 'denied':7}  {why}")
    if not any(one.allowed for one in verdicts.values()):
        raise typer.Exit(FAILED)
