"""`mqmesh mesh` with brokers that are processes: a mesh changes while it runs, and nobody else restarts."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import run, start
from support.paho_client import Paho
from support.services import PATIENCE, free_port, wait_until

pytestmark = pytest.mark.slow


class Site:
    """A broker with a data folder, a file and a Unix socket."""

    def __init__(self, folder: Path, name: str, number: int, *peers: Site) -> None:
        self.folder, self.name, self.number = folder / name, name, number
        self.port = free_port()
        self.url, self.socket = f"mqtt://127.0.0.1:{self.port}", f"unix://{folder}/{name}.sock"
        self.file, self.log = folder / f"{name}.toml", folder / f"{name}.log"
        self.write(*peers)
        self.start()

    def write(self, *peers: Site, more: str = "") -> None:
        text = f'name = "{self.name}"\nnumber = {self.number}\nlisten = ["{self.url}", "{self.socket}"]\ndata = "{self.folder}"\n'
        text += f'[mesh]\nname = "m"\nkey = "a key of sixteen bytes"\nretry_last = 0.2\nsilence = 30\n{more}'
        self.file.write_text(text + "".join(f'[[mesh.peer]]\naddress = "{peer.url}"\n' for peer in peers))

    def start(self) -> None:
        self.process = start("broker", "--config", self.file, stderr=self.log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready"), self.log.read_text()

    def ask(self, *words: object) -> str:
        """`mqmesh mesh ...` at this broker, which must do it."""
        done = run("mesh", *words, "-h", self.socket)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def refusal(self, *words: object) -> str:
        """Why it does not do it."""
        done = run("mesh", *words, "-h", self.socket)
        assert (done.returncode, done.stdout) == (1, b"")
        return done.stderr.decode()

    def mesh(self) -> dict[str, Any]:
        """What it says of its mesh."""
        with Paho(self.port, client_id=f"watch-{self.name}") as client:
            client.subscribe("$SYS/broker/mesh/status", 0)
            return dict(json.loads(client.next().payload))

    def problems(self) -> list[str]:
        done = run("status", "-h", self.socket, "--json")
        return list(json.loads(done.stdout)["problems"])

    def live(self) -> list[str]:
        return [member["name"] for member in self.mesh()["members"] if member["live"]]

    def uuid(self) -> str:
        return str(json.loads((self.folder / "identity.json").read_text())["uuid"]).replace("-", "")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return status


def soon(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, PATIENCE, what)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Site]]:
    """a - b - c: b dials both. Each test leaves them so."""
    tmp_path = tmp_path_factory.mktemp("three")
    a, c = Site(tmp_path, "a", 1), Site(tmp_path, "c", 3)
    b = Site(tmp_path, "b", 2, a, c)
    sites = [a, b, c]
    soon(lambda: all(len(site.live()) == 3 for site in sites), "three brokers")
    yield sites
    for site in sites:
        if site.process.poll() is None:
            site.end()


@pytest.mark.parametrize("what", ["forget", "rekey"])
def test_a_machine_that_was_replaced_without_its_identity_comes_back(three: list[Site], what: str) -> None:
    a, b, c = three
    assert "c (number 3) can be reached: stop it first" in a.refusal("forget", "c")
    old = c.uuid()
    c.end(signal.SIGKILL)
    shutil.rmtree(c.folder)
    soon(lambda: "c" not in a.live(), "c is gone")
    before = len(b.log.read_text())
    c.start()
    soon(lambda: "is known under the key" in b.log.read_text()[before:], "b refuses the new machine")
    words = ["forget", "c"] if what == "forget" else ["rekey", 3, json.loads((c.folder / "identity.json").read_text())["key"]]
    said = a.ask(*words, "--dry-run")
    assert said.startswith("would: ")
    assert f"would: {a.ask(*words)}" == said
    soon(lambda: all(len(site.live()) == 3 for site in three), "c is back")
    (uuid,) = {member["uuid"] for site in three for member in site.mesh()["members"] if member["name"] == "c"}
    assert uuid == c.uuid() != old


def test_a_broker_that_leaves_in_order_is_not_missed(three: list[Site]) -> None:
    a, b, c = three
    with Paho(c.port, 4, "kept", persistent=True) as client:
        client.subscribe("t", 1)
    assert "it keeps 1 session, to end with it; drain it, end them, or give --force" in c.refusal("leave")
    assert "c ends; it keeps 1 session," in c.ask("leave", "--dry-run")
    assert "c ends" in c.ask("leave", "--force")
    assert c.ended() == 0
    soon(lambda: [member["name"] for member in a.mesh()["members"]] == ["a", "b"], "a forgets c")
    assert b.problems() == []
    assert run("status", "-h", b.socket, "--check").returncode == 0
    c.start()
    soon(lambda: all(len(site.live()) == 3 for site in three), "c is a member again")


def test_peers_costs_and_draining(three: list[Site]) -> None:
    a, b, c = three
    assert "c dials" in c.ask("add-peer", a.url, "--cost", 2, "--number", 1)
    soon(lambda: sorted(link["name"] for link in a.mesh()["links"] if link["up"]) == ["b", "c"], "a link between a and c")
    assert "is dialled already" in c.refusal("add-peer", a.url)
    assert "c (number 3) dials a: remove the peer there" in a.refusal("remove-peer", "c")

    def cost(site: Site) -> list[int]:
        return [row[2] for row in site.mesh()["graph"] if row[:2] == [1, 3]]

    soon(lambda: cost(b) == [2], "its cost")
    c.ask("set-cost", "a", 7)
    soon(lambda: cost(b) == [7], "its new cost")
    c.ask("drain")
    soon(lambda: cost(b) == [65535], "others go round c")
    done = run("pub", "-h", f"mqtt://127.0.0.1:{c.port}", "-t", "t", "-m", "x")
    assert done.returncode == 1
    assert b"use another server (0x9c): the broker is drained" in done.stderr.lower()
    c.ask("resume")
    soon(lambda: cost(b) == [7], "as before")
    assert run("pub", "-h", f"mqtt://127.0.0.1:{c.port}", "-t", "t", "-m", "x").returncode == 0
    c.ask("remove-peer", "a")
    soon(lambda: sorted(link["name"] for link in a.mesh()["links"]) == ["b"], "no link between a and c")
    done = run("mesh", "drain", "-h", f"mqtt://127.0.0.1:{c.port}")
    assert b"not permitted" in done.stderr, "who is no operator"


def test_a_file_that_is_read_again(three: list[Site]) -> None:
    a, b, c = three
    key = json.loads((b.folder / "identity.json").read_text())["key"]
    c.write(a, more=f'keys = {{ b = "{"ab" * 32}" }}\nroam_wait = 1\n')
    c.process.send_signal(signal.SIGHUP)
    soon(lambda: sorted(link["name"] for link in a.mesh()["links"] if link["up"]) == ["b", "c"], "the new peer is dialled")
    soon(lambda: "mesh.keys says abab" in c.log.read_text(), "b has another key now")
    assert "event=not-reloaded settings=mesh.roam_wait" in c.log.read_text()
    c.write(more=f'keys = {{ b = "{key}" }}\n')
    c.process.send_signal(signal.SIGHUP)
    soon(lambda: sorted(link["name"] for link in b.mesh()["links"] if link["up"]) == ["a", "c"], "b is let in again")
    soon(lambda: [link["name"] for link in a.mesh()["links"]] == ["b"], "the peer is dialled no more")
