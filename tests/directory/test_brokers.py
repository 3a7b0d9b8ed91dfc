"""Broker processes that register themselves: numbers, neighbours, kill -9, a directory that goes away and comes back."""

from __future__ import annotations

import itertools
import os
import queue
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from mqmesh.directory.client import ClientError
from support import command
from support.directories import Directory
from support.paho_client import Paho
from support.services import free_port, wait_until

pytestmark = pytest.mark.process

KEY = "sixteen bytes or more"
LEASE = 2
PATIENCE = 90.0


class Site:
    """One `mqmesh broker` with a file, a data folder and a directory."""

    def __init__(self, folder: Path, url: str, name: str, mesh: str, more: str = "", **directory: Any) -> None:
        self.folder, self.name = folder, name
        self.file, self.log = folder / f"{name}.toml", folder / f"{name}.log"
        lines = {"url": url, "account": "alice", "secret_file": "secret", "lease": LEASE, **directory}
        pairs = "\n".join(f"{key} = {value!r}" for key, value in lines.items())
        head = f'name = "{name}"\ndata = "data-{name}"\nlisten = ["mqtt://127.0.0.1:{free_port()}"]'
        self.file.write_text(f'{head}\n[mesh]\nname = "{mesh}"\nkey = "{KEY}"\n[directory]\n{pairs}\n{more}\n')

    def start(self) -> Site:
        self.process = command.start("broker", "--config", self.file, stderr=self.log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.log.read_text()
        self.port, self.number = int(line.split()[1].rpartition(":")[2]), int(line.rpartition("=")[2])
        return self

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)

    def said(self, event: str) -> int:
        return self.log.read_text().count(f"event={event}")

    def directory_is_away(self) -> bool:
        """What the log said last of the directory. Each state is said once: a slow directory may have been away before, and back."""
        states = re.findall("event=(directory-(?:registered|away|failed|refused))", self.log.read_text())
        assert set(states) <= {"directory-registered", "directory-away"}, self.log.read_text()
        assert all(one != other for one, other in itertools.pairwise(states)), self.log.read_text()
        return bool(states) and states[-1] == "directory-away"


@pytest.fixture
def folder(tmp_path: Path, directory: Directory) -> Path:
    (tmp_path / "secret").write_text(directory.secrets["alice"] + "\n")
    return tmp_path


def brokers(directory: Directory, mesh: str) -> dict[str, int]:
    return {one["name"]: one["number"] for one in directory.client().find("broker", mesh)}


def addresses(directory: Directory, sort: str, mesh: str) -> dict[str, list[str]]:
    return {one["name"]: one["addresses"] for one in directory.client("alice").find(sort, mesh)}


def test_brokers_get_numbers_find_each_other_and_vanish_when_killed(directory: Directory, folder: Path) -> None:
    offer = '[[directory.service]]\nname = "weather"\npermissions = ["acme"]'
    porto = Site(folder, directory.url, "porto", "auto", offer, neighbours="all").start()
    lyon = Site(folder, directory.url, "lyon", "auto", neighbours="all").start()
    assert (porto.number, lyon.number) == (1, 2)
    both = {"porto": 1, "lyon": 2}
    wait_until(lambda: brokers(directory, "auto") == both, PATIENCE, "two registered brokers")
    here, there = (f"mqtt://127.0.0.1:{site.port}" for site in (porto, lyon))
    wait_until(lambda: addresses(directory, "broker", "auto") == {"porto": [here], "lyon": [there]}, PATIENCE, "their addresses")
    wait_until(lambda: addresses(directory, "service", "auto") == {"weather": [here]}, PATIENCE, "the service")
    assert [one["addresses"] for one in directory.client().find("service", "auto")] == [[]], "its permissions name no stranger"
    wait_until(lambda: lyon.said("link-up") > 0, PATIENCE, "a link that nobody configured")
    with Paho(porto.port) as sender, Paho(lyon.port) as receiver:
        receiver.subscribe("a", 1)
        wait_until(lambda: _arrives(sender, receiver), PATIENCE, "a message over the link")

    lyon.end(signal.SIGKILL)
    wait_until(lambda: brokers(directory, "auto") == {"porto": porto.number}, PATIENCE, "the end of the lease")
    assert {one["name"]: one["number"] for one in directory.client("alice").leases("auto")} == {"porto": 1, "lyon": 2}, "kept"
    assert lyon.start().number == 2
    wait_until(lambda: brokers(directory, "auto") == both, PATIENCE, "its own number again")
    for site in (lyon, porto):
        site.end(signal.SIGTERM)
        assert site.process.returncode == 0
        wait_until(lambda site=site: site.name not in brokers(directory, "auto"), PATIENCE, "it to have left")  # type: ignore[misc]
    wait_until(lambda: directory.client().find("service", "auto") == [], PATIENCE, "its service to have left")


def _arrives(sender: Paho, receiver: Paho) -> bool:
    sender.publish("a", b"x", 1)
    try:
        return bool(receiver.messages.get(timeout=1).payload == b"x")
    except queue.Empty:
        return False


def test_a_directory_that_is_away_stops_nothing(folder: Path, directory: Directory, tmp_path: Path) -> None:
    own = Directory(f"sqlite:///{tmp_path / 'own.db'}", tmp_path / "own.log")
    own.accounts()
    (folder / "secret").write_text(own.secrets["alice"])
    peer = '[[mesh.peer]]\nname = "lyon"'
    lyon = Site(folder, own.url, "lyon", "hard").start()
    porto = Site(folder, own.url, "porto", "hard")
    text = porto.file.read_text().replace("[directory]", f"{peer}\n[directory]")
    porto.file.write_text(text)
    porto.start()
    numbers = {"porto": porto.number, "lyon": lyon.number}
    wait_until(lambda: porto.said("link-up") > 0, PATIENCE, "a link to a neighbour by name")
    wait_until(lambda: brokers(own, "hard") == numbers, PATIENCE, "both")
    listen = own.url.removeprefix("http://")
    own.kill()
    wait_until(lambda: lyon.directory_is_away() and porto.directory_is_away(), PATIENCE, "lines about the directory")
    porto.end(signal.SIGKILL)
    assert porto.start().number == numbers["porto"], "it starts with what is known"
    wait_until(lambda: porto.said("link-up") > 0 and porto.directory_is_away(), PATIENCE, "the link again")
    with Paho(porto.port) as here, Paho(lyon.port) as there:
        there.subscribe("a", 1)
        wait_until(lambda: _arrives(here, there), PATIENCE, "a message while the directory is away")
    assert lyon.directory_is_away()
    assert porto.directory_is_away()
    own.start(listen)
    wait_until(lambda: brokers(own, "hard") == numbers, PATIENCE, "both again")
    for site in (lyon, porto):
        site.end(signal.SIGTERM)
    wait_until(lambda: brokers(own, "hard") == {}, PATIENCE, "both to have left")
    own.kill()


def test_a_wiped_data_folder_gets_the_number_of_its_name_behind_the_lease(directory: Directory, folder: Path) -> None:
    for name in ("other", "porto"):
        Site(folder, directory.url, name, "wiped").start().end(signal.SIGKILL)
    (folder / "data-porto" / "directory.json").unlink()
    (folder / "data-porto" / "identity.json").unlink()
    porto = Site(folder, directory.url, "porto", "wiped").start()
    assert porto.number == 2
    porto.end(signal.SIGTERM)


def test_who_may_not_register_is_told_why(directory: Directory, folder: Path) -> None:
    (folder / "secret").write_text("a secret that is not hers")
    site = Site(folder, directory.url, "porto", "closed")
    done = command.run("broker", "--config", site.file)
    assert done.returncode == 2
    assert b"mqmesh: broker porto: directory: E_unknownUser" in done.stderr
    site.file.write_text("number = 4\n" + site.file.read_text())
    site.start()
    wait_until(lambda: site.said("directory-refused") >= 1, PATIENCE, "a line about the refusal")
    assert site.number == 4, "a broker that has a number serves all the same"
    site.end(signal.SIGTERM)


def test_on_the_command_line(directory: Directory, tmp_path: Path) -> None:
    env = os.environ | {"MQMESH_DIRECTORY_ACCOUNT": "alice", "MQMESH_DIRECTORY_SECRET": directory.secrets["alice"], "MQMESH_KEY": KEY}
    options = ("--name", "porto", "--mesh", "line", "--listen", "mqtt://127.0.0.1:0", "--data", tmp_path / "data")
    process = command.start("broker", *options, "--directory", directory.url, env=env)
    assert process.stdout is not None
    assert process.stdout.readline().rstrip().endswith("number=1")
    wait_until(lambda: brokers(directory, "line") == {"porto": 1}, PATIENCE, "the broker")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    wait_until(lambda: brokers(directory, "line") == {}, PATIENCE, "it to have left")
    with pytest.raises(ClientError, match="no broker"):
        directory.client().get("broker", "porto", "line")
