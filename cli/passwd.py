"""`mqmesh passwd`: users of a broker and their passwords."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import FAILED, WRONG_USE, fail, note


def passwd(
    file: Annotated[Path, typer.Argument(help="The file of users. Created if it does not exist.", show_default=False)],
    user: Annotated[str, typer.Argument(help="Whose password.", show_default=False)],
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Remove the user.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of stdin instead of asking.")] = False,
) -> None:
    """Give a user a password, or remove the user.

    \b
      mqmesh passwd users alice
      pass mqtt/alice | mqmesh passwd users alice --stdin
      mqmesh passwd users alice --delete

    The broker's file names it: users = "users" in the table access. Hashes are argon2id. A running broker reads the file again on SIGHUP.

    Status: 0 done; 1 the file cannot be written, or there is no such user to remove; 2 wrong name or password.
    """
    from ..broker.auth import passwords

    try:
        passwords.check_name(user)
        password = None if delete else _password(stdin)
        known = passwords.change(file, user, password)
    except passwords.PasswordError as error:
        raise fail(f"passwd: {error}", WRONG_USE) from None
    except OSError as error:
        raise fail(f"passwd: {file}: {error.strerror or error}", FAILED) from None
    if delete and not known:
        raise fail(f"passwd: {file} has no user {user!r}", FAILED)
    note(f"{user}: {'removed' if delete else 'new password' if known else 'added'}")


def _password(stdin: bool) -> bytes:
    from ..broker.auth.passwords import PasswordError

    if stdin:
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    if not sys.stdin.isatty():
        raise PasswordError("this is no terminal: give the password on stdin with --stdin")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise PasswordError("these were two different passwords")
    return first.encode()
