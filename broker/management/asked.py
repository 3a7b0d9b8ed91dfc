"""Requests, as clients publish them and as one broker passes them to another (docs/management.md).

{"list": "sessions", "at": "lyon", "where": {"client": "sensor-*"}, "sort": "-bytes", "limit": 50, "cursor": "..."}
{"do": "disconnect", "at": "lyon", "client": "porto-17", "dry_run": true}
{"show": "lists"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import Refused
from .paging import MOST

EVERYWHERE = "*"
PATIENCE, LEAST, LONGEST = 5.0, 0.1, 30.0  # seconds that sites have for their answer
RIGHT = 'send {"list": "sessions", "at": "lyon"}, {"do": "disconnect", "at": "lyon", "client": "..."} or {"show": "lists"}'
LISTED = ("list", "at", "where", "sort", "limit", "cursor", "payload", "within")
DONE = ("do", "at", "dry_run", "within")
CONDITIONS, SITES = 20, 256
LARGEST = 16_384  # bytes of a request


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that has the right form.

    verb: "list", "do" or "show". name: of the list or action. at: sites by name or number; None: the broker that is asked; `("*",)`: all.
    within: seconds. values: of an action.
    """

    verb: str
    name: str
    at: tuple[str, ...] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    sort: str = ""
    descending: bool = False
    limit: int = MOST
    cursor: str | None = None
    payload: bool = False
    within: float = PATIENCE
    dry_run: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> str:
        """The order as it was asked."""
        return "-" * self.descending + self.sort


def read(payload: bytes) -> Asked:
    """The request in a payload. Raises Refused."""
    if len(payload) > LARGEST:
        raise Refused(f"a request has at most {LARGEST:,} bytes")
    try:
        return asked(json.loads(payload))
    except (ValueError, RecursionError):
        raise Refused(RIGHT) from None


def asked(table: Any) -> Asked:
    """The request in a table. Raises Refused."""
    verbs = [verb for verb in ("list", "do", "show") if isinstance(table, dict) and verb in table]
    if len(verbs) != 1 or not isinstance(table[verbs[0]], str) or not table[verbs[0]]:
        raise Refused(RIGHT)
    verb = verbs[0]
    at, within = _sites(table.get("at")), _number(table, "within", LEAST, LONGEST, PATIENCE)
    if verb == "list":
        return _listed(table, at, within)
    if verb == "show":
        return Asked("show", table["show"], at, within=within)
    values = {key: value for key, value in table.items() if key not in DONE}
    return Asked("do", table["do"], at, within=within, dry_run=_flag(table, "dry_run"), values=values)


def _listed(table: dict[str, Any], at: tuple[str, ...] | None, within: float) -> Asked:
    unknown = [key for key in table if key not in LISTED]
    if unknown:
        raise Refused(f"{str(unknown[0])[:80]!r} is not known: a list takes {', '.join(LISTED[1:])}")
    where, sort, cursor = table.get("where") or {}, table.get("sort") or "", table.get("cursor")
    if not isinstance(where, dict) or len(where) > CONDITIONS:
        raise Refused(f'"where" is an object of conditions by column, at most {CONDITIONS}')
    if not isinstance(sort, str) or not isinstance(cursor, str | None):
        raise Refused('"sort" is the name of a column, with "-" before it for the largest first; "cursor" is that of the last answer')
    limit = _number(table, "limit", 1, MOST, MOST)
    return Asked(
        *("list", table["list"], at, where, sort.removeprefix("-"), sort.startswith("-"), int(limit), cursor or None),
        payload=_flag(table, "payload"),
        within=within,
    )


def _sites(at: Any) -> tuple[str, ...] | None:
    if at is None:
        return None
    names = at if isinstance(at, list) else [at]
    if not names or len(names) > SITES or not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
        raise Refused('"at" is the name or number of a site, a list of these, or "*" for all')
    return tuple(str(name) for name in names)


def _flag(table: dict[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise Refused(f'"{key}" is true or false')
    return value


def _number(table: dict[str, Any], key: str, low: float, high: float, default: float) -> float:
    value = table.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Refused(f'"{key}" is a number from {low:g} to {high:g}')
    return float(value)


def told(one: Asked) -> dict[str, Any]:
    """The same as one broker passes it to another: what `asked` reads again; without its sites."""
    if one.verb == "do":
        return {**one.values, "do": one.name, "dry_run": one.dry_run, "within": one.within}
    found = {"list": one.name, "where": dict(one.where), "sort": one.order, "limit": one.limit, "payload": one.payload}
    return {**found, "cursor": one.cursor, "within": one.within}
