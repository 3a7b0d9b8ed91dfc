"""`mqmesh recipients`: how the recipients of a mesh are, where a message would go, and what an operator does with one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..connection_options import ConnectionOptions, reported_errors
from ..option_groups import with_option_groups
from ..output import FAILED, WRONG_USE, fail

if TYPE_CHECKING:
    from ..mesh.requester import Requester

TOPIC = "$mqmesh/recipients"
WORDS = ("show", "explain", "hold", "resume", "defunct", "move")
USE = "give nothing, NAME, or one of show|explain|hold|resume|defunct NAME, move NAME [TO]"


@with_option_groups
def recipients(
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] | explain|hold|resume|defunct NAME | move NAME [TO]",
            help="A recipient, or what to do with one, as above.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show each change until Ctrl-C or SIGTERM.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="With --watch: how often to ask.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; with --watch one a line.")] = False,
    options: ConnectionOptions,
) -> None:
    """Show the recipients that brokers watch, and hold, give up or move one.

    \b
      mqmesh recipients -h mqtt://porto.example.com:1883 --watch
      mqmesh recipients orders                   with its history
      mqmesh recipients explain orders           where a message for it would go now, and why
      mqmesh recipients hold orders              keep its messages, deliver and fail over nothing
      mqmesh recipients resume orders            deliver again
      mqmesh recipients defunct orders           it is dead: fail everything over
      mqmesh recipients move orders orders-lyon  what waits for it goes to another one

    hold, resume, defunct and move are for operators, as `mqmesh sessions`. An application with such a name: mqmesh recipients show hold.

    Status: 0 done; 1 the broker refuses, cannot be reached, or knows no such recipient; 2 wrong command line.
    """
    request = request_of(words)
    if watch and request["do"] not in ("list", "show", "explain"):
        raise fail(f"recipients: --watch looks on: leave it out with {request['do']}", WRONG_USE)
    from ..connection import Connection, end_on_sigterm
    from ..mesh.requester import Requester

    end_on_sigterm()
    try:
        with reported_errors("recipients"):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                if watch:
                    _watch(requester, request, interval, as_json)
                    return
                answer = requester.request(request)
    except KeyboardInterrupt:
        return
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"recipients: {error}") from None
    if "error" in answer:
        raise fail(f"recipients: {answer['error']}", FAILED)
    print(_text(request, answer, as_json))


def request_of(words: list[str]) -> dict[str, object]:
    """The request that the words on the command line stand for."""
    if not words:
        return {"do": "list"}
    if len(words) == 1 and words[0] not in WORDS:
        return {"do": "show", "name": words[0]}
    do, names = words[0], words[1:]
    if do not in WORDS or not 1 <= len(names) <= (2 if do == "move" else 1):
        raise fail(f"recipients: {' '.join(words)}: {USE}", WRONG_USE)
    return {"do": do, "name": names[0], **({"to": names[1]} if len(names) == 2 else {})}


def _text(request: dict[str, object], answer: dict[str, Any], as_json: bool) -> str:
    from . import view

    if as_json:
        return json.dumps(answer)
    if request["do"] == "explain":
        return view.explained(answer)
    if request["do"] == "list":
        return "\n".join([view.table(answer["recipients"]), *view.others(answer.get("others"))])
    return "\n\n".join(map(view.details, answer["recipients"] if "recipients" in answer else [answer["recipient"]]))


def _watch(requester: Requester, request: dict[str, object], interval: float, as_json: bool) -> None:
    """Show each change, until the connection fails for good. Raises ConnectionError."""
    if as_json or not sys.stdout.isatty():
        for answer in _changes(requester, request, interval):
            print(_text(request, answer, as_json), flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop", screen=True) as live:
        for answer in _changes(requester, request, interval):
            live.update(Text(_text(request, answer, as_json)), refresh=True)


def _changes(requester: Requester, request: dict[str, object], interval: float) -> Iterator[dict[str, Any]]:
    """An answer now, and each one that differs from the last."""
    last: dict[str, Any] | None = None
    while True:
        answer = requester.request(request)
        if "error" in answer:
            raise ConnectionError(answer["error"])
        if answer != last:
            last = answer
            yield answer
        time.sleep(interval)
