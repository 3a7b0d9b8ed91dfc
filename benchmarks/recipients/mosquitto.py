"""Mosquitto with a shared subscription of two members, whose sessions outlive their connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import Deployment, binary, first_line, free_port, listens
from benchmarks.recipients.mqtt import MqttSender, receive
from benchmarks.recipients.system import Record, Sender, Sent, System


class Mosquitto(System):
    """As it comes it queues 1,000 messages for a member; set for a hang there is no bound."""

    name = "Mosquitto, shared subscription"

    @property
    def settings(self) -> str:
        return "keep alive 3 s, max_queued_messages 0" if self.tuned else "keep alive 60 s"

    def version(self) -> str:
        return first_line([binary("MOSQUITTO", "mosquitto"), "-h"])

    def deploy(self, folder: Path) -> Deployment:
        folder.mkdir(parents=True)
        deployment = Deployment(folder, ports=[free_port()])
        config = folder / "mosquitto.conf"
        lines = [f"listener {deployment.ports[0]} 127.0.0.1", "allow_anonymous true", "log_type none"]
        config.write_text("\n".join([*lines, *(["max_queued_messages 0"] if self.tuned else [])]) + "\n")
        deployment.start("mosquitto", [binary("MOSQUITTO", "mosquitto"), "-c", str(config)], listens(deployment.ports[0]))
        return deployment

    def sender(self, ports: list[int], sent: Sent) -> Sender:
        return MqttSender(sent, ports[0], "orders")

    async def receive(self, ports: list[int], who: str, record: Record, ready: Callable[[], None]) -> None:
        receive(ports[0], who, "$share/workers/orders", 3 if self.tuned else 60, record, ready)
