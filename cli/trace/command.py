"""`mqmesh trace`: the whole way of messages, from live brokers, the sites' journals, and the pipeline's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..moments import moment
from ..output import FAILED, WRONG_USE, fail, note

if TYPE_CHECKING:
    from ...broker.journal.search import Query
    from ...pipeline.trace.story import Story


def trace(
    message: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE_ID]", help="origin.epoch.stream.sequence, or what mqmesh-id says.", show_default=False)
    ] = None,
    journal: Annotated[
        list[str], typer.Option("--journal", "-j", metavar="URL", help="A site's journal: a folder or URL. May be given several times.")
    ] = [],  # noqa: B006
    tables: Annotated[str | None, typer.Option("--tables", metavar="URL", help="What the pipeline made: a folder or URL.")] = None,
    live: Annotated[
        list[str],
        typer.Option("--live", "-l", metavar="ADDRESS", help="A running broker that is asked first. May be given several times."),
    ] = [],  # noqa: B006
    user: Annotated[str | None, typer.Option("--username", "-u", help="Name for --live.")] = None,
    password: Annotated[str | None, typer.Option("--password", "-P", help="Password for --live.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="All messages of a session.")] = None,
    call: Annotated[str | None, typer.Option("--call", help="A request and its responses.")] = None,
    client: Annotated[str | None, typer.Option("--client", help="Published by it, or delivered to it.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="A topic or topic filter.")] = None,
    recipient: Annotated[str | None, typer.Option("--recipient", help="For an application.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="NAME=VALUE", help="With this value, where a topic's rule selects it.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help="Published since: 2026-11-22T10:00 (UTC), or 10min, 2h, 3d ago.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Published before, in the same forms.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="complete, not received, no end, refused, publication unknown.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many messages, the newest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a message and line.")] = False,
    picture: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the first message as an SVG picture.")] = None,
) -> None:
    """Show where a message went: each step at each broker, with times, and whether it is complete.

    \b
      mqmesh trace 1.1763850000000.1.42 --journal /var/lib/mqmesh/journal
      mqmesh trace --live mqtt://porto --live mqtt://lyon --client sensor-17 --since 10min
      mqmesh trace --tables s3://lake/mqmesh --status "no end" --json

    Running brokers are asked first, then the journals; the tables answer where both know nothing. A broker shows clients
    the messages of their own account, and operators all of them.

    Status: 0 found; 1 nothing found, or a source cannot be read; 2 wrong command line.
    """
    from ...pipeline.errors import PipelineError
    from ...pipeline.trace.drawing import svg, text

    if not (journal or tables or live):
        raise fail("trace: say where to look: --live ADDRESS, --journal URL or --tables URL", WRONG_USE)
    conditions = {"message": message, "session": session, "call": call, "client": client, "topic": topic, "recipient": recipient}
    conditions["value"] = value
    try:
        query = _query(conditions, since, until, _status(status), limit)
    except ValueError as error:
        raise fail(f"trace: {error}", WRONG_USE) from None
    try:
        found, notes = _look(query, journal, tables, live, user, password, status)
    except PipelineError as error:
        raise fail(f"trace: {error}") from None
    for line in notes:
        note(f"trace: {line}")
    found = found[:limit]
    for one in found:
        print(json.dumps(one.values()) if as_json else text(one))
    if picture is not None and found:
        try:
            picture.write_text(svg(found[0]), encoding="utf-8")
        except OSError as error:
            raise fail(f"trace: --svg {picture}: {error.strerror or error}") from None
    if not found:
        raise fail("trace: no such message there", FAILED)


def _status(status: str | None) -> str | None:
    from ...pipeline.trace.story import STATUS

    if status is not None and status not in STATUS:
        raise ValueError(f'--status "{status}": one of {", ".join(STATUS)}')
    return status


def _query(conditions: dict[str, str | None], since: str | None, until: str | None, status: str | None, limit: int) -> Query:
    """Raises ValueError, one line."""
    from ...broker.journal.search import MOST, Query
    from ...pipeline.trace.drawing import number_of

    values: dict[str, Any] = {name: value for name, value in conditions.items() if value is not None}
    for name in ("session", "call"):
        if name in values:
            try:
                values[name] = number_of(values[name])
            except ValueError as error:
                raise ValueError(f"--{name} {error}") from None
    for name, value in (("since", since), ("until", until)):
        if value is not None:
            values[name] = moment(f"--{name}", value)
    if not values and status is None:
        raise ValueError("say which messages: MESSAGE_ID, --client, --topic, --since, --status, ...")
    return Query.of({**values, "limit": MOST if status is not None else limit})


def _look(
    query: Query, journals: list[str], tables: str | None, live: list[str], user: str | None, password: str | None, status: str | None
) -> tuple[list[Story], list[str]]:
    """Raises PipelineError."""
    from ...pipeline.trace.sources import Gathered, gather, journal_at

    gathered = Gathered()
    if live:
        from .live import ask

        ask(live, query, user, password, gathered)
    if journals:
        gather([journal_at(root) for root in journals], query, gathered)
    found = gathered.stories()
    if tables is not None and not found:
        from ...pipeline.trace.tables import find

        found = find(tables, query, status, gathered.names)
    return [one for one in found if status is None or one.status == status], gathered.notes
