"""One application after the other hangs under load, until all do; then they come back: the timeline, and what became of each message.

Intervals 1 s, 3 s, 10 s, 1,000 messages a second:

    load, all well ........ orders hangs ........ orders-turin hangs ........ orders-graz hangs: all are dead
    orders-graz wakes (its probe) ........ orders wakes, after its connection was closed (DEFUNCT) ........ orders-turin wakes
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.trials.recipients.scene import HOMES, Scene

DRAIN = 90.0  # seconds that everything may take at the end
APART = 1.0  # seconds of load before the next hang: what it catches on its way is no later message of this one
PATIENCE = 60.0  # seconds beyond an interval in which a change has to be heard of
NAMES = tuple(HOMES)
FIRST, SECOND, THIRD = NAMES


@dataclass(frozen=True)
class Hang:
    """One hang.

    noticed: seconds from its last message to the event that says that it is in FAULT; late: beyond its fault interval. moved:
    milliseconds that messages took that were published after that, while everybody else was well: median, 99 %, most.
    """

    name: str
    noticed: float
    late: float
    messages: int
    moved_p50: float
    moved_p99: float
    moved_most: float


@dataclass
class Report:
    """The outcome. ended: where messages have ended, how many. woke: seconds from SIGCONT until the application got a message again."""

    sent: int
    confirmed: int
    refused: int
    ended: dict[str, int]
    lost: int
    repeated: int
    marked: int
    disordered: int
    hangs: list[Hang]
    woke: dict[str, float]

    @property
    def good(self) -> bool:
        """Nothing lost, repeated without a mark, or out of order."""
        return not (self.lost or self.repeated or self.disordered or self.refused)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def run(scene: Scene, rate: float = 1000.0, between: float = 2.0) -> Report:
    """Let it happen. between: seconds of load after each hang was noticed, and after each return."""
    scene.note(f"{rate:,.0f} messages a second to {FIRST}")
    scene.publish(between, rate)
    hangs = [(name, *_hang(scene, name, rate, between)) for name in NAMES]
    scene.note("nobody takes anything")
    woke = {THIRD: _wake(scene, THIRD, rate, between)}
    scene.publish(PATIENCE, rate, lambda: scene.state(FIRST) == "DEFUNCT")
    woke[FIRST] = _wake(scene, FIRST, rate, between)
    scene.applications[SECOND].wake()
    scene.note(f"{SECOND} wakes")
    scene.note("everything arrives" if scene.drain(DRAIN) else "something is missing")
    return _report(scene, hangs, woke)


def _hang(scene: Scene, name: str, rate: float, between: float) -> tuple[float, float, float]:
    """(SIGSTOP, FAULT is known, until when messages are its later ones)"""
    stopped = scene.applications[name].hang()
    scene.note(f"SIGSTOP {name}")
    scene.publish(scene.intervals.fault + PATIENCE, rate, lambda: scene.state_at(name, "FAULT", stopped) is not None)
    noticed = scene.state_at(name, "FAULT", stopped)
    assert noticed is not None, f"{name} was never known to be in FAULT"
    scene.publish(between, rate)
    end = time.monotonic()
    scene.publish(APART, rate)
    return stopped, noticed, end


def _wake(scene: Scene, name: str, rate: float, between: float) -> float:
    """Seconds until it has a message that was published after it woke: what stood in its socket before does not count."""
    woke, number = scene.applications[name].wake(), len(scene.accounts.sent)
    scene.note(f"SIGCONT {name}")

    came = scene.accounts.came
    seen = len(came)

    def served() -> float | None:
        nonlocal seen
        while seen < len(came) and (came[seen][0] < number or came[seen][1].who != name):
            seen += 1
        return came[seen][1].at if seen < len(came) else None

    scene.publish(PATIENCE, rate, lambda: served() is not None)
    at = served()
    assert at is not None, f"{name} was not served again"
    scene.note(f"{name} is served again")
    scene.publish(between, rate)
    return at - woke


def _report(scene: Scene, hangs: list[tuple[str, float, float, float]], woke: dict[str, float]) -> Report:
    accounts = scene.accounts
    plain, marked = accounts.repeated()
    ended = {who: accounts.ended(who) for who in (*NAMES, "returned", "dead")}
    found = [_figures(scene, name, stopped, noticed, end) for name, stopped, noticed, end in hangs]
    disordered = sum(accounts.disordered(name) for name in NAMES)
    counts = len(accounts.sent), len(accounts.confirmed), accounts.refused
    return Report(*counts, ended, len(accounts.missing()), len(plain), marked, disordered, found, woke)


def _figures(scene: Scene, name: str, stopped: float, noticed: float, end: float) -> Hang:
    copies = scene.accounts.copies
    last = max((c.at for found in copies.values() for c in found if c.who == name and c.at <= stopped), default=stopped)
    waits = [
        (min(copy.at for copy in copies[number]) - at) * 1000
        for number, at in scene.accounts.sent.items()
        if noticed <= at < end and number in copies
    ]
    cuts = statistics.quantiles(waits, n=100) if len(waits) > 1 else [0.0] * 99
    seconds = noticed - last
    return Hang(name, seconds, seconds - scene.intervals.fault, len(waits), cuts[49], cuts[98], max(waits, default=0.0))
