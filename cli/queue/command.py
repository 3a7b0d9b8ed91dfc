"""`mqmesh queue`: how the queues of a broker are, what is in one, what became of a message, and what an operator does about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, WRONG_USE, fail
from .options import QueueOptions, check, complete

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "$mqmesh/queues"
USE = (
    "give ls, show NAME, peek NAME, read NAME, needed NAME, trace NAME POSITION, redrive NAME [TO], purge NAME, recover NAME, "
    "reveal|withdraw|expire|edit NAME POSITION, priority NAME POSITION 0-9, again NAME POSITION MEMBER, "
    "distribute NAME TO, pause|resume NAME, declare NAME [KEY=VALUE]..., delete NAME, move NAME --store STORE, "
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
    "pause": ("name",),
    "resume": ("name",),
    "declare": ("name",),
    "delete": ("name",),
    "move": ("name",),
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
            metavar="DO [NAME] [MORE]",
            help="ls, or what to do with which queue, as above.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    chosen: QueueOptions,
    options: ConnectionOptions,
) -> None:
    """Show queues, what is in them and what became of a message; redrive, purge, pause, declare, delete; here or at other sites.

    \b
    To look
      mqmesh queue ls -h mqtt://porto.example.com:1883
      mqmesh queue show orders                members and settings
      mqmesh queue peek orders --most 5       the oldest messages; nothing changes
      mqmesh queue trace orders 17            each state of a message, with times
      mqmesh queue read orders --since 1h     the last hour, done or not
      mqmesh queue needed orders              who still needs which messages
      mqmesh queue ls --at '*'                queues of all sites of the mesh
    One message
      mqmesh queue reveal orders 17           it may be taken from now on
      mqmesh queue withdraw orders 17         nobody gets it any more
      mqmesh queue expire orders 17           only a member that has it may finish it
      mqmesh queue priority orders 17 9       it waits with priority 9
      mqmesh queue edit orders 17 --text x    another one in its place
      mqmesh queue again orders 17 worker-1   worker-1 could not use it: again
    Many messages
      mqmesh queue redrive orders-dead        dead letters go back
      mqmesh queue purge orders --dry-run     how many would be withdrawn
      mqmesh queue recover billing            finish what a failure left
      mqmesh queue distribute orders again/orders --from 17 --last 20
      mqmesh queue redrive orders-dead --at lyon   at another site
    Queues
      mqmesh queue pause orders               members get no more; then resume
      mqmesh queue declare orders deliveries=5 dead_letters=orders-dead
      mqmesh queue delete orders --force      with the messages in it
      mqmesh queue move orders --store lmdb   while it is worked
    The archive, without a broker
      mqmesh queue archive ls FOLDER
      mqmesh queue archive read FOLDER orders --from 17

    Status: 0 done; 1 the broker refuses, cannot be reached, or knows no such queue or message; 2 wrong command line.
    """
    if words[:1] == ["archive"]:
        from .archive import show

        check("archive", chosen)
        show(words[1:], chosen)
        return
    request = request_of(words)
    check(words[0] if words else "ls", chosen)
    if chosen.at is not None:
        from .elsewhere import act, looks

        if not looks(request, chosen, options):
            complete(request, chosen)
            act(request, chosen, options)
        return
    complete(request, chosen)
    answer = _answer(request, options)
    if "error" in answer:
        raise fail(f"queue: {answer['error']}", FAILED)
    print(json.dumps(answer) if chosen.as_json else _text(request, answer))


def _answer(request: dict[str, Any], options: ConnectionOptions) -> dict[str, Any]:
    """What the broker says to a request. Ctrl-C and SIGTERM end the command."""
    from ..connection import Connection, end_on_sigterm
    from ..mesh.requester import Requester

    end_on_sigterm()
    try:
        with reported_errors("queue"):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                return requester.request(request)
    except KeyboardInterrupt:
        raise typer.Exit from None
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"queue: {error}") from None


def request_of(words: list[str]) -> dict[str, Any]:
    """The request that the words on the command line stand for."""
    do = words[0] if words else "ls"
    shape = SHAPES.get(do)
    if shape is None:
        from ...base.settings import guess

        raise fail(f"queue: {' '.join(words)}{guess(do, (*SHAPES, 'archive')) or f': {USE}'}", WRONG_USE)
    settings: list[str] = []
    if do == "declare":
        words, settings = words[:2], words[2:]
    needed = [key for key in shape if not key.startswith("[")]
    if not len(needed) <= len(words[1:]) <= len(shape):
        raise fail(f"queue: {' '.join(words)}: {USE}", WRONG_USE)
    request: dict[str, Any] = {"do": {"ls": "list", "move": "store"}.get(do, do)}
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
