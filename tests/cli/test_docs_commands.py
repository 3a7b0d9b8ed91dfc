"""What the documents say to paste is pasted: the blocks of a section in order, into a shell, on other ports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mqmesh.broker.auth import passwords
from mqmesh.cli.demo.ring import free_ports
from mqmesh.cli.fleet.process import Fleet
from mqmesh.mesh.topology.topology import load
from support.services import free_port, require
from support.terminal import PATIENCE, ROOT, Terminal


def blocks(document: str, section: str, language: str = "sh") -> list[str]:
    """The blocks of one language, of a shell if not given, below a heading."""
    text = (ROOT / document).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.service
def test_the_metabrokers_first_steps(tmp_path: Path) -> None:
    for tool in ("mosquitto_sub", "mosquitto_rr"):
        require(tool)
    begin, go_on = blocks("docs/metabroker.md", "Run it")
    ports = {"1883": str(free_port()), "1884": str(free_port())}
    begin, go_on = (re.sub(r"\b188[34]\b", lambda found: ports[found[0]], block) for block in (begin, go_on))
    go_on = go_on.replace("examples/abroad.py", f"examples/abroad.py mqtt://127.0.0.1:{ports['1883']}")
    terminal = Terminal(tmp_path)
    try:
        terminal.paste(begin)
        terminal.wait("^ready", "^ready")
        steps, end = go_on.split("kill %3")
        terminal.paste(steps)
        terminal.wait(
            "^demo/temperature 21.5$", "^published through session", "^rain/rhine: 7 mm", "^stocks: refused_by_policy", '^{"up":true'
        )
        terminal.paste(f"kill %3{end}wait; jobs; echo all have ended\n")
        terminal.wait("^all have ended")
    finally:
        said = terminal.close()
    assert "no such job" not in said


def test_the_directorys_first_steps(tmp_path: Path) -> None:
    require("curl")
    port = str(free_port())
    begin, go_on = blocks("docs/directory.md", "Five minutes")
    lease, *_ = blocks("docs/directory.md", "Leases")
    terminal = Terminal(tmp_path)
    try:
        terminal.paste(f"export MQMESH_DIRECTORY_URL=http://127.0.0.1:{port}\n")
        terminal.paste(begin.replace("directory serve", f"directory serve --listen 127.0.0.1:{port}"))
        terminal.wait("^ready")
        terminal.paste(go_on)
        imported = ("registered mesh ring-of-five and 5 brokers", "registered application gauges")
        terminal.wait(*imported, "porto .*mqtt://127.0.0.1:18301", '"interval": 30.0')
        terminal.paste(lease.replace("8090", port).replace("curl -X", "curl -sS -X"))
        terminal.paste("echo; echo the lease is there\n")
        terminal.wait('"name":"porto","number":1,.*"refused":\\[\\]', "^the lease is there")
    finally:
        terminal.close()


TWO_SITES = """
[mesh]
name = "pair"
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
[[link]]
between = ["porto", "lyon"]
"""


def test_what_operators_type_when_something_is_wrong(tmp_path: Path) -> None:
    """Each command of the page does what its comment says at a mesh that is well: status 0, or 27 where it ends after a time."""
    porto, lyon = free_ports(2)
    (tmp_path / "mesh.toml").write_text(TWO_SITES.format(porto=porto, lyon=lyon, folder=tmp_path))
    passwords.change(tmp_path / "users", "alice", b"pw")
    (tmp_path / "broker.toml").write_text('listen = ["mqtt://127.0.0.1:0"]\ndata = "data/porto"\n[access]\nusers = "users"\n')
    text = "\n".join(blocks("docs/operations.md", "When something is wrong"))
    assert len(text.splitlines()) > 20
    text = text.replace("unix:///run/mqmesh.sock", f"unix://{tmp_path}/mqmesh.sock")
    trap = "trap 's=$?; [ $s = 27 ] || echo \"wrong: $BASH_COMMAND: $s\"' ERR\n"
    with Fleet(load(tmp_path / "mesh.toml"), tmp_path / "data") as fleet:
        fleet.wait_settled(PATIENCE)
        terminal = Terminal(tmp_path)
        try:
            terminal.paste(f"{trap}{text}echo all have ended\n")
            terminal.wait("^all have ended")
        finally:
            said = terminal.close()
    assert "wrong: " not in said, said
    for word in (
        "porto  number 1 of mesh pair",
        "[*porto 1]",
        "$SYS/broker/store/state ok",
        "$SYS/broker/limits/clients/slowed 0",
    ):
        assert word in said, (word, said)
