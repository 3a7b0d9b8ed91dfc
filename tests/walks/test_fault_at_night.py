"""docs/operations.md, "When something is wrong": its commands at a mesh that is well, and at one that misses a site.

The operator pastes what the page says, finds the cause in what is printed, finds each warning of the logs in the page's tables, and does
what stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqmesh.broker.auth import passwords
from mqmesh.cli.demo.ring import free_ports
from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.topology.topology import load
from support.command import run
from support.documents import ROOT, of
from support.paho_client import Paho
from support.services import PATIENCE, wait_until
from support.terminal import Terminal

PAGE, SECTION = "docs/operations.md", "When something is wrong"
THREE_SITES = """
[mesh]
name = "sites"
key = "sixteen bytes or more"
[management]
accept = ["*"]
[[management.role]]
role = "viewer"
sites = ["*"]
[[broker]]
name = "porto"
number = 1
listen = ["mqtt://127.0.0.1:{porto}", "unix://{folder}/mqmesh.sock"]
[[broker]]
name = "lyon"
number = 2
listen = "mqtt://127.0.0.1:{lyon}"
[[broker]]
name = "turin"
number = 3
listen = "mqtt://127.0.0.1:{turin}"
[[link]]
between = ["porto", "lyon"]
[[link]]
between = ["lyon", "turin"]
[[link]]
between = ["turin", "porto"]
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    porto, lyon, turin = free_ports(3)
    (tmp_path / "mesh.toml").write_text(THREE_SITES.format(porto=porto, lyon=lyon, turin=turin, folder=tmp_path))
    with Fleet(load(tmp_path / "mesh.toml"), tmp_path / "data") as fleet:
        fleet.wait_settled(PATIENCE)
        yield fleet


def symptom(words: str) -> str:
    """A part of the section, from its heading on; "" for what stands before the first of them."""
    section = (ROOT / PAGE).read_text().partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    before, *parts = re.split(r"^### ", section, flags=re.MULTILINE)
    return next(part for part in parts if part.startswith(f"{words}\n")) if words else before


def commands(text: str) -> str:
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))


def typed(folder: Path, text: str) -> str:
    """What a shell says to the commands. Those that end with a status other than 0, and 27 for a time that is over, are named."""
    text = text.replace("unix:///run/mqmesh.sock", f"unix://{folder}/mqmesh.sock")
    trap = "trap 's=$?; [ $s = 27 ] || echo \"status $s: $BASH_COMMAND\"' ERR\n"
    terminal = Terminal(folder)
    try:
        terminal.paste(f"{trap}{text}echo all have ended\n")
        terminal.wait("^all have ended")
    finally:
        terminal.close()
    return "".join(terminal.said)


def test_each_command_works_at_a_mesh_that_is_well(fleet: Fleet, tmp_path: Path) -> None:
    passwords.change(tmp_path / "users", "alice", b"pw")
    (tmp_path / "broker.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\ndata = "data/porto"\n[access]\nusers = "users"\n')
    text = "".join(block.text for block in of("sh", PAGE, SECTION)).replace(" -W 2 ", " -W 1 ")
    assert len(text.splitlines()) > 20
    said = typed(tmp_path, text)
    assert "status " not in said, said
    for words in (
        "porto  number 1 of mesh sites",
        "[*porto 1]",
        "$SYS/broker/store/state ok",
        "$SYS/broker/limits/clients/slowed 0",
    ):
        assert words in said, (words, said)


def test_a_site_is_missing(fleet: Fleet, tmp_path: Path) -> None:
    porto, turin = (int(fleet.members[name].address.port) for name in ("porto", "turin"))
    with Paho(turin, client_id="reader", persistent=True, SessionExpiryInterval=3600) as reader:
        reader.subscribe("plant/#", 1)
        fleet.wait_settled(PATIENCE)
    fleet.kill("turin")
    logs = [fleet.log(name) for name in ("porto", "lyon")]
    for log in logs:
        wait_until(lambda log=log: "event=member-down number=3 broker=turin" in log.read_text(), PATIENCE, f"a line in {log}")  # type: ignore[misc]
    with Paho(porto) as sensor:
        sensor.publish("plant/1/state", "stopped", 1)

    begin, missing = symptom(""), symptom("A site is missing")
    said = typed(tmp_path, commands(begin) + commands(missing))
    assert "status 1: mqmesh status -h $B --check" in said, said
    for words in ("not well: the link to turin is down", "not well: turin (number 3) cannot be reached", "(turin 3)", "Connection refused"):
        assert words in said, (words, said)
    rows = re.findall(r"^\| (.+) \| (.+) \|$", missing, re.MULTILINE)
    for log in logs:
        for line in log.read_text().splitlines():
            if "WARNING" in line:
                assert advice(line, rows), f"the page does not say what to do: {line}"

    fleet.restart("turin")  # "start the broker there"
    fleet.wait_settled(PATIENCE)
    assert run("status", "-h", f"unix://{tmp_path}/mqmesh.sock", "--check").returncode == 0
    with Paho(turin, client_id="reader", persistent=True, SessionExpiryInterval=3600) as reader:
        assert reader.next().payload == b"stopped"


def advice(line: str, rows: list[tuple[str, str]]) -> list[str]:
    """What the page's tables say to do about a line of the log."""
    return [todo for events, todo in rows if any(matches(line, event) for event in re.findall(r"`(.+?)`", events))]


def matches(line: str, event: str) -> bool:
    return re.search(".*".join(map(re.escape, event.split("..."))), line) is not None
