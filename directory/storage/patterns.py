"""Patterns of texts as SQL: `%%` stands for any characters, `__` for one, in a list with one text for each place.

What lies before the first wildcard is a range of an index; only what is left is compared by the database's own pattern match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

ANY, ONE = "%%", "__"
_AFTER_SURROGATES = 0xE000


def starred(name: str) -> list[str]:
    """A name in which `*` stands for any characters."""
    return [ANY if one == "*" else one for one in name]


def matching(column: Any, parts: Sequence[str], postgresql: bool) -> sa.ColumnElement[bool]:
    """Whether a column matches a pattern, case sensitively."""
    end = next((at for at, part in enumerate(parts) if part in (ANY, ONE)), None)
    if end is None:
        return sa.and_(column == "".join(parts))
    prefix, rest = "".join(parts[:end]), parts[end:]
    conditions = [column >= prefix] if prefix else []
    beyond = _beyond(prefix)
    if beyond:
        conditions.append(column < beyond)
    if any(part != ANY for part in rest):
        conditions.append(column.like(_like(parts), escape="\\") if postgresql else column.op("GLOB")(_glob(parts)))
    return sa.and_(sa.true(), *conditions)


def span(parts: Sequence[str]) -> tuple[str, str] | str | None:
    """What a pattern matches: one text, or all from one to before another one; None: something else."""
    end = next((at for at, part in enumerate(parts) if part in (ANY, ONE)), None)
    if end is None:
        return "".join(parts)
    prefix = "".join(parts[:end])
    beyond = _beyond(prefix) if all(part == ANY for part in parts[end:]) else ""
    return (prefix, beyond) if beyond else None


def _beyond(prefix: str) -> str:
    """The first text after all that begin with a prefix, by code point; empty where there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at]) + 1
        if code <= 0x10FFFF:
            return prefix[:at] + chr(_AFTER_SURROGATES if 0xD800 <= code < _AFTER_SURROGATES else code)
    return ""


def _once(parts: Sequence[str]) -> list[str]:
    """Runs of ANY count as one."""
    return [part for at, part in enumerate(parts) if part != ANY or at == 0 or parts[at - 1] != ANY]


def _like(parts: Sequence[str]) -> str:
    return "".join({ANY: "%", ONE: "_"}.get(part) or (f"\\{part}" if part in "%_\\" else part) for part in _once(parts))


def _glob(parts: Sequence[str]) -> str:
    return "".join({ANY: "*", ONE: "?"}.get(part) or (f"[{part}]" if part in "*?[" else part) for part in _once(parts))
