"""One answer from the answers of several sites.

Each site gives its *part*: a page of its own, or what an action has done there. `Gathering` waits for the parts, or for the reasons why
there will be none, and joins them: rows in the order that was asked for, at most a page of them, and which sites are missing and why.

Sans-IO: it is told of parts and of time.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from .asked import Asked
from .paging import Position, cursor_of

LATE = "no answer within {:g} s"


class Gathering:
    """The answer to one request. sites: name by number of those that are asked. missing: reason by name of those that cannot be.

    ends: when it is answered without those that have not, on the loop's clock. broker: the sites are the workers of this one, and one that
    refuses counts only if all do.
    """

    def __init__(self, asked: Asked, sites: Mapping[int, str], missing: Mapping[str, str], now: float, broker: str = "") -> None:
        self.asked = asked
        self.ends = now + asked.within
        self._sites = dict(sites)
        self._missing = dict(missing)
        self._parts: dict[str, Mapping[str, Any]] = {}
        self._open = set(sites)
        self._broker = broker

    @property
    def done(self) -> bool:
        """Whether nothing is awaited any more."""
        return not self._open

    @property
    def awaited(self) -> list[int]:
        """The sites that have not answered."""
        return sorted(self._open)

    def part(self, number: int, part: Mapping[str, Any]) -> None:
        """A site has answered; another answer of it does not count."""
        if number in self._open:
            self._open.discard(number)
            self._parts[self._sites[number]] = part

    def gone(self, number: int, reason: str) -> None:
        """A site will not answer."""
        if number in self._open:
            self._open.discard(number)
            self._missing[self._sites[number]] = reason

    def late(self, now: float) -> bool:
        """Whether the time is over; then those that have not answered are missing."""
        if now < self.ends:
            return False
        for number in self.awaited:
            self.gone(number, LATE.format(self.asked.within))
        return True

    def answer(self) -> dict[str, Any]:
        """What the client gets."""
        refused = {site: str(part["error"]) for site, part in self._parts.items() if "error" in part}
        parts = {site: part for site, part in self._parts.items() if "error" not in part}
        if not parts and len(refused) + len(self._missing) == 1:
            ((site, text),) = (refused or self._missing).items()
            return {"error": f"{site}: {text}"}
        if self._broker and refused and not self._missing:
            if not parts:
                return {"error": f"{self._broker}: {next(iter(refused.values()))}"}
            refused = {} if self.asked.verb == "do" else refused
        found = self._pages(parts) if self.asked.verb == "list" else self._deeds(parts)
        return {**found, "refused": dict(sorted(refused.items())), "missing": dict(sorted(self._missing.items()))}

    def _pages(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        asked = self.asked
        rows = [(value, key, site, row) for site, part in parts.items() for value, key, row in part["rows"]]
        ends = [(*part["rows"][-1][:2], site) for site, part in parts.items() if part["more"] and part["rows"]]
        if ends:  # behind the last row of a site that has more nothing is known
            end = max(ends) if asked.descending else min(ends)
            rows = [row for row in rows if (row[:3] >= end if asked.descending else row[:3] <= end)]
        rows.sort(key=itemgetter(0, 1, 2), reverse=asked.descending)
        shown, cursor = rows[: asked.limit], None
        if shown and (len(rows) > asked.limit or any(part["more"] for part in parts.values())):
            cursor = cursor_of(Position(*shown[-1][:3]), (asked.name, next(part["order"] for part in parts.values())))
        return {
            "list": asked.name,
            "rows": [{"site": site, **_plain(row)} for _, _, site, row in shown],
            "total": sum([part["total"] for part in parts.values()]),
            "cursor": cursor,
            "sites": {site: {"total": part["total"], "ms": part["ms"]} for site, part in sorted(parts.items())},
        }

    def _deeds(self, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        word = "would" if self.asked.dry_run else "done"
        return {"do": self.asked.name, word: {site: part["said"] for site, part in sorted(parts.items())}}


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row, fit for JSON."""
    return {key: _text(value) if isinstance(value, bytes) else value for key, value in row.items()}


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
