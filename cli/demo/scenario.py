"""The main job of the demo, step by step: traffic in a stable ring, a link cut and mended, a broker killed and started again.

Between the stable part and the faults, publishing pauses until the counters of all brokers add up. So copies per message are exact, not
estimated. `tally` says what counts as due, lost and duplicate.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..fleet.process import Fleet
from . import interchange_act, journal_act
from .dead_recipient import DeadRecipientAct, DeadRecipientError, DeadRecipientResult, recipients
from .foreign_broker import ForeignBrokerAct, ForeignBrokerError, ForeignBrokerResult
from .interchange_act import InterchangeAct, InterchangeActError, InterchangeActResult
from .journal_act import JournalAct, JournalResult
from .queue_act import QueueAct, QueueActError, QueueActResult, queues
from .ring import ring
from .site import Site
from .tally import Apart, Outage, SiteResult, delays, flowing_again, judge

SETTLE = 60.0  # seconds for the mesh to settle
DRAIN = 60.0  # seconds for readings under way to arrive
TICK = 0.25  # seconds between two updates of the view

# The length of each part, as a fraction of the whole time. After its return the broker runs for the rest, at least for the last fraction.
STABLE, BEFORE_CUT, CUT, MENDED, KILLED, BACK = 0.25, 0.07, 0.14, 0.10, 0.16, 0.10


class View(Protocol):
    """Shows the progress of the job."""

    def phase(self, text: str) -> None:
        """A part begins, or there is a result."""

    def tick(self, job: Job) -> None:
        """Numbers may have changed."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of messages between brokers, in the stable part.

    messages: published ones.
    frames: data frames that brokers sent each other for them.
    optimum: frames for one message with the best tree, one for each other site.
    exact: the brokers' counters added up.
    trees: trees announced again in this part; more than 0 only if a link broke, for instance because the machine stood still.
    """

    messages: int
    frames: int
    optimum: int
    exact: bool
    trees: int = 0

    @property
    def per_message(self) -> float:
        return self.frames / self.messages if self.messages else 0.0


@dataclass(slots=True)
class Fault:
    """A fault or a repair.

    at: seconds from the start.
    flowed_again: seconds until a reading published after it had arrived between every pair of sites concerned; None: never.
    """

    what: str
    at: float
    flowed_again: float | None = None


@dataclass(slots=True)
class Report:
    """The result of the run."""

    seconds: float
    sites: list[SiteResult]
    killed: str
    apart: Apart
    copies: Copies
    faults: list[Fault]
    delay_p50: float  # seconds, publishing to arrival at another site, among surviving sites
    delay_p99: float
    delay_max: float
    abroad: ForeignBrokerResult = field(default_factory=ForeignBrokerResult)
    recipients: DeadRecipientResult = field(default_factory=DeadRecipientResult)
    queue: QueueActResult = field(default_factory=QueueActResult)
    interchange: InterchangeActResult = field(default_factory=InterchangeActResult)
    no_interchange: str = ""  # why its act was not played
    journal: JournalResult = field(default_factory=JournalResult)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing was lost or duplicated at the surviving sites, and there was no unplanned fault."""
        return not self.problems

    @property
    def totals(self) -> SiteResult:
        """Sums over the surviving sites; published and acknowledged of all sites."""
        total = SiteResult("surviving sites")
        for one in self.sites:
            total.published += one.published
            total.acknowledged += one.acknowledged
            if one.site != self.killed:
                for name in ("due", "delivered", "lost", "duplicates", "disorder"):
                    setattr(total, name, getattr(total, name) + getattr(one, name))
        return total

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON; times in seconds."""
        return {
            **asdict(self),
            "totals": asdict(self.totals),
            "copies": asdict(self.copies) | {"per_message": self.copies.per_message},
            "ok": self.ok,
        }


class Job:
    """One run. folder: for the brokers' files. seconds: of publishing. rate: readings a second of all sites together.

    pictures: where the last act keeps its pictures; None: it is left out.
    """

    def __init__(self, folder: Path, seconds: float, rate: float, view: View, pictures: Path | None = None) -> None:
        self.seconds = seconds
        self.view = view
        self.fleet = Fleet(ring(), folder, proxies=True)
        self.fleet.recipients = recipients()
        self._pictures, self._no_journal = pictures, "without Spark" if pictures is None else journal_act.missing()
        if not self._no_journal:
            self.fleet.journal = journal_act.settings(self.fleet.folder)
        self.names = list(self.fleet.members)
        self.fleet.queues = {self.names[1]: queues()}
        self._trade = self.names[0], self.names[1], self.names[2], self.names[4]
        self._no_interchange = interchange_act.missing()
        if not self._no_interchange:
            self.fleet.services = interchange_act.written(self.fleet.folder, self._trade)
        self.link = (self.names[0], self.names[1])
        self.killed = self.names[3]
        run = secrets.token_hex(4)
        each = rate / len(self.names)
        self.sites = {
            name: Site(name, self.names, member.address, run, each, self._lost_connection) for name, member in self.fleet.members.items()
        }
        self.faults: list[Fault] = []
        self.outage: Outage | None = None
        self.copies = Copies(0, 0, len(self.names) - 1, False)
        self.begin = 0.0
        self.problems: list[str] = []
        self._down: str | None = None

    # The run

    def run(self) -> Report:
        """Run the demo, and end all its processes and clients. Raises FleetError, SiteError."""
        try:
            self._start()
            self._stable_part()
            self._cut_a_link()
            self._kill_a_broker()
            left = self.begin + self.seconds - time.monotonic()
            self._pass(max(BACK, left / self.seconds))
            report = self._finish()
            self._use_foreign_broker(report)
            self._kill_recipients(report)
            self._work_orders(report)
            self._ask_banks(report)
            self._read_journal(report)
            return report
        finally:
            for site in self.sites.values():
                site.close()
            self.fleet.stop()

    def _start(self) -> None:
        self.view.phase(f"starting {len(self.names)} brokers in a ring: {', '.join(self.names)}")
        self.fleet.start()
        self._settle()
        for site in self.sites.values():
            site.connect()
        took = self._settle()
        self.view.phase(f"all links are up and interest has settled ({took:.1f} s); every site publishes and subscribes to all")

    def _stable_part(self) -> None:
        self.begin = time.monotonic()
        self._publish(True)
        self._wait(lambda: all(site.sent for site in self.sites.values()), DRAIN)  # a site's first reading opens its tree
        first, before, exact_before = self._pause()
        self._publish(True)
        self._pass(STABLE)
        self.view.phase("a short pause, so that the brokers' counters can be compared")
        last, after, exact_after = self._pause()
        messages, frames, trees = last - first, after["sent"] - before["sent"], after["trees"] - before["trees"]
        self.copies = Copies(messages, frames, len(self.names) - 1, exact_before and exact_after, trees)
        self.view.phase(f"{self.copies.per_message:.3f} copies per message between brokers; the best tree needs {self.copies.optimum}")
        self._publish(True)

    def _pause(self) -> tuple[int, dict[str, int], bool]:
        """Stop publishing until everything has arrived. Returns the number of published readings, the counters, and whether they add up."""
        self._publish(False)
        self._drain()
        messages = sum(len(site.sent) for site in self.sites.values())

        def adds_up() -> bool:
            now = self._counters()
            return now["published"] == messages and now["sent"] == now["received"] and not self._custody()

        exact = self._wait(adds_up, DRAIN)
        return messages, self._counters(), exact

    def _cut_a_link(self) -> None:
        self._pass(BEFORE_CUT)
        one, other = self.link
        self._fault(f"link {one} - {other} cut")
        self.fleet.cut(one, other)
        self._pass(CUT)
        self._fault(f"link {one} - {other} mended")
        self.fleet.mend(one, other)
        self._settle()

    def _kill_a_broker(self) -> None:
        self._pass(MENDED)
        name = self._down = self.killed
        self._fault(f"broker {name} killed (SIGKILL)")
        self.fleet.kill(name)
        killed = time.monotonic()
        self.outage = Outage(name, killed, float("inf"))
        self._pass(KILLED)
        self._fault(f"broker {name} started again (its client connects when the mesh has settled)")
        self.fleet.restart(name)
        self._settle()
        self.sites[name].connect()
        self._settle()
        self._down = None
        self.outage = Outage(name, killed, time.monotonic())
        self.view.phase(f"{name} is back in the mesh and its client has subscribed again")

    def _finish(self) -> Report:
        self._publish(False)
        self.view.phase("publishing has ended; waiting for readings under way")
        seconds = time.monotonic() - self.begin
        self._drain()
        self._wait(lambda: self._custody() == 0, DRAIN)
        sent, received = self._records()
        results, apart = judge(sent, received, self.outage)
        survivors = [name for name in self.names if name != self.killed]
        among = [(a, b) for a in survivors for b in survivors if a != b]
        everyone = [(a, b) for a in self.names for b in self.names if a != b]
        with_killed = [pair for pair in everyone if self.killed in pair]
        for fault, pairs in zip(self.faults, (everyone, everyone, among, with_killed), strict=True):
            fault.flowed_again = flowing_again(sent, received, self.begin + fault.at, pairs)
        late = delays(sent, received, leave_out=self.killed) or [0.0]
        report = Report(
            seconds=seconds,
            sites=results,
            killed=self.killed,
            apart=apart,
            copies=self.copies,
            faults=self.faults,
            delay_p50=late[len(late) // 2],
            delay_p99=late[len(late) * 99 // 100],
            delay_max=late[-1],
        )
        report.problems = self._problems(report)
        return report

    def _use_foreign_broker(self, report: Report) -> None:
        """The third act: a broker that the sites reach only through a metabroker."""
        begin = time.monotonic()
        act = ForeignBrokerAct(self.fleet, (self.names[1], self.names[4]), self.names[2], self.view.phase)
        try:
            report.abroad = act.run()
            report.problems += report.abroad.problems()
        except (ForeignBrokerError, OSError) as error:
            report.abroad = act.result
            report.problems.append(f"abroad: {error}")
        self.view.phase(f"the third act took {time.monotonic() - begin:.1f} s")

    def _kill_recipients(self, report: Report) -> None:
        """The fourth act: an application that hangs, and its alternative that does so too."""
        begin = time.monotonic()
        act = DeadRecipientAct(self.fleet, self.names[2], self.names[0], self.names[4], self.view.phase)
        try:
            report.recipients = act.run()
            report.problems += report.recipients.problems()
        except (DeadRecipientError, OSError) as error:
            report.problems.append(f"recipients: {error}")
        self.view.phase(f"the fourth act took {time.monotonic() - begin:.1f} s")

    def _work_orders(self, report: Report) -> None:
        """The fifth act: orders of three shops, worked by a pool at two sites."""
        begin = time.monotonic()
        shops = self.names[0], self.names[2], self.names[3]
        act = QueueAct(self.fleet, shops, self.names[1], self.names[4], self.view.phase)
        try:
            report.queue = act.run()
            report.problems += report.queue.problems()
        except (QueueActError, OSError) as error:
            report.problems.append(f"queue: {error}")
        self.view.phase(f"the fifth act took {time.monotonic() - begin:.1f} s")

    def _ask_banks(self, report: Report) -> None:
        """The sixth act: a shop asks banks at two sites, of which one is cut off."""
        report.no_interchange = self._no_interchange
        if self._no_interchange:
            return
        begin = time.monotonic()
        act = InterchangeAct(self.fleet, self._trade, (self.names[3], self.names[0]), self.view.phase)
        try:
            report.interchange = act.run()
            report.problems += report.interchange.problems()
        except (InterchangeActError, OSError) as error:
            report.interchange = act.result
            report.problems.append(f"interchange: {error}")
        self.view.phase(f"the sixth act took {time.monotonic() - begin:.1f} s")

    def _read_journal(self, report: Report) -> None:
        """The last act: Spark over the journal. The brokers end first, which closes their segments."""
        report.journal = JournalResult(self._no_journal)
        if self._no_journal or self._pictures is None:
            return
        begin = time.monotonic()
        began = time.time() - (begin - self.begin)
        did = [(fault.at, fault.what) for fault in self.faults]
        did += [(report.seconds, "the third to the sixth act"), (begin - self.begin, "all brokers ended")]
        for site in self.sites.values():
            site.close()
        self.fleet.stop()
        sites = {member.number: name for name, member in self.fleet.members.items()}
        report.journal = JournalAct(self.fleet.folder, self._pictures, sites, began, did, self.view.phase).run()
        report.problems += report.journal.problems()
        self.view.phase(f"the last act took {time.monotonic() - begin:.1f} s")

    def _problems(self, report: Report) -> list[str]:
        total = report.totals
        found = list(self.problems)
        if total.lost:
            found.append(f"{total.lost} readings were lost at surviving sites")
        if total.duplicates:
            found.append(f"{total.duplicates} duplicates arrived at surviving sites")
        found += [f"{name} logged {count} errors" for name in self.names if (count := self.fleet.errors(name))]
        if not total.due:
            found.append("no reading was due anywhere")
        for fault in report.faults:
            if fault.flowed_again is None:
                found.append(f"traffic did not flow again after: {fault.what}")
        return found

    # Helpers

    def _publish(self, running: bool) -> None:
        for site in self.sites.values():
            if running:
                site.start()
            else:
                site.pause()

    def _fault(self, what: str) -> None:
        self.faults.append(Fault(what, time.monotonic() - self.begin))
        self.view.phase(what)

    def _lost_connection(self, name: str) -> None:
        """Called in a client's thread."""
        if name != self._down:
            self.problems.append(f"the client of {name} lost its connection")

    def _pass(self, part: float) -> None:
        self._wait(lambda: False, part * self.seconds)

    def _settle(self) -> float:
        begin = time.monotonic()
        for _ in self.fleet.settling(SETTLE):
            self._look()
        return time.monotonic() - begin

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for `condition`, at most `timeout` seconds, and update the view. Checks it after each report of a broker."""
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return False
            with self.fleet.changed:
                self.fleet.changed.wait(min(left, TICK))
            self._look()
        return True

    def _look(self) -> None:
        for member in self.fleet.take_exits():
            self.problems.append(f"the broker {member.name} ended by itself with status {member.exit_status}")
        self.view.tick(self)

    def _drain(self) -> None:
        """Wait until every reading is acknowledged and has arrived at all sites where it is due."""

        def empty() -> bool:
            if any(site.unacknowledged for site in self.sites.values()):
                return False
            return not any(result.lost for result in judge(*self._records(), self.outage)[0])

        self._wait(empty, DRAIN)

    def _records(self) -> tuple[dict[str, Any], dict[str, Any]]:
        sites = self.sites.items()
        return {name: site.sent for name, site in sites}, {name: site.arrivals for name, site in sites}

    def _statuses(self) -> Iterable[dict[str, Any]]:
        return [member.status for member in self.fleet.members.values() if member.status is not None]

    def _counters(self) -> dict[str, int]:
        """The sums of all brokers' counters, from their last status."""
        return {key: sum(status["counters"][key] for status in self._statuses()) for key in ("published", "sent", "received", "trees")}

    def _custody(self) -> int:
        return sum(status["custody"]["messages"] for status in self._statuses())
