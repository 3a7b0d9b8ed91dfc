"""A mesh of broker processes under load, faults that can be done to it, and one round of one fault.

A `Scene` is a fleet whose links run through proxies, and the clients of `load.py` at its sites. A `Fault` says how it begins
and ends and what it takes away meanwhile. `Scene.round` lets one happen under load and says how long each site had to wait for
traffic, then lets everything arrive and says what was lost, doubled or out of order.

*Surviving* are the sites whose broker runs all the time. The gap at a site is the longest time without a message from some
publisher that has a path to it: it begins with the fault and ends with the first message behind it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import networkx as nx
from mqmesh.broker.config import BrokerConfig
from mqmesh.broker.mesh.identity import KEY_FILE
from mqmesh.cli.demo.ring import free_ports
from mqmesh.cli.fleet.process import Fleet, FleetError
from mqmesh.mesh.topology.settings import MeshSettings
from mqmesh.mesh.topology.topology import BrokerEntry, LinkEntry, Topology

from benchmarks.trials.load import SIZES, Count, Group, Load

SETTLE = 90.0  # seconds that the mesh has to settle
DRAIN = 90.0  # seconds in which something has to arrive, as long as messages are on their way
FLOW = 60.0  # seconds that traffic has to come back
STILL = 1.3  # seconds without a change of any broker's counters, which it says each second at the most

Link = tuple[str, str]


@dataclass(slots=True)
class Fault:
    """Something that breaks. gone: sites whose brokers do not serve meanwhile. cut: links that carry nothing meanwhile."""

    what: str
    begin: Callable[[], None]
    end: Callable[[], None]
    gone: frozenset[str] = frozenset()
    cut: tuple[Link, ...] = ()


@dataclass(slots=True)
class Round:
    """What one fault did. gaps: seconds without traffic at each surviving site after the fault, mended: after the repair."""

    what: str
    gaps: dict[str, float]
    mended: dict[str, float]
    count: Count
    messages: int
    problems: list[str] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.gaps.values(), default=0.0)

    @property
    def worst_mended(self) -> float:
        return max(self.mended.values(), default=0.0)

    @property
    def ok(self) -> bool:
        """Nothing lost, doubled, disordered, altered or refused, and nothing ended by itself."""
        return self.count.clean and not self.problems

    def __str__(self) -> str:
        count = self.count
        gaps = " ".join(f"{site}={gap:.2f}" for site, gap in self.gaps.items())
        text = (
            f"{self.what}: traffic again after {self.worst:.2f} s ({gaps}), after the repair {self.worst_mended:.2f} s; "
            f"{self.messages} published, {count.received} received, {count.lost} lost, {count.duplicates} duplicated, "
            f"{count.again} again at QoS 1, {count.disorder} out of order"
        )
        return "\n  ".join([text, *self.problems])


def mesh(links: Iterable[Link], mode: str = "routed") -> Topology:
    """A mesh with these links on free ports of this machine; brokers are numbered in the order of their names."""
    links = list(links)
    names = sorted({site for link in links for site in link})
    brokers = [
        BrokerEntry(name, number, (f"mqtt://127.0.0.1:{port}",))
        for number, (name, port) in enumerate(zip(names, free_ports(len(names)), strict=True), 1)
    ]
    settings = MeshSettings("faults", secrets.token_hex(16), mode, retry_last=1.0)
    return Topology("faults", settings, brokers, [LinkEntry(*link) for link in links])


class _Fleet(Fleet):
    """durability: of all its brokers."""

    durability = "fsync"

    def configuration(self, name: str) -> BrokerConfig:
        config = super().configuration(name)
        return replace(config, store=replace(config.store, durability=self.durability))


class Scene:
    """The brokers of `topology` in `folder`, and their load. Use it with `with`: all processes and clients end there.

    durability: what the brokers' acknowledgements wait for, "fsync", "os" or "memory".
    """

    def __init__(self, topology: Topology, folder: Path, durability: str = "fsync") -> None:
        self.fleet = _Fleet(topology, folder, proxies=True)
        self.fleet.durability = durability
        self.load = Load()
        self.sites = list(self.fleet.members)
        self.links: list[Link] = [(link.listener, link.dialler) for link in topology.links]
        self._counted = Count()
        self._sent = 0
        self._stopped: set[str] = set()

    def __enter__(self) -> Scene:
        self.fleet.start()
        try:
            self.load.__enter__()
            self.settle()
        except BaseException:
            self.fleet.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for site in list(self._stopped):
            self._signal(site, signal.SIGCONT)
        self.load.__exit__()
        self.fleet.stop()

    def settle(self) -> float:
        """Wait until the mesh has settled; the seconds that it took."""
        return self.fleet.wait_settled(SETTLE)

    def address(self, site: str) -> tuple[str, int]:
        """Where the site's clients connect."""
        address = self.fleet.members[site].address
        return address.host, address.port

    @property
    def keeps(self) -> bool:
        """Whether brokers have on disk what they have acknowledged."""
        return self.fleet.durability != "memory"

    # Load

    def publish(self, rate: float, qos: int = 1, sites: Sequence[str] = (), sizes: tuple[int, ...] = SIZES) -> None:
        """A publisher at each of the sites (all by default); `rate` is that of all together, in messages a second."""
        for site in sites or self.sites:
            self.load.publish(site, self.address(site), qos, rate / len(sites or self.sites), sizes)

    def subscribe(self, sites: Sequence[str] = (), qos: int = 2) -> None:
        """A subscriber to everything at each of the sites (all by default)."""
        for site in sites or self.sites:
            self.load.subscribe(site, self.address(site), qos)

    def share(self, sites: Sequence[str], name: str = "g", qos: int = 2) -> None:
        """One shared subscription to everything with a member at each of the sites."""
        group = Group()
        for site in sites:
            self.load.subscribe(site, self.address(site), qos, f"$share/{name}/load/#", group)

    def start(self) -> None:
        """Publish, and return when every subscriber has heard from every publisher."""
        self.settle()
        self.load.meter()
        self.load.start()
        self.load.flows(FLOW)

    # Faults

    def cut(self, *links: Link) -> Fault:
        """Links that break with a reset and cannot be made again."""

        def begin() -> None:
            for link in links:
                self.fleet.cut(*link)

        def end() -> None:
            for link in links:
                self.fleet.mend(*link)

        return Fault(f"cut {_names(links)}", begin, end, cut=links)

    def silence(self, link: Link, resume: bool = False) -> Fault:
        """A link that stalls without closing. resume: it goes on where it was, else its connections break when it is repaired."""
        proxy = self.fleet.proxies[frozenset(link)]
        return Fault(f"stall {_names([link])}", proxy.silence, proxy.resume if resume else proxy.mend, cut=(link,))

    def throttle(self, link: Link, rate: int) -> Fault:
        """A link that carries `rate` bytes a second only."""
        proxy = self.fleet.proxies[frozenset(link)]
        return Fault(f"slow {_names([link])}", lambda: proxy.throttle(rate), lambda: proxy.throttle(None))

    def kill(self, site: str, wipe: bool = False) -> Fault:
        """A broker that dies at once and is started again, with its data folder or (wipe) with one that holds nothing but its key."""

        def begin() -> None:
            self.load.down.add(site)
            self.fleet.kill(site)
            self.load.killed(site, self.keeps and not wipe)
            self._wait_noticed(site)
            self.load.noticed(site)

        def end() -> None:
            if wipe:
                folder = self.fleet.folder / site
                key = (folder / KEY_FILE).read_text()
                shutil.rmtree(folder)
                folder.mkdir()
                (folder / KEY_FILE).write_text(key)
            self.fleet.restart(site)
            self.settle()
            self.load.returned(site)
            self.settle()
            self.load.settled(site)
            self.load.down.discard(site)

        return Fault(f"kill {site}{' and wipe its data' if wipe else ''}", begin, end, gone=frozenset((site,)))

    def _wait_noticed(self, site: str) -> None:
        """Wait until no living broker takes the site for reachable."""
        number = self.fleet.members[site].number
        end = time.monotonic() + FLOW
        while any(one["live"] for status in self.statuses().values() for one in status["members"] if one["number"] == number):
            if time.monotonic() > end:
                raise FleetError(f"the mesh has not noticed within {FLOW:g} s that {site} is gone")
            with self.fleet.changed:
                self.fleet.changed.wait(0.1)

    def stop(self, site: str) -> Fault:
        """A broker that does nothing for a while (SIGSTOP, SIGCONT) and does not know it."""

        def begin() -> None:
            self._stopped.add(site)
            self._signal(site, signal.SIGSTOP)

        def end() -> None:
            self._signal(site, signal.SIGCONT)
            self._stopped.discard(site)

        return Fault(f"stop {site}", begin, end, gone=frozenset((site,)))

    def _signal(self, site: str, number: int) -> None:
        pid = self.fleet.members[site].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    # Rounds

    def round(
        self, fault: Fault, seconds: float, after: float = 0.5, patience: float = DRAIN, step: Callable[[str], None] = lambda text: None
    ) -> Round:
        """Let the fault be for `seconds` and look at traffic for `after` seconds behind the repair, all under load.

        patience: seconds in which something has to arrive while messages are on their way. step: told what happens. What was lost is
        known when everything has arrived: publishing pauses at the end of a round.
        """
        load = self.load
        load.start()
        load.meter()
        load.flows(FLOW)
        load.meter()
        step(fault.what)
        fault.begin()
        time.sleep(seconds)
        apart = self._apart(fault)
        gaps = {site: gap for site, gap in load.gaps(apart).items() if site not in fault.gone}
        step("repair")
        load.meter()
        fault.end()
        time.sleep(after)
        load.flows(FLOW)
        mended = {site: gap for site, gap in load.gaps(self._among(fault)).items() if site not in fault.gone}
        step("all arrive")
        return self._finish(fault.what, gaps, mended, patience)

    def check(self, what: str, patience: float = DRAIN) -> Round:
        """Let everything arrive, and count what happened since the last round. patience: see `round`."""
        return self._finish(what, {}, {}, patience)

    def _finish(self, what: str, gaps: dict[str, float], mended: dict[str, float], patience: float) -> Round:
        drained = self.load.drain(patience)
        self.settle()
        now, sent = self.load.count(), self.load.sent
        result = Round(what, gaps, mended, now.minus(self._counted), sent - self._sent)
        self._counted, self._sent = now, sent
        if not drained:
            result.problems += self.load.behind()[:20]
        result.problems += self.load.problems
        self.load.problems = []
        for member in self.fleet.take_exits():
            result.problems.append(f"the broker {member.name} ended with status {member.exit_status}: {self.fleet.last_words(member.name)}")
        if not result.ok:
            result.problems.append(f"mesh: {self.counters()}")
        return result

    def _apart(self, fault: Fault) -> Callable[[str, str], bool]:
        """Whether two sites have no path during the fault."""
        graph: nx.Graph[str] = nx.Graph(self.links)
        graph.remove_edges_from(fault.cut)
        graph.remove_nodes_from(fault.gone)
        parts = {site: number for number, part in enumerate(nx.connected_components(graph)) for site in part}
        return lambda publisher, subscriber: parts.get(publisher) != parts.get(subscriber) or publisher in fault.gone

    @staticmethod
    def _among(fault: Fault) -> Callable[[str, str], bool]:
        """The repair concerns all but the broker that comes back."""
        return lambda publisher, subscriber: publisher in fault.gone

    # What the brokers say

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Site -> what its broker last said of the mesh."""
        with self.fleet.changed:
            return {member.name: dict(member.status) for member in self.fleet.living() if member.status is not None}

    def counters(self) -> dict[str, int]:
        """The sums of all brokers' counters that are not zero."""
        total: dict[str, int] = {}
        for status in self.statuses().values():
            for name, value in status["counters"].items():
                total[name] = total.get(name, 0) + value
        return {name: value for name, value in total.items() if value}

    def still(self, timeout: float = 10.0) -> dict[str, int]:
        """The counters, once they have not changed for a while: no frame is under way then and all has been said."""
        end = time.monotonic() + timeout
        before, since = self.counters(), time.monotonic()
        while (left := min(end, since + STILL) - time.monotonic()) > 0:
            with self.fleet.changed:
                self.fleet.changed.wait(left)
            now = self.counters()
            if now != before:
                before, since = now, time.monotonic()
        return before

    @property
    def held(self) -> int:
        """Messages that the brokers hold in custody, as they said last."""
        return sum(int(status["custody"]["messages"]) for status in self.statuses().values())


def _names(links: Sequence[Link]) -> str:
    return ", ".join(" - ".join(link) for link in links)
