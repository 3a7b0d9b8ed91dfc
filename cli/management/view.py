"""Rows of a list as lines with columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

SHOWN: dict[str, tuple[str, ...]] = {  # the columns of a list that are shown unless others are asked for
    "clients": ("client", "user", "address", "version", "connected", "received", "sent", "unsent", "subscriptions"),
    "sessions": ("client", "user", "connected", "messages", "bytes", "waits", "subscriptions", "away", "expires"),
    "subscriptions": ("client", "filter", "qos", "group", "connected"),
    "retained": ("topic", "bytes", "qos", "age", "expires"),
    "routes": ("to", "kind", "gets", "why", "filter", "qos", "text"),
    "links": ("name", "address", "up", "cost", "round_trip", "messages_out", "messages_in", "bytes_out", "bytes_in", "dropped", "unsent"),
    "brokers": ("name", "number", "reachable", "hops", "cost", "via", "filters", "waiting"),
    "custody": ("name", "number", "reachable", "messages", "bytes", "waits", "on_disk", "under_way", "dropped"),
    "queues": (
        "name",
        "plan",
        "waiting",
        "in_flight",
        "members",
        "oldest",
        "put",
        "done",
        "returned",
        "unusable",
        "expired",
        "dead",
        "refused",
        "paused",
    ),
    "queue-members": ("queue", "member", "active", "in_flight", "subscriber"),
    "queue-messages": ("position", "state", "publisher", "age", "priority", "bytes", "deliveries", "subscribers"),
    "queue-states": ("who", "role", "state", "at", "needs"),
    "log": ("time", "level", "text"),
}
WIDEST = 60  # characters of a cell
WHOLE = "text"  # the column that is not cut: what a log or a route says
TIME = "time"  # the column in seconds since 1970
YEAR_9999 = 253370764800


def table(name: str, rows: Sequence[dict[str, Any]], columns: Sequence[str] | None) -> str:
    """The rows, with a head. columns: None: those that are usual for the list, or all."""
    if not rows:
        return "nothing"
    wanted = columns or ("site", *SHOWN.get(name, tuple(key for key in rows[0] if key != "site")))
    if columns is None and "payload" in {key for row in rows for key in row}:
        wanted = (*wanted, "payload")
    cells = [[column.upper().replace("_", " ") for column in wanted]]
    cells += [[_cell(column, row.get(column)) for column in wanted] for row in rows]
    right = [column != TIME and all(isinstance(row.get(column), int | float | None) for row in rows) for column in wanted]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if numeric else text.ljust(width) for text, width, numeric in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    )


def _cell(column: str, value: Any) -> str:
    if column == TIME and isinstance(value, int | float) and 0 <= value < YEAR_9999:
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    return cell(value, None if column == WHOLE else WIDEST)


def cell(value: Any, widest: int | None = WIDEST) -> str:
    """A value in a table: in one line, without control characters."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, dict):
        text = ", ".join(f"{key} {one}" for key, one in value.items()) or "-"
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if widest is None or len(text) <= widest else text[: widest - 3] + "..."


def ending(answer: dict[str, Any], shown: int) -> str:
    """How much of it is shown."""
    sites = len(answer.get("sites", {}))
    return f"{shown:,} of {answer.get('total', 0):,}" + (f" at {sites} sites" if sites > 1 else "")


def absent(answer: dict[str, Any]) -> list[str]:
    """The sites that are not in an answer, each with its reason."""
    return [f"{site}: {text}" for key in ("refused", "missing") for site, text in answer.get(key, {}).items()]
