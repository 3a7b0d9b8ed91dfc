"""What the documents say to paste is pasted: the blocks of a section in order, into a shell, on other ports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.services import free_port, require
from support.terminal import ROOT, Terminal

pytestmark = pytest.mark.process


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
