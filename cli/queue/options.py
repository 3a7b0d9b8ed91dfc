"""The options of `mqmesh queue`, and what each puts into a request."""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..output import WRONG_USE, fail

REHEARSED = ("purge", "redrive", "recover", "pause", "resume", "declare", "delete", "move")  # take --dry-run
GOES = {  # option -> its field, and the words that it goes with
    "--from": ("begin", ("peek", "read", "needed", "distribute", "archive")),
    "--last": ("last", ("distribute",)),
    "--since": ("since", ("read", "archive")),
    "--most": ("most", ("peek", "read", "archive")),
    "--text": ("text", ("edit",)),
    "--file": ("file", ("edit",)),
    "--payload": ("payload", ("peek",)),
    "--dry-run": ("dry_run", REHEARSED),
    "--store": ("store", ("move",)),
    "--force": ("force", ("delete",)),
}
MOST = 20  # messages that are shown


@dataclass(slots=True)
class QueueOptions:
    """What goes with the words of the command."""

    begin: Annotated[
        int | None, typer.Option("--from", metavar="POSITION", min=0, help="With peek, read, needed, distribute: from this position on.")
    ] = None
    last: Annotated[int | None, typer.Option("--last", metavar="POSITION", min=1, help="With distribute: up to this one.")] = None
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="With read: put since then: 1h, 2026-11-23T10:00:00Z.")] = (
        None
    )
    most: Annotated[
        int | None, typer.Option("--most", metavar="N", min=1, max=100, help=f"With peek and read: so many messages; else {MOST}.")
    ] = None
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="With edit: the new payload.", show_default=False)] = None
    file: Annotated[Path | None, typer.Option("--file", metavar="PATH", help="With edit: the file that is the new payload.")] = None
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="SITE", help="Name or number of another site; several with commas, or '*' for all."),
    ] = None
    payload: Annotated[bool, typer.Option("--payload", help="With peek --at: with payloads, for payload readers.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help=f"With {', '.join(REHEARSED)}: only say what would be done.")] = False
    store: Annotated[
        str | None, typer.Option("--store", metavar="STORE", help="With move: log, sqlite, lmdb or a URL.", show_default=False)
    ] = None
    force: Annotated[bool, typer.Option("--force", help="With delete: also while messages wait.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False


def check(word: str, chosen: QueueOptions) -> None:
    """End the command for an option that another word goes with: `purge --last 20` is no purge of everything."""
    for option, (field, words) in GOES.items():
        if getattr(chosen, field) in (None, False) or word in words or (option == "--dry-run" and chosen.at is not None):
            continue
        raise fail(f"queue: {option} goes with {', '.join(words)}: leave it out with {word}", WRONG_USE)


def complete(request: dict[str, Any], chosen: QueueOptions) -> None:
    """Put the options of a request into it."""
    do = request["do"]
    if do in ("peek", "read", "needed", "distribute"):
        request["from"] = chosen.begin or 0
    if do in ("peek", "read"):
        request["most"] = chosen.most or MOST
    if do == "distribute":
        if chosen.last is None:
            raise fail("queue: distribute: give --last, the position of the last message to copy", WRONG_USE)
        request["last"] = chosen.last
    if do == "read" and chosen.since is not None:
        request["since"] = since_of(chosen.since)
    if do == "edit":
        request["payload"] = b64encode(_payload(chosen)).decode()
    if chosen.dry_run:
        request["dry_run"] = True
    if do == "store":
        if chosen.store is None:
            raise fail("queue: move: give --store, where the queue is to be kept", WRONG_USE)
        request["store"] = chosen.store
    if chosen.force:
        request["force"] = True


def _payload(chosen: QueueOptions) -> bytes:
    """The new payload of a message that is edited."""
    if chosen.text is not None and chosen.file is None:
        return chosen.text.encode()
    if chosen.file is None or chosen.text is not None:
        raise fail("queue: edit: give --text or --file, the new payload", WRONG_USE)
    try:
        return chosen.file.read_bytes()
    except OSError as error:
        raise fail(f"queue: {chosen.file}: {error.strerror or error}", WRONG_USE) from None


def since_of(text: str) -> str:
    """A duration before now as a time; a time as it is."""
    from ...broker.queues.rows import iso
    from ...broker.queues.settings import seconds_of

    try:
        return str(iso(int(1000 * (time.time() - seconds_of(text)))))
    except ValueError:
        return text
