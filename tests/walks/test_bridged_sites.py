"""Two sites that a Mosquitto bridge joins become a mesh as docs/from-mosquitto.md says, while their clients work.

With `pytest -s` it says for how long messages stood still, and how many of those that were published meanwhile did not arrive.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.attached_sites import Listener, Worker
from support.command import run, start
from support.documents import of
from support.mosquittos import Mosquitto
from support.services import PATIENCE, free_port, wait_until

PAGE, SECTION = "docs/from-mosquitto.md", "Two bridged sites, while their clients work"
SITES = ("hub", "plant")
PACE = 0.02  # seconds between two messages of one talker


class Talker(Worker):
    """Publishes at QoS 1, each message after the one before is acknowledged."""

    def __init__(self, port: int, site: str) -> None:
        super().__init__(port, f"talker-{site}")
        self.topic = f"t/{site}"
        self.sent = self._acknowledged = 0
        self._end = threading.Event()
        self.client.on_publish = self._on_publish
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def _talk(self) -> None:
        while not self._end.wait(PACE):
            self.client.publish(self.topic, b"%d" % self.sent, 1)
            self.sent += 1
            with self.changed:
                self.changed.wait_for(lambda: self._acknowledged == self.sent, PATIENCE)

    def _on_publish(self, *_: object) -> None:
        with self.changed:
            self._acknowledged += 1
            self.changed.notify_all()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(PATIENCE)


class Clock(Listener):
    """Knows for how long nothing new has come of a topic."""

    def __init__(self, port: int, site: str) -> None:
        self.last: dict[str, float] = {}
        self.still: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        super().__init__(port, f"listener-{site}")

    def got(self, message: object) -> None:
        topic, now = str(message.topic), time.monotonic()  # type: ignore[attr-defined]
        super().got(message)
        self.counts[topic] = self.counts.get(topic, 0) + 1
        self.still[topic] = max(self.still.get(topic, 0.0), now - self.last.get(topic, now))
        self.last[topic] = now


@pytest.fixture
def mosquittos(tmp_path: Path) -> Iterator[dict[str, Mosquitto]]:
    with Mosquitto(tmp_path, name="hub", saves=True) as hub:
        bridge = f"connection hub\naddress 127.0.0.1:{hub.port}\ntopic # both 2\n"
        with Mosquitto(tmp_path, bridge, name="plant", saves=True) as plant:
            yield {"hub": hub, "plant": plant}


@pytest.mark.service
def test_a_mesh_takes_the_place_of_a_bridge(tmp_path: Path, mosquittos: dict[str, Mosquitto]) -> None:
    (settings,) = of("toml", PAGE, SECTION)
    desk, *steps = [block.text for block in of("sh", PAGE, SECTION)]
    addresses = {"10.0.0.1:1884": free_port(), "10.0.0.2:1884": free_port(), "10.0.0.2:1885": free_port()}
    addresses |= {f"10.0.0.{number}:1883": mosquittos[site].port for number, site in enumerate(SITES, 1)}
    text = re.sub(r"10\.0\.0\.\d:\d+", lambda found: f"127.0.0.1:{addresses[found[0]]}", settings.text)
    (tmp_path / "sites.toml").write_text(text)
    listeners = [Clock(mosquittos[site].port, site) for site in SITES]
    talkers = [Talker(mosquittos[site].port, site) for site in SITES]
    all_arrive(listeners)
    brokers: list[subprocess.Popen[str]] = []
    try:
        shell(desk, tmp_path, {"# at your desk\nmqmesh topology": "mqmesh topology"})
        for step in steps:
            where, *commands = step.splitlines()
            site = where.removeprefix("# on ").removesuffix(", in another terminal")
            for command in commands:
                if command == "mqmesh broker --config broker.toml":
                    brokers.append(broker := start("broker", "--config", "broker.toml", cwd=tmp_path / "machines" / site))
                    assert broker.stdout is not None
                    assert broker.stdout.readline().startswith("ready")
                elif command == "systemctl restart mosquitto":
                    mosquittos[site].stop()
                    mosquittos[site].start()
                else:
                    edits = {"/etc/mosquitto/mosquitto.conf": str(mosquittos[site].config)}
                    if command.startswith("echo"):
                        edits["1885 10.0.0.2"] = f"{addresses['10.0.0.2:1885']} 127.0.0.1"
                    shell(command, tmp_path, edits)
        assert "connection" not in mosquittos["plant"].config.read_text()
        all_arrive(listeners)
        tell(listeners, talkers)
        assert run("status", "-h", f"mqtt://127.0.0.1:{addresses['10.0.0.1:1884']}", "--check").returncode == 0
    finally:
        for broker in brokers:
            broker.terminate()
            broker.communicate(timeout=PATIENCE)
        for client in (*talkers, *listeners):
            client.close()


def shell(commands: str, folder: Path, edits: dict[str, str]) -> None:
    for wanted, given in edits.items():
        assert wanted in commands
        commands = commands.replace(wanted, given)
    if commands.startswith("mqmesh "):
        done = run(*commands.split()[1:], cwd=folder)
    else:
        done = subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def all_arrive(listeners: list[Clock]) -> None:
    """Until fifty more messages of each site have come at each site."""
    before = [dict(one.counts) for one in listeners]

    def come(one: Clock, was: dict[str, int]) -> Callable[[], bool]:
        return lambda: all(one.counts.get(f"t/{site}", 0) >= was.get(f"t/{site}", 0) + 50 for site in SITES)

    for one, was in zip(listeners, before, strict=True):
        wait_until(come(one, was), PATIENCE, "messages of both sites")


def tell(listeners: list[Clock], talkers: list[Talker]) -> None:
    """End the talkers, check that their last messages came, each once, and say what happened in between."""
    sent = {}
    for one in talkers:
        one.stop()
        sent[one.topic] = one.sent
    for listener, site in zip(listeners, SITES, strict=True):
        listener.wait_for({(topic, b"%d" % (count - 1)) for topic, count in sent.items()})
        for topic, count in sent.items():
            numbers = {int(payload) for name, payload in listener.seen if name == topic}
            repeated = sum(listener.seen.values()) - len(listener.seen)
            lost = len(set(range(min(numbers), count)) - numbers)
            print(f"{topic} at {site}: still for {listener.still[topic]:.2f} s, {count} sent, {lost} lost, {repeated} repeated")
