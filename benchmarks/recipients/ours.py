"""mqmesh: two brokers with stores, the recipient at one and its alternative at the other. The sender publishes at the recipient's broker.

Both recipients are clients that know nothing of this; the brokers' files name them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mqmesh.broker.config import of_topology
from mqmesh.broker.recipients.settings import DEFAULT, Application, Intervals, RecipientSettings
from mqmesh.cli.fleet import broker_file

from benchmarks.peers import Deployment, says_ready
from benchmarks.peers import Mqmesh as Peer
from benchmarks.recipients.mqtt import MqttSender, receive
from benchmarks.recipients.system import WHO, Record, Sender, Sent, System
from benchmarks.trials.scene import mesh

SITES = ("porto", "turin")
TUNED = Intervals(1.0, 3.0, 10.0)


class Mqmesh(System):
    """What a recipient does not take goes to its alternative; what none takes comes back to its sender."""

    name = "mqmesh, recipient with an alternative at another broker"

    @property
    def intervals(self) -> Intervals:
        """Message, fault and defunct interval."""
        return TUNED if self.tuned else DEFAULT

    @property
    def settings(self) -> str:
        return f"message, fault and defunct interval {', '.join(f'{seconds:g} s' for seconds in self.intervals)}"

    def version(self) -> str:
        return Peer().version()

    def deploy(self, folder: Path) -> Deployment:
        folder.mkdir(parents=True)
        topology = mesh([SITES])
        first, second = WHO
        applications = [
            Application(first, [first], [], [second], self.intervals, broker=SITES[0]),
            Application(second, [second], [], [], self.intervals, broker=SITES[1]),
        ]
        recipients = RecipientSettings(intervals=self.intervals, applications=applications)
        configs = [replace(of_topology(topology, site, folder), recipients=recipients) for site in SITES]
        deployment = Deployment(folder, ports=[int(config.listen[0].rpartition(":")[2]) for config in configs])
        for site, config in zip(SITES, configs, strict=True):
            file = folder / f"{site}.toml"
            broker_file.write(file, config)
            deployment.start(site, [sys.executable, "-m", "mqmesh.cli.main", "broker", "--config", str(file)], says_ready)
        return deployment

    def sender(self, ports: list[int], sent: Sent) -> Sender:
        return MqttSender(sent, ports[0], f"app/{WHO[0]}/new", "replies/sender")

    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        receive(ports[WHO.index(who)], who, f"app/{who}/#", 600, record, ready)
