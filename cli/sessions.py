"""`mqmesh sessions`: list the sessions that a broker keeps, and end some."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ..base.plural import counted
from .connection_options import ConnectionOptions, reported_errors
from .option_groups import with_option_groups
from .output import FAILED, WRONG_USE, fail

TOPIC = "$mqmesh/sessions"
ORDERS = ("bytes", "messages", "away")


@with_option_groups
def sessions(
    *,
    client: Annotated[list[str], typer.Argument(help="Only the sessions of these client identifiers.", show_default=False)] = [],  # noqa: B006
    by: Annotated[
        str, typer.Option("--by", metavar="bytes|messages|away", help="Order: the largest first, or the longest away.")
    ] = "bytes",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many sessions are shown.")] = 20,
    end: Annotated[bool, typer.Option("--end", help="End the named sessions. Messages that wait for them are lost.")] = False,
    at: Annotated[str | None, typer.Option("--at", metavar="SITE", help="Another site, several with commas, or '*' for all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    options: ConnectionOptions,
) -> None:
    """Show the sessions that a broker keeps for clients, or end some.

    \b
      mqmesh sessions -h unix:///run/mqmesh.sock --by away
      mqmesh sessions -u ops -P secret sensor-17
      mqmesh sessions -u ops -P secret --end sensor-17 sensor-18

    With --at sites are listed by the management protocol, connected sessions too; `mqmesh manage do end-session` ends one there.
    The broker answers users with a role ([management] in its file), and the user that runs it over its Unix socket.

    Status: 0 done; 1 the broker refuses, cannot be reached, or has no such session; 2 wrong command line.
    """
    from .connection import Connection
    from .mesh.requester import Requester

    if at is not None:
        _elsewhere(client, by, limit, end, at, as_json, options)
        return
    if by not in ORDERS:
        raise fail(f"sessions: --by {by}: one of {', '.join(ORDERS)}", WRONG_USE)
    if end and not client:
        raise fail("sessions: --end needs the client identifiers of the sessions to end", WRONG_USE)
    requests: list[dict[str, object]] = [{"do": "end" if end else "list", "client": one} for one in client]
    if not requests:
        requests = [{"do": "list", "by": by, "limit": limit}]
    try:
        with reported_errors("sessions"):
            requester = Requester(Connection(options), TOPIC)
            with requester.connection:
                answers = [requester.request(one) for one in requests]
    except ValueError as error:  # an answer that is not JSON
        raise fail(f"sessions: {error}") from None
    errors = [answer["error"] for answer in answers if "error" in answer]
    shown = [one for answer in answers for one in answer.get("sessions", [answer["ended"]] if "ended" in answer else [])]
    if as_json:
        totals = {name: value for answer in answers for name, value in answer.items() if name in ("total", "bytes", "limit", "most")}
        print(json.dumps({"ended" if end else "sessions": shown, **totals, "errors": errors}))
    elif shown or not errors:
        print(table(shown))
        if not client:
            print(summary(answers[0]))
    if errors:
        raise fail("sessions: " + "; ".join(errors), FAILED)


def _elsewhere(client: list[str], by: str, limit: int, end: bool, at: str, as_json: bool, options: ConnectionOptions) -> None:
    """The same of other sites."""
    from .management.command import act, list_sessions

    if by not in ORDERS:
        raise fail(f"sessions: --by {by}: one of {', '.join(ORDERS)}", WRONG_USE)
    if end and len(client) != 1:
        raise fail("sessions: --end with --at needs one client identifier", WRONG_USE)
    if end:
        act({"do": "end-session", "client": client[0]}, at, False, as_json, options)
    else:
        list_sessions(client, by, limit, at, as_json, options)


COLUMNS = (("client", "CLIENT"), ("user", "USER"), ("messages", "MESSAGES"), ("bytes", "BYTES"), ("age", "OLDEST"), ("away", "AWAY"))


def table(shown: list[dict[str, Any]]) -> str:
    """Sessions as lines with columns."""
    rows = [[title for _, title in COLUMNS] + ["EXPIRES IN"]]
    for one in shown:
        client = str(one["client"])
        name = client if client.isprintable() and client else repr(client)
        away = "connected" if one["connected"] else lasting(one["away"])
        rows.append(
            [name, one["user"] or "-", f"{one['messages']:,}", size(one["bytes"]), lasting(one["age"]), away, lasting(one["expires"])]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = {2, 3, 4, 5, 6}
    lines = [
        [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def summary(answer: dict[str, Any]) -> str:
    """The totals of the broker."""
    most = f" of {answer['most']:,}" if answer.get("most") else ""
    limit = f" of {size(answer['limit'])}" if answer.get("limit") else ""
    return f"{counted(answer.get('total', 0), 'session', most)}, {size(answer.get('bytes', 0))}{limit} in the store"


def size(count: int) -> str:
    """Bytes in a unit that fits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def lasting(seconds: int | None) -> str:
    """Seconds in a unit that fits."""
    if seconds is None:
        return "-"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
