"""`mqmesh journal export`: the journal's events as OpenTelemetry spans."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ..output import FAILED, WRONG_USE, fail
from .left_out import LeftOut

LOOK = 1.0  # seconds between two looks with --follow


def export(
    where: Annotated[str, typer.Argument(help="The journal: a folder or a URL.", show_default=False)],
    otlp: Annotated[
        str,
        typer.Option(
            "--otlp", metavar="URL", help="A collector that takes OTLP over HTTP, such as http://localhost:4318.", show_default=False
        ),
    ],
    header: Annotated[
        list[str], typer.Option("--header", metavar="NAME=VALUE", help="Sent with each request; may be repeated.", show_default=False)
    ] = [],  # noqa: B006
    state: Annotated[
        Path | None, typer.Option("--state", help="File that keeps the position, for the next run.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with events as they are written, until Ctrl-C.")] = False,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", help="Only of this broker, by number; may be repeated.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Send the events of messages to a tracing tool, as OpenTelemetry spans.

    \b
      mqmesh journal export data/journal --otlp http://localhost:4318
      mqmesh journal export s3://porto/journal --otlp https://otlp.example.com --header api-key=secret --state porto.json --follow

    With --state a second run sends what is new. Spans have the same identifiers each time: what is sent twice is shown once.

    Status: 0 sent; 1 the collector does not take spans, or the journal cannot be read, or not all of it; 2 wrong command line.
    """
    from rich.console import Console
    from rich.progress import Progress

    from ... import __version__
    from ...broker.journal.export import Export
    from ...broker.journal.otlp import Collector, ExportError, headers_of
    from ...broker.journal.reading import Journal

    try:
        collector = Collector(otlp, headers_of(header))
        made = Export(Journal(where, broker), collector, __version__, state)
    except (ExportError, ValueError) as error:
        raise fail(f"journal export: {error}", WRONG_USE) from None
    left_out = LeftOut("journal export")
    try:
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("spans", total=None)
            made.once(lambda count: progress.update(task, completed=count))
            left_out.name(made.follower.wrong)
            while follow:
                time.sleep(LOOK)
                made.once()
                left_out.name(made.follower.wrong)
    except KeyboardInterrupt:
        pass
    except (ExportError, OSError) as error:
        raise fail(f"journal export: {error}") from None
    finally:
        collector.close()
    if as_json:
        print(json.dumps({"sent": collector.sent, "rejected": collector.rejected}))
    else:
        rejected = f", {collector.rejected:,} rejected" if collector.rejected else ""
        print(f"{collector.sent:,} spans sent{rejected}")
    if left_out.named:
        raise typer.Exit(FAILED)
