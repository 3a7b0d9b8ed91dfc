"""All brokers of a topology as processes of their own: start, watch, kill, restart, stop; cut and mend links.

A `Fleet` keeps for each broker its process and its last status (`watch.py`). Two kinds of thread report to it: one waits for the end of a
process, and one reads its statuses. Both change a `Member` under `changed` and wake the waiters. Everything else happens in
the caller's thread.

A folder holds for each broker NAME.toml (its configuration), NAME.pid, NAME.log (its stderr) and NAME/ (its data).
Brokers end with the process that started them: their standard input is a pipe, and they stop when it closes.

*Settled* means: every link of the topology between living brokers is up, with the same incarnation at both ends. All living brokers know
the same link state and interest (equal digests). And nothing has changed for `QUIET` seconds.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.address import Address, parse_address
from ...mesh.topology.listeners import LINKS, serves_of
from . import broker_file
from .proxy import Proxy
from .watch import STATUS_PIPE, Status, follow

if TYPE_CHECKING:
    from ...broker.config import BrokerConfig
    from ...broker.journal.settings import JournalSettings
    from ...broker.queues.core.rules import Rules
    from ...broker.recipients.settings import RecipientSettings
    from ...mesh.topology.topology import BrokerEntry, LinkEntry, Topology

QUIET = 0.3  # seconds without a change after which the mesh counts as settled
START_PATIENCE = 60.0  # seconds that a broker has for its `ready` line
STOP_PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL
LOG_LINES = 5


class FleetError(Exception):
    """A broker cannot be started, or the mesh does not settle. The message says which, why, and where to look."""


@dataclass(slots=True)
class Member:
    """One broker.

    process: None before its first start.
    exit_status: set when it has ended; negative: by a signal.
    expected_end: we ended it.
    follower: reads what it reports, and closes its stdout.
    started: monotonic seconds.
    """

    name: str
    number: int
    address: Address
    process: subprocess.Popen[str] | None = None
    exit_status: int | None = None
    expected_end: bool = False
    status: Status | None = None
    started: float = 0.0
    follower: threading.Thread | None = field(default=None, repr=False)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.exit_status is None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.alive else None


class Fleet:
    """The brokers of `topology`. With `proxies`, each link runs through a proxy, so that `cut` and `mend` work.

    folder: for pid files, logs and data. Created if missing.
    """

    def __init__(self, topology: Topology, folder: Path, proxies: bool = False) -> None:
        self.folder = folder.absolute()
        self.environments: dict[str, dict[str, str]] = {}  # of a broker's process, beside this process's own; for its next start
        self.recipients: RecipientSettings | None = None  # of every broker
        self.journal: JournalSettings | None = None  # of every broker: they write to one
        self.queues: dict[str, dict[str, Rules]] = {}  # by the name of their home
        self.services: Path | None = None  # of the interchange of every broker, in a file
        self.changed = threading.Condition()
        self.proxies: dict[frozenset[str], Proxy] = {}
        self.topology = self._with_proxies(topology) if proxies else topology
        self.members = {one.name: Member(one.name, one.number, _client_address(_for_clients(one))) for one in topology.brokers}
        self._news = 0.0  # when the last change was, monotonic seconds
        self._exits: list[Member] = []

    def _with_proxies(self, topology: Topology) -> Topology:
        links: list[LinkEntry] = []
        for link in topology.links:
            target = parse_address(topology.dial_address(link))
            proxy = self.proxies[link.ends] = Proxy(target.host, target.port)
            url = proxy.url.replace("mqtt://", "mqtts://", 1) if target.tls else proxy.url
            links.append(replace(link, address=url))
        return replace(topology, links=links)

    # Life

    def start(self) -> None:
        """Start every broker. Returns when all listen. On an error it stops those that run, and raises FleetError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.members:
            self._refuse_second(name)
        try:
            for name in self.members:
                self._spawn(self.members[name])
            for member in self.members.values():
                self._await_ready(member)
        except BaseException:
            self.stop()
            raise

    def restart(self, name: str) -> None:
        """Start one broker (again). Raises FleetError."""
        member = self.members[name]
        assert not member.alive, f"{name} is running"
        self._spawn(member)
        self._await_ready(member)

    def kill(self, name: str) -> None:
        """Kill one broker (SIGKILL), and wait for its end."""
        self._end(self.members[name], subprocess.Popen.kill)

    def stop_one(self, name: str) -> None:
        """Stop one broker in order (SIGTERM), and wait for its end."""
        self._end(self.members[name], subprocess.Popen.terminate)

    def stop(self) -> None:
        """Stop every broker in order, and the proxies. Kills brokers that do not stop."""
        for member in self.members.values():
            member.expected_end = True
            if member.process is not None and member.alive:
                member.process.terminate()
        for member in self.members.values():
            if member.process is not None:
                self._reap(member)
        for proxy in self.proxies.values():
            proxy.close()

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, member: Member) -> None:
        file = self.folder / f"{member.name}.toml"
        topology = self.topology
        given: dict[str, object] = {"recipients": self.recipients, "journal": self.journal, "queues": self.queues.get(member.name)}
        given["interchange"] = self.services
        tables = {key: table for key, table in topology.tables_of(member.name).items() if given.get(key) is None}
        broker_file.write(file, self.configuration(member.name), tables, Path(topology.file).absolute().parent)
        command = [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(file), "--stop-with-stdin"]
        pipe, environment = subprocess.PIPE, {**os.environ, STATUS_PIPE: "1", **self.environments.get(member.name, {})}
        with self.log(member.name).open("a") as log:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, process_group=0, env=environment)
        (self.folder / f"{member.name}.pid").write_text(f"{process.pid}\n")
        with self.changed:
            member.process, member.exit_status, member.expected_end, member.status = process, None, False, None
            member.follower = None
            member.started = time.monotonic()
        threading.Thread(target=self._await_exit, args=(member, process), name=f"exit-{member.name}", daemon=True).start()

    def configuration(self, name: str) -> BrokerConfig:
        """The configuration of a broker. Raises ConfigError."""
        from ...broker.config import of_topology
        from ...broker.queues.settings import QueueSettings
        from ...broker.settings.interchange import InterchangeSettings

        config = of_topology(self.topology, name, self.folder)
        if self.services is not None:
            config.interchange = InterchangeSettings("", self.services)
        config.recipients = self.recipients or config.recipients
        config.journal = self.journal or config.journal
        if name in self.queues and config.data is not None:
            config.queues = QueueSettings(
                self.queues[name], {one: [] for one in self.queues[name]}, folder=config.data / "queues", durability=config.store.durability
            )
        return config

    def _await_exit(self, member: Member, process: subprocess.Popen[str]) -> None:
        status = process.wait()
        with contextlib.suppress(OSError):
            (self.folder / f"{member.name}.pid").unlink()
        with self.changed:
            member.exit_status, member.status = status, None
            if not member.expected_end:
                self._exits.append(member)
            self._news = time.monotonic()
            self.changed.notify_all()

    def _await_ready(self, member: Member) -> None:
        """Wait for the line that starts with `ready`, then follow the broker's status."""
        assert member.process is not None
        assert member.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(member.process.stdout, selectors.EVENT_READ)
            line = member.process.stdout.readline() if selector.select(START_PATIENCE) else "nothing"
        if not line.startswith("ready"):
            member.expected_end = True
            self.kill(member.name)
            with self.changed:
                self._exits = [one for one in self._exits if one is not member]  # the exception reports it
            said = self.last_words(member.name).splitlines()
            why = said[-1].strip().removeprefix("mqmesh: ") if len(said) > 1 else f"it printed {line!r}"
            raise FleetError(f"{member.name} did not start: {why} ({said[0]})")
        process = member.process
        member.follower = follow(member.process.stdout, lambda status: self.heard(member, process, status))

    def heard(self, member: Member, process: subprocess.Popen[str] | None, status: Status) -> None:
        """Take over what a broker's process has said."""
        with self.changed:
            if member.alive and member.process is process:
                member.status = status
            self._news = time.monotonic()
            self.changed.notify_all()

    def _end(self, member: Member, how: Callable[[subprocess.Popen[str]], None]) -> None:
        member.expected_end = True
        if member.process is not None:
            how(member.process)
            self._reap(member)

    def _reap(self, member: Member) -> None:
        process = member.process
        assert process is not None
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with self.changed:
            self.changed.wait_for(lambda: not member.alive, START_PATIENCE)
        if member.follower is not None:
            member.follower.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _refuse_second(self, name: str) -> None:
        """Raise FleetError if a broker of another fleet runs in this folder. Remove the pid file of a dead process."""
        file = self.folder / f"{name}.pid"
        try:
            pid = int(file.read_text())
        except (OSError, ValueError):
            return
        if _is_broker(pid, self.folder / f"{name}.toml"):
            raise FleetError(f"{name} of {self.folder} runs already (process {pid}): stop that mesh first, or give another --data folder")
        file.unlink()

    # State

    def log(self, name: str) -> Path:
        """The file with the broker's stderr."""
        return self.folder / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last lines of a broker's log, and the path of the log."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()[-LOG_LINES:]
        except OSError:
            lines = []
        return "\n  ".join([f"see {self.log(name)}", *lines])

    def errors(self, name: str) -> int:
        """How many errors a broker has logged in this folder: records of level error, and tracebacks."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except OSError:
            return 0
        return sum(" level=error " in line or line.startswith("Traceback ") for line in lines)

    def take_exits(self) -> list[Member]:
        """The brokers that have ended by themselves since the last call."""
        with self.changed:
            exits, self._exits = self._exits, []
        return exits

    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.alive]

    def unsettled(self) -> str | None:
        """What is missing, or None if links and digests are right at this moment."""
        with self.changed:
            for member in self.living():
                if member.status is None:
                    return f"{member.name} has not said its status"
            for link in self.topology.links:
                missing = self._link_problem(link)
                if missing:
                    return missing
            digests = {str(member.status["digest"]) for member in self.living() if member.status is not None}
        if len(digests) > 1:
            return "the brokers do not agree yet on links and interest"
        return None

    def _link_problem(self, link: LinkEntry) -> str | None:
        """What is wrong with a link. None also for one that cannot be up: an end is not running, or it is cut."""
        a, b = self.members[link.dialler], self.members[link.listener]
        proxy = self.proxies.get(link.ends)
        if not (a.alive and b.alive) or (proxy is not None and proxy.mode is not proxy.mode.PASS):
            return None
        ends = [self._end_of(a, b), self._end_of(b, a)]
        if None in ends:
            error = self._link_error(a, b) or self._link_error(b, a)
            return f"the link between {link.listener} and {link.dialler} is down" + (f": {error}" if error else "")
        if ends[0] != ends[1]:
            return f"{link.listener} and {link.dialler} do not agree on their link yet"
        return None

    @staticmethod
    def _end_of(member: Member, other: Member) -> int | None:
        """The incarnation of the link to `other` in what `member` said, None when it is not up."""
        for link in (member.status or {}).get("links", ()):
            if link["number"] == other.number and link["up"]:
                return int(link["incarnation"])
        return None

    def _link_error(self, member: Member, other: Member) -> str | None:
        for link in (member.status or {}).get("links", ()):
            if link["number"] in (other.number, None) and link.get("error"):
                return str(link["error"])
        return None

    def quiet(self) -> bool:
        """Whether nothing was heard for `QUIET` seconds."""
        return time.monotonic() - self._news >= QUIET

    def wait_settled(self, timeout: float) -> float:
        """Wait until the mesh has settled; the seconds that it took. Raises FleetError with what is missing."""
        begin = time.monotonic()
        for _ in self.settling(timeout):
            pass
        return time.monotonic() - begin

    def settling(self, timeout: float) -> Iterator[str]:
        """Yield what is missing, after each change, until the mesh has settled. Raises FleetError."""
        self._touch()  # count from here: the brokers may not have reported the caller's last change
        end = time.monotonic() + timeout
        while True:
            missing = self.unsettled()
            with self.changed:
                quiet = time.monotonic() - self._news
                if missing is None and quiet >= QUIET:
                    return
                left = end - time.monotonic()
                if left > 0:
                    self.changed.wait(min(left, 0.5 if missing else QUIET - quiet))
            if missing is not None:
                if left <= 0:
                    raise FleetError(f"the mesh has not settled within {timeout:g} s: {missing}")
                yield missing

    # Faults

    def cut(self, one: str, other: str) -> None:
        """Break the link between two brokers until `mend`. KeyError without a proxy there."""
        self.proxies[frozenset((one, other))].cut()
        self._touch()

    def mend(self, one: str, other: str) -> None:
        """Let the link come up again."""
        self.proxies[frozenset((one, other))].mend()
        self._touch()

    def _touch(self) -> None:
        with self.changed:
            self._news = time.monotonic()
            self.changed.notify_all()


def _for_clients(broker: BrokerEntry) -> tuple[str, ...]:
    """Its listeners that serve clients; all of them if none does."""
    return tuple(one for one in broker.listen if serves_of(one, broker.serves) != LINKS) or broker.listen


def _client_address(listen: tuple[str, ...]) -> Address:
    """The address of a broker for a client on this machine: without TLS if possible, on the loopback interface if it listens on all."""
    address = parse_address(next((one for one in listen if one.startswith(("mqtt://", "unix://"))), listen[0]))
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host)
    return address._replace(host=loopback) if loopback else address


def _is_broker(pid: int, config: Path) -> bool:
    """Whether this process is a broker with this configuration file. The system reuses numbers of processes."""
    import psutil

    try:
        return pid != os.getpid() and str(config) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
