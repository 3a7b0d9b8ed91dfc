"""`mqmesh interchange export`: what became of calls, as OpenTelemetry spans."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...base.plural import counted
from ..output import WRONG_USE, fail

if TYPE_CHECKING:
    from ...broker.journal.otlp import Collector

FILE = "correlation.db"
LOOK = 1.0  # seconds between two looks with --follow
SETTLED = 2000  # milliseconds after which all calls that ended at a time are written
PART = 200  # calls of one request
Place = tuple[int, str]  # end and identifier of the last call that was sent


def export(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="The data folder of a broker.", show_default=False)],
    otlp: Annotated[str, typer.Option("--otlp", metavar="URL", help="A collector: http://localhost:4318.", show_default=False)],
    header: Annotated[list[str], typer.Option("--header", metavar="NAME=VALUE", help="Sent with each request; may be repeated.")] = [],  # noqa: B006
    state: Annotated[
        Path | None, typer.Option("--state", help="File that keeps the position, for the next run.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with calls as they end, until Ctrl-C.")] = False,
) -> None:
    """Send the calls of a home that have ended to a tracing tool: a span for each call, and for each hop.

    \b
      mqmesh interchange export --data data --otlp http://localhost:4318
      mqmesh interchange export --data data --otlp https://otlp.example.com --header api-key=secret --state porto.json --follow

    Services that take the traceparent of their messages have their own spans below those of the hops.

    Status: 0 sent; 1 the collector does not take spans, or the file cannot be read; 2 wrong command line.
    """
    from ...broker.journal.otlp import Collector, ExportError, headers_of

    try:
        collector, place = Collector(otlp, headers_of(header)), _read(state)
        connection = sqlite3.connect(f"file:{data / FILE}?mode=ro", uri=True)
    except (ExportError, ValueError) as error:
        raise fail(f"interchange export: {error}", WRONG_USE) from None
    except sqlite3.Error as error:
        raise fail(
            f"interchange export: {data / FILE}: {error}; is it the data folder of a broker with an interchange?", WRONG_USE
        ) from None
    calls = 0
    try:
        with closing(connection), closing(collector):
            while True:
                for reached, many in _send(connection, collector, data.name, place):
                    place, calls = reached, calls + many
                    _write(state, place)
                if not follow:
                    break
                time.sleep(LOOK)
    except KeyboardInterrupt:
        pass
    except (ExportError, sqlite3.Error, OSError) as error:
        raise fail(f"interchange export: {error}") from None
    print(f"{counted(calls, 'call')}, {collector.sent:,} spans sent" + (f", {collector.rejected:,} rejected" if collector.rejected else ""))


def _send(connection: sqlite3.Connection, collector: Collector, site: str, place: Place) -> Iterator[tuple[Place, int]]:
    """Send what has ended since a place, in parts: how far each goes, and its calls."""
    from ... import __version__
    from ...interchange.correlation.spans import resource_spans, spans_of
    from ...interchange.correlation.tables import ended_since

    before = time.time_ns() // 1_000_000 - SETTLED
    while calls := ended_since(connection, place, before, PART):
        spans = [span for call in calls for span in spans_of(call)]
        collector.send(resource_spans(spans, site, __version__), len(spans))
        place = calls[-1]["ended"], calls[-1]["call"]
        yield place, len(calls)


def _read(state: Path | None) -> Place:
    """Raises ValueError for a file that keeps no place."""
    if state is None or not state.exists():
        return 0, ""
    try:
        found: dict[str, Any] = json.loads(state.read_text())
        return int(found["ended"]), str(found["call"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{state}: keeps no position of an export: {error}: remove it to begin anew") from None


def _write(state: Path | None, place: Place) -> None:
    if state is not None:
        partial = state.with_name(state.name + ".partial")
        partial.write_text(json.dumps({"ended": place[0], "call": place[1]}))
        partial.replace(state)
