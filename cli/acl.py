"""`mqmesh acl check`: what a broker's rules let a user do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.extras import install
from .output import FAILED, WRONG_USE, command_group, fail

if TYPE_CHECKING:
    from ..broker.auth.settings import AccessSettings

acl = command_group(no_args_is_help=True)


@acl.callback()
def _group() -> None:
    """Look at a broker's rules of access.

    \b
      mqmesh acl check alice meters/alice/power --config porto.toml
    """


@acl.command()
def check(
    user: Annotated[str, typer.Argument(help="The user; '' for a client without a user name.", show_default=False)],
    topic: Annotated[str, typer.Argument(help="A topic. A filter with wildcards is checked only for subscribing.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", help="The broker's file.")] = Path("broker.toml"),
    client: Annotated[str, typer.Option("--client", "-i", help="The client identifier.")] = "client",
    listener: Annotated[str, typer.Option("--listener", help="The name of the listener; '' for one without.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say whether a user is known, may publish and subscribe to a topic, and which rule decides.

    \b
      mqmesh acl check alice meters/alice/power --config porto.toml
      mqmesh acl check alice 'meters/#' --config porto.toml --listener hall

    Status: 0 something is allowed; 1 nothing is, or the user cannot connect; 2 a file or the topic is wrong.
    """
    from ..base.settings import ConfigError
    from ..broker.auth.rules import Rules
    from ..broker.auth.settings import AccessSettings
    from ..broker.config import load
    from ..mqtt.errors import MqttError
    from ..mqtt.topics import check_filter, has_wildcard

    try:
        settings = load(config).access or AccessSettings()
        check_filter(topic)
    except ConfigError as error:
        raise fail(f"acl: {error}", WRONG_USE) from None
    except MqttError as error:
        raise fail(f"acl: {topic}: {getattr(error, 'text', error)}", WRONG_USE) from None
    rules: Rules = settings.rules
    known, why = _login(settings, user, listener)
    name = user if user and settings.asks else None  # the broker ignores a name that is not proved
    verdicts = {"subscribe": rules.subscribe(name, client, topic, listener)}
    if not has_wildcard(topic):
        verdicts = {"publish": rules.publish(name, client, topic, listener), **verdicts}
    if as_json:
        found = {action: {"allowed": one.allowed, "rule": one.rule.number if one.rule else None} for action, one in verdicts.items()}
        print(json.dumps({"user": {"name": user, "known": known, "text": why}, **found}))
    else:
        print(f"{'user':9} {WORDS[known]:7}  {why}")
        for action, one in verdicts.items():
            reason = str(one) if rules else "there are no rules"
            print(f"{action:9} {'allowed' if one.allowed else 'denied':7}  {reason}")
    if known is False or not any(one.allowed for one in verdicts.values()):
        raise typer.Exit(FAILED)


WORDS = {True: "known", False: "refused", None: "unproven"}


def _login(settings: AccessSettings, user: str, listener: str) -> tuple[bool | None, str]:
    """Whether such a client may connect (None: the files do not say), and why. Ends the program if a file cannot be read."""
    if not settings.asks:
        return None, "the file has no users, certificates or tokens: names prove nothing, and rules with %u allow nothing"
    if not user:
        admitted = settings.admits_anonymous(listener)
        may = "may" if admitted else "may not"
        return admitted, f"clients that do not say who they are {may} come in (access.anonymous)"
    others = [word for word, there in (("token", settings.tokens), ("certificate", settings.certificates)) if there]
    if settings.users is None:
        return None, f"whoever shows a {' or '.join(others)} of this name"
    try:
        from ..base.settings import guess
        from ..broker.auth.passwords import load as load_users

        names = load_users(settings.users)
    except ImportError as error:
        raise fail(f"acl: access.users needs more packages: {install('access')} ({error})", WRONG_USE) from None
    except (OSError, ValueError) as error:
        raise fail(f"acl: access.users: {error}", WRONG_USE) from None
    if user in names:
        return True, f"in {settings.users}"
    if others:
        return None, f"not in {settings.users}; a {' or '.join(others)} may have this name"
    return False, f"not in {settings.users}, and cannot come in{guess(user, list(names)) or '; mqmesh passwd adds users'}"
