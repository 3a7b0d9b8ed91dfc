"""The configuration that is in effect, the recipients that are watched, and the last lines of the log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..listing import Kind, Listing, Where
from .mesh import columns
from .sessions import pieces

if TYPE_CHECKING:
    from ...site import Site

TEXT, NUMBER, FLAG, OTHER = Kind.TEXT, Kind.NUMBER, Kind.FLAG, Kind.OTHER
SECRET = ("key", "password", "secret", "url", "token")  # parts of names of settings whose values are not shown
HIDDEN = "(not shown)"
PACKAGE = "mqmesh"  # the logger above all others of ours
LOGGED = 1000  # lines of the log that are remembered
LONGEST_LINE = 2000  # characters
LONGEST_VALUE = 1000


def configuration_of(site: Site) -> Listing:
    """What the broker goes by, file and command line and defaults together."""

    def scan(_: Where) -> Iterator[Sequence[dict[str, Any]]]:
        yield from pieces([{"key": key, "value": value} for key, value in flat(site.config)])

    help_ = "the configuration in effect: key by key, without secrets"
    return Listing("configuration", help_, columns(key=TEXT, value=TEXT), lambda one: one["key"], scan)


def flat(value: Any, key: str = "") -> Iterator[tuple[str, str | None]]:
    """(dotted key, value as text) of everything below a value; secrets are left out."""
    last = key.rpartition(".")[2]
    if key and value is not None and any(word in last for word in SECRET) and not isinstance(value, bool | Path):
        yield key, HIDDEN
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            shown = getattr(value, one.name)
            yield from flat(shown if one.repr or shown is None else HIDDEN, f"{key}.{one.name}" if key else one.name)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from flat(one, f"{key}.{name}")
    elif isinstance(value, list | tuple) and any(is_dataclass(one) for one in value):
        for number, one in enumerate(value, 1):
            yield from flat(one, f"{key}[{number}]")
    else:
        yield key, None if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, frozenset | set):
        value = sorted(value, key=str)
    elif isinstance(value, tuple):
        value = list(value)
    return str(value)[:LONGEST_VALUE]


def recipients_of(site: Site) -> Listing:
    """Recipients that are watched."""
    fields_ = columns(
        name=TEXT,
        state=TEXT,
        since=TEXT,
        held=FLAG,
        queue=NUMBER,
        in_flight=NUMBER,
        failed_over=NUMBER,
        returned=NUMBER,
        alternatives=OTHER,
    )

    def scan(_: Where) -> Iterator[Sequence[dict[str, Any]]]:
        if site.recipients is not None:
            yield from pieces([{**dict.fromkeys(one.name for one in fields_), **row} for row in site.recipients.describe()])

    return Listing("recipients", "recipients whose home is the site, and how they are", fields_, lambda one: one["name"], scan)


class LogTail(logging.Handler):
    """Remembers the last lines of the log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=LOGGED)
        self._numbers = count(1)

    def begin(self) -> None:
        """Remember lines from now on."""
        logging.getLogger(PACKAGE).addHandler(self)

    def end(self) -> None:
        """Remember no more."""
        logging.getLogger(PACKAGE).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a line."""
        try:
            text = record.getMessage()[:LONGEST_LINE]
        except Exception:
            self.handleError(record)
            return
        line = {"number": next(self._numbers), "time": round(record.created, 3), "level": record.levelname.lower(), "text": text}
        self._lines.append({**line, "logger": record.name})

    def listing(self) -> Listing:
        """The lines as a list; `"sort": "-number"` gives the newest first."""
        help_ = "the last lines of the log"
        fields_ = columns(number=NUMBER, time=NUMBER, level=TEXT, logger=TEXT, text=TEXT)
        return Listing("log", help_, fields_, lambda one: one["number"], lambda _: pieces(list(self._lines)))
