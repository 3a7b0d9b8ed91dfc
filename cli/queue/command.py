"""`mqmesh queue`: how the queues of a broker are, what is in one, what became of a message, and what an operator does about it."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, WRONG_USE, fail

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "$mqmesh/queues"
USE = (
    "give ls, show NAME, peek NAME, read NAME, needed NAME, trace NAME POSITION, redrive NAME [TO], purge NAME, recover NAME, "
    "reveal|withdraw|expire|edit NAME POSITION, priority NAME POSITION 0-9, again NAME POSITION MEMBER, "
    "distribute NAME TO, declare NAME [KEY=VALUE]..., delete NAME, "
    "archive ls FOLDER, archive read FOLDER NAME"
)
SHAPES = {  # word -> keys of what follows it; the last in brackets may be left out
    "ls": (),
    "show": ("name",),
    "peek": ("name",),
    "read": ("name",),
    "needed": ("name",),
    "trace": ("name", "position"),
    "redrive": ("name", "[to]"),
    "purge": ("name",),
    "recover": ("name",),
    "declare": ("name",),
    "delete": ("name",),
    "reveal": ("name", "position"),
    "withdraw": ("name", "position"),
    "expire": ("name", "position"),
    "priority": ("name", "position", "priority"),
    "again": ("name", "position", "member"),
    "edit": ("name", "position"),
    "distribute": ("name", "to"),
}


@with_option_groups
def queue(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ls] | show|peek|read|needed|purge|delete NAME | trace|reveal|withdraw|expire|edit NAME POSITION | declare NAME ...",
            help="What.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    begin: Annotated[
        int, typer.Option("--from", metavar="POSITION", min=0, help="With peek, read, needed, distribute: from this position on.")
    ] = 0,
    last: Annotated[int | None, typer.Option("--last", metavar="POSITION", min=1, help="With distribute: up to this one.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="With read: put since then: 1h, 2026-11-23T10:00:00Z.")
    ] = None,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, max=100, help="With peek and read: so many messages.")] = 20,
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="With edit: the new payload.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="PATH", help="With edit: the file that is the new payload.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="SITE", help="With ls, show, peek, trace: of other sites; several with commas, or '*' for all."),
    ] = None,
    payload: Annotated[bool, typer.Option("--payload", help="With peek --at: with payloads, for payload readers.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With purge, redrive, declare, delete: only say what would be done.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With delete: also while messages wait.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    options: ConnectionOptions,
) -> None:
    """Show queues, what is in them and what became of a message; redrive, purge, declare, delete.

    \b
      mqmesh queue ls -h mqtt://porto.example.com:1883
      mqmesh queue show orders               members and settings
      mqmesh queue peek orders --most 5      the oldest messages; nothing changes
      mqmesh queue trace orders 17           every state of message 17, with its time
      mqmesh queue redrive orders-dead       dead letters go back to where they come from
      mqmesh queue purge orders --dry-run    how many messages would be withdrawn
      mqmesh queue recover billing           what a failure left between two queues is put right
      mqmesh queue withdraw orders 17        nobody gets message 17 any more
      mqmesh queue expire orders 17          it expires for everybody who does not have it
      mqmesh queue priority orders 17 9      it waits with priority 9
      mqmesh queue again orders 17 worker-1  message 17, that worker-1 could not use, is for it again
      mqmesh queue declare orders deliveries=5 dead_letters=orders-dead
      mqmesh queue delete orders --force     with the messages that are in it
      mqmesh queue read orders --since 1h    messages of the last hour, done or not
      mqmesh queue needed orders             who still needs which messages
      mqmesh queue distribute orders again/orders --from 17 --last 20
      mqmesh queue edit orders 17 --text x   another message in the place of message 17
      mqmesh queue archive ls FOLDER         the files of an archive, without a broker
      mqmesh queue archive read FOLDER orders --from 17
      mqmesh queue ls --at '*'               the queues of all sites of the mesh

    Status: 0 done; 1 the broker refuses, cannot be reached, or knows no such queue or message; 2 wrong command line.
    """
    if words[:1] == ["archive"]:
        from .archive import show

        show(words[1:], begin, since, most, as_json)
        return
    request = request_of(words)
    if at is not None:
        if request["do"] not in ("list", "show", "peek", "trace"):
            raise fail(f"queue: --at goes with ls, show, peek and trace: ask a broker of the site itself for {words[0]}", WRONG_USE)
        from .elsewhere import look

        look(request, at, begin, most, payload, as_json, options)
        return
    complete(request, begin, last, since, most, text, file)
    if dry_run:
        if request["do"] not in ("purge", "redrive", "recover", "declare", "delete"):
            text = "--dry-run goes with purge, redrive, recover, declare and delete"
            raise fail(f"queue: {text}: leave it out with {words[0] if words else 'ls'}", WRONG_USE)
        request["dry_run"] = True
    if force:
        if request["do"] != "delete":
            raise fail(f"queue: --force goes with delete: leave it out with {words[0] if words else 'ls'}", WRONG_USE)
        request["force"] = True
    from ..connection import Connection, end_on_sigterm
    from ..mesh.requester import Requester

    end_on_sigterm()
    try:
        with reported_errors("queue"):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                answer = requester.request(request)
    except KeyboardInterrupt:
        return
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"queue: {error}") from None
    if "error" in answer:
        raise fail(f"queue: {answer['error']}", FAILED)
    print(json.dumps(answer) if as_json else _text(request, answer))


def complete(
    request: dict[str, Any], begin: int, last: int | None, since: str | None, most: int, text: str | None, file: Path | None
) -> None:
    """Put the options of a request into it."""
    do = request["do"]
    if do in ("peek", "read", "needed", "distribute"):
        request["from"] = begin
    if do in ("peek", "read"):
        request["most"] = most
    if do == "distribute":
        if last is None:
            raise fail("queue: distribute: give --last, the position of the last message to copy", WRONG_USE)
        request["last"] = last
    if do == "read" and since is not None:
        request["since"] = since_of(since)
    if do == "edit":
        if (text is None) == (file is None):
            raise fail("queue: edit: give --text or --file, the new payload", WRONG_USE)
        try:
            request["payload"] = b64encode(text.encode() if text is not None else Path(str(file)).read_bytes()).decode()
        except OSError as error:
            raise fail(f"queue: {file}: {error.strerror or error}", WRONG_USE) from None


def since_of(text: str) -> str:
    """A duration before now as a time; a time as it is."""
    from ...broker.queues.rows import iso
    from ...broker.queues.settings import seconds_of

    try:
        return str(iso(int(1000 * (time.time() - seconds_of(text)))))
    except ValueError:
        return text


def request_of(words: list[str]) -> dict[str, Any]:
    """The request that the words on the command line stand for."""
    do = words[0] if words else "ls"
    shape = SHAPES.get(do)
    if shape is None:
        raise fail(f"queue: {' '.join(words)}: {USE}", WRONG_USE)
    settings: list[str] = []
    if do == "declare":
        words, settings = words[:2], words[2:]
    needed = [key for key in shape if not key.startswith("[")]
    if not len(needed) <= len(words[1:]) <= len(shape):
        raise fail(f"queue: {' '.join(words)}: {USE}", WRONG_USE)
    request: dict[str, Any] = {"do": "list" if do == "ls" else do}
    for key, value in zip(shape, words[1:], strict=False):
        request[key.strip("[]")] = value
    if do == "declare":
        request["settings"] = _settings(settings)
    for key, right in (("position", "give the position of a message, a whole number"), ("priority", "give a priority from 0 to 9")):
        text = request.get(key, "0")
        if not (text.isascii() and text.isdigit()):
            raise fail(f"queue: {text}: {right}", WRONG_USE)
        if key in request:
            request[key] = int(text)
    return request


def _settings(words: list[str]) -> dict[str, Any]:
    """KEY=VALUE as the keys of a table [queues.NAME]: numbers, true and false, and lists are taken as such, all else is text."""
    found: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not (key and separator):
            raise fail(f'queue: declare: {word}: give KEY=VALUE, as deliveries=5 or subscribers=\'["a", "b"]\'', WRONG_USE)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found[key] = value if isinstance(value, bool | int | float | list) else text
    return found


def _text(request: dict[str, Any], answer: dict[str, Any]) -> str:
    from . import view

    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "list": view.table,
        "show": view.details,
        "peek": view.messages,
        "read": view.contents,
        "needed": view.needed,
        "trace": view.history,
        "priority": view.priority,
    }
    return shown.get(str(request["do"]), view.done)(answer)
