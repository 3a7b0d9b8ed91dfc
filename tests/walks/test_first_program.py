"""The README's section "A first program", as a newcomer pastes it: the mesh, then the program, then the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import free_ports
from support.documents import ROOT, of
from support.terminal import Terminal

PAGE, SECTION = "README.md", "A first program"
PORTS = ("18301", "18302", "18303", "18304", "18305")


@pytest.mark.service
def test_the_first_program_and_the_commands_after_it(tmp_path: Path) -> None:
    begin, commands = (block.text for block in of("sh", PAGE, SECTION))
    (program,) = (block.text for block in of("python", PAGE, SECTION))
    assert program == (ROOT / "examples/first.py").read_text()
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))

    def moved(text: str) -> str:
        for wanted, given in ports.items():
            text = text.replace(wanted, given)
        return text

    activate, up = begin.splitlines()
    assert activate.startswith(". .venv/bin/activate ")  # the terminal has it in its PATH
    assert up.startswith("mqmesh up topologies/ring-of-five.toml ")
    (tmp_path / "five.toml").write_text(moved((ROOT / "topologies/ring-of-five.toml").read_text()))
    status, listen, publish = moved(commands).splitlines()
    terminal = Terminal(tmp_path)
    try:
        terminal.paste("mqmesh up five.toml --data data &\n")
        terminal.wait("^ready")
        terminal.paste(f"python examples/first.py {ports['18301']} {ports['18303']}\n")
        terminal.wait("^turin got plant/3/temperature = 21.5$")
        terminal.paste(f"{status}\n")
        terminal.wait(r"\[\*porto 1\]")
        terminal.paste(f"{listen} -d &\n")
        terminal.wait("SUBACK")
        terminal.paste(f"until [ -s heard ]; do {publish}; sleep 0.2; done &\n")
        terminal.wait("^plant/3/temperature 21.5$")
        terminal.paste("touch heard; echo > heard; kill %2; wait %3; kill %1; wait; echo all have ended\n")
        terminal.wait("^all have ended")
    finally:
        terminal.close()
