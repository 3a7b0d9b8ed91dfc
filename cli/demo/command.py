"""`mqmesh demo`: the main job on this machine: five sites in a ring, real readings, a cut link, a killed broker, a foreign broker."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..output import FAILED, fail, note

SHORTEST = 10.0


def demo(
    seconds: Annotated[float, typer.Option("--for", metavar="SECONDS", min=SHORTEST, help="How long readings are published.")] = 30.0,
    rate: Annotated[float, typer.Option("--rate", min=5, max=5000, help="Readings a second, of all sites together.")] = 300.0,
    data: Annotated[Path | None, typer.Option("--data", help="Folder for the brokers' logs; a temporary one without.")] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="End with Spark over the journal that the brokers write.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout, progress on stderr.")] = False,
) -> None:
    """Run the main job on this machine and count every message.

    \b
    Five brokers in a ring, each a process. At each site a client publishes readings of this machine (cores,
    memory, disks, interfaces, processes) with QoS 1 and subscribes to the readings of all sites. In mid-run
    one link is cut and mended, then one broker is killed with SIGKILL and started again. At the end two sites
    reach a foreign broker (amqtt, of the extra 'demo') through a metabroker, lose it, and get it back. Then an
    application hangs (SIGSTOP): its messages go to another one, and to the sender when that one hangs too.
    Then three shops put orders into one queue, a pool at two sites works them, one worker is killed, one order is poison.
    Then a shop asks two banks at other sites for credit, and one of these sites is cut off (extra 'interchange').
    The brokers keep a journal. When they have ended, Spark reads it: one message's whole way, the traffic between
    the sites as a picture, and the faults that the journal knows beside what was done (extras 'journal', 'spark', 'java').

    \b
      mqmesh demo
      mqmesh demo --for 60 --rate 1000
      mqmesh demo --json | jq .totals

    Status: 0 nothing was lost or duplicated at the surviving sites; 1 something was, or the mesh did not work.
    """
    from ..fleet.process import FleetError
    from .scenario import Job
    from .site import SiteError
    from .view import lines, live, result_tables

    signal.signal(signal.SIGTERM, _interrupt)
    folder = data or Path(tempfile.mkdtemp(prefix="mqmesh-demo-"))
    show = live if sys.stdout.isatty() and not as_json else lines
    report = None
    try:
        with show(sys.stderr if as_json else sys.stdout) as view:
            report = Job(folder, seconds, rate, view, _pictures(data) if spark else None).run()
    except (FleetError, SiteError, OSError) as error:
        raise fail(f"demo: {error}; the brokers' logs are in {folder}") from None
    except KeyboardInterrupt:
        note("demo: stopped")
        raise typer.Exit(130) from None
    finally:
        if data is None and (report is None or report.ok):
            keep = report is None and sys.exc_info()[0] is not None
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        result_tables(report)
    if not report.ok:
        raise fail(f"demo: {'; '.join(report.problems)}; the brokers' logs are in {folder}", FAILED)


def _pictures(data: Path | None) -> Path:
    """Where the pictures are kept: the folder that was asked for, else one that outlives the demo's files."""
    return data / "pictures" if data is not None else Path(tempfile.gettempdir()) / "mqmesh-demo-pictures"


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
