"""Brokers are killed with SIGKILL at random, under load, while applications hang and wake: is anything lost?

A round: perhaps some applications hang. Messages flow. At some moment a broker dies: the origin's, or one of an application. It is started
again a moment later, messages flow on. All applications wake, and each confirmed message has to be somewhere.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.trials.recipients.hang import NAMES
from benchmarks.trials.recipients.scene import HOMES, ORIGIN, Scene

DRAIN = 120.0  # seconds


@dataclass
class Report:
    """The outcome of all rounds. killed: how often each broker. problems: what else went wrong."""

    rounds: int
    killed: dict[str, int]
    sent: int
    confirmed: int
    refused: int
    ended: dict[str, int]
    lost: int
    repeated: int
    marked: int
    problems: list[str]

    @property
    def good(self) -> bool:
        """Nothing lost. A killed broker may have delivered what it then has not noted: its repeats are QoS 1's own."""
        return not (self.lost or self.problems)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def run(scene: Scene, rounds: int, seed: int, rate: float = 300.0) -> Report:
    """All rounds. It ends early where something is lost."""
    chance, killed, problems = random.Random(seed), Counter[str](), list[str]()
    sites = [ORIGIN, *HOMES.values()]
    for number in range(1, rounds + 1):
        site = chance.choice(sites)
        killed[site] += 1
        _round(scene, site, chance, rate)
        if not scene.drain(DRAIN):
            problems.append(f"round {number}, kill {site}: missing {scene.accounts.missing()[:10]}")
            break
        plain = len(scene.accounts.repeated()[0])
        scene.note(
            f"round {number} of {rounds}: kill -9 {site}; {len(scene.accounts.confirmed):,} confirmed, 0 lost, {plain} repeated unmarked"
        )
    accounts = scene.accounts
    repeated, marked = accounts.repeated()
    ended = {who: accounts.ended(who) for who in (*NAMES, "returned", "dead")}
    counts = len(accounts.sent), len(accounts.confirmed), accounts.refused
    return Report(sum(killed.values()), dict(killed), *counts, ended, len(accounts.missing()), len(repeated), marked, problems)


def _round(scene: Scene, site: str, chance: random.Random, rate: float) -> None:
    hanging = [name for name in NAMES if chance.random() < 0.5]
    for name in hanging:
        scene.applications[name].hang()
    scene.publish(chance.uniform(0.0, scene.intervals.fault * 1.3), rate)
    scene.fleet.kill(site)
    scene.publish(chance.uniform(0.0, 1.5), rate)
    scene.fleet.restart(site)
    scene.publish(chance.uniform(0.0, 1.0), rate)
    time.sleep(chance.uniform(0.0, scene.intervals.fault * 1.3))
    for name in hanging:
        scene.applications[name].wake()
