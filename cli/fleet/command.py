"""`mqmesh up`: run every broker of a topology as a process of its own, until a signal ends them all."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...base.backoff import Backoff
from ..output import FAILED, WRONG_USE, fail, note

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from .process import Fleet, Member

PAUSES = (0.5, 30.0)  # seconds before a dead broker is started again: first, longest
HEALTHY = 60.0  # seconds of life after which the back-off begins anew
PATIENCE = 3.0  # seconds before it says what is missing for `ready`
LOOK = 0.5  # seconds between two updates of the table


def up(
    file: Annotated[Path, typer.Argument(help="The topology, such as topologies/ring-of-five.toml.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder for pid files, logs and data; ./NAME-OF-THE-MESH without this option.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Restart a broker that died.")] = False,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Folder of a journal that all brokers write to (docs/journal.md).", show_default=False)
    ] = None,
) -> None:
    """Run every broker of a topology; one line starts with 'ready' once all links are up and interest has settled.

    \b
    Five brokers in a ring, and what they log:
      mqmesh up topologies/ring-of-five.toml --data /tmp/ring
      tail -f /tmp/ring/porto.log

    \b
    Try it from another terminal: in at one site, out at another
      mqmesh sub -h mqtt://127.0.0.1:18303 -t '#' -v
      mqmesh pub -h mqtt://127.0.0.1:18301 -t hello -m world

    The folder holds NAME.toml, NAME.pid, NAME.log and NAME/ for each broker. Ctrl-C or SIGTERM stops them all.

    Status: 0 stopped; 1 no broker is left; 2 the file is wrong or a broker cannot start.
    """
    from ...base.settings import ConfigError
    from ...broker.journal.settings import JournalSettings
    from ...mesh.topology.topology import check_one_machine, load
    from .process import Fleet, FleetError

    try:
        topology = load(file)
        check_one_machine(topology)
        fleet = Fleet(topology, data or Path(topology.mesh.name))
        for broker in topology.brokers:
            fleet.configuration(broker.name)
    except ConfigError as error:
        raise fail(f"up: {error}", WRONG_USE) from None
    for warning in topology.warnings:
        note(f"up: {file}: {warning}")
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _interrupt)
    if journal is not None:
        fleet.journal = JournalSettings(str(journal.absolute()))
    try:
        fleet.start()
    except FleetError as error:
        raise fail(f"up: {error}", WRONG_USE) from None
    except OSError as error:  # pid files, logs
        raise fail(f"up: {error.filename or fleet.folder}: {error.strerror or error}; give another folder with --data", WRONG_USE) from None
    except KeyboardInterrupt:
        fleet.stop()
        raise typer.Exit(0) from None
    raise typer.Exit(_Supervisor(fleet, restart).run())


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


class _Supervisor:
    """Watches running brokers until a signal comes or no broker is left."""

    def __init__(self, fleet: Fleet, restart: bool) -> None:
        self.fleet = fleet
        self.restart = restart
        self.ready = False
        self.begin = time.monotonic()
        self.missing: str | None = None  # the last one that was printed
        self.due: dict[str, float] = {}  # dead broker -> when to start it
        self.backoffs: dict[str, Backoff] = {}
        self.live: Live | None = None

    def run(self) -> int:
        """The exit status."""
        try:
            if sys.stdout.isatty():
                from rich.live import Live

                with Live(self.table(), auto_refresh=False) as self.live:
                    return self._watch()
            return self._watch()
        except KeyboardInterrupt:
            self._say("stopping")
            return 0
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt this
            self.fleet.stop()

    def _watch(self) -> int:
        while True:
            for member in self.fleet.take_exits():
                self._died(member)
            if not self.restart and not self.fleet.living():
                self._say("no broker is left")
                return FAILED
            self._start_due()
            if not self.ready:
                self._look_whether_settled()
            if self.live is not None:
                self.live.update(self.table(), refresh=True)
            with self.fleet.changed:
                self.fleet.changed.wait(LOOK if self.ready else LOOK / 5)

    def _look_whether_settled(self) -> None:
        missing = self.fleet.unsettled()
        if missing is None and self.fleet.quiet() and len(self.fleet.living()) == len(self.fleet.members):
            self.ready = True
            topology = self.fleet.topology
            seconds = time.monotonic() - self.begin
            counts = f"brokers={len(topology.brokers)} links={len(topology.links)}"
            self._print(f"ready mesh={topology.mesh.name} {counts} seconds={seconds:.1f} data={self.fleet.folder}")
        elif missing not in (None, self.missing) and time.monotonic() - self.begin > PATIENCE:
            self._say(f"waiting: {missing}")
            self.missing = missing

    def _died(self, member: Member) -> None:
        name = member.name
        status = member.exit_status or 0
        ended = f"by signal {-status}" if status < 0 else f"with status {status}"
        self._say(f"{name} ended {ended}: {self.fleet.last_words(name)}")
        if self.restart:
            backoff = self.backoffs.setdefault(name, Backoff(*PAUSES))
            if time.monotonic() - member.started > HEALTHY:
                backoff.reset()
            delay = backoff.next()
            self.due[name] = time.monotonic() + delay
            self._say(f"{name} is started again in {delay:g} s")

    def _start_due(self) -> None:
        from .process import FleetError

        for name, when in list(self.due.items()):
            if time.monotonic() >= when:
                del self.due[name]
                try:
                    self.fleet.restart(name)
                    self._say(f"{name} runs again")
                except FleetError as error:
                    self._say(str(error))
                    self.due[name] = time.monotonic() + self.backoffs[name].next()

    def _say(self, text: str) -> None:
        if self.live is not None:
            self._print(text)
        else:
            note(f"up: {text}")

    def _print(self, text: str) -> None:
        """Print a line on stdout, above the table if there is one."""
        if self.live is None:
            print(text, flush=True)
            return
        from rich.text import Text

        self.live.console.print(Text(text))  # Text does not read brackets as markup

    def table(self) -> Table:
        """The table for a terminal, one line for each broker."""
        from ..tables import titled_table

        headings = ("broker", "number", "address", "process", "links", "published", "delivered", "sent")
        table = titled_table(f"mesh {self.fleet.topology.mesh.name}", *headings, left=("broker", "address", "links"))
        for member in self.fleet.members.values():
            table.add_row(*self._row(member))
        return table

    def _row(self, member: Member) -> list[str]:
        first = [member.name, str(member.number), member.address.endpoint]
        if not member.alive:
            return [*first, "starts soon" if member.name in self.due else "dead", "", "", "", ""]
        status = member.status
        if status is None:
            return [*first, str(member.pid), "no answer yet", "", "", ""]
        links = " ".join(f"[green]{link['name']}[/]" if link["up"] else f"[red]{link['address']}[/]" for link in status["links"])
        return [*first, str(member.pid), links, *(f"{status['counters'][key]:,}" for key in ("published", "delivered", "sent"))]
