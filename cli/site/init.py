"""`mqmesh init`: a folder for one broker, from options or from answers at the terminal."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ...base.extras import install
from ..output import FAILED, WRONG_USE, fail, note


def init(
    name: Annotated[str | None, typer.Option("--name", help="The broker's name; this machine's without this option.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Host or address at which other machines reach it; without it none does.")
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls/--no-tls", help="Whether other machines use TLS; they do without this option.", show_default=False)
    ] = None,
    user: Annotated[
        list[str], typer.Option("--user", metavar="NAME", help="Who may come in; again for more. Without one: all.", show_default=False)
    ] = [],  # noqa: B006
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the users' passwords from stdin, a line each, in their order.")] = False,
    origin: Annotated[
        list[str],
        typer.Option(
            "--origin", metavar="URL", help="Web pages that may connect, as https://app.example.com; again for more.", show_default=False
        ),
    ] = [],  # noqa: B006
    out: Annotated[Path, typer.Option("--out", help="Folder in which the broker gets one of its own.")] = Path(),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: what no option says is as without it.")] = False,
) -> None:
    """Write a folder for one broker: its file, users, certificates, systemd unit, and the commands that install it.

    \b
    It asks what the options do not say:
      mqmesh init

    \b
    Without questions; then run it here, or copy the folder to its machine and do what its README.md says
      printf 'secret\\n' | mqmesh init --name porto --host porto.example.com --user alice --stdin --yes
      mqmesh broker --config porto/broker.toml

    With TLS an authority lies in tls/ beside the folder: clients get its ca.crt, and mqmesh cert --out tls makes certificates of it.
    A mesh of several brokers begins with a topology: see mqmesh topology split.

    Status: 0 done; 1 files cannot be read or written; 2 wrong command line, or wrong answers.
    """
    from ...base.settings import ConfigError
    from ..authority import AuthorityError
    from .new_broker import Answers, write_broker

    asks = sys.stdin.isatty() and not stdin and not yes
    try:
        answers = Answers(name or (_ask("Name of the broker", machine_name()) if asks else machine_name()))
        answers.host = (
            host if host is not None or not asks else _ask("Host or address at which other machines reach it (empty: none)") or None
        )
        answers.tls = answers.host is not None and _wants_tls(tls, asks)
        answers.origins = origin or (_several("Web page that may connect, as https://app.example.com (empty: no more)") if asks else [])
        names = user or (_several("User who may come in (empty: no more; none: all may)") if asks else [])
        answers.users = {one: _password(one, stdin) for one in names}
        to = write_broker(answers, out)
    except ImportError as error:
        raise fail(f"init: users need more packages: {install('access')} ({error})", WRONG_USE) from None
    except (AuthorityError, OSError) as error:
        raise fail(f"init: {_told(error)}", FAILED) from None
    except (ConfigError, ValueError) as error:
        raise fail(f"init: {error}", WRONG_USE) from None
    print(to)
    if answers.host is not None and not answers.users:
        note("everybody who reaches the broker may publish and subscribe: name users with --user, or add them later with mqmesh passwd")
    note(f"run it here: mqmesh broker --config {to}/broker.toml; as a service: see {to}/README.md")


def machine_name() -> str:
    """This machine's name as far as a broker may have it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0]).strip("-_")[:64] or "mqmesh"


def _ask(question: str, default: str = "") -> str:
    answer: str = typer.prompt(question, default=default, show_default=bool(default), err=True)
    return answer.strip()


def _wants_tls(tls: bool | None, asks: bool) -> bool:
    return tls if tls is not None else not asks or typer.confirm("TLS, with an authority of its own?", default=True, err=True)


def _several(question: str) -> list[str]:
    """Answers until an empty one."""
    return list(iter(lambda: _ask(question), ""))


def _password(user: str, stdin: bool) -> bytes:
    if stdin:
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not sys.stdin.isatty():
        raise ValueError(f"this is no terminal: give the password of {user} on stdin with --stdin")
    return _twice(lambda again: getpass.getpass(f"Password of {user}{' again' * again}: ")).encode()


def _twice(ask: Callable[[bool], str]) -> str:
    while (first := ask(False)) != ask(True):
        note("these were two different passwords")
    return first


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
