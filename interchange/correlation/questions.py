"""Questions about messages, calls and sessions, from the plain values of those who ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..reading import only_keys, read_text, service_name, wrong
from .rows import STATUSES

MOST = 1000  # calls of one answer
USUAL = 100
_KEYS = frozenset(("session", "call", "service", "route", "status", "since", "until", "identifier", "limit", "cursor"))


@dataclass(frozen=True, slots=True)
class Question:
    """A query for calls. Each field is a condition that a call must meet; "" and None: any.

    service: takes part in it. route: has had a hop. since, until: of the post, milliseconds since 1970. identifier: a name and a value
    that a service of the asker has given. after: time and call of the last one before; calls come the latest first.
    """

    session: str = ""
    call: str = ""
    service: str = ""
    route: str = ""
    status: str = ""
    since: int | None = None
    until: int | None = None
    identifier: tuple[str, str] | None = None
    limit: int = USUAL
    after: tuple[int, str] | None = None

    def fields(self) -> list[Any]:
        """As plain values, for another home."""
        given = [self.session, self.call, self.service, self.route, self.status, self.since, self.until]
        return [*given, self.identifier, self.limit, self.after]

    @classmethod
    def of(cls, fields: list[Any]) -> Question:
        """The same back."""
        session, call, service, route, status, since, until, identifier, limit, after = fields
        named = None if identifier is None else (str(identifier[0]), str(identifier[1]))
        placed = None if after is None else (int(after[0]), str(after[1]))
        return cls(session, call, service, route, status, since, until, named, limit, placed)


def read_question(payload: bytes) -> Question:
    """What a client asks. Raises Refusal not-well-formed."""
    try:
        given = only_keys(json.loads(payload or b"{}"), _KEYS, "query")
    except (ValueError, RecursionError):
        raise wrong("query", payload[:100], "give a JSON object") from None
    texts = {key: read_text(given.get(key, ""), key, 255) for key in ("session", "call", "status")}
    for key, digits in (("session", 32), ("call", 16)):
        if texts[key] and (len(texts[key]) != digits or not set(texts[key]) <= set("0123456789abcdef")):
            raise wrong(key, texts[key], f"give {digits} hexadecimal digits, lower case")
    if texts["status"] and texts["status"] not in STATUSES:
        raise wrong("status", texts["status"], f"give one of {', '.join(STATUSES)}")
    service, route = (service_name(given[key], key) if key in given else "" for key in ("service", "route"))
    since, until = (_whole(given, key, 1 << 53) for key in ("since", "until"))
    identifier = _identifier(given["identifier"]) if "identifier" in given else None
    limit, after = _whole(given, "limit", MOST) or USUAL, _cursor(given.get("cursor"))
    return Question(texts["session"], texts["call"], service, route, texts["status"], since, until, identifier, limit, after)


def cursor_of(row: Mapping[str, Any]) -> str:
    """Where the next page begins, after this row."""
    return f"{row['created']}-{row['call']}"


def _whole(given: Mapping[str, Any], key: str, most: int) -> int | None:
    value = given.get(key)
    if value is not None and (type(value) is not int or not 0 <= value <= most):
        raise wrong(key, value, f"give a whole number, at most {most}")
    return value


def _identifier(value: object) -> tuple[str, str]:
    fields = only_keys(value, frozenset(("name", "value")), "identifier")
    return read_text(fields.get("name"), "identifier.name", 255), read_text(fields.get("value"), "identifier.value")


def _cursor(value: object) -> tuple[int, str] | None:
    if value is None:
        return None
    if isinstance(value, str) and len(value) < 64:
        created, _, call = value.partition("-")
        if created.isdecimal() and created.isascii() and len(call) == 16:
            return int(created), call
    raise wrong("cursor", value, "give the cursor of the answer before")
