"""`mqmesh interchange post`: post a message as a service, and wait for what comes of it."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..connection_options import ConnectionOptions, OptionError, reported_errors
from ..output import FAILED, TIMED_OUT, WRONG_USE, fail, note

_message = partial(typer.Option, rich_help_panel="Message", show_default=False)


@dataclass(slots=True)
class PostOptions:
    """What is posted. An option counts more than the file."""

    sender: Annotated[str, _message("--as", metavar="SERVICE", help="Who posts; left out by a user of one service.")] = ""
    recipients: Annotated[list[str], _message("--to", metavar="SERVICE", help="A recipient; again for more.")] = field(default_factory=list)
    services: Annotated[list[str], _message("--via", metavar="SERVICE", help="An in-transit service; again for more.")] = field(
        default_factory=list
    )
    body: Annotated[str | None, _message("-m", "--body", help="The body.")] = None
    content_type: Annotated[str, _message("--content-type", help="Its type, such as application/json.")] = ""
    kind: Annotated[str, _message("--kind", help="request (the default), notification, response, error, cancel, acknowledge.")] = ""
    call: Annotated[str, _message("--call", help="The call that it is about.")] = ""
    hop: Annotated[str, _message("--hop", help="The delivery that it is about.")] = ""
    session: Annotated[str, _message("--session", help="The session that a new call belongs to.")] = ""
    handle: Annotated[str, _message("--handle", help="Your own name for it: a second post of it is refused.")] = ""
    topic: Annotated[str, _message("--topic", help="What it is about, for rules and selectors.")] = ""
    code: Annotated[str, _message("--code", help="The code of an error.")] = ""
    reason: Annotated[str, _message("--reason", help="The reason of an error or cancel, in words.")] = ""
    expires: Annotated[
        int | None, _message("--expires", metavar="SECONDS", min=1, help="Time until it expires; 48 hours without this option.")
    ] = None

    def table(self, file: Path | None) -> dict[str, Any]:
        """The message as one object. Raises ConfigError."""
        from .files import read_table

        table = {"kind": "request"} | (read_table(file) if file is not None else {})
        given = {name: value for name in self.__slots__ if name != "expires" and (value := getattr(self, name))}
        if self.body is not None:
            table.pop("base64", None)
        return table | given


def post(
    given: PostOptions,
    options: ConnectionOptions,
    file: Annotated[Path | None, typer.Argument(help="A message as JSON or TOML, as `explain` takes it.", show_default=False)] = None,
    wait: Annotated[
        float | None, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for each end, which is printed.")
    ] = None,
) -> None:
    """Post a message, and print its session and call as JSON; with --wait also what comes of it.

    \b
    A request; its response, or what went wrong; a post from a file:
      mqmesh interchange post --as shop/orders --to bank/credit -m '{"amount": 100}'
      mqmesh interchange post --as shop/orders --to bank/credit -m '{"amount": 100}' --wait 30
      mqmesh interchange post message.json

    \b
    Answers to what `mqmesh interchange poll` has shown:
      mqmesh interchange post --as bank/credit --kind response --hop 0001001f5e8c4d00 -m granted
      mqmesh interchange post --as bank/credit --kind error --hop 0001001f5e8c4d00 --code too-much

    Status: 0 it is taken (with --wait: and answered); 1 it is refused, has failed, or the broker cannot be reached; 2 wrong command line;
    27 --wait was over before all ends were there.
    """
    from ...base.settings import ConfigError
    from .client import Client

    try:
        table = given.table(file)
        with reported_errors("interchange post"):
            if wait is not None:
                _check_wait(table)
                table.setdefault("handle", secrets.token_hex(12))
            raise typer.Exit(_post(Client(options), table, given.expires, wait))
    except ConfigError as error:
        raise fail(f"interchange post: {error}", WRONG_USE) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _check_wait(table: dict[str, Any]) -> None:
    if table["kind"] != "request" or not table.get("sender"):
        raise OptionError("--wait is for requests, and needs --as SERVICE, whose inbox gets the response")


def _post(client: Any, table: dict[str, Any], expires: int | None, wait: float | None) -> int:
    ends = 0 if wait is None else len(table.get("recipients", ()))
    if ends:
        client.take_from(str(table["sender"]), f"handle = '{str(table['handle']).replace(chr(39), chr(39) * 2)}'")
    with client:
        answer = client.post(json.dumps(table, default=str).encode(), expires)
        if answer is None:
            return _failed(client)
        print(json.dumps(answer), flush=True)
        if "code" in answer:
            return _failed(client, f"{answer['code']}: {answer['what']}" + (f"; {answer['right']}" if answer.get("right") else ""))
        status = 0
        for _ in range(ends):
            message = client.next(wait)
            if message is None:
                if client.failure:
                    return _failed(client)
                note(f"interchange post: no end within {wait:g} s: it will come to the inbox of {table['sender']}")
                return TIMED_OUT
            print(json.dumps(message, ensure_ascii=False), flush=True)
            client.acknowledge()
            status = FAILED if message.get("kind") == "error" else status
        return status


def _failed(client: Any, text: str = "") -> int:
    note(f"interchange post: {text or client.failure}")
    return FAILED
